//! One fetch: the request, the answer, and batches out of it.
//!
//! Owns: Fetch versions 4 to 12, the CRC check, where a partition's next fetch begins.

use super::{ConsumerConfig, TopicPartition};
use crate::cluster::Cluster;
use crate::error::{Error, ErrorCode};
use bytes::Bytes;
use kafka_wire::fetch_request::{FetchPartition, FetchTopic};
use kafka_wire::{FetchRequest, FetchResponse};
use kafka_wire_core::StrBytes;
use std::sync::Arc;
use tidelog_model::batch::{BatchError, Record, RecordBatch, split_batches};
use tidelog_model::{NodeId, Offset, PartitionIndex, TimestampMs};
use tokio::time::Instant;

/// Batches of one partition. The first may begin below `from`: a batch is always whole.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// Which partition.
    pub partition: TopicPartition,
    /// The position that was asked for.
    pub from: Offset,
    /// The position after them.
    pub next: Offset,
    /// In the order of their offsets, CRC checked.
    pub batches: Vec<RecordBatch>,
    /// Where the records that may be read end.
    pub high_watermark: Offset,
    /// The first offset still there.
    pub log_start: Option<Offset>,
}

/// A record with its place.
#[derive(Clone, Debug)]
pub struct FetchedRecord {
    /// Its offset.
    pub offset: Offset,
    /// Its time.
    pub timestamp: TimestampMs,
    /// Key, value, headers.
    pub record: Record,
}

impl Fetched {
    /// The records from `from` on, control batches left out. Compressed batches are decompressed one at a time, within
    /// the project's bounds.
    pub fn records(&self) -> impl Iterator<Item = Result<FetchedRecord, Error>> + '_ {
        self.batches
            .iter()
            .filter(|batch| !batch.header().attributes.is_control())
            .flat_map(move |batch| self.records_of(batch))
    }

    fn records_of(
        &self,
        batch: &RecordBatch,
    ) -> Box<dyn Iterator<Item = Result<FetchedRecord, Error>> + '_> {
        let header = *batch.header();
        match batch.records() {
            Ok(records) => Box::new(records.filter_map(move |record| match record {
                Ok(record) => {
                    let offset = record.offset(&header);
                    (offset >= self.from).then(|| {
                        Ok(FetchedRecord {
                            offset,
                            timestamp: record.timestamp(&header),
                            record,
                        })
                    })
                }
                Err(error) => Some(Err(corrupt(&self.partition, header.base_offset, &error))),
            })),
            Err(error) => Box::new(std::iter::once(Err(corrupt(
                &self.partition,
                header.base_offset,
                &error,
            )))),
        }
    }
}

fn corrupt(partition: &TopicPartition, at: Offset, error: &BatchError) -> Error {
    Error::Corrupt {
        what: format!("{}/{} at offset {at}", partition.topic, partition.partition),
        cause: error.to_string(),
    }
}

/// A fetch to make.
pub(super) struct FetchJob {
    pub(super) node: NodeId,
    pub(super) partitions: Vec<(TopicPartition, Offset)>,
    pub(super) config: ConsumerConfig,
}

/// What a broker answered.
pub(super) struct NodeAnswer {
    pub(super) node: NodeId,
    pub(super) asked: Vec<(TopicPartition, Offset)>,
    pub(super) result: Result<Vec<PartitionAnswer>, Error>,
}

/// One partition of an answer, not decoded yet.
pub(super) struct PartitionAnswer {
    pub(super) partition: TopicPartition,
    pub(super) code: ErrorCode,
    pub(super) high_watermark: Offset,
    pub(super) log_start: Option<Offset>,
    pub(super) records: Bytes,
}

impl FetchJob {
    pub(super) async fn run(self, cluster: Cluster) -> NodeAnswer {
        let result = self.fetch(&cluster).await;
        NodeAnswer {
            node: self.node,
            asked: self.partitions,
            result,
        }
    }

    async fn fetch(&self, cluster: &Cluster) -> Result<Vec<PartitionAnswer>, Error> {
        let connection = cluster.node(self.node).await?;
        let deadline = Instant::now() + self.config.wait + cluster.config().request_timeout;
        let response = connection
            .call::<FetchRequest>(4..=12, deadline, |_| self.request())
            .await?;
        ErrorCode::new(response.error_code).check("fetch", None)?;
        Ok(self.parts(response))
    }

    fn request(&self) -> FetchRequest {
        let mut request = FetchRequest::default();
        request.replica_id = -1;
        request.max_wait_ms = i32::try_from(self.config.wait.as_millis()).unwrap_or(i32::MAX);
        request.min_bytes = 1;
        request.max_bytes = i32::try_from(self.config.fetch_bytes).unwrap_or(i32::MAX);
        request.isolation_level = 0;
        request.session_id = 0;
        request.session_epoch = -1;
        for (asked, position) in &self.partitions {
            let mut partition = FetchPartition::default();
            partition.partition = asked.partition.get();
            partition.current_leader_epoch = -1;
            partition.fetch_offset = position.get();
            partition.last_fetched_epoch = -1;
            partition.log_start_offset = -1;
            partition.partition_max_bytes =
                i32::try_from(self.config.partition_bytes).unwrap_or(i32::MAX);
            match request
                .topics
                .last_mut()
                .filter(|topic| topic.topic.as_str() == &*asked.topic)
            {
                Some(topic) => topic.partitions.push(partition),
                None => {
                    let mut topic = FetchTopic::default();
                    topic.topic = StrBytes::from(&*asked.topic);
                    topic.partitions.push(partition);
                    request.topics.push(topic);
                }
            }
        }
        request
    }

