//! Rust client of Tidelog over the Kafka protocol, and the command line verbs built on it.
//!
//! Owns: everything a program outside the broker needs: producing, consuming, administering, and `cli`.
//! Not here: the record-batch format (`tidelog-model`), the broker's side of the protocol.
//! Spec: `docs/guides/cli.md` (verbs, JSON), the Kafka protocol (wire).
//!
//! ```no_run
//! use std::time::Duration;
//! use tidelog_client::consumer::{Consumer, ConsumerConfig, Event, Start, TopicPartition};
//! use tidelog_client::producer::{NewRecord, Producer, ProducerConfig};
//! use tidelog_client::{Cluster, ClusterConfig};
//! use tidelog_env::{SystemClock, SystemRandom, TcpNetwork};
//! use tidelog_model::PartitionIndex;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let cluster = Cluster::new(ClusterConfig::new("127.0.0.1:9092"), TcpNetwork::shared(), SystemRandom::shared())?;
//! cluster.create_topic("orders", 3, &[]).await?;
//!
//! // Idempotent, acks=all. The delivery tells the offset, or whether a failed record may be in the log all the same.
//! let producer = Producer::start(cluster.clone(), ProducerConfig::default(), SystemClock::shared())?;
//! let record = NewRecord { topic: "orders", key: Some(b"4711"), value: Some(b"paid"), ..NewRecord::default() };
//! let delivery = producer.send(record).await?;
//! println!("{:?}", delivery.wait().await?.offset);
//! producer.close().await?;
//!
//! // A cluster of its own: a long poll holds up what is asked behind it.
//! let mut consumer = Consumer::new(cluster.separate(), ConsumerConfig::default());
//! let place = TopicPartition { topic: "orders".into(), partition: PartitionIndex::new(0) };
//! consumer.assign(vec![(place, Start::EARLIEST)]).await?;
//! for event in consumer.poll(Duration::from_secs(1)).await? {
//!     match event {
//!         Event::Fetched(fetched) => {
//!             for record in fetched.records() {
//!                 println!("{}", record?.offset);
//!             }
//!         }
//!         // What was wanted is gone; going on elsewhere is the caller's decision.
//!         Event::Gap(gap) => consumer.seek(&gap.partition, gap.first_available),
//!     }
//! }
//! # Ok(()) }
//! ```

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests may touch the real world")
)]

pub mod admin;
pub mod admin_http;
pub mod cli;
pub mod cluster;
pub mod connection;
pub mod consumer;
pub mod error;
pub mod limits;
pub mod producer;
pub mod retry;

pub use cluster::{Cluster, ClusterConfig};
pub use error::{Error, ErrorCode, Outcome};
