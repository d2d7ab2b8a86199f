//! Who this data directory belongs to: `<data>/cluster.json`.
//!
//! Owns: making it once, and refusing a directory of another broker.
//! Spec: docs/formats/cluster-json.md

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidelog_env::Random;
use tidelog_env::disk::{Disk, OpenMode};
use tidelog_model::{ClusterId, NodeId, RaftNodeId};
use uuid::Uuid;

const FILE: &str = "cluster.json";
const VERSION: u32 = 1;
/// The file is a few lines; anything larger is not ours.
const BYTES_MAX: u64 = 64 << 10;

/// What the file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster.
    pub cluster: ClusterId,
    /// The broker.
    pub node: NodeId,
    /// Its id as a Raft node, in every group. A broker that lost its disk gets another one.
    pub raft_node: RaftNodeId,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    cluster_id: Uuid,
    node_id: i32,
    raft_node_id: u64,
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
    #[error(
        "{path} cannot be read as an identity ({why}); restore it from a backup, or use an empty data directory"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// It belongs to another broker.
    #[error(
        "data directory {dir} belongs to broker {found}, but node.id is {wanted}: set node.id = {found}, or use another \
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

/// Reads the identity in `dir`, or makes one for broker `node` in a new cluster. Durable when it returns.
///
/// # Errors
/// [`IdentityError`]; nothing was changed, except that after `Io` a new file may or may not be there.
pub(super) fn load_or_create(
    disk: &dyn Disk,
    random: &Arc<dyn Random>,
    dir: &Path,
    node: NodeId,
) -> Result<Identity, IdentityError> {
    let path = dir.join(FILE);
    let io = |error| IdentityError::Io {
        path: path.clone(),
        error,
    };
    let exists = disk
        .list(dir)
        .map_err(io)?
        .iter()
        .any(|entry| entry.name == FILE);
    if exists {
        return check(read(disk, &path)?, dir, &path, node);
    }
    let identity = Identity {
        cluster: ClusterId::new(random.uuid()),
        node,
        // Never reused: random, and never 0.
        raft_node: RaftNodeId::new(random.next_u64() >> 1 | 1),
    };
    write(disk, dir, &path, identity).map_err(io)?;
    Ok(identity)
}

fn read(disk: &dyn Disk, path: &Path) -> Result<File, IdentityError> {
    let io = |error| IdentityError::Io {
        path: path.to_owned(),
        error,
    };
    let damaged = |why: String| IdentityError::Damaged {
        path: path.to_owned(),
        why,
    };
    let file = disk.open(path, OpenMode::Read).map_err(io)?;
    let length = file.length().map_err(io)?;
    if length > BYTES_MAX {
        return Err(damaged(format!("{length} bytes")));
    }
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    file.read_exact_at(&mut bytes, 0).map_err(io)?;
    serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))
}

fn check(file: File, dir: &Path, path: &Path, node: NodeId) -> Result<Identity, IdentityError> {
    if file.version != VERSION {
        let why = format!("version {}, this program writes {VERSION}", file.version);
        return Err(IdentityError::Damaged {
            path: path.to_owned(),
            why,
        });
    }
    let found = NodeId::new(file.node_id);
    if found != node {
        return Err(IdentityError::OtherNode {
            dir: dir.to_owned(),
            found,
            wanted: node,
        });
    }
    let cluster = ClusterId::new(file.cluster_id);
    Ok(Identity {
        cluster,
        node,
        raft_node: RaftNodeId::new(file.raft_node_id),
    })
}

fn write(disk: &dyn Disk, dir: &Path, path: &Path, identity: Identity) -> io::Result<()> {
    let file = File {
        version: VERSION,
        cluster_id: identity.cluster.get(),
        node_id: identity.node.get(),
        raft_node_id: identity.raft_node.get(),
    };
    let mut bytes = serde_json::to_vec_pretty(&file).map_err(io::Error::other)?;
    bytes.push(b'\n');
    let temporary = dir.join("cluster.json.tmp");
    if disk
        .list(dir)?
        .iter()
        .any(|entry| entry.name == "cluster.json.tmp")
    {
        disk.remove(&temporary)?;
    }
    let out = disk.open(&temporary, OpenMode::CreateNew)?;
    out.write_all_at(&[IoSlice::new(&bytes)], 0)?;
    out.sync_data()?;
    disk.rename(&temporary, path)?;
    disk.sync_dir(dir)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;
    use tidelog_env::SystemRandom;
    use tidelog_env::disk::RealDisk;

    /// Proves that the identity is made once, stays, and keeps another broker out.
    #[test]
    fn made_once_and_checked() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::shared();
        let random = SystemRandom::seeded(1);
        let first = load_or_create(disk.as_ref(), &random, dir.path(), NodeId::new(3)).unwrap();
        assert_eq!(
            load_or_create(disk.as_ref(), &random, dir.path(), NodeId::new(3)).unwrap(),
            first
        );
        let error = load_or_create(disk.as_ref(), &random, dir.path(), NodeId::new(4))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("belongs to broker 3") && error.contains("set node.id = 3"),
            "{error}"
        );
    }

    /// Proves that a damaged file is named and never replaced.
    #[test]
    fn damage_is_named_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        std::fs::write(&path, b"{").unwrap();
        let disk = RealDisk::shared();
        let error = load_or_create(
            disk.as_ref(),
            &SystemRandom::seeded(1),
            dir.path(),
            NodeId::new(3),
        )
        .unwrap_err();
        assert!(error.to_string().contains("cluster.json"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"{");
    }
}
