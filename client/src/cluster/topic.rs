//! Finding a topic: what one broker says of it, and whether there is none.
//!
//! Owns: who is asked before a topic is taken for unknown, and for how long.
//! Not here: asking anybody for metadata (`mod.rs`), the answers themselves (`metadata`).
//!
//! A broker hears of a topic a little after the one that created it, and one that is cut off from the others much later. So *unknown* is the word of all known brokers, not of one; a broker that
//! does not answer may be the one that knows.

use super::{ASIDE, Cluster, Metadata, TopicMeta, metadata_request};
use crate::error::{Error, ErrorCode};
use kafka_wire::MetadataRequest;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tidelog_model::NodeId;
use tokio::time::{Instant, timeout_at};

/// So long all brokers must have said that there is no such topic: a broker that works applies what was committed within some heartbeats (100 ms each), and a creation
/// may be answered before any other broker has heard of it.
const UNKNOWN_FOR: Duration = Duration::from_secs(1);

/// What the brokers say of a topic that none of them can use now.
struct Unfound {
    error: Error,
    /// All known brokers have said that there is none.
    everywhere: bool,
}

impl Cluster {
    /// The topic's metadata, asked for if it is not known. A topic of which a broker does not know (yet) is sought at the others, until the operation's deadline.
    ///
    /// # Errors
    /// UNKNOWN_TOPIC_OR_PARTITION when all known brokers have said so for a second; who was asked is in the text. At the deadline, when some did not answer, the same
    /// within [`Error::Deadline`].
    pub async fn topic(&self, name: &str) -> Result<Arc<Metadata>, Error> {
        let known = self.metadata();
        if known.topics.get(name).is_some_and(TopicMeta::is_usable) {
            return Ok(known);
        }
        self.seek_topic(name, UNKNOWN_FOR).await
    }

    /// The topic's metadata as the brokers tell it now. *Unknown* is what all that answer say, once: for who finds out by other means whether it is so.
    pub(crate) async fn topic_now(&self, name: &str) -> Result<Arc<Metadata>, Error> {
        self.seek_topic(name, Duration::ZERO).await
    }

    /// `settle`: how long it must be unknown everywhere; with zero those that do not answer are not waited for either.
    async fn seek_topic(&self, name: &str, settle: Duration) -> Result<Arc<Metadata>, Error> {
        let began = Instant::now();
        let mut attempts = self.attempts();
        loop {
            let unfound = match self.ask_for_topic(name, attempts.deadline()).await {
                Ok(metadata) => return Ok(metadata),
                Err(unfound) => unfound,
            };
            let error = unfound.error;
            let is_unknown = error.code() == Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
            let concluded = if settle.is_zero() {
                is_unknown
            } else {
                unfound.everywhere && began.elapsed() >= settle
            };
            if concluded || self.never_reached(&error) {
                return Err(error);
            }
            attempts.again(error).await?;
        }
    }

    /// Asks anybody, and if there is no such topic there, everybody.
    async fn ask_for_topic(&self, name: &str, deadline: Instant) -> Result<Arc<Metadata>, Unfound> {
        let unfound = |error| Unfound {
            error,
            everywhere: false,
        };
        let metadata = self.refresh(Some(&[name])).await.map_err(unfound)?;
        match check(&metadata, name) {
            Ok(true) => return Ok(metadata),
            Ok(false) => {}
            Err(error) => return Err(unfound(error)),
        }
        let (mut without, mut silent) = (Vec::new(), Vec::new());
        let mut asked = BTreeSet::new();
        // What one says may name more of them.
        while let Some(node) = self.not_among(&asked) {
            asked.insert(node);
            let by = deadline.min(Instant::now() + ASIDE);
            match timeout_at(by, self.refresh_from(node, name, by)).await {
                Ok(Ok(metadata)) => match check(&metadata, name) {
                    Ok(true) => return Ok(metadata),
                    Ok(false) => without.push(node),
                    Err(error) => return Err(unfound(error)),
                },
                Ok(Err(_)) | Err(_) => silent.push(node),
            }
        }
        Err(Unfound {
            error: unknown(name, &without, &silent),
            everywhere: silent.is_empty(),
        })
    }

    fn not_among(&self, asked: &BTreeSet<NodeId>) -> Option<NodeId> {
        let metadata = self.metadata();
        let mut known = metadata.brokers.keys();
        known.find(|node| !asked.contains(node)).copied()
    }

    /// As [`Cluster::refresh`], by one broker.
    async fn refresh_from(
        &self,
        node: NodeId,
        name: &str,
        deadline: Instant,
    ) -> Result<Arc<Metadata>, Error> {
        let _turn = self.0.refreshing.lock().await;
        let connection = self.node(node).await?;
        let names = [name];
        let answer = connection
            .call::<MetadataRequest>(4..=12, deadline, |_| metadata_request(Some(&names)));
        self.learn(&answer.await?, false)
    }
}

/// Whether a broker knows the topic. The error: it does, or may, and cannot serve it now.
fn check(metadata: &Metadata, name: &str) -> Result<bool, Error> {
    match metadata.check_topic(name) {
        Ok(()) => Ok(true),
        Err(error) if error.code() == Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION) => Ok(false),
        Err(error) => Err(error),
    }
}

fn unknown(name: &str, without: &[NodeId], silent: &[NodeId]) -> Error {
    let asked = match without {
        [] => "no broker that was asked knows it".to_owned(),
        [one] => format!("broker {one} knows none"),
        all => format!("brokers {} know none", listed(all)),
    };
    let missing = match silent {
        [] => String::new(),
        [one] => format!("; broker {one} did not answer"),
        all => format!("; brokers {} did not answer", listed(all)),
    };
    Error::Broker {
        code: ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
        what: format!("topic '{name}'"),
        message: Some(asked + &missing),
    }
}

fn listed(nodes: &[NodeId]) -> String {
    let nodes: Vec<String> = nodes.iter().map(NodeId::to_string).collect();
    nodes.join(", ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    /// Proves that the error names who was asked, and who did not answer.
    #[test]
    fn the_error_says_who_was_asked() {
        let nodes = |ids: &[i32]| ids.iter().copied().map(NodeId::new).collect::<Vec<_>>();
        let text = |without: &[i32], silent: &[i32]| {
            unknown("t", &nodes(without), &nodes(silent)).to_string()
        };
        let said = "topic 't': UNKNOWN_TOPIC_OR_PARTITION (3): ";
        assert_eq!(text(&[1], &[]), format!("{said}broker 1 knows none"));
        assert_eq!(
            text(&[1, 2], &[3]),
            format!("{said}brokers 1, 2 know none; broker 3 did not answer")
        );
        assert_eq!(
            text(&[], &[3, 4]),
            format!("{said}no broker that was asked knows it; brokers 3, 4 did not answer")
        );
    }
}
