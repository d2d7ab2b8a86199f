//! An operator who moves data to the store now and then, and off the local disks.
//!
//! Owns: how often.
//! Not here: that the records can be read from there (`load`).
//! Spec: docs/simulation.md (workloads)

use std::time::Duration;

use anyhow::Result;
use rand::Rng;

use super::Place;

/// Shortest and longest pause, ms.
const PAUSE: (u64, u64) = (5_000, 60_000);
/// He does not wait for longer.
const WITHIN: Duration = Duration::from_secs(30);

pub(super) async fn run(place: Place) -> Result<()> {
    let mut dice = place.dice();
    while !place.is_healed() {
        let pause = Duration::from_millis(dice.random_range(PAUSE.0..PAUSE.1));
        place.pause(pause).await;
        let trim_local = dice.random_bool(0.5);
        let admin = place.admin(&mut dice, WITHIN)?;
        match admin.tier_flush(None, trim_local, WITHIN).await {
            Ok(_) => tracing::info!("everything is in the store (trimmed: {trim_local})"),
            Err(error) => tracing::info!("no flush: {error}"),
        }
    }
    Ok(())
}
