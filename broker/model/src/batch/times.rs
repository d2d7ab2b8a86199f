//! Timestamps inside a batch: the first record at or after one, and the largest from an offset on.
//!
//! Owns: what the header cannot say, because a reader's log start may lie inside the batch (field reports A10, A12).
//! Not here: choosing the batch (its index).

use super::{BatchError, RecordBatch};
use crate::{Offset, TimestampMs};

impl RecordBatch {
    /// The first record at or after `from` with a timestamp of at least `at`: its offset and its timestamp.
    ///
    /// # Errors
    /// [`BatchError`] when a record up to there cannot be decoded: not the same as "none".
    pub fn find_timestamp(
        &self,
        from: Offset,
        at: TimestampMs,
    ) -> Result<Option<(Offset, TimestampMs)>, BatchError> {
        if self.header().last_offset() < from {
            return Ok(None);
        }
        for record in self.records()? {
            let record = record?;
            let found = (
                record.offset(self.header()),
                record.timestamp(self.header()),
            );
            if found.0 >= from && found.1 >= at {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The largest timestamp of the records at or after `from`.
    ///
    /// # Errors
    /// [`BatchError`] when a record cannot be decoded.
    pub fn max_timestamp_from(&self, from: Offset) -> Result<Option<TimestampMs>, BatchError> {
        if self.header().last_offset() < from {
            return Ok(None);
        }
        let mut largest = None;
        for record in self.records()? {
            let record = record?;
            if record.offset(self.header()) >= from {
                largest = largest.max(Some(record.timestamp(self.header())));
            }
        }
        Ok(largest)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::LeaderEpoch;
    use crate::batch::BatchBuilder;
    use crate::codec::Codec;

    fn batch(codec: Codec) -> RecordBatch {
        let mut builder =
            BatchBuilder::new(codec).base_offset(Offset::new(10), LeaderEpoch::new(1));
        for at in [50, 20, 90, 30] {
            builder
                .append(TimestampMs::new(at), None, Some(b"v"), &[])
                .unwrap();
        }
        RecordBatch::parse(builder.build().unwrap()).unwrap()
    }

    /// Proves that only records from the given offset on count, with timestamps out of order.
    #[test]
    fn records_below_do_not_count() {
        for codec in [Codec::None, Codec::Zstd] {
            let batch = batch(codec);
            let largest = |from| batch.max_timestamp_from(Offset::new(from)).unwrap();
            assert_eq!(largest(0), Some(TimestampMs::new(90)));
            assert_eq!(largest(12), Some(TimestampMs::new(90)));
            assert_eq!(largest(13), Some(TimestampMs::new(30)));
            assert_eq!(largest(14), None);
            let find = |from, at| {
                batch
                    .find_timestamp(Offset::new(from), TimestampMs::new(at))
                    .unwrap()
                    .map(|(offset, at)| (offset.get(), at.get()))
            };
            assert_eq!(find(0, 30), Some((10, 50)));
            assert_eq!(find(11, 21), Some((12, 90)));
            assert_eq!(find(13, 31), None);
            assert_eq!(find(14, 0), None);
        }
    }

    /// Proves that a batch that cannot be decoded is an error, never "no such record".
    #[test]
    fn damage_is_not_absence() {
        let good = batch(Codec::Zstd);
        let mut bytes = good.bytes().to_vec();
        let end = bytes.len();
        bytes[end - 12..].fill(0xff);
        let bad = RecordBatch::parse(bytes.into()).unwrap();
        assert!(
            bad.find_timestamp(Offset::new(10), TimestampMs::new(0))
                .is_err()
        );
        assert!(bad.max_timestamp_from(Offset::new(10)).is_err());
    }
}
