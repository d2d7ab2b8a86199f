//! Publishing records: collected into batches, sent by leader, acknowledged per record.
//!
//! Owns: the handle, its configuration, backpressure.
//! Not here: the state (`core`), the tasks (`sender`), the connection.
//!
//! By default acks=all and idempotent: up to five requests per broker are on their way, and a batch whose answer was
//! lost is sent again as the same bytes, so a record is in the log once. What is given up (deadline, a final error) is
//! reported with whether it may be in the log all the same.

mod core;
mod delivery;
mod parcel;
mod partitioner;
mod sender;
mod wire;

pub use delivery::{Ack, BatchAck, Delivery, Failed};
pub use partitioner::{murmur2, partition_of};

use self::core::{Appended, Core, Parts, Settings};
use crate::cluster::Cluster;
use crate::error::Error;
use parking_lot::Mutex;
use sender::{Sender, Sending, Shared};
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::{Clock, Tasks};
use tidelog_model::batch::HeaderRef;
use tidelog_model::codec::Codec;
use tidelog_model::{PartitionIndex, TimestampMs};
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

/// Whose acknowledgement counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acks {
    /// A majority's, on disk. The producer is idempotent.
    All,
    /// The leader's. A batch without an answer is given up, since sending it again could append it twice.
    Leader,
    /// Nobody's: written to the socket is done.
    None,
}

/// How a producer works.
#[derive(Clone, Debug)]
pub struct ProducerConfig {
    /// Whose acknowledgement counts.
    pub acks: Acks,
    /// How batches are compressed.
    pub codec: Codec,
    /// A batch is closed before it would exceed this (one larger record makes a batch of its own). The default is
    /// librdkafka's, just below the usual broker limit of 1 MiB.
    pub batch_bytes: usize,
    /// How long a batch may wait for more records. While five requests are on their way batches wait and grow anyway.
    pub linger: Duration,
    /// Memory for batches that are not acknowledged; `send` waits when it is used up. Counted in whole batches.
    pub buffer_bytes: usize,
    /// Batches of one request together (at least one).
    pub request_bytes: usize,
    /// How long a record may take from `send` to its acknowledgement, attempts included.
    pub delivery_timeout: Duration,
    /// Deadline of one request.
    pub request_timeout: Duration,
}

impl Default for ProducerConfig {
    fn default() -> Self {
        Self {
            acks: Acks::All,
            codec: Codec::None,
            batch_bytes: 1_000_000,
            linger: Duration::from_millis(5),
            buffer_bytes: 64 * 1024 * 1024,
            request_bytes: 4 * 1024 * 1024,
            delivery_timeout: Duration::from_secs(120),
            request_timeout: Duration::from_secs(30),
        }
    }
}

/// A record to publish.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewRecord<'a> {
    /// Its topic.
    pub topic: &'a str,
    /// Its partition; `None`: by the key, or without a key whichever batch is being filled.
    pub partition: Option<PartitionIndex>,
    /// The key.
    pub key: Option<&'a [u8]>,
    /// The value.
    pub value: Option<&'a [u8]>,
    /// Headers, in order; keys may repeat.
    pub headers: &'a [HeaderRef<'a>],
    /// Its time; `None`: now.
    pub timestamp: Option<TimestampMs>,
}

/// A handle to a running producer. Clones share it. It stops when the last clone is dropped; what is not acknowledged
/// then fails.
#[derive(Clone)]
pub struct Producer(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    cluster: Cluster,
    clock: Arc<dyn Clock>,
    room: Arc<Semaphore>,
    tasks: Tasks,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.tasks.stopping().cancel();
        self.shared.core.lock().stop(&Error::Stopped);
    }
}

