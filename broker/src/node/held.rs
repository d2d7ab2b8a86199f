//! Which placement groups this Raft node holds a log of: `<data>/held.json`.
//!
//! Owns: [`HeldGroups`]: a log that was there and is gone is damage, never a replica that starts empty.
//! Invariant: a group is noted after its log was created, and before its replica votes or acknowledges anything; it is forgotten before its files are deleted.
//! Not here: files of a log (`log`), what follows from damage (`refill`).
//! Spec: docs/formats/cluster-json.md (held.json), docs/protocols/refill.md

use super::identity::{self, IdentityError};
use crate::log::LogError;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidelog_env::disk::Disk;
use tidelog_env::{Mutant, mutant};
use tidelog_model::{PlacementGroupId, RaftNodeId};

const FILE: &str = "held.json";
const VERSION: u32 = 2;
/// The first version, without a sum.
const UNSUMMED: u32 = 1;
const GROUPS: &str = "groups";
const WHAT_TO_DO: &str = "it notes which groups lie here, no identity: it may be deleted if no group's directory is missing, and is written anew then. If one is, start the broker \
     with an empty data directory, keep this one, and run `tidelog cluster add` with its node.id";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    raft_node_id: u64,
    groups: BTreeSet<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    crc32c: Option<u32>,
}

impl File {
    /// CRC-32C of the three fields as text: `2 11 1,5`.
    fn sum(&self) -> u32 {
        let groups: Vec<String> = self.groups.iter().map(u32::to_string).collect();
        let text = format!(
            "{} {} {}",
            self.version,
            self.raft_node_id,
            groups.join(",")
        );
        crc32c::crc32c(text.as_bytes())
    }

    fn check(&self) -> Result<(), String> {
        match (self.version, self.crc32c) {
            (UNSUMMED, None) => Ok(()),
            (VERSION, Some(sum)) if sum == self.sum() => Ok(()),
            (UNSUMMED | VERSION, _) => Err("its checksum is wrong".to_owned()),
            (version, _) => Err(format!("version {version}, this program writes {VERSION}")),
        }
    }
}

/// The groups of one Raft node. Clones are the same. Changes are durable when they return. All calls block: they are made where that is no harm ([`tidelog_env::blocking`]).
#[derive(Clone)]
pub(super) struct HeldGroups(Arc<Inner>);

struct Inner {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    raft_node: RaftNodeId,
    groups: Mutex<BTreeSet<u32>>,
}

impl HeldGroups {
    /// What is noted in the data directory `dir` for `raft_node`. A directory of before there was such a file has the groups whose logs lie there; what is noted for
    /// another Raft node says nothing of this one.
    ///
    /// # Errors
    /// The disk, or a file that cannot be read.
    pub(super) fn load(
        disk: Arc<dyn Disk>,
        dir: PathBuf,
        raft_node: RaftNodeId,
    ) -> Result<Self, IdentityError> {
        let path = dir.join(FILE);
        let io = |error| IdentityError::Io {
            path: path.clone(),
            error,
        };
        let known = identity::has(disk.as_ref(), &dir, FILE).map_err(io)?;
        let groups = if known {
            read(disk.as_ref(), &path, raft_node)?
        } else {
            let found = found(disk.as_ref(), &dir).map_err(io)?;
            if !found.is_empty() {
                store(disk.as_ref(), &dir, raft_node, &found).map_err(io)?;
            }
            found
        };
        Ok(Self(Arc::new(Inner {
            disk,
            dir,
            raft_node,
            groups: Mutex::new(groups),
        })))
    }

    /// Before the log of `group` is opened.
    ///
    /// # Errors
    /// [`LogError::Lost`]: it was here and is not any more. The disk.
    pub(super) fn check(&self, group: PlacementGroupId) -> Result<(), LogError> {
        let inner = &self.0;
        if !inner.groups.lock().contains(&group.get()) || mutant(Mutant::HeldIgnored) {
            return Ok(());
        }
        let dir = inner.dir.join(GROUPS).join(group.to_string());
        match has_log(inner.disk.as_ref(), &dir) {
            Ok(true) => Ok(()),
            Ok(false) => Err(LogError::Lost {
                dir,
                what: format!("the log was here, as {FILE} says, and none of its files is"),
            }),
            Err(error) => Err(failed("listing", &dir, error)),
        }
    }

