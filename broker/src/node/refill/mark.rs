//! What a damaged broker leaves in its data directory, so that each start knows how far it is.
//!
//! Owns: `<data>/damaged.json`, the directories set aside, the order in which one Raft node gives way to the next.
//! Not here: finding damage (`log`), waiting to be taken in (`formation`).
//! Spec: docs/protocols/refill.md (steps 1, 5 to 8), docs/formats/cluster-json.md

use super::super::identity::{self, Directory, IdentityError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use tidelog_env::disk::Disk;
use tidelog_env::{CrashPoint, crash_point};
use tidelog_model::{PlacementGroupId, RaftNodeId};

const FILE: &str = "damaged.json";
const VERSION: u32 = 2;
/// The first version, which names no groups: any may be damaged.
const UNNAMED: u32 = 1;
/// What was found, in words, at most.
const WHAT_BYTES_MAX: usize = 1024;
const GROUPS: &str = "groups";
const WHAT_TO_DO: &str = "it says as whom this damaged broker asks to be taken in, and it may have been already. Do not just delete it: start the broker with an empty data directory, \
     keep this one, and run `tidelog cluster add` with its node.id, which refuses while this one has anything that the others lack. If it refuses, restore the file from a \
     backup, or, if `tidelog cluster status --output json` still shows the raft_node_id of cluster.json for this broker, delete it: damage that a start finds is found again";
const SET_ASIDE: &str = "set-aside-";
/// Directories set aside at most: a disk that was damaged so often is broken, and each takes its room.
const SET_ASIDE_MAX: usize = 4;

/// A broker that wants to begin anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::node) struct Mark {
    /// Whose files are damaged.
    pub(in crate::node) raft_node: RaftNodeId,
    /// Who it wants to be.
    pub(in crate::node) next: RaftNodeId,
    /// In which groups damage was found. `None`: any may be damaged.
    pub(in crate::node) groups: Option<BTreeSet<PlacementGroupId>>,
    /// What was found.
    pub(in crate::node) what: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    raft_node_id: u64,
    next_raft_node_id: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    groups: Option<BTreeSet<u32>>,
    what: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    crc32c: Option<u32>,
}

impl File {
    /// CRC-32C of the numbers as text: `2 11 12 1,5`; `2 11 12` without groups.
    fn sum(&self) -> u32 {
        let mut text = format!(
            "{} {} {}",
            self.version, self.raft_node_id, self.next_raft_node_id
        );
        if let Some(groups) = &self.groups {
            let groups: Vec<String> = groups.iter().map(u32::to_string).collect();
            text += &format!(" {}", groups.join(","));
        }
        crc32c::crc32c(text.as_bytes())
    }

    fn check(&self) -> Result<(), String> {
        match (self.version, self.crc32c) {
            (UNNAMED, None) if self.groups.is_none() => Ok(()),
            (VERSION, Some(sum)) if sum == self.sum() => Ok(()),
            (UNNAMED | VERSION, _) => Err("its checksum is wrong".to_owned()),
            (version, _) => Err(format!("version {version}, this program writes {VERSION}")),
        }
    }
}

/// The words, as far as there is room for them.
fn cut(what: &str) -> String {
    let end = (0..=WHAT_BYTES_MAX.min(what.len())).rev();
    let end = { end }.find(|at| what.is_char_boundary(*at));
    what.get(..end.unwrap_or(0)).unwrap_or_default().to_owned()
}

impl Mark {
    /// Of damage that was found in `group`.
    pub(in crate::node) fn new(
        raft_node: RaftNodeId,
        next: RaftNodeId,
        group: PlacementGroupId,
        what: &str,
    ) -> Self {
        Self {
            raft_node,
            next,
            groups: Some(BTreeSet::from([group])),
            what: cut(what),
        }
    }

    /// Whether it says that `group` is damaged, or may be.
    pub(super) fn names(&self, group: PlacementGroupId) -> bool {
        let groups = self.groups.as_ref();
        groups.is_none_or(|groups| groups.contains(&group))
    }

    /// With damage in one more group: the same wish.
    pub(in crate::node) fn with(mut self, group: PlacementGroupId, what: &str) -> Self {
        if let Some(groups) = &mut self.groups {
            groups.insert(group);
        }
        self.what = cut(&format!("{}; {what}", self.what));
        self
    }

    /// The groups without which the broker may run as the Raft node that it was. `None`: it may run none.
    pub(in crate::node) fn withheld(&self) -> Option<&BTreeSet<PlacementGroupId>> {
        let groups = self.groups.as_ref();
        groups.filter(|groups| !groups.is_empty() && !groups.contains(&PlacementGroupId::METADATA))
    }

