//! Bytes of metadata commands.
//!
//! Spec: docs/formats/metadata-commands.md

use super::command::{ConfigChange, ConfigOperation, ConfigSetMode, MetadataCommand};
use super::deleted::NameBefore;
use super::format_membership::{
    put_admission, put_nodes, put_refill, put_replicas, take_admission, take_group_set,
    take_raft_node, take_refill, take_replicas,
};
use super::image::Address;
use super::membership::{Admission, AdmissionExpects};
use crate::format::{FormatError, Reader, Writer};
use crate::placement::Command;
use bytes::Bytes;
use tidelog_model::{ClusterId, LogIndex, NodeId, PlacementGroupId, StoreId, TimestampMs, TopicId};

/// The version of most kinds.
const VERSION: u8 = 1;
/// What version 2 of [`REGISTER_BROKER`], [`CREATE_TOPIC`] and [`ADMIT_BROKER`] adds is absent in version 1. A command without it is written as version 1.
const VERSION_2: u8 = 2;
/// What version 3 of [`ADMIT_BROKER`] adds is absent in version 2, and where something is given up.
const VERSION_3: u8 = 3;

const BOOTSTRAP_CLUSTER: u8 = 1;
const REGISTER_BROKER: u8 = 2;
const CREATE_TOPIC: u8 = 3;
const DELETE_TOPIC: u8 = 4;
const SET_TOPIC_CONFIGS: u8 = 5;
const ALLOCATE_PRODUCER_IDS: u8 = 6;
const SET_BROKER_FENCE: u8 = 7;
const ADMIT_BROKER: u8 = 16;
const SET_DRAINING: u8 = 17;
const MOVE_REPLICAS: u8 = 18;
const REPLICAS_MOVED: u8 = 19;
const REMOVE_BROKER: u8 = 20;
const CREATE_GROUPS: u8 = 21;
const PREFER_LEADER: u8 = 22;
const REFILL_BROKER: u8 = 23;
const LOSE_GROUPS: u8 = 24;
const FIND_GROUPS: u8 = 25;
const REPLACE_GROUP: u8 = 26;
const MARK_STORE: u8 = 27;

impl MetadataCommand {
    /// The command as a proposal, stamped by the leader.
    #[must_use]
    pub fn encode(&self, stamp: TimestampMs) -> Command {
        let mut to = Writer::new();
        to.u8(self.kind());
        to.u8(self.version());
        to.i64(stamp.get());
        match self {
            Self::BootstrapCluster {
                cluster,
                name,
                groups,
            } => {
                to.uuid(cluster.get());
                to.text(name);
                put_replicas(&mut to, groups);
            }
            Self::RegisterBroker {
                node,
                raft_node,
                zone,
                kafka,
                peer,
                admin,
            } => {
                to.i32(node.get());
                to.text(zone);
                for address in [kafka, peer, admin] {
                    put_address(&mut to, address.as_ref());
                }
                if let Some(raft_node) = raft_node {
                    to.u64(raft_node.get());
                }
            }
            Self::CreateTopic {
                id,
                name,
                partitions,
                configs,
                before,
            } => {
                to.uuid(id.get());
                to.text(name);
                to.count(partitions.len());
                partitions.iter().for_each(|group| to.u32(group.get()));
                to.text_map(configs);
                put_before(&mut to, *before);
            }
            Self::DeleteTopic { id } => to.uuid(id.get()),
            Self::SetTopicConfigs { id, mode, changes } => {
                to.uuid(id.get());
                to.u8(match mode {
                    ConfigSetMode::Merge => 0,
                    ConfigSetMode::Replace => 1,
                });
                to.count(changes.len());
                changes
                    .iter()
                    .for_each(|change| put_change(&mut to, change));
            }
            Self::SetBrokerFence { node, fenced } => {
                to.i32(node.get());
                to.u8(u8::from(*fenced));
            }
            Self::AllocateProducerIds { node } => to.i32(node.get()),
            _ => self.put_membership(&mut to),
        }
        Command::new(to.finish(), Bytes::new())
    }

