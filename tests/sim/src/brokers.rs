//! The brokers of a simulated cluster: whole nodes, each on a machine of the simulated world.
//!
//! Owns: their configuration, starting, stopping, killing, and starting again what ended by itself.
//! Not here: which of it happens when (`breaking`), the network and the store themselves (`tidelog-world`).
//! Spec: docs/simulation.md

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::{Context, Result};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tidelog::config::{Config, Sources};
use tidelog::node::{Node, World};
use tidelog_env::SystemRandom;
use tidelog_world::disk::SimDisk;
use tidelog_world::faults::Faults;
use tidelog_world::hosts::{Ended, HostContext, HostId, Hosts, WORLD_EPOCH_MS};
use tidelog_world::net::Net;
use tidelog_world::store::SimStore;
use tokio_util::sync::CancellationToken;

use crate::plan::{Plan, Shape};
use crate::points::Points;

const KAFKA: u16 = 9092;
const PEER: u16 = 9093;
const ADMIN: u16 = 9094;
/// `cluster.session-ms`, at least.
const SESSION_MS: u64 = 6000;
/// What a broker says that was emptied, and holds nothing that counts.
const DECOMMISSIONED: &str = "was decommissioned";
/// Who ended by itself is started again after this long, as by a service manager.
const AGAIN: Duration = Duration::from_secs(2);
/// The longest step is this part of a heartbeat: what is late by as much makes no election.
const CALM_STEP: u64 = 10;

/// Why a broker does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Down {
    /// Until the plan says otherwise.
    Planned,
    /// Until then.
    Until(Duration),
}

/// One broker's machine.
pub(crate) struct Machine {
    pub(crate) id: i32,
    pub(crate) host: HostId,
    pub(crate) disk: SimDisk,
    stop: CancellationToken,
    down: Option<Down>,
    /// How often it ended by itself, with the last reason.
    pub(crate) ended: Vec<String>,
}

impl Machine {
    /// What its host is called.
    pub(crate) fn name(&self) -> String {
        format!("broker-{}", self.id)
    }
}

/// All machines, and what they share.
pub(crate) struct Brokers {
    pub(crate) hosts: Hosts,
    pub(crate) net: Net,
    pub(crate) store: SimStore,
    pub(crate) faults: Faults,
    pub(crate) machines: Vec<Machine>,
    pub(crate) points: Points,
    shape: Shape,
    dice: StdRng,
    /// Of the next step.
    length: Duration,
}

/// The address of the machine in this place of the order in which the machines were made; clients come after the brokers.
pub(crate) fn address(place: usize) -> IpAddr {
    let last = u8::try_from(place + 1).unwrap_or(u8::MAX);
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
}

impl Brokers {
    /// Machines of which none runs yet.
    pub(crate) fn new(plan: &Plan) -> Self {
        let mut dice = StdRng::seed_from_u64(plan.seed);
        let faults = Faults::default();
        let mut hosts = Hosts::new(plan.tick, dice.random(), faults.clone());
        let time = hosts.world_time();
        let net = Net::new(dice.random(), time.clone(), faults.clone());
        let clock = move || WORLD_EPOCH_MS + i64::try_from(time.now().as_millis()).unwrap_or(0);
        let store = SimStore::new(dice.random(), &faults, clock);
        let mut machines = Vec::new();
        let points = Points::listen();
        for id in 1.. {
            if machines.len() == plan.brokers {
                break;
            }
            let name = format!("broker-{id}");
            let (host, disk) = (hosts.add(&name), SimDisk::new(dice.random(), &faults));
            points.know(&name, hosts.time(host), disk.clone());
            machines.push(Machine {
                id,
                host,
                disk,
                stop: CancellationToken::new(),
                down: Some(Down::Planned),
                ended: Vec::new(),
            });
        }
        Self {
            hosts,
            net,
            store,
            faults,
            machines,
            points,
            shape: plan.shape,
            dice,
            length: plan.tick,
        }
    }

    /// Where clients ask first.
    pub(crate) fn bootstrap(&self) -> String {
        let all = (0..self.machines.len()).map(|place| format!("{}:{KAFKA}", address(place)));
        all.collect::<Vec<_>>().join(",")
    }

    /// Base URLs of the admin listeners.
    pub(crate) fn admins(&self) -> Vec<String> {
        let all = 0..self.machines.len();
        all.map(|place| format!("http://{}:{ADMIN}", address(place)))
            .collect()
    }

    /// A number of the world's own randomness.
    pub(crate) fn draw(&mut self) -> u64 {
        self.dice.random()
    }

    fn config(&self, place: usize) -> Result<Config> {
        let seeds = (0..self.machines.len())
            .map(|place| format!("{}@{}:{PEER}", place + 1, address(place)))
            .collect::<Vec<_>>();
        let (id, at, shape) = (place + 1, address(place), self.shape);
        let mut set = vec![
            format!("node.id={id}"),
            format!("node.zone=zone-{id}"),
            "node.data-dir=/data".to_owned(),
            "store.url=s3://simulated".to_owned(),
            format!("kafka.listen={at}:{KAFKA}"),
            format!("admin.listen={at}:{ADMIN}"),
            "log.reserve-bytes=0".to_owned(),
            "archive.enable=false".to_owned(),
            format!("tier.cut-interval-ms={}", shape.cut_interval),
            format!("tier.local-bytes={}", shape.local_bytes),
            format!("raft.heartbeat-ms={}", shape.heartbeat),
            format!("raft.election-min-ms={}", 3 * shape.heartbeat),
            format!("raft.election-max-ms={}", 5 * shape.heartbeat),
            format!(
                "cluster.session-ms={}",
                SESSION_MS.max(10 * shape.heartbeat)
            ),
        ];
        if self.machines.len() > 1 {
            set.push(format!("peer.listen={at}:{PEER}"));
            set.push(format!("cluster.seeds={}", seeds.join(",")));
            set.push(format!("cluster.data-groups={}", shape.groups));
        }
        let sources = Sources {
            set,
            ..Sources::default()
        };
        let mut config = Config::load(&sources)?;
        // Less than a user may ask for: the largest entry of a load must fit a quarter of a file.
        config.log.file_bytes = shape.file_bytes;
        Ok(config)
    }

