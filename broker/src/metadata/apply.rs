//! What each metadata command does: checked and applied in one step, never failing on data (D8).
//!
//! Owns: the transitions of the image and their outcomes. A refused command changes nothing but the stamp.
//! Not here: bytes (`format_command.rs`), the Raft glue (`machine.rs`).

use super::command::{ConfigChange, ConfigSetMode, MetadataCommand, ProducerIdBlock};
use super::config_rules::{ConfigError, changed, check_configs};
use super::deleted::NameBefore;
use super::image::{Address, Broker, MetadataImage, SLOTS, Topic};
use super::names::{NameError, check_topic_name, collision_key};
use super::{
    BROKERS_MAX, GROUPS_MAX, PARTITIONS_MAX, PRODUCER_ID_BLOCK, TEXT_BYTES_MAX,
    TOPIC_PARTITIONS_MAX, TOPICS_MAX,
};
use crate::error::ErrorCode;
use crate::format::FormatError;
use std::collections::BTreeMap;
use tidelog_env::{Mutant, mutant};
use tidelog_model::{
    ClusterId, NodeId, PlacementGroupId, ProducerId, RaftNodeId, StoreId, TimestampMs, TopicId,
};

/// What a proposer of a metadata command learns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetadataOutcome {
    /// The cluster has this identity: from this command, or from an earlier one (then with the earlier identity).
    Bootstrapped(ClusterId),
    /// The broker is registered.
    BrokerRegistered,
    /// The topic exists from now on.
    TopicCreated(TopicId),
    /// The topic is gone; this is what it was.
    TopicDeleted(Topic),
    /// The topic has these configs from now on.
    ConfigsSet(BTreeMap<String, String>),
    /// Members, or where replicas shall be, are as asked from now on.
    MembersChanged,
    /// These producer ids belong to the proposer.
    ProducerIds(ProducerIdBlock),
    /// Nothing changed.
    Refused(Refusal),
    /// The broker is fenced, or lives, as was asked; it may have been so before.
    BrokerFenceSet,
    /// The cluster's store has this marker: from this command, or from an earlier one (then the earlier marker).
    StoreMarked(StoreId),
}

