//! Work that would hold up the tasks beside it.
//!
//! Owns: where it runs.
//! Not here: threads that live long (the log's writer has its own).

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::JoinError;

/// Runs `work` on tokio's blocking pool. On a runtime of one thread it runs in place: there a simulation steps every task itself, and must
/// know their order.
///
/// # Errors
/// The work panicked, or the runtime ends.
pub async fn blocking<T, F>(work: F) -> Result<T, JoinError>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    if Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::thread;

    /// Proves that the tasks of several threads are not held up, and that one thread does everything itself.
    #[test]
    fn it_runs_where_it_must() {
        let current = || thread::current().id();
        let one = tokio::runtime::Builder::new_current_thread().build();
        let ran = one.unwrap().block_on(blocking(current)).unwrap();
        assert_eq!(ran, current());
        let two = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .build();
        let ran = two.unwrap().block_on(blocking(current)).unwrap();
        assert_ne!(ran, current());
    }
}
