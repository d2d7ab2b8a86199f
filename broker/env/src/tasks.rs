//! Supervised background tasks: every one has a name, stops with its owner, and is restarted or reported when it ends.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Spawns tasks that belong together and stops them together. Clones share one set.
#[derive(Clone, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    stop: CancellationToken,
    panics: Arc<AtomicU64>,
}

impl Tasks {
    /// An empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A set of its own whose tasks also end when this one stops. Who stops this set waits for its own tasks only: stop the child first.
    #[must_use]
    pub fn child(&self) -> Self {
        Self {
            tracker: TaskTracker::new(),
            stop: self.stop.child_token(),
            panics: Arc::clone(&self.panics),
        }
    }

    /// A part of this set: its tasks are this set's, which waits for them when it stops, and can be ended before the others.
    #[must_use]
    pub fn part(&self) -> TasksPart {
        TasksPart(Self {
            tracker: self.tracker.clone(),
            stop: self.stop.child_token(),
            panics: Arc::clone(&self.panics),
        })
    }

    /// Fires when [`Tasks::stop`] is called.
    #[must_use]
    pub fn stopping(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// How many tasks of the set ended by a panic since the start.
    #[must_use]
    pub fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    /// Runs `future` until it ends or the set stops (the future is then dropped at its next await point).
    /// A panic is logged with the task's name and counted; it never passes unseen.
    pub fn spawn<F>(&self, name: &'static str, future: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let stop = self.stop.clone();
        let panics = Arc::clone(&self.panics);
        let inner = tokio::spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = future => {}
            }
        });
        self.tracker.spawn(async move {
            if let Err(error) = inner.await
                && error.is_panic()
            {
                panics.fetch_add(1, Ordering::Relaxed);
                tracing::error!(task = name, "background task panicked: {error}");
            }
        });
    }

    /// Runs what `make` returns again and again until the set stops: when it ends or panics, that is logged and
    /// counted, and it starts anew after `pause`. For loops that must not die in silence (field report A07).
    pub fn supervise<M, F>(&self, name: &'static str, pause: Duration, make: M)
    where
        M: Fn() -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let stop = self.stop.clone();
        let panics = Arc::clone(&self.panics);
        self.tracker.spawn(async move {
            while !stop.is_cancelled() {
                let mut run = tokio::spawn(make());
                tokio::select! {
                    () = stop.cancelled() => {
                        run.abort();
                        // Who stops the set finds what the task held given back.
                        let _aborted = run.await;
                        return;
                    }
                    ended = &mut run => match ended {
                        Ok(()) => tracing::warn!(task = name, "background task ended; it starts again"),
                        Err(error) => {
                            panics.fetch_add(1, Ordering::Relaxed);
                            tracing::error!(task = name, "background task failed: {error}; it starts again");
                        }
                    },
                }
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(pause) => {}
                }
            }
        });
    }

    /// Asks every task to stop and waits until all have.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}

/// Some tasks of a set. They end with the set, or when this is dropped.
pub struct TasksPart(Tasks);

impl TasksPart {
    /// As [`Tasks::supervise`].
    pub fn supervise<M, F>(&self, name: &'static str, pause: Duration, make: M)
    where
        M: Fn() -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        self.0.supervise(name, pause, make);
    }
}

impl Drop for TasksPart {
    fn drop(&mut self) {
        self.0.stop.cancel();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use tokio::sync::mpsc;

    /// Says when it is dropped.
    struct Alive(mpsc::UnboundedSender<&'static str>, &'static str);

    impl Drop for Alive {
        fn drop(&mut self) {
            let _ = self.0.send(self.1);
        }
    }

    fn run(part: &TasksPart, name: &'static str, said: &mpsc::UnboundedSender<&'static str>) {
        let said = said.clone();
        part.supervise(name, Duration::from_millis(1), move || {
            let alive = Alive(said.clone(), name);
            async move {
                std::future::pending::<()>().await;
                drop(alive);
            }
        });
    }

    /// Proves that the tasks of a part end with it and no others do, and that the set waits for those of the parts that are left.
    #[tokio::test]
    async fn a_part_ends_alone() {
        let tasks = Tasks::new();
        let (said, mut ended) = mpsc::unbounded_channel();
        let (one, two) = (tasks.part(), tasks.part());
        run(&one, "one", &said);
        run(&two, "two", &said);
        tokio::task::yield_now().await;
        drop(one);
        assert_eq!(ended.recv().await, Some("one"));
        assert!(ended.try_recv().is_err());
        tasks.stop().await;
        assert_eq!(ended.recv().await, Some("two"));
    }
}
