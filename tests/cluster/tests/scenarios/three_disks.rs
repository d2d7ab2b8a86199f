//! Three brokers, and what happens to the disk of one.

use anyhow::{Context, Result, bail, ensure};
use tidelog_cluster::{Dice, Failure, FramePlace, Load, LoadConfig, Rig, frames, rounds, run};

use crate::three::{BROKERS, EACH, loaded};

const FLIPS: u32 = 20;
/// Two kills each.
const INSTALLS: u32 = 10;
/// What a broker says of a frame or checkpoint that is not whole.
const DAMAGED: &str = "damaged";
/// What it, and the leader of the group, say of an end that is gone and had been acknowledged.
const LOST: &str = "has lost";
/// What it says when it has taken a snapshot of a peer.
const INSTALLED: &str = "a snapshot of a peer is installed";
/// Large records of one partition, so that a log file is full soon: only whole files are dropped.
const LARGE: LoadConfig = LoadConfig {
    producers: 2,
    readers: 1,
    partitions: 1,
    padding_max: 16 << 10,
    ..LoadConfig::SCENARIO
};
/// More of them than a log file takes, twice.
const RECORDS: usize = 2500;

/// Starts of one damaged broker that end by themselves at most: what no start looks at is found by a read.
const ENDS_MAX: u32 = 3;

/// Waits until a broker that was started serves, as a supervisor does: it is started again when it ends.
async fn supervised(rig: &mut Rig, id: i32) -> Result<()> {
    for _ in 0..=ENDS_MAX {
        if rig.ready_or_ended(id).await? {
            return Ok(());
        }
        let broker = rig.broker(id)?;
        let said = broker.says(DAMAGED)? + broker.says(LOST)?;
        ensure!(said > 0, "broker {id} does not say why it ended");
        rig.start(id)?;
    }
    bail!("broker {id} ended again and again");
}

// Proves: a flipped bit in a frame of any kind on one broker is never served: it finds it, when it starts or when it reads it, sets its files aside and is refilled by
// the two others, which go on meanwhile, so that one of these can go; or it has cut off what nobody can tell from a torn write, and is refilled too if it had acknowledged that
// to a leader that still leads, or is sent it again; or nothing has looked at it yet.
#[test]
#[ignore = "needs the built program: `cargo xtask test`"]
fn flipped_bits() -> Result<(), Failure> {
    run("flipped-bits", BROKERS, FLIPS, async |rig: &mut Rig| {
        rig.excuse(DAMAGED);
        rig.excuse(LOST);
        // The other groups of a broker that ends for it.
        rig.excuse("placement group stopped");
        // Their reads, when the process ends for a group that cannot be opened.
        rig.excuse("was cancelled");
        // openraft's own line for a call that was on its way to such a group.
        rig.excuse("failed to receive from RaftCore");
        let mut dice = Dice::new()?;
        let mut load = loaded(rig).await?;
        let (mut refilled, rounds) = (0, rounds(FLIPS)?);
        for _ in 0..rounds {
            let victim = dice.one_of(&rig.ids()).context("a broker")?;
            rig.kill(victim)?;
            let frames: Vec<Vec<FramePlace>> =
                frames(&rig.broker(victim)?.data())?.into_values().collect();
            ensure!(!frames.is_empty(), "broker {victim} has written nothing");
            let of_kind = &frames[dice.below(frames.len())];
            // The end of a log as often as all the rest: it looks like a torn write.
            let newest = of_kind.len() - 1;
            let place = &of_kind[[newest, dice.below(of_kind.len())][dice.below(2)]];
            let (byte, bit) = (dice.below(place.bytes()), dice.below(8));
            rig.recorder()
                .note(format!("flip bit {bit} of byte {byte} of {place:?}"));
            let flip = place.flip(byte, u8::try_from(bit)?)?;
            rig.start(victim)?;
            supervised(rig, victim).await?;
            load.progress_everywhere(EACH).await?;
            // Somebody has read it meanwhile.
            supervised(rig, victim).await?;
            let aside = rig.broker(victim)?.set_aside()?;
            if aside.is_empty() {
                rig.kill(victim)?;
                flip.undo()?;
            } else {
                refilled += 1;
                rig.recorder().note(format!("broker {victim} is refilled"));
                // As an operator does who has looked at it.
                for path in aside {
                    std::fs::remove_dir_all(path)?;
                }
                let others: Vec<i32> = rig.ids().into_iter().filter(|id| *id != victim).collect();
                rig.kill(dice.one_of(&others).context("another one")?)?;
                load.progress_everywhere(EACH).await?;
            }
            rig.start_all().await?;
            load.progress_everywhere(EACH).await?;
        }
        rig.recorder().note(format!(
            "{refilled} of {rounds} times a broker was refilled"
        ));
        ensure!(refilled > 0 || rounds < FLIPS, "nobody was ever refilled");
        load.finish().await?;
        Ok(())
    })
}

// Proves: a broker that was away for so long that its peers have dropped what it lacks is sent snapshots; killed while it takes them it
// begins again, and serves in the end: with another one gone, it is needed.
#[test]
#[ignore = "needs the built program: `cargo xtask test`"]
fn kills_during_snapshots() -> Result<(), Failure> {
    run(
        "snapshot-kills",
        BROKERS,
        INSTALLS,
        async |rig: &mut Rig| {
            let mut dice = Dice::new()?;
            rig.start_all().await?;
            let mut load = Load::start(rig, LARGE).await?;
            load.progress(EACH).await?;
            let ids = rig.ids();
            let mut installed = 0;
            for _ in 0..rounds(INSTALLS)? {
                let at = dice.below(ids.len());
                let (away, other) = (ids[at], ids[(at + 1) % ids.len()]);
                let before = rig.broker(away)?.says(INSTALLED)?;
                rig.kill(away)?;
                load.progress(RECORDS).await?;
                for _ in 0..2 {
                    rig.start(away)?;
                    dice.moment(50..700).await;
                    rig.kill(away)?;
                }
                rig.start_all().await?;
                load.progress_everywhere(EACH).await?;
                rig.kill(other)?;
                load.progress_everywhere(EACH).await?;
                rig.start_all().await?;
                load.progress_everywhere(EACH).await?;
                installed += rig.broker(away)?.says(INSTALLED)? - before;
            }
            ensure!(installed > 0, "nobody was sent a snapshot");
            load.finish().await?;
            Ok(())
        },
    )
}
