//! The group log as openraft's log storage.
//!
//! Owns: [`LogStore`]: entries to frames and back, bounded reads.
//! Not here: order and durability of frames (`log`), which this relies on: one ordered log for entries, votes, truncations and
//! purges, and a vote that is saved only behind everything before it.
//! Spec: docs/protocols/placement.md, docs/formats/group-entries.md

use super::raft_types::{
    RaftEntry, RaftLeaderId, RaftLogId, RaftVote, Types, entry_from_raft, entry_to_raft, from_raft,
    to_raft, vote_from_raft, vote_to_raft,
};
use crate::log::{GroupLog, LogEntry, LogError};
use futures::{Stream, StreamExt, stream};
use openraft::errors::LeaderChanged;
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::{LogState, OptionalSend, RaftLogReader};
use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, Range, RangeBounds};
use tidelog_env::{CrashPoint, crash_point};
use tidelog_model::LogIndex;

/// Bytes of one replication message (design.md section 4).
const REPLICATE_BYTES_MAX: usize = 1 << 20;
/// Bytes of entries held at a time while applying: a few of the largest entries.
const APPLY_BYTES_MAX: usize = 4 << 20;

/// Clones share one log.
#[derive(Clone)]
pub(super) struct LogStore {
    log: GroupLog,
}

impl LogStore {
    pub(super) fn new(log: GroupLog) -> Self {
        Self { log }
    }

    /// The part of `range` that the log holds.
    fn held(&self, range: &impl RangeBounds<u64>) -> Range<u64> {
        let state = self.log.state();
        let first = state.purged.map_or(0, |id| id.index.get() + 1);
        let end = state.last.map_or(first, |id| id.index.get() + 1);
        let from = match range.start_bound() {
            Bound::Included(index) => *index,
            Bound::Excluded(index) => index.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(index) => index.saturating_add(1),
            Bound::Excluded(index) => *index,
            Bound::Unbounded => u64::MAX,
        };
        from.max(first)..to.min(end)
    }

    /// Some entries from the front of `range`, at least one if it is not empty.
    async fn some(&self, range: Range<u64>, bytes_max: usize) -> io::Result<Vec<LogEntry>> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let indexes = LogIndex::new(range.start)..LogIndex::new(range.end);
        let entries = self
            .log
            .entries(indexes, bytes_max)
            .await
            .map_err(|error| error.to_io())?;
        Ok(entries)
    }

    /// `range` without what is gone from its front: purged meanwhile, or never there because the log begins later.
    async fn without_gone(&self, range: Range<u64>) -> io::Result<Range<u64>> {
        if range.is_empty() {
            return Ok(range);
        }
        let indexes = LogIndex::new(range.start)..LogIndex::new(range.end);
        // No bytes to spare: the first entry that there is, and no more.
        match self.log.entries(indexes, 0).await {
            Ok(found) => {
                let begins = found
                    .first()
                    .map_or(range.end, |entry| entry.id.index.get());
                Ok(begins..range.end)
            }
            Err(LogError::Purged { first, .. }) => Ok(first.get().min(range.end)..range.end),
            Err(error) => Err(error.to_io()),
        }
    }

    fn stream(
        &self,
        range: Range<u64>,
    ) -> impl Stream<Item = io::Result<RaftEntry>> + Send + use<> {
        let cursor = Cursor {
            store: self.clone(),
            range,
            ready: VecDeque::new(),
        };
        stream::try_unfold(cursor, |mut cursor| async move {
            Ok(cursor.next().await?.map(|entry| (entry, cursor)))
        })
    }
}

/// Reads a range piece by piece.
struct Cursor {
    store: LogStore,
    range: Range<u64>,
    ready: VecDeque<LogEntry>,
}

impl Cursor {
    async fn next(&mut self) -> io::Result<Option<RaftEntry>> {
        if self.ready.is_empty() && !self.range.is_empty() {
            let entries = self.store.some(self.range.clone(), APPLY_BYTES_MAX).await?;
            if entries.is_empty() {
                return Err(io::Error::other(format!(
                    "the log holds nothing at {}",
                    self.range.start
                )));
            }
            self.ready = entries.into();
        }
        let Some(entry) = self.ready.pop_front() else {
            return Ok(None);
        };
        if self.range.start != entry.id.index.get() {
            return Err(io::Error::other(format!(
                "entry {} came where {} was due",
                entry.id, self.range.start
            )));
        }
        self.range.start = entry.id.index.get() + 1;
        entry_to_raft(entry).map(Some)
    }
}

