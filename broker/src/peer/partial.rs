//! Snapshots that are arriving: one per group, in memory, to be gone on with after a break.
//!
//! Owns: [`Partials`], their bound, who takes whose place, when they are forgotten.
//! Not here: installing (the group), sending (`link.rs`).
//! Spec: docs/protocols/peer.md (snapshots)

use super::messages::{ErrorCode, ErrorReply, SnapshotBegin};
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use tidelog_model::{PlacementGroupId, RaftNodeId, Term};
use tokio::time::Instant;

/// Memory is taken in steps of at least this, at most doubling what is there: as bytes come, not as they are announced.
const GROW_BYTES_MIN: usize = 1 << 20;

/// Partial snapshots of all groups.
pub(super) struct Partials {
    state: Mutex<State>,
    bytes_max: usize,
    idle: Duration,
}

#[derive(Default)]
struct State {
    partials: BTreeMap<PlacementGroupId, Partial>,
    announced: usize,
}

struct Partial {
    sender: RaftNodeId,
    term: Term,
    id: u64,
    bytes: usize,
    crc: u32,
    data: Data,
    touched: Instant,
}

enum Data {
    Arriving(BytesMut),
    Whole(Bytes),
}

impl Data {
    fn len(&self) -> usize {
        match self {
            Self::Arriving(bytes) => bytes.len(),
            Self::Whole(bytes) => bytes.len(),
        }
    }
}

impl Partial {
    fn have(&self) -> u64 {
        u64::try_from(self.data.len()).unwrap_or(u64::MAX)
    }

    fn is(&self, sender: RaftNodeId, id: u64) -> bool {
        self.sender == sender && self.id == id
    }
}

fn overloaded<T>(why: impl Into<String>) -> Result<T, ErrorReply> {
    Err(ErrorReply::new(ErrorCode::Overloaded, why))
}

impl State {
    fn remove(&mut self, group: PlacementGroupId) {
        if let Some(partial) = self.partials.remove(&group) {
            self.announced -= partial.bytes;
        }
    }

    fn forget(&mut self, is_stale: impl Fn(PlacementGroupId, &Partial) -> bool) {
        let stale: Vec<_> = self
            .partials
            .iter()
            .filter(|(group, partial)| is_stale(**group, partial))
            .map(|(group, _)| *group)
            .collect();
        for group in stale {
            self.remove(group);
        }
    }
}

impl Partials {
    pub(super) fn new(bytes_max: usize, idle: Duration) -> Self {
        Self {
            state: Mutex::default(),
            bytes_max,
            idle,
        }
    }

    /// Step 1: how many bytes of this snapshot are here already.
    pub(super) fn begin(
        &self,
        group: PlacementGroupId,
        sender: RaftNodeId,
        begin: &SnapshotBegin,
    ) -> Result<u64, ErrorReply> {
        let bytes = usize::try_from(begin.bytes).unwrap_or(usize::MAX);
        if bytes == 0 {
            return Err(ErrorReply::new(
                ErrorCode::Malformed,
                "a snapshot without bytes",
            ));
        }
        let mut state = self.state.lock();
        let term = begin.vote.term;
        if let Some(partial) = state.partials.get_mut(&group) {
            if partial.is(sender, begin.id) && partial.bytes == bytes && partial.crc == begin.crc {
                partial.term = partial.term.max(term);
                partial.touched = Instant::now();
                return Ok(partial.have());
            }
            if partial.sender != sender && partial.term > term {
                return overloaded(format!(
                    "Raft node {} is sending a snapshot in a newer term",
                    partial.sender
                ));
            }
            state.remove(group);
        }
        let is_over = |announced: usize| announced.saturating_add(bytes) > self.bytes_max;
        if is_over(state.announced) {
            state.forget(|_, partial| partial.touched.elapsed() >= self.idle);
        }
        if is_over(state.announced) {
            return overloaded(format!(
                "{bytes} bytes of snapshot on top of {} are more than {}",
                state.announced, self.bytes_max
            ));
        }
        state.announced += bytes;
        let partial = Partial {
            sender,
            term,
            id: begin.id,
            bytes,
            crc: begin.crc,
            data: Data::Arriving(BytesMut::new()),
            touched: Instant::now(),
        };
        state.partials.insert(group, partial);
        Ok(0)
    }

