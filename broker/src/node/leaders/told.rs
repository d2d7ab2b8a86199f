//! Lines of the log about leadership: this broker begins to lead a group, or stops.
//!
//! Owns: what is a beginning and an end, and how many lines there are when many groups change at once.
//! Not here: who leads (`placement`), why leadership is moved (the rest of `leaders`, which says it where it is moved).
//! Spec: docs/operating/health.md (elections)

use crate::placement::Leadership;
use crate::router::Router;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use std::collections::BTreeMap;
use std::time::Duration;
use tidelog_env::Tasks;
use tidelog_model::{NodeId, PlacementGroupId, Term};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Lines in a window: a broker of usual size has one or two for each that goes; a start with hundreds of groups has one that counts.
const LINES_MAX: usize = 6;
/// What changes beyond that is counted, and told when this has passed.
const WINDOW: Duration = Duration::from_secs(1);

/// What has changed here in one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Begins {
        group: PlacementGroupId,
        term: Term,
    },
    Stops {
        group: PlacementGroupId,
        term: Term,
        /// Who leads in place of this broker, and in which term, where it has heard that already.
        next: Option<(NodeId, Term)>,
    },
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Begins { group, term } => {
                write!(
                    f,
                    "this broker leads group {group} from now on, in term {term}"
                )
            }
            Self::Stops { group, term, next } => {
                write!(
                    f,
                    "this broker leads group {group} no longer, which it led in term {term}: "
                )?;
                match next {
                    Some((leader, term)) => write!(f, "broker {leader} does, in term {term}"),
                    None => write!(f, "who does is not known here yet"),
                }
            }
        }
    }
}

/// The terms in which this broker leads, by what was seen last.
#[derive(Debug, Default)]
struct Led(BTreeMap<PlacementGroupId, Term>);

impl Led {
    /// Takes what is so `now`; a group that is not in it does not run here.
    fn see(&mut self, now: &BTreeMap<PlacementGroupId, Leadership>, own: NodeId) -> Vec<Change> {
        let mut changes = Vec::new();
        let leads = |group: &PlacementGroupId| now.get(group).filter(|known| known.is_leader);
        // It may have stopped and begun again in between.
        self.0.retain(|group, term| {
            let leads = leads(group).is_some_and(|known| known.term == *term);
            if !leads {
                let known = now.get(group);
                let next = known.and_then(|known| Some((known.leader?, known.term)));
                let next = next.filter(|(leader, _)| *leader != own);
                let (group, term) = (*group, *term);
                changes.push(Change::Stops { group, term, next });
            }
            leads
        });
        for (group, known) in now.iter().filter(|(group, _)| leads(group).is_some()) {
            if self.0.insert(*group, known.term).is_none() {
                let (group, term) = (*group, known.term);
                changes.push(Change::Begins { group, term });
            }
        }
        changes
    }
}

/// Bounds the lines. Time is handed in.
#[derive(Debug, Default)]
struct Lines {
    since: Option<Instant>,
    told: usize,
    begun: usize,
    stopped: usize,
}

impl Lines {
    /// The line of a change, unless it is only counted.
    fn take(&mut self, change: Change, now: Instant) -> Option<String> {
        let passed = |since: Instant| now.saturating_duration_since(since) >= WINDOW;
        if self.due().is_none() && self.since.is_none_or(passed) {
            (self.since, self.told) = (Some(now), 0);
        }
        if self.told < LINES_MAX {
            self.told += 1;
            return Some(change.to_string());
        }
        match change {
            Change::Begins { .. } => self.begun += 1,
            Change::Stops { .. } => self.stopped += 1,
        }
        None
    }

    /// When what was only counted is told.
    fn due(&self) -> Option<Instant> {
        let waits = self.begun + self.stopped > 0;
        self.since.filter(|_| waits).map(|since| since + WINDOW)
    }

    /// The line of what was only counted, when it is due.
    fn rest(&mut self, now: Instant) -> Option<String> {
        self.due().filter(|due| *due <= now)?;
        let line = format!(
            "leadership of more groups has changed within a second: this broker leads {} more from now on, and {} no longer",
            self.begun, self.stopped
        );
        *self = Self::default();
        Some(line)
    }
}

/// The groups that run here, and where their leadership is told.
fn watched(router: &Router) -> BTreeMap<PlacementGroupId, watch::Receiver<Leadership>> {
    let data = router.data_groups();
    let data = data.map(|group| (group.id(), group.group().leadership()));
    let metadata = (PlacementGroupId::METADATA, router.metadata().leadership());
    std::iter::once(metadata).chain(data).collect()
}

