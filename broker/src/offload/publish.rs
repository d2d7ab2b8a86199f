//! Publish: puts the manifest of an uploaded cut into the chain of published snapshots.
//!
//! Owns: the choice of the sequence number, and what a key that is taken means.
//! Not here: the manifest's bytes (`partition::image`), the lost reply of one call (`tidelog_tiering::store`).

use super::error::OffloadError;
use crate::partition::{Frozen, image};
use tidelog_env::{Mutant, mutant};
use tidelog_model::{ClusterId, PlacementGroupId};
use tidelog_tiering::store::{PutOutcome, TierStore};
use tidelog_tiering::{key, manifest};

/// Puts the manifest of `frozen` under the first free sequence number after `published`; returns that number.
///
/// A number may be taken by a manifest that was put but never recorded: by this broker before a crash (the same bytes,
/// then it is ours), or by a leader that was deposed in between (an older or equal state of the same group: its number
/// is passed over). Anything else is refused: the prefix is shared with something it must not be shared with.
///
/// # Errors
/// [`OffloadError::Store`], [`OffloadError::ForeignManifest`].
pub(super) async fn publish(
    store: &TierStore,
    cluster: ClusterId,
    group: PlacementGroupId,
    published: u64,
    frozen: &Frozen,
) -> Result<u64, OffloadError> {
    let bytes = manifest::encode(&image::manifest_of(cluster, group, frozen));
    if mutant(Mutant::ManifestSequenceReused) {
        let key = key::snapshot(group, published.max(1));
        store.put_object(&key, vec![bytes]).await?;
        return Ok(published.max(1));
    }
    let mut sequence = published + 1;
    loop {
        let key = key::snapshot(group, sequence);
        match store.put_if_absent(&key, bytes.clone()).await? {
            PutOutcome::Created => return Ok(sequence),
            PutOutcome::Exists => {
                let foreign = |reason: String| OffloadError::ForeignManifest {
                    key: key.as_str().to_owned(),
                    reason,
                };
                let taken = store.get(&key).await?;
                if taken == bytes {
                    return Ok(sequence);
                }
                let other = manifest::decode(&taken).map_err(|error| foreign(error.to_string()))?;
                if other.cluster != cluster || other.group != group {
                    return Err(foreign(format!(
                        "it is of cluster {}, group {}",
                        other.cluster, other.group
                    )));
                }
                if other.last.index > frozen.at.index {
                    return Err(foreign(format!(
                        "it holds log index {}, this group is at {}",
                        other.last, frozen.at
                    )));
                }
                sequence += 1;
            }
        }
    }
}
