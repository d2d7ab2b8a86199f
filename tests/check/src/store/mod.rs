//! What lies in the object store, read without any code of the broker's: manifests and the objects that they name.
//!
//! Owns: keys, the readers of manifests and batches, the rules of a whole store.
//! Not here: getting objects (whoever owns the world), what is on disks (`copies`).
//! Spec: docs/formats/object-keys.md, docs/formats/group-manifest.md, docs/formats/segment-object.md

mod batch;
mod judge;
mod manifest;
mod read;
#[cfg(test)]
mod tests;

pub use judge::{Asked, InOrder, judge};
pub use manifest::{Manifest, PartitionState, Segment};

/// Which manifest a key names: the placement group and the sequence number. `None`: it names something else.
#[must_use]
pub fn manifest_key(key: &str) -> Option<(u32, u64)> {
    let (_, rest) = key.split_once("/snap/")?;
    let (group, sequence) = rest.strip_suffix(".snap")?.split_once('/')?;
    let digits = sequence.len() == 20;
    digits.then_some((group.parse().ok()?, sequence.parse().ok()?))
}

/// What is in front of `/snap/` or `/data/` in the keys of the cluster of this manifest.
#[must_use]
pub fn root(manifest_key: &str) -> &str {
    manifest_key
        .split_once("/snap/")
        .map_or("", |(root, _)| root)
}

impl Segment {
    /// The key of its object.
    #[must_use]
    pub fn key(&self, root: &str) -> String {
        let hex: String = self
            .object
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
        format!(
            "{root}/data/{}/{:016x}/{}-{}-{}-{}-{}.seg",
            self.group,
            self.term,
            part(0, 8),
            part(8, 12),
            part(12, 16),
            part(16, 20),
            part(20, 32)
        )
    }
}
