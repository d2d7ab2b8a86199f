//! Reading entries: from memory where they are recent, else from their file.
//!
//! Owns: finding, coalescing and checking what is read back.
//! Not here: recovery's scan.
//! Invariants: an entry is returned only with both CRCs checked; a file that is being read is not recycled.

use super::error::LogError;
use super::files::LogFile;
use super::format::{DecodedFrame, FRAME_HEADER_BYTES, Record, frame_bytes};
use super::index::Slot;
use super::order::Order;
use super::recovery::io_error;
use super::shared::Shared;
use super::types::{LogEntry, WriterMode};
use bytes::{Buf, Bytes, BytesMut};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use tidelog_env::{Mutant, mutant};
use tidelog_model::{LogId, LogIndex, Summed};

/// Bytes between two parts of bodies that are read along rather than skipped.
const GAP_BYTES_MAX: u64 = 4096;

/// Entries back to back in one file.
struct Run {
    file: Arc<LogFile>,
    position: u64,
    length: u64,
    slots: Vec<(LogIndex, Slot)>,
}

/// What [`plan`] found: runs to read from files, then entries from memory.
struct Plan {
    runs: Vec<Run>,
    cached: Vec<LogEntry>,
}

/// See `GroupLog::entries`.
pub(super) async fn entries(
    shared: &Arc<Shared>,
    range: Range<LogIndex>,
    bytes_max: usize,
) -> Result<Vec<LogEntry>, LogError> {
    let plan = plan(&shared.order.lock(), range, bytes_max)?;
    if plan.runs.is_empty() {
        shared.metrics.reads_cached.add(1);
        return Ok(plan.cached);
    }
    shared.metrics.reads_disk.add(1);
    let runs = plan.runs;
    let told = Arc::clone(shared);
    let mut found = blocking(shared, move || {
        let mut found = Vec::new();
        for run in &runs {
            read_run(run, &mut found).inspect_err(|error| told.told_of(error))?;
        }
        Ok(found)
    })
    .await?;
    found.extend(plan.cached);
    Ok(found)
}

fn plan(order: &Order, range: Range<LogIndex>, bytes_max: usize) -> Result<Plan, LogError> {
    if let Some(failure) = &order.failure {
        return Err(failure.clone().into());
    }
    let index = &order.ledger.index;
    let mut plan = Plan {
        runs: Vec::new(),
        cached: Vec::new(),
    };
    let mut bytes = 0usize;
    if range.start < range.end && is_purged(order, range.start) {
        return Err(LogError::Purged {
            index: range.start,
            first: index.first_index(),
        });
    }
    let mut at = if index.is_empty() {
        range.start
    } else {
        range.start.max(index.first_index())
    };
    while at < range.end {
        let Some(slot) = index.slot(at) else { break };
        let size = usize::try_from(u64::from(slot.dir_len) + u64::from(slot.body_len))
            .unwrap_or(usize::MAX);
        if bytes > 0 && bytes.saturating_add(size) > bytes_max {
            break;
        }
        bytes = bytes.saturating_add(size.max(1));
        match index.cached(at) {
            Some(entry) => plan.cached.push(entry.clone()),
            None => plan.add(order, at, *slot)?,
        }
        at = at.next();
    }
    Ok(plan)
}

/// Whether an index was purged. A log that began at a later index has purged nothing before it.
fn is_purged(order: &Order, at: LogIndex) -> bool {
    order.ledger.purged.is_some_and(|purged| at <= purged.index)
}

impl Plan {
    fn add(&mut self, order: &Order, at: LogIndex, slot: Slot) -> Result<(), LogError> {
        let length = frame_bytes(slot.dir_len as usize, slot.body_len as usize) as u64;
        if let Some(run) = self.runs.last_mut()
            && run.file.binding.sequence == slot.file
            && run.position + run.length == slot.position
        {
            run.length += length;
            run.slots.push((at, slot));
            return Ok(());
        }
        let file = Arc::clone(
            order
                .file(slot.file)
                .ok_or(LogError::NotFound { index: at })?,
        );
        self.runs.push(Run {
            file,
            position: slot.position,
            length,
            slots: vec![(at, slot)],
        });
        Ok(())
    }
}

fn read_run(run: &Run, found: &mut Vec<LogEntry>) -> Result<(), LogError> {
    let read = || io_error("reading", &run.file.path);
    let length = usize::try_from(run.length).map_err(|error| read()(io::Error::other(error)))?;
    let bytes = run.file.file.read_vec_at(run.position, length);
    let bytes = Bytes::from(bytes.map_err(read())?);
    let mut at = 0;
    for (index, slot) in &run.slots {
        let length = frame_bytes(slot.dir_len as usize, slot.body_len as usize);
        let entry = decode_entry(&run.file, &bytes.slice(at..at + length), *index, slot)
            .ok_or_else(|| {
                let what = format!("entry {index} does not match its checksum");
                LogError::Damaged {
                    path: run.file.path.clone(),
                    position: slot.position,
                    what,
                }
            })?;
        found.push(entry);
        at += length;
    }
    Ok(())
}

