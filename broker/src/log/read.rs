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
use bytes::Bytes;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use tidelog_model::{LogId, LogIndex};

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
    let mut found = blocking(shared, move || {
        let mut found = Vec::new();
        for run in &runs {
            read_run(run, &mut found)?;
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
    let mut bytes = vec![0; length];
    run.file
        .file
        .read_exact_at(&mut bytes, run.position)
        .map_err(read())?;
    let bytes = Bytes::from(bytes);
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
    let body = bytes.slice(body_at..body_at + slot.body_len as usize);
    let seed = file.binding.seed(slot.position);
    let good =
        frame.check(&header, seed, &dir) && crc32c::crc32c_append(seed, &body) == frame.body_crc;
    good.then_some(LogEntry {
        id,
        kind: slot.kind,
        dir,
        body,
    })
}

/// See `GroupLog::read_body`.
pub(super) async fn body(
    shared: &Arc<Shared>,
    index: LogIndex,
    range: Range<u32>,
) -> Result<Bytes, LogError> {
    let (file, position) = {
        let order = shared.order.lock();
        if let Some(failure) = &order.failure {
            return Err(failure.clone().into());
        }
        if is_purged(&order, index) {
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
            shared.metrics.reads_cached.add(1);
            return Ok(entry.body.slice(range.start as usize..range.end as usize));
        }
        let file = Arc::clone(order.file(slot.file).ok_or(LogError::NotFound { index })?);
        let body_at = slot.position + FRAME_HEADER_BYTES as u64 + u64::from(slot.dir_len);
        (file, body_at + u64::from(range.start))
    };
    shared.metrics.reads_disk.add(1);
    blocking(shared, move || {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        file.file
            .read_exact_at(&mut bytes, position)
            .map_err(io_error("reading", &file.path))?;
        Ok(Bytes::from(bytes))
    })
    .await
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
