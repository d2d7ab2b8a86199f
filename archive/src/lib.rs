//! The archive: Kafka records as rows of Iceberg tables, one table per topic, made from the bucket alone.
//!
//! Owns: decoding segments into columns, Parquet files, the tables' metadata and the protocol of their commits.
//! Not here: making segments (`tiering`, `broker/src/offload`); SQL (the readers' job).
//! Spec: docs/formats/archive-table.md, docs/protocols/archive-commit.md

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests may touch the real world")
)]

mod archiver;
mod commit;
mod config;
mod datafile;
mod decode;
mod error;
mod fileset;
mod job;
mod location;
mod mark;
mod metrics;
mod rows;
pub mod schema;
mod source;
mod table;

pub use archiver::{Archiver, PartitionStatus, RunReport, TableStatus};
pub use config::ArchiveConfig;
pub use error::ArchiveError;
pub use mark::{Added, Mark};
pub use metrics::ArchiveMetrics;
