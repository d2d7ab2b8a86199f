//! Producers and readers whose history is judged: the load of the cluster scenarios.
//!
//! Owns: when it begins, that its records can be read from the store alone in the end.
//! Not here: the producers and readers (`tidelog-cluster`), the rules (`tidelog-check`).
//! Spec: docs/simulation.md (workloads)

use std::time::Duration;

use anyhow::{Context, Result};
use tidelog_cluster::{Load, LoadConfig, LoadWorld};

use super::Place;

/// Pause before something is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// Shortest and longest wait of a reader's fetch, less than what a client waits for an answer.
const WAIT: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(3));
/// Acknowledged records of each partition after everything has healed.
const EACH: usize = 20;
/// Longer than all of it.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);
/// A flush that takes longer is asked for again.
const FLUSH: Duration = Duration::from_secs(60);

pub(super) async fn run(place: Place) -> Result<()> {
    let pause = Duration::from_millis(place.shape.pause);
    let config = LoadConfig {
        producers: 2,
        readers: 2,
        partitions: 4,
        padding_max: usize::try_from(place.shape.padding)?,
        burst: place.shape.burst,
        pause,
        patience: PATIENCE,
        wait: pause.clamp(WAIT.0, WAIT.1),
    };
    let world = LoadWorld {
        bootstrap: place.bootstrap.clone(),
        network: place.network.clone(),
        clock: place.clock.clone(),
        random: place.random.clone(),
        recorder: place.recorder.clone(),
    };
    let mut load = loop {
        match Load::start_in(world.clone(), config).await {
            Ok(load) => break load,
            // There is no cluster yet.
            Err(error) => tracing::info!("the load does not begin yet: {error:#}"),
        }
        tokio::time::sleep(AGAIN).await;
    };
    place.stages.healed.cancelled().await;
    load.progress_everywhere(EACH).await?;
    tracing::info!("every partition takes records again");
    load.finish().await?;
    tracing::info!("everything is written and read");
    place.stages.written.cancel();
    // Nothing is refused or lost any more: everything gets into the store, and is read from there.
    let mut dice = place.dice();
    while let Err(error) = place
        .admin(&mut dice, FLUSH)?
        .tier_flush(None, true, FLUSH)
        .await
    {
        tracing::info!("not everything is in the store yet: {error}");
        tokio::time::sleep(AGAIN).await;
    }
    tracing::info!("everything is in the store");
    load.read_again()
        .await
        .context("read from the store in the end")?;
    Ok(())
}
