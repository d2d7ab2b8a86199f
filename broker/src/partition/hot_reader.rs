//! Reads batches of the hot tail: index entries in, served batches out.
//!
//! Owns: turning extents into bytes with the right base offset and leader epoch (D4), and a small cache of log entries
//! that had to be read from disk, so that several partitions of one entry cost one read.
//! Not here: the hot index (`index`), log files (`log`), the object store.
//!
//! Every byte was checked: entries in memory came through produce validation, entries from disk through the log's own
//! checksums, batches read alone from disk through theirs (I8).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::index::IndexEntry;
use crate::log::{GroupLog, LogEntry, LogError};
use bytes::{Bytes, BytesMut};
use tidelog_env::{Mutant, mutant};
use tidelog_model::LogIndex;
use tidelog_model::batch::{PREFIX_BYTES, RecordBatch};

/// Bytes taken from disk by one read: large enough to be sequential, small enough to be wasted now and then.
const READ_BYTES: usize = 4 << 20;

/// Batches of at least this many bytes are read from disk alone: a system call each is cheap then.
const EXACT_BYTES_MIN: u32 = 16 << 10;

/// One batch as it is served or uploaded: a patched prefix, then the untouched rest.
#[derive(Clone, Debug)]
pub struct ServedBatch {
    /// Base offset, length and leader epoch as clients see them.
    pub prefix: Bytes,
    /// The batch from byte 16 on.
    pub body: Bytes,
    /// Its index entry.
    pub entry: IndexEntry,
}

impl ServedBatch {
    /// The batch in one buffer.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(self.prefix.len() + self.body.len());
        out.extend_from_slice(&self.prefix);
        out.extend_from_slice(&self.body);
        out.freeze()
    }
}

/// Reads the hot tail of one placement group.
#[derive(Clone)]
pub struct HotReader {
    log: GroupLog,
    from_disk: moka::sync::Cache<LogIndex, Arc<LogEntry>>,
}

impl HotReader {
    /// A reader of `log` that keeps at most `cache_bytes` of entries read from disk.
    #[must_use]
    pub fn new(log: GroupLog, cache_bytes: u64) -> Self {
        let from_disk = moka::sync::Cache::builder()
            .max_capacity(cache_bytes)
            .weigher(|_, entry: &Arc<LogEntry>| {
                u32::try_from(entry.dir.len() + entry.body.len()).unwrap_or(u32::MAX)
            })
            .build();
        Self { log, from_disk }
    }

    /// The batches of `entries`, patched, each in bytes of its own: for an upload, which keeps them for long and takes one
    /// partition after the other, so that a whole log entry would be read, and kept, once per partition. The caller
    /// checks each batch's CRC; the caller bounds the sum.
    ///
    /// # Errors
    /// [`LogError`]; also when the log no longer holds one of them.
    pub async fn read_owned(&self, entries: &[IndexEntry]) -> Result<Vec<Bytes>, LogError> {
        let parts: Vec<_> = entries
            .iter()
            .map(|entry| {
                let from = entry.extent.position;
                (
                    entry.extent.index,
                    from..from.saturating_add(entry.extent.length),
                )
            })
            .collect();
        let found = self.log.read_bodies(&parts).await?;
        let patched = entries.iter().zip(found).map(|(entry, mut batch)| {
            if batch.len() < PREFIX_BYTES {
                let short = format!("a batch of {} bytes", batch.len());
                return Err(LogError::Invalid(short));
            }
            batch[..8].copy_from_slice(&entry.base_offset.get().to_be_bytes());
            batch[12..PREFIX_BYTES].copy_from_slice(&entry.epoch.get().to_be_bytes());
            Ok(batch.freeze())
        });
        patched.collect()
    }

