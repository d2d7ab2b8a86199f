//! One broker of three is left: what it still answers, what it refuses, and that nothing is made up; then the others come back.

use super::asking::{Wanted, fetch, produce_one};
use super::members::{admin, members};
use super::three::{SETTLE, Three, create_with_timeout, until};
use super::*;
use crate::wire::messages::join_group_request::JoinGroupRequestProtocol;
use crate::wire::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use crate::wire::messages::{
    FindCoordinatorRequest, HeartbeatRequest, InitProducerIdRequest, JoinGroupRequest,
    MetadataRequest, OffsetCommitRequest,
};
use std::collections::BTreeSet;
use tidelog_client::{Cluster, ClusterConfig};
use tidelog_env::SystemRandom;

/// Longer than any deadline that the broker sets itself, and what a busy machine adds.
const BOUNDED: Duration = Duration::from_secs(25);

const NOT_LEADER: i16 = ErrorCode::NotLeaderOrFollower.code();
const TIMED_OUT: i16 = ErrorCode::RequestTimedOut.code();

struct Alone {
    three: Three,
    id: i32,
    connection: Connection,
    /// A partition that it led, and how many records of it were acknowledged.
    partition: i32,
    acknowledged: i64,
}

impl Alone {
    /// Three brokers with some records; then two of them are gone, from one moment to the next.
    async fn start() -> Self {
        let mut three = Three::new();
        three.set.push("cluster.session-ms=600000".to_owned());
        three.start(&[1, 2, 3]).await;
        three.cluster().create_topic("t", 3, &[]).await.unwrap();
        let mut acknowledged = 0;
        let (id, partition, connection) = loop {
            let leaders = three.leaders("t").await;
            let (id, connection) = (leaders[0], three.connect(leaders[0]).await);
            for _ in 0..5 {
                let (code, offset) = produce_one(&connection, "t", 0, 10_000).await;
                if code == 0 {
                    assert_eq!(offset, acknowledged);
                    acknowledged += 1;
                }
            }
            if acknowledged >= 10 && three.leaders("t").await[0] == id {
                break (id, 0, connection);
            }
        };
        for other in (1..=3).filter(|other| *other != id) {
            three.nodes.remove(&other).unwrap().stop_abruptly().await;
        }
        Self {
            three,
            id,
            connection,
            partition,
            acknowledged,
        }
    }

