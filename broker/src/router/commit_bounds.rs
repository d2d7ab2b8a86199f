//! Refuses commits past the end of a partition (R7), wherever the partition is led.
//!
//! Owns: what is known here, the questions to the leaders of the rest, one deadline for all.
//! Not here: bytes, and the answering side (`ends.rs`), who may commit (`coordinator`).
//! Spec: docs/protocols/partition-ends.md

use super::Router;
use super::ends::{Asked, End};
use crate::coordinator::ConsumerGroupError;
use crate::coordinator::service::{CommitCheck, WantedOffset};
use async_trait::async_trait;
use std::collections::BTreeMap;
use std::time::Duration;
use tidelog_env::{Mutant, mutant};
use tidelog_model::{NodeId, Offset, PartitionId, PlacementGroupId};
use tokio::time::{Instant, timeout_at};

/// How long the ends may take to be known: some heartbeats, and an election that is nearly over.
const CATCH_UP_WITHIN: Duration = Duration::from_millis(1500);
/// Pause before what has no answer is looked at again, with jitter.
const AGAIN_PAUSE: Duration = Duration::from_millis(100);

/// How long a leader may take to answer for groups that are silent.
const SILENT_ASK_WITHIN: Duration = Duration::from_millis(250);

/// The check of commits by what this broker and the leaders of the partitions know.
pub struct CommitBounds(pub Router);

type Checked = Result<(), ConsumerGroupError>;

/// An offset of which this broker knows by itself neither that it is one of its partition nor that it is none.
#[derive(Clone, Copy)]
struct Open {
    /// Its place in the commit.
    at: usize,
    group: PlacementGroupId,
    partition: PartitionId,
    offset: Offset,
}

impl Open {
    /// What the end of the partition makes of it.
    fn against(&self, end: Offset) -> (usize, Checked) {
        let checked = if self.offset <= end {
            Ok(())
        } else {
            Err(ConsumerGroupError::OffsetOutOfRange)
        };
        (self.at, checked)
    }
}

#[async_trait]
impl CommitCheck for CommitBounds {
    async fn check(&self, offsets: &[WantedOffset]) -> Vec<Checked> {
        let ends = &self.0.inner.ends;
        let deadline = Instant::now() + CATCH_UP_WITHIN;
        // What stays so is not known; nothing of it is committed.
        let mut checked = vec![Err(ConsumerGroupError::EndUnknown); offsets.len()];
        let mut places: Vec<usize> = (0..offsets.len()).collect();
        loop {
            let mut open = BTreeMap::new();
            for at in places {
                match self.look(at, offsets[at]) {
                    Ok(known) => checked[at] = known,
                    Err(unknown) => drop(open.insert(at, unknown)),
                }
            }
            for (at, known) in self.ask_all(open.values().copied(), deadline).await {
                checked[at] = known;
                if let Some(answered) = open.remove(&at) {
                    ends.heard(answered.group);
                }
            }
            let pause = self.0.inner.metadata.random.jitter(AGAIN_PAUSE);
            let is_over = Instant::now() + pause >= deadline;
            // Silence that goes on is not waited for.
            open.retain(|_, unknown| {
                let goes_on =
                    is_over || ends.is_silent(unknown.group) || self.is_lost(unknown.group);
                if goes_on {
                    ends.missed(unknown.group);
                }
                !goes_on
            });
            if open.is_empty() {
                return checked;
            }
            tokio::time::sleep(pause).await;
            places = open.into_keys().collect();
        }
    }
}

impl CommitBounds {
    /// What this broker knows by itself; the error is what only the leader knows.
    fn look(&self, at: usize, wanted: WantedOffset) -> Result<Checked, Open> {
        let WantedOffset {
            partition,
            offset,
            committed,
        } = wanted;
        let placed = self.0.image(|image| image.placement(partition));
        let Some(group) = placed else {
            return Ok(Err(ConsumerGroupError::UnknownPartition));
        };
        if offset < Offset::ZERO {
            return Ok(Err(ConsumerGroupError::OffsetOutOfRange));
        }
        if mutant(Mutant::CommitBoundIgnored) {
            return Ok(Ok(()));
        }
        let open = Open {
            at,
            group,
            partition,
            offset,
        };
        if let Some(held) = self.0.data_group(group) {
            // Before the bounds: a leader's bounds are current, a follower's only say that the offset was committed.
            let leads = held.group().can_serve_reads();
            match held.bounds(partition) {
                Ok((_, end)) if offset <= end => return Ok(Ok(())),
                Ok((_, end)) if leads => return Ok(open.against(end).1),
                // Behind the leader, or just created.
                _ => {}
            }
        }
        // The smallest end there is; what was checked when it was committed; what a leader has said.
        let least = committed.unwrap_or(Offset::ZERO);
        let said = self.0.inner.ends.known((group, partition));
        match said.filter(|_| !self.is_lost(group)) {
            Some(end) if offset <= end => Ok(Ok(())),
            _ if offset <= least => Ok(Ok(())),
            _ => Err(open),
        }
    }

    fn is_lost(&self, group: PlacementGroupId) -> bool {
        self.0.image(|image| image.is_lost(group))
    }

    /// Asks all leaders at the same time. Who has no leader, or gets no answer, is missing in what it returns.
    async fn ask_all(
        &self,
        open: impl Iterator<Item = Open>,
        deadline: Instant,
    ) -> Vec<(usize, Checked)> {
        let mut leaders: BTreeMap<NodeId, Vec<Open>> = BTreeMap::new();
        for open in open {
            let leader = self.0.leader(open.group).map(|(leader, _)| leader);
            if let Some(leader) = leader.filter(|leader| *leader != self.0.node()) {
                leaders.entry(leader).or_default().push(open);
            }
        }
        let ends = &self.0.inner.ends;
        let shorter = deadline.min(Instant::now() + SILENT_ASK_WITHIN);
        let asked = leaders.into_iter().map(|(leader, open)| {
            let silent = open.iter().all(|open| ends.is_silent(open.group));
            self.ask(leader, open, if silent { shorter } else { deadline })
        });
        let answers = futures::future::join_all(asked).await;
        answers.into_iter().flatten().collect()
    }

    async fn ask(
        &self,
        leader: NodeId,
        mut open: Vec<Open>,
        deadline: Instant,
    ) -> Vec<(usize, Checked)> {
        let inner = &self.0.inner;
        let mut checked = Vec::with_capacity(open.len());
        let gate = inner.ends.gate(leader);
        let Ok(Ok(_place)) = timeout_at(deadline, gate.acquire()).await else {
            return checked;
        };
        // Others have asked meanwhile.
        open.retain(
            |open| match inner.ends.known((open.group, open.partition)) {
                Some(end) if open.offset <= end => {
                    checked.push((open.at, Ok(())));
                    false
                }
                _ => true,
            },
        );
        if open.is_empty() {
            return checked;
        }
        let asked: Vec<Asked> = open.iter().map(|o| (o.group, o.partition)).collect();
        let left = deadline.saturating_duration_since(Instant::now());
        let ends = self.0.ask_ends(leader, &asked, left).await;
        for (open, end) in open.into_iter().zip(ends.unwrap_or_default()) {
            if let End::At(end) = end {
                inner.ends.note((open.group, open.partition), end);
                checked.push(open.against(end));
            }
        }
        checked
    }
}
