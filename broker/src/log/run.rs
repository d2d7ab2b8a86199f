//! When the writer runs: a thread, a task, or by hand.
//!
//! Owns: the loops, their waiting, and their end.
//! Not here: what a step does (`writer.rs`).

use super::shared::Shared;
use super::types::WriterMode;
use super::writer::{Begun, Step, abandon, begin, fail, finish, step};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::Tasks;

/// Pause before a full disk is tried again.
const STARVED_RETRY: Duration = Duration::from_secs(1);

/// Starts the loops of the mode.
pub(super) fn start(shared: &Arc<Shared>, tasks: &Tasks) -> io::Result<()> {
    match shared.config.writer {
        WriterMode::Manual => {}
        WriterMode::Task => tasks.spawn("group-log", task_loop(Arc::clone(shared))),
        WriterMode::Thread => {
            let group = shared.config.group;
            let (writer, preparer) = (Arc::clone(shared), Arc::clone(shared));
            let mut threads = shared.threads.lock();
            let thread = std::thread::Builder::new().name(format!("log-{group}"));
            threads.push(thread.spawn(move || thread_loop(&writer))?);
            let thread = std::thread::Builder::new().name(format!("log-files-{group}"));
            threads.push(thread.spawn(move || prepare_loop(&preparer))?);
        }
    }
    Ok(())
}

fn prepare_loop(shared: &Shared) {
    if catch_unwind(AssertUnwindSafe(|| shared.pool.run())).is_err() {
        tracing::error!(dir = %shared.config.dir.display(), "preparing log files panicked");
    }
    // A writer that waits for a file must not wait for ever.
    shared.pool.stop();
}

fn thread_loop(shared: &Shared) {
    let mut flush_lazy = false;
    loop {
        let done = match catch_unwind(AssertUnwindSafe(|| step(shared, flush_lazy))) {
            Ok(done) => done,
            Err(_) => fail(
                shared,
                "writing failed",
                io::Error::other("the writer panicked"),
                Vec::new(),
            ),
        };
        flush_lazy = false;
        match done {
            Step::Worked => {}
            Step::Stopped => break,
            Step::Starved => {
                let mut order = shared.order.lock();
                if !order.closing {
                    shared.woken.wait_for(&mut order, STARVED_RETRY);
                } else {
                    drop(order);
                    abandon(shared, "closing", io::ErrorKind::StorageFull.into());
                }
            }
            Step::Idle => {
                let mut order = shared.order.lock();
                if !order.queue.is_empty() {
                    continue;
                }
                if order.closing {
                    order.stopped = true;
                } else if order.lazy.is_some() {
                    flush_lazy = shared
                        .woken
                        .wait_for(&mut order, shared.config.lazy_delay)
                        .timed_out();
                } else {
                    shared.woken.wait(&mut order);
                }
            }
        }
    }
    shared.pool.stop();
}

async fn task_loop(shared: Arc<Shared>) {
    let mut flush_lazy = false;
    loop {
        let done = match begin(&shared, flush_lazy) {
            Begun::Over(step) => step,
            Begun::Unsynced(unsynced) => {
                // The disk's time: power goes here, and what comes meanwhile waits for the next write.
                tokio::time::sleep(shared.disk.delay()).await;
                finish(&shared, unsynced)
            }
        };
        flush_lazy = false;
        match done {
            Step::Worked => {
                shared.pool.maintain();
                tokio::task::yield_now().await;
            }
            Step::Stopped => return,
            Step::Starved => {
                if shared.order.lock().closing {
                    abandon(&shared, "closing", io::ErrorKind::StorageFull.into());
                    return;
                }
                tokio::time::sleep(STARVED_RETRY).await;
            }
            Step::Idle => {
                let (closing, lazy) = {
                    let mut order = shared.order.lock();
                    order.stopped |= order.closing && order.queue.is_empty();
                    (order.stopped, order.lazy.is_some())
                };
                if closing {
                    return;
                }
                if lazy {
                    let waited =
                        tokio::time::timeout(shared.config.lazy_delay, shared.notify.notified())
                            .await;
                    flush_lazy = waited.is_err();
                } else {
                    shared.notify.notified().await;
                }
            }
        }
    }
}

/// One step by hand, with the file preparation after it.
pub(super) fn manual_step(shared: &Shared) -> bool {
    match step(shared, true) {
        Step::Worked => {
            shared.pool.maintain();
            true
        }
        Step::Idle | Step::Starved | Step::Stopped => false,
    }
}