/// Why a metadata command changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The first command of a cluster must be its bootstrap.
    #[error("the cluster is not bootstrapped yet")]
    NotBootstrapped,
    /// A topic of this name, or with this id, exists.
    #[error("topic {0:?} already exists")]
    TopicExists(String),
    /// A topic exists whose name differs only in `.` and `_`.
    #[error(
        "topic {name:?} collides with {existing:?}: names that differ only in '.' and '_' may not exist together"
    )]
    NameCollision {
        /// What was asked for.
        name: String,
        /// What exists.
        existing: String,
    },
    /// No such topic.
    #[error("no such topic")]
    UnknownTopic,
    /// Not a topic name.
    #[error(transparent)]
    InvalidName(#[from] NameError),
    /// No partitions, or too many.
    #[error("a topic has 1 to {TOPIC_PARTITIONS_MAX} partitions, not {0}")]
    InvalidPartitions(usize),
    /// A config is not legal.
    #[error(transparent)]
    InvalidConfig(#[from] ConfigError),
    /// A partition was placed in a placement group that does not exist: the proposer's image was old. Try again.
    #[error("placement group {0} does not exist")]
    UnknownGroup(PlacementGroupId),
    /// No broker of this id is registered.
    #[error("no broker {0} belongs to the cluster")]
    UnknownBroker(NodeId),
    /// A limit of the cluster is reached.
    #[error("the cluster may have at most {max} {what}")]
    Limit {
        /// Of what.
        what: &'static str,
        /// How many.
        max: usize,
    },
    /// A text, or the list of groups, is not usable.
    #[error("{0} is empty, too long, or not allowed")]
    InvalidField(&'static str),
    /// The broker's replicas belong to another Raft node: another data directory holds, or held, them.
    #[error(
        "broker {0} is a member with another data directory: start it with that one; if that is lost, run `tidelog cluster add {0}`"
    )]
    OtherRaftNode(NodeId),
    /// The broker was taken out; what its directory says is not true any more.
    #[error(
        "broker {0} was decommissioned with this data directory, which is not used any more: start it with an empty one, then run `tidelog cluster add {0}`"
    )]
    Departed(NodeId),
    /// The broker was never taken in.
    #[error("broker {0} is not a member of the cluster: run `tidelog cluster add {0}`")]
    NotMember(NodeId),
    /// An operator wanted to replace a member that was silent, and it is not.
    #[error(
        "a broker {0} is a member and lives, with another data directory. If it has just ended, try again in some seconds. Else two brokers have \
         one id: give the new one another node.id; --force replaces the one that lives"
    )]
    MemberLives(NodeId),
    /// Since an operator looked, another broker was taken in under this id, or the one that had it has left.
    #[error(
        "broker {node} was taken in, replaced, or taken out meanwhile: {}. Look at `tidelog cluster status` and try again",
        member_now(*now)
    )]
    OtherMemberNow {
        /// The broker.
        node: NodeId,
        /// The Raft node of the member that has the id now.
        now: Option<RaftNodeId>,
    },
    /// Its replicas would find no place.
    #[error(
        "broker {node} cannot go: {needed} brokers are needed to hold all copies and to decide on metadata, and {stay} would stay; add one first"
    )]
    TooFewBrokers {
        /// Who was to go.
        node: NodeId,
        /// Brokers that are needed.
        needed: usize,
        /// Brokers that would stay.
        stay: usize,
    },
    /// Its replicas would find no place among those that live.
    #[error(
        "broker {node} cannot go now: what it holds needs {needed} brokers that live besides it and are not being decommissioned, and {live} do: start {} first, or \
         add one",
        brokers(silent)
    )]
    TooFewLive {
        /// Who was to go.
        node: NodeId,
        /// Brokers that are needed.
        needed: usize,
        /// Those that live.
        live: usize,
        /// Those that do not.
        silent: Vec<NodeId>,
    },
    /// It would be replaced, and nobody else has what it has.
    #[error(
        "broker {node} is not replaced: it has, or had, the only copy of {copies}. Start it with the data directory that it had. --give-up-data replaces it all the \
         same: nobody can read or append to these then"
    )]
    GivesUp {
        /// Who was to be replaced.
        node: NodeId,
        /// What would be lost.
        copies: String,
    },
    /// It holds replicas of lost groups: nobody can take them over.
    #[error(
        "broker {node} cannot go: most copies of {partitions} are gone with their disks, and nobody could take over what it holds. Start the brokers with the \
         disks that they had, if these are found; or delete these topics"
    )]
    HoldsLost {
        /// Who was to go.
        node: NodeId,
        /// The partitions of these groups.
        partitions: String,
    },
    /// It is silent, and nobody else has a copy of what it has.
    #[error(
        "broker {node} cannot go: it is silent, and has the only copy of {copies}. Start it with the data directory it had, and try again. What cannot be had \
         back is given up by deleting these topics, or, all of it, by starting the broker with an empty directory and `tidelog cluster add {node} --give-up-data`"
    )]
    OnlyCopies {
        /// Who was to go.
        node: NodeId,
        /// Of what.
        copies: String,
    },
    /// Only a drained broker without replicas leaves.
    #[error("broker {0} still holds replicas")]
    StillHolds(NodeId),
    /// Only a replica can lead.
    #[error(
        "broker {node} cannot lead group {group}: it holds no replica of it, or is being drained"
    )]
    NotReplica {
        /// The group.
        group: PlacementGroupId,
        /// The broker.
        node: NodeId,
    },
    /// It was decided on what is no longer so. Look again.
    #[error("something else was faster; try again")]
    Outdated,
    /// All producer ids are used up.
    #[error("no producer ids are left")]
    NoProducerIds,
    /// The command could not be read: damaged, or of a newer version.
    #[error("the command cannot be read: {0}")]
    Unreadable(FormatError),
    /// What another broker, which leads the metadata group, said. Never an outcome of apply here.
    #[error("{text}")]
    Told {
        /// Kafka's code for it.
        code: ErrorCode,
        /// The leader's sentence.
        text: String,
    },
}

/// `broker 3`, `brokers 3, 4`; the first of many.
#[must_use]
pub fn brokers(ids: &[NodeId]) -> String {
    named("broker", ids)
}

/// `group 3`, `groups 3, 4`; the first of many.
#[must_use]
pub fn groups_named(ids: &[PlacementGroupId]) -> String {
    named("group", ids)
}

fn named<T: std::fmt::Display>(what: &str, ids: &[T]) -> String {
    const NAMED_MAX: usize = 10;
    let names = ids.iter().take(NAMED_MAX).map(ToString::to_string);
    let names = names.collect::<Vec<_>>().join(", ");
    match (ids.len(), ids.len().saturating_sub(NAMED_MAX)) {
        (1, _) => format!("{what} {names}"),
        (_, 0) => format!("{what}s {names}"),
        (_, more) => format!("{what}s {names} and {more} more"),
    }
}

