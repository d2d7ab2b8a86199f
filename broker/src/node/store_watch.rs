//! Watches the object store for as long as the node runs: whether it has worked yet, and whether it works now.
//!
//! Owns: the start-up probe and its repetition, the light look afterwards, when a store counts as down and as up again.
//! Not here: what readiness means (`admin::health`), the checks themselves (`tidelog_tiering::probe`).
//! Spec: docs/operating/health.md

use std::sync::Arc;
use std::time::Duration;

use crate::admin::Health;
use tidelog_env::{Clock, Random, Tasks};
use tidelog_model::NodeId;
use tidelog_tiering::alive::alive;
use tidelog_tiering::probe::probe;
use tidelog_tiering::store::TierStore;

/// Name of the store in health reports.
const PART: &str = "store";

/// When the watch looks, and how often in a row it must see the same.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Between two looks at a store that works. A look is one GET of a few bytes: 2,880 a day.
    idle: Duration,
    /// After a look that surprises, and between two probes of a store that has not worked yet.
    soon: Duration,
    /// Longest pause between two looks at a store that is down; from `soon` on it doubles.
    down_max: Duration,
    /// Failures in a row after which a store that works counts as down: a single lost connection is none.
    failures: u32,
    /// Successes in a row after which it counts as up again.
    successes: u32,
}

const PACE: Pace = Pace {
    idle: Duration::from_secs(30),
    soon: Duration::from_secs(5),
    down_max: Duration::from_secs(30),
    failures: 3,
    successes: 2,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It has not worked since the node started.
    Untried,
    Up,
    Down,
}

/// What the watch knows: pure, fed with one look after the other.
struct Watch {
    pace: Pace,
    state: State,
    /// Looks in a row that ended the same way, and which.
    run: u32,
    last: bool,
}

impl Watch {
    const fn new(pace: Pace) -> Self {
        Self {
            pace,
            state: State::Untried,
            run: 0,
            last: false,
        }
    }

    /// Takes how a look ended; tells the new state if it changed.
    fn saw(&mut self, works: bool) -> Option<State> {
        self.run = if self.last == works {
            self.run.saturating_add(1)
        } else {
            1
        };
        self.last = works;
        let next = match (self.state, works) {
            (State::Untried, true) => State::Up,
            (State::Up, false) if self.run >= self.pace.failures => State::Down,
            (State::Down, true) if self.run >= self.pace.successes => State::Up,
            (state, _) => state,
        };
        (std::mem::replace(&mut self.state, next) != next).then_some(next)
    }

    /// How long to wait before the next look.
    fn pause(&self) -> Duration {
        match (self.state, self.last) {
            (State::Up, true) => self.pace.idle,
            (State::Down, false) => {
                let doublings = self.run.saturating_sub(self.pace.failures).min(16);
                (self.pace.soon * (1 << doublings)).min(self.pace.down_max)
            }
            _ => self.pace.soon,
        }
    }
}

/// What the watch works with.
#[derive(Clone)]
pub(super) struct Watched {
    pub(super) store: TierStore,
    pub(super) url: String,
    pub(super) node: NodeId,
    pub(super) health: Health,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) random: Arc<dyn Random>,
}

/// Starts the watch; it ends with `tasks`. Until the store has worked once, `health` says that the node is not ready.
pub(super) fn start(watched: Watched, tasks: &Tasks) {
    watched.health.not_ready(PART, "not tried yet");
    tasks.supervise("store-watch", PACE.soon, move || {
        watch(watched.clone(), PACE)
    });
}

async fn watch(watched: Watched, pace: Pace) {
    let Watched {
        store,
        url,
        node,
        health,
        clock,
        random,
    } = watched;
    let mut watch = Watch::new(pace);
    let mut said = false;
    loop {
        let seen = if watch.state == State::Untried {
            let report = probe(&store, clock.as_ref()).await;
            if report.fit_for_one_broker() {
                if !report.is_ok() {
                    tracing::warn!("object store {url} works, with limits:\n{report}");
                }
                Ok(())
            } else {
                // Once: /readyz goes on saying it.
                if !std::mem::replace(&mut said, true) {
                    tracing::warn!(
                        "object store {url} does not work, and is tried again; `tidelog doctor --store {url}` tells more:\n{report}"
                    );
                }
                Err(report.to_string())
            }
        } else {
            alive(&store, node).await
        };
        let changed = watch.saw(seen.is_ok());
        match (watch.state, &seen) {
            (State::Untried, Err(why)) => health.not_ready(PART, why),
            (State::Down, Err(why)) => health.warn(PART, down(why)),
            _ => {}
        }
        match (changed, &seen) {
            (Some(State::Up), _) => {
                tracing::info!("object store {url} works");
                health.ready(PART);
                health.clear(PART);
            }
            (Some(State::Down), Err(why)) => tracing::warn!("object store {url}: {}", down(why)),
            _ => {}
        }
        tokio::time::sleep(random.jitter(watch.pause())).await;
    }
}

