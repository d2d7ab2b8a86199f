//! Who is in the cluster, and which replicas are on their way from one broker to another.
//!
//! Owns: members and moves of the image, what the commands on them do. Invariants: two members never have one Raft node; a move names members
//! only, as many as its group has replicas; a broker that leaves holds nothing.
//! Not here: the choice of targets (`plan.rs`), making Raft agree with them (`node`), bytes (`format_membership.rs`).
//! Spec: docs/protocols/membership.md

use super::apply::{MetadataOutcome, Refusal};
use super::image::{Address, Broker, MetadataImage};
use super::standing::Standing;
use super::{BROKERS_MAX, DEPARTED_MAX, GROUPS_MAX};
use std::collections::{BTreeMap, BTreeSet};
use tidelog_model::{LogIndex, NodeId, PlacementGroupId, RaftNodeId, TimestampMs};

/// A voter of the metadata group that is silent for less than this keeps its vote. A restart takes seconds, a reboot a minute; meanwhile four of five
/// voters bear the loss of one more. Without the pause every restart in a cluster of more than five would change the voters twice, each time with
/// a snapshot for the newcomer.
pub const VOTER_AWAY_MS: i64 = 60_000;

/// Copies of a group at most: what Raft can wait for at each append.
pub const REPLICAS_MAX: usize = 5;

/// A broker that belongs to the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterMember {
    /// It as a Raft node. Another disk is another Raft node.
    pub raft_node: RaftNodeId,
    /// Its replicas are being moved away, it leads nothing, and it is taken out when it holds nothing.
    pub draining: bool,
}

/// A group whose replicas shall be other ones than they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaMove {
    /// The entry that asked for it: who says that a move is done says which one.
    pub id: LogIndex,
    /// The brokers that shall hold the replicas, in ascending order.
    pub target: Vec<NodeId>,
    /// Brokers of targets that were given up: Raft may have taken them in already, so they keep their replicas until this move is done.
    pub also: Vec<NodeId>,
}

/// What [`super::MetadataCommand::AdmitBroker`] carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// The broker.
    pub node: NodeId,
    /// It as a Raft node.
    pub raft_node: RaftNodeId,
    /// Its zone.
    pub zone: String,
    /// Where other brokers reach it; `None` in a cluster of one.
    pub peer: Option<Address>,
    /// An operator asked: a broker that was never here may come, and one whose Raft node is another one than before has lost its disk.
    /// Else only a broker that holds replicas already says who it is.
    pub by_operator: bool,
    /// What whoever asked has seen; `None`: nothing that matters (and in version 1).
    pub expects: Option<AdmissionExpects>,
}

/// What must still be so when an admission is applied: others may have taken in a broker of this id, or this one may have come back, since it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmissionExpects {
    /// The Raft node of the member that has this id; `None`: there is none.
    pub member: Option<RaftNodeId>,
    /// That member is replaced also while it lives.
    pub although_it_lives: bool,
    /// The last entry of the image on which it was found that no group needs what that member has; nothing may have been applied since. `None`: there is no such
    /// member, or what only it has is given up (and in version 2).
    pub checked: Option<LogIndex>,
}

impl MetadataImage {
    /// The brokers that belong to the cluster.
    #[must_use]
    pub const fn members(&self) -> &BTreeMap<NodeId, ClusterMember> {
        &self.members
    }

    /// Groups whose replicas are on their way.
    #[must_use]
    pub const fn moves(&self) -> &BTreeMap<PlacementGroupId, ReplicaMove> {
        &self.moves
    }

    /// The first members of a group: its replicas begin with these, whatever has moved since. Raft node 0: the one that the founding record says.
    /// `None` in clusters older than this table, whose groups began with all members of the record.
    #[must_use]
    pub fn founders(&self, group: PlacementGroupId) -> Option<&BTreeMap<NodeId, RaftNodeId>> {
        self.founders.get(&group)
    }

    /// The brokers that shall hold the group's replicas: those that do, or the target of its move.
    #[must_use]
    pub fn replicas_wanted(&self, group: PlacementGroupId) -> &[NodeId] {
        let moving = self.moves.get(&group).map(|moving| &moving.target);
        moving
            .or_else(|| self.groups.get(&group))
            .map_or(&[], Vec::as_slice)
    }

