//! A bucket as brokers leave it: segments, published manifests, and what rows the archive has to make of them.

use bytes::Bytes;
use object_store::ObjectStore;
use object_store::path::Path;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidelog_archive::{ArchiveConfig, Archiver};
use tidelog_env::{Random, SystemClock, SystemRandom};
use tidelog_model::batch::{BatchBuilder, RecordBatch};
use tidelog_model::codec::Codec;
use tidelog_model::{
    ClusterId, LeaderEpoch, LogId, LogIndex, Offset, PartitionId, PartitionIndex, PlacementGroupId,
    ProducerEpoch, ProducerId, Sequence, Term, TimestampMs, TopicId,
};
use tidelog_tiering::manifest::{EpochStart, GroupManifest, ObjectId, PartitionManifest};
use tidelog_tiering::{ObjectBuilder, StoreLimits, TierStore, key, manifest};
use uuid::Uuid;

pub(crate) type Headers = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// One record as a producer hands it over.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rec {
    pub(crate) timestamp: i64,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) headers: Headers,
}

/// One batch as it is appended.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) codec: Codec,
    pub(crate) records: Vec<Rec>,
    pub(crate) producer: Option<(i64, i16, i32)>,
    pub(crate) append_time: Option<i64>,
    pub(crate) control: bool,
}

impl Spec {
    pub(crate) fn of(records: Vec<Rec>) -> Self {
        Self {
            codec: Codec::None,
            records,
            producer: None,
            append_time: None,
            control: false,
        }
    }

    pub(crate) fn values(timestamp: i64, values: std::ops::Range<i32>) -> Self {
        let record = |value: i32| Rec {
            timestamp,
            value: Some(value.to_string().into_bytes()),
            ..Rec::default()
        };
        Self::of(values.map(record).collect())
    }
}

/// One row as the table has to hold it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Expected {
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    pub(crate) timestamp: i64,
    pub(crate) timestamp_type: &'static str,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) headers: Headers,
    pub(crate) leader_epoch: i32,
    pub(crate) producer: Option<(i64, i32)>,
    pub(crate) sequence: Option<i32>,
    pub(crate) size: i32,
}

#[derive(Clone, Debug)]
pub(crate) struct Topic {
    pub(crate) id: TopicId,
    pub(crate) name: String,
}

pub(crate) struct Bucket {
    pub(crate) raw: Arc<dyn ObjectStore>,
    pub(crate) store: TierStore,
    pub(crate) uri: String,
    pub(crate) group: PlacementGroupId,
    pub(crate) epoch: i32,
    sequence: u64,
    partitions: BTreeMap<PartitionId, PartitionManifest>,
    rows: BTreeMap<TopicId, Vec<Expected>>,
    random: Arc<dyn Random>,
}

pub(crate) fn limits() -> StoreLimits {
    StoreLimits {
        try_timeout: Duration::from_secs(20),
        tries_max: 3,
        retry_delay_min: Duration::from_millis(1),
        retry_delay_max: Duration::from_millis(2),
        ..StoreLimits::default()
    }
}

pub(crate) const CLUSTER: ClusterId = ClusterId::new(Uuid::from_u128(0xc1));

pub(crate) fn open(raw: &Arc<dyn ObjectStore>, seed: u64) -> TierStore {
    TierStore::new(
        Arc::clone(raw),
        &Path::from("pre"),
        CLUSTER,
        SystemRandom::seeded(seed),
        limits(),
    )
}

impl Bucket {
    /// `raw` is below `uri`.
    pub(crate) fn new(raw: Arc<dyn ObjectStore>, uri: &str) -> Self {
        Self {
            store: open(&raw, 1),
            raw,
            uri: uri.to_owned(),
            group: PlacementGroupId::new(1),
            epoch: 1,
            sequence: 0,
            partitions: BTreeMap::new(),
            rows: BTreeMap::new(),
            random: SystemRandom::seeded(2),
        }
    }

    pub(crate) fn in_memory() -> Self {
        Self::new(
            Arc::new(object_store::memory::InMemory::new()),
            "s3://bucket",
        )
    }

    pub(crate) fn topic(&self, name: &str) -> Topic {
        Topic {
            id: TopicId::new(self.random.uuid()),
            name: name.to_owned(),
        }
    }

    pub(crate) fn config(&self) -> ArchiveConfig {
        ArchiveConfig::new(self.uri.clone())
    }

    pub(crate) fn archiver(&self) -> Archiver {
        self.archiver_on(&self.raw, self.config(), 3)
    }

    pub(crate) fn archiver_on(
        &self,
        raw: &Arc<dyn ObjectStore>,
        config: ArchiveConfig,
        seed: u64,
    ) -> Archiver {
        Archiver::new(
            config,
            open(raw, seed),
            SystemClock::shared(),
            SystemRandom::seeded(seed),
        )
    }

    pub(crate) fn partition(&mut self, topic: &Topic, index: i32) -> &mut PartitionManifest {
        let id = PartitionId {
            topic: topic.id,
            index: PartitionIndex::new(index),
        };
        self.partitions
            .entry(id)
            .or_insert_with(|| PartitionManifest {
                id,
                topic_name: topic.name.clone(),
                log_start: Offset::ZERO,
                tiered_until: Offset::ZERO,
                next_offset: Offset::ZERO,
                first_new_producer: ProducerId::new(0),
                epochs: Vec::new(),
                segments: Vec::new(),
                producers: Vec::new(),
            })
    }