    /// The fields of the commands on members, replicas and leaders.
    fn put_membership(&self, to: &mut Writer) {
        match self {
            Self::RemoveBroker { node } => to.i32(node.get()),
            Self::MarkStore { store } => to.uuid(store.get()),
            Self::AdmitBroker(admission) => put_admission(to, admission),
            Self::RefillBroker(refill) => put_refill(to, refill),
            Self::SetDraining { node, draining } => {
                to.i32(node.get());
                to.u8(u8::from(*draining));
            }
            Self::MoveReplicas { targets: groups } | Self::CreateGroups { groups } => {
                put_replicas(to, groups);
            }
            Self::PreferLeader { group, node } => {
                to.u32(group.get());
                to.i32(node.map_or(-1, NodeId::get));
            }
            Self::ReplicasMoved { group, id } => {
                to.u32(group.get());
                to.u64(id.get());
            }
            Self::LoseGroups { groups, checked } => {
                put_replicas(to, groups);
                to.u64(checked.get());
            }
            Self::FindGroups { groups, checked } => {
                to.count(groups.len());
                groups.iter().for_each(|group| to.u32(group.get()));
                to.u64(checked.get());
            }
            Self::ReplaceGroup {
                group,
                by,
                nodes,
                checked,
            } => {
                to.u32(group.get());
                to.u32(by.get());
                put_nodes(to, nodes);
                to.u64(checked.get());
            }
            _ => {}
        }
    }

    const fn version(&self) -> u8 {
        match self {
            Self::RegisterBroker {
                raft_node: Some(_), ..
            }
            | Self::CreateTopic {
                before: NameBefore::Free | NameBefore::Dropped(_),
                ..
            }
            | Self::AdmitBroker(Admission {
                expects: Some(AdmissionExpects { checked: None, .. }),
                ..
            }) => VERSION_2,
            Self::AdmitBroker(Admission {
                expects: Some(_), ..
            }) => VERSION_3,
            _ => VERSION,
        }
    }

    const fn kind(&self) -> u8 {
        match self {
            Self::BootstrapCluster { .. } => BOOTSTRAP_CLUSTER,
            Self::RegisterBroker { .. } => REGISTER_BROKER,
            Self::CreateTopic { .. } => CREATE_TOPIC,
            Self::DeleteTopic { .. } => DELETE_TOPIC,
            Self::SetTopicConfigs { .. } => SET_TOPIC_CONFIGS,
            Self::AllocateProducerIds { .. } => ALLOCATE_PRODUCER_IDS,
            Self::SetBrokerFence { .. } => SET_BROKER_FENCE,
            Self::AdmitBroker(_) => ADMIT_BROKER,
            Self::RefillBroker(_) => REFILL_BROKER,
            Self::SetDraining { .. } => SET_DRAINING,
            Self::MoveReplicas { .. } => MOVE_REPLICAS,
            Self::ReplicasMoved { .. } => REPLICAS_MOVED,
            Self::RemoveBroker { .. } => REMOVE_BROKER,
            Self::CreateGroups { .. } => CREATE_GROUPS,
            Self::PreferLeader { .. } => PREFER_LEADER,
            Self::LoseGroups { .. } => LOSE_GROUPS,
            Self::FindGroups { .. } => FIND_GROUPS,
            Self::ReplaceGroup { .. } => REPLACE_GROUP,
            Self::MarkStore { .. } => MARK_STORE,
        }
    }
}