fn member_now(now: Option<RaftNodeId>) -> String {
    now.map_or_else(
        || "no member has this id now".to_owned(),
        |raft_node| format!("the member with this id has the Raft node {raft_node} now"),
    )
}

impl Refusal {
    /// Kafka's code for it.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::NotBootstrapped => ErrorCode::NotController,
            Self::TopicExists(_) => ErrorCode::TopicAlreadyExists,
            Self::NameCollision { .. } | Self::InvalidName(_) => ErrorCode::InvalidTopic,
            Self::UnknownTopic => ErrorCode::UnknownTopicOrPartition,
            Self::InvalidPartitions(_) => ErrorCode::InvalidPartitions,
            Self::InvalidConfig(_) => ErrorCode::InvalidConfig,
            Self::UnknownGroup(_) => ErrorCode::InvalidReplicaAssignment,
            Self::UnknownBroker(_) => ErrorCode::BrokerIdNotRegistered,
            Self::Limit { .. } => ErrorCode::PolicyViolation,
            Self::InvalidField(_)
            | Self::OtherRaftNode(_)
            | Self::NotMember(_)
            | Self::Departed(_)
            | Self::MemberLives(_)
            | Self::OtherMemberNow { .. }
            | Self::StillHolds(_)
            | Self::Outdated => ErrorCode::InvalidRequest,
            Self::NotReplica { .. }
            | Self::TooFewBrokers { .. }
            | Self::TooFewLive { .. }
            | Self::GivesUp { .. }
            | Self::HoldsLost { .. }
            | Self::OnlyCopies { .. } => ErrorCode::InvalidReplicaAssignment,
            Self::NoProducerIds | Self::Unreadable(_) => ErrorCode::UnknownServerError,
            Self::Told { code, .. } => *code,
        }
    }
}

impl MetadataImage {
    /// Applies a command that was stamped by the leader with `stamp`.
    pub fn apply(&mut self, command: MetadataCommand, stamp: TimestampMs) -> MetadataOutcome {
        self.stamp = self.stamp.max(stamp);
        let bootstrap = matches!(command, MetadataCommand::BootstrapCluster { .. });
        if self.cluster.is_none() && !bootstrap {
            return MetadataOutcome::Refused(Refusal::NotBootstrapped);
        }
        let outcome = match command {
            MetadataCommand::BootstrapCluster {
                cluster,
                name,
                groups,
            } => self.bootstrap(cluster, name, groups),
            MetadataCommand::RegisterBroker {
                node,
                raft_node,
                zone,
                kafka,
                peer,
                admin,
            } => self.register_member(
                node,
                raft_node,
                Broker {
                    zone,
                    kafka,
                    peer,
                    admin,
                    registered: self.stamp,
                    // Until it is heard again it stays what it was.
                    fenced: self.brokers.get(&node).and_then(|known| known.fenced),
                },
            ),
            MetadataCommand::CreateTopic {
                id,
                name,
                partitions,
                configs,
                before,
            } => self.create_topic(id, name, partitions, &configs, before),
            MetadataCommand::DeleteTopic { id } => self.delete_topic(id),
            MetadataCommand::SetTopicConfigs { id, mode, changes } => {
                self.set_configs(id, mode, &changes)
            }
            MetadataCommand::AllocateProducerIds { node: _ } => self.allocate(),
            MetadataCommand::SetBrokerFence { node, fenced } => self.set_fence(node, fenced),
            MetadataCommand::AdmitBroker(admission) => self.admit(admission),
            MetadataCommand::RefillBroker(refill) => self.refill(refill),
            MetadataCommand::SetDraining { node, draining } => self.set_draining(node, draining),
            MetadataCommand::MoveReplicas { targets } => self.move_replicas(targets),
            MetadataCommand::ReplicasMoved { group, id } => self.replicas_moved(group, id),
            MetadataCommand::RemoveBroker { node } => self.remove_broker(node),
            MetadataCommand::PreferLeader { group, node } => self.prefer_leader(group, node),
            MetadataCommand::CreateGroups { groups } => self.create_groups(groups),
            MetadataCommand::LoseGroups { groups, checked } => self.lose_groups(groups, checked),
            MetadataCommand::FindGroups { groups, checked } => self.find_groups(&groups, checked),
            MetadataCommand::ReplaceGroup {
                group,
                by,
                nodes,
                checked,
            } => self.replace_group(group, by, nodes, checked),
            MetadataCommand::MarkStore { store } => Ok(self.mark_store(store)),
        };
        outcome.unwrap_or_else(MetadataOutcome::Refused)
    }