    fn parts(&self, response: FetchResponse) -> Vec<PartitionAnswer> {
        let mut parts = Vec::new();
        for topic in response.responses {
            let name: Arc<str> = Arc::from(topic.topic.as_str());
            for data in topic.partitions {
                parts.push(PartitionAnswer {
                    partition: TopicPartition {
                        topic: Arc::clone(&name),
                        partition: PartitionIndex::new(data.partition_index),
                    },
                    code: ErrorCode::new(data.error_code),
                    high_watermark: Offset::new(data.high_watermark),
                    log_start: (data.log_start_offset >= 0)
                        .then(|| Offset::new(data.log_start_offset)),
                    records: data.records.unwrap_or_default(),
                });
            }
        }
        parts
    }
}

impl PartitionAnswer {
    /// Splits the batches and checks each CRC. A batch cut off at the end is left for the next fetch, unless it is the
    /// first: then no fetch would ever bring it. Batches wholly below `from` (a broker may send them) are left out.
    pub(super) fn decode(self, from: Offset) -> Result<Fetched, Error> {
        let mut batches = Vec::new();
        let mut next = from;
        for batch in split_batches(self.records) {
            let batch = match batch {
                Ok(batch) => batch,
                Err(BatchError::Incomplete { .. }) if !batches.is_empty() => break,
                Err(error) => return Err(corrupt(&self.partition, next, &error)),
            };
            let header = batch.header();
            batch
                .verify_crc()
                .map_err(|error| corrupt(&self.partition, header.base_offset, &error))?;
            let end = header
                .base_offset
                .plus(i64::from(header.last_offset_delta) + 1);
            if end <= from {
                continue;
            }
            if header.base_offset < next && !batches.is_empty() {
                let error =
                    BatchError::Corrupt("its offsets overlap with those of the batch before it");
                return Err(corrupt(&self.partition, header.base_offset, &error));
            }
            next = end;
            batches.push(batch);
        }
        Ok(Fetched {
            partition: self.partition,
            from,
            next,
            batches,
            high_watermark: self.high_watermark,
            log_start: self.log_start,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use tidelog_model::LeaderEpoch;
    use tidelog_model::batch::BatchBuilder;
    use tidelog_model::codec::Codec;

    fn batch(base: i64, values: &[&str]) -> Bytes {
        let mut builder =
            BatchBuilder::new(Codec::Lz4).base_offset(Offset::new(base), LeaderEpoch::new(1));
        for value in values {
            builder
                .append(TimestampMs::new(7), None, Some(value.as_bytes()), &[])
                .unwrap();
        }
        builder.build().unwrap()
    }

    fn answer(records: Vec<u8>) -> PartitionAnswer {
        PartitionAnswer {
            partition: TopicPartition {
                topic: Arc::from("t"),
                partition: PartitionIndex::new(0),
            },
            code: ErrorCode::NONE,
            high_watermark: Offset::new(100),
            log_start: None,
            records: Bytes::from(records),
        }
    }

    /// Proves that records below the position are left out, the position ends after the last whole batch, and a batch
    /// that was cut off is left for the next fetch, at every length.
    #[test]
    fn position_after_whole_batches() {
        let (one, two) = (batch(10, &["a", "b", "c"]), batch(13, &["d"]));
        for cut in 0..=two.len() {
            let bytes = [&one[..], &two[..cut]].concat();
            let fetched = answer(bytes).decode(Offset::new(11)).unwrap();
            let values: Vec<_> = fetched
                .records()
                .map(|record| record.unwrap())
                .map(|r| (r.offset.get(), r.record.value.unwrap()))
                .collect();
            if cut == two.len() {
                assert_eq!(fetched.next, Offset::new(14));
                assert_eq!(
                    values,
                    [(11, "b".into()), (12, "c".into()), (13, "d".into())]
                );
            } else {
                assert_eq!(fetched.next, Offset::new(13));
                assert_eq!(values.len(), 2);
            }
        }
    }

    /// Proves that damage is an error that names the place, never skipped.
    #[test]
    fn damage_is_told() {
        let mut bytes = batch(10, &["a"]).to_vec();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        let error = answer(bytes).decode(Offset::new(10)).unwrap_err();
        assert!(error.to_string().contains("t/0 at offset 10"), "{error}");
        let cut = batch(10, &["a"])[..40].to_vec();
        assert!(answer(cut).decode(Offset::new(10)).is_err());
        let overlap = [batch(10, &["a", "b"]), batch(11, &["c"])].concat();
        assert!(answer(overlap).decode(Offset::new(10)).is_err());
    }
}
