//! The one check of every byte on its way into the cache (invariant I8).

use crate::format::{IndexBlock, IndexEntry};
use bytes::Bytes;
use std::ops::Range;
use tidelog_env::{Mutant, mutant};
use tidelog_model::Offset;
use tidelog_model::batch::{RecordBatch, split_batches};

use super::plan::bytes_of;

/// Takes the bytes of `runs` apart. Checked: each run's CRC (which covers the offsets), each batch's own CRC, that
/// batches follow each other without a hole, begin where the index says and end where the next run begins.
pub(crate) fn check_runs(
    bytes: &Bytes,
    index: &IndexBlock,
    runs: Range<usize>,
    segment_end: Offset,
) -> Result<Vec<RecordBatch>, String> {
    let start = bytes_of(index, &runs).start;
    let mut batches = Vec::new();
    for number in runs {
        let Some(run) = index.entries.get(number) else {
            return Err("a run is not in the index".to_owned());
        };
        let next = index
            .entries
            .get(number + 1)
            .map_or(segment_end, |next| next.offset);
        let range = bytes_of(index, &(number..number + 1));
        let piece = usize::try_from(range.start - start)
            .ok()
            .zip(usize::try_from(range.end - start).ok())
            .filter(|(_, end)| *end <= bytes.len())
            .map(|(from, to)| bytes.slice(from..to))
            .ok_or_else(|| "bytes are missing".to_owned())?;
        check_run(piece, run, next, &mut batches)?;
    }
    Ok(batches)
}

fn check_run(
    bytes: Bytes,
    run: &IndexEntry,
    next: Offset,
    batches: &mut Vec<RecordBatch>,
) -> Result<(), String> {
    let ignored = mutant(Mutant::RemoteCrcIgnored);
    if crc32c::crc32c(&bytes) != run.crc && !ignored {
        return Err(format!(
            "the run at offset {} has the wrong checksum",
            run.offset
        ));
    }
    let mut at = run.offset;
    for batch in split_batches(bytes) {
        let wrong = |reason: &dyn std::fmt::Display| format!("the batch at offset {at}: {reason}");
        let batch = batch.map_err(|error| wrong(&error))?;
        if !ignored {
            batch.verify_crc().map_err(|error| wrong(&error))?;
        }
        if batch.header().base_offset != at {
            return Err(wrong(&format!(
                "it begins at {}",
                batch.header().base_offset
            )));
        }
        at = batch.header().next_offset();
        batches.push(batch);
    }
    if at == next {
        Ok(())
    } else {
        Err(format!(
            "the run at offset {} ends at {at}, not at {next}",
            run.offset
        ))
    }
}
