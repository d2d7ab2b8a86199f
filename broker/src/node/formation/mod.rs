//! Formation: how the seeds of a configuration become one cluster with one id.
//!
//! Owns: asking the other seeds, answering them, the waiting.
//! Not here: the rules (`decide.rs`), the file (`identity.rs`).
//! Spec: docs/protocols/cluster-formation.md

mod candidates;
mod decide;
mod record;
mod refill;
mod standing;

use super::START;
use super::World;
use super::book::Book;
use super::error::StartError;
use super::identity::{self, Directory};
use super::peers::SERVICE_FORMATION;
use super::refill::{Mark, Marked, taken_in_anew};
use crate::admin::Health;
use crate::config::Config;
use crate::metadata::Refusal;
use crate::observe::printable;
use crate::peer::{CallService, Caller, PeerTarget, PeerTransport};
use crate::router::{BrokerBook, Router};
use bytes::Bytes;
use candidates::{Candidates, Question};
use decide::{Decision, MembersNow, Outside, Told, decide};
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tidelog_env::{CrashPoint, crash_point};
use tidelog_model::{NodeId, PlacementGroupId, RaftNodeId};
use tokio::time::{Instant, timeout};

pub(super) use candidates::{Candidate, Heard, Reason};
pub(super) use record::{Founding, MemberRecord};
pub(super) use standing::StandingWatch;

/// What a member says of its replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReplicasTold {
    pub(super) node: NodeId,
    pub(super) raft_node: RaftNodeId,
    /// Groups that it leads.
    pub(super) led: BTreeSet<PlacementGroupId>,
    /// Groups of which its replica is empty.
    pub(super) empty: BTreeSet<PlacementGroupId>,
}

/// What came of looking for the cluster.
pub(super) enum Formed {
    /// This broker is in it.
    In(Founding),
    /// Not as it was marked: a damaged broker is to run in part instead, or to ask anew instead.
    Otherwise,
}

/// How long one seed may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// How long one member may take to say who waits: an operator does.
const WAITING_WITHIN: Duration = Duration::from_secs(1);
/// Pause between two rounds, with jitter.
const ROUND_PAUSE: Duration = Duration::from_millis(200);
/// One line per this long about who is missing.
const SAY_PAUSE: Duration = Duration::from_secs(10);
/// Largest answer that is read: the members of a large cluster, and who waits.
const ANSWER_BYTES_MAX: usize = 256 << 10;

/// Answers other brokers' questions. Clones share what it says.
#[derive(Clone)]
pub(super) struct Formation {
    told: Arc<Mutex<Told>>,
    candidates: Candidates,
    book: Arc<Book>,
    router: Arc<OnceLock<Router>>,
    damaged_waiting: Gauge,
}

