//! Refill: what a broker does about damage on its disk, and what the others do for it.
//!
//! Owns: [`Damage`]: taking note of damage where it is found.
//! Not here: what is left to an operator (`advice.rs`), the mark (`mark.rs`), one that is not acted on (`spare.rs`), the leader's decision (`admit.rs`), the waiting (`formation`).
//! Spec: docs/protocols/refill.md

mod admit;
mod advice;
mod mark;
mod spare;

pub(super) use admit::admit_damaged;
pub(super) use mark::{Mark, resume};
pub(super) use spare::{Spared, forget_when_well, taken_in_anew};

use super::error::Ended;
use super::identity;
use crate::log::{BatchObservation, LogError, LogObserver};
use advice::Way;
use parking_lot::Mutex;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tidelog_env::disk::Disk;
use tidelog_env::{CrashPoint, Random, crash_point};
use tidelog_model::{NodeId, RaftNodeId};
use tokio::sync::watch;

/// What the mark in a data directory means for a start.
#[derive(Clone, Copy, Default)]
pub(super) struct Marked<'a> {
    /// It asks to be taken in anew.
    pub(super) anew: Option<&'a Mark>,
    /// There is one, and it is not acted on.
    pub(super) spared: bool,
}

/// Takes note of damage that the logs of this broker find, durably, and ends the broker: its next start begins anew. One for all groups.
pub(super) struct Damage {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) random: Arc<dyn Random>,
    pub(super) dir: PathBuf,
    pub(super) node: NodeId,
    pub(super) raft_node: RaftNodeId,
    /// There is no other broker.
    pub(super) alone: bool,
    /// False: damage is the caller's affair alone.
    pub(super) refills: bool,
    pub(super) fatal: watch::Sender<Option<Ended>>,
    /// Groups find it at the same time.
    pub(super) marking: Mutex<()>,
}

impl Damage {
    /// Step 1. Whether the mark is there.
    fn mark(&self, what: &str) -> io::Result<bool> {
        let _one = self.marking.lock();
        let known = Mark::load(self.disk.as_ref(), &self.dir).map_err(io::Error::other)?;
        if known.is_some_and(|mark| mark.raft_node == self.raft_node) {
            return Ok(true);
        }
        if !mark::has_room(self.disk.as_ref(), &self.dir)? {
            return Ok(false);
        }
        let next = identity::new_raft_node(self.random.as_ref());
        Mark::new(self.raft_node, next, what).store(self.disk.as_ref(), &self.dir)?;
        crash_point(CrashPoint::RefillMarked);
        Ok(true)
    }
}

impl Damage {
    /// What an operator can do about this error of a log. `None`: nothing, or the broker waits to be refilled, and says then what for.
    pub(super) fn what_to_do(&self, error: &LogError) -> Option<String> {
        let way = match (self.alone, self.refills) {
            (true, _) => Way::Alone,
            (false, false) => Way::Off,
            (false, true) => {
                let known = Mark::load(self.disk.as_ref(), &self.dir).ok().flatten();
                if known.is_some_and(|mark| mark.raft_node == self.raft_node) {
                    Way::Marked
                } else {
                    Way::Unmarked
                }
            }
        };
        advice::what_to_do(error, self.node, way)
    }
}

impl LogObserver for Damage {
    fn batch(&self, _batch: &BatchObservation) {}

    fn damaged(&self, error: &LogError) {
        // A damaged entry is refused to who reads it; a replica that has lost entries would go on without them, and vote.
        let ends = matches!(error, LogError::Lost { .. });
        let marked = if self.refills {
            self.mark(&error.to_string())
        } else {
            Ok(false)
        };
        let end = |why: String| self.fatal.send_replace(Some(Ended::Failed(why)));
        if matches!(marked, Ok(true)) {
            tracing::error!("{error}. This broker serves nothing more");
            end(format!(
                "{error}. Start it again with this data directory: it is refilled where the others have all that it had, and says what it waits for where they \
                 have not"
            ));
            return;
        }
        let mut why = error.to_string();
        if let Err(failed) = &marked {
            why += &format!(". It is not refilled: {}: {failed}", self.dir.display());
        }
        if let Some(advice) = self.what_to_do(error) {
            why += &format!(". {advice}");
        }
        if self.refills {
            tracing::error!("{why}");
        }
        if ends {
            end(why);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use tidelog_env::SystemRandom;
    use tidelog_env::disk::RealDisk;

    fn damage(dir: &std::path::Path, refills: bool) -> (Damage, watch::Receiver<Option<Ended>>) {
        let (fatal, ended) = watch::channel(None);
        let damage = Damage {
            disk: RealDisk::shared(),
            random: SystemRandom::seeded(1),
            dir: dir.to_owned(),
            node: NodeId::new(3),
            raft_node: RaftNodeId::new(11),
            alone: false,
            refills,
            fatal,
            marking: Mutex::default(),
        };
        (damage, ended)
    }

    fn found(position: u64) -> LogError {
        LogError::Damaged {
            path: "groups/1/1.log".into(),
            position,
            what: "a bit".to_owned(),
        }
    }

    /// Proves that the first damage makes the mark and ends the broker, that later damage keeps it, and that neither is so where it shall not be refilled,
    /// or was too often.
    #[test]
    fn damage_is_marked_once() {
        let dir = tempfile::tempdir().unwrap();
        let load = || Mark::load(RealDisk::shared().as_ref(), dir.path()).unwrap();
        let (off, ended) = damage(dir.path(), false);
        off.damaged(&found(1));
        assert!(load().is_none() && ended.borrow().is_none());

        let (on, ended) = damage(dir.path(), true);
        on.damaged(&found(2));
        let mark = load().unwrap();
        assert_eq!(mark.raft_node, RaftNodeId::new(11));
        assert!(mark.next != mark.raft_node && mark.what.contains("byte 2"));
        assert!(matches!(&*ended.borrow(), Some(Ended::Failed(_))));
        on.damaged(&found(3));
        assert_eq!(load().unwrap(), mark);

        std::fs::remove_file(dir.path().join("damaged.json")).unwrap();
        let lost = LogError::Lost {
            dir: "groups/1".into(),
            what: "the end".to_owned(),
        };
        let (off, ended) = damage(dir.path(), false);
        off.damaged(&lost);
        assert!(load().is_none(), "it is not refilled");
        let Some(Ended::Failed(why)) = ended.borrow().clone() else {
            panic!("it does not go on without what it had");
        };
        assert!(why.contains("the end"), "{why}");

        for id in 0..4 {
            std::fs::create_dir(dir.path().join(format!("set-aside-{id}"))).unwrap();
        }
        on.damaged(&found(4));
        assert!(load().is_none());
        let (on, ended) = damage(dir.path(), true);
        on.damaged(&found(5));
        assert!(ended.borrow().is_none());
        on.damaged(&lost);
        assert!(load().is_none() && ended.borrow().is_some());
    }
}
