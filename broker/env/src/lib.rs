//! The world outside, handed in: clock, randomness, tasks, disk, network. A simulation takes their place.
//!
//! Owns: the traits and their real implementations. No other crate reads the wall clock, takes entropy, opens a
//! file of the data directory, or opens a socket by itself.
//! Not here: the object store (its trait is `object_store::ObjectStore`, handed in as `Arc<dyn ObjectStore>`).
//!
//! Elapsed time and timers are tokio's (`tokio::time`), which a simulation pauses and steps.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests may touch the real world")
)]

pub mod blocking;
pub mod breaking;
pub mod clock;
pub mod disk;
pub mod net;
pub mod random;
pub mod tasks;

pub use blocking::blocking;
pub use breaking::{CrashPoint, Mutant, crash_point, mutant};
pub use clock::{Clock, SystemClock};
pub use disk::{Disk, DiskFile, MemoryDisk, RealDisk};
pub use net::{Accepted, BoxStream, Listener, Network, Stream, TcpNetwork};
pub use random::{Random, SystemRandom};
pub use tasks::{Tasks, TasksPart};