/// Reads a command and the leader's stamp.
///
/// # Errors
/// What is wrong with the bytes; the caller applies nothing.
pub fn decode_command(dir: &[u8]) -> Result<(MetadataCommand, TimestampMs), FormatError> {
    let mut from = Reader::new(dir);
    let kind = from.u8("the kind")?;
    let version = from.u8("the version")?;
    let newest = match kind {
        REGISTER_BROKER | CREATE_TOPIC => VERSION_2,
        ADMIT_BROKER => VERSION_3,
        _ => VERSION,
    };
    if version < VERSION || version > newest {
        return Err(FormatError::Version(u16::from(version)));
    }
    let stamp = TimestampMs::new(from.i64("the stamp")?);
    let command = match kind {
        BOOTSTRAP_CLUSTER => bootstrap(&mut from)?,
        REGISTER_BROKER => register_broker(&mut from, version)?,
        CREATE_TOPIC => MetadataCommand::CreateTopic {
            id: TopicId::new(from.uuid("the topic")?),
            name: from.text("the topic's name")?,
            partitions: take_groups(&mut from)?,
            configs: from.text_map("the configs")?,
            before: take_before(&mut from, version)?,
        },
        DELETE_TOPIC => MetadataCommand::DeleteTopic {
            id: TopicId::new(from.uuid("the topic")?),
        },
        SET_TOPIC_CONFIGS => set_topic_configs(&mut from)?,
        ALLOCATE_PRODUCER_IDS => MetadataCommand::AllocateProducerIds {
            node: NodeId::new(from.i32("the broker")?),
        },
        SET_BROKER_FENCE => MetadataCommand::SetBrokerFence {
            node: NodeId::new(from.i32("the broker")?),
            fenced: from.flag("the fence")?,
        },
        _ => membership(kind, version, &mut from)?,
    };
    from.finish()?;
    Ok((command, stamp))
}

fn put_before(to: &mut Writer, before: NameBefore) {
    match before {
        NameBefore::Unknown => {}
        NameBefore::Free => to.u8(0),
        NameBefore::Dropped(topic) => {
            to.u8(1);
            to.uuid(topic.get());
        }
    }
}

fn take_before(from: &mut Reader<'_>, version: u8) -> Result<NameBefore, FormatError> {
    if version == VERSION {
        return Ok(NameBefore::Unknown);
    }
    Ok(match from.flag("whether the name had a topic")? {
        false => NameBefore::Free,
        true => NameBefore::Dropped(TopicId::new(from.uuid("the topic of the name")?)),
    })
}

fn register_broker(from: &mut Reader<'_>, version: u8) -> Result<MetadataCommand, FormatError> {
    let node = NodeId::new(from.i32("the broker")?);
    let zone = from.text("the zone")?;
    let [kafka, peer, admin] = [
        take_address(from)?,
        take_address(from)?,
        take_address(from)?,
    ];
    let raft_node = match version {
        VERSION => None,
        _ => match take_raft_node(from, "the Raft node")? {
            None => return Err(FormatError::Invalid("the Raft node")),
            known => known,
        },
    };
    Ok(MetadataCommand::RegisterBroker {
        node,
        raft_node,
        zone,
        kafka,
        peer,
        admin,
    })
}

fn membership(
    kind: u8,
    version: u8,
    from: &mut Reader<'_>,
) -> Result<MetadataCommand, FormatError> {
    Ok(match kind {
        ADMIT_BROKER => MetadataCommand::AdmitBroker(take_admission(from, version)?),
        REFILL_BROKER => MetadataCommand::RefillBroker(take_refill(from)?),
        SET_DRAINING => MetadataCommand::SetDraining {
            node: NodeId::new(from.i32("the broker")?),
            draining: from.flag("whether it is drained")?,
        },
        MOVE_REPLICAS => MetadataCommand::MoveReplicas {
            targets: take_replicas(from)?,
        },
        REPLICAS_MOVED => MetadataCommand::ReplicasMoved {
            group: PlacementGroupId::new(from.u32("the group")?),
            id: LogIndex::new(from.u64("the move")?),
        },
        REMOVE_BROKER => MetadataCommand::RemoveBroker {
            node: NodeId::new(from.i32("the broker")?),
        },
        PREFER_LEADER => MetadataCommand::PreferLeader {
            group: PlacementGroupId::new(from.u32("the group")?),
            node: Some(NodeId::new(from.i32("the broker")?)).filter(|node| node.get() >= 0),
        },
        CREATE_GROUPS => MetadataCommand::CreateGroups {
            groups: take_replicas(from)?,
        },
        LOSE_GROUPS => MetadataCommand::LoseGroups {
            groups: take_replicas(from)?,
            checked: LogIndex::new(from.u64("the image's entry")?),
        },
        FIND_GROUPS => MetadataCommand::FindGroups {
            groups: take_group_set(from)?,
            checked: LogIndex::new(from.u64("the image's entry")?),
        },
        REPLACE_GROUP => MetadataCommand::ReplaceGroup {
            group: PlacementGroupId::new(from.u32("the group")?),
            by: PlacementGroupId::new(from.u32("the new group")?),
            nodes: take_nodes(from)?,
            checked: LogIndex::new(from.u64("the image's entry")?),
        },
        MARK_STORE => MetadataCommand::MarkStore {
            store: take_store(from)?,
        },
        _ => return Err(FormatError::Invalid("the kind")),
    })
}

