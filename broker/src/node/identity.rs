//! Who this data directory belongs to: `<data>/cluster.json`.
//!
//! Owns: the broker's Raft node id, made once; the founding record of its cluster; refusing a directory of another broker.
//! Not here: how a cluster of several brokers is formed (`formation`).
//! Spec: docs/formats/cluster-json.md, docs/protocols/cluster-formation.md

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::formation::Founding;
use serde::{Deserialize, Serialize};
use tidelog_env::disk::{Disk, OpenMode};
use tidelog_env::{CrashPoint, Mutant, Random, crash_point, mutant};
use tidelog_model::{ClusterId, NodeId, RaftNodeId};
use uuid::Uuid;

const FILE: &str = "cluster.json";
/// What a data directory has only after its file was made.
const OF_A_RAFT_NODE: [&str; 3] = ["groups", "held.json", "damaged.json"];
const VERSION: u32 = 2;
/// The file is a few lines; anything larger is not ours.
const BYTES_MAX: u64 = 64 << 10;
const WHAT_TO_DO: &str = "it says whose this data directory is: restore it from a backup, or keep this directory, and start the broker with an empty one; in a cluster of \
     several run `tidelog cluster add` with its node.id then";

/// Who a started broker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster.
    pub cluster: ClusterId,
    /// The broker.
    pub node: NodeId,
    /// Its id as a Raft node, in every group. A broker that lost its disk gets another one.
    pub raft_node: RaftNodeId,
}

/// What the file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Directory {
    /// The broker.
    pub(super) node: NodeId,
    /// Its id as a Raft node.
    pub(super) raft_node: RaftNodeId,
    /// Its cluster, once it is in one.
    pub(super) founding: Option<Founding>,
}

#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileV1 {
    #[serde(rename = "version")]
    _version: u32,
    cluster_id: Uuid,
    node_id: i32,
    raft_node_id: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    node_id: i32,
    raft_node_id: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cluster: Option<Founding>,
}

/// Why the directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The disk.
    #[error("{path}: {error}")]
    Io {
        /// What was touched.
        path: PathBuf,
        /// Why it failed.
        error: io::Error,
    },
    /// Not what this version writes.
    #[error("{path} cannot be read ({why}); {what_to_do}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
        /// Another thing for each file.
        what_to_do: &'static str,
    },
    /// It belongs to another broker.
    #[error(
        "data directory {dir} belongs to broker {found}, but node.id is {wanted}: set node.id = {found}; broker {wanted} needs its own \
         data directory"
    )]
    OtherNode {
        /// The directory.
        dir: PathBuf,
        /// Whose it is.
        found: NodeId,
        /// Who asks.
        wanted: NodeId,
    },
}

/// A Raft node that there never was: random, and never 0.
pub(super) fn new_raft_node(random: &dyn Random) -> RaftNodeId {
    RaftNodeId::new(random.next_u64() >> 1 | 1)
}

/// Reads the file in `dir`, or makes one for broker `node`: with a new cluster of this broker alone called `alone`, or in no cluster.
/// Durable when it returns.
///
/// # Errors
/// [`IdentityError`]; nothing was changed, except that after `Io` a new file may or may not be there.
pub(super) fn load_or_create(
    disk: &dyn Disk,
    random: &Arc<dyn Random>,
    dir: &Path,
    node: NodeId,
    alone: Option<&str>,
) -> Result<Directory, IdentityError> {
    let path = dir.join(FILE);
    let io = |error| IdentityError::Io {
        path: path.clone(),
        error,
    };
    let found = if has(disk, dir, FILE).map_err(io)? {
        let found = read(disk, &path)?;
        if found.node != node {
            return Err(IdentityError::OtherNode {
                dir: dir.to_owned(),
                found: found.node,
                wanted: node,
            });
        }
        Some(found)
    } else {
        refuse_without_file(disk, dir)?;
        None
    };
    let mut directory = match found {
        // A broker that waited for seeds and is alone now founds a cluster of its own.
        Some(found) if found.founding.is_some() || alone.is_none() => return Ok(found),
        Some(found) => found,
        None => Directory {
            node,
            raft_node: new_raft_node(random.as_ref()),
            founding: None,
        },
    };
    directory.founding = alone.map(|name| Founding {
        cluster_id: random.uuid(),
        name: name.to_owned(),
        members: Vec::new(),
    });
    store(disk, dir, &directory)?;
    Ok(directory)
}