    /// Whether `node` must run a replica of the group: it is one, or shall be.
    #[must_use]
    pub fn holds(&self, group: PlacementGroupId, node: NodeId) -> bool {
        let now = self.groups.get(&group);
        let given_up = self.moves.get(&group).map(|moving| &moving.also);
        let left = self.lost.get(&group);
        let lists = now.into_iter().chain(given_up).chain(left);
        lists.into_iter().any(|nodes| nodes.contains(&node))
            || self.replicas_wanted(group).contains(&node)
    }

    /// Whether a broker was taken out under this Raft node: its data directory is not used any more.
    #[must_use]
    pub fn has_left(&self, raft_node: RaftNodeId) -> bool {
        self.departed.iter().any(|(_, left)| *left == raft_node)
    }

    pub(super) fn admit(&mut self, admission: Admission) -> Result<MetadataOutcome, Refusal> {
        let Admission {
            node,
            raft_node,
            by_operator,
            expects,
            ..
        } = admission;
        let taken = self
            .members
            .iter()
            .any(|(id, member)| *id != node && member.raft_node == raft_node);
        if raft_node.get() == 0 || taken {
            return Err(Refusal::InvalidField("the Raft node id"));
        }
        if self.has_left(raft_node) {
            return Err(Refusal::Departed(node));
        }
        let holds = self.groups.values().any(|nodes| nodes.contains(&node));
        match self.members.get(&node) {
            Some(member) if member.raft_node == raft_node => {
                return Ok(MetadataOutcome::MembersChanged);
            }
            Some(_) if !by_operator => return Err(Refusal::OtherRaftNode(node)),
            None if !by_operator && !holds => return Err(Refusal::NotMember(node)),
            None if self.members.len() >= BROKERS_MAX => {
                return Err(Refusal::Limit {
                    what: "brokers",
                    max: BROKERS_MAX,
                });
            }
            Some(_) | None => {}
        }
        if let Some(expects) = expects {
            self.check_expected(node, expects)?;
        }
        let registered = self.stamp;
        let (kafka, admin) = (None, None);
        let (zone, peer) = (admission.zone, admission.peer);
        let broker = Broker {
            zone,
            kafka,
            peer,
            admin,
            registered,
            // Until it is heard: it has not served anybody yet.
            fenced: by_operator.then_some(registered),
        };
        self.register(node, broker)?;
        let draining = false;
        let member = ClusterMember {
            raft_node,
            draining,
        };
        if self.members.insert(node, member).is_some() {
            self.build_anew(node);
        }
        Ok(MetadataOutcome::MembersChanged)
    }

    /// Whether the id `node` is whose it was when the admission was asked for, and its member as silent as then.
    fn check_expected(&self, node: NodeId, expects: AdmissionExpects) -> Result<(), Refusal> {
        let now = self.members.get(&node).map(|member| member.raft_node);
        if now != expects.member {
            return Err(Refusal::OtherMemberNow { node, now });
        }
        if now.is_some() && self.is_live(node) && !expects.although_it_lives {
            return Err(Refusal::MemberLives(node));
        }
        match expects.checked {
            Some(checked) => self.check_nothing_given_up(node, checked),
            None => Ok(()),
        }
    }

    /// A member says where its listeners are. Who has left meanwhile, or was replaced, is refused: it would be shown for ever, and nobody could take it out.
    pub(super) fn register_member(
        &mut self,
        node: NodeId,
        raft_node: Option<RaftNodeId>,
        broker: Broker,
    ) -> Result<MetadataOutcome, Refusal> {
        match raft_node.map(|raft_node| self.standing(node, raft_node)) {
            None | Some(Standing::Member) => self.register(node, broker),
            Some(Standing::Replaced) => Err(Refusal::OtherRaftNode(node)),
            Some(Standing::Gone) => Err(Refusal::NotMember(node)),
        }
    }

    /// Every replica of `node` is gone with its disk: its groups get another Raft node in their place. A group that it held alone is
    /// lost: there is nobody to copy from.
    fn build_anew(&mut self, node: NodeId) {
        let groups: Vec<_> = self.groups.keys().copied().collect();
        for group in groups {
            if self.holds(group, node) && !self.lose_copy(group, node) {
                let target = self.replicas_wanted(group).to_vec();
                self.start_move(group, target, Vec::new());
            }
        }
    }