/// Reads the id of a store, which is never zero.
pub(super) fn take_store(from: &mut Reader<'_>) -> Result<StoreId, FormatError> {
    let id = from.uuid("the store")?;
    if id.is_nil() {
        return Err(FormatError::Invalid("the store"));
    }
    Ok(StoreId::new(id))
}

fn bootstrap(from: &mut Reader<'_>) -> Result<MetadataCommand, FormatError> {
    let cluster = ClusterId::new(from.uuid("the cluster")?);
    let name = from.text("the cluster's name")?;
    let groups = take_replicas(from)?;
    Ok(MetadataCommand::BootstrapCluster {
        cluster,
        name,
        groups,
    })
}

fn set_topic_configs(from: &mut Reader<'_>) -> Result<MetadataCommand, FormatError> {
    let id = TopicId::new(from.uuid("the topic")?);
    let mode = match from.u8("the mode")? {
        0 => ConfigSetMode::Merge,
        1 => ConfigSetMode::Replace,
        _ => return Err(FormatError::Invalid("the mode")),
    };
    let count = from.count(6, "the changes")?;
    let mut changes = Vec::with_capacity(count);
    for _ in 0..count {
        changes.push(take_change(from)?);
    }
    Ok(MetadataCommand::SetTopicConfigs { id, mode, changes })
}

fn put_change(to: &mut Writer, change: &ConfigChange) {
    let (operation, value) = match &change.operation {
        ConfigOperation::Set(value) => (0, Some(value)),
        ConfigOperation::Delete => (1, None),
        ConfigOperation::Append(value) => (2, Some(value)),
        ConfigOperation::Subtract(value) => (3, Some(value)),
    };
    to.u8(operation);
    to.text(&change.name);
    to.optional_text(value.map(String::as_str));
}

fn take_change(from: &mut Reader<'_>) -> Result<ConfigChange, FormatError> {
    let operation = from.u8("the operation")?;
    let name = from.text("the config's name")?;
    let operation = match (operation, from.optional_text("the config's value")?) {
        (0, Some(value)) => ConfigOperation::Set(value),
        (1, None) => ConfigOperation::Delete,
        (2, Some(value)) => ConfigOperation::Append(value),
        (3, Some(value)) => ConfigOperation::Subtract(value),
        _ => return Err(FormatError::Invalid("the operation")),
    };
    Ok(ConfigChange { name, operation })
}

/// Writes an address or its absence.
pub(super) fn put_address(to: &mut Writer, address: Option<&Address>) {
    match address {
        None => to.u8(0),
        Some(address) => {
            to.u8(1);
            to.text(&address.host);
            to.u16(address.port);
        }
    }
}

/// Reads what [`put_address`] wrote.
pub(super) fn take_address(from: &mut Reader<'_>) -> Result<Option<Address>, FormatError> {
    if !from.flag("the presence of an address")? {
        return Ok(None);
    }
    Ok(Some(Address {
        host: from.text("a host")?,
        port: from.u16("a port")?,
    }))
}

/// Reads a list of placement groups.
pub(super) fn take_groups(from: &mut Reader<'_>) -> Result<Vec<PlacementGroupId>, FormatError> {
    let count = from.count(4, "the partitions")?;
    (0..count)
        .map(|_| from.u32("a placement group").map(PlacementGroupId::new))
        .collect()
}

/// Reads a list of brokers.
pub(super) fn take_nodes(from: &mut Reader<'_>) -> Result<Vec<NodeId>, FormatError> {
    let count = from.count(4, "the brokers")?;
    (0..count)
        .map(|_| from.i32("a broker").map(NodeId::new))
        .collect()
}
