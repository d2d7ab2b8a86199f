//! Offload over a real log and a store that fails on command: whatever step a crash or a lost reply hits, the next start
//! goes on from the committed state, nothing is lost, and no reader sees a hole.

use super::parts::parts;
use super::upload::Uploader;
use super::{FlushOutcome, Offload, OffloadConfig, StoreGuard};
use crate::datagroup::{DataGroup, DataGroupConfig, DataMachine};
use crate::log::{GroupLog, GroupLogConfig, LogEnv, NoObserver};
use crate::partition::{
    AppendBatch, AppendOutcome, BatchDescriptor, CutStage, PartitionCommand, PartitionOutcome,
};
use crate::placement::{Group, GroupConfig, Member, NoPeers};
use bytes::Bytes;
use object_store::ObjectStore;
use object_store::memory::InMemory;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tidelog_env::disk::RealDisk;
use tidelog_env::{SystemClock, SystemRandom, Tasks};
use tidelog_model::batch::{BatchBuilder, RecordBatch};
use tidelog_model::codec::Codec;
use tidelog_model::{
    ClusterId, LogIndex, NodeId, Offset, PartitionId, PartitionIndex, PlacementGroupId,
    ProducerEpoch, ProducerId, RaftNodeId, Sequence, StoreId, TimestampMs, TopicId,
};
use tidelog_tiering::reader::{ReaderConfig, RemoteReader};
use tidelog_tiering::store::faulty::{Call, Fault, FaultyStore};
use tidelog_tiering::store::{StoreLimits, TierStore};
use tidelog_tiering::{key, manifest, marker};
use uuid::Uuid;

const WITHIN: Duration = Duration::from_secs(60);
const GROUP: PlacementGroupId = PlacementGroupId::new(1);
const STORE: StoreId = StoreId::new(Uuid::from_u128(5));

fn deadline() -> tokio::time::Instant {
    tokio::time::Instant::now() + WITHIN
}

fn cluster() -> ClusterId {
    ClusterId::new(Uuid::from_u128(42))
}

fn partition(index: i32) -> PartitionId {
    PartitionId {
        topic: TopicId::new(Uuid::from_u128(7)),
        index: PartitionIndex::new(index),
    }
}

mod lookup;
mod quiet;
mod stores;

struct Rig {
    dir: tempfile::TempDir,
    memory: Arc<InMemory>,
    faulty: FaultyStore,
    try_timeout: Duration,
    /// Whether metadata says which store is the cluster's.
    marked: Arc<AtomicBool>,
}

struct Running {
    tasks: Tasks,
    group: DataGroup,
    offload: Offload,
    store: TierStore,
}

impl Rig {
    fn new() -> Self {
        let memory = Arc::new(InMemory::new());
        Self {
            dir: tempfile::tempdir().unwrap(),
            faulty: FaultyStore::new(Arc::clone(&memory) as Arc<dyn ObjectStore>),
            memory,
            try_timeout: Duration::from_millis(300),
            marked: Arc::new(AtomicBool::new(true)),
        }
    }

    fn store(&self, over: Arc<dyn ObjectStore>) -> TierStore {
        let limits = StoreLimits {
            try_timeout: self.try_timeout,
            tries_max: 2,
            ..StoreLimits::default()
        };
        let root = object_store::path::Path::default();
        TierStore::new(over, &root, cluster(), SystemRandom::seeded(3), limits)
    }

    /// Marks the store, whatever else it does not do, and says that it is the cluster's while `marked` says so.
    async fn guard(&self, store: &TierStore) -> StoreGuard {
        let sound = self.store(Arc::clone(&self.memory) as Arc<dyn ObjectStore>);
        let found = marker::mark(&sound, STORE).await.unwrap();
        assert!(found.is(STORE));
        let marked = Arc::clone(&self.marked);
        StoreGuard::new(store.clone(), move || {
            marked.load(Ordering::Relaxed).then_some(STORE)
        })
    }

    async fn start(&self) -> Running {
        self.start_with(u64::MAX).await
    }