    /// Takes note of the first members of the first groups, whose Raft nodes are in the founding record.
    pub(super) fn found(&mut self, groups: &BTreeMap<PlacementGroupId, Vec<NodeId>>) {
        let of_record = |node: &NodeId| (*node, RaftNodeId::new(0));
        for (group, nodes) in groups {
            let founders = nodes.iter().map(of_record).collect();
            self.founders.insert(*group, founders);
        }
    }

    /// `others`: brokers besides, which may vote.
    pub(super) fn start_move(
        &mut self,
        group: PlacementGroupId,
        target: Vec<NodeId>,
        others: Vec<NodeId>,
    ) {
        let id = self.last.index;
        let before = self.moves.remove(&group);
        let given_up = before.into_iter().flat_map(|moving| {
            let ReplicaMove { target, also, .. } = moving;
            target.into_iter().chain(also)
        });
        let also = given_up.chain(others);
        let also: BTreeSet<NodeId> = also.filter(|node| !target.contains(node)).collect();
        let also = also.into_iter().collect();
        self.moves.insert(group, ReplicaMove { id, target, also });
    }

    pub(super) fn set_draining(
        &mut self,
        node: NodeId,
        draining: bool,
    ) -> Result<MetadataOutcome, Refusal> {
        if draining {
            self.check_drain(node)?;
        } else if !self.members.contains_key(&node) {
            return Err(Refusal::UnknownBroker(node));
        } else {
            // What is on its way because of the drain turns back; the rest goes on.
            let turned: Vec<_> = self
                .groups
                .iter()
                .filter(|(group, nodes)| {
                    nodes.contains(&node) && !self.replicas_wanted(**group).contains(&node)
                })
                .map(|(group, nodes)| (*group, nodes.clone()))
                .collect();
            for (group, nodes) in turned {
                self.start_move(group, nodes, Vec::new());
            }
        }
        if let Some(member) = self.members.get_mut(&node) {
            member.draining = draining;
        }
        Ok(MetadataOutcome::MembersChanged)
    }

    /// Whether `node` may be drained, as far as this image knows.
    ///
    /// # Errors
    /// Why not.
    pub fn check_drain(&self, node: NodeId) -> Result<(), Refusal> {
        if !self.members.contains_key(&node) {
            return Err(Refusal::UnknownBroker(node));
        }
        self.check_copies_without(node)?;
        self.check_room_without(node)?;
        self.check_live_room_without(node)?;
        self.check_majority_without(node)
    }

    /// Whether every group finds as many brokers as it has replicas when `node` takes none.
    fn check_room_without(&self, node: NodeId) -> Result<(), Refusal> {
        let stay = self
            .members
            .iter()
            .filter(|(id, member)| **id != node && !member.draining)
            .count();
        let needed = self.groups.values().map(Vec::len).max().unwrap_or(1);
        if stay < needed {
            return Err(Refusal::TooFewBrokers { node, needed, stay });
        }
        Ok(())
    }

    /// Whether so many brokers live that the copies of `node` find room: a drain that waits for a dead one would wait for ever.
    fn check_live_room_without(&self, node: NodeId) -> Result<(), Refusal> {
        let held = self.groups.iter().filter(|(group, _)| {
            self.holds(**group, node) && !self.is_lost(**group) && self.has_content(**group)
        });
        let needed = held.map(|(_, nodes)| nodes.len()).max().unwrap_or(0);
        let members = self.members.iter();
        let stay = members.filter(|(id, member)| **id != node && !member.draining);
        let (live, silent): (Vec<_>, Vec<_>) =
            stay.map(|(id, _)| *id).partition(|id| self.is_live(*id));
        if live.len() >= needed {
            return Ok(());
        }
        let live = live.len();
        Err(Refusal::TooFewLive {
            node,
            needed,
            live,
            silent,
        })
    }

    /// Whether a majority of those that would vote on metadata lives: a change that leaves none could never be finished, nor undone.
    fn check_majority_without(&self, node: NodeId) -> Result<(), Refusal> {
        let mut after = self.clone();
        if let Some(member) = after.members.get_mut(&node) {
            member.draining = true;
        }
        let (voters, _) = after.metadata_replicas(self.stamp);
        let live = voters.iter().filter(|node| self.is_live(**node)).count();
        let needed = voters.len() / 2 + 1;
        if live < needed {
            return Err(Refusal::TooFewBrokers {
                node,
                needed,
                stay: live,
            });
        }
        Ok(())
    }

