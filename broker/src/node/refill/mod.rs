//! Refill: what a broker does about damage on its disk, and what the others do for it.
//!
//! Owns: [`Damage`]: taking note of damage where it is found; [`Marked`]: what a mark means for a start.
//! Not here: what is left to an operator (`advice.rs`), the mark (`mark.rs`), one that is not acted on (`spare.rs`), the leader's decision (`admit.rs`), the waiting (`formation`),
//! running without some groups (`part.rs`).
//! Spec: docs/protocols/refill.md

mod admit;
mod advice;
mod mark;
mod part;
mod spare;

pub(super) use admit::admit_damaged;
pub(super) use mark::{Mark, resume};
pub(super) use part::{InPart, not_started_in_part, replaced_in_part};
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
use tidelog_model::{NodeId, PlacementGroupId, RaftNodeId};
use tokio::sync::watch;

/// What the mark in a data directory means for a start.
#[derive(Clone, Copy, Default)]
pub(super) enum Marked<'a> {
    /// There is none.
    #[default]
    Not,
    /// It serves nothing and asks to be taken in anew.
    Anew(&'a Mark),
    /// It runs as the Raft node that it was, without the groups that are damaged, and asks meanwhile.
    InPart(&'a Mark),
    /// There is one, and it is not acted on.
    Spared,
}

impl<'a> Marked<'a> {
    /// The mark, where it is acted on.
    pub(super) const fn mark(self) -> Option<&'a Mark> {
        match self {
            Self::Anew(mark) | Self::InPart(mark) => Some(mark),
            Self::Not | Self::Spared => None,
        }
    }
}

/// Takes note of damage that the logs of this broker find, durably, and ends the broker: its next start asks to be taken in anew. One for all groups.
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
    /// Step 1. Whether the mark is there, and names `group`.
    fn mark(&self, group: PlacementGroupId, what: &str) -> io::Result<bool> {
        let _one = self.marking.lock();
        let known = Mark::load(self.disk.as_ref(), &self.dir).map_err(io::Error::other)?;
        let mark = match known.filter(|mark| mark.raft_node == self.raft_node) {
            Some(mark) if mark.names(group) => return Ok(true),
            Some(mark) => mark.with(group, what),
            None if !mark::has_room(self.disk.as_ref(), &self.dir)? => return Ok(false),
            None => {
                let next = identity::new_raft_node(self.random.as_ref());
                Mark::new(self.raft_node, next, group, what)
            }
        };
        mark.store(self.disk.as_ref(), &self.dir)?;
        crash_point(CrashPoint::RefillMarked);
        Ok(true)
    }

    /// Hears of damage in the log of `group`.
    pub(super) fn of(self: &Arc<Self>, group: PlacementGroupId) -> Arc<DamageOf> {
        Arc::new(DamageOf {
            damage: Arc::clone(self),
            group,
        })
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

/// Hears of damage in the log of one group.
pub(super) struct DamageOf {
    damage: Arc<Damage>,
    group: PlacementGroupId,
}

impl LogObserver for DamageOf {
    fn batch(&self, _batch: &BatchObservation) {}

    fn damaged(&self, error: &LogError) {
        self.damage.found(self.group, error);
    }
}

impl Damage {
    /// There is damage in the log of `group`.
    pub(super) fn found(&self, group: PlacementGroupId, error: &LogError) {
        // A damaged entry is refused to who reads it; a replica that has lost entries would go on without them, and vote.
        let ends = matches!(error, LogError::Lost { .. });
        let marked = if self.refills {
            self.mark(group, &error.to_string())
        } else {
            Ok(false)
        };
        let end = |why: String| self.fatal.send_replace(Some(Ended::Failed(why)));
        if matches!(marked, Ok(true)) {
            tracing::error!("{error}. This broker serves nothing more");
            end(format!(
                "{error}. Start it again with this data directory: it is refilled where the others have all that it had. Where they have not, it says what it waits \
                 for, and serves the groups in which nothing was found, unless metadata is damaged"
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
    use std::collections::BTreeSet;
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

    const ONE: PlacementGroupId = PlacementGroupId::new(1);
    const TWO: PlacementGroupId = PlacementGroupId::new(2);

    fn found(position: u64) -> LogError {
        LogError::Damaged {
            path: "groups/1/1.log".into(),
            position,
            what: "a bit".to_owned(),
        }
    }

    /// Proves that the first damage makes the mark and ends the broker, that later damage keeps the wish and names its group too, and that neither is so where it shall
    /// not be refilled, or was too often.
    #[test]
    fn damage_is_marked_once() {
        let dir = tempfile::tempdir().unwrap();
        let load = || Mark::load(RealDisk::shared().as_ref(), dir.path()).unwrap();
        let (off, ended) = damage(dir.path(), false);
        off.found(ONE, &found(1));
        assert!(load().is_none() && ended.borrow().is_none());

        let (on, ended) = damage(dir.path(), true);
        on.found(ONE, &found(2));
        let mark = load().unwrap();
        assert_eq!(mark.raft_node, RaftNodeId::new(11));
        assert!(mark.next != mark.raft_node && mark.what.contains("byte 2"));
        assert!(matches!(&*ended.borrow(), Some(Ended::Failed(_))));
        on.found(ONE, &found(3));
        assert_eq!(load().unwrap(), mark);
        let on = Arc::new(on);
        on.of(TWO).damaged(&found(3));
        let more = load().unwrap();
        assert_eq!(more.next, mark.next);
        assert_eq!(more.withheld(), Some(&BTreeSet::from([ONE, TWO])));

        std::fs::remove_file(dir.path().join("damaged.json")).unwrap();
        let lost = LogError::Lost {
            dir: "groups/1".into(),
            what: "the end".to_owned(),
        };
        let (off, ended) = damage(dir.path(), false);
        off.found(ONE, &lost);
        assert!(load().is_none(), "it is not refilled");
        let Some(Ended::Failed(why)) = ended.borrow().clone() else {
            panic!("it does not go on without what it had");
        };
        assert!(why.contains("the end"), "{why}");

        for id in 0..4 {
            std::fs::create_dir(dir.path().join(format!("set-aside-{id}"))).unwrap();
        }
        on.found(ONE, &found(4));
        assert!(load().is_none());
        let (on, ended) = damage(dir.path(), true);
        on.found(ONE, &found(5));
        assert!(ended.borrow().is_none());
        on.found(ONE, &lost);
        assert!(load().is_none() && ended.borrow().is_some());
    }
}
