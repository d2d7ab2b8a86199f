//! Frames on their way in: memory for what has come, and the pace at which it must come.
//!
//! Owns: [`Budget`] (memory that many connections share), [`read_frame`] (the bytes of one frame, as memory is given for them).
//! Not here: what frames mean, how large one may be (`net`, `peer`).
//! Spec: docs/protocols/kafka-wire.md (memory of requests)
//!
//! What a peer announces takes nothing: memory is taken in steps, each at most as large as what has come already (the first is
//! [`STEP_BYTES_MIN`]). Frames that have begun can therefore hold all of a budget, each lacking some; then one of them goes ahead,
//! over the budget if need be, so that there is always one that ends.

mod budget;
mod frame;
mod pace;

pub use budget::{Budget, BudgetMetrics, Hold, Shortage};
pub use frame::{FrameError, read_frame};
pub use pace::{Slow, Terms};

/// The first step of a frame.
pub const STEP_BYTES_MIN: usize = 8 << 10;
/// The largest step: a frame of 100 MiB takes 107 of them.
const STEP_BYTES_MAX: usize = 1 << 20;

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
