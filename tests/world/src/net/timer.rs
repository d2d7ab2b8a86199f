//! A wait for something to arrive.
//!
//! Owns: one timer of the host's runtime, made when it is first needed.
//! Not here: what is waited for.
//! Spec: docs/simulation.md

use crate::hosts::HostTime;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Sleep, sleep_until};

#[derive(Default)]
pub(super) struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    /// Ready when it is `at` on the host. `None`: never, somebody else wakes the task.
    pub(super) fn poll(
        &mut self,
        at: Option<Duration>,
        time: &HostTime,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        let Some(at) = at else {
            return Poll::Pending;
        };
        let deadline = time.instant_at(at);
        let sleep = self
            .0
            .get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if sleep.deadline() != deadline {
            sleep.as_mut().reset(deadline);
        }
        sleep.as_mut().poll(context)
    }
}
