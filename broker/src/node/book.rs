//! Where brokers are, and who they are: what the configuration says first, then what the cluster knows.
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

    fn known(&self, broker: NodeId) -> Option<Known> {
        let (_, members) = self.members()?;
        members.into_iter().find(|known| known.node == broker)
    }
}

impl AddressBook for Book {
    fn address(&self, broker: NodeId) -> Option<String> {
        let seed = self.seeds.get(&broker).cloned();
        seed.or_else(|| Some(self.known(broker)?.peer).filter(|peer| !peer.is_empty()))
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
