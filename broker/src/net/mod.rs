//! The Kafka listener: connections, frames in, answers out in order.
//!
//! Owns: accepting, per-connection order and backpressure, memory of frames in work, idle and stalled peers, the end.
//! Not here: what frames mean (`wire`), what answers say (`api`, through [`crate::wire::Service`]).
//! Spec: docs/protocols/kafka-wire.md
//!
//! Bounds: connections, bytes of frames in work over all connections and per connection, requests in work per connection,
//! one Fetch in work per connection, time without progress while a frame or an answer is under way.

mod connection;
mod memory;
mod metrics;
mod read;
mod server;
mod write;

pub use metrics::NetMetrics;
pub use server::{MemoryWatch, NetConfig, NetError, NetServer};

#[cfg(test)]
mod tests;