impl Producer {
    /// Starts the producer's tasks.
    pub fn start(
        cluster: Cluster,
        config: ProducerConfig,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        if config.batch_bytes == 0 || config.buffer_bytes < config.batch_bytes {
            return Err(Error::Invalid(
                "buffer_bytes must hold at least one batch of batch_bytes".to_owned(),
            ));
        }
        let idempotent = config.acks == Acks::All;
        let core = Core::new(Settings {
            batch_bytes: config.batch_bytes,
            linger: config.linger,
            codec: config.codec,
            idempotent,
            delivery_timeout: config.delivery_timeout,
            request_bytes: config.request_bytes,
        });
        let shared = Arc::new(Shared {
            core: Mutex::new(core),
            wake: Notify::new(),
        });
        let acks = match config.acks {
            Acks::All => -1,
            Acks::Leader => 1,
            Acks::None => 0,
        };
        let sending = Sending {
            cluster: cluster.clone(),
            acks,
            request_timeout: config.request_timeout,
        };
        let tasks = Tasks::new();
        tasks.spawn(
            "producer",
            Sender::new(Arc::clone(&shared), sending, tasks.clone()).run(),
        );
        let room = Arc::new(Semaphore::new(config.buffer_bytes / config.batch_bytes));
        Ok(Self(Arc::new(Inner {
            shared,
            cluster,
            clock,
            room,
            tasks,
        })))
    }

    /// Accepts a record. Waits while the buffer is full. Records of one task to one partition are appended in the order
    /// of the calls. Cancelled before it returns, the record is not accepted.
    pub async fn send(&self, record: NewRecord<'_>) -> Result<Delivery, Error> {
        let stamp = record
            .timestamp
            .unwrap_or_else(|| TimestampMs::new(self.0.clock.now_ms()));
        let parts = Parts {
            timestamp: stamp,
            key: record.key,
            value: record.value,
            headers: record.headers,
        };
        let mut room = None;
        loop {
            let appended = {
                let mut core = self.0.shared.core.lock();
                let partition = chosen(&core, &record)?;
                core.append(record.topic, partition, parts, &mut room, Instant::now())
            };
            match appended {
                Appended::Done { delivery, wake } => {
                    if wake {
                        self.0.shared.wake.notify_one();
                    }
                    return Ok(delivery);
                }
                Appended::NeedsRoom => {
                    let permit = Arc::clone(&self.0.room)
                        .acquire_owned()
                        .await
                        .map_err(|_| Error::Stopped)?;
                    room = Some(permit);
                }
                Appended::UnknownTopic => {
                    let metadata = self.0.cluster.topic(record.topic).await?;
                    let partitions =
                        usize::try_from(metadata.partition_count(record.topic)).unwrap_or(0);
                    let start =
                        usize::try_from(self.0.cluster.random().next_u64() % 1024).unwrap_or(0);
                    self.0
                        .shared
                        .core
                        .lock()
                        .add_topic(record.topic, partitions, start);
                }
                Appended::Refused(error) => return Err(error),
            }
        }
    }

    /// Sends what is collected without waiting for more, and returns when everything accepted before the call is
    /// acknowledged or given up: how many batches were given up, and the first reason.
    pub async fn flush(&self) -> Result<(), Failed> {
        let guard = Flushing::start(&self.0.shared);
        let outstanding = self.0.shared.core.lock().outstanding();
        self.0.shared.wake.notify_one();
        let mut first = Ok(());
        for done in outstanding {
            let result = done.wait().await.map(drop);
            if first.is_ok() {
                first = result;
            }
        }
        drop(guard);
        first
    }

    /// Flushes and stops the tasks.
    pub async fn close(self) -> Result<(), Failed> {
        let flushed = self.flush().await;
        self.0.tasks.stop().await;
        flushed
    }
}

/// The record's partition if it has one or a key. Unknown topics are found out later.
fn chosen(core: &Core, record: &NewRecord<'_>) -> Result<Option<usize>, Error> {
    if let Some(partition) = record.partition {
        return usize::try_from(partition.get())
            .map(Some)
            .map_err(|_| Error::Invalid(format!("there is no partition {partition}")));
    }
    let (Some(key), Some(count)) = (record.key, core.partitions(record.topic)) else {
        return Ok(None);
    };
    let partition = partition_of(key, i32::try_from(count).unwrap_or(i32::MAX));
    Ok(usize::try_from(partition.get()).ok())
}

/// While one of these lives, open batches are due at once. Ends also when the waiting call is cancelled.
struct Flushing<'a>(&'a Shared);

impl<'a> Flushing<'a> {
    fn start(shared: &'a Shared) -> Self {
        shared.core.lock().flushing += 1;
        Self(shared)
    }
}

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        self.0.core.lock().flushing -= 1;
    }
}