    /// Starts a broker that does not run.
    pub(crate) fn start(&mut self, place: usize) -> Result<()> {
        let config = self.config(place)?;
        let random = SystemRandom::seeded(self.draw());
        let machine = self.machines.get_mut(place).context("no such broker")?;
        if self.hosts.is_alive(machine.host) {
            if machine.stop.is_cancelled() {
                // It takes its time to stop: again in the next step.
                machine.down = Some(Down::Until(self.hosts.now()));
            }
            return Ok(());
        }
        if self.hosts.ended(machine.host).is_some() {
            machine.disk.kill();
            self.net.process_died(address(place));
        }
        machine.down = None;
        machine.stop = CancellationToken::new();
        let time = self.hosts.time(machine.host);
        let world = World {
            disk: machine.disk.open_life(),
            network: self.net.host(address(place), time),
            clock: self.hosts.clock(machine.host),
            random,
            store: Some(self.store.client(&machine.name())),
        };
        let stop = machine.stop.clone();
        self.hosts.start(machine.host, move |_: HostContext| {
            serve(config, world, stop)
        })?;
        Ok(())
    }

    /// Asks a broker to stop; it ends some steps later, and stays down.
    pub(crate) fn stop(&mut self, place: usize) {
        if let Some(machine) = self.machines.get_mut(place) {
            machine.stop.cancel();
            machine.down = Some(Down::Planned);
        }
    }

    /// The process dies, as by SIGKILL: the system closes its connections, and what it wrote stays written. It stays down.
    pub(crate) fn kill(&mut self, place: usize) {
        if let Some(machine) = self.machines.get_mut(place) {
            self.hosts.crash(machine.host);
            self.net.process_died(address(place));
            machine.disk.kill();
            machine.down = Some(Down::Planned);
        }
    }

    /// The machine loses power: its peers hear nothing, what was not synced is lost or torn. It stays down.
    pub(crate) fn power_cut(&mut self, place: usize) {
        let seed = self.draw();
        if let Some(machine) = self.machines.get_mut(place) {
            self.net.machine_died(address(place));
            self.hosts.crash(machine.host);
            machine.disk.power_cut(seed);
            machine.down = Some(Down::Planned);
        }
    }

    /// One step of the world; whoever ended by itself is noted, and started again after a while. While nothing happens on the network, steps become
    /// longer: a host that waits for its timers does so as well in one long step as in many.
    pub(crate) fn step(&mut self) -> Result<()> {
        let before = self.net.trace();
        self.hosts.step_of(self.length);
        let tick = self.hosts.tick();
        self.length = if self.net.trace() == before {
            let longest = Duration::from_millis(self.shape.heartbeat / CALM_STEP);
            (2 * self.length).min(longest).max(tick)
        } else {
            tick
        };
        self.bury()
    }

    /// Whoever ended by itself.
    fn bury(&mut self) -> Result<()> {
        let now = self.hosts.now();
        for place in 0..self.machines.len() {
            let Some(machine) = self.machines.get_mut(place) else {
                continue;
            };
            match machine.down {
                None if !self.hosts.is_alive(machine.host) => {
                    let why = match self.hosts.ended(machine.host) {
                        Some(Ended::Returned(Err(why)) | Ended::Panicked(why)) => why.clone(),
                        Some(Ended::Returned(Ok(()))) | None => "it ended".to_owned(),
                    };
                    tracing::info!("broker {} ended by itself: {why}", machine.id);
                    machine.disk.kill();
                    if why.contains(DECOMMISSIONED) {
                        // Its operator gives it an empty disk, as it says.
                        machine.disk.replace();
                    } else {
                        machine.ended.push(why);
                    }
                    machine.down = Some(Down::Until(now + AGAIN));
                    self.net.process_died(address(place));
                }
                Some(Down::Until(at)) if now >= at => self.start(place)?,
                Some(Down::Planned)
                    if !self.hosts.is_alive(machine.host)
                        && self.hosts.ended(machine.host).is_some() =>
                {
                    // A stop has ended: its sockets and locks go.
                    machine.disk.kill();
                    self.net.process_died(address(place));
                }
                Some(_) | None => {}
            }
        }
        Ok(())
    }

    /// Whether all of them run and none is paused.
    pub(crate) fn all_run(&self) -> bool {
        self.machines
            .iter()
            .all(|machine| self.hosts.is_alive(machine.host) && !self.hosts.is_paused(machine.host))
    }
}

/// A broker's process, as `tidelog broker` runs it.
async fn serve(config: Config, world: World, stop: CancellationToken) -> Result<(), String> {
    let started = tokio::select! {
        started = Node::start(config, world) => started,
        () = stop.cancelled() => return Ok(()),
    };
    let node = started.map_err(|error| error.to_string())?;
    tracing::info!("ready");
    let ended = tokio::select! {
        ended = node.ended() => Err(format!("{ended:?}")),
        () = stop.cancelled() => Ok(()),
    };
    node.stop().await;
    ended
}
