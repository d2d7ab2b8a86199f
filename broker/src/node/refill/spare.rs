//! A mark that is not acted on: the broker started with what it has, since it shall not be refilled.
//!
//! Owns: when such a mark is forgotten. Left there, it would refill a healthy broker at a later start.
//! Not here: the mark (`mark.rs`), whether it is acted on (`node`).
//! Spec: docs/protocols/refill.md (the way out by hand)

use super::mark;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::Tasks;
use tidelog_env::disk::Disk;

/// How often the broker is looked at.
const TICK: Duration = Duration::from_secs(1);

/// Removes the mark in `dir`, durably, once `is_well` says that the broker is; until then it stays.
pub(in crate::node) fn forget_when_well(
    tasks: &Tasks,
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    is_well: impl Fn() -> bool + Send + 'static,
) {
    tasks.spawn("damage-mark", async move {
        loop {
            tokio::time::sleep(TICK).await;
            if !is_well() {
                continue;
            }
            let (disk, dir) = (Arc::clone(&disk), dir.clone());
            match tidelog_env::blocking(move || mark::remove(disk.as_ref(), &dir)).await {
                Ok(Ok(())) => {
                    tracing::warn!(
                        "this broker has started well with a data directory that was found damaged: that is forgotten"
                    );
                    return;
                }
                Ok(Err(error)) => tracing::error!("{error}"),
                Err(error) => tracing::error!("damaged.json could not be removed: {error}"),
            }
        }
    });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::super::Mark;
    use super::*;
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tidelog_env::MemoryDisk;
    use tidelog_model::RaftNodeId;

    /// Proves that the mark stays while the broker is not well, that it is gone for good when it is, and that nothing else is removed.
    #[tokio::test(start_paused = true)]
    async fn the_mark_goes_when_the_broker_is_well() {
        let memory = MemoryDisk::new();
        let disk = memory.shared();
        let dir = Path::new("/data");
        disk.create_dir_all(dir).unwrap();
        let mark = Mark::new(RaftNodeId::new(11), RaftNodeId::new(12), "a bit");
        mark.store(disk.as_ref(), dir).unwrap();
        let (tasks, looks) = (Tasks::new(), Arc::new(AtomicUsize::new(0)));
        let seen = Arc::clone(&looks);
        let is_well = move || seen.fetch_add(1, Ordering::Relaxed) >= 3;
        forget_when_well(&tasks, Arc::clone(&disk), dir.to_owned(), is_well);
        let load = || Mark::load(disk.as_ref(), dir).unwrap();
        tokio::time::sleep(TICK * 3 + TICK / 2).await;
        assert_eq!(load(), Some(mark));
        tokio::time::sleep(TICK).await;
        assert_eq!(load(), None);
        let _ = memory.crash(1);
        assert_eq!(load(), None, "nor after a crash");
        tokio::time::sleep(TICK * 5).await;
        assert_eq!(looks.load(Ordering::Relaxed), 4, "it is over");
        tasks.stop().await;
    }
}
