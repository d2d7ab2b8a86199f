//! Whether a running broker still belongs to the cluster, when nobody tells it.
//!
//! Owns: [`StandingWatch`]: asking the other brokers when no leader of metadata was heard for long.
//! Not here: what the leader answers to signs of life (`router`), what a broker that is no member does (`groups::host`).
//! Spec: docs/protocols/membership.md (a broker that is no member ends)

use super::super::book::Book;
use super::super::identity::Identity;
use super::decide::Told;
use super::{ask, candidates};
use crate::metadata::{MetadataMachine, Standing};
use crate::peer::{PeerTarget, PeerTransport};
use crate::placement::Group;
use crate::router::BrokerBook;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::{Random, Tasks};
use tidelog_model::{NodeId, RaftNodeId};
use tokio::time::Instant;

/// Looks, and questions, within the silence that is waited for.
const LOOKS: u32 = 10;

/// Asks the other brokers what this one is, while no leader of metadata is heard.
#[derive(Clone)]
pub(in crate::node) struct StandingWatch {
    pub(in crate::node) transport: PeerTransport,
    pub(in crate::node) book: Arc<Book>,
    pub(in crate::node) seeds: BTreeMap<i32, String>,
    pub(in crate::node) metadata: Group<MetadataMachine>,
    pub(in crate::node) own: Identity,
    pub(in crate::node) random: Arc<dyn Random>,
    /// So long no leader must have been heard.
    pub(in crate::node) silence: Duration,
}

impl StandingWatch {
    /// Asks until `tasks` stop, or until somebody knows that this broker is no member any more: `ended` is told so then.
    pub(in crate::node) fn start(
        self,
        ended: impl Fn(Standing) + Send + Sync + 'static,
        tasks: &Tasks,
    ) {
        let (pause, ended) = (self.silence / LOOKS, Arc::new(ended));
        tasks.supervise("standing", pause, move || {
            let (watch, ended) = (self.clone(), Arc::clone(&ended));
            async move {
                let mut heard = Instant::now();
                loop {
                    tokio::time::sleep(watch.random.jitter(pause)).await;
                    if watch.metadata.can_serve_reads() || watch.metadata.hears_leader() {
                        heard = Instant::now();
                    }
                    if heard.elapsed() < watch.silence {
                        continue;
                    }
                    if let Some(standing) = watch.ask().await {
                        ended(standing);
                        return std::future::pending().await;
                    }
                }
            }
        });
    }

    async fn ask(&self) -> Option<Standing> {
        let (at, members) = self.metadata.read(|machine| {
            let image = machine.image();
            let members: BTreeSet<NodeId> = image.members().keys().copied().collect();
            (image.last().index.get(), members)
        });
        if !members.contains(&self.own.node) {
            return None;
        }
        let known = members
            .into_iter()
            .filter_map(|node| self.book.target(node));
        let mut targets: BTreeMap<i32, PeerTarget> = known
            .filter_map(|target| {
                Some((
                    target.broker?.get(),
                    PeerTarget {
                        node: None,
                        ..target
                    },
                ))
            })
            .collect();
        for (id, address) in &self.seeds {
            targets.entry(*id).or_insert_with(|| PeerTarget {
                broker: Some(NodeId::new(*id)),
                node: None,
                address: address.clone(),
            });
        }
        // Who has this id now may be the one that replaced this broker.
        targets.remove(&self.own.node.get());
        let asked = targets.iter().map(|(id, target)| {
            ask(
                &self.transport,
                target,
                *id,
                candidates::question_of_member(false),
            )
        });
        let answers = futures::future::join_all(asked).await;
        let told: Vec<Told> = answers
            .into_iter()
            .flatten()
            .map(|(_, told)| told)
            .collect();
        standing(&told, self.own, at)
    }
}

