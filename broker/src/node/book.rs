//! Where brokers are, and who they are: what the cluster knows first, then what the configuration says.
//!
//! Owns: [`Book`].
//! Not here: connections (`peer`).

use crate::metadata::MetadataMachine;
use crate::peer::{AddressBook, PeerTarget};
use crate::placement::Group;
use crate::router::BrokerBook;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use tidelog_model::{NodeId, RaftNodeId};

use super::formation::Founding;

/// Addresses and Raft nodes of brokers.
pub(super) struct Book {
    seeds: BTreeMap<NodeId, String>,
    record: OnceLock<Founding>,
    metadata: OnceLock<Group<MetadataMachine>>,
}

/// A member as the cluster knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) node: NodeId,
    pub(super) raft_node: RaftNodeId,
    pub(super) peer: String,
}

impl Book {
    pub(super) fn new(seeds: BTreeMap<NodeId, String>) -> Self {
        Self {
            seeds,
            record: OnceLock::new(),
            metadata: OnceLock::new(),
        }
    }

    /// From now on the founding record is known.
    pub(super) fn join(&self, record: Founding) {
        // A second call says the same.
        let _ = self.record.set(record);
    }

    /// From now on the image of this replica is asked.
    pub(super) fn know(&self, metadata: &Group<MetadataMachine>) {
        let _ = self.metadata.set(metadata.clone());
    }

    /// The members by this broker's image, and the log index that says so; `None` while it has no image.
    pub(super) fn members(&self) -> Option<(u64, Vec<Known>)> {
        let metadata = self.metadata.get()?;
        // An image that nobody keeps current may lack who has come since.
        metadata.leadership().borrow().leader?;
        metadata.read(|machine| {
            let image = machine.image();
            if image.members().is_empty() {
                return None;
            }
            let known = image.members().iter().map(|(node, member)| {
                let peer = image.brokers().get(node).and_then(|at| at.peer.as_ref());
                Known {
                    node: *node,
                    raft_node: member.raft_node,
                    peer: peer.map_or_else(String::new, ToString::to_string),
                }
            });
            Some((image.last().index.get(), known.collect()))
        })
    }

    /// Whether the leader of metadata is heard, or is this broker: it is in its cluster then.
    pub(super) fn hears_leader(&self) -> bool {
        let metadata = self.metadata.get();
        metadata.is_some_and(|group| group.can_serve_reads() || group.hears_leader())
    }

    /// Where metadata says that the broker is, however old that is: who has moved says so as soon as it reaches anybody.
    fn registered(&self, broker: NodeId) -> Option<String> {
        self.metadata.get()?.read(|machine| {
            let image = machine.image();
            let member = image.members().contains_key(&broker);
            let at = image.brokers().get(&broker).filter(|_| member)?;
            at.peer.as_ref().map(ToString::to_string)
        })
    }

    /// Whether a broker was taken out under this Raft node, as far as this one knows. That does not change any more.
    pub(super) fn has_left(&self, raft_node: RaftNodeId) -> bool {
        let metadata = self.metadata.get();
        metadata.is_some_and(|group| group.read(|machine| machine.image().has_left(raft_node)))
    }

    fn known(&self, broker: NodeId) -> Option<Known> {
        let (_, members) = self.members()?;
        members.into_iter().find(|known| known.node == broker)
    }
}

/// Metadata before seeds: a seed is what an operator wrote once, and a member that was replaced may be elsewhere. Both are tried.
fn best_first(registered: Option<String>, seed: Option<String>) -> Vec<String> {
    let mut addresses: Vec<String> = registered.into_iter().chain(seed).collect();
    addresses.dedup();
    addresses
}

impl AddressBook for Book {
    fn addresses(&self, broker: NodeId) -> Vec<String> {
        best_first(self.registered(broker), self.seeds.get(&broker).cloned())
    }
}

impl BrokerBook for Book {
    fn target(&self, broker: NodeId) -> Option<PeerTarget> {
        let recorded = || {
            let members = self.record.get()?.first_members();
            let (node, member) = members
                .into_iter()
                .find(|(_, member)| member.broker == broker)?;
            Some(Known {
                node: broker,
                raft_node: node,
                peer: member.address,
            })
        };
        let known = self.known(broker).or_else(recorded)?;
        Some(PeerTarget {
            broker: Some(broker),
            node: Some(known.raft_node),
            address: known.peer,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that what metadata knows comes before the seeds, and that the seeds are all there is without it.
    #[test]
    fn metadata_counts_more_than_seeds() {
        let at = |text: &str| Some(text.to_owned());
        assert_eq!(best_first(at("new:1"), at("old:1")), ["new:1", "old:1"]);
        assert_eq!(best_first(at("same:1"), at("same:1")), ["same:1"]);
        assert_eq!(best_first(None, at("seed:1")), ["seed:1"]);
        assert_eq!(best_first(at("new:1"), None), ["new:1"]);
    }
}