    /// Takes note of a command that could not be read.
    pub(super) const fn apply_unreadable(error: FormatError) -> MetadataOutcome {
        MetadataOutcome::Refused(Refusal::Unreadable(error))
    }

    fn bootstrap(
        &mut self,
        cluster: ClusterId,
        name: String,
        groups: BTreeMap<PlacementGroupId, Vec<NodeId>>,
    ) -> Result<MetadataOutcome, Refusal> {
        if let Some((present, _)) = self.cluster {
            return Ok(MetadataOutcome::Bootstrapped(present));
        }
        check_text("the cluster's name", &name)?;
        if groups.is_empty() || groups.contains_key(&PlacementGroupId::METADATA) {
            return Err(Refusal::InvalidField("the list of placement groups"));
        }
        if groups.len() > GROUPS_MAX || groups.values().any(|replicas| replicas.len() > BROKERS_MAX)
        {
            return Err(Refusal::Limit {
                what: "placement groups",
                max: GROUPS_MAX,
            });
        }
        self.slots = groups.keys().copied().cycle().take(SLOTS).collect();
        self.found(&groups);
        self.groups = groups;
        self.cluster = Some((cluster, name));
        Ok(MetadataOutcome::Bootstrapped(cluster))
    }

    pub(super) fn register(
        &mut self,
        node: NodeId,
        broker: Broker,
    ) -> Result<MetadataOutcome, Refusal> {
        if node.get() < 0 {
            return Err(Refusal::InvalidField("the broker's id"));
        }
        check_text("the zone", &broker.zone)?;
        for address in [&broker.kafka, &broker.peer, &broker.admin]
            .into_iter()
            .flatten()
        {
            check_address(address)?;
        }
        if !self.brokers.contains_key(&node) && self.brokers.len() >= BROKERS_MAX {
            return Err(Refusal::Limit {
                what: "brokers",
                max: BROKERS_MAX,
            });
        }
        self.brokers.insert(node, broker);
        Ok(MetadataOutcome::BrokerRegistered)
    }

    fn set_fence(&mut self, node: NodeId, fenced: bool) -> Result<MetadataOutcome, Refusal> {
        let stamp = self.stamp;
        let broker = self.brokers.get_mut(&node);
        let broker = broker.ok_or(Refusal::UnknownBroker(node))?;
        broker.fenced = fenced.then(|| broker.fenced.unwrap_or(stamp));
        Ok(MetadataOutcome::BrokerFenceSet)
    }

    fn create_topic(
        &mut self,
        id: TopicId,
        name: String,
        partitions: Vec<PlacementGroupId>,
        configs: &BTreeMap<String, String>,
        before: NameBefore,
    ) -> Result<MetadataOutcome, Refusal> {
        check_topic_name(&name)?;
        // By an earlier try whose answer was lost; and then it was deleted. An id is not used again.
        if self.deleted(&name).is_some_and(|topic| topic.id == id) {
            return Ok(MetadataOutcome::TopicCreated(id));
        }
        if self.names.contains_key(&name) || self.topics.contains_key(&id) {
            return Err(Refusal::TopicExists(name));
        }
        if let Some(existing) = self
            .collisions
            .get(&collision_key(&name))
            .and_then(|id| self.topics.get(id))
        {
            return Err(Refusal::NameCollision {
                name,
                existing: existing.name.clone(),
            });
        }
        if id.get().is_nil() {
            return Err(Refusal::InvalidField("the topic's id"));
        }
        check_configs(configs)?;
        self.check_room(partitions.len())?;
        if let Some(group) = partitions
            .iter()
            .find(|group| !self.groups.contains_key(group))
        {
            return Err(Refusal::UnknownGroup(*group));
        }
        // Somebody may take records for the topic that had the name.
        if !self.knows_before(&name, before) {
            return Err(Refusal::Outdated);
        }
        // Chosen before that was known.
        if partitions.iter().any(|group| self.is_lost(*group)) {
            return Err(Refusal::Outdated);
        }
        let configs = configs
            .iter()
            .map(|(name, value)| (name.clone(), value.trim().to_owned()))
            .collect();
        let first_new_producer = self.take_name(&name);
        self.insert_topic(
            id,
            Topic {
                name,
                created: self.stamp,
                partitions,
                configs,
                first_new_producer,
            },
        );
        Ok(MetadataOutcome::TopicCreated(id))
    }