impl Formation {
    pub(super) fn new(config: &Config, directory: &Directory, book: Arc<Book>) -> Self {
        let seeds: Vec<String> = config
            .seeds()
            .iter()
            .map(|(id, address)| format!("{id}@{address}"))
            .collect();
        let told = Told::new(
            directory.node.get(),
            directory.raft_node.get(),
            format!("{}: {}", config.cluster.name, seeds.join(", ")),
            directory.founding.clone(),
        );
        Self {
            told: Arc::new(Mutex::new(told)),
            candidates: Candidates::default(),
            book,
            router: Arc::default(),
            damaged_waiting: Gauge::default(),
        }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "brokers_damaged_waiting",
            "Brokers with a damaged disk that wait to be refilled, as the leader of metadata knows; 0 on all others",
            self.damaged_waiting.clone(),
        );
    }

    /// From now on it is told which replicas of this broker are empty.
    pub(super) fn know(&self, router: &Router) {
        // A second call says the same.
        let _ = self.router.set(router.clone());
    }

    /// Brokers that have asked any of `others`, or this one, lately to be taken in, and are not yet: by id, then Raft node.
    pub(super) async fn ask_members(
        &self,
        transport: &PeerTransport,
        others: Vec<NodeId>,
    ) -> Vec<Candidate> {
        let request = candidates::question_of_member(true);
        let told = self.ask_these(transport, others, request).await;
        let mut asked = self.candidates.lately();
        asked.extend(told.into_iter().flat_map(|told| told.waiting));
        // One of them leads metadata, and knows why.
        asked.sort_by_key(|one| (one.broker_id, one.raft_node_id, one.refused.is_none()));
        asked.dedup_by_key(|one| (one.broker_id, one.raft_node_id));
        self.keep_strangers(asked)
    }

    /// What `others`, and this broker, say of their replicas: each under the Raft node that it is.
    pub(super) async fn ask_groups(
        &self,
        transport: &PeerTransport,
        others: Vec<NodeId>,
    ) -> Vec<ReplicasTold> {
        let request = candidates::question_of_groups();
        let mut told = self.ask_these(transport, others, request).await;
        let mut own = self.told.lock().clone();
        self.tell_groups(&mut own);
        told.push(own);
        let groups = |ids: Vec<u32>| ids.into_iter().map(PlacementGroupId::new).collect();
        let one = |told: Told| ReplicasTold {
            node: NodeId::new(told.broker_id),
            raft_node: RaftNodeId::new(told.raft_node_id),
            led: groups(told.led),
            empty: groups(told.empty),
        };
        told.into_iter().map(one).collect()
    }

    fn tell_groups(&self, told: &mut Told) {
        let Some(router) = self.router.get() else {
            return;
        };
        let ids = |groups: Vec<PlacementGroupId>| groups.into_iter().map(PlacementGroupId::get);
        told.led = ids(router.led_groups()).collect();
        told.empty = ids(router.empty_groups()).collect();
    }

    async fn ask_these(
        &self,
        transport: &PeerTransport,
        members: Vec<NodeId>,
        request: Bytes,
    ) -> Vec<Told> {
        let targets = members.into_iter().filter_map(|node| {
            let target = self.book.target(node)?;
            Some((node.get(), target))
        });
        let answers = targets.map(|(id, target)| {
            let request = request.clone();
            async move { timeout(WAITING_WITHIN, ask(transport, &target, id, request)).await }
        });
        let answers = futures::future::join_all(answers.collect::<Vec<_>>()).await;
        let answers = answers.into_iter().flatten().flatten();
        answers.map(|(_, told)| told).collect()
    }

    /// Groups that `others`, or this broker, lead, metadata's too, and that are safe without the Raft node `gone`.
    pub(super) async fn ask_without(
        &self,
        transport: &PeerTransport,
        others: Vec<NodeId>,
        gone: RaftNodeId,
    ) -> BTreeSet<PlacementGroupId> {
        let request = candidates::question_without(gone);
        let told = self.ask_these(transport, others, request);
        let (told, own) = futures::future::join(told, self.safe_without(gone)).await;
        let safe = told.into_iter().flat_map(|told| told.safe);
        let safe = safe.chain(own);
        safe.map(PlacementGroupId::new).collect()
    }

    async fn safe_without(&self, gone: RaftNodeId) -> Vec<u32> {
        let Some(router) = self.router.get() else {
            return Vec::new();
        };
        let safe = router.groups_without(gone).await.into_iter();
        safe.map(PlacementGroupId::get).collect()
    }

    /// Brokers that ask to be taken in anew since their disks are damaged, on the leader of metadata. On any other broker none, and it says nothing of
    /// them any more.
    pub(super) fn damaged(&self, leads: bool) -> Vec<Candidate> {
        let mut asked = Vec::new();
        if leads {
            asked = self.keep_strangers(self.candidates.lately());
            asked.retain(|one| one.damaged.is_some());
        } else {
            self.candidates.forget_answers();
        }
        let waiting = i64::try_from(asked.len()).unwrap_or(i64::MAX);
        self.damaged_waiting.set(waiting);
        asked
    }

    /// How many damaged brokers wait with this id. Others with it prove nothing, and keep nobody out.
    pub(super) fn waiting(&self, node: NodeId) -> usize {
        let waiting = self.keep_strangers(self.candidates.lately());
        let waiting = waiting.iter().filter(|one| one.damaged.is_some());
        waiting.filter(|one| one.node() == node).count()
    }

    /// Tells `candidate`, and whoever asks, why it is not taken in anew; `None` to one that runs: that it may stop.
    pub(super) fn answer_damaged(&self, candidate: &Candidate, refused: Option<Reason>) {
        let who = (candidate.node(), candidate.raft_node());
        self.candidates.answer(who, refused);
    }

    /// Asks all members, this one too, to take this broker in anew, which runs as the Raft node that is `mark`ed. What is heard of that.
    pub(super) async fn ask_in_part(
        &self,
        transport: &PeerTransport,
        mark: &Mark,
        (zone, peer): (&str, &str),
    ) -> Heard {
        let (own, seeds) = {
            let told = self.told.lock();
            (NodeId::new(told.broker_id), told.seeds.clone())
        };
        let question = candidates::question(&seeds, zone, peer, Marked::InPart(mark));
        let caller = Caller {
            broker: own,
            node: mark.raft_node,
            cluster: None,
            deadline: WAITING_WITHIN,
        };
        self.candidates.note(&caller, &question, true);
        let members = self.book.members().unwrap_or_default().1;
        let others = members.into_iter().map(|known| known.node);
        let others = others.filter(|node| *node != own).collect();
        let asked = self.ask_these(transport, others, candidates::bytes(&question));
        let told = asked.await;
        let here = self.candidates.answered((own, mark.next));
        Heard {
            may_stop: here.may_stop || told.iter().any(|told| told.may_stop),
            refused: told.iter().find_map(Told::reason).or(here.refused),
        }
    }

    fn keep_strangers(&self, mut asked: Vec<Candidate>) -> Vec<Candidate> {
        let members = self.book.members().unwrap_or_default().1;
        asked.retain(|one| {
            let mut members = members.iter();
            let member =
                members.any(|known| (known.node, known.raft_node) == (one.node(), one.raft_node()));
            !member && !self.book.has_left(one.raft_node())
        });
        asked
    }

    /// What `caller` is told. Whatever the version of its question is: the answer says ours.
    fn answer(&self, caller: &Caller, question: Option<&Question>) -> Told {
        let told = self.told.lock().clone();
        let members = self.book.members();
        let members = members.map(|(at, known)| MembersNow {
            at,
            members: known
                .into_iter()
                .map(|known| MemberRecord {
                    broker_id: known.node.get(),
                    raft_node_id: known.raft_node.get(),
                    peer: known.peer,
                })
                .collect(),
        });
        let says = question.map(Question::says).unwrap_or_default();
        let seeds = question.map_or("", |question| question.seeds.as_str());
        tell(told, members, (caller.broker, caller.node, says), seeds)
    }
}

