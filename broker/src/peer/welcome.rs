//! Who may connect: the checks of the handshake, on both sides. Pure.
//!
//! Owns: the order of the checks and their texts, [`NotLetIn`].
//! Not here: bytes (`hello.rs`), sockets.
//! Spec: docs/protocols/peer.md (handshake, reasons)

use super::config::PeerIdentity;
use super::frame::WireLane;
use super::hello::{Answer, Hello, Reason, Refusal, Versions, Who};
use super::presence::Twin;
use crate::observe::printable;
use tidelog_model::{NodeId, RaftNodeId};

/// Why a caller has no connection that it can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NotLetIn {
    /// The reason of the handshake, where it came to one.
    pub(super) reason: Option<Reason>,
    pub(super) text: String,
}

impl From<String> for NotLetIn {
    fn from(text: String) -> Self {
        Self { reason: None, text }
    }
}

impl From<(Reason, String)> for NotLetIn {
    fn from((reason, text): (Reason, String)) -> Self {
        let reason = Some(reason);
        Self { reason, text }
    }
}

impl PeerIdentity {
    pub(super) fn who(&self) -> Who {
        Who {
            cluster: self.cluster(),
            broker: self.broker,
            node: self.node,
            instance: self.instance,
        }
    }

    pub(super) fn hello(
        &self,
        lane: WireLane,
        broker_wanted: Option<NodeId>,
        node_wanted: Option<RaftNodeId>,
    ) -> Hello {
        Hello {
            versions: Versions::OURS,
            lane: Some(lane),
            from: self.who(),
            broker_wanted,
            node_wanted,
            name: self.name.clone(),
        }
    }

    /// The answer to `hello`.
    pub(super) fn answer(&self, hello: &Hello) -> Answer {
        match self.refuse(hello) {
            Ok(version) => Answer {
                versions: Versions {
                    newest: version,
                    ..Versions::OURS
                },
                refused: None,
                from: self.shown_to(hello),
            },
            Err((reason, text)) => self.refusal(reason, text),
        }
    }

    /// The answer to a hello without TLS where only TLS is taken.
    pub(super) fn wants_tls(&self, hello: &Hello) -> Answer {
        let text = format!(
            "broker {} takes TLS connections only (peer.tls-mode is require), and broker {} dials without: set peer.tls-mode = \"prefer\" or \"require\" there",
            self.broker, hello.from.broker
        );
        self.refusal(Reason::Tls, text)
    }

    /// The answer to a hello while another process speaks for its Raft node, or did and lived beside the caller.
    pub(super) fn twin(&self, hello: &Hello, twin: Twin) -> Answer {
        let Who { broker, node, .. } = hello.from;
        let text = match twin {
            Twin::At(other) => format!(
                "another process runs with the identity of broker {broker} (Raft node {node}): it is connected to broker {} from {other}. One data directory is a copy of the other: stop the copy, and start it with an empty data directory and a node.id of its own",
                self.broker
            ),
            Twin::Was(other) => format!(
                "another process ran with the identity of broker {broker} (Raft node {node}) beside this one: it was connected to broker {} from {other} a moment ago. One data directory is a copy of the other: stop the copy. If this is the one to keep, restart it, or wait two minutes",
                self.broker
            ),
        };
        self.refusal(Reason::Duplicate, text)
    }

    /// This broker as the answer to an accepted hello shows it: with the ids that the caller said itself. Who has cluster and Raft node of a member passes
    /// for it, so nobody learns them here.
    fn shown_to(&self, hello: &Hello) -> Who {
        let wanted = hello.node_wanted.filter(|wanted| *wanted == self.node);
        Who {
            cluster: self
                .cluster()
                .filter(|own| hello.from.cluster == Some(*own)),
            broker: self.broker,
            node: wanted.unwrap_or(RaftNodeId::new(0)),
            instance: 0,
        }
    }

    /// It tells a stranger no more of this broker than it must: with the ids of a process another one could speak for it.
    fn refusal(&self, reason: Reason, text: String) -> Answer {
        Answer {
            versions: Versions::OURS,
            refused: Some(Refusal {
                reason: Some(reason),
                text,
            }),
            from: Who {
                cluster: None,
                broker: self.broker,
                node: RaftNodeId::new(0),
                instance: 0,
            },
        }
    }

