//! What a sequence of frames means.
//!
//! Owns: the state that frames build up, the same code for a running log and for recovery.
//! Not here: bytes, files, durability.
//! Spec: docs/formats/group-log.md, "Meaning" and recovery rule 8

use super::format::Record;
use super::index::{Index, Slot};
use super::types::{LogEntry, LogState, Vote};
use tidelog_model::LogId;

/// The log as its frames so far say.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) index: Index,
    pub(super) vote: Option<Vote>,
    pub(super) committed: Option<LogId>,
    pub(super) purged: Option<LogId>,
}

impl Ledger {
    pub(super) fn state(&self) -> LogState {
        LogState {
            purged: self.purged,
            last: self.index.last(),
            vote: self.vote,
            committed: self.committed,
        }
    }

    /// Why an entry can not come next, if so.
    pub(super) fn admits(&self, id: LogId) -> Result<(), String> {
        self.index.admits(id)
    }

    /// Adds an entry that [`Ledger::admits`].
    pub(super) fn push(&mut self, id: LogId, slot: Slot, entry: Option<LogEntry>) {
        self.index.push(id, slot, entry);
    }

    /// Why the log can not be cut after `last`, if so.
    pub(super) fn admits_truncate(&self, last: Option<LogId>) -> Result<(), String> {
        if self.index.holds(last) {
            return Ok(());
        }
        let target = last.map_or_else(|| "nothing".to_owned(), |last| last.to_string());
        let held = self
            .index
            .base()
            .map_or_else(|| "nothing".to_owned(), |base| base.to_string());
        Err(format!(
            "cannot cut the log after {target}: the log holds what follows {held}"
        ))
    }

    /// Cuts; see [`Ledger::admits_truncate`].
    pub(super) fn truncate(&mut self, last: Option<LogId>) {
        self.index.truncate(last);
    }

    /// Forgets entries up to `upto`. Never goes back.
    pub(super) fn purge(&mut self, upto: LogId) {
        if self.purged.is_none_or(|purged| purged.index < upto.index) {
            self.purged = Some(upto);
            self.index.purge(upto);
        }
    }

    /// Takes the next frame of a file.
    pub(super) fn replay(&mut self, record: Record, slot: Option<Slot>) -> Result<(), String> {
        match (record, slot) {
            (Record::Entry { id, .. }, Some(slot)) => {
                self.admits(id)?;
                self.push(id, slot, None);
            }
            (Record::Entry { id, .. }, None) => return Err(format!("entry {id} has no place")),
            (Record::Vote(vote), _) => self.vote = Some(vote),
            (Record::Committed(id), _) => self.committed = id,
            (Record::Truncate(last), _) => self.replay_truncate(last)?,
            (Record::Purge(upto), _) => self.purge(upto),
        }
        Ok(())
    }

    /// The files with the entries around the cut may be purged already: then the log goes on from there, and
    /// [`Ledger::missing`] sees to it that a later purge covers the rest.
    fn replay_truncate(&mut self, last: Option<LogId>) -> Result<(), String> {
        if self.index.holds(last) {
            self.index.truncate(last);
            return Ok(());
        }
        let below_base = self
            .index
            .base()
            .is_some_and(|base| last.is_none_or(|last| last.index < base.index));
        let above_purged = self
            .purged
            .is_none_or(|purged| last.is_some_and(|last| last.index >= purged.index));
        if below_base && above_purged {
            self.index.rebase(last);
            return Ok(());
        }
        self.admits_truncate(last)
    }

    /// The last log id that should be in some file and is in none (recovery rule 8).
    pub(super) fn missing(&self) -> Option<LogId> {
        self.index
            .base()
            .filter(|base| self.purged.is_none_or(|purged| purged.index < base.index))
    }

    /// The commit index never lies past the end (recovery rule 9).
    pub(super) fn clamp_committed(&mut self) {
        if let (Some(committed), last) = (self.committed, self.index.last())
            && last.is_none_or(|last| last.index < committed.index)
        {
            self.committed = last;
        }
    }
}