/// Refuses a directory that has lost its file: the file is made before anything else is, and what lies beside it is another Raft node's than one that would be made now.
fn refuse_without_file(disk: &dyn Disk, dir: &Path) -> Result<(), IdentityError> {
    for name in OF_A_RAFT_NODE {
        let path = dir.join(name);
        if has(disk, dir, name).map_err(|error| IdentityError::Io { path, error })? {
            return Err(IdentityError::Damaged {
                path: dir.join(FILE),
                why: format!("it is missing, and {name} is there"),
                what_to_do: WHAT_TO_DO,
            });
        }
    }
    Ok(())
}

/// The cluster that `dir` belongs to, if it belongs to one. Nothing is made or changed.
///
/// # Errors
/// [`IdentityError`].
pub(super) fn cluster_of(disk: &dyn Disk, dir: &Path) -> Result<Option<ClusterId>, IdentityError> {
    let path = dir.join(FILE);
    match read_small(disk, &path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(&path, error, WHAT_TO_DO)),
        Ok(bytes) => match decode(&bytes) {
            Ok(found) => Ok(found.founding.as_ref().map(Founding::cluster)),
            Err(why) => Err(IdentityError::Damaged {
                path,
                why,
                what_to_do: WHAT_TO_DO,
            }),
        },
    }
}

fn read(disk: &dyn Disk, path: &Path) -> Result<Directory, IdentityError> {
    let bytes = read_small(disk, path).map_err(|error| unreadable(path, error, WHAT_TO_DO))?;
    decode(&bytes).map_err(|why| IdentityError::Damaged {
        path: path.to_owned(),
        why,
        what_to_do: WHAT_TO_DO,
    })
}

/// What an error of [`read_small`] means, for a file about which this is to be done.
pub(super) fn unreadable(path: &Path, error: io::Error, what_to_do: &'static str) -> IdentityError {
    let path = path.to_owned();
    match error.kind() {
        io::ErrorKind::InvalidData => IdentityError::Damaged {
            path,
            why: error.to_string(),
            what_to_do,
        },
        _ => IdentityError::Io { path, error },
    }
}

/// The file's bytes, of this version or an older one; what is wrong with them.
fn decode(bytes: &[u8]) -> Result<Directory, String> {
    let wrong = |error: serde_json::Error| error.to_string();
    let Versioned { version } = serde_json::from_slice(bytes).map_err(wrong)?;
    match version {
        1 => {
            let file: FileV1 = serde_json::from_slice(bytes).map_err(wrong)?;
            Ok(Directory {
                node: NodeId::new(file.node_id),
                raft_node: RaftNodeId::new(file.raft_node_id),
                founding: Some(Founding {
                    cluster_id: file.cluster_id,
                    name: String::new(),
                    members: Vec::new(),
                }),
            })
        }
        VERSION => {
            let file: File = serde_json::from_slice(bytes).map_err(wrong)?;
            Ok(Directory {
                node: NodeId::new(file.node_id),
                raft_node: RaftNodeId::new(file.raft_node_id),
                founding: file.cluster,
            })
        }
        version => Err(format!("version {version}, this program writes {VERSION}")),
    }
}

