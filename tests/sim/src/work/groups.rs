//! A consumer group whose members come, go, and commit: no record is skipped, and what was committed never goes back (I5).
//!
//! Owns: the members, the marks that their positions are compared with.
//! Not here: who writes the records (`load`).
//! Spec: docs/simulation.md (workloads)
//!
//! Where a member begins to read a partition, somebody has committed: not before the newest commit that was acknowledged before the member was given
//! the partition, and not behind the newest that anybody asked for. From there on it reads without a hole.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use futures::future::try_join_all;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tidelog_client::admin::OffsetSpec;
use tidelog_client::consumer::{
    ConsumerConfig, Event, GroupConfig, GroupConsumer, Start, TopicPartition,
};
use tidelog_model::{Offset, PartitionIndex};

use super::Place;

const TOPIC: &str = "load";
const GROUP: &str = "workers";
const MEMBERS: u64 = 3;
/// An operation that takes longer is given up, and the member begins anew.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(500);
/// Longest life of a member in polls.
const POLLS_MAX: u32 = 60;

/// Commits of one partition.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    /// The newest that was acknowledged.
    acknowledged: i64,
    /// The newest that was asked for.
    asked: i64,
}

type Marks = BTreeMap<TopicPartition, Mark>;

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Marks>>);

impl Shared {
    fn now(&self) -> Marks {
        self.0.lock().clone()
    }

    fn asked(&self, positions: &BTreeMap<TopicPartition, Offset>) {
        let mut marks = self.0.lock();
        for (place, offset) in positions {
            let mark = marks.entry(place.clone()).or_default();
            mark.asked = mark.asked.max(offset.get());
        }
    }

    fn acknowledged(&self, positions: &BTreeMap<TopicPartition, Offset>) {
        let mut marks = self.0.lock();
        for (place, offset) in positions {
            let mark = marks.entry(place.clone()).or_default();
            mark.acknowledged = mark.acknowledged.max(offset.get());
        }
    }
}

pub(super) async fn run(place: Place) -> Result<()> {
    let shared = Shared::default();
    let members = (0..MEMBERS).map(|number| {
        let seed = place.seed.wrapping_add(number);
        lives(place.clone(), shared.clone(), seed)
    });
    try_join_all(members).await?;
    place.stages.written.cancelled().await;
    loop {
        match last(&place, &shared).await {
            Ok(()) => return Ok(()),
            Err(Failed::Refused(error)) => tracing::info!("the last member begins anew: {error}"),
            Err(Failed::Wrong(error)) => {
                return Err(error.context("the group, after everything has healed"));
            }
        }
        tokio::time::sleep(POLL).await;
    }
}

/// One member after the other, until everything has healed.
async fn lives(place: Place, shared: Shared, seed: u64) -> Result<()> {
    let mut dice = StdRng::seed_from_u64(seed);
    while !place.is_healed() {
        match life(&place, &shared, &mut dice).await {
            Ok(()) => {}
            Err(Failed::Refused(error)) => tracing::info!("a member begins anew: {error}"),
            Err(Failed::Wrong(error)) => return Err(error),
        }
        place
            .pause(Duration::from_millis(dice.random_range(0..5000)))
            .await;
    }
    Ok(())
}

/// Why a member ended.
enum Failed {
    /// The cluster did not do something.
    Refused(tidelog_client::Error),
    /// It did something wrong.
    Wrong(anyhow::Error),
}

impl From<tidelog_client::Error> for Failed {
    fn from(error: tidelog_client::Error) -> Self {
        Self::Refused(error)
    }
}

impl From<anyhow::Error> for Failed {
    fn from(error: anyhow::Error) -> Self {
        Self::Wrong(error)
    }
}

fn config() -> GroupConfig {
    let mut config = GroupConfig::new(GROUP, TOPIC, Start::EARLIEST);
    config.rebalance_timeout = Duration::from_secs(15);
    config
}

