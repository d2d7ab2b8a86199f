//! The writer: takes what waits, one vectored write, one sync, then the callbacks in order.
//!
//! Owns: every write into log files after recovery, the change to the next file, poisoning.
//! Not here: when it runs (`run.rs`), positions (`order.rs`), spare files (`pool.rs`).
//! Invariants: one step at a time, and what one has begun is finished before the next; nothing is acknowledged out of a file whose name is not durable;
//! after an error nothing is written.
//! Spec: docs/formats/group-log.md, "Writing" 2-4 and "Next file"

use super::error::LogFailure;
use super::files::{LogFile, log_name, sync_names};
use super::format::{self, Binding, FRAMES_START, FileHeader, FrameHeader, Record, WRITE_ALIGN};
use super::metrics::BatchObservation;
use super::order::{Done, Op, Order, QueuedFrame};
use super::shared::Shared;
use std::io::{self, ErrorKind, IoSlice};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::disk::OpenMode;
use tidelog_env::{CrashPoint, Disk, Mutant, crash_point, mutant};
use tidelog_model::Summed;
use tokio::time::Instant;

/// Dir and body below this are copied beside their header: a slice costs the kernel more than such a copy.
const COPY_BELOW: usize = 1024;

static ZEROS: [u8; 4096] = [0; 4096];

/// What one step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing waits.
    Idle,
    /// Something was written; look again.
    Worked,
    /// A file is needed and the disk is full; try again later.
    Starved,
    /// The log failed or was stopped.
    Stopped,
}

/// A step whose bytes are written and not yet synced.
#[must_use = "what is written is neither durable nor told to anybody before it is finished"]
pub(super) struct Unsynced {
    batch: Batch,
    /// When its writing began, and how long that took.
    start: Instant,
    write: Duration,
}

/// How far [`begin`] came.
pub(super) enum Begun {
    /// The step is over: [`finish`] has nothing to do.
    Over(Step),
    /// A sync is due.
    Unsynced(Unsynced),
}

/// Where the writer is. Behind a lock of its own that is held for a whole step, or for each half of one.
pub(super) struct WriterState {
    pub(super) active: Arc<LogFile>,
    /// Everything in the active file before this is synced.
    pub(super) durable: u64,
    /// Everything before this is written.
    pub(super) written: u64,
    scratch: Vec<u8>,
}

impl WriterState {
    pub(super) fn new(active: Arc<LogFile>, end: u64) -> Self {
        Self {
            active,
            durable: end,
            written: end,
            scratch: Vec::new(),
        }
    }
}

/// Frames and callbacks of one write.
#[derive(Default)]
struct Batch {
    frames: Vec<QueuedFrame>,
    /// In the order of the calls.
    done: Vec<Done>,
    bytes: usize,
    retire_below: Option<u64>,
    sync: bool,
}

enum Work {
    Batch(Batch),
    NextFile(Box<FileHeader>),
    Nothing,
    Stopped,
}

/// Runs the writer once. `flush_lazy`: also writes a commit index that nothing takes along.
pub(super) fn step(shared: &Shared, flush_lazy: bool) -> Step {
    match begin(shared, flush_lazy) {
        Begun::Over(step) => step,
        Begun::Unsynced(unsynced) => finish(shared, unsynced),
    }
}

/// The first half of a step: everything up to the sync of what it wrote.
pub(super) fn begin(shared: &Shared, flush_lazy: bool) -> Begun {
    let mut writer = shared.writer.lock();
    match take_work(shared, flush_lazy) {
        Work::Nothing => Begun::Over(Step::Idle),
        Work::Stopped => Begun::Over(Step::Stopped),
        Work::Batch(batch) => write_batch(shared, &mut writer, batch),
        Work::NextFile(header) => Begun::Over(next_file(shared, &mut writer, header)),
    }
}