    async fn start_with(&self, cut_bytes: u64) -> Running {
        self.start_bounded(cut_bytes, 1 << 20).await
    }

    async fn start_bounded(&self, cut_bytes: u64, entry_bytes_max: usize) -> Running {
        let tasks = Tasks::new();
        let random = SystemRandom::seeded(3);
        let node = RaftNodeId::new(7);
        let mut log = GroupLogConfig::new(self.dir.path().join("1"), cluster(), GROUP, node);
        log.file_bytes = 4 << 20;
        log.entry_bytes_max = entry_bytes_max;
        let env = LogEnv {
            disk: RealDisk::shared(),
            random: Arc::clone(&random),
            tasks: tasks.clone(),
            fatal: Arc::new(|failure| panic!("{failure}")),
            observer: Arc::new(NoObserver),
        };
        let log = GroupLog::open(log, env).await.unwrap();
        let member = Member {
            broker: NodeId::new(1),
            address: String::new(),
        };
        let config = GroupConfig::alone(GROUP, node, member);
        let machine = DataMachine::new(cluster(), GROUP);
        let group = Group::start(config, log, machine, Arc::new(NoPeers))
            .await
            .unwrap();
        group.wait_leader(WITHIN).await.unwrap();
        let store = self.store(Arc::new(self.faulty.clone()));
        let reader = RemoteReader::new(store.clone(), ReaderConfig::default(), tasks.clone());
        let clock = SystemClock::shared();
        let group = DataGroup::start(
            GROUP,
            DataGroupConfig::default(),
            group,
            Arc::new(reader),
            Arc::clone(&clock),
            &tasks,
        );
        let config = OffloadConfig {
            cut_bytes,
            cut_interval: Duration::from_secs(3_600),
            local_bytes: 0,
            upload_bytes_per_second: None,
        };
        let guard = self.guard(&store).await;
        let offload = Offload::start(config, group.clone(), guard, clock, random, &tasks);
        Running {
            tasks,
            group,
            offload,
            store,
        }
    }
}

impl Running {
    /// The end of a process, as far as one process can play it: tasks are dropped where they stand.
    async fn crash(self) {
        self.tasks.stop().await;
        self.group.group().stop().await;
    }

    async fn create(&self, index: i32) {
        let command = PartitionCommand::CreatePartition {
            partition: partition(index),
            topic_name: "t".to_owned(),
            by: LogIndex::new(0),
            first_new_producer: ProducerId::new(0),
        };
        let (_, outcome) = self.group.propose(command).await.unwrap();
        assert_eq!(outcome, PartitionOutcome::Done);
    }

    async fn append(&self, index: i32, first: i64, count: i64) {
        let mut builder = BatchBuilder::new(Codec::None);
        for n in first..first + count {
            builder
                .append(
                    TimestampMs::new(n),
                    None,
                    Some(format!("value {n}").as_bytes()),
                    &[],
                )
                .unwrap();
        }
        let bytes = builder.build().unwrap();
        self.append_batch(index, first, bytes).await;
    }

    /// Appends a batch as it is, without the checks of produce.
    async fn append_batch(&self, index: i32, first: i64, bytes: Bytes) {
        let header = *RecordBatch::parse(bytes.clone()).unwrap().header();
        let descriptor = BatchDescriptor {
            partition: partition(index),
            position: 0,
            length: u32::try_from(bytes.len()).unwrap(),
            records: u32::try_from(header.last_offset_delta).unwrap() + 1,
            producer_id: ProducerId::NONE,
            producer_epoch: ProducerEpoch::new(-1),
            log_append_time: false,
            base_sequence: Sequence::new(-1),
            first_timestamp: header.record_timestamp(0),
            max_timestamp: header.max_timestamp,
        };
        let pending = self.group.proposer().accept(vec![AppendBatch {
            descriptor,
            bytes: bytes.into(),
        }]);
        let outcomes = pending.await.unwrap().outcomes(deadline()).await;
        let Ok(AppendOutcome::Appended(appended)) = outcomes[0] else {
            panic!("{outcomes:?}")
        };
        assert_eq!(appended.base_offset, Offset::new(first));
    }

