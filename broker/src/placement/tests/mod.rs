//! Tests of whole groups over real group logs: on a memory disk that crashes, on real files for the numbers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod crash;
mod group;
mod membership;
mod peers;
mod reverted;
mod stream;
mod suite;

use super::*;
use crate::log::{GroupLog, GroupLogConfig, LogEnv, NoObserver, WriterMode};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::{Disk, MemoryDisk, RealDisk, SystemRandom, Tasks};
use tidelog_model::{ClusterId, LogId, LogIndex, NodeId, PlacementGroupId, RaftNodeId, Term};

const GROUP: PlacementGroupId = PlacementGroupId::new(1);
const WAIT: Duration = Duration::from_secs(20);

/// What the test machine persists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cuts {
    /// Everything applied (like the metadata group).
    Latest,
    /// The state at the last cut command (like a data group).
    AtCut,
}

/// Remembers every value it was given, in order. `Cuts` says what it offers as image.
#[derive(Debug, Clone)]
pub(super) struct Values {
    cuts: Cuts,
    pub(super) last: Option<LogId>,
    pub(super) blanks: u64,
    pub(super) values: Vec<u64>,
    frozen: Option<(LogId, Bytes)>,
    /// Panics when it is given this value.
    poison: Option<u64>,
}

impl Values {
    pub(super) fn new(cuts: Cuts) -> Self {
        Self {
            cuts,
            last: None,
            blanks: 0,
            values: Vec::new(),
            frozen: None,
            poison: None,
        }
    }

    fn image(&self) -> Bytes {
        let mut image = BytesMut::new();
        for value in &self.values {
            image.put_u64_le(*value);
        }
        image.freeze()
    }

    fn advance(&mut self, id: LogId) {
        assert!(Some(id) > self.last, "{id} after {:?}", self.last);
        self.last = Some(id);
    }
}

impl StateMachine for Values {
    /// The position of the value, and the value.
    type Outcome = (usize, u64);

    fn apply(&mut self, id: LogId, command: &Command) -> Self::Outcome {
        self.advance(id);
        if command.dir.is_empty() {
            self.frozen = Some((id, self.image()));
            return (self.values.len(), u64::MAX);
        }
        let value = command.dir.clone().get_u64_le();
        assert_ne!(Some(value), self.poison, "poisoned");
        self.values.push(value);
        (self.values.len() - 1, value)
    }

    fn applied_blank(&mut self, id: LogId) {
        self.advance(id);
        self.blanks += 1;
    }

    fn snapshot(&self) -> Option<(LogId, Bytes)> {
        match self.cuts {
            Cuts::Latest => Some((self.last?, self.image())),
            Cuts::AtCut => self.frozen.clone(),
        }
    }

    fn restore(&mut self, last: LogId, image: &Bytes) -> Result<(), String> {
        if !image.len().is_multiple_of(8) {
            return Err("not whole values".to_owned());
        }
        self.values = image
            .chunks_exact(8)
            .map(|mut value| value.get_u64_le())
            .collect();
        self.last = Some(last);
        self.frozen = Some((last, image.clone()));
        Ok(())
    }
}

/// A command that adds `value`, with a body of its own bytes repeated.
pub(super) fn add(value: u64, body_bytes: usize) -> Command {
    Command::new(
        Bytes::copy_from_slice(&value.to_le_bytes()),
        Bytes::from(vec![value.to_le_bytes()[0]; body_bytes]),
    )
}

/// A command that freezes the state.
pub(super) fn cut() -> Command {
    Command::default()
}

pub(super) fn member(broker: i32) -> Member {
    Member {
        broker: NodeId::new(broker),
        address: format!("broker-{broker}:9192"),
    }
}

/// Where a replica lives, for opening it again and again.
#[derive(Clone)]
pub(super) struct Home {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) dir: PathBuf,
    pub(super) node: RaftNodeId,
    pub(super) failure: Arc<Mutex<Option<String>>>,
}

impl Home {
    pub(super) fn on(disk: Arc<dyn Disk>, dir: PathBuf, node: u64) -> Self {
        Self {
            disk,
            dir,
            node: RaftNodeId::new(node),
            failure: Arc::default(),
        }
    }

    pub(super) fn in_memory(disk: &MemoryDisk) -> Self {
        Self::on(disk.shared(), PathBuf::from("/data/groups/1"), 1)
    }

    pub(super) async fn log(&self) -> GroupLog {
        let cluster = ClusterId::new(uuid::Uuid::from_u128(7));
        let mut config = GroupLogConfig::new(self.dir.clone(), cluster, GROUP, self.node);
        config.file_bytes = 1 << 20;
        config.entry_bytes_max = 256 << 10;
        config.lazy_delay = Duration::from_millis(5);
        config.writer = WriterMode::Thread;
        let failure = Arc::clone(&self.failure);
        let env = LogEnv {
            disk: Arc::clone(&self.disk),
            random: SystemRandom::seeded(self.node.get()),
            tasks: Tasks::new(),
            fatal: Arc::new(move |error| *failure.lock() = Some(error.to_string())),
            observer: Arc::new(NoObserver),
        };
        GroupLog::open(config, env).await.expect("the log opens")
    }

    pub(super) fn config(&self) -> GroupConfig {
        GroupConfig::alone(GROUP, self.node, member(1))
    }

    /// Starts the replica and waits until it leads.
    pub(super) async fn lead(&self, machine: Values) -> Group<Values> {
        self.lead_with(self.config(), machine).await
    }

    pub(super) async fn lead_with(&self, config: GroupConfig, machine: Values) -> Group<Values> {
        let group = Group::start(config, self.log().await, machine, Arc::new(NoPeers))
            .await
            .expect("it starts");
        group.wait_leader(WAIT).await.expect("it leads");
        group
    }
}

/// A real directory that goes away with the value.
pub(super) fn real_home() -> (tempfile::TempDir, Home) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let home = Home::on(RealDisk::shared(), dir.path().join("groups/1"), 1);
    (dir, home)
}
