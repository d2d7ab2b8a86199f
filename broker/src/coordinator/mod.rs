//! Consumer groups: the classic protocol, committed offsets.
//!
//! Owns: the replicated state of consumer groups (`state`), the leader's view of who is a member (`membership`), and the
//! shell that answers requests (`service`).
//! Not here: Kafka's wire types (api), which broker coordinates which slot (router), partitions.
//! Spec: docs/protocols/consumer-groups.md, docs/formats/coordinator-commands.md, docs/formats/coordinator-state.md

mod error;
mod ids;
pub mod limits;
pub mod membership;
pub mod service;
mod slot;
pub mod state;

pub use error::ConsumerGroupError;
pub use ids::{ConsumerGroupName, InstanceId, MemberId};
pub use slot::{SLOTS, slot_of};
