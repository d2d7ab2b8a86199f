//! Waiting for a condition, with a deadline.
//!
//! Owns: the loop, the pause between two looks, the text when the deadline passes.
//! Not here: the conditions.

use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::Instant;

/// Between two looks. A look costs about a millisecond.
const PAUSE: Duration = Duration::from_millis(20);

/// What a look at a condition found.
#[derive(Debug)]
pub enum Waiting<T> {
    /// It holds.
    Done(T),
    /// Not yet, and why.
    NotYet(String),
}

/// Looks until the condition holds.
///
/// # Errors
/// The deadline passed (the text says what was found last), or a look found that waiting will not help.
pub async fn until<T>(
    what: &str,
    deadline: Duration,
    mut look: impl AsyncFnMut() -> Result<Waiting<T>>,
) -> Result<T> {
    let end = Instant::now() + deadline;
    loop {
        let why = match look().await? {
            Waiting::Done(value) => return Ok(value),
            Waiting::NotYet(why) => why,
        };
        if Instant::now() >= end {
            bail!("waited {deadline:?} for {what}: {why}");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    // Proves: waiting ends with the value, at the deadline with what was found last, and at once when it is in vain.
    #[tokio::test]
    async fn three_ends() {
        let mut looks = 0;
        let value = until("x", Duration::from_secs(1), async || {
            looks += 1;
            Ok(if looks == 3 {
                Waiting::Done(looks)
            } else {
                Waiting::NotYet(String::new())
            })
        });
        assert_eq!(value.await.unwrap(), 3);
        let late = until::<()>("x", Duration::from_millis(50), async || {
            Ok(Waiting::NotYet("no".to_owned()))
        });
        assert_eq!(late.await.unwrap_err().to_string(), "waited 50ms for x: no");
        let vain = until::<()>("x", Duration::from_secs(1), async || bail!("gone"));
        assert_eq!(vain.await.unwrap_err().to_string(), "gone");
    }
}
