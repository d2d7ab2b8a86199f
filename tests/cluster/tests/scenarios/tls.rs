//! TLS between brokers.

use anyhow::Result;
use std::time::Duration;
use tidelog_cluster::{Authority, Dice, Failure, Rig, Waiting, rounds, run, until};

use crate::three::{BROKERS, EACH, leader, loaded};

/// Faults and new certificates of one scenario in the ordinary run.
const TIMES: u32 = 1;
/// Files are looked at every 10 s, on a busy machine.
const TAKEN: Duration = Duration::from_secs(60);

/// Waits until the log of a broker has such lines so often.
async fn says(rig: &Rig, id: i32, words: &str, times: usize) -> Result<()> {
    let what = format!("broker {id} to say \"{words}\" {times} times");
    until(&what, TAKEN, async || {
        let said = rig.broker(id)?.says(words)?;
        Ok(if said >= times {
            Waiting::Done(())
        } else {
            Waiting::NotYet(format!("{said} times"))
        })
    })
    .await
}

// Proves: brokers that speak TLS alone form a cluster; under load a leader is killed, certificates are replaced without a restart, and a leader is
// paused for so long that connections are made anew with them; a broker with a certificate of another CA harms nobody, and is back once it has the right one.
#[test]
#[ignore = "needs the built program: `cargo xtask test`"]
fn over_tls() -> Result<(), Failure> {
    run("over-tls", BROKERS, TIMES, async |rig: &mut Rig| {
        let (ours, other) = (Authority::new()?, Authority::new()?);
        for id in rig.ids() {
            rig.secure(id, &ours, "require")?;
        }
        let mut dice = Dice::new()?;
        let mut load = loaded(rig).await?;
        for round in 1..=rounds(TIMES)? {
            let killed = leader(rig, &mut dice).await?;
            rig.kill(killed)?;
            load.progress_everywhere(EACH).await?;
            rig.start_all().await?;
            load.progress_everywhere(EACH).await?;
            for id in rig.ids() {
                rig.certify(id, &ours)?;
            }
            for id in rig.ids() {
                let times = usize::try_from(round)?;
                says(rig, id, "from now on use the new certificate", times).await?;
            }
            let paused = leader(rig, &mut dice).await?;
            rig.pause(paused)?;
            load.progress_everywhere(EACH).await?;
            // Longer than a silent connection is kept.
            dice.moment(5000..6000).await;
            rig.resume(paused)?;
            load.progress_everywhere(EACH).await?;
        }
        let stranger = leader(rig, &mut dice).await?;
        rig.stop(stranger).await?;
        rig.certify(stranger, &other)?;
        rig.start(stranger)?;
        says(
            rig,
            stranger,
            "is not signed by a CA of peer.tls-ca-file",
            1,
        )
        .await?;
        load.progress_everywhere(EACH).await?;
        rig.certify(stranger, &ours)?;
        rig.ready(stranger).await?;
        load.progress_everywhere(EACH).await?;
        load.finish().await?;
        Ok(())
    })
}

// Proves: a cluster of plain brokers comes to TLS alone by restarts, one broker and one mode at a time, under load: no client gives anything up,
// nothing is lost.
#[test]
#[ignore = "needs the built program: `cargo xtask test`"]
fn rolling_to_tls() -> Result<(), Failure> {
    run("rolling-to-tls", BROKERS, 1, async |rig: &mut Rig| {
        let ours = Authority::new()?;
        let mut load = loaded(rig).await?;
        for mode in ["allow", "prefer", "require"] {
            for id in rig.ids() {
                rig.stop(id).await?;
                rig.secure(id, &ours, mode)?;
                rig.start_all().await?;
                load.progress_everywhere(EACH).await?;
            }
        }
        load.finish().await?;
        for id in rig.ids() {
            let broker = rig.broker(id)?;
            for plain in ["is refused", "is closed", "is not reached: its"] {
                // While the cluster forms, one may dial another that has not joined yet.
                let said = broker.says_without(plain, "is in no cluster yet")?;
                anyhow::ensure!(said == 0, "broker {id} says \"{plain}\"");
            }
        }
        Ok(())
    })
}