/// From joining to leaving, or to dying without a word.
async fn life(place: &Place, shared: &Shared, dice: &mut StdRng) -> Result<(), Failed> {
    let cluster = place.cluster(PATIENCE)?;
    let before = shared.now();
    let mut member = GroupConsumer::join(&cluster, config(), ConsumerConfig::default()).await?;
    let mut next = BTreeMap::new();
    for (partition, position) in member.consumer().positions() {
        begins(&before, &shared.now(), &partition, position.get())?;
        next.insert(partition, position.get());
    }
    for _ in 0..dice.random_range(1..POLLS_MAX) {
        if place.is_healed() {
            break;
        }
        // A poll may commit what is read, and join again.
        let before = shared.now();
        shared.asked(&member.consumer().positions());
        for event in member.poll(POLL).await? {
            read(&event, &before, shared, &mut next)?;
        }
        if dice.random_bool(0.3) {
            let positions = member.consumer().positions();
            shared.asked(&positions);
            member.commit().await?;
            shared.acknowledged(&positions);
        }
    }
    if dice.random_bool(0.5) {
        member.leave().await?;
    }
    Ok(())
}

/// Records without a hole behind those that were read; elsewhere only where a member may begin.
fn read(
    event: &Event,
    before: &Marks,
    shared: &Shared,
    next: &mut BTreeMap<TopicPartition, i64>,
) -> Result<()> {
    let fetched = match event {
        Event::Fetched(fetched) => fetched,
        Event::Gap(gap) => bail!("a gap: {gap:?}"),
    };
    let (from, to) = (fetched.from.get(), fetched.next.get());
    if next.get(&fetched.partition) != Some(&from) {
        begins(before, &shared.now(), &fetched.partition, from)?;
    }
    let mut at = from;
    for record in fetched.records() {
        let offset = record?.offset.get();
        ensure!(
            offset == at,
            "{:?}: offset {offset} where {at} is next",
            fetched.partition
        );
        at += 1;
    }
    ensure!(
        at == to,
        "{:?}: the position after {at} is {to}",
        fetched.partition
    );
    next.insert(fetched.partition.clone(), to);
    Ok(())
}

/// Whether a member may begin to read here.
fn begins(before: &Marks, now: &Marks, partition: &TopicPartition, position: i64) -> Result<()> {
    let least = before.get(partition).copied().unwrap_or_default();
    let most = now.get(partition).copied().unwrap_or_default();
    ensure!(
        position >= least.acknowledged,
        "{partition:?}: begins at {position}, though {} was committed (I5)",
        least.acknowledged
    );
    ensure!(
        position <= most.asked,
        "{partition:?}: begins at {position}, though nobody has committed more than {}",
        most.asked
    );
    Ok(())
}

/// One member alone reads up to the end, commits, and the next begins there.
async fn last(place: &Place, shared: &Shared) -> Result<(), Failed> {
    let cluster = place.cluster(PATIENCE)?;
    let wanted = (0..4).map(|index| (PartitionIndex::new(index), OffsetSpec::Latest));
    let ends = cluster.list_offsets(TOPIC, &wanted.collect()).await?;
    let mut member = GroupConsumer::join(&cluster, config(), ConsumerConfig::default()).await?;
    let mut next = BTreeMap::new();
    loop {
        let positions = member.consumer().positions();
        let all = ends.iter().all(|(index, end)| {
            let mut mine = positions.iter();
            mine.any(|(partition, position)| partition.partition == *index && position >= end)
        });
        if all {
            break;
        }
        let before = shared.now();
        shared.asked(&positions);
        for event in member.poll(POLL).await? {
            read(&event, &before, shared, &mut next)?;
        }
    }
    let positions = member.consumer().positions();
    shared.asked(&positions);
    member.commit().await?;
    shared.acknowledged(&positions);
    member.leave().await?;
    let member = GroupConsumer::join(&cluster, config(), ConsumerConfig::default()).await?;
    let begins = member.consumer().positions();
    if begins != positions {
        let text = format!("the next member begins at {begins:?}, after {positions:?}");
        return Err(Failed::Wrong(anyhow::anyhow!(text)));
    }
    member.leave().await?;
    Ok(())
}
