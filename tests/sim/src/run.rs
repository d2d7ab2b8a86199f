//! One seed from its start to its end.
//!
//! Owns: the phases (things break, everything heals), what must hold in each step and at the end.
//! Not here: what clients do (`work`), the rules of histories (`tidelog-check`), the faults (`breaking`).
//! Spec: docs/simulation.md

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use tidelog_check::History;
use tidelog_cluster::Recorder;
use tidelog_env::{CrashPoint, SystemRandom};
use tidelog_world::hosts::{self, Ended, HostId};

use crate::breaking::Breaking;
use crate::brokers::{Brokers, address};
use crate::plan::Plan;
use crate::points;
use crate::trace::Trace;
use crate::work::{Place, Stages};

/// Once everything is healed, all must be live and read within this, and as many heartbeats.
const HEALED_WITHIN: Duration = Duration::from_secs(600);
const HEALED_HEARTBEATS: u64 = 100;
/// What a run tells.
pub(crate) struct Told {
    /// Simulated time.
    pub(crate) simulated: Duration,
    /// Fingerprint of the trace, and its lines.
    pub(crate) trace: (u64, u64),
    pub(crate) faults: BTreeMap<&'static str, u64>,
    /// Crash points that brokers passed.
    pub(crate) passed: BTreeMap<CrashPoint, u64>,
    /// Why it failed.
    pub(crate) failure: Option<String>,
}

/// Runs a plan.
pub(crate) fn run(plan: &Plan, trace: &Trace) -> Result<Told> {
    trace.add(&plan.to_string());
    if let Some(mutant) = plan.mutant {
        points::switch_on(mutant)?;
    }
    let mut world = Brokers::new(plan);
    let time = world.hosts.world_time();
    let recorder = Recorder::timed(move || hosts::running().map_or(time.now(), |(_, now)| now));
    let result = phases(plan, &mut world, &recorder);
    recorder.history(|history| {
        for (at, event) in history.events() {
            trace.hash(&format!("{} {event}", at.as_nanos()));
        }
    });
    trace.hash(&format!("network {:016x}", world.net.trace()));
    let failure = result.err().map(|error| {
        let mut text = format!("{error:#}");
        for machine in &world.machines {
            for why in &machine.ended {
                let _ = write!(text, "\nbroker {} ended by itself: {why}", machine.id);
            }
        }
        text
    });
    Ok(Told {
        simulated: world.hosts.now(),
        trace: trace.fingerprint(),
        faults: world.faults.counts(),
        passed: world.points.passed(),
        failure,
    })
}

fn phases(plan: &Plan, world: &mut Brokers, recorder: &Recorder) -> Result<()> {
    let mut breaking = Breaking::new(plan);
    for place in 0..plan.brokers {
        world.start(place)?;
    }
    let stages = Stages::default();
    let clients = clients(plan, world, recorder, &stages)?;
    while world.hosts.now() < plan.breaking {
        breaking.step(world)?;
        step(world, &breaking, &clients)?;
    }
    breaking.heal(world)?;
    stages.healed.cancel();
    let within = HEALED_WITHIN + Duration::from_millis(HEALED_HEARTBEATS * plan.shape.heartbeat);
    let deadline = world.hosts.now() + within;
    loop {
        let busy: Vec<&str> = clients
            .iter()
            .filter(|client| world.hosts.is_alive(**client))
            .map(|client| world.hosts.name(*client))
            .collect();
        if busy.is_empty() {
            break;
        }
        ensure!(
            world.hosts.now() < deadline,
            "not everything is live {} s after everything has healed: {busy:?}",
            within.as_secs()
        );
        step(world, &breaking, &clients)?;
    }
    ensure!(world.all_run(), "not every broker runs at the end");
    let mut overwritten = world.store.overwritten();
    // A probe tries whether the store takes a condition seriously.
    overwritten.retain(|object| !object.key.contains("/probe/"));
    ensure!(
        overwritten.is_empty(),
        "objects got another content (I9): {overwritten:?}"
    );
    recorder.history(judge)
}

fn judge(history: &History) -> Result<()> {
    let summary = tidelog_check::check(history)?;
    tracing::info!("the history is in order: {summary:?}");
    Ok(())
}

/// One step of everything, and what must hold always.
fn step(world: &mut Brokers, breaking: &Breaking, clients: &[HostId]) -> Result<()> {
    let before: Vec<usize> = ends(world);
    world.step()?;
    let now = world.hosts.now();
    for (place, (machine, before)) in world.machines.iter().zip(before).enumerate() {
        for why in machine.ended.iter().skip(before) {
            if !breaking.is_excused(place, now, why) {
                bail!("a broker ended by itself, for no fault of its disk: {why}");
            }
        }
    }
    // One that finds damage at its start does not end: it is refilled, and nobody would know.
    for name in world.points.marked() {
        let place = world.machines.iter().position(|at| at.name() == *name);
        ensure!(
            place.is_some_and(|place| breaking.has_lied(place)),
            "{name} takes its disk for damaged, which has never lied"
        );
    }
    for client in clients {
        if let Some(Ended::Returned(Err(why)) | Ended::Panicked(why)) = world.hosts.ended(*client) {
            bail!("client {why}");
        }
    }
    ensure!(hosts::panics() == 0, "panics: {:?}", hosts::panic_texts());
    Ok(())
}

fn ends(world: &Brokers) -> Vec<usize> {
    let ends = world.machines.iter().map(|machine| machine.ended.len());
    ends.collect()
}

/// A host for each workload. Each ends when what it works on is live again after everything has healed.
fn clients(
    plan: &Plan,
    world: &mut Brokers,
    recorder: &Recorder,
    stages: &Stages,
) -> Result<Vec<HostId>> {
    let mut clients = Vec::new();
    for (number, work) in plan.works.iter().copied().enumerate() {
        let host = world.hosts.add(work.name());
        let seed = world.draw();
        let network = world
            .net
            .host(address(plan.brokers + number), world.hosts.time(host));
        let place = Place {
            bootstrap: world.bootstrap(),
            admins: world.admins(),
            network,
            clock: world.hosts.clock(host),
            random: SystemRandom::seeded(world.draw()),
            recorder: recorder.clone(),
            seed,
            shape: plan.shape,
            stages: stages.clone(),
        };
        world.hosts.start(host, move |_| async move {
            work.start(place)
                .await
                .map_err(|error| format!("{work}: {error:#}"))
        })?;
        clients.push(host);
    }
    Ok(clients)
}