    /// The batches of `entries` (in offset order), patched. What the log no longer holds (it was purged meanwhile) ends
    /// the result early: the caller reads on from the object store.
    ///
    /// # Errors
    /// [`LogError`] when the disk fails or the bytes are damaged; nothing damaged is returned.
    pub async fn read(&self, entries: &[IndexEntry]) -> Result<Vec<ServedBatch>, LogError> {
        let memory_start = self.log.memory_start();
        let exact = entries
            .partition_point(|entry| entry.extent.index < memory_start)
            .min(entries.iter().take_while(|entry| is_large(entry)).count());
        let (exact, rest) = entries.split_at(exact);
        let mut served = match self.read_exact(exact).await {
            Err(LogError::Purged { .. }) => return Ok(Vec::new()),
            result => result?,
        };
        let mut at_hand: BTreeMap<LogIndex, Arc<LogEntry>> = BTreeMap::new();
        let last = entries
            .last()
            .map_or(LogIndex::new(0), |entry| entry.extent.index);
        for entry in rest {
            let index = entry.extent.index;
            if !at_hand.contains_key(&index) {
                match self.load(index, last, &mut at_hand).await {
                    Ok(()) => {}
                    Err(LogError::Purged { .. }) => break,
                    Err(error) => return Err(error),
                }
            }
            let Some(found) = at_hand.get(&index) else {
                return Err(LogError::NotFound { index });
            };
            served.push(patch(entry, &found.body)?);
        }
        Ok(served)
    }

    /// Large batches that are only on disk: just their bytes, not all of their log entries, which hold the batches of
    /// other partitions too. Their own CRC is checked instead of the log's.
    async fn read_exact(&self, entries: &[IndexEntry]) -> Result<Vec<ServedBatch>, LogError> {
        if entries.is_empty() {
            return Ok(Vec::new());
        }
        let found = self.read_owned(entries).await?;
        let mut served = Vec::with_capacity(found.len());
        for (entry, bytes) in entries.iter().zip(found) {
            if let Err(error) = RecordBatch::parse_checked(bytes.clone())
                && !mutant(Mutant::LocalCrcIgnored)
            {
                let (index, offset) = (entry.extent.index, entry.base_offset);
                self.check(index).await?;
                let text = format!("entry {index}, batch at offset {offset}: {error}");
                return Err(LogError::Invalid(text));
            }
            served.push(ServedBatch {
                prefix: bytes.slice(..PREFIX_BYTES),
                body: bytes.slice(PREFIX_BYTES..),
                entry: *entry,
            });
        }
        Ok(served)
    }

    /// Reads an entry as a whole, with the log's own checksums: for who found a batch of it that is not right, so that the log knows of the damage.
    ///
    /// # Errors
    /// [`LogError::Damaged`], or another one of the read.
    pub async fn check(&self, index: LogIndex) -> Result<(), LogError> {
        self.log.entries(index..index.next(), 1).await.map(drop)
    }

    async fn load(
        &self,
        index: LogIndex,
        last: LogIndex,
        at_hand: &mut BTreeMap<LogIndex, Arc<LogEntry>>,
    ) -> Result<(), LogError> {
        if let Some(cached) = self.from_disk.get(&index) {
            at_hand.insert(index, cached);
            return Ok(());
        }
        let memory_start = self.log.memory_start();
        for entry in self.log.entries(index..last.next(), READ_BYTES).await? {
            let at = entry.id.index;
            let entry = Arc::new(entry);
            if at < memory_start {
                self.from_disk.insert(at, Arc::clone(&entry));
            }
            at_hand.insert(at, entry);
        }
        Ok(())
    }
}

fn is_large(entry: &IndexEntry) -> bool {
    entry.extent.length >= EXACT_BYTES_MIN
}

fn patch(entry: &IndexEntry, body: &Bytes) -> Result<ServedBatch, LogError> {
    let from = entry.extent.position as usize;
    let to = from + entry.extent.length as usize;
    if to > body.len() || to - from < PREFIX_BYTES {
        return Err(LogError::Invalid(format!(
            "batch at bytes {from}..{to} of an entry of {}",
            body.len()
        )));
    }
    let mut prefix = BytesMut::with_capacity(PREFIX_BYTES);
    prefix.extend_from_slice(&entry.base_offset.get().to_be_bytes());
    prefix.extend_from_slice(&body[from + 8..from + 12]);
    prefix.extend_from_slice(&entry.epoch.get().to_be_bytes());
    Ok(ServedBatch {
        prefix: prefix.freeze(),
        body: body.slice(from + PREFIX_BYTES..to),
        entry: *entry,
    })
}
