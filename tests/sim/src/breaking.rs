//! Carrying out a plan: beginning and ending its faults.
//!
//! Owns: which faults are on now, and what that means for machines, links, disks, and the store where several are on at once.
//! Not here: what a fault does in the world (`tidelog-world`), which are planned (`plan`).
//! Spec: docs/simulation.md

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tidelog_env::CrashPoint;
use tidelog_world::disk::DiskFaults;
use tidelog_world::net::LinkConfig;
use tidelog_world::store::{Outage, StoreFaults};

use crate::brokers::{Brokers, address};
use crate::plan::{Fault, Plan, Step};
use crate::work::Work;

/// After a fault of a disk a broker may end by itself for so long: what was wrong is found later.
const AFTERMATH: Duration = Duration::from_secs(60);
/// Between two brokers of which one is far away, over a bad line.
const SLOW_LINK: LinkConfig = LinkConfig {
    latency: Duration::from_millis(2),
    jitter: Duration::from_millis(300),
    bytes_per_second: Some(500_000),
    loss_ppm: 10_000,
    reset_ppm: 200,
};
/// Who died at a crash point is started again after this long.
const DEAD: Duration = Duration::from_secs(2);
/// Room of a full disk beyond what is on it.
const FULL: u64 = 64 << 10;
/// Where power goes again and again: how long it is gone, and how long it is there, ms.
const DARK: (u64, u64) = (20, 500);
const LIGHT: (u64, u64) = (20, 4000);
/// Where it goes while a broker recovers.
const RECOVERING: [CrashPoint; 6] = [
    CrashPoint::RecoveryCleared,
    CrashPoint::RecoverySettled,
    CrashPoint::RecoverySettled,
    CrashPoint::SpareZeroed,
    CrashPoint::LogWritten,
    CrashPoint::VoteQueued,
];
/// What a broker says when its disk lied to it.
const DAMAGE: [&str; 3] = [
    "is damaged at byte",
    "has lost what was acknowledged",
    "log files are missing",
];

/// What a broker may end by itself for.
#[derive(Clone, Copy, Default)]
struct Excuse {
    /// Until then, for what its disk failed to do.
    failed: Duration,
    /// For what its disk did wrong and called done.
    lied: bool,
}

/// The faults of a plan, over time.
pub(crate) struct Breaking {
    /// Not begun, the next one last.
    ahead: Vec<Step>,
    /// On now, with their ends.
    on: Vec<(Duration, Fault)>,
    /// Of each broker.
    excuses: Vec<Excuse>,
    /// When the power of each broker goes again, where it does so again and again.
    next_cut: Vec<Duration>,
    dice: StdRng,
    /// What a sync takes, usually.
    sync_max: Duration,
}

impl Breaking {
    pub(crate) fn new(plan: &Plan) -> Self {
        let mut ahead = plan.steps.clone();
        ahead.sort_by_key(|step| std::cmp::Reverse(step.at));
        Self {
            ahead,
            on: Vec::new(),
            excuses: vec![Excuse::default(); plan.brokers],
            next_cut: vec![Duration::ZERO; plan.brokers],
            dice: StdRng::seed_from_u64(plan.seed),
            sync_max: Duration::from_millis(plan.shape.sync_max),
        }
    }

    /// Begins and ends what is due.
    pub(crate) fn step(&mut self, world: &mut Brokers) -> Result<()> {
        let now = world.hosts.now();
        let mut changed = self.end(world, |end| end <= now);
        while let Some(step) = self.ahead.pop_if(|step| step.at <= now) {
            tracing::info!("fault: {} for {} ms", step.fault, step.lasts.as_millis());
            begin(step.fault, world);
            self.on.push((step.at + step.lasts, step.fault));
            changed = true;
        }
        changed |= self.bury(world, now);
        changed |= self.cut_power_again(world, now);
        self.excuse(now);
        if changed {
            self.settle(world)?;
        }
        Ok(())
    }

    /// Notes who may end by itself because of what is on now.
    fn excuse(&mut self, now: Duration) {
        for (_, fault) in &self.on {
            let (place, lied) = match fault {
                Fault::BadDisk(place) | Fault::FailSyncs(place) | Fault::FullDisk(place) => {
                    (*place, false)
                }
                Fault::Rot(place) | Fault::Misdirect(place) => (*place, true),
                _ => continue,
            };
            if let Some(excuse) = self.excuses.get_mut(place) {
                excuse.failed = now + AFTERMATH;
                excuse.lied |= lied;
            }
        }
    }

