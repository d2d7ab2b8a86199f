//! Mistakes of identity: other brokers refuse this one for what it says it is.
//!
//! Owns: [`Mistakes`]: which of the refusals are such, their texts for people, and for how long they count.
//! Not here: the checks (`welcome.rs`), what follows for readiness (`node`).
//! Spec: docs/operating/health.md (identity)

use super::hello::Reason;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// What was not said again for so long is over: whoever is refused tries again within a second plus a handshake of three, while it has anything to say; who looks for a
/// leader has every two to three seconds.
const SAID_WITHIN: Duration = Duration::from_secs(15);
/// Brokers that are named at once: the others say the same.
const TOLD_MAX: usize = 2;

/// What is wrong, by the address of whoever says it. Clones share it. Not more entries than addresses that are dialled.
#[derive(Clone, Default)]
pub(super) struct Mistakes(Arc<Mutex<BTreeMap<String, (String, Instant)>>>);

impl Mistakes {
    /// What came of dialling `address`: it was refused for that reason with this text, or not refused.
    pub(super) fn note(&self, address: &str, refused: Option<(Reason, &str)>) {
        let text = refused.and_then(|(reason, text)| told(reason, address, text));
        let mut known = self.0.lock();
        known.retain(|_, (_, at)| at.elapsed() < SAID_WITHIN);
        match text {
            Some(text) => known.insert(address.to_owned(), (text, Instant::now())),
            None => known.remove(address),
        };
    }

    /// What is wrong now, and what to do.
    pub(super) fn now(&self) -> Option<String> {
        let known = self.0.lock();
        let lately = known.values().filter(|(_, at)| at.elapsed() < SAID_WITHIN);
        let texts: Vec<&str> = lately
            .map(|(text, _)| text.as_str())
            .take(TOLD_MAX)
            .collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    }
}

/// The text for people; `None`: the refusal is of no mistake of identity, or one that ends by itself.
fn told(reason: Reason, address: &str, text: &str) -> Option<String> {
    let what = match reason {
        Reason::Cluster => {
            "This data directory is of another cluster than that broker. Start this one with the data directory that it had there, or correct cluster.seeds if it shall be in its own cluster; \
             if it is new there, keep this directory, start it with an empty one, and run `tidelog cluster add`"
        }
        Reason::ClusterName => "Correct cluster.name, the same on all brokers, or cluster.seeds",
        Reason::Duplicate => {
            "Two brokers have one identity, and this is one of them: find the other, and stop the one that should not be"
        }
        Reason::Version
        | Reason::Malformed
        | Reason::Itself
        | Reason::NoCluster
        | Reason::Node
        | Reason::Tls => return None,
    };
    Some(format!("refused at {address}: {text}. {what}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    /// Proves that a mistake is told while it is said, with what to do, that of many some are, and that none is left when each has let this broker in, fails otherwise, or
    /// says nothing any more.
    #[tokio::test(start_paused = true)]
    async fn told_while_they_hold() {
        let mistakes = Mistakes::default();
        let note = |address: &str, reason, text: &str| mistakes.note(address, Some((reason, text)));
        assert_eq!(mistakes.now(), None);
        note("a:1", Reason::Duplicate, "twice");
        let told = mistakes.now().unwrap();
        assert!(told.starts_with("refused at a:1: twice. Two"), "{told}");
        note("b:1", Reason::Cluster, "another one");
        let told = mistakes.now().unwrap();
        assert!(
            told.contains("twice") && told.contains("cluster.seeds"),
            "{told}"
        );
        note("c:1", Reason::ClusterName, "called otherwise");
        let told = mistakes.now().unwrap();
        assert_eq!(told.matches("refused at").count(), TOLD_MAX);
        // Let in; refused for what is no mistake of identity.
        mistakes.note("a:1", None);
        note("b:1", Reason::Node, "replaced");
        assert!(mistakes.now().unwrap().contains("cluster.name"));
        tokio::time::advance(SAID_WITHIN).await;
        assert_eq!(mistakes.now(), None);
        note("d:1", Reason::Tls, "TLS only");
        assert_eq!((mistakes.now(), mistakes.0.lock().len()), (None, 0));
    }
}
