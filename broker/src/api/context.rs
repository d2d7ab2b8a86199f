//! What every handler works with.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::answer_memory::AnswerMemory;
use crate::coordinator::service::Coordinator;
use crate::observe::Metrics;
use crate::placement::GroupMap;
use crate::router::Router;
use tidelog_env::Clock;
use tidelog_model::ClusterId;

/// Settings of the Kafka surface.
#[derive(Clone, Debug)]
pub struct ApiConfig {
    /// Cluster id as clients see it.
    pub cluster: ClusterId,
    /// Zone of this broker; empty: none.
    pub zone: String,
    /// Host and port that clients are told; `None`: what they dialled.
    pub advertised: Option<(String, u16)>,
    /// Whether a metadata request creates the topic it names.
    pub auto_create_topics: bool,
    /// Partitions of a topic created without a count.
    pub default_partitions: i32,
}

/// The broker as handlers see it. Clones share it.
#[derive(Clone)]
pub struct Broker {
    /// Where everything is.
    pub router: Router,
    /// Coordinators of consumer groups, one per data group of this broker.
    pub coordinators: GroupMap<Coordinator>,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Wall clock.
    pub clock: Arc<dyn Clock>,
    /// Whether new records are refused because the disk reserve is used up.
    pub refusing: Arc<AtomicBool>,
    /// Memory of answers with records.
    pub answers: AnswerMemory,
    /// Settings.
    pub config: Arc<ApiConfig>,
}
