//! The independent checker: judges what producers and readers saw, knowing nothing of how the broker works.
//!
//! Owns: the history of sends, polls, and answers, the rules it must keep, the report that names the first events that break one.
//! Not here: making histories (`tests/cluster`), the invariants inside a broker (docs/INVARIANTS.md).
//! Spec: docs/INVARIANTS.md (I1 to I5 as a client sees them; I1, I6, I7, I9, I10, I11 as somebody does who owns disks and store)
//!
//! Rules, each a [`Rule`]:
//! an acknowledged record is read at its offset by every reader that reads past it, and lies below every later end of the
//! log; an offset has one value for ever; a record is in the log once, in the order its producer sent it; a high
//! watermark never goes back for a reader; nothing is read above it, or again, or that surely failed, or nobody sent;
//! a record sent after another was acknowledged lies behind it; in one epoch one broker leads; no answer says less than
//! was known when it was asked for; an epoch that is over ends where it ended.
//!
//! Beside histories: where records are durable ([`Copies`]), and what the object store alone holds ([`store`]).

mod answers;
mod copies;
mod history;
mod judge;
mod pauses;
mod report;
pub mod store;
#[cfg(test)]
mod tests;

pub use copies::{Copies, Machine, Missing, RecordId};
pub use history::{
    Answer, Bound, Broker, Event, History, Offset, Partition, Producer, Question, Reader, Sequence,
};
pub use pauses::{Pauses, percentile};
pub use report::{Report, Rule, Summary, Violation};

/// Judges a whole history.
///
/// # Errors
/// The report of everything that breaks a rule, first events first.
pub fn check(history: &History) -> Result<Summary, Report> {
    judge::Judge::default().judge(history)
}
