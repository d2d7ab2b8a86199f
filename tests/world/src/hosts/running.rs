//! Which host runs now.
//!
//! Owns: the thread's note of it, for what has no handle of a host (a log's lines, a history).
//! Not here: running hosts (`hosts`).
//! Spec: docs/simulation.md

use super::HostTime;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

thread_local! {
    static RUNNING: RefCell<Option<(Arc<str>, HostTime)>> = const { RefCell::new(None) };
}

/// The name of the host whose code runs on this thread now, and world time as it sees it. `None` between hosts.
#[must_use]
pub fn running() -> Option<(Arc<str>, Duration)> {
    RUNNING.with_borrow(|running| {
        let (name, time) = running.as_ref()?;
        Some((Arc::clone(name), time.now()))
    })
}

pub(super) fn set_running(host: Option<(Arc<str>, HostTime)>) {
    RUNNING.set(host);
}