fn down(why: &str) -> String {
    format!(
        "the store does not answer: {why}. New records are accepted and local ones are served; uploads wait, and reads of what \
         is no longer local fail until it answers"
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;
    use object_store::memory::InMemory;
    use tidelog_env::{SystemClock, SystemRandom};
    use tidelog_model::ClusterId;
    use tidelog_tiering::store::StoreLimits;
    use tidelog_tiering::store::faulty::{Call, Fault, FaultyStore};
    use uuid::Uuid;

    /// Proves hysteresis: states change only after looks in a row, and only along the drawn edges.
    #[test]
    fn states_change_after_looks_in_a_row() {
        let looks = [
            (false, State::Untried, 5),
            (false, State::Untried, 5),
            (true, State::Up, 30),
            (true, State::Up, 30),
            (false, State::Up, 5),
            (false, State::Up, 5),
            (true, State::Up, 30),
            (false, State::Up, 5),
            (false, State::Up, 5),
            (false, State::Down, 5),
            (false, State::Down, 10),
            (false, State::Down, 20),
            (false, State::Down, 30),
            (false, State::Down, 30),
            (true, State::Down, 5),
            (false, State::Down, 5),
            (true, State::Down, 5),
            (true, State::Up, 30),
        ];
        let mut watch = Watch::new(PACE);
        for (number, (works, state, pause)) in looks.into_iter().enumerate() {
            let before = watch.state;
            let changed = watch.saw(works);
            assert_eq!(watch.state, state, "look {number}");
            assert_eq!(changed, (before != state).then_some(state), "look {number}");
            assert_eq!(watch.pause(), Duration::from_secs(pause), "look {number}");
        }
    }

    async fn until(what: &str, health: &Health, holds: impl Fn(&Health) -> bool) {
        let wait = async {
            while !holds(health) {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(600), wait)
            .await
            .unwrap_or_else(|_| panic!("{what}: {:?} {:?}", health.reasons(), health.warnings()));
    }

    /// Proves the life of a store as health tells it: not ready until it has worked once; then an outage is a warning that comes
    /// and goes, and the node stays ready.
    #[tokio::test(start_paused = true)]
    async fn an_outage_is_a_warning_not_the_end_of_readiness() {
        let faulty = FaultyStore::new(Arc::new(InMemory::new()));
        let health = Health::default();
        let tasks = Tasks::new();
        let root = object_store::path::Path::default();
        let store = TierStore::new(
            Arc::new(faulty.clone()),
            &root,
            ClusterId::new(Uuid::from_u128(1)),
            SystemRandom::seeded(1),
            StoreLimits::default(),
        );
        for call in [Call::Put, Call::Get] {
            faulty.inject_forever(call, Fault::Unavailable);
        }
        let watched = Watched {
            store,
            url: "memory:///".to_owned(),
            node: NodeId::new(1),
            health: health.clone(),
            clock: SystemClock::shared(),
            random: SystemRandom::seeded(2),
        };
        start(watched, &tasks);
        assert_eq!(health.reasons().len(), 1, "not ready before the first look");
        until("the first probe", &health, |health| {
            health.reasons()[0].message.contains("503")
        })
        .await;
        faulty.heal();
        until("ready", &health, |health| health.reasons().is_empty()).await;
        for _ in 0..2 {
            faulty.inject_forever(Call::Get, Fault::Unavailable);
            until("the warning", &health, |health| {
                !health.warnings().is_empty()
            })
            .await;
            let warning = health.warnings().remove(0);
            assert_eq!(warning.part, "store");
            assert!(warning.message.contains("503"), "{}", warning.message);
            assert!(health.reasons().is_empty(), "still ready");
            faulty.heal();
            until("its end", &health, |health| health.warnings().is_empty()).await;
            assert!(health.reasons().is_empty());
        }
        tasks.stop().await;
    }
}