    /// The version to speak, or the first reason against it.
    fn refuse(&self, hello: &Hello) -> Result<u16, (Reason, String)> {
        let no = |reason, text: String| Err((reason, text));
        let (theirs, ours) = (hello.versions, Versions::OURS);
        let Some(version) = ours.common(theirs) else {
            return no(
                Reason::Version,
                format!(
                    "broker {} speaks peer protocol versions {} to {}, broker {} speaks {} to {}: update the older one",
                    self.broker,
                    ours.oldest,
                    ours.newest,
                    hello.from.broker,
                    theirs.oldest,
                    theirs.newest
                ),
            );
        };
        let Some(lane) = hello.lane.filter(|_| hello.from.node.get() != 0) else {
            return no(
                Reason::Malformed,
                "the lane, the flags or the Raft node id is not allowed".to_owned(),
            );
        };
        if hello.name != self.name {
            return no(
                Reason::ClusterName,
                format!(
                    "broker {} has cluster.name \"{}\", broker {} has another one",
                    hello.from.broker,
                    printable(&hello.name),
                    self.broker
                ),
            );
        }
        self.check_ids(hello.from)?;
        self.check_clusters(hello.from, lane)?;
        match not_wanted(hello, self.who()) {
            None => Ok(version),
            Some(text) => no(Reason::Node, text),
        }
    }

    fn check_ids(&self, from: Who) -> Result<(), (Reason, String)> {
        if from.instance == self.instance {
            return Err((
                Reason::Itself,
                format!("broker {} has connected to itself", self.broker),
            ));
        }
        if from.broker == self.broker {
            return Err((
                Reason::Duplicate,
                format!(
                    "two brokers have node.id {}: give one of them another one",
                    self.broker
                ),
            ));
        }
        if from.node == self.node {
            return Err((
                Reason::Duplicate,
                format!(
                    "brokers {} and {} have the same Raft node id {}: one data directory is a copy of the other",
                    self.broker, from.broker, self.node
                ),
            ));
        }
        Ok(())
    }

    fn check_clusters(&self, from: Who, lane: WireLane) -> Result<(), (Reason, String)> {
        match (self.cluster(), from.cluster) {
            (Some(ours), Some(theirs)) if ours != theirs => Err((
                Reason::Cluster,
                format!(
                    "broker {} is of cluster {theirs}, broker {} of another one",
                    from.broker, self.broker
                ),
            )),
            (Some(_), Some(_)) => Ok(()),
            (None, _) | (_, None) if lane == WireLane::Calls => Ok(()),
            (None, _) => Err((
                Reason::NoCluster,
                format!("broker {} is in no cluster yet", self.broker),
            )),
            (_, None) => Err((
                Reason::NoCluster,
                format!("broker {} is in no cluster yet", from.broker),
            )),
        }
    }

    /// Whether who answered is whom `hello` wanted; the other side checks the same, this side does not rely on it.
    pub(super) fn check_answer(&self, hello: &Hello, answer: &Answer) -> Result<(), NotLetIn> {
        let from = answer.from;
        if let Some(refusal) = &answer.refused {
            return Err(NotLetIn {
                reason: refusal.reason,
                text: format!("broker {} refuses: {}", from.broker, refusal.text),
            });
        }
        let version = answer.versions.newest;
        if !(Versions::OURS.oldest..=Versions::OURS.newest).contains(&version) {
            return Err(NotLetIn::from(format!(
                "broker {} wants to speak version {version}, which this one does not",
                from.broker
            )));
        }
        self.check_ids(from)?;
        let lane = hello.lane.unwrap_or(WireLane::Appends);
        self.check_clusters(from, lane)?;
        not_wanted(hello, from).map_or(Ok(()), |text| Err(text.into()))
    }
}

/// How `from` is not whom `hello` wants. Brokers are what people know; another Raft node is another data directory.
fn not_wanted(hello: &Hello, from: Who) -> Option<String> {
    let Who { broker, node, .. } = from;
    if let Some(wanted) = hello.broker_wanted.filter(|wanted| *wanted != broker) {
        return Some(format!(
            "broker {broker} is at this address, not broker {wanted}"
        ));
    }
    let wanted = hello.node_wanted.filter(|wanted| *wanted != node)?;
    Some(format!(
        "broker {broker} runs on another data directory than the one that is wanted: one of them was replaced (its Raft node is not {wanted})"
    ))
}
