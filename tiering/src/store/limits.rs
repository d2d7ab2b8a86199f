//! Deadlines and bounds of store calls.

use super::tier::TierStore;
use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use std::time::Duration;
use tokio::time::Instant;

/// Deadlines and bounds of every call through [`TierStore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreLimits {
    /// One try of a call that moves no bytes. Stores answer in tens of milliseconds; ten seconds is broken.
    pub try_timeout: Duration,
    /// Bytes per second a try may count on: its deadline grows by length / this. 1 MiB/s: a part of 8 MiB gets 18 s.
    pub bytes_per_second_min: u64,
    /// Tries per call. Five with the delays below bridge about six seconds of refusals; longer is the caller's to pace.
    pub tries_max: usize,
    /// Delay before the second try; doubles from there, plus jitter up to its own size.
    pub retry_delay_min: Duration,
    /// Largest delay before jitter.
    pub retry_delay_max: Duration,
    /// After this no further try begins.
    pub call_timeout: Duration,
    /// Objects of this size or more go up in parts. 16 MiB: below, one request is cheaper than four.
    pub multipart_bytes_min: u64,
    /// Size of a part (but the last). S3 wants at least 5 MiB and at most 10 000 parts: 8 MiB reaches 78 GiB.
    pub part_bytes: usize,
    /// Parts of one object in flight.
    pub parts_in_flight_max: usize,
    /// Largest object `get` takes into memory: a manifest of a million segments is about 150 MB.
    pub get_bytes_max: u64,
    /// Most keys one `list` returns.
    pub list_count_max: usize,
}

impl Default for StoreLimits {
    fn default() -> Self {
        Self {
            try_timeout: Duration::from_secs(10),
            bytes_per_second_min: 1024 * 1024,
            tries_max: 5,
            retry_delay_min: Duration::from_millis(200),
            retry_delay_max: Duration::from_secs(5),
            call_timeout: Duration::from_secs(60),
            multipart_bytes_min: 16 * 1024 * 1024,
            part_bytes: PART_BYTES,
            parts_in_flight_max: 4,
            get_bytes_max: 256 * 1024 * 1024,
            list_count_max: 1_000_000,
        }
    }
}

const PART_BYTES: usize = 8 * 1024 * 1024;
const S3_PART_BYTES_MIN: usize = 5 * 1024 * 1024;
const _: () = assert!(
    PART_BYTES >= S3_PART_BYTES_MIN,
    "S3 refuses parts below 5 MiB"
);

impl StoreLimits {
    /// How long one try that moves `bytes` may take.
    pub(crate) fn deadline(&self, bytes: u64) -> Duration {
        self.try_timeout + Duration::from_secs(bytes / self.bytes_per_second_min.max(1))
    }
}

/// The tries of one call.
pub(crate) struct Tries {
    backoff: ExponentialBackoff,
    last_start: Instant,
    pub(crate) made: u32,
}

impl Tries {
    pub(crate) fn new(store: &TierStore) -> Self {
        let limits = store.limits();
        let backoff = ExponentialBuilder::new()
            .with_min_delay(limits.retry_delay_min)
            .with_max_delay(limits.retry_delay_max)
            .with_max_times(limits.tries_max.saturating_sub(1))
            .with_jitter()
            .with_jitter_seed(store.random().next_u64())
            .build();
        Self {
            backoff,
            last_start: Instant::now() + limits.call_timeout,
            made: 1,
        }
    }

    /// Waits before the next try. False when there is none.
    pub(crate) async fn next(&mut self) -> bool {
        let Some(delay) = self.backoff.next() else {
            return false;
        };
        if Instant::now() + delay > self.last_start {
            return false;
        }
        tokio::time::sleep(delay).await;
        self.made += 1;
        true
    }
}
