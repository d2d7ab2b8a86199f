//! Three brokers.

use anyhow::{Context, Result};
use tidelog_cluster::{Dice, Failure, Load, LoadConfig, Rig, rounds, run};

pub(crate) const BROKERS: i32 = 3;
/// Faults of one scenario in the ordinary run.
const ROUNDS: u32 = 20;
/// A roll is three restarts.
const ROLLS: u32 = 7;
/// Acknowledged records before the first fault.
const RECORDS: usize = 300;
/// Acknowledged records of each partition between two faults.
pub(crate) const EACH: usize = 50;

/// All brokers, under load.
pub(crate) async fn loaded(rig: &mut Rig) -> Result<Load> {
    rig.start_all().await?;
    let mut load = Load::start(rig, LoadConfig::default()).await?;
    load.progress(RECORDS).await?;
    Ok(load)
}

/// The leader of one of the groups.
pub(crate) async fn leader(rig: &Rig, dice: &mut Dice) -> Result<i32> {
    let leaders: Vec<i32> = rig.leaders().await?.into_values().collect();
    dice.one_of(&leaders).context("no group has a leader")
}

/// A scenario: the fault again and again under load, with the number of the round, and at the end the judgement.
fn under_load(
    name: &str,
    usual: u32,
    fault: impl AsyncFn(&mut Rig, &mut Load, &mut Dice, u32) -> Result<()>,
) -> Result<(), Failure> {
    run(name, BROKERS, usual, async |rig: &mut Rig| {
        let mut dice = Dice::new()?;
        let mut load = loaded(rig).await?;
        for round in 0..rounds(usual)? {
            fault(rig, &mut load, &mut dice, round).await?;
        }
        load.finish().await?;
        Ok(())
    })
}

// Proves: kill -9 of a leader under load: the two others go on, nothing is lost, repeated or reordered, no client gives anything
// up, and the killed one comes back.
#[test]
#[ignore = "needs the built program: `cargo xtask test`"]
fn leader_kills() -> Result<(), Failure> {
    under_load("leader-kills", ROUNDS, async |rig, load, dice, round| {
        let leader = leader(rig, dice).await?;
        dice.moment(0..200).await;
        rig.kill(leader)?;
        if round % 2 == 0 {
            // Long enough for others to lead. Else it may come back before anybody missed it.
            load.progress_everywhere(EACH).await?;
        }
        dice.moment(0..1000).await;
        rig.start_all().await?;
        load.progress_everywhere(EACH).await?;
        Ok(())
    })
}

// Proves: a paused leader is replaced; resumed, it acknowledges and serves nothing that the new one does not know.
#[test]
#[ignore = "needs the built program: `cargo xtask test`"]
fn leader_pauses() -> Result<(), Failure> {
    under_load("leader-pauses", ROUNDS, async |rig, load, dice, _| {
        let leader = leader(rig, dice).await?;
        rig.pause(leader)?;
        load.progress_everywhere(EACH).await?;
        dice.moment(0..1000).await;
        rig.resume(leader)?;
        load.progress_everywhere(EACH).await?;
        Ok(())
    })
}

// Proves: all three killed at once come back with everything that was acknowledged.
#[test]
#[ignore = "needs the built program: `cargo xtask test`"]
fn all_killed() -> Result<(), Failure> {
    under_load("all-killed", ROUNDS, async |rig, load, dice, _| {
        dice.moment(0..300).await;
        for id in rig.ids() {
            rig.kill(id)?;
        }
        rig.start_all().await?;
        load.progress_everywhere(EACH).await?;
        Ok(())
    })
}

// Proves: a leader that its peers cannot reach, though clients can, acknowledges nothing and is replaced; healed, it follows. The
// same where it hears its peers and they do not hear it, and where they hear it and it does not hear them.
#[test]
#[ignore = "needs the built program: `cargo xtask test`"]
fn leader_cut_off() -> Result<(), Failure> {
    under_load("leader-cut-off", ROUNDS, async |rig, load, dice, round| {
        let leader = leader(rig, dice).await?;
        let (heard, hears) = [(false, false), (false, true), (true, false)][round as usize % 3];
        for other in rig.ids().into_iter().filter(|id| *id != leader) {
            if !heard {
                rig.cut_one_way(leader, other)?;
            }
            if !hears {
                rig.cut_one_way(other, leader)?;
            }
        }
        load.progress_everywhere(EACH).await?;
        dice.moment(0..1000).await;
        rig.heal();
        load.progress_everywhere(EACH).await?;
        Ok(())
    })
}

// Proves: two brokers that do not reach each other, or one of them not the other, stop nothing: the third is with both.
#[test]
#[ignore = "needs the built program: `cargo xtask test`"]
fn pair_cut_off() -> Result<(), Failure> {
    under_load("pair-cut-off", ROUNDS, async |rig, load, dice, round| {
        let ids = rig.ids();
        let a = dice.below(ids.len());
        let b = (a + 1 + dice.below(ids.len() - 1)) % ids.len();
        if round % 2 == 0 {
            rig.cut(ids[a], ids[b])?;
        } else {
            rig.cut_one_way(ids[a], ids[b])?;
        }
        dice.moment(0..3000).await;
        load.progress_everywhere(EACH).await?;
        rig.heal();
        load.progress_everywhere(EACH).await?;
        Ok(())
    })
}

// Proves: after each kill -9 or pause of a leader all partitions take records again, without an error at a client; the measure of failover
// (`cargo xtask failover`).
#[test]
#[ignore = "needs the built program: `cargo xtask test`"]
fn failover() -> Result<(), Failure> {
    under_load("failover", ROUNDS, async |rig, load, dice, round| {
        let leader = leader(rig, dice).await?;
        dice.moment(0..500).await;
        if round % 2 == 0 {
            rig.kill(leader)?;
            load.progress_everywhere(EACH).await?;
            rig.start_all().await?;
        } else {
            rig.pause(leader)?;
            load.progress_everywhere(EACH).await?;
            rig.resume(leader)?;
        }
        load.progress_everywhere(EACH).await?;
        Ok(())
    })
}

// Proves: a rolling restart under load: no client gives anything up, nothing is lost.
#[test]
#[ignore = "needs the built program: `cargo xtask test`"]
fn rolling_restart() -> Result<(), Failure> {
    under_load("rolling-restart", ROLLS, async |rig, load, _dice, _| {
        for id in rig.ids() {
            rig.stop(id).await?;
            rig.start_all().await?;
            load.progress_everywhere(EACH).await?;
        }
        Ok(())
    })
}

// Proves: what a broker did though its answer was lost is not done again when the client asks again: neither by the same broker, nor,
// where it died meanwhile, by the one that leads next.
#[test]
#[ignore = "needs the built program: `cargo xtask test`"]
fn lost_answers() -> Result<(), Failure> {
    under_load("lost-answers", ROUNDS, async |rig, load, dice, round| {
        let leader = leader(rig, dice).await?;
        rig.lose_answers(leader)?;
        dice.moment(0..500).await;
        let dies = round % 4 == 3;
        if dies {
            rig.kill(leader)?;
        }
        rig.break_connections(leader)?;
        load.progress_everywhere(EACH).await?;
        if dies {
            rig.start_all().await?;
        }
        Ok(())
    })
}