/// The second half: syncs what [`begin`] has written, and tells who waits for it. No other step lies between the two.
pub(super) fn finish(shared: &Shared, unsynced: Unsynced) -> Step {
    let Unsynced {
        batch,
        start,
        write,
    } = unsynced;
    let mut writer = shared.writer.lock();
    if let Err(source) = writer.active.file.sync_data()
        && !mutant(Mutant::SyncErrorIgnored)
    {
        return fail(shared, "syncing failed", source, batch.done);
    }
    writer.durable = writer.written;
    let sync = start.elapsed() - write;
    shared.metrics.syncs.add(1);
    crash_point(CrashPoint::LogSynced);
    conclude(shared, &writer, batch, write, Some(sync))
}

/// Of a log that is closed, once all is synced: a frame in another page than the last ones says up to where that is, so that a loss of these does not look like a
/// torn tail. Nothing leads to it; recovery finds it as it finds frames behind a torn one, and clears it. Where the file has no further page there is none.
///
/// # Errors
/// The disk's. The log is whole without it.
pub(super) fn seal(shared: &Shared) -> io::Result<()> {
    let writer = shared.writer.lock();
    let position = (writer.written + 1).next_multiple_of(WRITE_ALIGN);
    let fits = position + format::frame_bytes(0, 0) as u64 <= writer.active.file_bytes;
    if !fits || writer.durable < writer.written {
        return Ok(());
    }
    let header = FrameHeader {
        record: Record::Committed(shared.order.lock().ledger.committed),
        dir_len: 0,
        body_len: 0,
        durable_upto: writer.durable,
    };
    let seed = writer.active.binding.seed(position);
    let frame = header.encode(seed, &[], Summed::default().crc_behind(seed));
    let file = &writer.active.file;
    file.write_all_at(&[IoSlice::new(&frame)], position)?;
    file.sync_data()
}

fn take_work(shared: &Shared, flush_lazy: bool) -> Work {
    let mut order = shared.order.lock();
    if order.failure.is_some() || order.stopped {
        return Work::Stopped;
    }
    if order.queue.is_empty() && flush_lazy {
        order.place_lazy();
    }
    let mut batch = Batch::default();
    loop {
        match order.queue.pop_front() {
            None => break,
            Some(Op::NextFile(header)) => {
                if batch.frames.is_empty() && batch.done.is_empty() {
                    return Work::NextFile(header);
                }
                order.queue.push_front(Op::NextFile(header));
                break;
            }
            Some(Op::Barrier(done)) => {
                batch.sync = true;
                batch.done.push(done);
            }
            Some(Op::Frame(frame)) => batch.push(frame),
        }
        if batch.bytes >= shared.config.batch_bytes_max {
            break;
        }
    }
    order.queued_bytes -= batch.bytes;
    shared.metrics.queued_bytes.set(order.queued_bytes as u64);
    if batch.frames.is_empty() && batch.done.is_empty() {
        Work::Nothing
    } else {
        Work::Batch(batch)
    }
}

impl Batch {
    fn push(&mut self, mut frame: QueuedFrame) {
        self.bytes += frame.bytes();
        self.sync |= !matches!(frame.record, Record::Committed(_)) || frame.done.is_some();
        self.done.extend(frame.done.take());
        self.retire_below = frame.retire_below.or(self.retire_below);
        self.frames.push(frame);
    }

    fn end(&self) -> Option<u64> {
        self.frames
            .last()
            .map(|frame| frame.position + frame.bytes() as u64)
    }
}

fn write_batch(shared: &Shared, writer: &mut WriterState, batch: Batch) -> Begun {
    let start = Instant::now();
    if let Err(source) = write_frames(writer, &batch) {
        return Begun::Over(fail(shared, "writing failed", source, batch.done));
    }
    crash_point(CrashPoint::LogWritten);
    let write = start.elapsed();
    writer.written = batch.end().unwrap_or(writer.written);
    if batch.sync && writer.written > writer.durable && !mutant(Mutant::AckBeforeSync) {
        return Begun::Unsynced(Unsynced {
            batch,
            start,
            write,
        });
    }
    Begun::Over(conclude(shared, writer, batch, write, None))
}