    /// Step 2: adds a chunk that begins where the last one ended. How many bytes are here now.
    pub(super) fn chunk(
        &self,
        group: PlacementGroupId,
        sender: RaftNodeId,
        (id, at): (u64, u64),
        chunk: &[u8],
    ) -> Result<u64, ErrorReply> {
        let misplaced = |why: &str| Err(ErrorReply::new(ErrorCode::SnapshotPosition, why));
        let mut state = self.state.lock();
        let Some(partial) = state
            .partials
            .get_mut(&group)
            .filter(|partial| partial.is(sender, id))
        else {
            return misplaced("no such snapshot is arriving");
        };
        if at != partial.have() {
            return misplaced("the chunk does not begin where the last one ended");
        }
        let left = partial.bytes - partial.data.len();
        if chunk.len() > left {
            return Err(ErrorReply::new(
                ErrorCode::Malformed,
                "more bytes than were announced",
            ));
        }
        let Data::Arriving(data) = &mut partial.data else {
            return misplaced("the snapshot is whole");
        };
        if data.capacity() - data.len() < chunk.len() {
            data.reserve(data.len().max(GROW_BYTES_MIN).max(chunk.len()).min(left));
        }
        data.extend_from_slice(chunk);
        partial.touched = Instant::now();
        Ok(partial.have())
    }

    /// Step 3: the whole snapshot, which stays until [`Partials::done`]. Damaged, it is dropped.
    pub(super) fn whole(
        &self,
        group: PlacementGroupId,
        sender: RaftNodeId,
        id: u64,
    ) -> Result<Bytes, ErrorReply> {
        let mut state = self.state.lock();
        let found = state.partials.get_mut(&group);
        let Some(partial) = found.filter(|partial| partial.is(sender, id)) else {
            return Err(ErrorReply::new(
                ErrorCode::SnapshotPosition,
                "no such snapshot is arriving",
            ));
        };
        partial.touched = Instant::now();
        let data = match &mut partial.data {
            Data::Whole(bytes) => return Ok(bytes.clone()),
            Data::Arriving(data) => data,
        };
        if data.len() != partial.bytes {
            return Err(ErrorReply::new(
                ErrorCode::SnapshotPosition,
                "chunks are missing",
            ));
        }
        let bytes = std::mem::take(data).freeze();
        let is_damaged = crc32c::crc32c(&bytes) != partial.crc;
        partial.data = Data::Whole(bytes.clone());
        if is_damaged {
            state.remove(group);
            return Err(ErrorReply::new(
                ErrorCode::Malformed,
                "the snapshot does not fit its checksum",
            ));
        }
        Ok(bytes)
    }

    /// The snapshot is installed, or cannot be.
    pub(super) fn done(&self, group: PlacementGroupId, sender: RaftNodeId, id: u64) {
        let mut state = self.state.lock();
        let found = state.partials.get(&group);
        if found.is_some_and(|partial| partial.is(sender, id)) {
            state.remove(group);
        }
    }

    /// Forgets what was not touched for long, and what belongs to groups that are gone.
    pub(super) fn sweep(&self, is_here: impl Fn(PlacementGroupId) -> bool) {
        let idle = self.idle;
        self.state
            .lock()
            .forget(|group, partial| partial.touched.elapsed() >= idle || !is_here(group));
    }

    /// Bytes announced by what is here.
    #[cfg(test)]
    pub(super) fn announced(&self) -> usize {
        self.state.lock().announced
    }
}
