//! Every configuration key with its type, default and meaning: one table for loading, help and docs.
//!
//! Owns: [`KEYS`].
//! Not here: reading files or the environment (`load`).

/// The type of a key's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Text.
    Text,
    /// A whole number.
    Number,
    /// `true` or `false`.
    Flag,
    /// Texts; comma-separated in the environment and in `--set`.
    List,
}

/// One key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Dotted name, as in `--set`.
    pub name: &'static str,
    /// Type.
    pub kind: Kind,
    /// Default, written as in `--set`.
    pub default: &'static str,
    /// What it means.
    pub help: &'static str,
}

const fn key(name: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Key {
    Key {
        name,
        kind,
        default,
        help,
    }
}

/// All keys.
pub const KEYS: &[Key] = &[
    key(
        "node.id",
        Kind::Number,
        "1",
        "Broker id, at least 1. Kept in the data directory: it cannot change later.",
    ),
    key(
        "node.zone",
        Kind::Text,
        "default",
        "Zone of the broker; Kafka clients see it as the rack. Not empty.",
    ),
    key(
        "node.data-dir",
        Kind::Text,
        "./tidelog-data",
        "Directory of the hot tail. One broker each; locked while in use.",
    ),
    key(
        "kafka.listen",
        Kind::Text,
        "127.0.0.1:9092",
        "Address of the Kafka listener.",
    ),
    key(
        "kafka.advertised",
        Kind::Text,
        "",
        "Address that clients are told. Empty: what each client dialled; with several seeds kafka.listen, which must be an address that can be dialled.",
    ),
    key(
        "kafka.auto-create-topics",
        Kind::Flag,
        "true",
        "Whether a client that names an unknown topic creates it.",
    ),
    key(
        "kafka.default-partitions",
        Kind::Number,
        "1",
        "Partitions of a topic that is created without a count.",
    ),
    key(
        "kafka.max-request-bytes",
        Kind::Number,
        "104857600",
        "Largest request accepted, bytes.",
    ),
    key(
        "kafka.max-connections",
        Kind::Number,
        "4096",
        "Most Kafka connections at once (at least 1).",
    ),
    key(
        "peer.listen",
        Kind::Text,
        "127.0.0.1:9192",
        "Address of the listener for other brokers. Not used by a cluster of one.",
    ),
    key(
        "peer.advertised",
        Kind::Text,
        "",
        "Address that brokers dial which do not have this one in their cluster.seeds. Empty: what the own cluster.seeds says.",
    ),
    key(
        "peer.tls-mode",
        Kind::Text,
        "",
        "off; allow: takes plain and TLS connections of brokers, dials plain; prefer: takes both, dials TLS; require: TLS only. Empty: require when the three files below are set, else off.",
    ),
    key(
        "peer.tls-cert-file",
        Kind::Text,
        "",
        "PEM file of this broker's certificate, then those between it and the CA. Names the host that other brokers dial, and may be used by servers and clients. All three files are read again when they change.",
    ),
    key(
        "peer.tls-key-file",
        Kind::Text,
        "",
        "PEM file of its private key, without a passphrase.",
    ),
    key(
        "peer.tls-ca-file",
        Kind::Text,
        "",
        "PEM file of the certificates of the CAs that sign brokers' certificates. Whoever has a certificate of theirs is a broker: a CA for this cluster alone.",
    ),
    key(
        "admin.listen",
        Kind::Text,
        "127.0.0.1:9640",
        "Address of the admin HTTP listener.",
    ),
    key(
        "cluster.name",
        Kind::Text,
        "tidelog",
        "Name of the cluster, for people.",
    ),
    key(
        "cluster.seeds",
        Kind::List,
        "",
        "id@host:port of the peer listener of every broker (at most 5), the same on all. Empty, or this broker alone: a cluster of one.",
    ),
    key(
        "cluster.data-groups",
        Kind::Number,
        "0",
        "Placement groups that carry partitions. Fixed when the cluster is made, with as many as put every seed on one at least (3 of 5 seeds). 0: twice the number of brokers.",
    ),
    key(
        "cluster.session-ms",
        Kind::Number,
        "6000",
        "Clients are kept away from a broker that the others have not heard for this long (1000 to 600000). It tells them four times as often.",
    ),
    key(
        "cluster.refill-damaged",
        Kind::Flag,
        "true",
        "Whether this broker, when it finds its data directory damaged, sets it aside and gets everything anew from the others, as soon as nothing depends on what it had. false, and in a cluster of one: it refuses to start.",
    ),
    key(
        "raft.heartbeat-ms",
        Kind::Number,
        "200",
        "Between two signs of life of a group's leader (20 to 10000). These three the same on all brokers.",
    ),
    key(
        "raft.election-min-ms",
        Kind::Number,
        "600",
        "A follower campaigns when it has heard nothing for election-max and then a random time between this and election-max. Also how long a leader that hears nobody serves reads. At least three heartbeats.",
    ),
    key(
        "raft.election-max-ms",
        Kind::Number,
        "1000",
        "The longest such time, and how long followers deny their votes after they heard from a leader: at least a fifth more than election-min, 60000 at most.",
    ),
    key(
        "store.url",
        Kind::Text,
        "",
        "file:///dir or s3://bucket/prefix. Empty: file://<data-dir>/store. Needed with several seeds: the same on all, and one store that all of them share; file:// only where all see the same directory.",
    ),
    key(
        "store.endpoint",
        Kind::Text,
        "",
        "Endpoint of an S3-compatible server. Empty: AWS, or AWS_ENDPOINT_URL.",
    ),
    key(
        "store.path-style",
        Kind::Flag,
        "false",
        "Whether the bucket goes into the path rather than the host name.",
    ),
    key(
        "store.region",
        Kind::Text,
        "",
        "Region. Empty: AWS_REGION, or us-east-1.",
    ),
    key(
        "log.file-bytes",
        Kind::Number,
        "67108864",
        "Size of one log file, bytes (8 MiB to 1 GiB).",
    ),
    key(
        "log.cache-bytes",
        Kind::Number,
        "100663296",
        "Memory for the newest log entries over all groups, bytes.",
    ),
    key(
        "log.reserve-bytes",
        Kind::Number,
        "536870912",
        "New records are refused while the disk has less room than this; 0: never.",
    ),
    key(
        "tier.cut-bytes",
        Kind::Number,
        "67108864",
        "A group moves data to the store after this many new bytes.",
    ),
    key(
        "tier.cut-interval-ms",
        Kind::Number,
        "600000",
        "It moves what there is at the latest after this time.",
    ),
    key(
        "tier.local-bytes",
        Kind::Number,
        "1073741824",
        "Bytes per group that stay local for hot reads after they are in the store.",
    ),
    key(
        "tier.upload-bytes-per-second",
        Kind::Number,
        "0",
        "Bytes per second and group that uploads keep to; more once data waits. 0: 64 MiB/s to file://, which may be the log's own disk, else as fast as it goes.",
    ),
    key(
        "tier.cache-bytes",
        Kind::Number,
        "67108864",
        "Memory for what was read back from the store, bytes.",
    ),
    key(
        "archive.enable",
        Kind::Flag,
        "true",
        "Whether this broker exports Parquet files in Iceberg tables.",
    ),
    key(
        "archive.interval-ms",
        Kind::Number,
        "300000",
        "Time between two exports.",
    ),
    key(
        "groups.initial-rebalance-delay-ms",
        Kind::Number,
        "500",
        "How long an empty consumer group waits for more members.",
    ),
];

/// The key called `name`.
#[must_use]
pub fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// The environment variable of a key: `node.data-dir` is `TIDELOG_NODE_DATA_DIR`.
#[must_use]
pub fn environment_name(key: &Key) -> String {
    format!(
        "TIDELOG_{}",
        key.name.replace(['.', '-'], "_").to_uppercase()
    )
}

/// The page docs/operating/configuration.md.
#[must_use]
pub fn to_markdown() -> String {
    let mut page = String::from(
        "# Configuration\n\nOne TOML file (`tidelog broker --config FILE`). Each key can be overridden by the environment variable \
         beside it,\nand that by `--set key=value`. A variable `TIDELOG_...` that nothing reads is told at the start. This page is generated from the code (`cargo test` compares them).\n\n\
         | key | environment | default | meaning |\n|---|---|---|---|\n",
    );
    for key in KEYS {
        let default = if key.default.is_empty() {
            "(empty)"
        } else {
            key.default
        };
        page.push_str(&format!(
            "| `{}` | `{}` | `{default}` | {} |\n",
            key.name,
            environment_name(key),
            key.help
        ));
    }
    page
}