/// What follows once a batch is as durable as it wants to be: others hear of it, the callbacks last.
fn conclude(
    shared: &Shared,
    writer: &WriterState,
    batch: Batch,
    write: Duration,
    sync: Option<Duration>,
) -> Step {
    shared
        .pool
        .wrote(batch.bytes, writer.written, writer.active.file_bytes);
    if !batch.frames.is_empty() {
        let observation = BatchObservation {
            frames: batch.frames.len(),
            bytes: batch.bytes,
            write,
            sync,
        };
        count(shared, &batch);
        shared.observer.batch(&observation);
    }
    let freed = {
        let mut order = shared.order.lock();
        order.durable = (writer.active.binding.sequence, writer.durable);
        let place = (writer.active.binding.sequence, writer.written);
        order
            .ledger
            .index
            .shrink_cache(shared.config.cache_bytes, place);
        batch
            .retire_below
            .map(|sequence| order.retire_below(sequence))
    };
    if freed.is_some() {
        crash_point(CrashPoint::PurgeSynced);
    }
    shared.pool.retire(freed.unwrap_or_default());
    for done in batch.done {
        done(Ok(()));
    }
    Step::Worked
}

fn count(shared: &Shared, batch: &Batch) {
    let entries = batch
        .frames
        .iter()
        .filter(|frame| matches!(frame.record, Record::Entry { .. }))
        .count();
    shared.metrics.entries.add(entries as u64);
    shared.metrics.frames.add(batch.frames.len() as u64);
    shared.metrics.batches.add(1);
    shared.metrics.bytes.add(batch.bytes as u64);
}

/// A part of the write: a range of the scratch buffer, or a frame's dir or body as it is.
enum Piece<'a> {
    Scratch(Range<usize>),
    Bytes(&'a [u8]),
}

/// The parts of one write, in order; neighbours in the scratch buffer are one part.
struct Parts<'a> {
    scratch: Vec<u8>,
    pieces: Vec<Piece<'a>>,
}

impl<'a> Parts<'a> {
    fn copy(&mut self, bytes: &[u8]) {
        let from = self.scratch.len();
        self.scratch.extend_from_slice(bytes);
        match self.pieces.last_mut() {
            Some(Piece::Scratch(range)) if range.end == from => range.end = self.scratch.len(),
            _ => self.pieces.push(Piece::Scratch(from..self.scratch.len())),
        }
    }

    fn put(&mut self, bytes: &'a [u8]) {
        if bytes.len() < COPY_BELOW {
            self.copy(bytes)
        } else {
            self.pieces.push(Piece::Bytes(bytes))
        }
    }

    fn frame(&mut self, frame: &'a QueuedFrame, binding: Binding, durable_upto: u64) {
        let seed = binding.seed(frame.position);
        let body_crc = frame.body.crc_behind(seed);
        let header = Order::header_of(frame, durable_upto).encode(seed, &frame.dir, body_crc);
        let padding =
            frame.bytes() - format::FRAME_HEADER_BYTES - frame.dir.len() - frame.body.len();
        self.copy(&header);
        self.put(&frame.dir);
        self.put(&frame.body);
        self.copy(&ZEROS[..padding]);
    }
}

/// One vectored write of all frames and the zeros up to the next page.
fn write_frames(writer: &mut WriterState, batch: &Batch) -> io::Result<()> {
    let (Some(first), Some(end)) = (batch.frames.first(), batch.end()) else {
        return Ok(());
    };
    debug_assert_eq!(first.position, writer.written, "frames lie back to back");
    let mut scratch = std::mem::take(&mut writer.scratch);
    scratch.clear();
    let mut parts = Parts {
        scratch,
        pieces: Vec::with_capacity(batch.frames.len() * 2 + 1),
    };
    for frame in &batch.frames {
        parts.frame(frame, writer.active.binding, writer.durable);
    }
    let padded = end
        .next_multiple_of(WRITE_ALIGN)
        .min(writer.active.file_bytes);
    let zeros = usize::try_from(padded.saturating_sub(end))
        .unwrap_or(0)
        .min(ZEROS.len());
    parts.put(&ZEROS[..zeros]);
    let slices: Vec<IoSlice<'_>> = parts
        .pieces
        .iter()
        .map(|piece| match piece {
            Piece::Bytes(bytes) => IoSlice::new(bytes),
            Piece::Scratch(range) => IoSlice::new(&parts.scratch[range.clone()]),
        })
        .collect();
    let result = writer.active.file.write_all_at(&slices, first.position);
    writer.scratch = parts.scratch;
    result
}