    /// The mark in `dir`, if there is one.
    ///
    /// # Errors
    /// It cannot be read.
    pub(in crate::node) fn load(
        disk: &dyn Disk,
        dir: &Path,
    ) -> Result<Option<Self>, IdentityError> {
        let path = dir.join(FILE);
        let io = |error| IdentityError::Io {
            path: path.clone(),
            error,
        };
        if !identity::has(disk, dir, FILE).map_err(io)? {
            return Ok(None);
        }
        let bytes = identity::read_small(disk, &path)
            .map_err(|error| identity::unreadable(&path, error, WHAT_TO_DO))?;
        let damaged = |why: String| IdentityError::Damaged {
            path: path.clone(),
            why,
            what_to_do: WHAT_TO_DO,
        };
        let file: File =
            serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        file.check().map_err(damaged)?;
        let groups = |ids: BTreeSet<u32>| ids.into_iter().map(PlacementGroupId::new).collect();
        Ok(Some(Self {
            raft_node: RaftNodeId::new(file.raft_node_id),
            next: RaftNodeId::new(file.next_raft_node_id),
            groups: file.groups.map(groups),
            what: file.what,
        }))
    }

    /// Step 1. Durable when it returns.
    pub(super) fn store(&self, disk: &dyn Disk, dir: &Path) -> io::Result<()> {
        let groups = self.groups.as_ref();
        let mut file = File {
            version: VERSION,
            raft_node_id: self.raft_node.get(),
            next_raft_node_id: self.next.get(),
            groups: groups.map(|groups| groups.iter().map(|group| group.get()).collect()),
            what: self.what.clone(),
            crc32c: None,
        };
        file.crc32c = Some(file.sum());
        let mut bytes = serde_json::to_vec_pretty(&file).map_err(io::Error::other)?;
        bytes.push(b'\n');
        identity::replace(disk, dir, FILE, &bytes)
    }

    /// Steps 5 to 8: the directory, which is `old`'s, is the next Raft node's, and empty. Every step may be repeated.
    ///
    /// # Errors
    /// The disk; the mark is still there, and [`resume`] or another call goes on.
    pub(in crate::node) fn begin_anew(
        &self,
        disk: &dyn Disk,
        dir: &Path,
        old: &Directory,
    ) -> Result<(), IdentityError> {
        let groups = dir.join(GROUPS);
        disk.create_dir_all(&groups)
            .map_err(|error| IdentityError::Io {
                path: groups.clone(),
                error,
            })?;
        identity::store(disk, &groups, old)?;
        crash_point(CrashPoint::RefillOldNamed);
        let new = Directory {
            raft_node: self.next,
            ..old.clone()
        };
        identity::store(disk, dir, &new)?;
        crash_point(CrashPoint::RefillSwitched);
        self.finish(disk, dir)
    }

