//! Which clusters have marked a store, for people who are about to use it (`tidelog doctor`).
//!
//! Owns: what is said of markers before a broker starts. Nothing is decided here.
//! Not here: the marker (`tidelog_tiering::marker`), what a running broker does (`store_mark`).
//! Spec: docs/protocols/store-identity.md

use super::World;
use super::error::StartError;
use super::identity;
use super::store::{tier_store, url};
use crate::config::Config;
use tidelog_model::ClusterId;
use tidelog_tiering::marker::{self, Found};
use tidelog_tiering::store::{StoreError, TierStore};

/// Clusters of the store that are named at most.
const SHOWN: usize = 10;
/// Places of clusters that are looked at for them, at most: probes leave empty directories in a `file://` store.
const LOOKED: usize = 100;

/// What is in a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreMarkers {
    /// The cluster that the data directory belongs to, if it belongs to one, and what is in the place of its marker.
    pub own: Option<(ClusterId, Found)>,
    /// Other clusters that have marked this store, or whose marker cannot be read.
    pub others: Vec<(ClusterId, Found)>,
    /// Further ones, which were not looked at.
    pub more: usize,
}

impl StoreMarkers {
    /// Whether a broker with this data directory could not use the store.
    #[must_use]
    pub const fn is_wrong(&self) -> bool {
        matches!(
            self.own,
            Some((_, Found::Foreign(_) | Found::Unreadable(_)))
        )
    }

    /// One line for each fact.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let own = self.own.as_ref().map(|(cluster, found)| match found {
            Found::Marked(store) => {
                format!("ok       the store is marked for cluster {cluster}, that of node.data-dir: store {store}")
            }
            Found::Absent => format!(
                "WARNING  the store has no marker of cluster {cluster}, that of node.data-dir: that is so before this cluster's first start with a store that \
                 works. Else it is another store than the other brokers have: do not start with it"
            ),
            found => format!(
                "FAILED   the store cannot be that of cluster {cluster}, to which node.data-dir belongs: {found}"
            ),
        });
        let others = self.others.iter().map(|(cluster, found)| match found {
            Found::Marked(store) => {
                format!("note     the store is used by cluster {cluster}: store {store}")
            }
            found => format!("note     the store is used by cluster {cluster}: {found}"),
        });
        let more =
            (self.more > 0).then(|| format!("note     and perhaps by {} more clusters", self.more));
        own.into_iter().chain(others).chain(more).collect()
    }
}

/// Looks which clusters have something in the configured store; with `broker`, also for the one that the data directory belongs to.
///
/// # Errors
/// [`StartError`]: the store cannot be opened or asked, or the data directory's identity cannot be read.
pub async fn store_markers(
    config: &Config,
    world: &World,
    broker: bool,
) -> Result<StoreMarkers, StartError> {
    let own = match broker {
        true => identity::cluster_of(world.disk.as_ref(), &config.node.data_dir)?,
        false => None,
    };
    let asked = own.unwrap_or(ClusterId::new(uuid::Uuid::nil()));
    let tier = tier_store(&url(config)?, config, world, asked)?;
    let failed = |error: tidelog_tiering::StoreError| StartError::Refused(error.to_string());
    let mut found = StoreMarkers::default();
    if let Some(cluster) = own {
        let at = marker::look(&tier).await.map_err(failed)?;
        found.own = Some((cluster, at));
    }
    look_at_others(&tier, own, &mut found)
        .await
        .map_err(failed)?;
    Ok(found)
}

/// Clusters but `own` that have marked this store.
async fn look_at_others(
    tier: &TierStore,
    own: Option<ClusterId>,
    found: &mut StoreMarkers,
) -> Result<(), StoreError> {
    let clusters = tier.clusters().await?;
    let others = clusters.into_iter().filter(|at| Some(*at) != own);
    for (number, cluster) in others.enumerate() {
        if number >= LOOKED || found.others.len() >= SHOWN {
            found.more += 1;
            continue;
        }
        match marker::look(&tier.of_cluster(cluster)).await? {
            Found::Absent => {}
            at => found.others.push((cluster, at)),
        }
    }
    Ok(())
}