fn next_file(shared: &Shared, writer: &mut WriterState, header: Box<FileHeader>) -> Step {
    if writer.written > writer.durable {
        if let Err(source) = writer.active.file.sync_data() {
            return fail(shared, "syncing failed", source, Vec::new());
        }
        writer.durable = writer.written;
    }
    crash_point(CrashPoint::FileOldSynced);
    let spare = match shared.take_spare() {
        Ok(spare) => spare,
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded
            ) =>
        {
            shared.metrics.starved.set(1);
            shared.order.lock().queue.push_front(Op::NextFile(header));
            return Step::Starved;
        }
        Err(source) => return fail(shared, "preparing the next file failed", source, Vec::new()),
    };
    shared.metrics.starved.set(0);
    let file = match start_file(shared.disk.as_ref(), &shared.config.dir, &spare, &header) {
        Ok(file) => file,
        Err(source) => return fail(shared, "beginning the next file failed", source, Vec::new()),
    };
    *writer = WriterState {
        scratch: std::mem::take(&mut writer.scratch),
        ..WriterState::new(Arc::clone(&file), FRAMES_START)
    };
    shared.metrics.rotations.add(1);
    let mut order = shared.order.lock();
    order.durable = (header.sequence, FRAMES_START);
    if let Some(state) = order
        .files
        .iter_mut()
        .find(|state| state.sequence == header.sequence)
    {
        state.file = Some(file);
    }
    Step::Worked
}

/// Steps 2 to 4 of "Next file": when it returns, the file and its name are durable.
pub(super) fn start_file(
    disk: &dyn Disk,
    dir: &Path,
    spare: &Path,
    header: &FileHeader,
) -> io::Result<Arc<LogFile>> {
    let path = dir.join(log_name(header.sequence));
    let file = disk.open(spare, OpenMode::ReadWrite)?;
    file.write_all_at(&[IoSlice::new(&header.encode())], 0)?;
    crash_point(CrashPoint::FileHeaderWritten);
    file.sync_data()?;
    crash_point(CrashPoint::FileHeaderSynced);
    disk.rename(spare, &path)?;
    crash_point(CrashPoint::FileRenamed);
    sync_names(disk, dir)?;
    crash_point(CrashPoint::FileBegun);
    let binding = Binding {
        salt: header.salt,
        sequence: header.sequence,
    };
    Ok(Arc::new(LogFile {
        path,
        file,
        binding,
        file_bytes: header.file_bytes,
    }))
}

/// Latches the failure: callbacks of the batch, then everything that waits, get it; then the signal fires.
pub(super) fn fail(
    shared: &Shared,
    what: &'static str,
    source: io::Error,
    batch: Vec<Done>,
) -> Step {
    let failure = latch(shared, what, source, batch);
    (shared.fatal)(&failure);
    Step::Stopped
}

/// As [`fail`], without the signal: the log is being closed and its caller hears of it.
pub(super) fn abandon(shared: &Shared, what: &'static str, source: io::Error) {
    latch(shared, what, source, Vec::new());
}

fn latch(shared: &Shared, what: &'static str, source: io::Error, batch: Vec<Done>) -> LogFailure {
    let failure = LogFailure {
        dir: shared.config.dir.clone(),
        what,
        source: Arc::new(source),
    };
    let waiting = {
        let mut order = shared.order.lock();
        order.failure.get_or_insert_with(|| failure.clone());
        order.queued_bytes = 0;
        std::mem::take(&mut order.queue)
    };
    shared.metrics.queued_bytes.set(0);
    let waiting = waiting.into_iter().filter_map(|op| match op {
        Op::Frame(frame) => frame.done,
        Op::Barrier(done) => Some(done),
        Op::NextFile(_) => None,
    });
    for done in batch.into_iter().chain(waiting) {
        done(Err(failure.clone().into()));
    }
    failure
}