    pub(super) fn move_replicas(
        &mut self,
        targets: BTreeMap<PlacementGroupId, Vec<NodeId>>,
    ) -> Result<MetadataOutcome, Refusal> {
        for (group, target) in &targets {
            let now = self
                .groups
                .get(group)
                .ok_or(Refusal::UnknownGroup(*group))?;
            self.check_replicas(target)?;
            if target.len() != now.len() {
                return Err(Refusal::InvalidField("the number of replicas"));
            }
        }
        for (group, target) in targets {
            // It was planned before the group was known to be lost.
            if self.replicas_wanted(group) != target && !self.is_lost(group) {
                self.start_move(group, target, Vec::new());
            }
        }
        Ok(MetadataOutcome::MembersChanged)
    }

    fn check_replicas(&self, nodes: &[NodeId]) -> Result<(), Refusal> {
        let ascending = nodes.windows(2).all(|pair| pair[0] < pair[1]);
        if nodes.is_empty() || nodes.len() > REPLICAS_MAX || !ascending {
            return Err(Refusal::InvalidField("the list of replicas"));
        }
        match nodes.iter().find(|node| !self.members.contains_key(node)) {
            Some(node) => Err(Refusal::UnknownBroker(*node)),
            None => Ok(()),
        }
    }

    pub(super) fn replicas_moved(
        &mut self,
        group: PlacementGroupId,
        id: LogIndex,
    ) -> Result<MetadataOutcome, Refusal> {
        let moving = self.moves.get(&group).filter(|moving| moving.id == id);
        let target = moving.ok_or(Refusal::Outdated)?.target.clone();
        self.moves.remove(&group);
        self.groups.insert(group, target);
        // It exists, and has moved on: nobody sets it up any more.
        self.founders.insert(group, BTreeMap::new());
        Ok(MetadataOutcome::MembersChanged)
    }

    pub(super) fn remove_broker(&mut self, node: NodeId) -> Result<MetadataOutcome, Refusal> {
        let member = *self
            .members
            .get(&node)
            .ok_or(Refusal::UnknownBroker(node))?;
        let mut groups = self.groups.keys();
        if !member.draining || groups.any(|group| self.holds(*group, node)) {
            return Err(Refusal::StillHolds(node));
        }
        if self.departed.len() >= DEPARTED_MAX {
            self.departed.remove(0);
        }
        self.departed.push((node, member.raft_node));
        self.members.remove(&node);
        self.preferred.retain(|_, at| *at != node);
        self.brokers.remove(&node);
        Ok(MetadataOutcome::MembersChanged)
    }

    pub(super) fn prefer_leader(
        &mut self,
        group: PlacementGroupId,
        node: Option<NodeId>,
    ) -> Result<MetadataOutcome, Refusal> {
        let is_metadata = group == PlacementGroupId::METADATA;
        if !is_metadata && !self.groups.contains_key(&group) {
            return Err(Refusal::UnknownGroup(group));
        }
        let Some(node) = node else {
            self.preferred.remove(&group);
            return Ok(MetadataOutcome::MembersChanged);
        };
        if !self.leader_candidates(group).contains(&node) {
            return Err(Refusal::NotReplica { group, node });
        }
        self.preferred.insert(group, node);
        Ok(MetadataOutcome::MembersChanged)
    }

    /// The brokers that may lead the group: they hold it and are not drained. In ascending order.
    #[must_use]
    pub fn leader_candidates(&self, group: PlacementGroupId) -> Vec<NodeId> {
        if group == PlacementGroupId::METADATA {
            // All brokers agree on the stamp; who votes meanwhile is no later than that.
            return self.metadata_replicas(self.stamp).0.into_iter().collect();
        }
        let held = self.groups.get(&group).into_iter().flatten().copied();
        let wanted = self.replicas_wanted(group);
        held.filter(|node| {
            let member = self.members.get(node);
            wanted.contains(node) && member.is_some_and(|member| !member.draining)
        })
        .collect()
    }

