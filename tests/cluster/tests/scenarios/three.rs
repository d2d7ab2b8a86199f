//! Three brokers.

use anyhow::{Context, Result};
use tidelog_cluster::{Dice, Failure, Load, LoadConfig, Rig, rounds, run};

const BROKERS: i32 = 3;
/// Faults of one scenario in the ordinary run.
const KILLS: u32 = 5;
const PAUSES: u32 = 3;
const BLACKOUTS: u32 = 3;
const CUTS: u32 = 3;
/// Acknowledged records before the first fault.
const RECORDS: usize = 300;
/// Acknowledged records of each partition between two faults.
const EACH: usize = 50;

/// All brokers, under load.
async fn loaded(rig: &mut Rig) -> Result<Load> {
    rig.start_all().await?;
    let mut load = Load::start(rig, LoadConfig::default()).await?;
    load.progress(RECORDS).await?;
    Ok(load)
}

/// The leader of one of the groups.
async fn leader(rig: &Rig, dice: &mut Dice) -> Result<i32> {
    let leaders: Vec<i32> = rig.leaders().await?.into_values().collect();
    dice.one_of(&leaders).context("no group has a leader")
}

// Proves: kill -9 of a leader under load: the two others go on, nothing is lost, repeated or reordered, no client gives anything
// up, and the killed one comes back.
#[test]
#[ignore = "needs the built program: `cargo xtask test`"]
fn leader_kills() -> Result<(), Failure> {
    run("leader-kills", BROKERS, async |rig: &mut Rig| {
        let mut dice = Dice::new()?;
        let mut load = loaded(rig).await?;
        for round in 0..rounds(KILLS)? {
            let leader = leader(rig, &mut dice).await?;
            dice.moment(0..200).await;
            rig.kill(leader)?;
            if round % 2 == 0 {
                // Long enough for others to lead. Else it may come back before anybody missed it.
                load.progress_everywhere(EACH).await?;
            }
            dice.moment(0..1000).await;
            rig.start_all().await?;
            load.progress_everywhere(EACH).await?;
        }
        load.finish().await?;
        Ok(())
    })
}

// Proves: a paused leader is replaced; resumed, it acknowledges and serves nothing that the new one does not know.
#[test]
#[ignore = "needs the built program: `cargo xtask test`"]
fn leader_pauses() -> Result<(), Failure> {
    run("leader-pauses", BROKERS, async |rig: &mut Rig| {
        let mut dice = Dice::new()?;
        let mut load = loaded(rig).await?;
        for _ in 0..rounds(PAUSES)? {
            let leader = leader(rig, &mut dice).await?;
            rig.pause(leader)?;
            load.progress_everywhere(EACH).await?;
            dice.moment(0..1000).await;
            rig.resume(leader)?;
            load.progress_everywhere(EACH).await?;
        }
        load.finish().await?;
        Ok(())
    })
}

// Proves: all three killed at once come back with everything that was acknowledged.
#[test]
#[ignore = "needs the built program: `cargo xtask test`"]
fn all_killed() -> Result<(), Failure> {
    run("all-killed", BROKERS, async |rig: &mut Rig| {
        let mut dice = Dice::new()?;
        let mut load = loaded(rig).await?;
        for _ in 0..rounds(BLACKOUTS)? {
            dice.moment(0..300).await;
            for id in rig.ids() {
                rig.kill(id)?;
            }
            rig.start_all().await?;
            load.progress_everywhere(EACH).await?;
        }
        load.finish().await?;
        Ok(())
    })
}

// Proves: a leader that its peers cannot reach, though clients can, acknowledges nothing and is replaced; healed, it follows. The
// same where it hears its peers and they do not hear it.
#[test]
#[ignore = "needs the built program: `cargo xtask test`"]
fn leader_cut_off() -> Result<(), Failure> {
    run("leader-cut-off", BROKERS, async |rig: &mut Rig| {
        let mut dice = Dice::new()?;
        let mut load = loaded(rig).await?;
        for round in 0..rounds(CUTS)? {
            let leader = leader(rig, &mut dice).await?;
            let deaf = round % 2 == 0;
            for other in rig.ids().into_iter().filter(|id| *id != leader) {
                rig.cut_one_way(leader, other)?;
                if deaf {
                    rig.cut_one_way(other, leader)?;
                }
            }
            load.progress_everywhere(EACH).await?;
            dice.moment(0..1000).await;
            rig.heal();
            load.progress_everywhere(EACH).await?;
        }
        load.finish().await?;
        Ok(())
    })
}

// Proves: a rolling restart under load: no client gives anything up, nothing is lost.
#[test]
#[ignore = "needs the built program: `cargo xtask test`"]
fn rolling_restart() -> Result<(), Failure> {
    run("rolling-restart", BROKERS, async |rig: &mut Rig| {
        let mut load = loaded(rig).await?;
        for id in rig.ids() {
            rig.stop(id).await?;
            rig.start_all().await?;
            load.progress_everywhere(EACH).await?;
        }
        load.finish().await?;
        Ok(())
    })
}
