//! The pace at which spare files are zeroed: one for all logs of a broker, and only what the logs themselves leave of it.
//!
//! Owns: who may write zeros when.
//! Not here: what is zeroed, and when it is given up (`pool.rs`).
//! Invariants: over any span longer than [`DEBT_MAX`], zeros and log together are at most the rate, or there are no zeros.

use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// How long zeroing stays off after a burst of writes.
const DEBT_MAX: Duration = Duration::from_secs(1);

/// Shares out zeroing among the logs of one broker. Their files fill at the same time, so without it all of them would be
/// zeroed at the same time, and every append would wait behind those zeros. Under load zeros do not pay: a file that was only
/// reserved takes a third less, one that is zeroed first is written twice.
#[derive(Debug)]
pub struct ZeroingPace {
    bytes_per_second: u64,
    /// When the next turn begins.
    next: Mutex<Option<Instant>>,
}

impl ZeroingPace {
    /// What a broker takes unless told otherwise: a few percent of what a disk gives.
    pub const DEFAULT_BYTES_PER_SECOND: u64 = 32 << 20;

    /// A pace of `bytes_per_second` for all logs that share it (at least 1).
    #[must_use]
    pub fn new(bytes_per_second: u64) -> Self {
        Self {
            bytes_per_second: bytes_per_second.max(1),
            next: Mutex::new(None),
        }
    }

    /// A turn to write `bytes` of zeros: when it begins. A turn that is not used is lost.
    pub(super) fn turn(&self, bytes: u64, now: Instant) -> Instant {
        let mut next = self.next.lock();
        let begins = next.map_or(now, |next| next.max(now));
        *next = Some(begins + self.time_of(bytes));
        begins
    }

    /// The log itself wrote: later turns begin later. A turn that was given out stays.
    pub(super) fn wrote(&self, bytes: u64, now: Instant) {
        let mut next = self.next.lock();
        let begins = next.map_or(now, |next| next.max(now));
        *next = Some(
            (begins + self.time_of(bytes))
                .min(now + DEBT_MAX)
                .max(begins),
        );
    }

    fn time_of(&self, bytes: u64) -> Duration {
        Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / self.bytes_per_second)
    }
}

impl Default for ZeroingPace {
    fn default() -> Self {
        Self::new(Self::DEFAULT_BYTES_PER_SECOND)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that logs which share a pace zero no more together than one alone, and that an idle time is not made up for.
    #[test]
    fn turns_of_all_logs_keep_to_one_rate() {
        let pace = ZeroingPace::new(1 << 20);
        let start = Instant::now();
        let turns: Vec<_> = (0..6).map(|_| pace.turn(1 << 20, start)).collect();
        for (number, turn) in (0..).zip(&turns) {
            assert_eq!(*turn - start, Duration::from_secs(number));
        }
        let later = start + Duration::from_secs(100);
        assert_eq!(pace.turn(1 << 20, later), later);
        assert_eq!(pace.turn(1, later), later + Duration::from_secs(1));
    }

    /// Proves that what the logs write comes off the zeros, for a second at most after the last of it.
    #[test]
    fn zeros_take_what_the_log_leaves() {
        let pace = ZeroingPace::new(1 << 20);
        let start = Instant::now();
        pace.wrote(1 << 19, start);
        let half = Duration::from_millis(500);
        assert_eq!(pace.turn(1, start), start + half);
        pace.wrote(1 << 30, start + half);
        assert_eq!(pace.turn(1, start + half), start + half + DEBT_MAX);
    }
}
