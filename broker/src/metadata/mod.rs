//! The metadata group: topics, configs, placement, brokers, producer-id blocks.
//!
//! Owns: the replicated image, its commands and byte formats, topic names, topic configs, the choice of placement.
//! Not here: proposing and waiting (router), Kafka's wire types (api), consumer groups (coordinator).
//! Spec: docs/formats/metadata-commands.md, docs/formats/metadata-snapshot.md
//!
//! Everything here is pure (D8): no clock, no I/O, no randomness, no hash-map order. A proposer picks ids and placement,
//! stamps the command, and apply decides.

mod apply;
mod command;
mod config_rules;
mod config_table;
mod config_view;
mod deleted;
mod format_command;
mod format_membership;
mod format_outcome;
mod format_snapshot;
mod image;
mod lost;
#[cfg(test)]
mod lost_tests;
mod machine;
mod membership;
#[cfg(test)]
mod membership_tests;
mod names;
mod plan;
mod refill;
mod replace;
mod spread;
mod standing;
mod store;

pub use apply::{MetadataOutcome, Refusal, brokers, groups_named};
pub use command::{ConfigChange, ConfigOperation, ConfigSetMode, MetadataCommand, ProducerIdBlock};
pub use config_rules::{
    ConfigError, MAX_MESSAGE_BYTES, changed, check_configs, check_message_bytes, nearest_name,
};
pub use config_table::{CONFIGS, ConfigDefinition, ConfigKind, ConfigType, definition};
pub use config_view::{
    ConfigSource, DescribedConfig, EffectiveConfig, TimestampType, describe, effective,
};
pub use deleted::{DeletedTopic, NameBefore};
pub use format_command::decode_command;
pub use image::{Address, Broker, MetadataImage, SLOTS, Topic};
pub use lost::listed;
pub use machine::MetadataMachine;
pub use membership::{
    Admission, AdmissionExpects, ClusterMember, REPLICAS_MAX, ReplicaMove, VOTER_AWAY_MS,
};
pub use names::{NameError, check_topic_name};
pub use plan::{
    COPIES_DEFAULT, choose_first_replicas, choose_replicas, choose_replicas_anew, plan_drains,
    plan_moves,
};
pub use refill::{Refill, RefillRefused};
pub use spread::{choose_groups, choose_groups_on, copies_default};
pub use standing::Standing;

/// Most partitions of one topic.
pub const TOPIC_PARTITIONS_MAX: usize = 10_000;
/// Most topics of a cluster.
pub const TOPICS_MAX: usize = 50_000;
/// Most partitions of a cluster: four bytes of placement each, and a name of at most 249 bytes per topic, keep the
/// snapshot near 16 MiB without configs.
pub const PARTITIONS_MAX: usize = 200_000;
/// Most brokers that may register.
pub const BROKERS_MAX: usize = 1_000;
/// Brokers that have left and are remembered, so that their directories are not taken in again; the oldest are forgotten.
pub const DEPARTED_MAX: usize = 1_000;
/// Deleted topics that are remembered until their name has a topic again; the oldest are forgotten.
pub const DELETED_MAX: usize = 1_000;
/// Most placement groups of a cluster (about two led per broker, see D2).
pub const GROUPS_MAX: usize = 4_000;
/// Longest config value, zone, host or cluster name in bytes.
pub const TEXT_BYTES_MAX: usize = 1_024;
/// Producer ids handed out at once: a broker asks Raft once per this many producers.
pub const PRODUCER_ID_BLOCK: i64 = 1_000;

const _: () = assert!(TOPIC_PARTITIONS_MAX <= PARTITIONS_MAX);
const _: () = assert!(GROUPS_MAX >= 2 * BROKERS_MAX);
