//! One seed from its start to its end.
//!
//! Owns: the phases (things break, everything heals), the load, what must hold at the end.
//! Not here: the rules of histories (`tidelog-check`), the faults (`breaking`).
//! Spec: docs/simulation.md

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use tidelog_check::History;
use tidelog_cluster::{Load, LoadConfig, LoadWorld, Recorder};
use tidelog_env::SystemRandom;
use tidelog_world::hosts::{self, Ended, HostId};
use tokio_util::sync::CancellationToken;

use crate::breaking::Breaking;
use crate::brokers::{Brokers, address};
use crate::plan::Plan;
use crate::trace::Trace;

/// Once everything is healed, all must be live and read within this.
const HEALED_WITHIN: Duration = Duration::from_secs(300);
/// Pause before the load tries to begin again.
const AGAIN: Duration = Duration::from_secs(1);
/// Acknowledged records of each partition after everything has healed.
const EACH: usize = 20;

const LOAD: LoadConfig = LoadConfig {
    producers: 2,
    readers: 2,
    partitions: 4,
    padding_max: 150,
    burst: 4,
    pause: Duration::from_millis(400),
    patience: Duration::from_secs(24 * 3600),
};

/// What a run tells.
pub(crate) struct Told {
    /// Simulated time.
    pub(crate) simulated: Duration,
    /// Fingerprint of the trace, and its lines.
    pub(crate) trace: (u64, u64),
    pub(crate) faults: BTreeMap<&'static str, u64>,
    /// Why it failed.
    pub(crate) failure: Option<String>,
}

/// Runs a plan.
pub(crate) fn run(plan: &Plan, trace: &Trace) -> Result<Told> {
    trace.add(&plan.to_string());
    let mut world = Brokers::new(plan.seed, plan.tick, plan.brokers);
    let time = world.hosts.world_time();
    let recorder = Recorder::timed(move || hosts::running().map_or(time.now(), |(_, now)| now));
    let result = phases(plan, &mut world, &recorder);
    recorder.history(|history| {
        for (at, event) in history.events() {
            trace.hash(&format!("{} {event}", at.as_nanos()));
        }
    });
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
        failure,
    })
}

fn phases(plan: &Plan, world: &mut Brokers, recorder: &Recorder) -> Result<()> {
    let mut breaking = Breaking::new(plan);
    for place in 0..plan.brokers {
        world.start(place)?;
    }
    let healed = CancellationToken::new();
    let client = client(plan, world, recorder, healed.clone())?;
    while world.hosts.now() < plan.breaking {
        breaking.step(world)?;
        step(world, &breaking, client)?;
    }
    breaking.heal(world)?;
    healed.cancel();
    let deadline = world.hosts.now() + HEALED_WITHIN;
    while world.hosts.is_alive(client) {
        ensure!(
            world.hosts.now() < deadline,
            "not everything is live {} s after everything has healed",
            HEALED_WITHIN.as_secs()
        );
        step(world, &breaking, client)?;
    }
    ensure!(world.all_run(), "not every broker runs at the end");
    let overwritten = world.store.overwritten();
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
fn step(world: &mut Brokers, breaking: &Breaking, client: HostId) -> Result<()> {
    let before: Vec<usize> = ends(world);
    world.step()?;
    let now = world.hosts.now();
    for (place, (machine, before)) in world.machines.iter().zip(before).enumerate() {
        if machine.ended.len() > before && !breaking.is_excused(place, now) {
            bail!("a broker ended by itself, though its disk was well");
        }
    }
    match world.hosts.ended(client) {
        Some(Ended::Returned(Err(why)) | Ended::Panicked(why)) => bail!("the client: {why}"),
        Some(Ended::Returned(Ok(()))) | None => {}
    }
    ensure!(hosts::panics() == 0, "panics: {:?}", hosts::panic_texts());
    Ok(())
}

fn ends(world: &Brokers) -> Vec<usize> {
    let ends = world.machines.iter().map(|machine| machine.ended.len());
    ends.collect()
}

/// The host of the load. It ends when everything is healed, live again, and read.
fn client(
    plan: &Plan,
    world: &mut Brokers,
    recorder: &Recorder,
    healed: CancellationToken,
) -> Result<HostId> {
    let host = world.hosts.add("client");
    let load = LoadWorld {
        bootstrap: world.bootstrap(),
        network: world
            .net
            .host(address(plan.brokers), world.hosts.time(host)),
        clock: world.hosts.clock(host),
        random: SystemRandom::seeded(world.draw()),
        recorder: recorder.clone(),
    };
    world.hosts.start(host, move |_| async move {
        work(load, healed)
            .await
            .map_err(|error| format!("{error:#}"))
    })?;
    Ok(host)
}

async fn work(world: LoadWorld, healed: CancellationToken) -> Result<()> {
    let mut load = loop {
        match Load::start_in(world.clone(), LOAD).await {
            Ok(load) => break load,
            // There is no cluster yet.
            Err(error) => tracing::info!("the load does not begin yet: {error:#}"),
        }
        tokio::time::sleep(AGAIN).await;
    };
    healed.cancelled().await;
    load.progress_everywhere(EACH).await?;
    load.finish().await?;
    Ok(())
}
