//! The archive: Kafka records as rows of Iceberg tables, one table per topic, made from the bucket alone.
//!
//! Owns: decoding segments into columns, Parquet files, the tables' metadata and the protocol of their commits.
//! Not here: making segments (`tiering`, `broker/src/offload`); SQL (the readers' job).
//! Spec: docs/formats/archive-table.md, docs/protocols/archive-commit.md

mod config;
mod datafile;
mod error;
mod fileset;
mod mark;
mod rows;
pub mod schema;

pub use config::ArchiveConfig;
pub use error::ArchiveError;
