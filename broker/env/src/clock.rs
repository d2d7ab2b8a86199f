//! Wall-clock time.

#![allow(clippy::disallowed_methods, reason = "here the real thing lives")]

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Reads the wall clock. Only stamps come from it; timers use `tokio::time`.
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since the Unix epoch. May jump, also backwards: callers that need order keep their own maximum.
    fn now_ms(&self) -> i64;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl SystemClock {
    /// A shared handle.
    #[must_use]
    pub fn shared() -> Arc<dyn Clock> {
        Arc::new(Self)
    }
}

impl Clock for SystemClock {
    fn now_ms(&self) -> i64 {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
            Err(_) => 0,
        }
    }
}
