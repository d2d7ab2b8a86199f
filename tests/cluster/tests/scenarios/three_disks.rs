//! Three brokers, and what happens to the disk of one.

use anyhow::{Context, Result, ensure};
use tidelog_cluster::{Dice, Failure, FramePlace, Load, LoadConfig, Rig, frames, rounds, run};

use crate::three::{BROKERS, EACH, loaded};

const FLIPS: u32 = 20;
/// Two kills each.
const INSTALLS: u32 = 10;
/// What a broker says of a frame or checkpoint that is not whole.
const DAMAGED: &str = "damaged";
/// What it says when it has taken a snapshot of a peer.
const INSTALLED: &str = "a snapshot of a peer is installed";
/// Large records of one partition, so that a log file is full soon: only whole files are dropped.
const LARGE: LoadConfig = LoadConfig {
    producers: 2,
    readers: 1,
    partitions: 1,
    padding_max: 16 << 10,
};
/// More of them than a log file takes, twice.
const RECORDS: usize = 2500;

// Proves: a flipped bit in a frame of any kind on one broker is never served: it refuses to start and names the file, ends when it comes
// across it, or has cut off what nobody can tell from a torn write and is sent it again. The two others go on meanwhile.
#[test]
#[ignore = "needs the built program: `cargo xtask test`"]
fn flipped_bits() -> Result<(), Failure> {
    run("flipped-bits", BROKERS, FLIPS, async |rig: &mut Rig| {
        rig.excuse(DAMAGED);
        // The other groups of a broker that ends for it.
        rig.excuse("placement group stopped");
        // Their reads, when the process ends for a group that cannot be opened.
        rig.excuse("was cancelled");
        let mut dice = Dice::new()?;
        let mut load = loaded(rig).await?;
        let mut refused = 0;
        for _ in 0..rounds(FLIPS)? {
            let victim = dice.one_of(&rig.ids()).context("a broker")?;
            rig.kill(victim)?;
            let frames: Vec<Vec<FramePlace>> =
                frames(&rig.broker(victim)?.data())?.into_values().collect();
            ensure!(!frames.is_empty(), "broker {victim} has written nothing");
            let of_kind = &frames[dice.below(frames.len())];
            let place = &of_kind[dice.below(of_kind.len())];
            let (byte, bit) = (dice.below(place.bytes()), dice.below(8));
            rig.recorder()
                .note(format!("flip bit {bit} of byte {byte} of {place:?}"));
            let flip = place.flip(byte, u8::try_from(bit)?)?;
            rig.start(victim)?;
            if rig.ready_or_ended(victim).await? {
                load.progress_everywhere(EACH).await?;
            } else {
                refused += 1;
                let said = rig.broker(victim)?.says(DAMAGED)?;
                ensure!(said > 0, "broker {victim} does not say why it ended");
            }
            if !rig.has_ended(victim)? {
                rig.kill(victim)?;
            }
            flip.undo()?;
            rig.start_all().await?;
            load.progress_everywhere(EACH).await?;
        }
        rig.recorder()
            .note(format!("{refused} starts were refused"));
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
