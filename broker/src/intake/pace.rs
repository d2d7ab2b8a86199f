//! How fast a frame must come.
//!
//! Owns: time spent waiting for the peer, the pace that is asked for, and whether a frame keeps it.
//! Not here: whether memory is short (`budget`).
//! Spec: docs/protocols/kafka-wire.md (memory of requests)
//!
//! Time in which the frame waits for memory does not count: it is not the peer's.

use std::fmt;
use std::time::Duration;

/// Parts of [`Terms::within`] in which the pace is looked at.
const WINDOWS: u32 = 10;

/// What is asked of a frame.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// It must make progress within this.
    pub stall: Duration,
    /// The slowest pace of a frame as a whole, always.
    pub bytes_per_second_min: usize,
    /// While memory is short, its pace must be one that brings the whole of it within this.
    pub within: Duration,
}

impl Terms {
    /// How often the pace is looked at; memory is short when it has been for so long.
    pub(super) fn window(&self) -> Duration {
        self.within / WINDOWS
    }

    /// The longest that a frame of `bytes` may take.
    fn whole(&self, bytes: usize) -> Duration {
        let seconds = bytes / self.bytes_per_second_min.max(1);
        self.stall + Duration::from_secs(u64::try_from(seconds).unwrap_or(u64::MAX))
    }
}

/// A frame that came too slowly while others waited for the memory that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slow {
    /// Bytes of the frame.
    pub announced: usize,
    /// Bytes of it that came.
    pub arrived: usize,
    /// How fast they came.
    pub bytes_per_second: u64,
    /// How fast they should have come.
    pub asked_per_second: u64,
}

impl fmt::Display for Slow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} bytes came, at {} bytes/s, while others wait for memory and {} bytes/s are asked for",
            self.arrived, self.announced, self.bytes_per_second, self.asked_per_second
        )
    }
}

/// The pace of one frame.
#[derive(Debug)]
pub(super) struct Pace {
    terms: Terms,
    announced: usize,
    arrived: usize,
    /// Time spent waiting for the peer.
    waited: Duration,
    /// Of it, since the last byte.
    rested: Duration,
    /// Of it, in this window.
    in_window: Duration,
    arrived_in_window: usize,
}

impl Pace {
    /// Of a frame of `announced` bytes, of which `arrived` are there.
    pub(super) const fn new(terms: Terms, announced: usize, arrived: usize) -> Self {
        Self {
            terms,
            announced,
            arrived,
            waited: Duration::ZERO,
            rested: Duration::ZERO,
            in_window: Duration::ZERO,
            arrived_in_window: 0,
        }
    }

    pub(super) fn window(&self) -> Duration {
        self.terms.window()
    }

    /// How long to wait for more before [`Pace::waited`] has to be told.
    pub(super) fn patience(&self) -> Duration {
        let stall = self.terms.stall.saturating_sub(self.rested);
        let whole = self.terms.whole(self.announced).saturating_sub(self.waited);
        let window = self.terms.window().saturating_sub(self.in_window);
        stall.min(whole).min(window)
    }

    /// The frame has waited for its peer so long, for `bytes`, or in vain.
    pub(super) fn waited(&mut self, time: Duration, bytes: usize) {
        self.waited += time;
        self.in_window += time;
        self.rested = if bytes == 0 {
            self.rested + time
        } else {
            Duration::ZERO
        };
        self.arrived += bytes;
        self.arrived_in_window += bytes;
    }

    /// Nothing came for too long, or the whole takes too long.
    pub(super) fn is_stalled(&self) -> bool {
        self.rested >= self.terms.stall || self.waited >= self.terms.whole(self.announced)
    }

    /// When a window is over: whether too little came in it. The next one begins.
    pub(super) fn end_of_window(&mut self) -> Option<Slow> {
        if self.in_window < self.terms.window() {
            return None;
        }
        let slow = self.judge(self.arrived_in_window, self.in_window);
        self.in_window = Duration::ZERO;
        self.arrived_in_window = 0;
        slow
    }

    /// Whether it has been too slow from its begin on, as far as that can be said.
    pub(super) fn so_far(&self) -> Option<Slow> {
        if self.waited < self.terms.window() {
            return None;
        }
        self.judge(self.arrived, self.waited)
    }

    fn judge(&self, arrived: usize, time: Duration) -> Option<Slow> {
        let bytes_per_second = per_second(arrived, time);
        let asked_per_second = per_second(self.announced, self.terms.within);
        let lacks = self.arrived < self.announced;
        (lacks && bytes_per_second < asked_per_second).then_some(Slow {
            announced: self.announced,
            arrived: self.arrived,
            bytes_per_second,
            asked_per_second,
        })
    }
}

fn per_second(bytes: usize, time: Duration) -> u64 {
    let milliseconds = time.as_millis().max(1);
    let bytes = u128::try_from(bytes).unwrap_or(u128::MAX);
    u64::try_from(bytes.saturating_mul(1000) / milliseconds).unwrap_or(u64::MAX)
}