    /// Reads everything and checks that each offset is there once, with its value.
    async fn check(&self, index: i32, end: i64) {
        let mut next = 0i64;
        while next < end {
            let fetched = self
                .group
                .fetch(partition(index), Offset::new(next), 1 << 20)
                .await
                .unwrap();
            assert_eq!(fetched.high_watermark, Offset::new(end));
            assert!(!fetched.batches.is_empty(), "no records at {next}");
            for batch in fetched.batches {
                let mut chunks = Vec::new();
                batch.chunks_into(&mut chunks);
                let batch = RecordBatch::parse_checked(chunks.concat().into()).unwrap();
                for record in batch.records().unwrap() {
                    let record = record.unwrap();
                    assert_eq!(record.offset(batch.header()), Offset::new(next));
                    assert_eq!(record.value.unwrap(), format!("value {next}"));
                    next += 1;
                }
            }
        }
        assert_eq!(next, end);
    }

    async fn flush(&self, trim_local: bool) {
        let outcome = tokio::time::timeout(WITHIN, self.offload.flush(trim_local)).await;
        assert_eq!(outcome.expect("the flush ends"), FlushOutcome::Done);
    }

    /// Asks for a flush without waiting for it, and waits until the cut has come as far as `reached` says.
    async fn flush_until(&self, reached: impl Fn(&CutStage) -> bool) {
        let offload = self.offload.clone();
        self.tasks.spawn("flush", async move {
            offload.flush(false).await;
        });
        let mut applied = self.group.group().applied();
        let wait = async {
            while !self.group.group().read(|m| reached(m.partitions().stage())) {
                applied.changed().await.unwrap();
            }
        };
        tokio::time::timeout(WITHIN, wait)
            .await
            .expect("the stage is reached");
    }

    async fn published(&self) -> u64 {
        let sequence = self
            .group
            .group()
            .read(|m| m.partitions().published_sequence());
        for number in 1..=sequence {
            let bytes = self.store.get(&key::snapshot(GROUP, number)).await.unwrap();
            let published = manifest::decode(&bytes).unwrap();
            for partition in published.partitions {
                assert_eq!(partition.tiered_until, partition.next_offset);
                for segment in partition.segments {
                    self.store.head(&key::data(&segment.object)).await.unwrap();
                }
            }
        }
        sequence
    }
}

/// Proves the plain path: records of two partitions move, are dropped locally, and are read from the store.
#[tokio::test(flavor = "multi_thread")]
async fn flush_moves_and_trims() {
    let rig = Rig::new();
    let running = rig.start().await;
    for index in 0..2 {
        running.create(index).await;
        for batch in 0..20 {
            running.append(index, batch * 10, 10).await;
        }
    }
    running.flush(true).await;
    for index in 0..2 {
        let bounds = running.group.group().read(|machine| {
            let state = machine.partitions().get(partition(index)).unwrap();
            (state.tiered_until, state.local_start(), state.hot.bytes())
        });
        assert_eq!(bounds, (Offset::new(200), Offset::new(200), 0));
        running.check(index, 200).await;
    }
    assert!(
        rig.faulty.calls(Call::Get) > 0,
        "the reads came from the store"
    );
    assert_eq!(running.published().await, 1);
    running.append(0, 200, 5).await;
    running.check(0, 205).await;
    running.crash().await;
    let running = rig.start().await;
    running.check(0, 205).await;
    running.check(1, 200).await;
    running.flush(true).await;
    assert_eq!(running.published().await, 2);
    running.check(0, 205).await;
    running.crash().await;
}

