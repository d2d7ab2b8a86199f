//! What placement agrees on with the state machines above it: commands, the machine trait, the errors of a proposal.
//!
//! Owns: [`Command`], [`StateMachine`], [`ProposeError`], [`SnapshotError`], [`Leadership`].
//! Not here: openraft (`raft_types.rs`), how an entry lies in the log (`format.rs`), the group itself (`group.rs`).
//! Spec: docs/protocols/placement.md

use bytes::Bytes;
use std::fmt;
use tidelog_model::{LogId, NodeId, Summed, Term};

/// One proposal: what a state machine is asked to apply.
///
/// Cloning shares the bytes. Placement never looks inside either part.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Command {
    /// A small header or directory: what apply, index and recovery read.
    pub dir: Bytes,
    /// Bulk bytes that apply does not need to read (record batches). May be empty.
    pub body: Summed,
}

impl Command {
    /// A command of a directory and a body.
    #[must_use]
    pub fn new(dir: Bytes, body: impl Into<Summed>) -> Self {
        let body = body.into();
        Self { dir, body }
    }

    /// Bytes that the command occupies, without the log's framing.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.dir.len().saturating_add(self.body.len())
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Command {
    /// Sizes only: contents of records never reach a log line (invariant I16).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "command({} B dir, {} B body)",
            self.dir.len(),
            self.body.len()
        )
    }
}

/// A replicated state machine: the same commands in the same order give the same state on every replica.
///
/// Implementations use no clock, no I/O, no randomness and no hash-map order. Every method returns quickly: `apply`
/// runs under the machine's write lock, and readers wait for it.
pub trait StateMachine: Send + Sync + 'static {
    /// What a proposer learns. Whatever is wrong with a command is an outcome, not an error of the group.
    type Outcome: Send + 'static;

    /// Applies one committed command. `id`s come in log order, each once; after a restart they begin again after
    /// the id given to [`StateMachine::restore`].
    fn apply(&mut self, id: LogId, command: &Command) -> Self::Outcome;

    /// An entry without a command (a leader's first entry of its term, a membership) passed at `id`.
    fn applied_blank(&mut self, id: LogId) {
        let _ = id;
    }

    /// The newest state that may be persisted, and the log id it holds everything up to.
    ///
    /// The id may be older than the last applied one (data groups: at their last published cut), never newer, and
    /// never goes back. `None`: nothing may be persisted yet, so nothing of the log is purged.
    fn snapshot(&self) -> Option<(LogId, Bytes)>;

    /// Replaces the state by an image that [`StateMachine::snapshot`] of some replica returned for `last`.
    ///
    /// # Errors
    /// What is wrong with the image. The machine is not used after that: the group stops as fatal.
    fn restore(&mut self, last: LogId, image: &Bytes) -> Result<(), String>;
}

/// Why a proposal has no outcome. [`ProposeError::may_have_happened`] says what a retry risks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// This replica does not lead, or its lease has run out. Did not happen. Ask `leader` where it is known.
    #[error("this replica does not lead the group; {}", led_by(*leader))]
    NotLeader {
        /// The broker that leads, as far as this replica knows.
        leader: Option<NodeId>,
    },
    /// The command is larger than one entry may be. Did not happen, and never will.
    #[error("a command of {bytes} bytes is larger than the {bytes_max} bytes of an entry")]
    TooLarge {
        /// Bytes of the command.
        bytes: usize,
        /// The most an entry may carry.
        bytes_max: usize,
    },
    /// Too much is in flight already. Did not happen. Try again later.
    #[error("too many proposals are in flight")]
    Overloaded,
    /// No outcome before the deadline. May have happened, and may still happen.
    #[error("no outcome before the deadline")]
    Timeout,
    /// Leadership was lost while the entry was in flight. May have happened through another leader.
    #[error("leadership changed while the entry was in flight")]
    Unknown,
    /// The group stopped. May have happened: the entry may already be in the log.
    #[error("the group stopped: {0}")]
    Fatal(String),
}

fn led_by(leader: Option<NodeId>) -> String {
    leader.map_or_else(
        || "no leader is known".to_owned(),
        |broker| format!("broker {broker} does"),
    )
}

impl ProposeError {
    /// Whether the command may be applied, now or later, in spite of the error.
    #[must_use]
    pub const fn may_have_happened(&self) -> bool {
        match self {
            Self::NotLeader { .. } | Self::TooLarge { .. } | Self::Overloaded => false,
            Self::Timeout | Self::Unknown | Self::Fatal(_) => true,
        }
    }
}

/// Why no checkpoint was made. The group goes on in every case but [`SnapshotError::Fatal`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// The machine has no image that may be persisted yet.
    #[error("the state machine has nothing to persist yet")]
    Nothing,
    /// The machine offered an image of a log id that is not applied here: a broken machine; nothing was written.
    #[error("the state machine offered an image at {offered}, but only {applied:?} is applied")]
    Ahead {
        /// What the machine said.
        offered: LogId,
        /// What is applied.
        applied: Option<LogId>,
    },
    /// The checkpoint could not be written; older ones are untouched. Try again later.
    #[error("the checkpoint could not be written: {0}")]
    Write(String),
    /// The checkpoint is on disk, but the group did not take note in time; trying again is harmless.
    #[error("the group did not take note of the checkpoint in time")]
    Timeout,
    /// The group stopped.
    #[error("the group stopped: {0}")]
    Fatal(String),
}

/// Who leads, as this replica knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Leadership {
    /// The broker that leads, where known.
    pub leader: Option<NodeId>,
    /// The newest term this replica has seen.
    pub term: Term,
    /// This replica leads in `term` **and** has applied the first entry of that term, so that its state holds
    /// everything earlier leaders have acknowledged. Before that it serves nothing.
    pub is_leader: bool,
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;

    /// Proves that each error tells a proposer whether a retry can duplicate.
    #[test]
    fn errors_say_whether_the_command_may_have_happened() {
        assert!(!ProposeError::NotLeader { leader: None }.may_have_happened());
        assert!(
            !ProposeError::TooLarge {
                bytes: 2,
                bytes_max: 1
            }
            .may_have_happened()
        );
        assert!(!ProposeError::Overloaded.may_have_happened());
        assert!(ProposeError::Timeout.may_have_happened());
        assert!(ProposeError::Unknown.may_have_happened());
        assert!(ProposeError::Fatal(String::new()).may_have_happened());
    }

    /// Proves that a command prints its sizes and never its contents.
    #[test]
    fn command_prints_sizes_only() {
        let command = Command::new(Bytes::from_static(b"secret"), Bytes::from_static(b"record"));
        assert_eq!(
            format!("{command:?} {command}"),
            "command(6 B dir, 6 B body) command(6 B dir, 6 B body)"
        );
        assert_eq!(command.bytes(), 12);
    }
}