/// What of `told` and the `members` is for who asks: broker id and Raft node of its handshake, the Raft nodes that it says it was or wants to be, and its seeds. All, if
/// it is a member or was a founder, also as the damaged one, or the one that this one asked to be: nobody else knows these Raft nodes. While there is no cluster, all
/// for who has the same seeds. Else nothing with which it could pass for a member.
fn tell(
    mut told: Told,
    members: Option<MembersNow>,
    (broker, node, says): (NodeId, RaftNodeId, [Option<RaftNodeId>; 2]),
    seeds: &str,
) -> Told {
    let Some(record) = told.record.take() else {
        if seeds != told.seeds {
            told.raft_node_id = 0;
        }
        return told;
    };
    let known = members.as_ref().map_or(&record.members, |now| &now.members);
    let same = known.iter().find(|known| known.broker_id == broker.get());
    let is = |id: RaftNodeId| same.is_some_and(|same| same.raft_node_id == id.get());
    if is(node) || says.into_iter().flatten().any(is) {
        told.record = Some(record);
        told.members = members;
        return told;
    }
    told.raft_node_id = 0;
    told.outside = Some(Outside {
        at: members.as_ref().map(|now| now.at),
        taken: same.map(|same| same.peer.clone()),
    });
    told
}

impl CallService for Formation {
    fn call(&self, caller: Caller, request: Bytes) -> BoxFuture<'static, Bytes> {
        let stranger = self.book.members().is_some_and(|(_, members)| {
            let mut members = members.iter();
            !members.any(|known| (known.node, known.raft_node) == (caller.broker, caller.node))
        });
        let left = self.book.has_left(caller.node);
        let question = candidates::read(&request);
        let mut answer = self.answer(&caller, question.as_ref());
        let known = answer.record.is_some();
        answer.left = left;
        if let Some(question) = &question {
            let wishes = if stranger {
                !left
            } else {
                question.next().is_some() && known && self.book.members().is_some()
            };
            if wishes {
                self.candidates.note(&caller, question, known);
            }
            if question.waiting && known {
                answer.waiting = self.keep_strangers(self.candidates.lately());
            }
            if question.groups && known {
                self.tell_groups(&mut answer);
            }
        }
        if known {
            let next = question.as_ref().and_then(Question::next);
            let who = (caller.broker, next.unwrap_or(caller.node));
            let heard = self.candidates.answered(who);
            answer.may_stop = heard.may_stop;
            answer.says_all = heard.refused.as_ref().is_some_and(|why| why.says_all);
            answer.refused = heard.refused.map(|why| why.text);
        }
        let gone = question.as_ref().and_then(Question::without);
        let gone = gone.filter(|_| known);
        let formation = self.clone();
        async move {
            if let Some(gone) = gone {
                answer.safe = formation.safe_without(gone).await;
            }
            Bytes::from(serde_json::to_vec(&answer).unwrap_or_default())
        }
        .boxed()
    }

    fn serves_strangers(&self) -> bool {
        true
    }
}