/// Says from now on when this broker begins to lead a group, and when it stops.
pub(in crate::node) fn tell(router: &Router, tasks: &Tasks) {
    let router = router.clone();
    tasks.supervise("leaders-told", WINDOW, move || {
        let router = router.clone();
        async move {
            let (mut led, mut lines) = (Led::default(), Lines::default());
            let mut held = router.held();
            let mut groups = watched(&router);
            loop {
                if held.has_changed().unwrap_or(false) {
                    held.borrow_and_update();
                    groups = watched(&router);
                }
                let look = groups.iter_mut();
                let now = look
                    .map(|(group, at)| (*group, *at.borrow_and_update()))
                    .collect();
                for change in led.see(&now, router.node()) {
                    if let Some(line) = lines.take(change, Instant::now()) {
                        tracing::info!("{line}");
                    }
                }
                if let Some(line) = lines.rest(Instant::now()) {
                    tracing::info!("{line}");
                }
                until_changed(&mut groups, &mut held, lines.due()).await;
            }
        }
    });
}

/// Waits until leadership of a group changes, a group comes or goes, or what was counted is due. A group that has ended is not watched any more.
async fn until_changed(
    groups: &mut BTreeMap<PlacementGroupId, watch::Receiver<Leadership>>,
    held: &mut watch::Receiver<u64>,
    due: Option<Instant>,
) {
    let ended = {
        let mut changes: FuturesUnordered<_> = groups
            .iter_mut()
            .map(|(group, at)| async move { (*group, at.changed().await.is_err()) })
            .collect();
        let at = due.unwrap_or_else(Instant::now);
        tokio::select! {
            Some((group, ended)) = changes.next() => ended.then_some(group),
            _ = held.changed() => None,
            () = sleep_until(at), if due.is_some() => None,
        }
    };
    if let Some(group) = ended {
        groups.remove(&group);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn known(leader: Option<i32>, term: u64, is_leader: bool) -> Leadership {
        Leadership {
            leader: leader.map(NodeId::new),
            term: Term::new(term),
            is_leader,
        }
    }

    fn see(led: &mut Led, now: &[(u32, Leadership)]) -> Vec<String> {
        let now = now.iter();
        let now = now.map(|(group, known)| (PlacementGroupId::new(*group), *known));
        let changes = led.see(&now.collect(), NodeId::new(1));
        changes.iter().map(ToString::to_string).collect()
    }

    /// Proves that each beginning and each end is told once, with who leads then where that is known; that a term that follows at once is both; and that a group
    /// that is gone from here is led no longer.
    #[test]
    fn beginnings_and_ends() {
        let mut led = Led::default();
        let see = |now: &[(u32, Leadership)]| see(&mut led, now);
        let mut see = see;
        let none: [&str; 0] = [];
        assert_eq!(see(&[(1, known(Some(2), 4, false))]), none);
        let leads = [(1, known(Some(1), 5, true)), (2, known(Some(1), 7, true))];
        assert_eq!(
            see(&leads),
            [
                "this broker leads group 1 from now on, in term 5",
                "this broker leads group 2 from now on, in term 7"
            ]
        );
        assert_eq!(see(&leads), none);
        assert_eq!(
            see(&[(1, known(Some(3), 6, false)), (2, known(Some(1), 9, true))]),
            [
                "this broker leads group 1 no longer, which it led in term 5: broker 3 does, in term 6",
                "this broker leads group 2 no longer, which it led in term 7: who does is not known here yet",
                "this broker leads group 2 from now on, in term 9"
            ]
        );
        let unknown = "this broker leads group 2 no longer, which it led in term 9: who does is not known here yet";
        assert_eq!(see(&[(1, known(Some(3), 6, false))]), [unknown]);
        assert_eq!(see(&[]), none);
    }

    /// Proves that many changes at once make few lines and one that counts the others, that it comes, and that what is counted when lines are free again is
    /// not lost.
    #[tokio::test(start_paused = true)]
    async fn many_at_once_are_counted() {
        let mut lines = Lines::default();
        let begins = |group| Change::Begins {
            group: PlacementGroupId::new(group),
            term: Term::new(1),
        };
        let start = Instant::now();
        let told = (0..1000).filter_map(|group| lines.take(begins(group), start));
        assert_eq!(told.count(), LINES_MAX);
        assert_eq!(lines.due(), Some(start + WINDOW));
        assert_eq!(lines.rest(start + WINDOW / 2), None);
        let stops = Change::Stops {
            group: PlacementGroupId::new(1),
            term: Term::new(1),
            next: None,
        };
        assert_eq!(lines.take(stops, start + WINDOW), None, "in its turn");
        let rest = lines.rest(start + WINDOW).unwrap();
        assert!(
            rest.contains("leads 994 more from now on, and 1 no longer"),
            "{rest}"
        );
        assert_eq!((lines.due(), lines.rest(start + 2 * WINDOW)), (None, None));
        let later = start + WINDOW;
        assert!(lines.take(begins(1), later).is_some());
        let slow = (1..50).map(|number| later + number * WINDOW / 4);
        assert!(
            slow.into_iter()
                .all(|at| lines.take(begins(2), at).is_some())
        );
    }
}