/// What the newest answer says of `own`. `None`: that it is a member, or nothing that is newer than entry `at`, which this broker knows itself.
fn standing(told: &[Told], own: Identity, at: u64) -> Option<Standing> {
    let same = |told: &&Told| {
        let record = told.record.as_ref();
        record.is_some_and(|record| record.cluster() == own.cluster)
    };
    // Who knows this one no more tells it no more of the cluster. The handshake has checked that it is the same.
    let newest = told
        .iter()
        .filter(|told| told.outside.is_some() || same(told))
        .max_by_key(|told| told.at())?;
    if newest.at()? <= at {
        return None;
    }
    if let Some(outside) = &newest.outside {
        let replaced = outside.taken.is_some();
        return Some(if replaced {
            Standing::Replaced
        } else {
            Standing::Gone
        });
    }
    let mut members = newest.members.as_ref()?.members.iter();
    match members.find(|member| member.broker_id == own.node.get()) {
        None => Some(Standing::Gone),
        Some(member) => {
            let raft_node = RaftNodeId::new(member.raft_node_id);
            (raft_node != own.raft_node).then_some(Standing::Replaced)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::super::decide::{MembersNow, Outside};
    use super::super::record::{Founding, MemberRecord};
    use super::*;
    use tidelog_model::ClusterId;
    use uuid::Uuid;

    fn told(cluster: u128, at: u64, members: &[(i32, u64)]) -> Told {
        let member = |(broker_id, raft_node_id): &(i32, u64)| MemberRecord {
            broker_id: *broker_id,
            raft_node_id: *raft_node_id,
            peer: String::new(),
        };
        let record = Founding {
            cluster_id: Uuid::from_u128(cluster),
            name: "t".to_owned(),
            members: Vec::new(),
        };
        Told {
            members: Some(MembersNow {
                at,
                members: members.iter().map(member).collect(),
            }),
            ..Told::new(2, 22, String::new(), Some(record))
        }
    }

    /// Proves that only who knows more than this broker, in the same cluster, is believed, and the one that knows most.
    #[test]
    fn who_knows_more_is_believed() {
        let own = Identity {
            cluster: ClusterId::new(Uuid::from_u128(7)),
            node: NodeId::new(1),
            raft_node: RaftNodeId::new(11),
        };
        let says = |told: &[Told]| standing(told, own, 9);
        let replaced = Some(Standing::Replaced);
        assert_eq!(says(&[]), None);
        assert_eq!(says(&[told(7, 10, &[(1, 11), (2, 22)])]), None);
        assert_eq!(says(&[told(7, 10, &[(1, 12), (2, 22)])]), replaced);
        assert_eq!(says(&[told(7, 10, &[(2, 22)])]), Some(Standing::Gone));
        assert_eq!(
            says(&[told(7, 9, &[(1, 12)])]),
            None,
            "older than what it knows"
        );
        assert_eq!(says(&[told(8, 10, &[(1, 12)])]), None, "another cluster");
        let both = [told(7, 10, &[(2, 22)]), told(7, 11, &[(1, 12), (2, 22)])];
        assert_eq!(says(&both), replaced, "the newest");
        let outside = |at, taken: Option<&str>| {
            let mut told = told(7, 10, &[]);
            (told.record, told.members) = (None, None);
            let taken = taken.map(str::to_owned);
            told.outside = Some(Outside { at, taken });
            told
        };
        assert_eq!(says(&[outside(Some(10), Some("h:1"))]), replaced);
        assert_eq!(says(&[outside(Some(10), None)]), Some(Standing::Gone));
        assert_eq!(says(&[outside(Some(9), None)]), None);
        assert_eq!(says(&[outside(None, None)]), None);
        let knows_more = [
            told(7, 11, &[(1, 11), (2, 22)]),
            outside(Some(10), Some("h:1")),
        ];
        assert_eq!(says(&knows_more), None);
        let mut silent = told(7, 10, &[(1, 12)]);
        silent.members = None;
        assert_eq!(says(&[silent]), None, "no metadata");
    }
}