    /// Reads go on for the lease, then end. What they give is what was acknowledged.
    async fn reads_end_with_the_lease(&self) {
        let until = Instant::now() + SETTLE;
        loop {
            let found = fetch(&self.connection, Wanted::from("t", self.partition, 0)).await;
            match found.error_code {
                0 => assert_eq!(found.high_watermark, self.acknowledged),
                code => {
                    assert_eq!(code, NOT_LEADER);
                    return;
                }
            }
            assert!(Instant::now() < until, "the lease has no end");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn produce_is_refused(&self, timeout_ms: i32) {
        let asked = Instant::now();
        let (code, _) = produce_one(&self.connection, "t", self.partition, timeout_ms).await;
        assert!(code == NOT_LEADER || code == TIMED_OUT, "{code}");
        let within = Duration::from_millis(u64::try_from(timeout_ms).unwrap()) + SLACK;
        assert!(asked.elapsed() < within, "{:?}", asked.elapsed());
    }

    async fn changes_are_refused(&self) {
        let asked = Instant::now();
        let created = create_with_timeout(&self.connection, "new", 1, 3_000).await;
        let retriable = [ErrorCode::NotController.code(), TIMED_OUT];
        assert!(retriable.contains(&created.error_code), "{created:?}");
        assert!(asked.elapsed() < Duration::from_secs(3) + SLACK);
        let answer = self.connection.call(4..=4, deadline(), |_| {
            let mut request = InitProducerIdRequest::default();
            request.transactional_id = None;
            request.producer_id = -1;
            request.producer_epoch = -1;
            request
        });
        let code = answer.await.unwrap().error_code;
        // The rest of a block of ids may be there.
        assert!(
            code == 0 || code == ErrorCode::CoordinatorNotAvailable.code(),
            "{code}"
        );
        assert!(asked.elapsed() < BOUNDED);
    }

    async fn consumer_groups_are_refused(&self) {
        let retriable = [
            ErrorCode::NotCoordinator.code(),
            ErrorCode::CoordinatorNotAvailable.code(),
        ];
        let asked = Instant::now();
        let joined = self.connection.call(5..=5, deadline(), |_| {
            let mut protocol = JoinGroupRequestProtocol::default();
            protocol.name = StrBytes::from("range");
            let mut request = JoinGroupRequest::default();
            request.group_id = StrBytes::from("g");
            request.session_timeout_ms = 10_000;
            request.rebalance_timeout_ms = 10_000;
            request.protocol_type = StrBytes::from("consumer");
            request.protocols.push(protocol);
            request
        });
        assert!(retriable.contains(&joined.await.unwrap().error_code));
        let heard = self.connection.call(3..=3, deadline(), |_| {
            let mut request = HeartbeatRequest::default();
            request.group_id = StrBytes::from("g");
            request
        });
        assert!(retriable.contains(&heard.await.unwrap().error_code));
        let committed = self.connection.call(7..=7, deadline(), |_| {
            let mut partition = OffsetCommitRequestPartition::default();
            partition.committed_offset = 1;
            let mut topic = OffsetCommitRequestTopic::default();
            topic.name = StrBytes::from("t");
            topic.partitions.push(partition);
            let mut request = OffsetCommitRequest::default();
            request.group_id = StrBytes::from("g");
            request.generation_id_or_member_epoch = -1;
            request.topics.push(topic);
            request
        });
        let code = committed.await.unwrap().topics[0].partitions[0].error_code;
        assert!(retriable.contains(&code));
        let found = self.connection.call(3..=3, deadline(), |_| {
            let mut request = FindCoordinatorRequest::default();
            request.key = StrBytes::from("g");
            request
        });
        assert!(retriable.contains(&found.await.unwrap().error_code));
        assert!(asked.elapsed() < BOUNDED);
    }

    /// Who runs the cluster is told that nobody knows who lives, and a command ends when it was told to, whatever the brokers do.
    async fn operators_are_told(&self) {
        let client = admin(&self.three, self.id);
        let now = members(&self.three, self.id, "the status is old", |now| {
            now.liveness_age_ms.is_some() && now.metadata_leader.is_none()
        })
        .await;
        assert!(
            now.brokers.iter().all(|at| at.live),
            "as they were: {now:?}"
        );
        let age = now.liveness_age_ms;
        // Asking takes a while.
        let later = client.members().await.unwrap().liveness_age_ms;
        assert!(later > age, "{later:?} {age:?}");

        let within = Duration::from_secs(2);
        let asked = Instant::now();
        let client = admin(&self.three, self.id).until(asked + within);
        client.transfer_leader(1, 1).await.unwrap_err();
        assert!(asked.elapsed() < within + SLACK, "{:?}", asked.elapsed());
        let asked = Instant::now();
        let config = ClusterConfig {
            until: Some(asked + within),
            ..ClusterConfig::new(&format!("127.0.0.1:{}", self.three.ports[&self.id][1]))
        };
        let cluster = Cluster::new(config, TcpNetwork::shared(), SystemRandom::shared()).unwrap();
        cluster.create_topic("late", 1, &[]).await.unwrap_err();
        assert!(asked.elapsed() < within + SLACK, "{:?}", asked.elapsed());
    }

    /// Metadata answers: nobody leads anything; also who asks for a topic that is not there gets an answer soon.
    async fn metadata_answers(&self) {
        until("nobody is known to lead", || async {
            let answer = self.three.metadata(self.id).await;
            assert_eq!(answer.brokers.len(), 3);
            let partitions = answer.topics.iter().flat_map(|topic| &topic.partitions);
            let said: BTreeSet<_> = partitions
                .map(|partition| (partition.leader_id, partition.error_code))
                .collect();
            said == BTreeSet::from([(-1, ErrorCode::LeaderNotAvailable.code())])
        })
        .await;
        let asked = Instant::now();
        let answer = self.connection.call(9..=9, deadline(), |_| {
            let mut topic =
                crate::wire::messages::metadata_request::MetadataRequestTopic::default();
            topic.name = Some(StrBytes::from("on-demand"));
            let mut request = MetadataRequest::default();
            request.topics = Some(vec![topic]);
            request.allow_auto_topic_creation = true;
            request
        });
        let code = answer.await.unwrap().topics[0].error_code;
        assert_eq!(code, ErrorCode::LeaderNotAvailable.code());
        assert!(asked.elapsed() < Duration::from_secs(3) + SLACK);
    }
}

/// What a busy machine adds to a deadline.
const SLACK: Duration = Duration::from_secs(4);

/// Proves that the broker that is left answers committed reads until its lease ends and then says that it does not lead; that produce,
/// changes of topics and consumer groups get retriable errors in bounded time while Metadata goes on; that nothing unacknowledged is ever
/// seen; and that all goes on when the others come back.
#[tokio::test(flavor = "multi_thread")]
async fn one_of_three_serves_what_it_may() {
    let mut alone = Alone::start().await;
    // Within the lease: it takes the record, and cannot get it acknowledged.
    let early = alone.three.connect(alone.id).await;
    let (produced, ()) = tokio::join!(
        produce_one(&early, "t", alone.partition, 2_000),
        alone.reads_end_with_the_lease()
    );
    assert!(
        [NOT_LEADER, TIMED_OUT].contains(&produced.0),
        "{produced:?}"
    );
    alone.produce_is_refused(1_000).await;
    alone.changes_are_refused().await;
    alone.consumer_groups_are_refused().await;
    alone.metadata_answers().await;
    alone.operators_are_told().await;
    alone.reads_end_with_the_lease().await;
    alone.produce_is_refused(500).await;

    let others: Vec<i32> = (1..=3).filter(|other| *other != alone.id).collect();
    alone.three.start(&others).await;
    alone.three.leaders("t").await;
    let until = Instant::now() + SETTLE;
    let offset = loop {
        let leader = alone.three.leaders("t").await[0];
        let connection = alone.three.connect(leader).await;
        let (code, offset) = produce_one(&connection, "t", 0, 10_000).await;
        if code == 0 {
            let found = fetch(&connection, Wanted::from("t", 0, 0)).await;
            assert_eq!(found.high_watermark, offset + 1);
            break offset;
        }
        assert!(Instant::now() < until, "{code}");
    };
    // The record that was taken within the lease may have been kept, once; those that were refused were not.
    assert!((alone.acknowledged..=alone.acknowledged + 1).contains(&offset));
    early.close("done");
    alone.connection.close("done");
    alone.three.stop().await;
}