impl RaftLogReader<Types> for LogStore {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> Result<Vec<RaftEntry>, io::Error> {
        let mut entries = Vec::new();
        let range = self.without_gone(self.held(&range)).await?;
        let mut left = std::pin::pin!(self.stream(range));
        while let Some(entry) = left.next().await {
            entries.push(entry?);
        }
        Ok(entries)
    }

    async fn entries_stream<R>(
        &mut self,
        range: R,
    ) -> impl Stream<Item = io::Result<RaftEntry>> + OptionalSend
    where
        R: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        self.stream(self.held(&range))
    }

    async fn leader_bounded_stream<R>(
        &mut self,
        leader: RaftLeaderId,
        range: R,
    ) -> impl Stream<Item = openraft::storage::LeaderBoundedStreamResult<Types>> + OptionalSend
    where
        R: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let store = self.clone();
        let expected = RaftVote {
            leader_id: leader,
            committed: true,
        };
        let check = move || match store.log.state().vote.map(vote_to_raft) {
            Some(vote) if vote == expected => None,
            vote => Some(LeaderChanged::new(leader, vote)),
        };
        let entries: stream::BoxStream<'static, _> = match check() {
            Some(changed) => return stream::iter([Err(changed.into())]).left_stream(),
            None => Box::pin(self.stream(self.held(&range))),
        };
        // After a change of leader entries may have been cut: nothing that was read since is handed out.
        let checked = stream::unfold(Some((entries, check)), |state| async move {
            let (mut entries, check) = state?;
            let item = entries.next().await?;
            match (check(), item) {
                (Some(changed), _) => Some((Err(changed.into()), None)),
                (None, Err(error)) => Some((Err(error.into()), None)),
                (None, Ok(entry)) => Some((Ok(entry), Some((entries, check)))),
            }
        });
        checked.right_stream()
    }

    async fn read_vote(&mut self) -> Result<Option<RaftVote>, io::Error> {
        Ok(self.log.state().vote.map(vote_to_raft))
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<RaftEntry>, io::Error> {
        let entries = self
            .some(self.held(&(start..end)), REPLICATE_BYTES_MAX)
            .await?;
        entries.into_iter().map(entry_to_raft).collect()
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, io::Error> {
        let state = self.log.state();
        let last = state.last.or(state.purged);
        Ok(LogState {
            last_purged_log_id: state.purged.map(to_raft),
            last_log_id: last.map(to_raft),
        })
    }

    async fn get_log_reader(&mut self) -> Self::LogReader {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &RaftVote) -> Result<(), io::Error> {
        self.log
            .save_vote(vote_from_raft(vote))
            .await
            .map_err(|error| error.to_io())?;
        crash_point(CrashPoint::VoteSaved);
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<RaftLogId>) -> Result<(), io::Error> {
        self.log.save_committed(committed.map(from_raft));
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<RaftLogId>, io::Error> {
        Ok(self.log.state().committed.map(to_raft))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = RaftEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let frames: Result<Vec<_>, _> = entries.into_iter().map(entry_from_raft).collect();
        self.log.append(
            frames.map_err(io::Error::other)?,
            Box::new(move |synced| callback.io_completed(synced)),
        );
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<RaftLogId>) -> Result<(), io::Error> {
        // openraft names where to cut; if the log ends before that, nothing lies after it.
        let end = self.log.state().last.map(|id| id.index.get());
        if last.map(|id| id.index) >= end {
            return Ok(());
        }
        self.log
            .truncate_after(last.map(from_raft))
            .await
            .map_err(|error| error.to_io())
    }

    async fn purge(&mut self, upto: RaftLogId) -> Result<(), io::Error> {
        self.log
            .purge(from_raft(upto))
            .await
            .map_err(|error| error.to_io())
    }
}