    /// Whether a topic of so many partitions is within the limits.
    fn check_room(&self, partitions: usize) -> Result<(), Refusal> {
        if partitions == 0 || partitions > TOPIC_PARTITIONS_MAX {
            return Err(Refusal::InvalidPartitions(partitions));
        }
        if self.topics.len() >= TOPICS_MAX {
            return Err(Refusal::Limit {
                what: "topics",
                max: TOPICS_MAX,
            });
        }
        if self.partition_count + partitions > PARTITIONS_MAX {
            return Err(Refusal::Limit {
                what: "partitions",
                max: PARTITIONS_MAX,
            });
        }
        Ok(())
    }

    fn delete_topic(&mut self, id: TopicId) -> Result<MetadataOutcome, Refusal> {
        let topic = self.remove_topic(id).ok_or(Refusal::UnknownTopic)?;
        self.remember_deleted(id, &topic);
        Ok(MetadataOutcome::TopicDeleted(topic))
    }

    fn set_configs(
        &mut self,
        id: TopicId,
        mode: ConfigSetMode,
        changes: &[ConfigChange],
    ) -> Result<MetadataOutcome, Refusal> {
        let topic = self.topics.get_mut(&id).ok_or(Refusal::UnknownTopic)?;
        topic.configs = changed(&topic.configs, mode, changes)?;
        Ok(MetadataOutcome::ConfigsSet(topic.configs.clone()))
    }

    fn allocate(&mut self) -> Result<MetadataOutcome, Refusal> {
        let first = self.next_producer_id;
        let next = first.checked_add(PRODUCER_ID_BLOCK);
        self.next_producer_id = next.ok_or(Refusal::NoProducerIds)?;
        if mutant(Mutant::ProducerIdsReused) {
            self.next_producer_id = first;
        }
        let block = ProducerIdBlock {
            first: ProducerId::new(first),
            count: PRODUCER_ID_BLOCK,
        };
        Ok(MetadataOutcome::ProducerIds(block))
    }

    /// Whether [`MetadataCommand::CreateTopic`] would be accepted now: for validate-only requests, and to answer a
    /// request that is bound to fail without an entry.
    ///
    /// # Errors
    /// What apply would refuse it with.
    pub fn check_create(
        &self,
        name: &str,
        partitions: usize,
        configs: &BTreeMap<String, String>,
    ) -> Result<(), Refusal> {
        let group = self
            .groups
            .keys()
            .next()
            .copied()
            .ok_or(Refusal::NotBootstrapped)?;
        let mut scratch = Self {
            cluster: self.cluster.clone(),
            groups: BTreeMap::from([(group, Vec::new())]),
            partition_count: self.partition_count,
            ..Self::default()
        };
        let key = collision_key(name);
        if let Some((id, existing)) = self
            .collisions
            .get(&key)
            .and_then(|id| self.topics.get_key_value(id))
        {
            scratch.insert_topic(*id, existing.clone());
        }
        if self.topics.len() >= TOPICS_MAX {
            return Err(Refusal::Limit {
                what: "topics",
                max: TOPICS_MAX,
            });
        }
        if partitions > TOPIC_PARTITIONS_MAX {
            return Err(Refusal::InvalidPartitions(partitions));
        }
        let id = TopicId::new(uuid::Uuid::max());
        scratch
            .create_topic(
                id,
                name.to_owned(),
                vec![group; partitions],
                configs,
                NameBefore::Unknown,
            )
            .map(|_| ())
    }

    /// The configs that a [`MetadataCommand::SetTopicConfigs`] would leave, for validate-only requests.
    ///
    /// # Errors
    /// What apply would refuse it with.
    pub fn check_set_configs(
        &self,
        id: TopicId,
        mode: ConfigSetMode,
        changes: &[ConfigChange],
    ) -> Result<BTreeMap<String, String>, Refusal> {
        let topic = self.topics.get(&id).ok_or(Refusal::UnknownTopic)?;
        Ok(changed(&topic.configs, mode, changes)?)
    }
}

fn check_text(what: &'static str, text: &str) -> Result<(), Refusal> {
    if text.is_empty() || text.len() > TEXT_BYTES_MAX || text.chars().any(char::is_control) {
        return Err(Refusal::InvalidField(what));
    }
    Ok(())
}

fn check_address(address: &Address) -> Result<(), Refusal> {
    check_text("the host of an address", &address.host)?;
    if address.port == 0 {
        Err(Refusal::InvalidField("the port of an address"))
    } else {
        Ok(())
    }
}