/// Proves that a log which only deletions have made useless is given free too: nothing is left to tier, yet a cut is made
/// and the local log shrinks.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_without_untiered_records_is_freed() {
    let rig = Rig::new();
    let running = rig.start_with(32 << 20).await;
    running.create(0).await;
    // 40 MB of batches with long values, past the bytes that make a cut due.
    let value = vec![7u8; 500_000];
    let mut last = None;
    for n in 0..80 {
        let mut builder = BatchBuilder::new(Codec::None);
        builder
            .append(TimestampMs::new(n), None, Some(&value), &[])
            .unwrap();
        let bytes = builder.build().unwrap();
        let descriptor = BatchDescriptor {
            partition: partition(if n < 40 { 0 } else { 1 }),
            position: 0,
            length: u32::try_from(bytes.len()).unwrap(),
            records: 1,
            producer_id: ProducerId::NONE,
            producer_epoch: ProducerEpoch::new(-1),
            log_append_time: false,
            base_sequence: Sequence::new(-1),
            first_timestamp: TimestampMs::new(n),
            max_timestamp: TimestampMs::new(n),
        };
        let batch = AppendBatch {
            descriptor,
            bytes: bytes.into(),
        };
        let pending = running.group.proposer().accept(vec![batch]).await.unwrap();
        last = Some(pending.outcomes(deadline()).await);
    }
    // Partition 1 was never created: half of the log are refused batches, which no segment ever holds.
    assert!(matches!(last.unwrap()[0], Ok(AppendOutcome::Refused(_))));
    let command = PartitionCommand::DeleteTopic {
        topic: partition(0).topic,
        by: LogIndex::new(0),
    };
    running.group.propose(command).await.unwrap();
    let freed = async {
        while running.group.group().log().local_bytes() > 8 << 20 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(WITHIN, freed)
        .await
        .expect("the log shrinks without untiered records");
    assert!(running.published().await >= 1);
    running.crash().await;
}

/// Proves that a cut with more segments than one entry can name is committed in parts, and that a start between two parts
/// goes on with the rest: each segment is in the manifest once.
#[tokio::test(flavor = "multi_thread")]
async fn a_cut_of_many_partitions_is_committed_in_parts() {
    const PARTITIONS: i32 = 400;
    const ENTRY_BYTES_MAX: usize = 16 << 10;
    let rig = Rig::new();
    let running = rig.start_bounded(u64::MAX, ENTRY_BYTES_MAX).await;
    for index in 0..PARTITIONS {
        running.create(index).await;
        running.append(index, 0, 1).await;
    }
    rig.faulty.inject_forever(Call::Put, Fault::Unavailable);
    running
        .flush_until(|stage| matches!(stage, CutStage::Cut(_)))
        .await;
    // The driver cannot upload; what it would have done before a crash is done here, up to the first part.
    let (clock, random) = (SystemClock::shared(), SystemRandom::seeded(5));
    let uploader = Uploader {
        group: &running.group,
        store: &rig.store(Arc::clone(&rig.memory) as Arc<dyn ObjectStore>),
        clock: clock.as_ref(),
        random: random.as_ref(),
        flushes: &AtomicUsize::new(1),
        bytes_per_second: None,
    };
    let stage = running
        .group
        .group()
        .read(|m| m.partitions().stage().clone());
    let CutStage::Cut(frozen) = stage else {
        panic!("{stage:?}")
    };
    let segments = uploader.upload(&frozen).await.unwrap();
    let mut parts = parts(segments, running.group.group().entry_bytes_max()).into_iter();
    let first = PartitionCommand::Uploaded {
        cut: frozen.at.index,
        segments: parts.next().unwrap(),
    };
    assert!(parts.len() > 1, "more than two parts");
    let (_, outcome) = running.group.propose(first).await.unwrap();
    assert_eq!(outcome, PartitionOutcome::Done);
    running.crash().await;

    let running = rig.start_bounded(u64::MAX, ENTRY_BYTES_MAX).await;
    rig.faulty.heal();
    running.flush(true).await;
    assert_eq!(running.published().await, 1);
    let counts: Vec<usize> = running.group.group().read(|machine| {
        let partitions = machine.partitions();
        partitions
            .iter()
            .map(|state| state.segments.len())
            .collect()
    });
    assert_eq!(counts, vec![1; usize::try_from(PARTITIONS).unwrap()]);
    for index in [0, 123, PARTITIONS - 1] {
        running.append(index, 1, 1).await;
        running.check(index, 2).await;
    }
    running.crash().await;
}

