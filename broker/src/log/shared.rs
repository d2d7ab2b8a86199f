//! What the handle, the writer and the file preparation of one log share.
//!
//! Owns: waking the writer.

use super::error::LogError;
use super::metrics::{LogMetrics, LogObserver};
use super::order::{Done, Order};
use super::pool::FilePool;
use super::types::{FatalSignal, GroupLogConfig, WriterMode};
use super::writer::WriterState;
use parking_lot::{Condvar, Mutex};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use tidelog_env::Disk;
use tidelog_env::disk::DirLock;
use tokio::sync::{Notify, oneshot};

/// One log. Lock order: `writer`, then `order`; `pool` has its own lock and takes neither.
pub(super) struct Shared {
    pub(super) config: GroupLogConfig,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) order: Mutex<Order>,
    pub(super) writer: Mutex<WriterState>,
    pub(super) pool: FilePool,
    pub(super) metrics: Arc<LogMetrics>,
    pub(super) observer: Arc<dyn LogObserver>,
    pub(super) fatal: FatalSignal,
    pub(super) dir_lock: Mutex<Option<Box<dyn DirLock>>>,
    pub(super) threads: Mutex<Vec<JoinHandle<()>>>,
    /// One checkpoint is written at a time.
    pub(super) checkpoints: Mutex<()>,
    pub(super) woken: Condvar,
    pub(super) notify: Notify,
}

impl Shared {
    /// Tells the writer that something waits (or that the log closes).
    pub(super) fn wake(&self) {
        match self.config.writer {
            WriterMode::Thread => {
                self.woken.notify_one();
            }
            WriterMode::Task => self.notify.notify_one(),
            WriterMode::Manual => {}
        }
    }

    pub(super) fn take_spare(&self) -> io::Result<PathBuf> {
        if self.config.writer == WriterMode::Thread {
            self.pool.take_waiting()
        } else {
            self.pool.take_now()
        }
    }

    /// Tells the observer of damage; what the caller does with the error is its own affair.
    pub(super) fn told_of(&self, error: &LogError) {
        tell(self.observer.as_ref(), error);
    }

    /// No more calls; the writer ends once the queue is empty.
    pub(super) fn begin_close(&self) {
        self.order.lock().closing = true;
        self.wake();
        if self.config.writer != WriterMode::Thread {
            self.pool.stop();
        }
    }
}

/// See [`LogObserver::damaged`].
pub(super) fn tell(observer: &dyn LogObserver, error: &LogError) {
    if matches!(error, LogError::Damaged { .. } | LogError::Lost { .. }) {
        observer.damaged(error);
    }
}

/// A callback, and the future of what it is called with.
pub(super) fn signal() -> (Done, oneshot::Receiver<Result<(), LogError>>) {
    let (sender, receiver) = oneshot::channel();
    // A caller that went away does not want to know.
    (Box::new(move |result| drop(sender.send(result))), receiver)
}
