//! Ends a broker's process when the test's is gone, however that came: a test that is killed runs no destructor.
//!
//! Owns: [`Guard`].
//! Not here: the end in order (`process.rs`).

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// A shell that waits for the end of its input, which this process holds open, and kills then.
pub(crate) struct Guard(Child);

impl Guard {
    /// Watches over a child of this process. To be dropped before or as soon as that is reaped: its id may be another's later.
    pub(crate) fn over(child: &Child) -> Result<Self> {
        let shell = Command::new("sh")
            .args(["-c", "read -r _; kill -9 \"$1\"", "guard"])
            .arg(child.id().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Ok(Self(shell.context("start of the shell that guards")?))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Before its input ends: it must kill nobody.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    fn sleeper() -> Child {
        Command::new("sleep").arg("600").spawn().unwrap()
    }

    /// Proves that a guarded process ends when whoever guards it is gone, and goes on when the guard is dropped.
    #[test]
    fn the_guarded_end_with_the_guarding() {
        let mut guarded = sleeper();
        let guard = Guard::over(&guarded).unwrap();
        drop(guard);
        assert!(guarded.try_wait().unwrap().is_none(), "it goes on");
        let mut guard = Guard::over(&guarded).unwrap();
        // What the system does with the files of a process that was killed.
        drop(guard.0.stdin.take());
        assert_eq!(guarded.wait().unwrap().signal(), Some(9));
    }
}