    /// Steps 7 and 8.
    fn finish(&self, disk: &dyn Disk, dir: &Path) -> Result<(), IdentityError> {
        let aside = format!("{SET_ASIDE}{}", self.raft_node);
        let set_aside = || {
            if !identity::has(disk, dir, GROUPS)? {
                return Ok(());
            }
            if identity::has(disk, dir, &aside)? {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            disk.rename(&dir.join(GROUPS), &dir.join(&aside))?;
            crash_point(CrashPoint::RefillRenamed);
            disk.sync_dir(dir)
        };
        set_aside().map_err(|error| IdentityError::Io {
            path: dir.join(&aside),
            error,
        })?;
        tracing::warn!(
            "the damaged files are set aside in {}: they are not used any more and may be deleted",
            dir.join(&aside).display()
        );
        crash_point(CrashPoint::RefillSetAside);
        remove(disk, dir)
    }
}

/// Forgets the mark, durably.
pub(super) fn remove(disk: &dyn Disk, dir: &Path) -> Result<(), IdentityError> {
    let path = dir.join(FILE);
    let removed = disk.remove(&path).and_then(|()| disk.sync_dir(dir));
    removed.map_err(|error| IdentityError::Io { path, error })
}

/// What a start does first: goes on where a crash interrupted steps 6 to 8, and forgets a mark that says nothing any more. The mark of
/// `directory`'s own Raft node, if there is one.
///
/// # Errors
/// The disk, or a mark that cannot be read.
pub(in crate::node) fn resume(
    disk: &dyn Disk,
    dir: &Path,
    directory: &Directory,
) -> Result<Option<Mark>, IdentityError> {
    let Some(mark) = Mark::load(disk, dir)? else {
        return Ok(None);
    };
    if mark.raft_node == directory.raft_node {
        return Ok(Some(mark));
    }
    if mark.next == directory.raft_node {
        mark.finish(disk, dir)?;
    } else {
        remove(disk, dir)?;
    }
    Ok(None)
}

/// Whether another directory may be set aside.
pub(super) fn has_room(disk: &dyn Disk, dir: &Path) -> io::Result<bool> {
    let entries = disk.list(dir)?;
    let aside = entries
        .iter()
        .filter(|entry| entry.name.starts_with(SET_ASIDE));
    Ok(aside.count() < SET_ASIDE_MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::super::super::formation::Founding;
    use super::*;
    use std::collections::BTreeSet;
    use tidelog_env::SystemRandom;
    use tidelog_env::disk::RealDisk;
    use tidelog_model::NodeId;
    use uuid::Uuid;

    const X: RaftNodeId = RaftNodeId::new(11);
    const Y: RaftNodeId = RaftNodeId::new(12);
    const ONE: PlacementGroupId = PlacementGroupId::new(1);

    struct Home(tempfile::TempDir);

    impl Home {
        /// A member's directory as it is after step 1.
        fn new() -> (Self, Directory, Mark) {
            let home = Self(tempfile::tempdir().unwrap());
            let old = Directory {
                node: NodeId::new(3),
                raft_node: X,
                founding: Some(Founding {
                    cluster_id: Uuid::from_u128(7),
                    name: "t".to_owned(),
                    members: Vec::new(),
                }),
            };
            let disk = RealDisk::shared();
            identity::store(disk.as_ref(), home.dir(), &old).unwrap();
            std::fs::create_dir_all(home.dir().join("groups/1")).unwrap();
            std::fs::write(home.dir().join("groups/1/log"), b"damaged").unwrap();
            let mark = Mark::new(X, Y, ONE, "a file");
            mark.store(disk.as_ref(), home.dir()).unwrap();
            (home, old, mark)
        }

        fn dir(&self) -> &Path {
            self.0.path()
        }

        /// What the next start makes of it.
        fn resume(&self) -> (RaftNodeId, Option<Mark>) {
            let (disk, random) = (RealDisk::shared(), SystemRandom::seeded(1));
            let node = NodeId::new(3);
            let directory =
                identity::load_or_create(disk.as_ref(), &random, self.dir(), node, None).unwrap();
            let mark = resume(disk.as_ref(), self.dir(), &directory).unwrap();
            (directory.raft_node, mark)
        }

        fn names(&self) -> BTreeSet<String> {
            let entries = std::fs::read_dir(self.dir()).unwrap();
            let name = |entry: std::io::Result<std::fs::DirEntry>| {
                entry.unwrap().file_name().into_string().unwrap()
            };
            entries.map(name).collect()
        }

        fn begun_anew(&self) {
            assert_eq!(self.resume(), (Y, None));
            let names = ["cluster.json", "set-aside-11"].map(str::to_owned);
            assert_eq!(self.names(), BTreeSet::from(names));
            let aside = self.dir().join("set-aside-11");
            assert_eq!(std::fs::read(aside.join("1/log")).unwrap(), b"damaged");
            let kept = std::fs::read_to_string(aside.join("cluster.json")).unwrap();
            assert!(kept.contains("\"raft_node_id\": 11"), "{kept}");
        }
    }

    /// Proves what the start after a crash finds behind each step, and that it goes on: as the damaged one before the switch, as the new one after it, never
    /// with the old one's files under the new one's name, nor without them under the old one's.
    #[test]
    fn a_crash_after_each_step() {
        let disk = RealDisk::shared();
        let (home, old, mark) = Home::new();
        assert_eq!(home.resume(), (X, Some(mark.clone())), "1");
        assert_eq!(home.resume(), (X, Some(mark.clone())), "again");
        identity::store(disk.as_ref(), &home.dir().join(GROUPS), &old).unwrap();
        assert_eq!(home.resume(), (X, Some(mark.clone())), "5");
        let new = Directory {
            raft_node: Y,
            ..old.clone()
        };
        identity::store(disk.as_ref(), home.dir(), &new).unwrap();
        home.begun_anew();

        let (home, old, mark) = Home::new();
        identity::store(disk.as_ref(), &home.dir().join(GROUPS), &old).unwrap();
        identity::store(disk.as_ref(), home.dir(), &new).unwrap();
        std::fs::rename(home.dir().join(GROUPS), home.dir().join("set-aside-11")).unwrap();
        home.begun_anew();
        mark.store(disk.as_ref(), home.dir()).unwrap();
        home.begun_anew();

        let (home, old, mark) = Home::new();
        mark.begin_anew(disk.as_ref(), home.dir(), &old).unwrap();
        home.begun_anew();
    }

    /// Proves that nothing is set aside over something else, that a mark of another directory is forgotten, and that one that cannot be read is named and kept.
    #[test]
    fn nothing_is_replaced() {
        let disk = RealDisk::shared();
        let (home, old, mark) = Home::new();
        std::fs::create_dir(home.dir().join("set-aside-11")).unwrap();
        let error = mark.begin_anew(disk.as_ref(), home.dir(), &old);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("set-aside-11"), "{error}");
        assert!(home.dir().join("groups/1/log").exists());

        let (home, _, _) = Home::new();
        let other = Mark::new(RaftNodeId::new(21), RaftNodeId::new(22), ONE, "x");
        other.store(disk.as_ref(), home.dir()).unwrap();
        assert_eq!(home.resume(), (X, None));
        assert!(!home.dir().join(FILE).exists() && home.dir().join(GROUPS).exists());

        std::fs::write(home.dir().join(FILE), b"{").unwrap();
        let error = Mark::load(disk.as_ref(), home.dir()).unwrap_err();
        assert!(error.to_string().contains(FILE), "{error}");
    }

    /// Proves that the words are bounded, wherever a character ends, and that so many directories and no more are set aside.
    #[test]
    fn limits() {
        let mark = Mark::new(X, Y, ONE, &"ä".repeat(1000));
        assert_eq!(mark.what.len(), 1024);
        assert_eq!(mark.with(ONE, "more").what.len(), 1024);
        let (home, _, _) = Home::new();
        let room = || has_room(RealDisk::shared().as_ref(), home.dir()).unwrap();
        for id in 0..SET_ASIDE_MAX {
            assert!(room());
            std::fs::create_dir(home.dir().join(format!("set-aside-{id}"))).unwrap();
        }
        assert!(!room());
    }

    /// Proves which groups may run: none where metadata's is damaged, or it is not known which are.
    #[test]
    fn what_is_withheld() {
        let mark = Mark::new(X, Y, ONE, "a");
        assert!(mark.names(ONE) && !mark.names(PlacementGroupId::new(5)));
        let more = mark.clone().with(PlacementGroupId::new(5), "b");
        let both = BTreeSet::from([1, 5].map(PlacementGroupId::new));
        assert_eq!(more.withheld(), Some(&both));
        assert_eq!((more.next, more.what.as_str()), (Y, "a; b"));
        let metadata = more.with(PlacementGroupId::METADATA, "c");
        assert_eq!(metadata.withheld(), None);
        let unknown = Mark {
            groups: None,
            ..mark
        };
        assert_eq!(unknown.withheld(), None);
        assert!(unknown.names(ONE) && unknown.clone().with(ONE, "d").groups.is_none());
    }

    /// Proves that the bytes of both versions stay what they are, that the first one names no group, and that no changed digit of the second one goes unnoticed: a group
    /// less would be opened, and vote without what it had acknowledged.
    #[test]
    fn files_of_both_versions() {
        let home = tempfile::tempdir().unwrap();
        let (disk, path) = (RealDisk::shared(), home.path().join(FILE));
        let load = || Mark::load(disk.as_ref(), home.path());
        std::fs::write(&path, include_str!("../testdata/damaged-v1.json")).unwrap();
        let old = load().unwrap().unwrap();
        assert_eq!((old.raft_node, old.next, old.groups), (X, Y, None));
        let second = include_str!("../testdata/damaged-v2.json");
        let mark = Mark::new(X, Y, ONE, "a file").with(PlacementGroupId::new(27), "a bit");
        mark.store(disk.as_ref(), home.path()).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), second);
        assert_eq!(load().unwrap(), Some(mark));
        for (at, digit) in second.bytes().enumerate() {
            if !digit.is_ascii_digit() {
                continue;
            }
            for other in (b'0'..=b'9').filter(|other| *other != digit) {
                let mut changed = second.as_bytes().to_vec();
                changed[at] = other;
                std::fs::write(&path, changed).unwrap();
                assert!(load().is_err(), "byte {at} is {}", char::from(other));
            }
        }
        let none = Mark {
            groups: None,
            ..Mark::new(X, Y, ONE, "a")
        };
        none.store(disk.as_ref(), home.path()).unwrap();
        assert_eq!(load().unwrap(), Some(none));
    }
}
