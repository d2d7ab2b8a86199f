//! The order of the steps, as a function: data before commit before publish before trim (I10).
//!
//! Owns: which step comes next, given how far the newest cut has come.
//! Not here: doing it (`driver`).

use std::sync::Arc;

use crate::partition::{CutStage, Frozen};

/// What to do next.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// Nothing until something changes.
    Wait,
    /// Propose a cut.
    Cut,
    /// Write the frozen state's untiered data to the store, then propose that it is there.
    Upload(Arc<Frozen>),
    /// Put the manifest into the store, then propose that it is there.
    Publish(Arc<Frozen>),
    /// Save the checkpoint of the published cut and purge the local log below it.
    Trim(Arc<Frozen>),
}

/// What the driver knows besides the stage.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wish {
    /// There are records that are in no committed segment.
    pub(super) untiered: bool,
    /// The log has grown by other entries (commits, deletions) enough for a checkpoint to be worth it.
    pub(super) grown: bool,
    /// Enough bytes or time have gathered, or somebody asked.
    pub(super) due: bool,
    /// The published cut was already trimmed as far as it should be.
    pub(super) trimmed: bool,
}

/// The step that follows `stage`. A cut under way is always finished first; a new one only begins after the one before
/// was published and trimmed.
#[must_use]
pub(super) fn next(stage: &CutStage, wish: Wish) -> Step {
    match stage {
        CutStage::Cut(frozen) => Step::Upload(Arc::clone(frozen)),
        CutStage::Uploaded(frozen) => Step::Publish(Arc::clone(frozen)),
        CutStage::Published(frozen) if !wish.trimmed => Step::Trim(Arc::clone(frozen)),
        CutStage::Published(_) | CutStage::None => {
            if wish.due && (wish.untiered || wish.grown) {
                Step::Cut
            } else {
                Step::Wait
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use std::collections::BTreeMap;
    use tidelog_model::{LogId, LogIndex, TimestampMs};

    fn frozen() -> Arc<Frozen> {
        Arc::new(Frozen {
            at: LogId::default(),
            stamp: TimestampMs::new(0),
            dropped_at: LogIndex::new(0),
            partitions: BTreeMap::new(),
            coordinator: Bytes::new(),
        })
    }

    fn name(step: &Step) -> &'static str {
        match step {
            Step::Wait => "wait",
            Step::Cut => "cut",
            Step::Upload(_) => "upload",
            Step::Publish(_) => "publish",
            Step::Trim(_) => "trim",
        }
    }

    /// Proves the whole table: whatever is wished, data comes before commit before publish before trim before a new cut.
    #[test]
    fn order_of_steps() {
        for bits in 0..16u8 {
            let wish = Wish {
                untiered: bits & 1 != 0,
                due: bits & 2 != 0,
                trimmed: bits & 4 != 0,
                grown: bits & 8 != 0,
            };
            let cut_or_wait = if (wish.untiered || wish.grown) && wish.due {
                "cut"
            } else {
                "wait"
            };
            assert_eq!(name(&next(&CutStage::None, wish)), cut_or_wait);
            assert_eq!(name(&next(&CutStage::Cut(frozen()), wish)), "upload");
            assert_eq!(name(&next(&CutStage::Uploaded(frozen()), wish)), "publish");
            let after = if wish.trimmed { cut_or_wait } else { "trim" };
            assert_eq!(name(&next(&CutStage::Published(frozen()), wish)), after);
        }
    }
}