/// What the first leader of a new cluster says of others that have used its store: who has lost all data directories sees that this is not the old cluster. `None`:
/// nobody has. Nothing is decided by it.
///
/// # Errors
/// The store does not answer.
pub(super) async fn used_before(tier: &TierStore) -> Result<Option<String>, StoreError> {
    let mut found = StoreMarkers::default();
    look_at_others(tier, Some(tier.cluster()), &mut found).await?;
    if found.others.is_empty() {
        return Ok(None);
    }
    let names: Vec<_> = found.others.iter().map(|(id, _)| id.to_string()).collect();
    let more = match found.more {
        0 => String::new(),
        more => format!(" and perhaps {more} more"),
    };
    Ok(Some(format!(
        "the store has data of other clusters: {}{more}. This one is new, and empty, beside them; they do each other no harm. If it was to be one of those: its brokers were \
         started with empty data directories, and need the ones that they had; nothing brings its topics back from the store yet",
        names.join(", ")
    )))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::config::Sources;
    use object_store::memory::InMemory;
    use std::sync::Arc;
    use tidelog_env::SystemRandom;
    use tidelog_model::{NodeId, StoreId};
    use tidelog_tiering::key;
    use uuid::Uuid;

    fn cluster(number: u128) -> ClusterId {
        ClusterId::new(Uuid::from_u128(number))
    }

    /// Proves what is said before a start: nothing of an empty store; the clusters that have marked it; whether it has the marker of the data
    /// directory's own, and that a foreign one in its place is an error.
    #[tokio::test]
    async fn markers_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let sources = Sources {
            set: vec![format!("node.data-dir={}", dir.path().display())],
            ..Sources::default()
        };
        let config = Config::load(&sources).unwrap();
        let world = World {
            store: Some(Arc::new(InMemory::new())),
            ..World::system()
        };
        let tier = |of| -> TierStore { tier_store("memory:///", &config, &world, of).unwrap() };
        let look = |broker| store_markers(&config, &world, broker);
        assert_eq!(look(true).await.unwrap(), StoreMarkers::default());
        let id = StoreId::new(Uuid::from_u128(5));
        let new = tier(cluster(99));
        assert_eq!(used_before(&new).await.unwrap(), None);
        marker::mark(&new, id).await.unwrap();
        assert_eq!(used_before(&new).await.unwrap(), None, "itself");
        let text = used_before(&tier(cluster(98))).await.unwrap().unwrap();
        assert!(text.contains(&cluster(99).to_string()), "{text}");
        new.delete(&key::marker()).await.unwrap();
        for number in 1..=12 {
            marker::mark(&tier(cluster(number)), id).await.unwrap();
        }
        // What a probe leaves is no cluster.
        let (probed, left) = (tier(cluster(0)), key::alive(NodeId::new(1)));
        probed.put_object(&left, vec!["x".into()]).await.unwrap();
        let found = look(false).await.unwrap();
        assert_eq!((found.others.len(), found.more), (10, 2));
        assert!(found.lines()[0].contains(&cluster(1).to_string()));
        assert!(found.lines()[10].contains("2 more clusters"));
        let (disk, random) = (world.disk.as_ref(), SystemRandom::shared());
        let node = NodeId::new(config.node.id);
        let made = identity::load_or_create(disk, &random, dir.path(), node, Some("c")).unwrap();
        let own = made.founding.unwrap().cluster();
        let found = look(true).await.unwrap();
        assert_eq!(found.own, Some((own, Found::Absent)));
        assert!(!found.is_wrong() && found.lines()[0].starts_with("WARNING"));
        let foreign = marker::Marker {
            cluster: cluster(1),
            store: id,
        };
        let put = tier(own)
            .put_if_absent(&key::marker(), foreign.encode())
            .await;
        put.unwrap();
        let found = look(true).await.unwrap();
        assert!(found.is_wrong() && found.lines()[0].starts_with("FAILED"));
        tier(own).delete(&key::marker()).await.unwrap();
        marker::mark(&tier(own), id).await.unwrap();
        let found = look(true).await.unwrap();
        assert!(!found.is_wrong() && found.lines()[0].starts_with("ok "));
    }
}
