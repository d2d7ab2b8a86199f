//! The node: builds, wires, starts and stops every service of one broker.
//!
//! Owns: the order of start and stop, and the errors of starting, each with what to do.
//! Not here: what the services do. This is the only module that knows all of them.

mod book;
mod disk_guard;
mod error;
mod fitness;
mod formation;
mod groups;
mod held;
mod identity;
mod leaders;
mod listeners;
mod lost;
mod members;
mod mistakes;
mod peers;
mod refill;
mod request_memory;
mod stop;
mod store;
mod store_found;
mod store_mark;
mod store_watch;

use std::sync::Arc;

use crate::admin::{AdminServer, Health};
use crate::config::Config;
use crate::router::Router;
use futures::future::BoxFuture;
use object_store::ObjectStore;
use tidelog_env::disk::{DirLock, Disk};
use tidelog_env::{Clock, Network, Random, Tasks};
use tidelog_model::NodeId;
use tokio::sync::watch;

pub use error::{Ended, StartError};
pub use identity::Identity;
pub use peers::check_peer_tls;
pub use store::probe_store;
pub use store_found::{StoreMarkers, store_markers};

/// The part of health that says what a start waits for.
const START: &str = "start";

/// The world a node lives in. A simulation hands in its own.
#[derive(Clone)]
pub struct World {
    /// Disk of the data directory.
    pub disk: Arc<dyn Disk>,
    /// Sockets.
    pub network: Arc<dyn Network>,
    /// Wall clock.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub random: Arc<dyn Random>,
    /// In place of the object store that the configuration names.
    pub store: Option<Arc<dyn ObjectStore>>,
}

impl World {
    /// The machine's.
    #[must_use]
    pub fn system() -> Self {
        Self {
            disk: tidelog_env::disk::RealDisk::shared(),
            network: tidelog_env::TcpNetwork::shared(),
            clock: tidelog_env::SystemClock::shared(),
            random: tidelog_env::SystemRandom::shared(),
            store: None,
        }
    }
}

/// Where a started node can be reached.
#[derive(Clone, Debug)]
pub struct Addresses {
    /// Kafka listener.
    pub kafka: std::net::SocketAddr,
    /// Admin listener.
    pub admin: std::net::SocketAddr,
    /// The store's URL.
    pub store: String,
    /// Who this is.
    pub identity: Identity,
}

/// A running broker.
pub struct Node {
    addresses: Addresses,
    fatal: watch::Receiver<Option<Ended>>,
    parts: stop::Parts,
    /// Its directory was marked as damaged, and it was not refilled.
    spared: Option<refill::Spared>,
    _lock: Box<dyn DirLock>,
}

