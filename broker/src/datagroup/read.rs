//! Reads of one partition: hot tail first, object store below it.
//!
//! Owns: choosing the tier of a read, and what a reader is told about the partition's bounds.
//! Not here: long polls and limits over several partitions (`api`), how bytes are cached (`partition::hot_reader`,
//! `tidelog_tiering::reader`).

use super::handle::DataGroup;
use crate::log::LogError;
use crate::partition::{IndexEntry, PartitionState, ServedBatch};
use bytes::Bytes;
use tidelog_model::batch::{BatchError, RecordBatch};
use tidelog_model::{Offset, PartitionId};
use tidelog_tiering::manifest::SegmentEntry;
use tidelog_tiering::reader::ReadError;

/// How often a read is planned anew when its bytes move from the log to the object store under its hands.
pub(super) const PLANS_MAX: usize = 8;
/// Segments named to the remote reader ahead, for prefetch across segment borders.
const SEGMENTS_AHEAD: usize = 2;

/// One batch as a client gets it.
#[derive(Clone, Debug)]
pub enum Batch {
    /// From the group log.
    Hot(ServedBatch),
    /// From the object store, where it is stored as it is served.
    Cold(RecordBatch),
}

impl Batch {
    /// Bytes of the batch.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Hot(batch) => batch.prefix.len() + batch.body.len(),
            Self::Cold(batch) => batch.bytes().len(),
        }
    }

    /// Whether it has no bytes (never true of a batch that was read).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The offset after its last record.
    #[must_use]
    pub fn end(&self) -> Offset {
        match self {
            Self::Hot(batch) => batch.entry.end(),
            Self::Cold(batch) => batch.header().next_offset(),
        }
    }

    /// Adds its bytes to `out`, in order, without copying them.
    pub fn chunks_into(self, out: &mut Vec<Bytes>) {
        match self {
            Self::Hot(batch) => out.extend([batch.prefix, batch.body]),
            Self::Cold(batch) => out.push(batch.into_bytes()),
        }
    }
}

/// What a read found.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// First offset that no reader sees yet.
    pub high_watermark: Offset,
    /// First offset that can be read.
    pub log_start: Offset,
    /// Batches from the one that holds the wanted offset; empty at the high watermark.
    pub batches: Vec<Batch>,
}

/// Why a read gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The partition is not in this group.
    #[error("no such partition")]
    UnknownPartition,
    /// The offset is not between log start and high watermark. The reader decides; it is never moved in silence (FR3).
    #[error("offset out of range: the log holds {log_start} to {high_watermark}")]
    OutOfRange {
        /// First offset still there.
        log_start: Offset,
        /// End of the log.
        high_watermark: Offset,
    },
    /// The local log could not be read.
    #[error("local log: {0}")]
    Log(#[from] LogError),
    /// The object store could not be read.
    #[error("object store: {0}")]
    Remote(#[from] ReadError),
    /// A batch in the log cannot be decoded, though it was checked when it was produced.
    #[error("the batch at offset {base_offset} cannot be decoded: {reason}")]
    Damaged {
        /// Its first offset.
        base_offset: Offset,
        /// What is wrong with it.
        reason: BatchError,
    },
    /// The node is stopping.
    #[error("the broker is stopping")]
    Stopped,
    /// The bytes kept moving; try again.
    #[error("the data moved while it was read; try again")]
    Moved,
}

enum Plan {
    Nothing,
    Hot(Vec<IndexEntry>),
    Cold(Vec<SegmentEntry>),
}

struct Planned {
    high_watermark: Offset,
    log_start: Offset,
    plan: Plan,
}

fn plan(state: &PartitionState, from: Offset, bytes_max: u64) -> Result<Planned, FetchError> {
    let (log_start, high_watermark) = (state.log_start, state.next_offset);
    if from < log_start || from > high_watermark {
        return Err(FetchError::OutOfRange {
            log_start,
            high_watermark,
        });
    }
    let plan = if from == high_watermark {
        Plan::Nothing
    } else if state.hot.contains(from) {
        Plan::Hot(state.hot.read(from, high_watermark, bytes_max))
    } else if let Some((at, _)) = state.segment_at(from) {
        Plan::Cold(
            state
                .segments
                .iter()
                .skip(at)
                .take(1 + SEGMENTS_AHEAD)
                .cloned()
                .collect(),
        )
    } else {
        // I6 says that this cannot be: neither tier holds a readable offset. Never served as an empty answer.
        tracing::error!(partition = %state.id, offset = %from, "hole between log start and high watermark (I6)");
        return Err(FetchError::Moved);
    };
    Ok(Planned {
        high_watermark,
        log_start,
        plan,
    })
}

impl DataGroup {
    /// Log start and high watermark of a partition.
    ///
    /// # Errors
    /// [`FetchError::UnknownPartition`].
    pub fn bounds(&self, partition: PartitionId) -> Result<(Offset, Offset), FetchError> {
        self.group().read(|machine| {
            let state = machine
                .partitions()
                .get(partition)
                .ok_or(FetchError::UnknownPartition)?;
            Ok((state.log_start, state.next_offset))
        })
    }

    /// Whether a read from `from` on would go to the object store.
    #[must_use]
    pub fn is_cold(&self, partition: PartitionId, from: Offset) -> bool {
        self.group().read(|machine| {
            let Some(state) = machine.partitions().get(partition) else {
                return false;
            };
            from >= state.log_start && from < state.next_offset && !state.hot.contains(from)
        })
    }

    /// Reads from `from` on: about `bytes_max` bytes of whole batches, but at least the first one. The first batch may
    /// begin before `from`. Only committed and applied records are ever returned.
    ///
    /// # Errors
    /// [`FetchError`].
    pub async fn fetch(
        &self,
        partition: PartitionId,
        from: Offset,
        bytes_max: usize,
    ) -> Result<Fetched, FetchError> {
        let wanted = u64::try_from(bytes_max).unwrap_or(u64::MAX);
        for _ in 0..PLANS_MAX {
            let planned =
                self.group()
                    .read(|machine| match machine.partitions().get(partition) {
                        Some(state) => plan(state, from, wanted),
                        None => Err(FetchError::UnknownPartition),
                    })?;
            let batches: Vec<Batch> = match planned.plan {
                Plan::Nothing => Vec::new(),
                Plan::Hot(entries) => {
                    let served = self.hot().read(&entries).await?;
                    if served.is_empty() {
                        self.forget_purged();
                        continue;
                    }
                    served.into_iter().map(Batch::Hot).collect()
                }
                Plan::Cold(segments) => {
                    let batches = self
                        .remote()
                        .read_list(&segments, from, bytes_max, true)
                        .await?;
                    batches.into_iter().map(Batch::Cold).collect()
                }
            };
            return Ok(Fetched {
                high_watermark: planned.high_watermark,
                log_start: planned.log_start,
                batches,
            });
        }
        Err(FetchError::Moved)
    }
}