/// The entry in a frame's bytes, if it is the one that should be there.
fn decode_entry(file: &LogFile, bytes: &Bytes, index: LogIndex, slot: &Slot) -> Option<LogEntry> {
    let id = LogId {
        term: slot.term,
        index,
    };
    let mut header = [0; FRAME_HEADER_BYTES];
    header.copy_from_slice(bytes.get(..FRAME_HEADER_BYTES)?);
    let frame = DecodedFrame::parse(&header, bytes.len() as u64)?;
    let same = frame.header.record
        == Record::Entry {
            id,
            kind: slot.kind,
        }
        && frame.header.dir_len == slot.dir_len
        && frame.header.body_len == slot.body_len;
    if !same {
        return None;
    }
    let body_at = FRAME_HEADER_BYTES + slot.dir_len as usize;
    let dir = bytes.slice(FRAME_HEADER_BYTES..body_at);
    let body = Summed::from(bytes.slice(body_at..body_at + slot.body_len as usize));
    let seed = file.binding.seed(slot.position);
    let good = frame.check(&header, seed, &dir) && body.crc_behind(seed) == frame.body_crc;
    (good || mutant(Mutant::LocalCrcIgnored)).then_some(LogEntry {
        id,
        kind: slot.kind,
        dir,
        body,
    })
}

/// Where a part of a body is.
enum Part {
    Memory(Bytes),
    File {
        file: Arc<LogFile>,
        position: u64,
        length: u32,
    },
}

/// A part's place; called with the order locked.
fn locate(order: &Order, index: LogIndex, range: &Range<u32>) -> Result<Part, LogError> {
    if is_purged(order, index) {
        return Err(LogError::Purged {
            index,
            first: order.ledger.index.first_index(),
        });
    }
    let slot = *order
        .ledger
        .index
        .slot(index)
        .ok_or(LogError::NotFound { index })?;
    if range.start > range.end || range.end > slot.body_len {
        let (from, to, length) = (range.start, range.end, slot.body_len);
        return Err(LogError::Invalid(format!(
            "bytes {from}..{to} of entry {index}'s body of {length}"
        )));
    }
    if let Some(entry) = order.ledger.index.cached(index) {
        let part = range.start as usize..range.end as usize;
        return Ok(Part::Memory(entry.body.slice(part)));
    }
    let file = Arc::clone(order.file(slot.file).ok_or(LogError::NotFound { index })?);
    let body_at = slot.position + FRAME_HEADER_BYTES as u64 + u64::from(slot.dir_len);
    Ok(Part::File {
        file,
        position: body_at + u64::from(range.start),
        length: range.end - range.start,
    })
}

/// See `GroupLog::read_bodies`.
pub(super) async fn bodies(
    shared: &Arc<Shared>,
    wanted: &[(LogIndex, Range<u32>)],
) -> Result<Vec<BytesMut>, LogError> {
    let parts = {
        let order = shared.order.lock();
        if let Some(failure) = &order.failure {
            return Err(failure.clone().into());
        }
        let located = wanted
            .iter()
            .map(|(index, range)| locate(&order, *index, range));
        located.collect::<Result<Vec<Part>, LogError>>()?
    };
    if parts.iter().any(|part| matches!(part, Part::File { .. })) {
        shared.metrics.reads_disk.add(1);
        return blocking(shared, move || read_parts(&parts)).await;
    }
    shared.metrics.reads_cached.add(1);
    read_parts(&parts)
}

/// Reads the parts. Those that lie close together in a file are read at once: a system call costs as much as the copy of
/// the bytes between them.
fn read_parts(parts: &[Part]) -> Result<Vec<BytesMut>, LogError> {
    let mut found = Vec::with_capacity(parts.len());
    let mut rest = parts;
    while let Some(part) = rest.first() {
        match part {
            Part::Memory(bytes) => {
                found.push(BytesMut::from(bytes.as_ref()));
                rest = &rest[1..];
            }
            Part::File { file, position, .. } => {
                let count = together(rest, file, *position);
                read_together(file, *position, &rest[..count], &mut found)?;
                rest = &rest[count..];
            }
        }
    }
    Ok(found)
}

/// How many of the parts, at least one, can be read at once.
fn together(parts: &[Part], first: &Arc<LogFile>, position: u64) -> usize {
    let mut end = position;
    parts
        .iter()
        .take_while(|part| match part {
            Part::File {
                file,
                position,
                length,
            } if Arc::ptr_eq(file, first) && (end..=end + GAP_BYTES_MAX).contains(position) => {
                end = position + u64::from(*length);
                true
            }
            _ => false,
        })
        .count()
}

fn read_together(
    file: &LogFile,
    from: u64,
    parts: &[Part],
    found: &mut Vec<BytesMut>,
) -> Result<(), LogError> {
    let failed = || io_error("reading", &file.path);
    let places = parts.iter().filter_map(|part| match part {
        Part::Memory(_) => None,
        Part::File {
            position, length, ..
        } => Some((position - from, *length as usize)),
    });
    let end = places
        .clone()
        .last()
        .map_or(0, |(at, length)| at + length as u64);
    let length = usize::try_from(end).map_err(|error| failed()(io::Error::other(error)))?;
    let bytes = file.file.read_vec_at(from, length).map_err(failed())?;
    let mut rest = BytesMut::from(Bytes::from(bytes));
    let mut taken = 0;
    for (at, length) in places {
        let gap = usize::try_from(at - taken).map_err(|error| failed()(io::Error::other(error)))?;
        rest.advance(gap);
        found.push(rest.split_to(length));
        taken = at + length as u64;
    }
    Ok(())
}

/// Runs blocking disk calls where the mode wants them.
pub(super) async fn blocking<R: Send + 'static>(
    shared: &Shared,
    act: impl FnOnce() -> Result<R, LogError> + Send + 'static,
) -> Result<R, LogError> {
    if shared.config.writer != WriterMode::Thread {
        return act();
    }
    match tokio::task::spawn_blocking(act).await {
        Ok(result) => result,
        Err(error) => Err(io_error("using", &shared.config.dir)(io::Error::other(
            error,
        ))),
    }
}
