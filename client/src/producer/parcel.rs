//! One batch on its way through a producer: collecting, closed, sealed.

use super::delivery::{BatchAck, BatchDone, Failed};
use crate::error::{Error, Outcome};
use bytes::Bytes;
use std::sync::Arc;
use tidelog_model::batch::{BatchBuilder, BatchError, RecordBatch};
use tidelog_model::{ProducerEpoch, ProducerId, Sequence};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

/// A producer identity as the broker gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) id: ProducerId,
    pub(super) epoch: ProducerEpoch,
}

/// Where a batch stands in its partition's order under one identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) identity: Identity,
    pub(super) sequence: Sequence,
}

#[derive(Debug)]
enum Content {
    /// Records are still added, or it waits for its sequence.
    Builder(Box<BatchBuilder>),
    /// The bytes that are sent, again and again the same.
    Sealed(Bytes),
}

/// One batch.
#[derive(Debug)]
pub(super) struct Parcel {
    /// Unique within the producer.
    pub(super) number: u64,
    pub(super) topic: Arc<str>,
    pub(super) partition: i32,
    pub(super) opened: Instant,
    pub(super) deadline: Instant,
    /// Position among the partition's batches, for order without wrap-around. Set when it is drained first.
    pub(super) order: u64,
    pub(super) place: Option<Place>,
    /// Whether an earlier attempt may have appended it.
    pub(super) maybe: bool,
    pub(super) last_error: Option<Error>,
    pub(super) done: Arc<BatchDone>,
    content: Content,
    count: i32,
    _room: OwnedSemaphorePermit,
}

/// What a parcel is opened with.
pub(super) struct Opening {
    pub(super) number: u64,
    pub(super) topic: Arc<str>,
    pub(super) partition: i32,
    pub(super) now: Instant,
    pub(super) deadline: Instant,
    pub(super) builder: BatchBuilder,
    pub(super) room: OwnedSemaphorePermit,
}

impl Parcel {
    pub(super) fn open(opening: Opening) -> Self {
        Self {
            number: opening.number,
            topic: opening.topic,
            partition: opening.partition,
            opened: opening.now,
            deadline: opening.deadline,
            order: 0,
            place: None,
            maybe: false,
            last_error: None,
            done: Arc::default(),
            content: Content::Builder(Box::new(opening.builder)),
            count: 0,
            _room: opening.room,
        }
    }

    /// The builder while records can be added.
    pub(super) fn builder(&mut self) -> Option<&mut BatchBuilder> {
        match &mut self.content {
            Content::Builder(builder) => Some(builder),
            Content::Sealed(_) => None,
        }
    }

    /// Bytes on the wire, uncompressed while it is not sealed.
    pub(super) fn bytes(&self) -> usize {
        match &self.content {
            Content::Builder(builder) => builder.bytes(),
            Content::Sealed(bytes) => bytes.len(),
        }
    }

    /// How many records it has.
    pub(super) fn count(&self) -> i32 {
        match &self.content {
            Content::Builder(builder) => builder.record_count(),
            Content::Sealed(_) => self.count,
        }
    }

    /// Makes the bytes to send for its place: compresses, sums, or patches in a new place. Sealed under the same place
    /// before, it stays as it is.
    pub(super) fn seal(&mut self) -> Result<(), BatchError> {
        let count = self.count();
        let sealed = match &mut self.content {
            Content::Builder(builder) => {
                let mut taken = std::mem::replace(
                    &mut **builder,
                    BatchBuilder::new(tidelog_model::codec::Codec::None),
                );
                if let Some(place) = self.place {
                    taken = taken.producer(place.identity.id, place.identity.epoch, place.sequence);
                }
                taken.build()?
            }
            Content::Sealed(bytes) => match self.place {
                None => return Ok(()),
                Some(place) => {
                    let batch = RecordBatch::parse(bytes.clone())?;
                    let header = batch.header();
                    if header.producer_id == place.identity.id
                        && header.producer_epoch == place.identity.epoch
                        && header.base_sequence == place.sequence
                    {
                        return Ok(());
                    }
                    batch
                        .with_producer(place.identity.id, place.identity.epoch, place.sequence)
                        .into_bytes()
                }
            },
        };
        self.count = count;
        self.content = Content::Sealed(sealed);
        Ok(())
    }

    /// The sealed bytes.
    pub(super) fn sealed(&self) -> Option<&Bytes> {
        match &self.content {
            Content::Sealed(bytes) => Some(bytes),
            Content::Builder(_) => None,
        }
    }

    pub(super) fn succeed(self, ack: BatchAck) {
        self.done.set(Ok(ack));
    }

    /// Tells the records' owners. The outcome is open if this error or any earlier attempt left it open.
    pub(super) fn fail(self, error: Error) {
        let open = self.maybe || error.outcome() == Outcome::MayHaveHappened;
        let outcome = if open {
            Outcome::MayHaveHappened
        } else {
            Outcome::DidNotHappen
        };
        self.done.set(Err(Failed { outcome, error }));
    }
}