    /// The log of `group` was created, or opened. Before anything is promised by it.
    ///
    /// # Errors
    /// The disk.
    pub(super) fn add(&self, group: PlacementGroupId) -> Result<(), LogError> {
        self.change(|groups| groups.insert(group.get()))
    }

    /// Nobody counts on the replica of `group` any more: its files may go.
    ///
    /// # Errors
    /// The disk.
    pub(super) fn remove(&self, group: PlacementGroupId) -> Result<(), LogError> {
        self.change(|groups| groups.remove(&group.get()))
    }

    fn change(&self, change: impl FnOnce(&mut BTreeSet<u32>) -> bool) -> Result<(), LogError> {
        let inner = &self.0;
        let mut groups = inner.groups.lock();
        let mut changed = groups.clone();
        if change(&mut changed) {
            store(inner.disk.as_ref(), &inner.dir, inner.raft_node, &changed)
                .map_err(|error| failed("writing", &inner.dir.join(FILE), error))?;
            *groups = changed;
        }
        Ok(())
    }
}

fn failed(what: &'static str, path: &Path, error: io::Error) -> LogError {
    LogError::Io {
        what,
        path: path.to_owned(),
        source: Arc::new(error),
    }
}

fn read(
    disk: &dyn Disk,
    path: &Path,
    raft_node: RaftNodeId,
) -> Result<BTreeSet<u32>, IdentityError> {
    let bytes = identity::read_small(disk, path)
        .map_err(|error| identity::unreadable(path, error, WHAT_TO_DO))?;
    let damaged = |why: String| IdentityError::Damaged {
        path: path.to_owned(),
        why,
        what_to_do: WHAT_TO_DO,
    };
    let file: File = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
    file.check().map_err(damaged)?;
    if file.raft_node_id == raft_node.get() {
        Ok(file.groups)
    } else {
        Ok(BTreeSet::new())
    }
}

fn store(
    disk: &dyn Disk,
    dir: &Path,
    raft_node: RaftNodeId,
    groups: &BTreeSet<u32>,
) -> io::Result<()> {
    let mut file = File {
        version: VERSION,
        raft_node_id: raft_node.get(),
        groups: groups.clone(),
        crc32c: None,
    };
    file.crc32c = Some(file.sum());
    let mut bytes = serde_json::to_vec(&file).map_err(io::Error::other)?;
    bytes.push(b'\n');
    identity::replace(disk, dir, FILE, &bytes)
}

