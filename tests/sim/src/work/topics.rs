//! A topic that is deleted and made again under the same name: no record of one that is gone is seen in the next (I15).
//!
//! Owns: the rounds, what must be read in each.
//! Not here: topics that stay (`load`).
//! Spec: docs/simulation.md (workloads)

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rand::Rng;
use rand::rngs::StdRng;
use tidelog_client::consumer::{Consumer, ConsumerConfig, Event, Start, TopicPartition};
use tidelog_client::producer::{NewRecord, Producer, ProducerConfig};
use tidelog_client::{Cluster, ErrorCode};
use tidelog_model::{Offset, PartitionIndex};

use super::{Place, REQUEST};

const TOPIC: &str = "again";
/// What is given up after this is tried again.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longer than anything breaks.
const FOR_EVER: Duration = Duration::from_secs(24 * 3600);
const RECORDS: u64 = 40;
/// Before something is asked again.
const PAUSE: Duration = Duration::from_millis(500);
const WITHIN: Duration = Duration::from_secs(20);
/// Longest pause between two rounds, ms.
const PAUSE_MAX: u64 = 30_000;

pub(super) async fn run(place: Place) -> Result<()> {
    let mut dice = place.dice();
    for round in 0_u64.. {
        let healed = place.is_healed();
        one(&place, round, &mut dice)
            .await
            .with_context(|| format!("round {round} of topic {TOPIC}"))?;
        if healed {
            break;
        }
        let pause = Duration::from_millis(dice.random_range(0..PAUSE_MAX));
        place.pause(pause).await;
    }
    Ok(())
}

/// The topic is made, filled, read, and deleted.
async fn one(place: &Place, round: u64, dice: &mut StdRng) -> Result<()> {
    let cluster = place.cluster(PATIENCE)?;
    let patient = place.cluster(FOR_EVER)?;
    loop {
        again(|| async {
            match cluster.create_topic(TOPIC, 1, &[]).await {
                // Of an attempt that was given up.
                Err(error) if error.code() == Some(ErrorCode::TOPIC_ALREADY_EXISTS) => Ok(()),
                other => other,
            }
        })
        .await;
        // A broker that lags says that there is none; and there may be none any more: a deletion that was given up in the last round can still
        // have happened after this creation.
        match patient.topic(TOPIC).await {
            Ok(_) => break,
            Err(error) => tracing::info!("made again: {error}"),
        }
        tokio::time::sleep(PAUSE).await;
    }
    let count = dice.random_range(1..RECORDS);
    let values: Vec<Vec<u8>> = (0..count)
        .map(|number| format!("{round}:{number}").into_bytes())
        .collect();
    tracing::info!(
        "round {round}: {count} records for the topic {}",
        id(&patient)
    );
    produce(place, &patient, &values).await?;
    if dice.random_bool(0.5) {
        let admin = place.admin(dice, WITHIN)?;
        let flushed = admin.tier_flush(Some(TOPIC), true, WITHIN).await;
        tracing::info!("round {round}: in the store: {}", flushed.is_ok());
    }
    let read = read(&patient, values.len()).await?;
    ensure!(
        read == values,
        "{} records were written, and these read: {:?}",
        values.len(),
        read.iter()
            .map(|value| String::from_utf8_lossy(value))
            .collect::<Vec<_>>()
    );
    again(|| async {
        match cluster.delete_topic(TOPIC).await {
            Err(error) if error.to_string().contains("no such topic") => Ok(()),
            other => other,
        }
    })
    .await;
    Ok(())
}

/// The id of the topic, as far as the client knows.
fn id(cluster: &Cluster) -> String {
    let metadata = cluster.metadata();
    let id = metadata.topics.get(TOPIC).map(|topic| topic.id);
    id.unwrap_or_default()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Until it is done.
async fn again<F>(act: impl Fn() -> F)
where
    F: Future<Output = Result<(), tidelog_client::Error>>,
{
    while let Err(error) = act().await {
        tracing::info!("again: {error}");
        tokio::time::sleep(PAUSE).await;
    }
}

async fn produce(place: &Place, cluster: &Cluster, values: &[Vec<u8>]) -> Result<()> {
    let config = ProducerConfig {
        linger: Duration::from_millis(1),
        delivery_timeout: FOR_EVER,
        request_timeout: REQUEST,
        ..ProducerConfig::default()
    };
    let producer = Producer::start(cluster.separate(), config, Arc::clone(&place.clock))?;
    let mut deliveries = Vec::new();
    for (at, value) in values.iter().enumerate() {
        let record = NewRecord {
            topic: TOPIC,
            partition: Some(PartitionIndex::new(0)),
            value: Some(value),
            ..NewRecord::default()
        };
        deliveries.push((at, producer.send(record).await?));
    }
    for (at, delivery) in deliveries {
        let ack = delivery.wait().await?;
        let wanted = i64::try_from(at)?;
        ensure!(
            ack.offset.is_none_or(|offset| offset.get() == wanted),
            "record {at} of a new topic is at {:?}",
            ack.offset
        );
    }
    let _ = producer.close().await;
    Ok(())
}

/// The values of the first `count` records, at offsets without a hole.
async fn read(cluster: &Cluster, count: usize) -> Result<Vec<Vec<u8>>> {
    let mut consumer = Consumer::new(cluster.separate(), ConsumerConfig::default());
    let partition = TopicPartition {
        topic: TOPIC.into(),
        partition: PartitionIndex::new(0),
    };
    let start = Start::At(Offset::new(0));
    consumer.assign(vec![(partition, start)]).await?;
    let mut values = Vec::new();
    while values.len() < count {
        for event in consumer.poll(Duration::from_secs(1)).await? {
            let fetched = match event {
                Event::Fetched(fetched) => fetched,
                Event::Gap(gap) => anyhow::bail!("a gap: {gap:?}"),
            };
            for record in fetched.records() {
                let record = record?;
                let next = i64::try_from(values.len())?;
                ensure!(
                    record.offset.get() == next,
                    "offset {} where {next} is next",
                    record.offset
                );
                values.push(record.record.value.unwrap_or_default().to_vec());
            }
        }
    }
    Ok(values)
}
