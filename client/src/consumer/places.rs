//! Where reading begins, of partitions whose leaders must tell it.
//!
//! Owns: [`Places`]: the first question, and those that follow for partitions that nobody could be asked about then.
//! Not here: positions, and what is read from them (`mod.rs`).

use super::TopicPartition;
use crate::admin::OffsetSpec;
use crate::cluster::Cluster;
use crate::error::Error;
use crate::retry::Backoff;
use futures::FutureExt;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidelog_model::{Offset, PartitionIndex};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

/// How long an assignment waits for all leaders, once some have told.
const PATIENCE: Duration = Duration::from_secs(5);

/// Offsets that are asked for.
pub(super) type Wanted = BTreeMap<Arc<str>, BTreeMap<PartitionIndex, OffsetSpec>>;

/// What was told, and why the rest was not.
type Told = (Vec<(TopicPartition, Offset)>, Option<Error>);

/// Offsets that are asked for until they are told. Partitions without a leader hold up no others.
pub(super) struct Places {
    cluster: Cluster,
    left: Wanted,
    asking: Option<AbortOnDropHandle<Told>>,
    not_before: Instant,
    backoff: Backoff,
}

impl Places {
    pub(super) fn new(cluster: Cluster) -> Self {
        let backoff = Backoff::failover(cluster.random());
        Self {
            cluster,
            left: Wanted::new(),
            asking: None,
            not_before: Instant::now(),
            backoff,
        }
    }

    /// Asks for all of `wanted`, and for nothing else any more. Returns when all is told, or some of it and the rest not within [`PATIENCE`]: that is asked for by
    /// [`Places::told`].
    ///
    /// # Errors
    /// What trying again does not mend; and when nothing at all is told within the cluster's operation timeout.
    pub(super) async fn ask(
        &mut self,
        wanted: Wanted,
    ) -> Result<Vec<(TopicPartition, Offset)>, Error> {
        self.asking = None;
        self.left.clear();
        for topic in wanted.keys() {
            self.cluster.topic(topic).await?;
        }
        self.left = wanted;
        let patience = Instant::now() + PATIENCE;
        let mut attempts = self.cluster.attempts();
        let mut known = Vec::new();
        loop {
            let until = if known.is_empty() {
                self.cluster.request_deadline()
            } else {
                patience
            };
            let told = ask_once(self.cluster.clone(), self.left.clone(), until).await;
            let Some(error) = self.take(told, &mut known)? else {
                return Ok(known);
            };
            let why = error.to_string();
            let goes_on = attempts.again(error).await;
            if known.is_empty() {
                goes_on?;
            } else if goes_on.is_err() || Instant::now() >= patience {
                tracing::warn!(
                    "it is not known yet where {} begin: {why}. They are read when their leaders tell; the others are read now",
                    self.missing()
                );
                return Ok(known);
            }
        }
    }

    /// What has been told since the last call. Asks again, in the background, for what is missing. Does not wait.
    ///
    /// # Errors
    /// What trying again does not mend.
    pub(super) fn told(&mut self) -> Result<Vec<(TopicPartition, Offset)>, Error> {
        let mut known = Vec::new();
        if let Some(mut asking) = self.asking.take() {
            match (&mut asking).now_or_never() {
                None => self.asking = Some(asking),
                Some(told) => {
                    let told = told.map_err(|_| Error::Stopped)?;
                    if let Some(error) = self.take(told, &mut known)? {
                        tracing::debug!("where reading begins: {error}");
                    }
                    self.not_before = Instant::now() + self.backoff.pause();
                }
            }
        }
        if self.asking.is_none() && !self.left.is_empty() && Instant::now() >= self.not_before {
            let until = self.cluster.request_deadline();
            let asked = ask_once(self.cluster.clone(), self.left.clone(), until);
            self.asking = Some(AbortOnDropHandle::new(tokio::spawn(asked)));
        }
        Ok(known)
    }

    /// Forgets what was asked for a partition: the caller knows better.
    pub(super) fn settle(&mut self, partition: &TopicPartition) -> bool {
        let Some(topic) = self.left.get_mut(&partition.topic) else {
            return false;
        };
        let settled = topic.remove(&partition.partition).is_some();
        self.left.retain(|_, partitions| !partitions.is_empty());
        settled
    }

    /// Moves what was told, and is still wanted, into `known`. Returns why the rest is missing.
    fn take(
        &mut self,
        (offsets, failed): Told,
        known: &mut Vec<(TopicPartition, Offset)>,
    ) -> Result<Option<Error>, Error> {
        for (partition, offset) in offsets {
            if self.settle(&partition) {
                self.backoff.reset();
                known.push((partition, offset));
            }
        }
        match failed {
            Some(error) if !error.is_retriable() => Err(error),
            failed => Ok(failed),
        }
    }

    fn missing(&self) -> String {
        let of_topic = |(topic, partitions): (&Arc<str>, &BTreeMap<PartitionIndex, _>)| {
            let numbers: Vec<String> = partitions.keys().map(ToString::to_string).collect();
            format!("partitions {} of {topic}", numbers.join(", "))
        };
        let topics: Vec<String> = self.left.iter().map(of_topic).collect();
        topics.join("; ")
    }
}

/// Asks each leader once. Refreshes what is known of the cluster where an answer says that it is old.
async fn ask_once(cluster: Cluster, wanted: Wanted, until: Instant) -> Told {
    let (mut told, mut failed) = (Vec::new(), None);
    for (topic, specs) in wanted {
        let (offsets, why) = cluster.offsets_by(&topic, &specs, until).await;
        told.extend(offsets.into_iter().map(|(partition, offset)| {
            let topic = Arc::clone(&topic);
            (TopicPartition { topic, partition }, offset)
        }));
        if why.as_ref().is_some_and(Error::wants_metadata)
            && let Err(error) = cluster.refresh(Some(&[&topic])).await
        {
            tracing::debug!("metadata not refreshed: {error}");
        }
        failed = failed.or(why);
    }
    (told, failed)
}