    /// Power goes where it does so again and again, at times at a point of the recovery; whether it did.
    fn cut_power_again(&mut self, world: &mut Brokers, now: Duration) -> bool {
        let mut cut = false;
        for place in 0..self.next_cut.len() {
            let due = self.next_cut.get_mut(place).filter(|next| **next <= now);
            let Some(next) = due else { continue };
            let flickers = |(_, fault): &(Duration, Fault)| *fault == Fault::PowerCuts(place);
            if !self.on.iter().any(flickers) {
                continue;
            }
            let mut time =
                |(least, most)| Duration::from_millis(self.dice.random_range(least..most));
            let (dark, light) = (time(DARK), time(LIGHT));
            *next = now + dark + light;
            world.power_cut(place);
            self.on.push((now + dark, Fault::Kill(place)));
            if self.dice.random_bool(0.5) {
                let point = RECOVERING[self.dice.random_range(0..RECOVERING.len())];
                let fault = Fault::PowerCutAt(place, point, self.dice.random_range(0..3));
                begin(fault, world);
                self.on.push((now + dark + light, fault));
            }
            cut = true;
        }
        cut
    }

    /// Ends the faults whose time `is_over`; whether there were any.
    fn end(&mut self, world: &mut Brokers, is_over: impl Fn(Duration) -> bool) -> bool {
        let (over, on) = self.on.iter().partition(|(end, _)| is_over(*end));
        self.on = on;
        let over: Vec<(Duration, Fault)> = over;
        for (_, fault) in &over {
            // Somebody sets the clock right again.
            if let Fault::ClockJump(place, seconds) = fault {
                jump(world, *place, -seconds);
            }
        }
        !over.is_empty()
    }

    /// Who died at a crash point stays down for a while, without power where that was meant.
    fn bury(&mut self, world: &mut Brokers, now: Duration) -> bool {
        let died = world.points.died();
        for name in &died {
            let place = world.machines.iter().position(|at| at.name() == **name);
            let Some(place) = place else { continue };
            let power =
                self.is_on(|fault| matches!(fault, Fault::PowerCutAt(at, _, _) if at == place));
            tracing::info!("{name} dies at a crash point (power: {power})");
            if power {
                world.power_cut(place);
            } else {
                world.kill(place);
            }
            self.on.push((now + DEAD, Fault::Kill(place)));
        }
        !died.is_empty()
    }

    /// Ends everything: from now on nothing breaks.
    pub(crate) fn heal(&mut self, world: &mut Brokers) -> Result<()> {
        tracing::info!("everything heals");
        self.bury(world, world.hosts.now());
        self.ahead.clear();
        self.end(world, |_| true);
        self.settle(world)
    }

    /// Whether the broker may end by itself now, for this reason. A disk that says what it failed to do is no reason for damage.
    pub(crate) fn is_excused(&self, place: usize, now: Duration, why: &str) -> bool {
        let Some(excuse) = self.excuses.get(place) else {
            return false;
        };
        let is_damage = DAMAGE.iter().any(|words| why.contains(words));
        // What is damaged is found whenever it is read.
        excuse.lied || (now <= excuse.failed && !is_damage)
    }

    /// Whether this broker's disk has done something wrong and called it done.
    pub(crate) fn has_lied(&self, place: usize) -> bool {
        self.excuses.get(place).is_some_and(|excuse| excuse.lied)
    }

    fn is_on(&self, wanted: impl Fn(Fault) -> bool) -> bool {
        self.on.iter().any(|(_, fault)| wanted(*fault))
    }

    /// Brings the world to what the faults that are on say together.
    fn settle(&self, world: &mut Brokers) -> Result<()> {
        for place in 0..world.machines.len() {
            self.settle_machine(place, world)?;
            for other in 0..world.machines.len() {
                if other != place {
                    self.settle_link(place, other, world);
                }
            }
        }
        world.store.set_outage(
            self.is_on(|fault| fault == Fault::StoreOutage)
                .then_some(Outage::Refused),
        );
        let bad = self.is_on(|fault| fault == Fault::BadStore);
        world.store.set_faults(if bad {
            bad_store()
        } else {
            StoreFaults::default()
        });
        Ok(())
    }

    fn settle_machine(&self, place: usize, world: &mut Brokers) -> Result<()> {
        let down = self.is_on(|fault| match fault {
            Fault::Kill(at) | Fault::PowerCut(at) | Fault::LoseDisk(at) | Fault::Stop(at) => {
                at == place
            }
            Fault::PowerCutAll => true,
            _ => false,
        });
        let paused = self.is_on(|fault| fault == Fault::Pause(place));
        let full = self.is_on(|fault| fault == Fault::FullDisk(place));
        let skew = self.on.iter().rev().find_map(|(_, fault)| match fault {
            Fault::Skew(at, ppm) if *at == place => Some(*ppm),
            _ => None,
        });
        let armed = |fault| matches!(fault, Fault::CrashAt(at, ..) | Fault::PowerCutAt(at, ..) if at == place);
        if let Some(machine) = world.machines.get(place) {
            if !self.is_on(armed) {
                world.points.disarm(&machine.name());
            }
            machine.disk.set_faults(self.disk(place));
            machine.disk.damage_only(is_groups);
            let used = machine.disk.used_bytes();
            machine
                .disk
                .set_capacity(if full { used + FULL } else { u64::MAX });
            let host = machine.host;
            if world.hosts.is_paused(host) && !paused {
                world.hosts.resume(host);
            }
            world.hosts.skew(host, skew.unwrap_or(0));
        }
        if !down {
            world.start(place)?;
        }
        Ok(())
    }

