//! Where every entry is: positions of all of them, the recent ones in memory.
//!
//! Owns: index -> (file, position, lengths), and the cache of recent entries.
//! Not here: the files, the order of writes.

use super::types::{EntryKind, LogEntry};
use std::collections::VecDeque;
use tidelog_model::{LogId, LogIndex, Term};

/// Where one entry's frame is. 40 bytes: an entry of 4 KiB costs 1 % of itself in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) term: Term,
    /// Sequence of the log file.
    pub(super) file: u64,
    /// Of the frame's header.
    pub(super) position: u64,
    pub(super) dir_len: u32,
    pub(super) body_len: u32,
    pub(super) kind: EntryKind,
}

/// All entries after `base`, without a hole.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// The log id before the first slot; `None` when nothing was there before.
    base: Option<LogId>,
    first: u64,
    slots: VecDeque<Slot>,
    /// The newest entries, without a hole up to the last.
    cache: VecDeque<LogEntry>,
    cache_bytes: usize,
}

impl Index {
    pub(super) fn with_base(base: Option<LogId>) -> Self {
        let first = base.map_or(0, |base| base.index.get() + 1);
        Self {
            base,
            first,
            ..Self::default()
        }
    }

    pub(super) fn base(&self) -> Option<LogId> {
        self.base
    }

    /// The last entry, or what was before the first when there is none.
    pub(super) fn last(&self) -> Option<LogId> {
        match self.slots.back() {
            Some(slot) => {
                let index = self.first + self.slots.len() as u64 - 1;
                Some(LogId {
                    term: slot.term,
                    index: LogIndex::new(index),
                })
            }
            None => self.base,
        }
    }

    /// The first entry's slot.
    pub(super) fn front(&self) -> Option<&Slot> {
        self.slots.front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub(super) fn first_index(&self) -> LogIndex {
        LogIndex::new(self.first)
    }

    pub(super) fn slot(&self, index: LogIndex) -> Option<&Slot> {
        let at = index.get().checked_sub(self.first)?;
        self.slots.get(usize::try_from(at).ok()?)
    }

    pub(super) fn cached(&self, index: LogIndex) -> Option<&LogEntry> {
        let front = self.cache.front()?;
        let at = index.get().checked_sub(front.id.index.get())?;
        self.cache.get(usize::try_from(at).ok()?)
    }

    /// The first entry that is in memory; the one after the last when none is.
    pub(super) fn memory_start(&self) -> LogIndex {
        let end = LogIndex::new(self.first + self.slots.len() as u64);
        self.cache.front().map_or(end, |entry| entry.id.index)
    }

    /// The last entry that lies in a file below `sequence`.
    pub(super) fn last_below(&self, sequence: u64) -> Option<LogIndex> {
        let count = self.slots.partition_point(|slot| slot.file < sequence) as u64;
        (count > 0).then(|| LogIndex::new(self.first + count - 1))
    }

    /// Whether an entry `id` may come next; else why not.
    pub(super) fn admits(&self, id: LogId) -> Result<(), String> {
        let Some(last) = self.last() else {
            return Ok(());
        };
        if last.index.get().checked_add(1) != Some(id.index.get()) {
            return Err(format!("entry {id} does not follow {last}"));
        }
        if id.term < last.term {
            return Err(format!("entry {id} has a lower term than {last} before it"));
        }
        Ok(())
    }

    /// Adds the next entry (see [`Index::admits`]); `entry` keeps it in memory.
    pub(super) fn push(&mut self, id: LogId, slot: Slot, entry: Option<LogEntry>) {
        if self.slots.is_empty() {
            self.first = id.index.get();
        }
        self.slots.push_back(slot);
        match entry {
            Some(entry) => {
                self.cache_bytes += size_of_entry(&entry);
                self.cache.push_back(entry);
            }
            None => self.clear_cache(),
        }
    }

    fn clear_cache(&mut self) {
        self.cache.clear();
        self.cache_bytes = 0;
    }

    /// Whether the log can be cut after `last`: it must be an entry, or what lies right before the first one.
    pub(super) fn holds(&self, last: Option<LogId>) -> bool {
        match last {
            None => self.base.is_none(),
            Some(id) if self.base == Some(id) => true,
            Some(id) => self.slot(id.index).is_some_and(|slot| slot.term == id.term),
        }
    }

    /// Drops every entry after `last`, which [`Index::holds`].
    pub(super) fn truncate(&mut self, last: Option<LogId>) {
        let keep = last.map_or(0, |last| (last.index.get() + 1).saturating_sub(self.first));
        let keep = usize::try_from(keep).unwrap_or(usize::MAX);
        self.slots.truncate(if last.is_none() { 0 } else { keep });
        if self.slots.is_empty() {
            self.first = self.base.map_or(0, |base| base.index.get() + 1);
        }
        let limit = last.map(|last| last.index);
        while self
            .cache
            .back()
            .is_some_and(|entry| Some(entry.id.index) > limit)
        {
            self.pop_cache_back();
        }
    }

    /// Replay only: cuts below the first entry known, so that the log goes on from `last`.
    pub(super) fn rebase(&mut self, last: Option<LogId>) {
        *self = Self::with_base(last);
    }

    /// Forgets entries up to `upto`; when that is past the end, the log goes on after it.
    pub(super) fn purge(&mut self, upto: LogId) {
        if !self.slots.is_empty() && upto.index.get() < self.first {
            return;
        }
        while self.first <= upto.index.get() && self.slots.pop_front().is_some() {
            self.first += 1;
        }
        if self.base.is_none_or(|base| base.index < upto.index) {
            self.base = Some(upto);
        }
        if self.slots.is_empty() {
            self.first = self.base.map_or(0, |base| base.index.get() + 1);
        }
        while self
            .cache
            .front()
            .is_some_and(|entry| entry.id.index <= upto.index)
        {
            self.pop_cache_front();
        }
    }

    /// Frees memory down to `bytes`, but keeps what is not yet at a place `(file, position)` before `written`.
    pub(super) fn shrink_cache(&mut self, bytes: usize, written: (u64, u64)) {
        while self.cache_bytes > bytes {
            let Some(front) = self.cache.front() else {
                return;
            };
            let Some(slot) = self.slot(front.id.index) else {
                return;
            };
            if (slot.file, slot.position) >= written {
                return;
            }
            self.pop_cache_front();
        }
    }

    fn pop_cache_front(&mut self) {
        if let Some(entry) = self.cache.pop_front() {
            self.cache_bytes -= size_of_entry(&entry);
        }
    }

    fn pop_cache_back(&mut self) {
        if let Some(entry) = self.cache.pop_back() {
            self.cache_bytes -= size_of_entry(&entry);
        }
    }
}

/// What an entry counts in the cache.
fn size_of_entry(entry: &LogEntry) -> usize {
    entry.dir.len() + entry.body.len() + size_of::<LogEntry>()
}
