//! Configuration of a broker: one TOML file, every key overridable by environment and by `--set`.
//!
//! Owns: the keys, their defaults, their checks, and the order of precedence (flag, environment, file, default).
//! Not here: topic configs (`metadata`), command-line flags (`cli.rs`).
//! Docs: docs/operating/configuration.md is generated from [`keys::KEYS`]; a test compares them.

mod addresses;
pub mod environment;
pub mod keys;
pub mod load;
mod peer_tls;
mod seeds;

use serde::Deserialize;
use std::path::PathBuf;

pub use load::{ConfigError, Sources};
pub use peer_tls::{PeerTlsFiles, TlsMode};
pub use seeds::{SEEDS_MAX, parse_seeds};

/// The smallest `log.file-bytes`: a quarter of it is what every data group takes in one entry, whatever is configured.
pub const LOG_FILE_BYTES_MIN: u64 = 8 << 20;

/// The whole configuration.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Config {
    /// `[node]`
    pub node: Node,
    /// `[kafka]`
    pub kafka: Kafka,
    /// `[peer]`
    pub peer: Peer,
    /// `[admin]`
    pub admin: Admin,
    /// `[cluster]`
    pub cluster: Cluster,
    /// `[raft]`
    pub raft: Raft,
    /// `[store]`
    pub store: Store,
    /// `[log]`
    pub log: Log,
    /// `[tier]`
    pub tier: Tier,
    /// `[archive]`
    pub archive: Archive,
    /// `[groups]`
    pub groups: Groups,
}

/// Who this broker is.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Node {
    /// Broker id, at least 1.
    pub id: i32,
    /// Zone (rack) of the broker.
    pub zone: String,
    /// Where the hot tail and the node's identity live.
    pub data_dir: PathBuf,
}

/// The Kafka listener.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Kafka {
    /// Address to bind.
    pub listen: String,
    /// Address that clients are told. Empty: what the client dialled (one broker only).
    pub advertised: String,
    /// Whether a metadata request of a client creates the topic it names.
    pub auto_create_topics: bool,
    /// Partitions of a topic that is created without a count.
    pub default_partitions: i32,
    /// Largest request accepted, bytes.
    pub max_request_bytes: usize,
    /// Most connections at once.
    pub max_connections: usize,
}

/// The listener for other brokers.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Peer {
    /// Address to bind.
    pub listen: String,
    /// Address that other brokers are told.
    pub advertised: String,
    /// Whether connections are TLS; empty: when the files are set.
    pub tls_mode: String,
    /// PEM file of this broker's certificate.
    pub tls_cert_file: PathBuf,
    /// PEM file of its private key.
    pub tls_key_file: PathBuf,
    /// PEM file of the CAs of brokers.
    pub tls_ca_file: PathBuf,
}

/// The admin HTTP listener.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Admin {
    /// Address to bind.
    pub listen: String,
}

/// The cluster.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Cluster {
    /// A name for people.
    pub name: String,
    /// `id@host:port` of every broker; empty: a cluster of one.
    pub seeds: Vec<String>,
    /// Number of placement groups that carry partitions. 0 is resolved when the configuration is loaded.
    pub data_groups: u32,
    /// A broker that is silent for so long is fenced.
    pub session_ms: u64,
    /// Whether this broker, when its disk is damaged, is taken in and filled anew by itself.
    pub refill_damaged: bool,
}

/// Times of elections, in every placement group.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Raft {
    /// Between signs of life of a leader.
    pub heartbeat_ms: u64,
    /// The shortest time a follower waits before it campaigns.
    pub election_min_ms: u64,
    /// The longest, and how long votes are denied after a sign of life.
    pub election_max_ms: u64,
}

/// The object store.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Store {
    /// `file:///dir` or `s3://bucket/prefix`.
    pub url: String,
    /// Endpoint of an S3-compatible server; empty: AWS.
    pub endpoint: String,
    /// Whether the bucket is in the path rather than in the host name.
    pub path_style: bool,
    /// Region.
    pub region: String,
}

/// The group log.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Log {
    /// Size of one log file, bytes.
    pub file_bytes: u64,
    /// Memory for the newest entries, bytes, over all groups.
    pub cache_bytes: usize,
    /// New records are refused while the disk has less than this, bytes.
    pub reserve_bytes: u64,
}

/// Moving data to the object store.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Tier {
    /// A cut is made after this many bytes in a group.
    pub cut_bytes: u64,
    /// A cut is made at the latest after this time, if there is anything to move.
    pub cut_interval_ms: u64,
    /// Bytes per group that stay local after they are in the store, for hot reads.
    pub local_bytes: u64,
    /// Bytes per second and group that uploads keep to while little waits; 0: by the kind of store.
    pub upload_bytes_per_second: u64,
    /// Memory for what was read back from the store, bytes.
    pub cache_bytes: u64,
}

/// The archive.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Archive {
    /// Whether this broker exports Parquet and Iceberg tables.
    pub enable: bool,
    /// Time between two exports.
    pub interval_ms: u64,
}

/// Consumer groups.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Groups {
    /// How long an empty consumer group waits for more members before its first rebalance ends.
    pub initial_rebalance_delay_ms: u64,
}