    /// Uploads one object with a segment of each partition given.
    pub(crate) async fn upload(
        &mut self,
        topic: &Topic,
        segments: Vec<(i32, Vec<Spec>)>,
    ) -> ObjectId {
        let term = Term::new(u64::try_from(self.epoch).unwrap());
        let id = ObjectId {
            group: self.group,
            term,
            id: self.random.uuid(),
        };
        let epoch = LeaderEpoch::new(self.epoch);
        let mut builder = ObjectBuilder::new(id);
        for (index, specs) in segments {
            let mut next = self.partition(topic, index).tiered_until;
            builder
                .begin_segment(self.partition(topic, index).id)
                .unwrap();
            for spec in specs {
                let batch = RecordBatch::parse_checked(encode(&spec))
                    .unwrap()
                    .with_offset_and_epoch(next, epoch);
                self.expect(topic, index, &spec, next);
                next = batch.header().next_offset();
                builder
                    .push_batch(batch.into_bytes(), TimestampMs::new(1))
                    .unwrap();
            }
        }
        let built = builder.finish().unwrap();
        self.store
            .put_object(&key::data(&id), built.chunks)
            .await
            .unwrap();
        for (partition, entry) in built.segments {
            let manifest = self.partitions.get_mut(&partition).unwrap();
            manifest.tiered_until = entry.last_offset.plus(1);
            manifest.next_offset = manifest.tiered_until;
            if manifest.epochs.last().is_none_or(|last| last.epoch < epoch) {
                manifest.epochs.push(EpochStart {
                    epoch,
                    start: entry.base_offset,
                });
            }
            manifest.segments.push(entry);
        }
        id
    }

    pub(crate) async fn publish(&mut self) {
        self.sequence += 1;
        let manifest = GroupManifest {
            cluster: CLUSTER,
            group: self.group,
            last: LogId {
                term: Term::new(1),
                index: LogIndex::new(self.sequence),
            },
            stamp: TimestampMs::new(1),
            dropped_at: LogIndex::new(0),
            partitions: self.partitions.values().cloned().collect(),
            coordinator: Bytes::new(),
        };
        let key = key::snapshot(self.group, self.sequence);
        self.store
            .put_if_absent(&key, manifest::encode(&manifest))
            .await
            .unwrap();
    }

    /// Upload and publish.
    pub(crate) async fn append(&mut self, topic: &Topic, index: i32, specs: Vec<Spec>) {
        self.upload(topic, vec![(index, specs)]).await;
        self.publish().await;
    }

    /// The rows that the topic's table has to hold, in order.
    pub(crate) fn expected(&self, topic: &Topic) -> Vec<Expected> {
        let mut rows = self.rows.get(&topic.id).cloned().unwrap_or_default();
        rows.sort();
        rows
    }

    fn expect(&mut self, topic: &Topic, partition: i32, spec: &Spec, base: Offset) {
        if spec.control {
            return;
        }
        let rows = self.rows.entry(topic.id).or_default();
        for (index, record) in (0i32..).zip(&spec.records) {
            let length = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
            let headers: usize = record
                .headers
                .iter()
                .map(|(key, value)| key.len() + length(value))
                .sum();
            rows.push(Expected {
                partition,
                offset: base.plus(i64::from(index)).get(),
                timestamp: spec.append_time.unwrap_or(record.timestamp),
                timestamp_type: if spec.append_time.is_some() {
                    "LogAppendTime"
                } else {
                    "CreateTime"
                },
                key: record.key.clone(),
                value: record.value.clone(),
                headers: record.headers.clone(),
                leader_epoch: self.epoch,
                producer: spec.producer.map(|(id, epoch, _)| (id, i32::from(epoch))),
                sequence: spec
                    .producer
                    .map(|(_, _, base)| Sequence::new(base).plus(index).get()),
                size: i32::try_from(length(&record.key) + length(&record.value) + headers).unwrap(),
            });
        }
    }
}

fn encode(spec: &Spec) -> Bytes {
    let mut builder = BatchBuilder::new(spec.codec);
    if let Some((id, epoch, sequence)) = spec.producer {
        builder = builder.producer(
            ProducerId::new(id),
            ProducerEpoch::new(epoch),
            Sequence::new(sequence),
        );
    }
    for record in &spec.records {
        let headers: Vec<_> = record
            .headers
            .iter()
            .map(|(key, value)| (key.as_slice(), value.as_deref()))
            .collect();
        let timestamp = TimestampMs::new(record.timestamp);
        builder
            .append(
                timestamp,
                record.key.as_deref(),
                record.value.as_deref(),
                &headers,
            )
            .unwrap();
    }
    let mut bytes = builder.build().unwrap().to_vec();
    if spec.control {
        bytes[22] |= 1 << 5;
    }
    if let Some(time) = spec.append_time {
        bytes[22] |= 1 << 3;
        bytes[35..43].copy_from_slice(&time.to_be_bytes());
    }
    let crc = crc32c::crc32c(&bytes[21..]);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    bytes.into()
}