    /// What the disk of this broker does.
    fn disk(&self, place: usize) -> DiskFaults {
        let mut faults = DiskFaults {
            delay_max: self.sync_max,
            ..DiskFaults::default()
        };
        if self.is_on(|fault| fault == Fault::Misdirect(place)) {
            faults.misdirected = 0.01;
        }
        if self.is_on(|fault| fault == Fault::SlowDisk(place)) {
            faults.slow = 0.1;
            faults.delay_max = faults.delay_max.max(Duration::from_millis(50));
        }
        if self.is_on(|fault| fault == Fault::SlowDisks) {
            faults.slow = faults.slow.max(0.02);
            faults.delay_min = Duration::from_millis(10);
            faults.delay_max = faults.delay_max.max(Duration::from_millis(300));
        }
        if self.is_on(|fault| fault == Fault::BadDisk(place)) {
            faults.eio_read = 0.002;
            faults.eio_write = 0.002;
            faults.eio_sync = 0.002;
            faults.enospc = 0.002;
        }
        if self.is_on(|fault| fault == Fault::FailSyncs(place)) {
            faults.eio_sync = 0.02;
        }
        faults
    }

    /// From one broker to another.
    fn settle_link(&self, from: usize, to: usize, world: &mut Brokers) {
        let cut = self.is_on(|fault| match fault {
            Fault::CutOneWay(one, other) => (one, other) == (from, to),
            Fault::Cut(one, other) => (one, other) == (from, to) || (other, one) == (from, to),
            Fault::CutOff(one) => one == from || one == to,
            _ => false,
        });
        let slow = self.is_on(|fault| match fault {
            Fault::SlowLink(one, other) => (one, other) == (from, to) || (other, one) == (from, to),
            _ => false,
        });
        let (from, to) = (address(from), address(to));
        if cut {
            world.net.cut(from, to);
        } else {
            world.net.heal(from, to);
        }
        world
            .net
            .set_link(from, to, if slow { SLOW_LINK } else { LinkConfig::GOOD });
    }
}

/// Files of placement groups. Without its identity a broker asks for a human.
fn is_groups(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "groups")
}

fn bad_store() -> StoreFaults {
    StoreFaults {
        status_503: 0.03,
        status_500: 0.03,
        status_429: 0.02,
        status_408: 0.02,
        status_409: 0.02,
        error_body: 0.02,
        lost_reply: 0.03,
        black_hole: 0.01,
        slow: 0.03,
        trickle: 0.02,
        short_body: 0.02,
        wrong_bytes: 0.02,
        wrong_range: 0.02,
        stale_list: 0.1,
        late: 0.5,
        ..StoreFaults::default()
    }
}

fn jump(world: &mut Brokers, place: usize, seconds: i64) {
    if let Some(machine) = world.machines.get(place) {
        world.hosts.jump(machine.host, seconds.saturating_mul(1000));
    }
}

/// What happens at once.
fn begin(fault: Fault, world: &mut Brokers) {
    match fault {
        Fault::Kill(place) => world.kill(place),
        Fault::PowerCut(place) => world.power_cut(place),
        Fault::LoseDisk(place) => {
            world.power_cut(place);
            if let Some(machine) = world.machines.get(place) {
                machine.disk.replace();
            }
        }
        Fault::Rot(place) => {
            let seed = world.draw();
            if let Some(machine) = world.machines.get(place) {
                machine.disk.rot_one(seed, &is_groups);
            }
        }
        Fault::PowerCutAll => (0..world.machines.len()).for_each(|place| world.power_cut(place)),
        Fault::CrashAt(place, point, skip) | Fault::PowerCutAt(place, point, skip) => {
            if let Some(machine) = world.machines.get(place) {
                world.points.arm(&machine.name(), point, skip);
            }
        }
        Fault::Stop(place) => world.stop(place),
        Fault::Pause(place) => {
            if let Some(machine) = world.machines.get(place) {
                world.hosts.pause(machine.host);
            }
        }
        Fault::Reset(place) => {
            for other in 0..world.machines.len() + Work::ALL.len() {
                if other != place {
                    world.net.reset(address(place), address(other));
                }
            }
        }
        Fault::ClockJump(place, seconds) => jump(world, place, seconds),
        Fault::CutOneWay(..)
        | Fault::Cut(..)
        | Fault::CutOff(_)
        | Fault::SlowLink(..)
        | Fault::SlowDisk(_)
        | Fault::SlowDisks
        | Fault::BadDisk(_)
        | Fault::FailSyncs(_)
        | Fault::PowerCuts(_)
        | Fault::FullDisk(_)
        | Fault::Misdirect(_)
        | Fault::BadStore
        | Fault::StoreOutage
        | Fault::Skew(..) => {}
    }
}