impl Node {
    /// Starts a broker: recovers its groups, then opens its listeners. Ready when it returns; that it lives, and what it waits for, is told
    /// from the beginning. One that finds its disk damaged may wait for long, and is refilled then.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left running.
    ///
    /// Boxed: what an `async fn` does is compiled in the crate that awaits it, again in each program; behind a box all of a broker is compiled once, here.
    pub fn start(config: Config, world: World) -> BoxFuture<'static, Result<Self, StartError>> {
        Box::pin(Self::start_or_wait(config, world))
    }

    async fn start_or_wait(config: Config, world: World) -> Result<Self, StartError> {
        let dir = config.node.data_dir.clone();
        let lock = lock_directory(&world, &dir)?;
        let marked = || refill::Mark::load(world.disk.as_ref(), &dir);
        loop {
            let before = marked()?;
            let error = match Self::start_once(&config, &world).await {
                Ok((addresses, fatal, parts, spared)) => {
                    return Ok(Self {
                        addresses,
                        fatal,
                        parts,
                        spared,
                        _lock: lock,
                    });
                }
                Err(error) => error,
            };
            // Damage that this start has found: from the beginning, to be refilled, or to run without more groups. Each turn finds another group.
            let now = marked()?;
            if now.is_none() || now == before {
                return Err(error);
            }
            tracing::error!("{error}");
        }
    }

    async fn start_once(config: &Config, world: &World) -> Result<Running, StartError> {
        let (tasks, health) = (Tasks::new(), Health::default());
        health.not_ready(START, "looking for the cluster");
        let admin = listeners::open_admin(config, world, &health, &tasks).await?;
        let Joined {
            identity,
            peers,
            spared,
            in_part,
        } = match join(config, world, &health).await {
            Ok(joined) => joined,
            Err(error) => {
                tasks.stop().await;
                return Err(error);
            }
        };
        let starting = Starting {
            config,
            world,
            identity,
            peers: peers.as_ref(),
            in_part: in_part.as_ref(),
            health: health.clone(),
            admin: &admin,
            tasks: &tasks,
        };
        match starting.start().await {
            Ok((addresses, fatal, groups, listeners)) => {
                if spared.is_some() {
                    let (disk, dir) = (Arc::clone(&world.disk), config.node.data_dir.clone());
                    let is_well = is_well(health, groups.router.clone(), identity);
                    refill::forget_when_well(&tasks, disk, dir, is_well);
                }
                let parts = stop::Parts {
                    heartbeats: groups.start_heartbeats(&tasks),
                    tasks,
                    groups,
                    listeners,
                    peers,
                };
                Ok((addresses, fatal, parts, spared))
            }
            Err(error) => {
                tasks.stop().await;
                if let Some(peers) = peers {
                    peers.stop().await;
                }
                Err(match spared {
                    Some(spared) => spared.not_started(error),
                    None if in_part.is_some() => refill::not_started_in_part(error, identity.node),
                    None => error,
                })
            }
        }
    }

    /// Where it can be reached.
    #[must_use]
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Waits until this broker must end by itself.
    pub async fn ended(&self) -> Ended {
        let mut fatal = self.fatal.clone();
        let ended = fatal.wait_for(Option::is_some).await;
        match ended.ok().and_then(|why| why.clone()) {
            Some(ended) => match &self.spared {
                Some(spared) => spared.ended(ended),
                None => ended,
            },
            None => std::future::pending().await,
        }
    }

    /// Stops in order: leadership goes to others, then listeners, background tasks, groups. What was acknowledged is on disk all the time.
    pub fn stop(self) -> BoxFuture<'static, ()> {
        Box::pin(self.stop_in_order())
    }

    /// Takes all of it: the lock of the directory goes when everything has stopped.
    async fn stop_in_order(self) {
        self.parts.stop().await;
    }

    /// Ends it as a crash would look to the others.
    #[cfg(test)]
    async fn stop_abruptly(self) {
        self.parts.stop_abruptly().await;
    }
}

type Running = (
    Addresses,
    watch::Receiver<Option<Ended>>,
    stop::Parts,
    Option<refill::Spared>,
);

type Started = (
    Addresses,
    watch::Receiver<Option<Ended>>,
    groups::NodeGroups,
    listeners::Listeners,
);

/// A broker that knows its cluster.
struct Starting<'a> {
    config: &'a Config,
    world: &'a World,
    identity: Identity,
    peers: Option<&'a Arc<peers::Peers>>,
    in_part: Option<&'a refill::Mark>,
    health: Health,
    admin: &'a AdminServer,
    tasks: &'a Tasks,
}

impl Starting<'_> {
    /// Everything after this broker knows its cluster.
    async fn start(self) -> Result<Started, StartError> {
        let Self {
            config,
            world,
            identity,
            peers,
            in_part,
            health,
            admin,
            tasks,
        } = self;
        let (fatal_sender, fatal) = watch::channel(None);
        let store = store::open(config, world, identity, health.clone(), tasks)?;
        let store = Arc::new(store);
        let (disk, dir) = (Arc::clone(&world.disk), config.node.data_dir.clone());
        let reserve = config.log.reserve_bytes;
        let refusing = disk_guard::start(disk, dir, reserve, health.clone(), tasks);
        health.not_ready(
            START,
            "recovering the placement groups, and looking for the leader of metadata",
        );
        let parts = groups::Parts {
            config,
            world,
            identity,
            peers,
            in_part,
            store: &store,
            fatal: &fatal_sender,
            refusing: &refusing,
            tasks,
        };
        let groups = groups::start(parts).await?;
        let served = listeners::Served {
            config,
            world,
            identity,
            peers,
            store: &store,
            groups: &groups,
            refusing,
            admin,
            tasks,
        };
        match listeners::serve(served).await {
            Ok((kafka, listeners)) => {
                health.ready(START);
                let addresses = Addresses {
                    kafka,
                    admin: admin.address,
                    store: store.url.clone(),
                    identity,
                };
                Ok((addresses, fatal, groups, listeners))
            }
            Err(error) => {
                tasks.stop().await;
                groups.stop().await;
                Err(error)
            }
        }
    }
}

