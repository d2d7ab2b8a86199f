//! Fetch, and what happens to a topic while one waits.

use super::*;
use crate::wire::messages::delete_topics_request::DeleteTopicState;
use crate::wire::messages::fetch_request::{FetchPartition, FetchTopic};
use crate::wire::messages::{DeleteTopicsRequest, FetchRequest};

impl Rig {
    /// A fetch of partition 0 that waits for records; the partition's error code.
    async fn long_poll(&self, version: i16, name: &str, id: WireUuid) -> i16 {
        let answer = self
            .connection
            .call(version..=version, deadline(), |_| {
                let mut partition = FetchPartition::default();
                partition.partition_max_bytes = 1 << 20;
                let mut topic = FetchTopic::default();
                topic.topic = StrBytes::from(name);
                topic.topic_id = id;
                topic.partitions.push(partition);
                let mut request = FetchRequest::default();
                request.max_wait_ms = 20_000;
                request.min_bytes = 1;
                request.max_bytes = 1 << 20;
                request.topics.push(topic);
                request
            })
            .await
            .unwrap();
        answer.responses[0].partitions[0].error_code
    }

    async fn delete(&self, name: &str) {
        // On a connection of its own: answers come in the order of requests, and the long poll is the first.
        let at = self.node.addresses().kafka;
        let network = TcpNetwork::shared();
        let config = ConnectionConfig::default();
        let host = at.ip().to_string();
        let other = Connection::open(network.as_ref(), &host, at.port(), &config)
            .await
            .unwrap();
        let answer = other
            .call(6..=6, deadline(), |_| {
                let mut topic = DeleteTopicState::default();
                topic.name = Some(StrBytes::from(name));
                let mut request = DeleteTopicsRequest::default();
                request.timeout_ms = 30_000;
                request.topics.push(topic);
                request
            })
            .await
            .unwrap();
        assert_eq!(answer.responses[0].error_code, 0);
    }
}

/// Proves that a topic which is deleted while a fetch waits ends the wait, under the name by which it was asked for: its id is
/// unknown from version 13 on, the topic before.
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_deleted_during_a_long_poll_is_told() {
    let rig = Rig::start(&[]).await;
    for (version, expected) in [
        (12, ErrorCode::UnknownTopicOrPartition),
        (13, ErrorCode::UnknownTopicId),
    ] {
        let id = rig.created("t", 1).await;
        let (code, ()) = tokio::join!(rig.long_poll(version, "t", id), rig.delete("t"));
        assert_code(code, expected);
    }
    rig.stop().await;
}
