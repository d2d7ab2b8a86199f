//! Leader epochs as clients see them: checked by every API that carries one, and where each of them ended, over the hot tail and over
//! history that is in the store only, or gone.

use super::asking::{Wanted, batches, fetch, held};
use super::three::{SETTLE, Three, produce, until};
use super::*;
use crate::wire::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use crate::wire::messages::fetch_response::PartitionData;
use crate::wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use crate::wire::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use crate::wire::messages::{
    DeleteRecordsRequest, ListOffsetsRequest, OffsetForLeaderEpochRequest,
};
use tidelog_client::producer::{Producer, ProducerConfig};
use tidelog_env::SystemClock;
use tidelog_model::PlacementGroupId;

const GROUP: PlacementGroupId = PlacementGroupId::new(1);
/// Leadership moved while something was checked.
const NOT_LEADER: &str = "not the leader";

/// Three brokers with one data group and a topic of one partition.
struct Epochs {
    three: Three,
    /// A connection with the leader.
    connection: Connection,
    leader: i32,
}

impl Epochs {
    /// The next broker leads; returns its epoch.
    async fn next_leader(&mut self) -> i32 {
        let next = self.leader % 3 + 1;
        let group = |id: i32| {
            let router = &self.three.nodes[&id].parts.groups.router;
            router.data_group(GROUP).unwrap().group().clone()
        };
        let to = self.three.nodes[&next].addresses().identity.raft_node;
        until("the next broker leads", || async {
            for id in 1..=3 {
                group(id).transfer_leadership(to).await.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            group(next).can_serve_reads()
        })
        .await;
        self.leader = next;
        let connection = self.three.connect(next).await;
        std::mem::replace(&mut self.connection, connection).close("another leads");
        self.epoch()
    }

    fn epoch(&self) -> i32 {
        let router = &self.three.nodes[&self.leader].parts.groups.router;
        router.data_group(GROUP).unwrap().epoch().get()
    }

    /// Whoever leads now is asked: leadership goes back to the preferred broker by itself. Returns its epoch.
    async fn ask_leader(&mut self) -> i32 {
        let three = &self.three;
        let serving = |id: &i32| held(three, *id, GROUP).group().can_serve_reads();
        until("somebody leads", || async {
            (1..=3).any(|id| serving(&id))
        })
        .await;
        self.leader = (1..=3).find(serving).unwrap_or(self.leader);
        let connection = self.three.connect(self.leader).await;
        std::mem::replace(&mut self.connection, connection).close("another is asked");
        self.epoch()
    }

    /// Repeats a check that leadership moved under. `Some(what)`: something is not as it should be.
    async fn check(&mut self, checked: impl AsyncFn(&Self, i32) -> Option<String>) {
        let until = Instant::now() + SETTLE;
        loop {
            let epoch = self.ask_leader().await;
            let Some(wrong) = checked(self, epoch).await else {
                return;
            };
            let leads = self.list(-1, epoch).await.0 == 0 && self.epoch() == epoch;
            let again = !leads || wrong.contains(NOT_LEADER);
            assert!(again && Instant::now() < until, "{wrong}");
        }
    }

    /// Error code, epoch, end offset.
    async fn epoch_end(&self, epoch: i32, current: i32) -> (i16, i32, i64) {
        let answer = self.connection.call(4..=4, deadline(), |_| {
            let mut partition = OffsetForLeaderPartition::default();
            partition.current_leader_epoch = current;
            partition.leader_epoch = epoch;
            let mut topic = OffsetForLeaderTopic::default();
            topic.topic = StrBytes::from("t");
            topic.partitions.push(partition);
            let mut request = OffsetForLeaderEpochRequest::default();
            request.replica_id = -1;
            request.topics.push(topic);
            request
        });
        let answer = answer.await.unwrap();
        let found = &answer.topics[0].partitions[0];
        (found.error_code, found.leader_epoch, found.end_offset)
    }

    /// Error code, offset, epoch.
    async fn list(&self, timestamp: i64, current: i32) -> (i16, i64, i32) {
        let answer = self.connection.call(7..=7, deadline(), |_| {
            let mut partition = ListOffsetsPartition::default();
            partition.current_leader_epoch = current;
            partition.timestamp = timestamp;
            let mut topic = ListOffsetsTopic::default();
            topic.name = StrBytes::from("t");
            topic.partitions.push(partition);
            let mut request = ListOffsetsRequest::default();
            request.replica_id = -1;
            request.topics.push(topic);
            request
        });
        let answer = answer.await.unwrap();
        let found = &answer.topics[0].partitions[0];
        (found.error_code, found.offset, found.leader_epoch)
    }

    async fn fetch(&self, offset: i64, current: i32) -> PartitionData {
        let mut wanted = Wanted::from("t", 0, offset);
        wanted.current_epoch = current;
        fetch(&self.connection, wanted).await
    }

    /// Leader epoch and end offset of every batch from `offset` on.
    async fn batches(&self, mut offset: i64, end: i64) -> Option<Vec<(i32, i64)>> {
        let mut all = Vec::new();
        while offset < end {
            let found = self.fetch(offset, -1).await;
            if found.error_code != 0 {
                return None;
            }
            for (epoch, _, end) in batches(found.records.unwrap()) {
                offset = end;
                all.push((epoch, end));
            }
        }
        Some(all)
    }

    /// What is answered about each epoch is what the batches say.
    async fn check_ends(&mut self, log_start: i64) {
        self.check(async |this: &Self, current| this.wrong_ends(current, log_start).await)
            .await;
    }

    async fn wrong_ends(&self, current: i32, log_start: i64) -> Option<String> {
        let high_watermark = self.list(-1, -1).await.1;
        let Some(batches) = self.batches(log_start, high_watermark).await else {
            return Some(NOT_LEADER.to_owned());
        };
        for wanted in -1..=current + 1 {
            let mut at_most = batches.iter().filter(|(epoch, _)| *epoch <= wanted);
            let expected = if wanted < 0 || wanted > current {
                (-1, -1)
            } else if wanted == current {
                (current, high_watermark)
            } else {
                at_most.next_back().copied().unwrap_or((wanted, log_start))
            };
            let (code, mut epoch, end) = self.epoch_end(wanted, -1).await;
            if batches.is_empty() && (0..current).contains(&wanted) && epoch <= wanted {
                // An epoch whose records are all gone may still be known.
                epoch = wanted;
            }
            if (code, (epoch, end)) != (0, expected) {
                return Some(format!("{code}: of {wanted} {epoch} {end}: {batches:?}"));
            }
        }
        None
    }

    async fn check_fences(&mut self) {
        self.check(async |this: &Self, current| this.wrong_fences(current).await)
            .await;
    }

    async fn wrong_fences(&self, current: i32) -> Option<String> {
        for (said, expected) in [
            (-1, 0),
            (current, 0),
            (current - 1, ErrorCode::FencedLeaderEpoch.code()),
            (current + 1, ErrorCode::UnknownLeaderEpoch.code()),
        ] {
            let codes = [
                self.epoch_end(current, said).await.0,
                self.list(-1, said).await.0,
                self.list(1, said).await.0,
                self.fetch(0, said).await.error_code,
            ];
            if codes.contains(&ErrorCode::NotLeaderOrFollower.code()) {
                return Some(NOT_LEADER.to_owned());
            }
            if codes != [expected; 4] {
                return Some(format!("{said}: {codes:?}"));
            }
        }
        None
    }

    /// Everything is in the store, and in the leader's local log no more.
    async fn tier(&mut self) {
        self.check(async |this: &Self, _| {
            let groups = &this.three.nodes[&this.leader].parts.groups;
            groups.offloads.get(GROUP).unwrap().flush(true).await;
            let hot = held(&this.three, this.leader, GROUP)
                .group()
                .read(|machine| {
                    let bytes = machine.partitions().iter().map(|state| state.hot.bytes());
                    bytes.sum::<u64>()
                });
            (hot > 0).then(|| format!("{NOT_LEADER}, or not yet: {hot} bytes are local"))
        })
        .await;
    }

    async fn delete_below(&mut self, offset: i64) {
        self.check(async |this: &Self, _| {
            let answer = this.connection.call(2..=2, deadline(), |_| {
                let mut partition = DeleteRecordsPartition::default();
                partition.offset = offset;
                let mut topic = DeleteRecordsTopic::default();
                topic.name = StrBytes::from("t");
                topic.partitions.push(partition);
                let mut request = DeleteRecordsRequest::default();
                request.timeout_ms = 30_000;
                request.topics.push(topic);
                request
            });
            let answer = answer.await.unwrap();
            let at = answer.topics[0].partitions[0].low_watermark;
            (at != offset).then(|| format!("{NOT_LEADER}: {at}"))
        })
        .await;
    }
}

/// Proves that epochs rise with every leader, that an older one is fenced and a newer one unknown to Fetch, ListOffsets and
/// OffsetForLeaderEpoch, and that the last answers for every epoch where the batches themselves say that it ended: from the tail, from the
/// store alone, after history was deleted, and by a leader that has written nothing itself.
#[tokio::test(flavor = "multi_thread")]
async fn epochs_are_checked_and_their_ends_told() {
    let mut three = Three::new();
    three.set.push("cluster.data-groups=1".to_owned());
    three.start(&[1, 2, 3]).await;
    let cluster = three.cluster();
    cluster.create_topic("t", 1, &[]).await.unwrap();
    let clock = SystemClock::shared();
    let producer = Producer::start(cluster, ProducerConfig::default(), clock).unwrap();
    let (leader, connection) = (three.leaders("t").await[0], three.connect(1).await);
    let mut epochs = Epochs {
        three,
        connection,
        leader,
    };
    let (mut acknowledged, mut last) = (vec![Vec::new()], 0);
    for round in 0..4 {
        let epoch = epochs.next_leader().await;
        assert!(epoch > last);
        last = epoch;
        produce(&producer, "t", round * 5..round * 5 + 5, &mut acknowledged).await;
    }
    producer.close().await.unwrap();
    epochs.next_leader().await;
    epochs.check_ends(0).await;
    epochs.check_fences().await;
    epochs.tier().await;
    epochs.check_ends(0).await;
    epochs.check_fences().await;
    epochs.delete_below(7).await;
    epochs.check_ends(7).await;
    epochs.next_leader().await;
    epochs.check_ends(7).await;
    epochs.delete_below(20).await;
    epochs.check_ends(20).await;
    epochs.connection.close("done");
    epochs.three.stop().await;
}
