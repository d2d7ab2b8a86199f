//! Commands of the metadata group. Bytes: `format_command.rs`. Meaning: `apply.rs`.

use super::deleted::NameBefore;
use super::image::Address;
use super::membership::Admission;
use super::refill::Refill;
use std::collections::{BTreeMap, BTreeSet};
use tidelog_model::{
    ClusterId, LogIndex, NodeId, PlacementGroupId, ProducerId, RaftNodeId, StoreId, TopicId,
};

/// What a proposer may ask of the metadata group. The stamp travels beside it (D7).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetadataCommand {
    /// The first command of a cluster: its identity and its placement groups. Later ones change nothing.
    BootstrapCluster {
        /// Identity.
        cluster: ClusterId,
        /// Name for people.
        name: String,
        /// Data groups, each with the brokers that replicate it.
        groups: BTreeMap<PlacementGroupId, Vec<NodeId>>,
    },
    /// A broker is there, under these addresses. Repeated at every start; the newest wins.
    RegisterBroker {
        /// The broker.
        node: NodeId,
        /// It as a Raft node; who is no member under it is refused. `None` in version 1, which did not say.
        raft_node: Option<RaftNodeId>,
        /// Its zone.
        zone: String,
        /// What Kafka clients are told; `None`: the address they dialled (clusters of one).
        kafka: Option<Address>,
        /// Where other brokers reach it.
        peer: Option<Address>,
        /// Its admin HTTP address.
        admin: Option<Address>,
    },
    /// A new topic, with everything decided by the proposer.
    CreateTopic {
        /// A fresh random id, never used before.
        id: TopicId,
        /// Its name.
        name: String,
        /// The placement group of each partition, in order.
        partitions: Vec<PlacementGroupId>,
        /// Values that differ from the defaults, by Kafka's names.
        configs: BTreeMap<String, String>,
        /// Who had the name before, as far as the proposer knows.
        before: NameBefore,
    },
    /// The topic ends. Its partitions are dropped by the data groups that find it gone.
    DeleteTopic {
        /// The topic.
        id: TopicId,
    },
    /// Changes configs of a topic; all of the changes or none.
    SetTopicConfigs {
        /// The topic.
        id: TopicId,
        /// Merge (IncrementalAlterConfigs) or replace (AlterConfigs).
        mode: ConfigSetMode,
        /// The changes, in order.
        changes: Vec<ConfigChange>,
    },
    /// A block of producer ids for one broker to hand out.
    AllocateProducerIds {
        /// The broker that asks; for the log's reader.
        node: NodeId,
    },
    /// A broker fell silent, said that it stops, or lives again. Only changes are proposed, never signs of life.
    SetBrokerFence {
        /// The broker.
        node: NodeId,
        /// Whether clients are kept away from it from now on.
        fenced: bool,
    },
    /// A broker is a member under this Raft node from now on.
    AdmitBroker(Admission),
    /// A broker that found its disk damaged is a member under another Raft node from now on, if nothing depends on what it had.
    RefillBroker(Refill),
    /// A broker shall hold nothing any more, or shall stay after all.
    SetDraining {
        /// The broker.
        node: NodeId,
        /// Whether it is to be emptied.
        draining: bool,
    },
    /// Replicas of these groups shall be on these brokers; in ascending order, as many as there are.
    MoveReplicas {
        /// The targets.
        targets: BTreeMap<PlacementGroupId, Vec<NodeId>>,
    },
    /// The group's voters are the target of the move `id`, committed by the group itself.
    ReplicasMoved {
        /// The group.
        group: PlacementGroupId,
        /// Which move.
        id: LogIndex,
    },
    /// A drained broker that holds nothing leaves the cluster.
    RemoveBroker {
        /// The broker.
        node: NodeId,
    },
    /// This broker shall lead the group while it can; `None`: whoever is its turn.
    PreferLeader {
        /// The group; metadata's too.
        group: PlacementGroupId,
        /// The broker.
        node: Option<NodeId>,
    },
    /// New data groups.
    CreateGroups {
        /// The brokers that replicate each.
        groups: BTreeMap<PlacementGroupId, Vec<NodeId>>,
    },
    /// So many copies of these groups are gone with their disks that those which are left elect no leader.
    LoseGroups {
        /// The groups, each with the brokers that may have something of it; in ascending order.
        groups: BTreeMap<PlacementGroupId, Vec<NodeId>>,
        /// The last entry of the image on which this was found: nothing may have been applied since.
        checked: LogIndex,
    },
    /// These groups were taken for lost, and have leaders.
    FindGroups {
        /// The groups.
        groups: BTreeSet<PlacementGroupId>,
        /// As with `LoseGroups`.
        checked: LogIndex,
    },
    /// The cluster's object store has this marker. The first one stays.
    MarkStore {
        /// The marker's id.
        store: StoreId,
    },
    /// A lost group without partitions ends, and a new one takes its place.
    ReplaceGroup {
        /// The lost group.
        group: PlacementGroupId,
        /// The new one: an id above all others.
        by: PlacementGroupId,
        /// The brokers that hold it, in ascending order, as many as before.
        nodes: Vec<NodeId>,
        /// As with `LoseGroups`.
        checked: LogIndex,
    },
}

/// What happens to configs that a [`MetadataCommand::SetTopicConfigs`] does not name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigSetMode {
    /// They stay.
    Merge,
    /// They go back to their defaults.
    Replace,
}

/// One change of one config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigChange {
    /// Kafka's name.
    pub name: String,
    /// What to do.
    pub operation: ConfigOperation,
}

/// As in IncrementalAlterConfigs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigOperation {
    /// This value from now on.
    Set(String),
    /// Back to the default.
    Delete,
    /// Adds the elements to a list value.
    Append(String),
    /// Takes the elements out of a list value.
    Subtract(String),
}

/// Producer ids `first .. first + count`, never handed out again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProducerIdBlock {
    /// The first id.
    pub first: ProducerId,
    /// How many.
    pub count: i64,
}
