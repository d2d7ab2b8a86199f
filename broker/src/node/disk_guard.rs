//! The disk reserve: new records are refused before the disk is full, so that what was accepted stays safe and uploads,
//! deletes, votes and commits go on (design: refuse new work before accepted history is at risk).
//!
//! Owns: measuring free space, and the one log line when it crosses the reserve.
//! Not here: the refusal itself (`api::produce`).

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::admin::Health;
use tidelog_env::Tasks;
use tidelog_env::disk::Disk;

/// How often free space is measured: at 500 MB/s this is 500 MB, the default reserve.
const INTERVAL: Duration = Duration::from_secs(1);

/// Starts measuring; the flag says whether appends are refused. `reserve_bytes` 0: never.
pub(super) fn start(
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    reserve_bytes: u64,
    health: Health,
    tasks: &Tasks,
) -> Arc<AtomicBool> {
    let refusing = Arc::new(AtomicBool::new(false));
    if reserve_bytes == 0 {
        return refusing;
    }
    measure(disk.as_ref(), &dir, reserve_bytes, &health, &refusing);
    let flag = Arc::clone(&refusing);
    tasks.supervise("disk-guard", INTERVAL, move || {
        let (disk, dir, health, flag) = (
            Arc::clone(&disk),
            dir.clone(),
            health.clone(),
            Arc::clone(&flag),
        );
        async move {
            loop {
                tokio::time::sleep(INTERVAL).await;
                measure(disk.as_ref(), &dir, reserve_bytes, &health, &flag);
            }
        }
    });
    refusing
}

fn measure(
    disk: &dyn Disk,
    dir: &std::path::Path,
    reserve_bytes: u64,
    health: &Health,
    refusing: &AtomicBool,
) {
    let available = match disk.space(dir) {
        Ok(space) => space.available_bytes,
        Err(error) => {
            tracing::warn!("free space of {} is unknown: {error}", dir.display());
            return;
        }
    };
    let low = available < reserve_bytes;
    let crossed = refusing.swap(low, Ordering::Relaxed) != low;
    if low {
        // Told anew each time: who reads it wants the bytes of now.
        let text = format!(
            "the disk of {} has {available} bytes left, less than log.reserve-bytes = {reserve_bytes}: new records are \
             refused until there is room",
            dir.display()
        );
        if crossed {
            tracing::error!("{text}");
        }
        health.not_ready("disk", text);
    } else if crossed {
        tracing::info!(
            "the disk of {} has room again: records are accepted",
            dir.display()
        );
        health.ready("disk");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;
    use tidelog_env::MemoryDisk;

    /// Proves that appends are refused while there is less room than the reserve, that health tells the bytes of now and not those of the crossing, and that both end with
    /// it.
    #[test]
    fn health_tells_the_room_of_now() {
        let memory = MemoryDisk::new();
        let (disk, dir) = (memory.shared(), PathBuf::from("/"));
        let (health, refusing) = (Health::default(), AtomicBool::new(false));
        let told = || {
            measure(disk.as_ref(), &dir, 100, &health, &refusing);
            let reasons = health.reasons();
            assert_eq!(refusing.load(Ordering::Relaxed), !reasons.is_empty());
            reasons.first().map(|reason| reason.message.clone())
        };
        memory.set_capacity(100);
        assert_eq!(told(), None);
        for left in [99, 10] {
            memory.set_capacity(left);
            let why = told().unwrap();
            assert!(why.contains(&format!("has {left} bytes left")), "{why}");
        }
        memory.set_capacity(100);
        assert_eq!(told(), None);
    }
}
