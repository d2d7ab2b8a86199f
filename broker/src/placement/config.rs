//! Settings of a placement group, and what they mean to openraft.
//!
//! Owns: [`GroupConfig`], [`PlacementError`], how large a command may be.
//! Not here: settings of its log (`log`).
//! Spec: docs/protocols/placement.md

use super::raft_types::Member;
use crate::log::entry_bytes_in;
use openraft::SnapshotPolicy;
use std::collections::BTreeMap;
use std::time::Duration;
use tidelog_model::{PlacementGroupId, RaftNodeId};

/// Bytes of one entry at most: a request of a stock producer (1 MiB, up to 8 MiB with room) with its directory.
const ENTRY_BYTES_MAX: usize = 16 << 20;
/// Bytes proposed and not answered: 64 entries of 1 MiB. Held in memory until they are applied.
const IN_FLIGHT_BYTES_MAX: usize = 64 << 20;
/// Entries proposed and not answered. Below the core's queue, so that a proposal within the budget finds room there.
const IN_FLIGHT_COUNT_MAX: usize = 1024;
/// Messages that may wait for the core: proposals, and messages of peers and of itself.
const CORE_QUEUE_LENGTH: u64 = 4096;

const _: () = assert!(ENTRY_BYTES_MAX <= IN_FLIGHT_BYTES_MAX);
const _: () = assert!((IN_FLIGHT_COUNT_MAX as u64) * 2 <= CORE_QUEUE_LENGTH);

/// Settings of one group on one broker.
#[derive(Debug, Clone)]
pub struct GroupConfig {
    /// The group; for names and log lines.
    pub group: PlacementGroupId,
    /// This replica. The same for as long as its log lives, and never given to another log.
    pub node: RaftNodeId,
    /// Whom to set the group up with if its log is empty; the same on every replica that is given any. Empty: wait to be taken
    /// into an existing group.
    pub first_members: BTreeMap<RaftNodeId, Member>,
    /// Between signs of life of a leader.
    pub heartbeat: Duration,
    /// A follower campaigns after hearing nothing for `election_max` and then a time between this and that. Also how long a leader that
    /// hears nobody serves reads.
    pub election_min: Duration,
    /// See above. Also how long a follower denies its vote to others after hearing from the leader.
    pub election_max: Duration,
    /// One command at most.
    pub entry_bytes_max: usize,
    /// Proposals not answered yet, at most.
    pub in_flight_count_max: usize,
    /// Their bytes, at most. At least `entry_bytes_max`.
    pub in_flight_bytes_max: usize,
    /// How long a proposer waits for its outcome.
    pub propose_deadline: Duration,
}

/// Bytes of one command at most, in a group of the defaults whose log files have so many.
#[must_use]
pub fn entry_bytes_max(file_bytes: u64) -> usize {
    ENTRY_BYTES_MAX.min(entry_bytes_in(file_bytes))
}

impl GroupConfig {
    /// The defaults of production.
    #[must_use]
    pub fn new(
        group: PlacementGroupId,
        node: RaftNodeId,
        first_members: BTreeMap<RaftNodeId, Member>,
    ) -> Self {
        Self {
            group,
            node,
            first_members,
            // A leader that falls silent is followed within about 2 s: followers deny votes for `election_max` after they heard from
            // it, and campaign after another `election_min` to `election_max`. Seven heartbeats are late before anybody doubts.
            heartbeat: Duration::from_millis(200),
            election_min: Duration::from_millis(600),
            election_max: Duration::from_millis(1000),
            entry_bytes_max: ENTRY_BYTES_MAX,
            in_flight_count_max: IN_FLIGHT_COUNT_MAX,
            in_flight_bytes_max: IN_FLIGHT_BYTES_MAX,
            propose_deadline: Duration::from_secs(30),
        }
    }

    /// A group whose only replica is this one.
    #[must_use]
    pub fn alone(group: PlacementGroupId, node: RaftNodeId, member: Member) -> Self {
        Self::new(group, node, BTreeMap::from([(node, member)]))
    }

