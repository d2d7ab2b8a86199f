//! A light look at a store that is known to work: one read of a few bytes.
//!
//! Owns: the object that is looked at, put back when it is missing.
//! Not here: what a store must be able to do (`probe`), how often one looks (the broker).
//! Spec: docs/formats/object-keys.md (`probe/alive/…`)

use crate::key;
use crate::probe::general;
use crate::store::{StoreError, TierStore};
use bytes::Bytes;
use tidelog_model::NodeId;

const CONTENT: &[u8] = b"Tidelog reads this object to see that the store works: it may be deleted";

/// Reads the object of `node`, and puts it where it is missing: one small object per broker stays in the store.
///
/// # Errors
/// What happened and what to do about it, in one line.
pub async fn alive(store: &TierStore, node: NodeId) -> Result<(), String> {
    let key = key::alive(node);
    let looked = match store.get(&key).await {
        Ok(_) => Ok(()),
        Err(StoreError::NotFound { .. }) => {
            store
                .put_object(&key, vec![Bytes::from_static(CONTENT)])
                .await
        }
        Err(error) => Err(error),
    };
    looked.map_err(|error| {
        let (reason, advice) = general(&error, crate::probe::MAY_WRITE);
        format!("{reason}. {advice}")
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::store::contract::Subject;
    use crate::store::faulty::{Call, Fault};
    use crate::store::{StoreSettings, open_store};
    use tidelog_env::SystemRandom;

    /// Proves that a look costs one read once the object is there, that a missing one is put back, and that failures say what to
    /// check.
    #[tokio::test]
    async fn a_look_is_one_read() {
        let open = open_store("memory:///", &StoreSettings::default()).unwrap();
        let subject = Subject::new(&open, SystemRandom::seeded(1));
        let node = NodeId::new(7);
        alive(&subject.store, node).await.unwrap();
        let puts = subject.faulty.calls(Call::Put);
        for _ in 0..3 {
            alive(&subject.store, node).await.unwrap();
        }
        assert_eq!(subject.faulty.calls(Call::Put), puts);
        subject.store.delete(&key::alive(node)).await.unwrap();
        alive(&subject.store, node).await.unwrap();
        assert_eq!(subject.faulty.calls(Call::Put), puts + 1);
        subject.faulty.inject_forever(Call::Get, Fault::Refuse);
        let error = alive(&subject.store, node).await.unwrap_err();
        assert!(error.contains("AWS_ACCESS_KEY_ID"), "{error}");
    }
}
