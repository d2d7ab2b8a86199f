//! An operator who takes brokers in that lost their disks, and sees to it that nothing is left to repair in the end.
//!
//! Owns: whom he takes in, what a cluster in order looks like.
//! Not here: losing disks (`breaking`).
//! Spec: docs/simulation.md (workloads), docs/protocols/membership.md

use std::time::Duration;

use anyhow::{Result, bail};
use rand::rngs::StdRng;

use super::Place;

const LOOK: Duration = Duration::from_secs(3);
const WITHIN: Duration = Duration::from_secs(20);
/// Copies of a group in a cluster that has so many brokers.
const COPIES: usize = 3;

pub(super) async fn run(place: Place) -> Result<()> {
    let mut dice = place.dice();
    loop {
        let healed = place.is_healed();
        match look(&place, &mut dice).await {
            Ok(()) if healed => return Ok(()),
            Ok(()) => {}
            Err(error) => tracing::info!("not in order yet: {error:#}"),
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Takes in who waits. `Ok` when nobody does, everybody lives, and every group has its copies and a leader.
async fn look(place: &Place, dice: &mut StdRng) -> Result<()> {
    let members = place.admin(dice, WITHIN)?.members().await?;
    if let Some(waiting) = members.waiting.first() {
        if !waiting.damaged {
            tracing::info!("takes in broker {}", waiting.id);
            let admin = place.admin(dice, WITHIN)?;
            admin.add_broker(waiting.id, false).await?;
        }
        bail!("broker {} waits", waiting.id);
    }
    for broker in &members.brokers {
        if !(broker.live && broker.registered) {
            bail!("broker {} does not live", broker.id);
        }
    }
    for group in &members.groups {
        let whole = group.replicas.len() >= COPIES.min(place.admins.len());
        if !whole || group.leader.is_none() || group.target.is_some() || group.lost.is_some() {
            bail!("group {} is not whole: {group:?}", group.group);
        }
    }
    Ok(())
}