    pub(super) fn check(&self) -> Result<openraft::Config, PlacementError> {
        if self.entry_bytes_max == 0 || self.in_flight_bytes_max < self.entry_bytes_max {
            return Err(PlacementError::Config(
                "an entry of the largest size must fit the bytes in flight".to_owned(),
            ));
        }
        if self.in_flight_count_max == 0 || self.in_flight_count_max > IN_FLIGHT_COUNT_MAX {
            return Err(PlacementError::Config(format!(
                "between 1 and {IN_FLIGHT_COUNT_MAX} entries in flight"
            )));
        }
        if !self.first_members.is_empty() && !self.first_members.contains_key(&self.node) {
            return Err(PlacementError::Config(
                "the first members must include this replica".to_owned(),
            ));
        }
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let config = openraft::Config {
            cluster_name: format!("group-{}", self.group),
            heartbeat_interval: millis(self.heartbeat),
            heartbeat_min_interval: Some(millis(self.heartbeat / 2)),
            election_timeout_min: millis(self.election_min),
            election_timeout_max: millis(self.election_max),
            // A snapshot is megabytes; its link reports its own failures earlier.
            install_snapshot_timeout: 120_000,
            max_payload_entries: 256,
            api_channel_size: Some(CORE_QUEUE_LENGTH),
            // Only we decide what is snapshotted and what is purged.
            snapshot_policy: SnapshotPolicy::Never,
            max_in_snapshot_log_to_keep: u64::MAX,
            enable_pre_vote: Some(true),
            // A leader that nobody answers, though they hear it, falls silent for this long: longer than followers take to elect another.
            quorum_loss_probe_interval: Some(millis(self.election_max * 3)),
            // A restarted leader begins a new term, whose first entry is the barrier that reads wait for.
            enable_leader_restore: Some(false),
            allow_log_reversion: Some(false),
            ..openraft::Config::default()
        };
        config
            .validate()
            .map_err(|error| PlacementError::Config(error.to_string()))
    }
}

/// Why a group did not start, or cannot do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// A setting is out of range.
    #[error("placement group settings: {0}")]
    Config(String),
    /// The newest checkpoint cannot be read or is not whole. The data directory needs a look; nothing was changed.
    #[error("the checkpoint of group {group}: {why}")]
    Checkpoint {
        /// The group.
        group: PlacementGroupId,
        /// What is wrong.
        why: String,
    },
    /// The group stopped, or could not start from what is in its log.
    #[error("group {group} stopped: {why}")]
    Fatal {
        /// The group.
        group: PlacementGroupId,
        /// Why.
        why: String,
    },
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;

    fn alone() -> GroupConfig {
        GroupConfig::alone(
            PlacementGroupId::new(1),
            RaftNodeId::new(7),
            Member::default(),
        )
    }

    /// Proves that the defaults pass, and that each bound between settings is checked.
    #[test]
    fn settings_are_checked() {
        assert!(alone().check().is_ok());
        let refused = |change: fn(&mut GroupConfig)| {
            let mut config = alone();
            change(&mut config);
            config.check().expect_err("refused")
        };
        refused(|config| config.entry_bytes_max = 0);
        refused(|config| config.in_flight_bytes_max = config.entry_bytes_max - 1);
        refused(|config| config.in_flight_count_max = 0);
        refused(|config| config.in_flight_count_max = IN_FLIGHT_COUNT_MAX + 1);
        refused(|config| config.election_min = config.election_max);
        refused(|config| config.heartbeat = config.election_min);
        refused(|config| config.node = RaftNodeId::new(8));
    }

    /// Proves that openraft never snapshots, purges, or takes up an old term on its own.
    #[test]
    fn openraft_decides_nothing_by_itself() {
        let config = alone().check().expect("valid");
        assert_eq!(config.snapshot_policy, SnapshotPolicy::Never);
        assert_eq!(config.max_in_snapshot_log_to_keep, u64::MAX);
        assert_eq!(config.enable_leader_restore, Some(false));
        assert_eq!(config.enable_pre_vote, Some(true));
        assert_eq!(config.quorum_loss_probe_interval, Some(3000));
    }
}
