//! Randomness: ids, salts, jitter.

#![allow(clippy::disallowed_methods, reason = "here the real thing lives")]

use parking_lot::Mutex;
use rand::{RngCore, SeedableRng, rngs::StdRng};
use std::sync::Arc;
use std::time::Duration;

/// A source of random numbers. Not for secrets.
pub trait Random: Send + Sync + 'static {
    /// A uniformly distributed number.
    fn next_u64(&self) -> u64;
}

impl dyn Random {
    /// A random (version 4) uuid.
    #[must_use]
    pub fn uuid(&self) -> uuid::Uuid {
        uuid::Builder::from_random_bytes(self.bytes16()).into_uuid()
    }

    /// A time-ordered (version 7) uuid for the given wall-clock milliseconds.
    #[must_use]
    pub fn uuid_at(&self, now_ms: i64) -> uuid::Uuid {
        let random = self.bytes16();
        let mut tail = [0u8; 10];
        tail.copy_from_slice(&random[..10]);
        uuid::Builder::from_unix_timestamp_millis(u64::try_from(now_ms).unwrap_or(0), &tail)
            .into_uuid()
    }

    /// `base` spread uniformly over 50 % to 150 % of itself (R18).
    #[must_use]
    pub fn jitter(&self, base: Duration) -> Duration {
        let permille = 500 + (self.next_u64() % 1001);
        base.saturating_mul(u32::try_from(permille).unwrap_or(1000)) / 1000
    }

    fn bytes16(&self) -> [u8; 16] {
        let mut bytes = [0u8; 16];
        bytes[..8].copy_from_slice(&self.next_u64().to_le_bytes());
        bytes[8..].copy_from_slice(&self.next_u64().to_le_bytes());
        bytes
    }
}

/// A seeded generator: from the system's entropy in production, from a number in a simulation.
pub struct SystemRandom(Mutex<StdRng>);

impl SystemRandom {
    /// Seeded from the operating system.
    #[must_use]
    pub fn shared() -> Arc<dyn Random> {
        Arc::new(Self(Mutex::new(StdRng::from_os_rng())))
    }

    /// Seeded by the caller: the same seed gives the same numbers.
    #[must_use]
    pub fn seeded(seed: u64) -> Arc<dyn Random> {
        Arc::new(Self(Mutex::new(StdRng::seed_from_u64(seed))))
    }
}

impl Random for SystemRandom {
    fn next_u64(&self) -> u64 {
        self.0.lock().next_u64()
    }
}
