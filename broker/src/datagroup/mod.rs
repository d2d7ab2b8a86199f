//! A data group: partitions and consumer groups behind one Raft log, and the handle that serves them.
//!
//! Owns: the state machine that puts `partition` and `coordinator` together (they do not know each other), and reads
//! that begin in the hot tail and go on in the object store.
//! Not here: which partition is in which group (`router`), driving uploads (`offload`).

mod handle;
mod machine;
mod read;
mod times;

pub use handle::{DataGroup, DataGroupConfig, batch_bytes_in};
pub use machine::{DataMachine, DataOutcome};
pub use read::{Batch, FetchError, Fetched};
pub use times::TimeLookup;
