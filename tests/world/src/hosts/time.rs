//! What time it is: for the world, and on each host.
//!
//! Owns: the line from world time to a host's own time (rate), and from there to its wall clock (offset).
//! Not here: moving time (`hosts`).
//! Spec: docs/simulation.md
//!
//! World time starts at zero and moves by one tick per step. A host's own time is what its timers run on: world time at the host's rate,
//! in whole milliseconds at the ends of steps. It goes on while the host's process is dead.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tidelog_env::Clock;
use tokio::time::Instant;

/// What wall clocks show at the start of the world: 2026-01-01T00:00:00Z, in milliseconds since the Unix epoch.
pub const WORLD_EPOCH_MS: i64 = 1_767_225_600_000;

const MILLION: u64 = 1_000_000;

/// Rates outside of these bounds are cut down to them: half as fast, and twice as fast.
const RATE_PPM: (i32, i32) = (-500_000, 1_000_000);

/// The world's time: the start of the step that runs, or the end of the last. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct WorldTime(Arc<AtomicU64>);

impl WorldTime {
    /// Time since the start of the world.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    pub(super) fn advance_to(&self, now: Duration) {
        self.0.store(nanos(now), Ordering::Relaxed);
        crate::clocks::set(nanos(now));
    }
}

/// The time of one host, on all its incarnations. Clones share it.
#[derive(Clone, Debug)]
pub struct HostTime {
    world: WorldTime,
    line: Arc<Mutex<Line>>,
    halted: Arc<AtomicBool>,
}

/// `own = own_at + (world - world_at) * (1 + ppm / 1e6)`, and where the running incarnation's runtime stands on it.
#[derive(Debug)]
struct Line {
    world_at: Duration,
    own_at: Duration,
    ppm: i32,
    offset_ms: i64,
    /// The runtime's clock at `base_own`. `None` as long as nothing was started.
    base: Option<Instant>,
    base_own: Duration,
    /// The host's runtime is the one that runs now, so that tokio's clock is its clock.
    running: bool,
}

impl HostTime {
    pub(super) fn new(world: WorldTime) -> Self {
        let at = world.now();
        Self {
            world,
            line: Arc::new(Mutex::new(Line {
                world_at: at,
                own_at: at,
                ppm: 0,
                offset_ms: 0,
                base: None,
                base_own: at,
                running: false,
            })),
            halted: Arc::default(),
        }
    }

    /// World time as the host sees it. On the host it moves from timer to timer within a step; from outside, and for the
    /// system of a host whose process is paused or dead, it is [`WorldTime::now`].
    #[must_use]
    pub fn now(&self) -> Duration {
        let world = self.world.now();
        let line = self.line.lock();
        match line.running_own() {
            Some(own) => line.world(own).max(world),
            None => world,
        }
    }

    /// When the clock of the host's runtime will show at least the world time `at`, if its rate stays. In the past for what is past.
    #[must_use]
    pub fn instant_at(&self, at: Duration) -> Instant {
        let line = self.line.lock();
        let base = line.base.unwrap_or_else(Instant::now);
        base + line.own_ceil(at).saturating_sub(line.base_own)
    }

    /// The host's own time: it differs from world time by the rate.
    #[must_use]
    pub fn own(&self) -> Duration {
        let line = self.line.lock();
        line.running_own()
            .unwrap_or_else(|| line.own_floor(self.world.now()))
    }

    /// Stops the host's process here, from inside of it, as a crash at this point of the code would: from now on the world gives it nothing and takes
    /// nothing from it. The caller must not go on. The process is not stepped again; [`super::Hosts::crash`] takes it away.
    pub fn halt(&self) {
        self.halted.store(true, Ordering::Relaxed);
    }

    /// Whether the process was halted. What a host does to the world asks this.
    #[must_use]
    pub fn is_halted(&self) -> bool {
        self.halted.load(Ordering::Relaxed)
    }

    pub(super) fn set_rate(&self, ppm: i32) {
        let now = self.world.now();
        let mut line = self.line.lock();
        line.own_at = line.own_floor(now);
        line.world_at = now;
        line.ppm = ppm.clamp(RATE_PPM.0, RATE_PPM.1);
    }

    pub(super) fn jump(&self, by_ms: i64) {
        let mut line = self.line.lock();
        line.offset_ms = line.offset_ms.saturating_add(by_ms);
    }

    /// A new runtime begins now; called inside of it. Its timers count whole milliseconds, as do the ends of steps.
    pub(super) fn begin(&self) {
        self.halted.store(false, Ordering::Relaxed);
        let now = self.world.now();
        let mut line = self.line.lock();
        line.base_own = whole_ms(line.own_floor(now));
        line.base = Some(Instant::now());
    }

    /// What the runtime's clock must show at the world time `at`, in whole milliseconds.
    pub(super) fn step_end(&self, at: Duration) -> Option<Instant> {
        let line = self.line.lock();
        let own = whole_ms(line.own_floor(at));
        Some(line.base? + own.saturating_sub(line.base_own))
    }

    pub(super) fn set_running(&self, running: bool) {
        self.line.lock().running = running;
    }
}

impl Line {
    fn running_own(&self) -> Option<Duration> {
        let base = self.base.filter(|_| self.running)?;
        Some(self.base_own + Instant::now().saturating_duration_since(base))
    }

    fn rate(&self) -> u64 {
        MILLION.saturating_add_signed(i64::from(self.ppm))
    }

    fn own_floor(&self, world: Duration) -> Duration {
        self.own_at + scale(world.saturating_sub(self.world_at), self.rate(), MILLION)
    }

    /// Rounded up, so that `world(own_ceil(at)) >= at`: who sleeps until then finds that it is then.
    fn own_ceil(&self, world: Duration) -> Duration {
        let since = world.saturating_sub(self.world_at);
        let floor = scale(since, self.rate(), MILLION);
        let exact = scale(floor, MILLION, self.rate()) == since;
        self.own_at + floor + Duration::from_nanos(u64::from(!exact))
    }

    fn world(&self, own: Duration) -> Duration {
        self.world_at + scale(own.saturating_sub(self.own_at), MILLION, self.rate())
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn whole_ms(time: Duration) -> Duration {
    Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

fn scale(time: Duration, by: u64, over: u64) -> Duration {
    if by == over {
        return time;
    }
    let scaled = time.as_nanos() * u128::from(by) / u128::from(over);
    Duration::from_nanos(u64::try_from(scaled).unwrap_or(u64::MAX))
}

/// A host's wall clock: the epoch, its own time, and how far it was jumped.
#[derive(Debug)]
pub(super) struct WallClock(pub(super) HostTime);

impl Clock for WallClock {
    fn now_ms(&self) -> i64 {
        let own = i64::try_from(self.0.own().as_millis()).unwrap_or(i64::MAX);
        let offset = self.0.line.lock().offset_ms;
        WORLD_EPOCH_MS.saturating_add(own).saturating_add(offset)
    }
}
