//! What can go wrong with a call to the memory disk, and who decides it.
//!
//! Owns: [`Fault`], [`FaultSource`].
//! Not here: what each fault leaves behind (`world.rs`, `content.rs`).
//! Spec: docs/formats/disk.md

use std::path::Path;
use std::time::Duration;

/// What happens at an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The operation fails with an I/O error. A write may have been done in part; a sync loses what it was to write.
    Eio,
    /// A write does this many of its bytes, then fails with an I/O error. Other operations: as [`Fault::Eio`].
    EioAfter(usize),
    /// The operation fails for want of room, with nothing done.
    Enospc,
    /// The power goes: the operation may be done in part, every later one fails until [`super::MemoryDisk::crash`].
    PowerCut,
    /// A write says it was done, but its bytes lie at another sector of the same file or of one beside it; the number
    /// chooses which. Other operations are done as usual, as are writes when there is no other sector.
    Misdirect(u64),
    /// The operation is done as usual, and one bit of a synced sector turns, of which file the number chooses.
    Rot(u64),
}

/// The kinds of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationKind {
    /// A read of a file.
    Read,
    /// A write inside a file's length.
    Write,
    /// A write that makes the file longer, or the taking of room.
    Grow,
    /// A sync of a file.
    Sync,
    /// The creation of a file or directory.
    Create,
    /// Any other change of a directory.
    ChangeNames,
    /// A sync of a directory.
    SyncDir,
    /// Opening, listing, locking.
    Look,
}

/// Decides what happens at each operation, in the order of the calls. Called while the disk is locked: it must not call the
/// disk.
pub trait FaultSource: Send + Sync + 'static {
    /// What happens at this operation. Asked once for each that no planned fault is for.
    fn draw(&self, kind: OperationKind, path: &Path) -> Option<Fault>;
    /// A drawn fault really happened, or the disk was full.
    fn happened(&self, kind: OperationKind, fault: Fault);
    /// Whether bytes of this file may rot or be overwritten by a misdirected write.
    fn may_damage(&self, _path: &Path) -> bool {
        true
    }
    /// See [`crate::Disk::delay`].
    fn delay(&self) -> Duration {
        Duration::ZERO
    }
}
