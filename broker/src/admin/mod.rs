//! The admin HTTP listener: health, metrics, and the operations that Kafka's protocol has no words for.
//!
//! Owns: routes and the shapes of their JSON (docs/protocols/admin-http.md).
//! Not here: what the operations do (`offload`, `tidelog-archive`), metric values (`observe`).

mod archive;
mod cluster;
mod error;
mod flush;
mod health;
mod help;
mod leader_parts;
mod members;
mod readiness;
mod replace;
mod scrape;
mod server;
mod tier;

use std::sync::Arc;

use crate::observe::Metrics;
use crate::offload::{Offload, StoreGuard};
use crate::placement::GroupMap;
use crate::router::Router;
use tidelog_archive::Archiver;
use tidelog_env::Tasks;
use tidelog_tiering::reader::RemoteReader;
use tokio::time::Instant;

pub use flush::{FlushLink, FlushService};
pub use health::{Health, Reason};
pub use help::{AskReplicas, ReplicasSaid, START_FIRST, WITHOUT_LOSS};
pub use leader_parts::TierService;
pub use members::{AskMembers, WaitingBroker};
pub use readiness::watch_groups;
pub use replace::AskWithout;
pub use server::{AdminServer, serve};

/// What the admin routes work on.
#[derive(Clone)]
pub struct AdminState {
    /// Where everything is.
    pub router: Router,
    /// Drivers of the data groups of this broker.
    pub offloads: GroupMap<Offload>,
    /// Flushes of groups that are led here.
    pub flushes: FlushService,
    /// Where flushes of others go; `None` in a cluster of one.
    pub flush_link: Option<FlushLink>,
    /// The archive, if this broker runs it.
    pub archiver: Option<Archiver>,
    /// Whether this broker's store is the cluster's.
    pub store: StoreGuard,
    /// Reader of the object store.
    pub reader: Arc<RemoteReader>,
    /// What all members know of brokers that wait, and of empty replicas.
    pub ask_members: AskMembers,
    /// What all members lead that needs a Raft node not.
    pub ask_without: AskWithout,
    /// What all members lead, and which of their replicas have nothing.
    pub ask_replicas: AskReplicas,
    /// Readiness.
    pub health: Health,
    /// Metric values.
    pub metrics: Arc<Metrics>,
    /// Background tasks of the broker.
    pub tasks: Tasks,
    /// When the broker started.
    pub started: Instant,
    /// Addresses and names shown by /api/v1/cluster.
    pub identity: Arc<Identity>,
}

/// Who this broker is, for people.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Cluster id.
    pub cluster_id: String,
    /// Cluster name.
    pub cluster_name: String,
    /// Zone.
    pub zone: String,
    /// Kafka address.
    pub kafka: String,
    /// Admin address.
    pub admin: String,
}