/// What founding or joining works with.
pub(super) struct Asker<'a> {
    pub(super) config: &'a Config,
    pub(super) world: &'a World,
    pub(super) transport: &'a PeerTransport,
    pub(super) formation: &'a Formation,
    pub(super) health: &'a Health,
    /// Whether this broker is damaged, and what it does about that.
    pub(super) marked: Marked<'a>,
}

impl Asker<'_> {
    /// Tells a state when it is new, and again from time to time.
    fn say(&self, said: &mut Option<(String, Instant)>, text: String) {
        self.health.not_ready(START, text.as_str());
        let known = said
            .as_ref()
            .is_some_and(|(last, at)| *last == text && at.elapsed() < SAY_PAUSE);
        if !known {
            tracing::warn!("{text}");
            *said = Some((text, Instant::now()));
        }
    }

    /// Waits until this broker is in a cluster; its record is durable then. Waits for as long as seeds are missing, and a broker that no
    /// cluster knows until an operator takes it in.
    pub(super) async fn form(&self, directory: &mut Directory) -> Result<Formed, StartError> {
        if let Marked::Anew(mark) = self.marked {
            return self.form_anew(directory, mark).await;
        }
        let seeds = self.config.seeds();
        let own = self.formation.told.lock().clone();
        let mut said: Option<(String, Instant)> = None;
        loop {
            let answers = self.ask_all(&seeds, own.broker_id).await;
            if answers.values().any(|told| told.left) {
                let left = Refusal::Departed(directory.node);
                return Err(StartError::Refused(left.to_string()));
            }
            // A member that nobody contradicts need not wait for anybody.
            if let Some(record) = &directory.founding
                && !matches!(decide(&own, &seeds, &answers), Decision::NotMember(..))
            {
                return Ok(Formed::In(record.clone()));
            }
            let record = match decide(&own, &seeds, &answers) {
                Decision::Found(nodes) => Some(self.found(&seeds, &nodes)),
                Decision::Join(record) => Some(record),
                // Most likely it was taken in anew.
                Decision::NotMember(_) if matches!(self.marked, Marked::InPart(_)) => {
                    return Ok(Formed::Otherwise);
                }
                Decision::NotMember(by) => {
                    let name = &self.config.cluster.name;
                    let spared = matches!(self.marked, Marked::Spared);
                    let text = match spared && is_taken(&answers, by) {
                        true => taken_in_anew(directory.node),
                        false => not_member(name, &answers, directory.node, by),
                    };
                    self.say(&mut said, text);
                    None
                }
                Decision::Disagree(text) => {
                    self.say(&mut said, text);
                    None
                }
                Decision::Wait(missing) if missing.is_empty() => None,
                Decision::Wait(missing) => {
                    let missing: Vec<_> = missing.iter().map(ToString::to_string).collect();
                    let text = format!(
                        "no cluster yet: waiting for the brokers {} of cluster.seeds",
                        missing.join(", ")
                    );
                    self.say(&mut said, text);
                    None
                }
            };
            if let Some(record) = record {
                directory.founding = Some(record.clone());
                identity::store(
                    self.world.disk.as_ref(),
                    &self.config.node.data_dir,
                    directory,
                )?;
                // Durable before it is told to anybody.
                crash_point(CrashPoint::FormationStored);
                self.formation.told.lock().record = Some(record.clone());
                tracing::info!(cluster = %record.cluster(), "this broker is a member of the cluster");
                return Ok(Formed::In(record));
            }
            tokio::time::sleep(self.world.random.jitter(ROUND_PAUSE)).await;
        }
    }

    fn found(&self, seeds: &BTreeMap<i32, String>, nodes: &BTreeMap<i32, u64>) -> Founding {
        let members = nodes.iter().map(|(broker_id, raft_node_id)| MemberRecord {
            broker_id: *broker_id,
            raft_node_id: *raft_node_id,
            peer: seeds.get(broker_id).cloned().unwrap_or_default(),
        });
        Founding {
            cluster_id: self.world.random.uuid(),
            name: self.config.cluster.name.clone(),
            members: members.collect(),
        }
    }

    async fn ask_all(&self, seeds: &BTreeMap<i32, String>, own: i32) -> BTreeMap<i32, Told> {
        let asked = seeds
            .iter()
            .filter(|(id, _)| **id != own)
            .map(|(id, address)| self.ask(*id, address));
        futures::future::join_all(asked)
            .await
            .into_iter()
            .flatten()
            .collect()
    }

    async fn ask(&self, id: i32, address: &str) -> Option<(i32, Told)> {
        let target = PeerTarget {
            broker: Some(NodeId::new(id)),
            node: None,
            address: address.to_owned(),
        };
        let zone = &self.config.node.zone;
        let seeds = self.formation.told.lock().seeds.clone();
        let peer = self.config.peer_address();
        let question = candidates::question(&seeds, zone, peer, self.marked);
        ask(self.transport, &target, id, candidates::bytes(&question)).await
    }
}

