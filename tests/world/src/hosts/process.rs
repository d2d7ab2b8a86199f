//! One incarnation of a host: a runtime with a paused clock, and the main future in it.
//!
//! Owns: running it up to a point in its time, its end, its sudden end.
//! Not here: which host runs when (`hosts`).
//! Spec: docs/simulation.md

use super::{Ended, HostContext, HostTime, panics};
use std::future::{Future, poll_fn};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::task::Poll;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, advance, sleep_until};

type Main = Pin<Box<dyn Future<Output = Result<(), String>>>>;

pub(super) struct Process {
    runtime: Runtime,
    time: HostTime,
    main: Option<Main>,
}

impl Process {
    /// Runs nothing yet: `main` is called in the first step.
    pub(super) fn start<F, Fut>(context: HostContext, main: F) -> io::Result<Self>
    where
        F: FnOnce(HostContext) -> Fut + 'static,
        Fut: Future<Output = Result<(), String>> + 'static,
    {
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()?;
        {
            let _entered = runtime.enter();
            context.time.begin();
        }
        let time = context.time.clone();
        let main: Main = Box::pin(async move { main(context).await });
        Ok(Self {
            runtime,
            time,
            main: Some(main),
        })
    }

    /// Runs until its clock shows `until` and everything before that is done, or until main ends. With `jump` its clock is at
    /// `jump` before any of its code runs.
    pub(super) fn run(&mut self, jump: Option<Instant>, until: Instant) -> Option<Ended> {
        let main = self.main.as_mut()?;
        let time = &self.time;
        let step = async {
            if let Some(to) = jump {
                advance(to.saturating_duration_since(Instant::now())).await;
            }
            let mut end = pin!(sleep_until(until));
            poll_fn(|context| {
                if time.is_halted() {
                    return Poll::Ready(None);
                }
                match main.as_mut().poll(context) {
                    Poll::Ready(result) => Poll::Ready(Some(result)),
                    Poll::Pending => end.as_mut().poll(context).map(|()| None),
                }
            })
            .await
        };
        match catch_unwind(AssertUnwindSafe(|| self.runtime.block_on(step))) {
            // What a halted process ends with is nobody's.
            _ if self.time.is_halted() => None,
            Ok(None) => None,
            Ok(Some(result)) => Some(Ended::Returned(result)),
            Err(payload) => Some(Ended::Panicked(panics::text(payload.as_ref()))),
        }
    }
}

impl Drop for Process {
    /// Main first, inside the runtime, as its destructors may need it; the tasks go with the runtime. A destructor's panic ends only this
    /// (and is counted by the hook).
    fn drop(&mut self) {
        let main = self.main.take();
        let _entered = self.runtime.enter();
        let _panicked = catch_unwind(AssertUnwindSafe(|| drop(main)));
    }
}