/// Whether all replicas of this broker have caught up since its start, or lead, and it is still the member that it was.
fn is_well(health: Health, router: Router, identity: Identity) -> impl Fn() -> bool + Send {
    move || {
        let is_member = router.image(|image| {
            let member = image.members().get(&identity.node);
            member.is_none_or(|member| member.raft_node == identity.raft_node)
        });
        is_member && health.is_well("groups") && health.is_well("replicas")
    }
}

/// What a broker is before it opens its groups.
struct Joined {
    identity: Identity,
    peers: Option<Arc<peers::Peers>>,
    /// Its directory is marked as damaged, and it is not refilled.
    spared: Option<refill::Spared>,
    /// Groups are damaged, and it runs without them.
    in_part: Option<refill::Mark>,
}

/// Who this broker is, and its cluster: made here for a cluster of one, found together with the other seeds else.
async fn join(config: &Config, world: &World, health: &Health) -> Result<Joined, StartError> {
    let seeds = config.seeds();
    let node = NodeId::new(config.node.id);
    let alone = seeds.is_empty().then_some(config.cluster.name.as_str());
    let (disk, dir) = (world.disk.as_ref(), &config.node.data_dir);
    let mut directory = identity::load_or_create(disk, &world.random, dir, node, alone)?;
    let mark = refill::resume(disk, dir, &directory)?;
    let refills = config.refills() && directory.founding.is_some();
    let spared = mark.as_ref().filter(|_| !refills);
    if let Some(mark) = spared {
        tracing::warn!(
            "this data directory was found damaged ({}) and is used as it is: it is not refilled",
            mark.what
        );
    }
    let spared = spared.map(|_| refill::Spared {
        disk: Arc::clone(&world.disk),
        dir: dir.clone(),
        node,
    });
    let mut marked = match &mark {
        None => refill::Marked::Not,
        Some(mark) if refills => refill::Marked::Anew(mark),
        Some(_) => refill::Marked::Spared,
    };
    let peers = if seeds.is_empty() {
        peers::check_alone(&directory)?;
        None
    } else {
        loop {
            let started = peers::Peers::start(config, world, health, &mut directory, marked);
            if let Some(peers) = started.await? {
                break Some(Arc::new(peers));
            }
            marked = otherwise(marked);
        }
    };
    let in_part = match marked {
        refill::Marked::InPart(mark) => Some(mark.clone()),
        refill::Marked::Not | refill::Marked::Anew(_) | refill::Marked::Spared => None,
    };
    let cluster = directory
        .founding
        .as_ref()
        .map(formation::Founding::cluster);
    let cluster = cluster.ok_or_else(|| StartError::Metadata("no cluster".to_owned()))?;
    let identity = Identity {
        cluster,
        node,
        raft_node: directory.raft_node,
    };
    Ok(Joined {
        identity,
        peers,
        spared,
        in_part,
    })
}

/// What a damaged broker tries next that is not refilled, or not who it was.
fn otherwise(marked: refill::Marked<'_>) -> refill::Marked<'_> {
    match marked {
        refill::Marked::Anew(mark) if mark.withheld().is_some() => {
            let groups: Vec<_> = mark.withheld().into_iter().flatten().copied().collect();
            tracing::warn!(
                "this broker is not refilled now: it serves the groups in which nothing was found, and withholds {}, which it asks to have refilled",
                crate::metadata::groups_named(&groups)
            );
            refill::Marked::InPart(mark)
        }
        refill::Marked::InPart(mark) => refill::Marked::Anew(mark),
        other => other,
    }
}

fn lock_directory(world: &World, dir: &std::path::Path) -> Result<Box<dyn DirLock>, StartError> {
    let failed = |error| StartError::DataDirectory {
        dir: dir.to_owned(),
        error,
    };
    world.disk.create_dir_all(dir).map_err(failed)?;
    world
        .disk
        .lock_dir(dir)
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::WouldBlock => StartError::DirectoryInUse {
                dir: dir.to_owned(),
            },
            _ => failed(error),
        })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