fn encode(directory: &Directory) -> io::Result<Vec<u8>> {
    let file = File {
        version: VERSION,
        node_id: directory.node.get(),
        raft_node_id: directory.raft_node.get(),
        cluster: directory.founding.clone(),
    };
    let mut bytes = serde_json::to_vec_pretty(&file).map_err(io::Error::other)?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Makes the file say this. Durable when it returns; a crash leaves the old file or the new one.
///
/// # Errors
/// [`IdentityError::Io`].
pub(super) fn store(
    disk: &dyn Disk,
    dir: &Path,
    directory: &Directory,
) -> Result<(), IdentityError> {
    let write = || replace(disk, dir, FILE, &encode(directory)?);
    write().map_err(|error| IdentityError::Io {
        path: dir.join(FILE),
        error,
    })
}

/// Makes the file `name` of `dir` these bytes. Durable when it returns; a crash leaves the old file, or none, or the new one.
pub(super) fn replace(disk: &dyn Disk, dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let temporary = format!("{name}.tmp");
    let path = dir.join(&temporary);
    if has(disk, dir, &temporary)? {
        disk.remove(&path)?;
    }
    let out = disk.open(&path, OpenMode::CreateNew)?;
    out.write_all_at(&[IoSlice::new(bytes)], 0)?;
    crash_point(CrashPoint::RecordWritten);
    if !mutant(Mutant::RecordNotSynced) {
        out.sync_data()?;
    }
    crash_point(CrashPoint::RecordSynced);
    disk.rename(&path, &dir.join(name))?;
    crash_point(CrashPoint::RecordRenamed);
    disk.sync_dir(dir)
}

/// Whether `dir` has an entry `name`.
pub(super) fn has(disk: &dyn Disk, dir: &Path, name: &str) -> io::Result<bool> {
    Ok(disk.list(dir)?.iter().any(|entry| entry.name == name))
}

/// The bytes of a small file; one of more than 64 KiB is not ours.
pub(super) fn read_small(disk: &dyn Disk, path: &Path) -> io::Result<Vec<u8>> {
    let file = disk.open(path, OpenMode::Read)?;
    let length = file.length()?;
    if length > BYTES_MAX {
        let what = format!("{length} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::super::formation::MemberRecord;
    use super::*;
    use tidelog_env::SystemRandom;
    use tidelog_env::disk::RealDisk;

    fn load(dir: &Path, node: i32, alone: Option<&str>) -> Result<Directory, IdentityError> {
        let disk = RealDisk::shared();
        let random = SystemRandom::seeded(1);
        load_or_create(disk.as_ref(), &random, dir, NodeId::new(node), alone)
    }

    /// Proves that the identity is made once, stays, and keeps another broker out.
    #[test]
    fn made_once_and_checked() {
        let dir = tempfile::tempdir().unwrap();
        let first = load(dir.path(), 3, Some("t")).unwrap();
        assert_eq!(load(dir.path(), 3, Some("t")).unwrap(), first);
        let error = load(dir.path(), 4, Some("t")).unwrap_err().to_string();
        assert!(
            error.contains("belongs to broker 3") && error.contains("set node.id = 3"),
            "{error}"
        );
    }

    /// Proves that a broker with seeds has a Raft node id before it has a cluster, and keeps it when it joins.
    #[test]
    fn the_raft_node_id_comes_before_the_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let mut directory = load(dir.path(), 3, None).unwrap();
        assert_eq!(directory.founding, None);
        assert_eq!(load(dir.path(), 3, None).unwrap(), directory);
        directory.founding = Some(Founding {
            cluster_id: Uuid::from_u128(1),
            name: "t".to_owned(),
            members: Vec::new(),
        });
        store(RealDisk::shared().as_ref(), dir.path(), &directory).unwrap();
        assert_eq!(load(dir.path(), 3, None).unwrap(), directory);
    }

    /// Proves that both versions of the file are read, and that ours is written as it was.
    #[test]
    fn golden() {
        let old = decode(include_bytes!("testdata/cluster-v1.json")).unwrap();
        let cluster_id = Uuid::parse_str("6ba7b810-9dad-11d1-80b4-00c04fd430c8").unwrap();
        assert_eq!((old.node.get(), old.raft_node.get()), (3, 77));
        assert_eq!(old.founding.unwrap().cluster_id, cluster_id);
        let member = |broker_id, raft_node_id, peer: &str| MemberRecord {
            broker_id,
            raft_node_id,
            peer: peer.to_owned(),
        };
        let directory = Directory {
            node: NodeId::new(3),
            raft_node: RaftNodeId::new(77),
            founding: Some(Founding {
                cluster_id,
                name: "t".to_owned(),
                members: vec![member(1, 11, "a:9192"), member(3, 77, "b:9192")],
            }),
        };
        let golden = include_bytes!("testdata/cluster-v2.json");
        assert_eq!(decode(golden).unwrap(), directory);
        assert_eq!(
            String::from_utf8(encode(&directory).unwrap()).unwrap(),
            std::str::from_utf8(golden).unwrap()
        );
        assert!(
            decode(b"{\"version\":3}")
                .unwrap_err()
                .contains("version 3")
        );
    }

    /// Proves that a directory which has lost its file, and has anything of a Raft node, gets no new identity over it: the node that it was would count as gone, and be replaced.
    #[test]
    fn no_new_identity_over_what_is_there() {
        for name in OF_A_RAFT_NODE {
            let dir = tempfile::tempdir().unwrap();
            let first = load(dir.path(), 3, None).unwrap();
            let (file, aside) = (dir.path().join(FILE), dir.path().join("aside"));
            std::fs::rename(&file, &aside).unwrap();
            std::fs::create_dir(dir.path().join(name)).unwrap();
            for alone in [None, Some("t")] {
                let error = load(dir.path(), 3, alone).unwrap_err().to_string();
                let words = format!("it is missing, and {name} is there");
                assert!(
                    error.contains(&words) && error.contains("restore it"),
                    "{error}"
                );
                assert!(!file.exists());
            }
            std::fs::rename(&aside, &file).unwrap();
            assert_eq!(load(dir.path(), 3, None).unwrap(), first);
        }
    }

    /// Proves that a damaged file is named and never replaced.
    #[test]
    fn damage_is_named_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        std::fs::write(&path, b"{").unwrap();
        let error = load(dir.path(), 3, None).unwrap_err();
        assert!(error.to_string().contains("cluster.json"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"{");
    }
}
