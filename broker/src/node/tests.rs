//! A whole broker in this process, on loopback and free ports, asked over its protocols: what only all parts together show.

use super::{Ended, Node, World};
use crate::config::{Config, Sources};
use crate::error::ErrorCode;
use crate::wire::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use crate::wire::messages::create_topics_response::CreatableTopicResult;
use crate::wire::messages::{CreateTopicsRequest, StrBytes, WireUuid};
use bytes::Bytes;
use std::time::Duration;
use tidelog_client::connection::{Connection, ConnectionConfig};
use tidelog_env::TcpNetwork;
use tidelog_model::TimestampMs;
use tidelog_model::batch::BatchBuilder;
use tidelog_model::codec::Codec;
use tokio::time::Instant;

mod asking;
mod commits;
mod copied;
mod elected;
mod epochs;
mod fences;
mod fetch;
mod flushes;
mod followers;
mod full_disk;
mod given_up;
mod health;
mod in_part;
mod kept_offsets;
mod lost;
mod majority;
mod members;
mod mistaken;
mod names_again;
mod produce;
mod refilled;
mod replaced;
mod replica_moves;
mod reverted;
mod secured;
mod starting;
mod stores;
mod strangers;
mod three;

const WITHIN: Duration = Duration::from_secs(30);

struct Rig {
    node: Node,
    connection: Connection,
    _dir: tempfile::TempDir,
}

impl Rig {
    async fn start(set: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = format!("node.data-dir={}", dir.path().display());
        let own = [
            data_dir.as_str(),
            "kafka.listen=127.0.0.1:0",
            "admin.listen=127.0.0.1:0",
            "log.file-bytes=8388608",
            "log.reserve-bytes=0",
            "archive.enable=false",
            "node.zone=z",
        ];
        let sources = Sources {
            set: own.iter().chain(set).map(|set| (*set).to_owned()).collect(),
            ..Sources::default()
        };
        let node = Node::start(Config::load(&sources).unwrap(), World::system())
            .await
            .unwrap();
        let at = node.addresses().kafka;
        let network = TcpNetwork::shared();
        let config = ConnectionConfig::default();
        let host = at.ip().to_string();
        let connection = Connection::open(network.as_ref(), &host, at.port(), &config)
            .await
            .unwrap();
        Self {
            node,
            connection,
            _dir: dir,
        }
    }

    async fn stop(self) {
        self.connection.close("the test is over");
        self.node.stop().await;
    }

    /// Creates a topic with one config, or none.
    async fn create(
        &self,
        name: &str,
        partitions: i32,
        config: Option<(&str, &str)>,
    ) -> CreatableTopicResult {
        let answer = self
            .connection
            .call(7..=7, deadline(), |_| {
                let mut topic = CreatableTopic::default();
                topic.name = StrBytes::from(name);
                topic.num_partitions = partitions;
                topic.replication_factor = -1;
                if let Some((name, value)) = config {
                    let mut config = CreatableTopicConfig::default();
                    config.name = StrBytes::from(name);
                    config.value = Some(StrBytes::from(value));
                    topic.configs.push(config);
                }
                let mut request = CreateTopicsRequest::default();
                request.topics.push(topic);
                request.timeout_ms = 30_000;
                request
            })
            .await
            .unwrap();
        answer.topics.into_iter().next().unwrap()
    }

    /// Creates a topic that must come to be.
    async fn created(&self, name: &str, partitions: i32) -> WireUuid {
        let topic = self.create(name, partitions, None).await;
        assert_eq!(topic.error_code, 0, "{:?}", topic.error_message);
        topic.topic_id
    }
}

fn deadline() -> Instant {
    Instant::now() + WITHIN
}

/// One record with a value of that many bytes, as a batch.
fn batch(codec: Codec, value_bytes: usize) -> Bytes {
    let mut builder = BatchBuilder::new(codec);
    let value = vec![7u8; value_bytes];
    builder
        .append(TimestampMs::new(1), None, Some(&value), &[])
        .unwrap();
    builder.build().unwrap()
}

#[track_caller]
fn assert_code(code: i16, expected: ErrorCode) {
    assert_eq!(code, expected.code(), "expected {expected}");
}