fn list(disk: &dyn Disk, dir: &Path) -> io::Result<Vec<String>> {
    match disk.list(dir) {
        Ok(entries) => Ok(entries.into_iter().map(|entry| entry.name).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn has_log(disk: &dyn Disk, dir: &Path) -> io::Result<bool> {
    let names = list(disk, dir)?;
    Ok(names.iter().any(|name| name.ends_with(".log")))
}

/// Groups whose logs lie here and are not being deleted.
fn found(disk: &dyn Disk, dir: &Path) -> io::Result<BTreeSet<u32>> {
    let groups = dir.join(GROUPS);
    let names = list(disk, &groups)?;
    let mut found = BTreeSet::new();
    for name in &names {
        // A directory's name is a number; marks have an extension.
        let Ok(group) = name.parse() else {
            continue;
        };
        let going = names.contains(&format!("{name}.dropping"));
        if !going && has_log(disk, &groups.join(name))? {
            found.insert(group);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use tidelog_env::disk::RealDisk;

    const X: RaftNodeId = RaftNodeId::new(11);
    const ONE: PlacementGroupId = PlacementGroupId::new(1);

    fn load(dir: &Path, raft_node: RaftNodeId) -> HeldGroups {
        HeldGroups::load(RealDisk::shared(), dir.to_owned(), raft_node).unwrap()
    }

    fn make_log(dir: &Path, group: u32) -> PathBuf {
        let dir = dir.join(GROUPS).join(group.to_string());
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("1.log"), b"frames").unwrap();
        dir
    }

    fn is_lost(held: &HeldGroups, group: PlacementGroupId) -> bool {
        match held.check(group) {
            Ok(()) => false,
            Err(LogError::Lost { .. }) => true,
            Err(error) => panic!("{error}"),
        }
    }

    /// Proves that a log that was noted and is gone, with its directory or without, is found missing by the next start, and that one that was dropped on purpose, or
    /// never created, is not.
    #[test]
    fn a_log_that_is_gone_is_found_missing() {
        let home = tempfile::tempdir().unwrap();
        let held = load(home.path(), X);
        assert!(!is_lost(&held, ONE), "never here");
        let dir = make_log(home.path(), 1);
        assert!(!is_lost(&load(home.path(), RaftNodeId::new(5)), ONE));
        held.add(ONE).unwrap();
        held.add(ONE).unwrap();
        assert!(!is_lost(&load(home.path(), X), ONE));
        std::fs::remove_file(dir.join("1.log")).unwrap();
        assert!(is_lost(&load(home.path(), X), ONE), "an empty directory");
        std::fs::remove_dir_all(home.path().join(GROUPS)).unwrap();
        let held = load(home.path(), X);
        assert!(is_lost(&held, ONE) && !is_lost(&held, PlacementGroupId::new(2)));
        assert!(!is_lost(&load(home.path(), RaftNodeId::new(12)), ONE));
        held.remove(ONE).unwrap();
        assert!(!is_lost(&held, ONE) && !is_lost(&load(home.path(), X), ONE));
    }

    /// Proves that a crash between creating a log and noting it leaves nothing missing, whichever of both the disk kept.
    #[test]
    fn a_crash_before_it_is_noted() {
        let home = tempfile::tempdir().unwrap();
        let two = PlacementGroupId::new(2);
        make_log(home.path(), 1);
        load(home.path(), X).add(ONE).unwrap();
        let dir = make_log(home.path(), 2);
        assert!(!is_lost(&load(home.path(), X), two));
        std::fs::remove_dir_all(dir).unwrap();
        assert!(!is_lost(&load(home.path(), X), two), "it promised nothing");
    }

    /// Proves that a directory of before there was such a file starts, with what lies in it noted, and that half a log that is being deleted is not.
    #[test]
    fn an_older_directory_is_taken_as_it_is() {
        let home = tempfile::tempdir().unwrap();
        let dir = make_log(home.path(), 1);
        make_log(home.path(), 2);
        std::fs::write(home.path().join("groups/2.dropping"), b"").unwrap();
        std::fs::create_dir(home.path().join("groups/3")).unwrap();
        load(home.path(), X);
        let text = std::fs::read_to_string(home.path().join(FILE)).unwrap();
        assert!(text.contains("\"groups\":[1],"), "{text}");
        std::fs::remove_dir_all(dir).unwrap();
        assert!(is_lost(&load(home.path(), X), ONE));
    }

    /// Proves that the bytes of both versions stay what they are, that the first one is read and written anew by the next change, and that no changed digit of the second one
    /// goes unnoticed: a group less would let a replica begin with nothing.
    #[test]
    fn files_of_both_versions() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(FILE);
        let (first, second) = (
            include_str!("testdata/held-v1.json"),
            include_str!("testdata/held-v2.json"),
        );
        std::fs::write(&path, first).unwrap();
        let held = load(home.path(), X);
        assert!(is_lost(&held, ONE) && is_lost(&held, PlacementGroupId::new(27)));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), first);
        held.add(PlacementGroupId::METADATA).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), second);
        assert!(is_lost(&load(home.path(), X), PlacementGroupId::METADATA));
        for (at, digit) in second.bytes().enumerate() {
            if !digit.is_ascii_digit() {
                continue;
            }
            for other in (b'0'..=b'9').filter(|other| *other != digit) {
                let mut changed = second.as_bytes().to_vec();
                changed[at] = other;
                std::fs::write(&path, changed).unwrap();
                let loaded = HeldGroups::load(RealDisk::shared(), home.path().to_owned(), X);
                assert!(loaded.is_err(), "byte {at} is {}", char::from(other));
            }
        }
    }

    /// Proves that a file that cannot be read is named, and kept.
    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let home = tempfile::tempdir().unwrap();
        let texts = [
            "{",
            r#"{"version":3,"raft_node_id":11,"groups":[]}"#,
            r#"{"version":2,"raft_node_id":11,"groups":[]}"#,
            r#"{"version":1,"raft_node_id":11,"groups":[],"crc32c":1}"#,
        ];
        for text in texts {
            std::fs::write(home.path().join(FILE), text).unwrap();
            let loaded = HeldGroups::load(RealDisk::shared(), home.path().to_owned(), X);
            let error = loaded.err().unwrap().to_string();
            assert!(error.contains(FILE), "{error}");
            assert_eq!(
                std::fs::read_to_string(home.path().join(FILE)).unwrap(),
                text
            );
        }
    }
}
