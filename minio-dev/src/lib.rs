//! Starts and prepares an S3 server on the loopback for trying and testing Tidelog.
//!
//! Owns: the choice of the server, its process or container, its data folder, the bucket.
//! Not here: how Tidelog uses a store (`tidelog-tiering`), other people's S3 servers.
//! Spec: docs/guides/local-s3.md

mod check;
mod choice;
mod cli;
mod down;
mod error;
mod process;
mod s3;
mod state;
mod up;

pub use check::{CheckResult, check};
pub use choice::{Program, Server};
pub use cli::{MinioDev, Verb};
pub use down::down;
pub use error::Error;
pub use state::{Running, State};
pub use up::{UpOptions, up};
