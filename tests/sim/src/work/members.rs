//! An operator who moves leaders, and empties brokers of a cluster that has more than it needs.
//!
//! Owns: what is asked for, that everybody is kept in the end.
//! Not here: brokers that come and go for good.
//! Spec: docs/simulation.md (workloads), docs/protocols/membership.md

use std::time::Duration;

use anyhow::Result;
use rand::Rng;
use rand::rngs::StdRng;

use super::Place;

/// Shortest and longest pause, ms.
const PAUSE: (u64, u64) = (2_000, 40_000);
const WITHIN: Duration = Duration::from_secs(10);
/// Copies of a group: with more brokers one can be emptied.
const COPIES: usize = 3;

pub(super) async fn run(place: Place) -> Result<()> {
    let mut dice = place.dice();
    while !place.is_healed() {
        let pause = Duration::from_millis(dice.random_range(PAUSE.0..PAUSE.1));
        place.pause(pause).await;
        if let Err(error) = change(&place, &mut dice).await {
            tracing::info!("no change: {error:#}");
        }
    }
    while let Err(error) = keep_all(&place, &mut dice).await {
        tracing::info!("not everybody is kept yet: {error:#}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}

/// One change, of any kind.
async fn change(place: &Place, dice: &mut StdRng) -> Result<()> {
    let brokers = place.admins.len();
    let broker = i32::try_from(1 + dice.random_range(0..brokers))?;
    let admin = place.admin(dice, WITHIN)?;
    let kinds = if brokers > COPIES { 4 } else { 2 };
    match dice.random_range(0..kinds) {
        0 => {
            let groups = u32::try_from(place.shape.groups)?;
            let group = dice.random_range(0..=groups);
            tracing::info!("asks broker {broker} to lead group {group}");
            admin.transfer_leader(group, broker).await?;
        }
        1 => {
            tracing::info!("asks for balance");
            admin.balance_leaders().await?;
        }
        2 => {
            tracing::info!("asks to empty broker {broker}");
            admin.decommission(broker, false).await?;
        }
        _ => keep_all(place, dice).await?,
    }
    Ok(())
}

/// Whoever is being emptied is kept.
async fn keep_all(place: &Place, dice: &mut StdRng) -> Result<()> {
    let admin = place.admin(dice, WITHIN)?;
    for broker in admin.members().await?.brokers {
        if broker.draining {
            tracing::info!("keeps broker {}", broker.id);
            place
                .admin(dice, WITHIN)?
                .decommission(broker.id, true)
                .await?;
        }
    }
    Ok(())
}