/// Asks broker `id` about the cluster.
async fn ask(
    transport: &PeerTransport,
    target: &PeerTarget,
    id: i32,
    request: Bytes,
) -> Option<(i32, Told)> {
    // Who is not reached and why is logged by the transport.
    let answer = transport
        .call(target, SERVICE_FORMATION, request, ANSWER_WITHIN)
        .await
        .ok()?;
    if answer.len() > ANSWER_BYTES_MAX {
        return None;
    }
    match serde_json::from_slice::<Told>(&answer) {
        // The handshake has checked who answers.
        Ok(told) if told.broker_id == id => Some((id, told)),
        Ok(_) => None,
        Err(error) => {
            tracing::debug!("broker {id} answers about the cluster what cannot be read: {error}");
            None
        }
    }
}

/// Whether a member has the id of who asked broker `by`.
fn is_taken(answers: &BTreeMap<i32, Told>, by: i32) -> bool {
    let outside = answers.get(&by).and_then(|told| told.outside.as_ref());
    outside.is_some_and(|outside| outside.taken.is_some())
}

/// What a broker says that waits to be taken in. Its id may be another one's: then two brokers may have been given one id by mistake.
fn not_member(cluster: &str, answers: &BTreeMap<i32, Told>, node: NodeId, by: i32) -> String {
    let outside = answers.get(&by).and_then(|told| told.outside.as_ref());
    match outside.and_then(|outside| outside.taken.as_deref()) {
        Some(at) => format!(
            "cluster \"{cluster}\" (broker {by} says so) has a broker {node} with another data directory, at {}: waiting to be taken in. If broker \
             {node} has lost its disk, run `tidelog cluster add {node}`. If that one still runs, two brokers have node.id {node}: give this \
             one another id. Else stop it and start it with the data directory it had",
            printable(at)
        ),
        None => format!(
            "cluster \"{cluster}\" exists (broker {by} says so) and broker {node} is not one of its members: waiting to be taken in. If it is \
             new, run `tidelog cluster add {node}`"
        ),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    /// Proves that a broker that waits says whose id it has, and where that one is, as who was asked knows it now; and what of a cluster is told to whom.
    #[test]
    fn waiting_says_whose_id_it_is() {
        let member = |broker_id, peer: &str| MemberRecord {
            broker_id,
            raft_node_id: 7,
            peer: peer.to_owned(),
        };
        let record = Founding {
            cluster_id: uuid::Uuid::from_u128(7),
            name: "t".to_owned(),
            members: vec![member(1, "a:1"), member(2, "b:1")],
        };
        let mut told = Told::new(1, 7, String::new(), Some(record));
        let asks = |told: &Told, node, raft_node, damaged: Option<u64>, seeds: &str| {
            let damaged = damaged.map(RaftNodeId::new);
            let says = [damaged, None];
            let who = (NodeId::new(node), RaftNodeId::new(raft_node), says);
            let mut told = told.clone();
            let members = told.members.take();
            tell(told, members, who, seeds)
        };
        let says = |told: &Told, node| {
            let answers = BTreeMap::from([(1, asks(told, node, 8, None, ""))]);
            not_member("t", &answers, NodeId::new(node), 1)
        };
        assert!(says(&told, 2).contains("has a broker 2 with another data directory, at b:1"));
        assert!(says(&told, 3).contains("broker 3 is not one of its members"));
        told.members = Some(MembersNow {
            at: 9,
            members: vec![member(1, "a:1"), member(3, "c:1")],
        });
        assert!(says(&told, 2).contains("broker 2 is not one of its members"));
        assert!(says(&told, 3).contains("two brokers have node.id 3"));

        // Members, and damaged ones that were, hear everything; others no id of a cluster or a Raft node.
        assert_eq!(asks(&told, 3, 7, None, ""), told);
        assert_eq!(asks(&told, 3, 8, Some(7), ""), told);
        for stranger in [
            asks(&told, 3, 8, None, "s"),
            asks(&told, 3, 8, Some(9), "s"),
            asks(&told, 2, 7, Some(7), "s"),
        ] {
            let ids = (stranger.raft_node_id, &stranger.record, &stranger.members);
            assert_eq!(ids, (0, &None, &None));
            assert_eq!(stranger.at(), Some(9));
        }
        // While there is no cluster, those that found one with it.
        let mut waits = told;
        (waits.record, waits.members) = (None, None);
        waits.seeds = "t: 1@a:1".to_owned();
        assert_eq!(asks(&waits, 2, 8, None, "t: 1@a:1"), waits);
        assert_eq!(asks(&waits, 2, 8, None, "t: 1@b:1").raft_node_id, 0);
        assert_eq!(asks(&waits, 2, 8, None, "").raft_node_id, 0);
    }
}
