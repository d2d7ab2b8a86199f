//! Producer ids: handed out from a block that the metadata group gave to this broker.

use super::Router;
use crate::metadata::{MetadataCommand, MetadataOutcome, ProducerIdBlock};
use crate::placement::ProposeError;
use std::time::Duration;
use tidelog_model::ProducerId;
use tokio::time::Instant;

/// The rest of this broker's block. A crash loses it: ids are never handed out twice, some are never handed out.
#[derive(Default)]
pub(super) struct ProducerIds {
    block: tokio::sync::Mutex<Option<ProducerIdBlock>>,
}

/// How long a new block may take: an election. Producers ask again.
const ALLOCATED_WITHIN: Duration = Duration::from_secs(5);

impl Router {
    async fn allocate_producer_ids(&self) -> Result<ProducerIdBlock, ProposeError> {
        let command = MetadataCommand::AllocateProducerIds { node: self.node() };
        let deadline = Instant::now() + ALLOCATED_WITHIN;
        match self.inner.metadata.propose_by(&command, deadline).await? {
            MetadataOutcome::ProducerIds(fresh) if fresh.count > 0 => Ok(fresh),
            other => Err(ProposeError::Fatal(format!("no producer ids: {other:?}"))),
        }
    }

    /// A producer id that nobody had before.
    ///
    /// # Errors
    /// [`ProposeError`] if the metadata group gave no new block; safe to repeat.
    pub async fn next_producer_id(&self) -> Result<ProducerId, ProposeError> {
        // The lock is held while a block is fetched: those who wait would all need the same block.
        let mut block = self.inner.producer_ids.block.lock().await;
        let current = match *block {
            Some(left) if left.count > 0 => left,
            _ => self.allocate_producer_ids().await?,
        };
        let rest = ProducerIdBlock {
            first: ProducerId::new(current.first.get() + 1),
            count: current.count - 1,
        };
        *block = Some(rest);
        Ok(current.first)
    }
}
