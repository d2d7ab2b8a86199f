//! What this broker has of each placement group it holds: handles that come and go while it runs.
//!
//! Owns: [`GroupMap`].
//! Not here: when groups come and go (`node`).

use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidelog_model::PlacementGroupId;

/// One handle per group. Clones share the map. Readers work on what there was when they asked.
#[derive(Debug)]
pub struct GroupMap<T>(Arc<RwLock<Arc<BTreeMap<PlacementGroupId, T>>>>);

impl<T> Clone for GroupMap<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for GroupMap<T> {
    fn default() -> Self {
        Self(Arc::new(RwLock::new(Arc::new(BTreeMap::new()))))
    }
}

impl<T: Clone> GroupMap<T> {
    /// The handle of a group.
    #[must_use]
    pub fn get(&self, group: PlacementGroupId) -> Option<T> {
        self.0.read().get(&group).cloned()
    }

    /// All handles, in the order of ids.
    #[must_use]
    pub fn all(&self) -> Arc<BTreeMap<PlacementGroupId, T>> {
        Arc::clone(&self.0.read())
    }

    /// Puts a handle in.
    pub fn insert(&self, group: PlacementGroupId, handle: T) {
        Arc::make_mut(&mut *self.0.write()).insert(group, handle);
    }

    /// Takes a handle out. Who holds a clone of it goes on with it.
    pub fn remove(&self, group: PlacementGroupId) -> Option<T> {
        Arc::make_mut(&mut *self.0.write()).remove(&group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that clones see each other's changes, and that a reader keeps what it has read.
    #[test]
    fn shared_and_stable() {
        let map = GroupMap::default();
        let (one, two) = (PlacementGroupId::new(1), PlacementGroupId::new(2));
        map.insert(one, 'a');
        let read = map.all();
        map.clone().insert(two, 'b');
        assert_eq!(
            (map.get(two), map.remove(one), map.get(one)),
            (Some('b'), Some('a'), None)
        );
        assert_eq!(read.len(), 1);
    }
}