    /// The broker that should lead the group: the one an operator asked for, else group `k` goes to candidate `k mod n`, so that every
    /// broker leads its share and all agree without talking.
    #[must_use]
    pub fn preferred_leader(&self, group: PlacementGroupId) -> Option<NodeId> {
        let candidates = self.leader_candidates(group);
        let asked = self.preferred.get(&group);
        if let Some(node) = asked.filter(|node| candidates.contains(node)) {
            return Some(*node);
        }
        let count = u32::try_from(candidates.len()).ok().filter(|n| *n > 0)?;
        let at = usize::try_from(group.get() % count).ok()?;
        candidates.get(at).copied()
    }

    /// Groups whose leader an operator asked for.
    #[must_use]
    pub const fn preferred(&self) -> &BTreeMap<PlacementGroupId, NodeId> {
        &self.preferred
    }

    pub(super) fn create_groups(
        &mut self,
        groups: BTreeMap<PlacementGroupId, Vec<NodeId>>,
    ) -> Result<MetadataOutcome, Refusal> {
        if self.groups.len() + groups.len() > GROUPS_MAX {
            return Err(Refusal::Limit {
                what: "placement groups",
                max: GROUPS_MAX,
            });
        }
        let mut founders = BTreeMap::new();
        for (group, nodes) in &groups {
            founders.insert(*group, self.check_new_group(*group, nodes)?);
        }
        self.founders.extend(founders);
        self.groups.extend(groups);
        Ok(MetadataOutcome::MembersChanged)
    }

    /// The first members of a new group. Its id is above all others: one that was given up is not used again.
    pub(super) fn check_new_group(
        &self,
        group: PlacementGroupId,
        nodes: &[NodeId],
    ) -> Result<BTreeMap<NodeId, RaftNodeId>, Refusal> {
        let last = self.groups.keys().next_back();
        // Another broker was faster: look again.
        if last.is_some_and(|last| group <= *last) || group == PlacementGroupId::METADATA {
            return Err(Refusal::Outdated);
        }
        self.check_replicas(nodes)?;
        let raft_node = |node: &NodeId| Some((*node, self.members.get(node)?.raft_node));
        Ok(nodes.iter().filter_map(raft_node).collect())
    }

    /// Voters of the metadata group and its other replicas, of all members: at most [`REPLICAS_MAX`] vote, those that live, or were silent for less than
    /// [`VOTER_AWAY_MS`], before those that do not, over as many zones as there are.
    #[must_use]
    pub fn metadata_replicas(&self, now: TimestampMs) -> (BTreeSet<NodeId>, BTreeSet<NodeId>) {
        let there = |node| self.is_there(node, now);
        let by_turn = self.by_zones(there, true).into_iter();
        let by_turn = by_turn.chain(self.by_zones(there, false));
        let voters: BTreeSet<NodeId> = by_turn.take(REPLICAS_MAX).collect();
        let others = self.members.keys().copied();
        let learners = others.filter(|node| !voters.contains(node)).collect();
        (voters, learners)
    }

    /// Whether `node` lives, or has come and fell silent a moment ago.
    fn is_there(&self, node: NodeId, now: TimestampMs) -> bool {
        let Some(broker) = self.brokers.get(&node) else {
            return false;
        };
        broker.fenced.is_none_or(|since| {
            let away = now.get().saturating_sub(since.get());
            broker.kafka.is_some() && away < VOTER_AWAY_MS
        })
    }

    /// Members that are not drained and there, or not: one of each zone, then a second of each.
    fn by_zones(&self, there: impl Fn(NodeId) -> bool, wanted: bool) -> Vec<NodeId> {
        let mut zones: BTreeMap<&str, Vec<NodeId>> = BTreeMap::new();
        let open = self.members.iter().filter(|(_, member)| !member.draining);
        for (node, _) in open.filter(|(node, _)| there(**node) == wanted) {
            let broker = self.brokers.get(node);
            let zone = broker.map_or("", |broker| broker.zone.as_str());
            zones.entry(zone).or_default().push(*node);
        }
        let most = zones.values().map(Vec::len).max().unwrap_or(0);
        // Lists are in the order of ids.
        let turns = (0..most).map(|turn| zones.values().filter_map(move |nodes| nodes.get(turn)));
        turns.flatten().copied().collect()
    }

    /// Whether all that hold replicas have said who they are. Until then a voter of the metadata group that is no member is not one that has left.
    #[must_use]
    pub fn knows_holders(&self) -> bool {
        let mut holders = self.groups.values().flatten();
        holders.all(|node| self.members.contains_key(node))
    }
}
