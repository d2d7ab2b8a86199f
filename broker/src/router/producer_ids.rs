//! Producer ids: handed out from a block that the metadata group gave to this broker.

use super::Router;
use crate::metadata::{MetadataCommand, MetadataOutcome, ProducerIdBlock};
use crate::placement::ProposeError;
use tidelog_model::ProducerId;

/// The rest of this broker's block. A crash loses it: ids are never handed out twice, some are never handed out.
#[derive(Default)]
pub(super) struct ProducerIds {
    block: tokio::sync::Mutex<Option<ProducerIdBlock>>,
}

impl Router {
    /// A producer id that nobody had before.
    ///
    /// # Errors
    /// [`ProposeError`] if the metadata group gave no new block; safe to repeat.
    pub async fn next_producer_id(&self) -> Result<ProducerId, ProposeError> {
        // The lock is held while a block is fetched: those who wait would all need the same block.
        let mut block = self.inner.producer_ids.block.lock().await;
        let current = match *block {
            Some(left) if left.count > 0 => left,
            _ => match self
                .propose_metadata(&MetadataCommand::AllocateProducerIds { node: self.node() })
                .await?
            {
                MetadataOutcome::ProducerIds(fresh) if fresh.count > 0 => fresh,
                other => return Err(ProposeError::Fatal(format!("no producer ids: {other:?}"))),
            },
        };
        let rest = ProducerIdBlock {
            first: ProducerId::new(current.first.get() + 1),
            count: current.count - 1,
        };
        *block = Some(rest);
        Ok(current.first)
    }
}
