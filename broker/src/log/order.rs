//! The one order of everything a log is told: positions are given here, under one lock.
//!
//! Owns: the ledger, the cursor (which file, which position comes next), the queue to the writer, the failure latch.
//! Not here: any I/O.
//! Invariants: frames in the queue lie back to back; a frame never crosses a file; after a failure nothing is queued.
//! Spec: docs/formats/group-log.md, "Writing" 1

use super::error::{LogError, LogFailure};
use super::files::LogFile;
use super::format::{self, FRAMES_START, FileHeader, FrameHeader, Identity, Record};
use super::index::Slot;
use super::ledger::Ledger;
use super::types::{LogEntry, Vote};
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use tidelog_env::{Mutant, Random, mutant};
use tidelog_model::LogId;
use tidelog_model::Summed;

/// Told when a frame and all before it are durable, or that the log failed.
pub(super) type Done = Box<dyn FnOnce(Result<(), LogError>) + Send>;

/// A log file as the order knows it.
pub(super) struct FileState {
    pub(super) sequence: u64,
    pub(super) file_bytes: u64,
    /// Where its frames end (queued ones included).
    pub(super) end: u64,
    /// Set once the writer has made the file.
    pub(super) file: Option<Arc<LogFile>>,
}

/// A frame with its place.
pub(super) struct QueuedFrame {
    pub(super) position: u64,
    pub(super) record: Record,
    pub(super) dir: Bytes,
    pub(super) body: Summed,
    pub(super) done: Option<Done>,
    /// After this frame is durable, files with a lower sequence are free.
    pub(super) retire_below: Option<u64>,
}

impl QueuedFrame {
    pub(super) fn bytes(&self) -> usize {
        format::frame_bytes(self.dir.len(), self.body.len())
    }
}

/// What the writer has to do, in order.
pub(super) enum Op {
    Frame(QueuedFrame),
    /// Nothing to write: tells when all before is durable.
    Barrier(Done),
    NextFile(Box<FileHeader>),
}

/// Everything behind the lock.
pub(super) struct Order {
    pub(super) ledger: Ledger,
    pub(super) files: VecDeque<FileState>,
    pub(super) queue: VecDeque<Op>,
    pub(super) queued_bytes: usize,
    /// A commit index that no frame holds yet.
    pub(super) lazy: Option<Option<LogId>>,
    /// Durable up to this file and position.
    pub(super) durable: (u64, u64),
    pub(super) failure: Option<LogFailure>,
    pub(super) closing: bool,
    pub(super) stopped: bool,
    identity: Identity,
    /// Size of new files.
    file_bytes: u64,
    random: Arc<dyn Random>,
}

impl Order {
    pub(super) fn new(
        ledger: Ledger,
        files: VecDeque<FileState>,
        identity: Identity,
        file_bytes: u64,
        random: Arc<dyn Random>,
    ) -> Self {
        let durable = files
            .back()
            .map_or((0, 0), |file| (file.sequence, file.end));
        Self {
            ledger,
            files,
            queue: VecDeque::new(),
            queued_bytes: 0,
            lazy: None,
            durable,
            failure: None,
            closing: false,
            stopped: false,
            identity,
            file_bytes,
            random,
        }
    }

