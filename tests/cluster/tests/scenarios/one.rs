//! One broker.

use anyhow::{bail, ensure};
use tidelog_check::{Report, Rule};
use tidelog_cluster::{Dice, Failure, Load, LoadConfig, Rig, rounds, run};

const BROKER: i32 = 1;
/// Faults of one scenario in the ordinary run.
const KILLS: u32 = 20;
const PAUSES: u32 = 20;
const STOPS: u32 = 20;
/// Acknowledged records between two faults.
const RECORDS: usize = 300;

// Proves: kill -9 at random moments under load, also while it starts, loses, repeats and reorders nothing, and no client
// gives anything up. Terms rise. What was there is there after one more kill.
#[test]
#[ignore = "needs the built program: `cargo xtask test`"]
fn kills() -> Result<(), Failure> {
    run("kills", 1, KILLS, async |rig: &mut Rig| {
        let mut dice = Dice::new()?;
        rig.start_all().await?;
        let mut load = Load::start(rig, LoadConfig::default()).await?;
        let mut terms = rig.groups().await?;
        for round in 0..rounds(KILLS)? {
            load.progress(RECORDS).await?;
            dice.moment(0..400).await;
            rig.kill(BROKER)?;
            if round % 3 == 2 {
                rig.start(BROKER)?;
                dice.moment(0..400).await;
                rig.kill(BROKER)?;
            }
            rig.start_all().await?;
            let now = rig.groups().await?;
            for (group, view) in &now {
                let before = terms.get(group).map(|view| view.term);
                ensure!(
                    view.leader == Some(i64::from(BROKER)) && before < Some(view.term),
                    "group {group} after a restart: {view:?}, the term before was {before:?}"
                );
            }
            terms = now;
        }
        load.finish().await?;
        rig.kill(BROKER)?;
        rig.start_all().await?;
        load.read_again().await?;
        Ok(())
    })
}

// Proves: a paused process goes on where it was; clients wait and give nothing up.
#[test]
#[ignore = "needs the built program: `cargo xtask test`"]
fn pauses() -> Result<(), Failure> {
    run("pauses", 1, PAUSES, async |rig: &mut Rig| {
        let mut dice = Dice::new()?;
        rig.start_all().await?;
        let mut load = Load::start(rig, LoadConfig::default()).await?;
        for _ in 0..rounds(PAUSES)? {
            load.progress(RECORDS).await?;
            dice.moment(0..300).await;
            rig.pause(BROKER)?;
            dice.moment(100..2500).await;
            rig.resume(BROKER)?;
        }
        load.finish().await?;
        Ok(())
    })
}

// Proves: SIGTERM under load ends the process by itself, with exit code 0, and loses nothing.
#[test]
#[ignore = "needs the built program: `cargo xtask test`"]
fn stops() -> Result<(), Failure> {
    run("stops", 1, STOPS, async |rig: &mut Rig| {
        let mut dice = Dice::new()?;
        rig.start_all().await?;
        let mut load = Load::start(rig, LoadConfig::default()).await?;
        for _ in 0..rounds(STOPS)? {
            load.progress(RECORDS).await?;
            dice.moment(0..300).await;
            rig.stop(BROKER).await?;
            rig.start_all().await?;
        }
        load.finish().await?;
        Ok(())
    })
}

// Proves: the rig sees a loss where there is one: a broker that lost its disk has lost what it acknowledged.
#[test]
#[ignore = "needs the built program: `cargo xtask test`"]
fn a_loss_is_seen() -> Result<(), Failure> {
    run("loss", 1, 0, async |rig: &mut Rig| {
        rig.start_all().await?;
        let mut load = Load::start(rig, LoadConfig::default()).await?;
        load.progress(RECORDS).await?;
        load.finish().await?;
        rig.kill(BROKER)?;
        rig.wipe(BROKER)?;
        rig.start_all().await?;
        load.create_topic().await?;
        let Err(error) = load.read_again().await else {
            bail!("everything is gone, and nobody misses it");
        };
        let report = error.downcast::<Report>()?;
        ensure!(
            report.violations.iter().all(|v| v.rule == Rule::Lost),
            "it was only lost: {report}"
        );
        Ok(())
    })
}
