//! Names of a group's files, and an open log file.
//!
//! Owns: building and parsing names, making them durable.
//! Spec: docs/formats/group-log.md

use super::format::Binding;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidelog_env::{Disk, DiskFile, Mutant, mutant};
use tidelog_model::{LogId, LogIndex, Term};

/// An open log file.
pub(super) struct LogFile {
    pub(super) path: PathBuf,
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) binding: Binding,
    pub(super) file_bytes: u64,
}

/// What a name in the directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileName {
    Log(u64),
    Spare(u64),
    Tmp,
    Checkpoint(LogId),
    Other,
}

pub(super) fn log_name(sequence: u64) -> String {
    format!("{sequence:020}.log")
}

pub(super) fn spare_name(number: u64) -> String {
    format!("{number:020}.spare")
}

pub(super) fn tmp_name(number: u64) -> String {
    format!("{number:020}.tmp")
}

pub(super) fn checkpoint_name(id: LogId) -> String {
    format!("{:020}-{}.snap", id.index.get(), id.term.get())
}

/// Makes the names of a group's directory durable.
pub(super) fn sync_names(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    if mutant(Mutant::DirectoryNotSynced) {
        return Ok(());
    }
    disk.sync_dir(dir)
}

/// Reads a name; only names that this module builds are ours.
pub(super) fn parse_name(name: &str) -> FileName {
    let number = |text: &str| {
        text.parse::<u64>()
            .ok()
            .filter(|number| format!("{number:020}") == text)
    };
    if name.ends_with(".tmp") {
        return FileName::Tmp;
    }
    if let Some(sequence) = name.strip_suffix(".log").and_then(number) {
        return FileName::Log(sequence);
    }
    if let Some(number) = name.strip_suffix(".spare").and_then(number) {
        return FileName::Spare(number);
    }
    let checkpoint = name
        .strip_suffix(".snap")
        .and_then(|stem| stem.split_once('-'));
    if let Some((index, term)) = checkpoint
        && let (Some(index), Ok(term)) = (number(index), term.parse())
    {
        return FileName::Checkpoint(LogId {
            term: Term::new(term),
            index: LogIndex::new(index),
        });
    }
    FileName::Other
}
