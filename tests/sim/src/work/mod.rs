//! What clients and operators do while things break, one file each.
//!
//! Owns: the hosts they run on, what each of them is given, how far a run is.
//! Not here: what the brokers do, the faults (`breaking`), the rules of a history (`tidelog-check`).
//! Spec: docs/simulation.md (workloads)
//!
//! Each of them works until everything has healed, then shows that what it works on is live again, and returns. While things break it may be refused;
//! what it was promised must hold.

mod groups;
mod load;
mod members;
mod repair;
mod tiers;
mod topics;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tidelog_client::admin_http::AdminClient;
use tidelog_client::{Cluster, ClusterConfig};
use tidelog_cluster::Recorder;
use tidelog_env::{Clock, Network, Random};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::plan::Shape;

/// A request that met a paused broker is tried again elsewhere after this.
const REQUEST: Duration = Duration::from_secs(5);

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Work {
    /// Producers and readers whose history is judged.
    Load,
    /// A consumer group whose members come and go.
    Groups,
    /// Topics that are deleted and made again under the same name.
    Topics,
    /// An operator who moves data to the store, and off the local disks.
    Tiers,
    /// An operator who moves leaders and replicas.
    Members,
    /// An operator who takes brokers in that lost their disks.
    Repair,
}

impl Work {
    pub(crate) const ALL: [Self; 6] = [
        Self::Load,
        Self::Groups,
        Self::Topics,
        Self::Tiers,
        Self::Members,
        Self::Repair,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Groups => "groups",
            Self::Topics => "topics",
            Self::Tiers => "tiers",
            Self::Members => "members",
            Self::Repair => "repair",
        }
    }

    /// Does it, on the host that it was given.
    pub(crate) fn start(self, place: Place) -> Pin<Box<dyn Future<Output = Result<()>>>> {
        match self {
            Self::Load => Box::pin(load::run(place)),
            Self::Groups => Box::pin(groups::run(place)),
            Self::Topics => Box::pin(topics::run(place)),
            Self::Tiers => Box::pin(tiers::run(place)),
            Self::Members => Box::pin(members::run(place)),
            Self::Repair => Box::pin(repair::run(place)),
        }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Work {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match Self::ALL.into_iter().find(|work| work.name() == text) {
            Some(work) => Ok(work),
            None => bail!("no such workload: {text}"),
        }
    }
}

/// How far a run is. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Stages {
    /// Nothing breaks any more.
    pub(crate) healed: CancellationToken,
    /// The load has written all that it will, and has read it.
    pub(crate) written: CancellationToken,
}

/// What a workload lives in.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) bootstrap: String,
    /// Base URLs of the brokers' admin listeners.
    pub(crate) admins: Vec<String>,
    pub(crate) network: Arc<dyn Network>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) random: Arc<dyn Random>,
    pub(crate) recorder: Recorder,
    pub(crate) seed: u64,
    pub(crate) shape: Shape,
    pub(crate) stages: Stages,
}

impl Place {
    fn dice(&self) -> StdRng {
        StdRng::seed_from_u64(self.seed)
    }

    /// A client that gives an operation up after `patience`.
    fn cluster(&self, patience: Duration) -> Result<Cluster> {
        let mut config = ClusterConfig::new(&self.bootstrap);
        config.request_timeout = REQUEST;
        config.operation_timeout = patience;
        let (network, random) = (Arc::clone(&self.network), Arc::clone(&self.random));
        Ok(Cluster::new(config, network, random)?)
    }

    /// The admin address of any broker, for requests that end within this.
    fn admin(&self, dice: &mut StdRng, within: Duration) -> Result<AdminClient> {
        let at = dice.random_range(0..self.admins.len());
        let url = self.admins.get(at).map_or("", String::as_str);
        let admin = AdminClient::new(url, Arc::clone(&self.network))?;
        Ok(admin.until(Instant::now() + within))
    }

    fn is_healed(&self) -> bool {
        self.stages.healed.is_cancelled()
    }

    /// Waits, at most until everything has healed.
    async fn pause(&self, time: Duration) {
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            () = self.stages.healed.cancelled() => {}
        }
    }
}
