//! The marker of a cluster's store: one object that tells it from every other store.
//!
//! Owns: its bytes, putting it once, reading it, and what a difference means in words.
//! Not here: which store is the cluster's (the metadata group says so), what a broker does with a wrong one.
//! Spec: docs/formats/store-marker.md

use crate::key;
use crate::store::{PutOutcome, StoreError, StoreLimits, TierStore};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;
use tidelog_model::{ClusterId, StoreId};
use uuid::Uuid;

const VERSION: u32 = 1;
/// The object is one line; anything larger is not ours.
const BYTES_MAX: u64 = 4 << 10;

/// What the object says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    /// Whose store it is.
    pub cluster: ClusterId,
    /// Which store.
    pub store: StoreId,
}

#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Object {
    version: u32,
    cluster_id: String,
    store_id: String,
}

impl Marker {
    /// The object's bytes: one line of JSON, which an operator can write by hand.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let object = Object {
            version: VERSION,
            cluster_id: self.cluster.to_string(),
            store_id: self.store.to_string(),
        };
        // A number and two texts: nothing in it can fail.
        let mut text = serde_json::to_string(&object).unwrap_or_default();
        text.push('\n');
        text.into()
    }

    /// Reads the object.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let version: Versioned =
            serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if version.version != VERSION {
            return Err(format!(
                "its version is {}, this program knows {VERSION}",
                version.version
            ));
        }
        let object: Object = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let uuid = |text: &str, what| {
            let parsed = Uuid::try_parse(text).ok().filter(|id| !id.is_nil());
            parsed.ok_or_else(|| format!("its {what} is not an id"))
        };
        Ok(Self {
            cluster: ClusterId::new(uuid(&object.cluster_id, "cluster_id")?),
            store: StoreId::new(uuid(&object.store_id, "store_id")?),
        })
    }
}

/// What is in the place of the marker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing.
    Absent,
    /// A marker of this cluster.
    Marked(StoreId),
    /// A marker of another cluster: its objects were copied to this one's place.
    Foreign(ClusterId),
    /// Something else; why it is no marker.
    Unreadable(String),
}

impl Found {
    /// Whether this is the store with the id `expected`.
    #[must_use]
    pub fn is(&self, expected: StoreId) -> bool {
        *self == Self::Marked(expected)
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("it has no marker"),
            Self::Marked(store) => write!(f, "its marker says that it is store {store}"),
            Self::Foreign(cluster) => write!(
                f,
                "its marker belongs to cluster {cluster}: what is another cluster's was copied to the place of this one"
            ),
            Self::Unreadable(why) => write!(f, "its marker cannot be read ({why})"),
        }
    }
}

/// Reads the marker: one GET of a few bytes.
///
/// # Errors
/// [`StoreError::Unavailable`], [`StoreError::Refused`]: nothing is known of the store.
pub async fn look(store: &TierStore) -> Result<Found, StoreError> {
    let limits = StoreLimits {
        get_bytes_max: BYTES_MAX,
        ..*store.limits()
    };
    let bytes = match store.with_limits(limits).get(&key::marker()).await {
        Ok(bytes) => bytes,
        Err(StoreError::NotFound { .. }) => return Ok(Found::Absent),
        Err(StoreError::Corrupt { reason, .. }) => return Ok(Found::Unreadable(reason)),
        Err(error) => return Err(error),
    };
    Ok(match Marker::decode(&bytes) {
        Ok(marker) if marker.cluster == store.cluster() => Found::Marked(marker.store),
        Ok(marker) => Found::Foreign(marker.cluster),
        Err(why) => Found::Unreadable(why),
    })
}

