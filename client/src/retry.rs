//! Trying again: growing pauses with jitter, until a deadline.
//!
//! Owns: the pauses.
//! Not here: whether it is safe to try again (the caller decides from `Error::outcome`).

use crate::error::{Error, Outcome};
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::Random;
use tokio::time::Instant;

/// First pause. Short enough that a leader change of a few hundred milliseconds costs little.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
/// Longest pause (before jitter).
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Longest pause (before jitter) between two questions who leads. An election takes about two seconds: a pause of a second at its
/// end made half of it again.
pub(crate) const FAILOVER_PAUSE_MAX: Duration = Duration::from_millis(250);

/// The pauses of one operation: 50 ms doubling to 1 s, each spread over 50 % to 150 %.
#[derive(Clone)]
pub struct Backoff {
    random: Arc<dyn Random>,
    next: Duration,
    max: Duration,
}

impl Backoff {
    /// Starts with the first pause.
    #[must_use]
    pub fn new(random: Arc<dyn Random>) -> Self {
        Self {
            random,
            next: PAUSE_FIRST,
            max: PAUSE_MAX,
        }
    }

    /// Pauses for what waits for a new leader, as [`FAILOVER_PAUSE_MAX`] says.
    pub(crate) fn failover(random: Arc<dyn Random>) -> Self {
        Self {
            max: FAILOVER_PAUSE_MAX,
            ..Self::new(random)
        }
    }

    /// The next pause.
    pub fn pause(&mut self) -> Duration {
        let pause = self.random.jitter(self.next);
        self.next = (self.next * 2).min(self.max);
        pause
    }

    /// After a success: the next pause is the first again.
    pub fn reset(&mut self) {
        self.next = PAUSE_FIRST;
    }
}

/// One operation that is tried until a deadline.
pub struct Attempts {
    backoff: Backoff,
    started: Instant,
    deadline: Instant,
    outcome: Outcome,
}

impl Attempts {
    /// Starts now and ends at `deadline`.
    #[must_use]
    pub fn until(deadline: Instant, random: Arc<dyn Random>) -> Self {
        Self {
            backoff: Backoff::new(random),
            started: Instant::now(),
            deadline,
            outcome: Outcome::DidNotHappen,
        }
    }

    /// The deadline.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether an earlier attempt may have been done.
    pub(crate) fn may_have_happened(&self) -> bool {
        self.outcome == Outcome::MayHaveHappened
    }

    /// After a failed attempt: waits and returns `Ok` when another one may be made, else the error to give back.
    /// Remembers whether any attempt may have happened.
    pub async fn again(&mut self, error: Error) -> Result<(), Error> {
        self.again_for(Duration::ZERO, error).await
    }

    /// The same for an attempt that takes at least so long: one that ends unanswered would leave open what is known now.
    pub(crate) async fn again_for(&mut self, least: Duration, error: Error) -> Result<(), Error> {
        if error.outcome() == Outcome::MayHaveHappened {
            self.outcome = Outcome::MayHaveHappened;
        }
        if !error.is_retriable() {
            return Err(error);
        }
        let pause = self.backoff.pause();
        if Instant::now() + pause + least >= self.deadline {
            return Err(Error::Deadline {
                after: self.started.elapsed(),
                outcome: self.outcome,
                last: Box::new(error),
            });
        }
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::error::ErrorCode;
    use tidelog_env::SystemRandom;

    /// Proves that pauses grow to their maximum, within the jitter, and start over after a success.
    #[test]
    fn pauses_grow_within_jitter() {
        let mut backoff = Backoff::new(SystemRandom::seeded(1));
        let mut expected = PAUSE_FIRST;
        for _ in 0..20 {
            let pause = backoff.pause();
            assert!(
                pause >= expected / 2 && pause <= expected * 3 / 2,
                "{pause:?} of {expected:?}"
            );
            expected = (expected * 2).min(PAUSE_MAX);
        }
        backoff.reset();
        assert!(backoff.pause() <= PAUSE_FIRST * 3 / 2);
    }

    /// Proves that no attempt is begun for which too little time is left.
    #[tokio::test]
    async fn a_short_rest_is_not_begun() {
        let random = SystemRandom::seeded(1);
        let mut attempts = Attempts::until(Instant::now() + Duration::from_secs(2), random);
        let moved = || ErrorCode::NOT_CONTROLLER.check("x", None).unwrap_err();
        attempts
            .again_for(Duration::from_millis(100), moved())
            .await
            .unwrap();
        let error = attempts.again_for(Duration::from_secs(2), moved()).await;
        assert_eq!(error.unwrap_err().outcome(), Outcome::DidNotHappen);
    }

    /// Proves that giving up remembers an early attempt that may have happened, though the last one did not.
    #[tokio::test]
    async fn giving_up_remembers_the_open_outcome() {
        let mut attempts = Attempts::until(
            Instant::now() + Duration::from_millis(400),
            SystemRandom::seeded(1),
        );
        let open = ErrorCode::REQUEST_TIMED_OUT.check("x", None).unwrap_err();
        attempts.again(open).await.unwrap();
        let error = loop {
            let sure = ErrorCode::NOT_LEADER_OR_FOLLOWER
                .check("x", None)
                .unwrap_err();
            if let Err(error) = attempts.again(sure).await {
                break error;
            }
        };
        assert_eq!(error.outcome(), Outcome::MayHaveHappened);
        assert_eq!(error.code(), Some(ErrorCode::NOT_LEADER_OR_FOLLOWER));
    }
}