    /// Whether calls are still taken.
    pub(super) fn usable(&self) -> Result<(), LogError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone().into());
        }
        if self.closing {
            Err(LogError::Closed)
        } else {
            Ok(())
        }
    }

    /// Queues entries that follow the log; `done` goes with the last. All or none.
    pub(super) fn append(
        &mut self,
        entries: Vec<LogEntry>,
        entry_bytes_max: usize,
        done: Done,
    ) -> Result<(), (LogError, Done)> {
        if let Err(error) = self.check_entries(&entries, entry_bytes_max) {
            return Err((error, done));
        }
        self.place_lazy();
        let count = entries.len();
        let mut done = Some(done);
        for (at, entry) in entries.into_iter().enumerate() {
            let (position, file) =
                self.place(format::frame_bytes(entry.dir.len(), entry.body.len()));
            let slot = Slot {
                term: entry.id.term,
                file,
                position,
                dir_len: u32::try_from(entry.dir.len()).unwrap_or(u32::MAX),
                body_len: u32::try_from(entry.body.len()).unwrap_or(u32::MAX),
                kind: entry.kind,
            };
            self.queue_frame(QueuedFrame {
                position,
                record: Record::Entry {
                    id: entry.id,
                    kind: entry.kind,
                },
                dir: entry.dir.clone(),
                body: entry.body.clone(),
                done: if at + 1 == count { done.take() } else { None },
                retire_below: None,
            });
            self.ledger.push(entry.id, slot, Some(entry));
        }
        if let Some(done) = done {
            self.queue.push_back(Op::Barrier(done));
        }
        Ok(())
    }

    fn check_entries(&self, entries: &[LogEntry], entry_bytes_max: usize) -> Result<(), LogError> {
        self.usable()?;
        let mut previous: Option<LogId> = None;
        for entry in entries {
            let id = entry.id;
            match previous {
                None => self.ledger.admits(id).map_err(LogError::Invalid)?,
                Some(last)
                    if last.index.get().checked_add(1) == Some(id.index.get())
                        && last.term <= id.term => {}
                Some(last) => {
                    return Err(LogError::Invalid(format!(
                        "entry {id} does not follow {last}"
                    )));
                }
            }
            let bytes = entry.dir.len().saturating_add(entry.body.len());
            if bytes > entry_bytes_max || entry.dir.len() > format::DIR_BYTES_MAX {
                let dir = entry.dir.len();
                return Err(LogError::Invalid(format!(
                    "entry {id} of {bytes} bytes (dir {dir}) is too large"
                )));
            }
            previous = Some(id);
        }
        Ok(())
    }

    pub(super) fn vote(&mut self, vote: Vote, done: Done) {
        self.place_record(Record::Vote(vote), Some(done));
        self.ledger.vote = Some(vote);
    }

    pub(super) fn committed(&mut self, committed: Option<LogId>) {
        if self.ledger.committed != committed {
            self.ledger.committed = committed;
            self.lazy = Some(committed);
        }
    }

    pub(super) fn truncate(&mut self, last: Option<LogId>) -> Result<(), LogError> {
        if self.ledger.index.last() == last {
            return Ok(());
        }
        self.ledger
            .admits_truncate(last)
            .map_err(LogError::Invalid)?;
        if !mutant(Mutant::TruncateNotLogged) {
            self.place_record(Record::Truncate(last), None);
        }
        self.ledger.truncate(last);
        Ok(())
    }

    pub(super) fn purge(&mut self, upto: LogId) {
        if self
            .ledger
            .purged
            .is_some_and(|purged| purged.index >= upto.index)
        {
            return;
        }
        self.place_lazy();
        let (position, file) = self.place(format::frame_bytes(0, 0));
        self.ledger.purge(upto);
        let below = self.ledger.index.front().map_or(file, |slot| slot.file);
        self.queue_record(position, Record::Purge(upto), None, Some(below));
    }

    /// Queues the commit index that waits, if one does.
    pub(super) fn place_lazy(&mut self) {
        if let Some(committed) = self.lazy.take() {
            let (position, _) = self.place(format::frame_bytes(0, 0));
            self.queue_record(position, Record::Committed(committed), None, None);
        }
    }

    /// Tells when everything given to the log so far is durable.
    pub(super) fn barrier(&mut self, done: Done) {
        self.queue.push_back(Op::Barrier(done));
    }

    /// The last frame of a log that closes: its `durable up to` covers everything.
    pub(super) fn place_last(&mut self, done: Done) {
        self.lazy = None;
        let committed = self.ledger.committed;
        self.place_record(Record::Committed(committed), Some(done));
    }

    /// Queues a frame without dir and body. The ledger changes after this: a file that begins here must not know of it.
    fn place_record(&mut self, record: Record, done: Option<Done>) {
        self.place_lazy();
        let (position, _) = self.place(format::frame_bytes(0, 0));
        self.queue_record(position, record, done, None);
    }

    fn queue_record(
        &mut self,
        position: u64,
        record: Record,
        done: Option<Done>,
        retire_below: Option<u64>,
    ) {
        let (dir, body) = (Bytes::new(), Summed::default());
        self.queue_frame(QueuedFrame {
            position,
            record,
            dir,
            body,
            done,
            retire_below,
        });
    }

    fn queue_frame(&mut self, frame: QueuedFrame) {
        self.queued_bytes += frame.bytes();
        self.queue.push_back(Op::Frame(frame));
    }

    /// The place of the next frame: position and file sequence. Begins the next file when it does not fit.
    fn place(&mut self, bytes: usize) -> (u64, u64) {
        let bytes = bytes as u64;
        let fits = self
            .files
            .back()
            .is_some_and(|file| file.end + bytes <= file.file_bytes);
        if !fits {
            self.next_file();
        }
        match self.files.back_mut() {
            Some(file) => {
                let position = file.end;
                file.end += bytes;
                (position, file.sequence)
            }
            None => (0, 0),
        }
    }

    fn next_file(&mut self) {
        let (sequence, previous_end) = self
            .files
            .back()
            .map_or((1, 0), |file| (file.sequence + 1, file.end));
        let state = self.ledger.state();
        let header = FileHeader {
            identity: self.identity,
            sequence,
            salt: self.random.next_u64(),
            last: state.last,
            purged: state.purged,
            // One that no frame holds yet may go along: everything before it is on disk first.
            committed: state.committed,
            vote: state.vote,
            previous_end,
            file_bytes: self.file_bytes,
        };
        self.files.push_back(FileState {
            sequence,
            file_bytes: self.file_bytes,
            end: FRAMES_START,
            file: None,
        });
        self.queue.push_back(Op::NextFile(Box::new(header)));
    }

    /// Takes the files that are free once everything below `sequence` is.
    pub(super) fn retire_below(&mut self, sequence: u64) -> Vec<Arc<LogFile>> {
        let mut freed = Vec::new();
        while self.files.len() > 1
            && self
                .files
                .front()
                .is_some_and(|file| file.sequence < sequence)
        {
            freed.extend(self.files.pop_front().and_then(|file| file.file));
        }
        freed
    }

    /// The open file with this sequence.
    pub(super) fn file(&self, sequence: u64) -> Option<&Arc<LogFile>> {
        let first = self.files.front()?.sequence;
        let at = usize::try_from(sequence.checked_sub(first)?).ok()?;
        self.files.get(at)?.file.as_ref()
    }

    /// The frame header of a queued frame.
    pub(super) fn header_of(frame: &QueuedFrame, durable_upto: u64) -> FrameHeader {
        FrameHeader {
            record: frame.record,
            dir_len: u32::try_from(frame.dir.len()).unwrap_or(u32::MAX),
            body_len: u32::try_from(frame.body.len()).unwrap_or(u32::MAX),
            durable_upto,
        }
    }
}