/// Puts the marker with `id` where there is none, and says what is there then: whoever was first has chosen the id.
///
/// # Errors
/// [`StoreError::MayHaveHappened`]: a marker with this id may be there or come; the next call finds out, with any id. The others:
/// nothing was put.
pub async fn mark(store: &TierStore, id: StoreId) -> Result<Found, StoreError> {
    let found = look(store).await?;
    if found != Found::Absent {
        return Ok(found);
    }
    let marker = Marker {
        cluster: store.cluster(),
        store: id,
    };
    match store.put_if_absent(&key::marker(), marker.encode()).await? {
        PutOutcome::Created => Ok(Found::Marked(id)),
        PutOutcome::Exists => look(store).await,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::store::contract::Subject;
    use crate::store::faulty::{Call, Fault};
    use crate::store::{StoreSettings, open_store};
    use crate::testing::golden;
    use tidelog_env::SystemRandom;

    fn subject() -> Subject {
        let open = open_store("memory:///", &StoreSettings::default()).unwrap();
        Subject::new(&open, SystemRandom::seeded(1))
    }

    fn id(number: u128) -> StoreId {
        StoreId::new(Uuid::from_u128(number))
    }

    async fn put(subject: &Subject, bytes: Vec<u8>) {
        let key = key::marker();
        subject.store.delete(&key).await.unwrap();
        let put = subject.store.put_object(&key, vec![bytes.into()]);
        put.await.unwrap();
    }

    /// Proves that the bytes are those of the page, are read as an operator may write them, and that everything else is refused.
    #[test]
    fn bytes_of_version_1() {
        let marker = Marker {
            cluster: ClusterId::new(Uuid::from_u128(7)),
            store: id(9),
        };
        let bytes = marker.encode();
        golden("store-marker-v1.json", &bytes);
        assert_eq!(Marker::decode(&bytes).unwrap(), marker);
        let spaced = String::from_utf8(bytes.to_vec()).unwrap();
        let spaced = spaced.replace(',', ",\n  ");
        assert_eq!(Marker::decode(spaced.as_bytes()).unwrap(), marker);
        // Without the end of the line it is whole.
        for length in 0..bytes.len() - 1 {
            assert!(Marker::decode(&bytes[..length]).is_err(), "{length}");
        }
        let text = spaced.as_str();
        for wrong in [
            text.replace("\"version\":1", "\"version\":2"),
            text.replace("cluster_id", "cluster"),
            text.replace("\"version\"", "\"more\":1,\"version\""),
            text.replace("000000000009", "000000000000"),
            "[]".to_owned(),
        ] {
            assert!(Marker::decode(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    /// Proves that the first id stays whoever comes later, and that a look costs one read.
    #[tokio::test]
    async fn the_first_marker_stays() {
        let subject = subject();
        let store = &subject.store;
        assert_eq!(look(store).await.unwrap(), Found::Absent);
        assert_eq!(mark(store, id(1)).await.unwrap(), Found::Marked(id(1)));
        assert_eq!(mark(store, id(2)).await.unwrap(), Found::Marked(id(1)));
        let gets = subject.faulty.calls(Call::Get);
        let found = look(store).await.unwrap();
        assert!(found.is(id(1)) && !found.is(id(2)));
        assert_eq!(subject.faulty.calls(Call::Get), gets + 1);
    }

    /// Proves that two who see no marker end with one id, that of the one whose object is there.
    #[tokio::test]
    async fn the_loser_of_a_race_reads_the_winner() {
        let subject = subject();
        let (one, two) = tokio::join!(mark(&subject.store, id(1)), mark(&subject.store, id(2)));
        let (one, two) = (one.unwrap(), two.unwrap());
        assert_eq!(one, two);
        assert!(one.is(id(1)) || one.is(id(2)));
        assert_eq!(look(&subject.store).await.unwrap(), one);
    }

    /// Proves that a put whose reply is lost counts, and that one of which nobody can say whether it happened is adopted later.
    #[tokio::test]
    async fn a_lost_reply_is_no_second_marker() {
        let one = subject();
        one.faulty.inject(Call::PutIfAbsent, [Fault::LoseReply]);
        assert_eq!(mark(&one.store, id(1)).await.unwrap(), Found::Marked(id(1)));
        let two = subject();
        two.faulty
            .inject_forever(Call::PutIfAbsent, Fault::LoseReply);
        // The first look is answered; what would resolve the lost reply is not.
        two.faulty.inject(Call::Get, [Fault::None]);
        two.faulty.inject_forever(Call::Get, Fault::Unavailable);
        two.faulty.inject_forever(Call::Head, Fault::Unavailable);
        let error = mark(&two.store, id(1)).await.unwrap_err();
        assert!(!error.did_not_happen(), "{error}");
        two.faulty.heal();
        assert_eq!(mark(&two.store, id(2)).await.unwrap(), Found::Marked(id(1)));
    }

    /// Proves that what is no marker of this cluster is left as it is, and named; and that a store that does not answer is no other store.
    #[tokio::test]
    async fn what_is_not_ours_is_named() {
        let subject = subject();
        let other = ClusterId::new(Uuid::from_u128(8));
        let foreign = Marker {
            cluster: other,
            store: id(1),
        };
        put(&subject, foreign.encode().to_vec()).await;
        let found = mark(&subject.store, id(1)).await.unwrap();
        assert_eq!(found, Found::Foreign(other));
        assert!(found.to_string().contains(&other.to_string()) && !found.is(id(1)));
        for wrong in [b"{}".to_vec(), vec![b' '; 5_000]] {
            put(&subject, wrong).await;
            let found = mark(&subject.store, id(1)).await.unwrap();
            assert!(matches!(found, Found::Unreadable(_)), "{found}");
        }
        subject.faulty.inject_forever(Call::Get, Fault::Unavailable);
        assert!(look(&subject.store).await.unwrap_err().is_transient());
    }
}