/// What a crash meets, and how far the cut has come by then.
struct CrashPoint {
    name: &'static str,
    call: Call,
    fault: Fault,
    reached: fn(&CutStage) -> bool,
}

const CRASH_POINTS: &[CrashPoint] = &[
    CrashPoint {
        name: "before the upload",
        call: Call::Put,
        fault: Fault::Unavailable,
        reached: |stage| matches!(stage, CutStage::Cut(_)),
    },
    CrashPoint {
        name: "the upload is there, nobody knows",
        call: Call::Put,
        fault: Fault::LoseReplyAndHang,
        reached: |stage| matches!(stage, CutStage::Cut(_)),
    },
    CrashPoint {
        name: "committed, not published",
        call: Call::PutIfAbsent,
        fault: Fault::Unavailable,
        reached: |stage| matches!(stage, CutStage::Uploaded(_)),
    },
    CrashPoint {
        name: "the manifest is there, nobody knows",
        call: Call::PutIfAbsent,
        fault: Fault::LoseReplyAndHang,
        reached: |stage| matches!(stage, CutStage::Uploaded(_)),
    },
    CrashPoint {
        name: "published",
        call: Call::Delete,
        fault: Fault::None,
        reached: |stage| matches!(stage, CutStage::Published(_)),
    },
];

/// Proves I6, I9, I10 at every crash point: records stay readable all the time, appended ones too, and the next start
/// finishes the cut under way before it makes another.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_every_step_is_resumed() {
    for point in CRASH_POINTS {
        let rig = Rig::new();
        let running = rig.start().await;
        running.create(0).await;
        running.append(0, 0, 50).await;
        rig.faulty.inject_forever(point.call, point.fault);
        running.flush_until(point.reached).await;
        running.append(0, 50, 10).await;
        running.check(0, 60).await;
        running.crash().await;
        let running = rig.start().await;
        running.check(0, 60).await;
        running.append(0, 60, 5).await;
        rig.faulty.heal();
        running.flush(true).await;
        running.check(0, 65).await;
        assert_eq!(
            running.published().await,
            2,
            "{}: two cuts, no number passed over",
            point.name
        );
        running.crash().await;
        let running = rig.start().await;
        running.check(0, 65).await;
        running.crash().await;
    }
}

/// Proves that lost replies and passing failures of every call neither stop nor double anything.
#[tokio::test(flavor = "multi_thread")]
async fn passing_faults_are_retried() {
    let rig = Rig::new();
    let running = rig.start().await;
    running.create(0).await;
    for round in 0..4 {
        for call in [Call::Put, Call::PutIfAbsent] {
            rig.faulty
                .inject(call, [Fault::LoseReply, Fault::Unavailable, Fault::None]);
        }
        running.append(0, round * 10, 10).await;
        running.flush(true).await;
        rig.faulty.heal();
        running.check(0, round * 10 + 10).await;
    }
    assert_eq!(running.published().await, 4);
    running.crash().await;
}

/// Proves that another cluster's manifest under our prefix stops publishing with its name, and touches nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_manifest_is_named() {
    let rig = Rig::new();
    let running = rig.start().await;
    running.create(0).await;
    running.append(0, 0, 10).await;
    let key = key::snapshot(GROUP, 1);
    running
        .store
        .put_if_absent(&key, b"not a manifest".as_ref().into())
        .await
        .unwrap();
    running
        .flush_until(|stage| matches!(stage, CutStage::Uploaded(_)))
        .await;
    let told = async {
        loop {
            match running.offload.progress().last_error() {
                Some(error) if error.contains(key.as_str()) => return,
                _ => tokio::task::yield_now().await,
            }
        }
    };
    tokio::time::timeout(WITHIN, told)
        .await
        .expect("the error names the key");
    assert_eq!(
        running.store.get(&key).await.unwrap(),
        b"not a manifest".as_ref()
    );
    running.check(0, 10).await;
    running.crash().await;
}
