//! A mark that is not acted on: the broker started with what it has, since it shall not be refilled.
//!
//! Owns: when such a mark is forgotten (left there, it would refill a healthy broker at a later start); what is said where the broker was taken in anew all the same.
//! Not here: the mark (`mark.rs`), whether it is acted on (`node`).
//! Spec: docs/protocols/refill.md (the way out by hand)

use super::super::error::{Ended, StartError};
use super::mark::{self, Mark};
use crate::metadata::Refusal;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::Tasks;
use tidelog_env::disk::Disk;
use tidelog_model::NodeId;

/// How often the broker is looked at.
const TICK: Duration = Duration::from_secs(1);

/// What a broker says that is a member with another data directory, while this one is marked and not refilled. Most likely that member is whom it had asked to be.
pub(in crate::node) fn taken_in_anew(node: NodeId) -> String {
    format!(
        "broker {node} is a member with another data directory: this one was found damaged, and was taken in anew, or another one in its place. Start it without \
         `cluster.refill-damaged=false`: it goes on as the member that was taken in, and sets aside what it has, or says that another one has its place. Only if data were given up with it \
         (`--give-up-data`), and what was damaged is as it was: `tidelog cluster add {node}` takes this one in again, as it is"
    )
}

/// A broker that goes on with a marked directory.
pub(in crate::node) struct Spared {
    pub(in crate::node) disk: Arc<dyn Disk>,
    pub(in crate::node) dir: PathBuf,
    pub(in crate::node) node: NodeId,
}

impl Spared {
    /// It may have been forgotten meanwhile: then a start without the setting would not ask anew.
    fn is_marked(&self) -> bool {
        Mark::load(self.disk.as_ref(), &self.dir).is_ok_and(|mark| mark.is_some())
    }

    /// Why it did not start, in words that fit.
    pub(in crate::node) fn not_started(&self, error: StartError) -> StartError {
        let replaced = Refusal::OtherRaftNode(self.node).to_string();
        match error {
            StartError::Refused(why) if why == replaced && self.is_marked() => {
                StartError::Refused(taken_in_anew(self.node))
            }
            error => error,
        }
    }

    /// Why it ends, in words that fit.
    pub(in crate::node) fn ended(&self, ended: Ended) -> Ended {
        match ended {
            Ended::Replaced(_) if self.is_marked() => Ended::Replaced(taken_in_anew(self.node)),
            ended => ended,
        }
    }
}

/// Removes the mark in `dir`, durably, once `is_well` says that the broker is; until then it stays.
pub(in crate::node) fn forget_when_well(
    tasks: &Tasks,
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    is_well: impl Fn() -> bool + Send + 'static,
) {
    tasks.spawn("damage-mark", async move {
        loop {
            tokio::time::sleep(TICK).await;
            if !is_well() {
                continue;
            }
            let (disk, dir) = (Arc::clone(&disk), dir.clone());
            match tidelog_env::blocking(move || mark::remove(disk.as_ref(), &dir)).await {
                Ok(Ok(())) => {
                    tracing::warn!(
                        "this broker has started well with a data directory that was found damaged: that is forgotten"
                    );
                    return;
                }
                Ok(Err(error)) => tracing::error!("{error}"),
                Err(error) => tracing::error!("damaged.json could not be removed: {error}"),
            }
        }
    });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tidelog_env::MemoryDisk;
    use tidelog_model::RaftNodeId;

    /// Proves that a marked broker which was taken in anew is told to go on as that one, not to be taken in once more; and only where that is so.
    #[test]
    fn who_was_taken_in_anew_is_told_so() {
        let disk = MemoryDisk::new().shared();
        let (dir, node) = (Path::new("/data"), NodeId::new(3));
        disk.create_dir_all(dir).unwrap();
        let spared = Spared {
            disk: Arc::clone(&disk),
            dir: dir.to_owned(),
            node,
        };
        let refused = || StartError::Refused(Refusal::OtherRaftNode(node).to_string());
        let (ended, plain) = (Ended::Replaced("plain".to_owned()), refused().to_string());
        assert_eq!(spared.ended(ended.clone()), ended, "no mark any more");
        assert_eq!(spared.not_started(refused()).to_string(), plain);
        let mark = Mark::new(
            RaftNodeId::new(11),
            RaftNodeId::new(12),
            tidelog_model::PlacementGroupId::new(1),
            "a bit",
        );
        mark.store(disk.as_ref(), dir).unwrap();
        let text = taken_in_anew(node);
        assert_eq!(spared.ended(ended), Ended::Replaced(text.clone()));
        assert_eq!(spared.not_started(refused()).to_string(), text);
        let left = StartError::Refused(Refusal::Departed(node).to_string());
        assert!(
            spared
                .not_started(left)
                .to_string()
                .contains("decommissioned")
        );
        let at = |words: &str| {
            text.find(words)
                .unwrap_or_else(|| panic!("{words}: {text}"))
        };
        assert!(at("Start it without") < at("Only if data were given up"));
        assert!(at("Only if data were given up") < at("`tidelog cluster add 3`"));
    }

    /// Proves that the mark stays while the broker is not well, that it is gone for good when it is, and that nothing else is removed.
    #[tokio::test(start_paused = true)]
    async fn the_mark_goes_when_the_broker_is_well() {
        let memory = MemoryDisk::new();
        let disk = memory.shared();
        let dir = Path::new("/data");
        disk.create_dir_all(dir).unwrap();
        let mark = Mark::new(
            RaftNodeId::new(11),
            RaftNodeId::new(12),
            tidelog_model::PlacementGroupId::new(1),
            "a bit",
        );
        mark.store(disk.as_ref(), dir).unwrap();
        let (tasks, looks) = (Tasks::new(), Arc::new(AtomicUsize::new(0)));
        let seen = Arc::clone(&looks);
        let is_well = move || seen.fetch_add(1, Ordering::Relaxed) >= 3;
        forget_when_well(&tasks, Arc::clone(&disk), dir.to_owned(), is_well);
        let load = || Mark::load(disk.as_ref(), dir).unwrap();
        tokio::time::sleep(TICK * 3 + TICK / 2).await;
        assert_eq!(load(), Some(mark));
        tokio::time::sleep(TICK).await;
        assert_eq!(load(), None);
        let _ = memory.crash(1);
        assert_eq!(load(), None, "nor after a crash");
        tokio::time::sleep(TICK * 5).await;
        assert_eq!(looks.load(Ordering::Relaxed), 4, "it is over");
        tasks.stop().await;
    }
}
