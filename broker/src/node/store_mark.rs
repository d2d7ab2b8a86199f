//! Which store is the cluster's: marked once by the leader of metadata, compared by every broker for as long as it runs.
//!
//! Owns: when a store is marked, when the marker is read, what is said of a store that is another one.
//! Not here: the marker (`tidelog_tiering::marker`), the id in metadata (`metadata::store`), who asks before bytes move (`offload::StoreGuard`).
//! Spec: docs/protocols/store-identity.md

use std::time::Duration;

use super::fitness::Exchange;
use super::store_found::used_before;
use crate::admin::Health;
use crate::metadata::{MetadataCommand, MetadataOutcome};
use crate::offload::StoreGuard;
use crate::placement::ProposeError;
use crate::router::{MetadataClient, Router};
use tidelog_env::{CrashPoint, Tasks, crash_point};
use tidelog_model::{PlacementGroupId, StoreId, TimestampMs};
use tidelog_tiering::marker::{self, Found, Marker};
use tidelog_tiering::store::{StoreError, TierStore};
use tidelog_tiering::{ObjectKey, key};
use tokio::time::Instant;

/// Name in health reports.
const PART: &str = "store-identity";
/// Between two looks at the right store, with jitter. A look is one GET of a few bytes; what moves data looks by itself.
const IDLE: Duration = Duration::from_secs(30);
/// After a look that found another store, or failed.
const SOON: Duration = Duration::from_secs(5);
/// Between two looks at metadata while no store is marked: no call leaves this broker for it unless it leads.
const WAIT: Duration = Duration::from_millis(500);
/// How long a start waits for the store to be marked before that is a warning only. A new cluster marks it in a second or two; in a rolling update to
/// the first version that marks, the leader may be one that does not yet, and must not keep the updated brokers from being ready.
const GRACE: Duration = Duration::from_secs(30);

/// What the brokers do that are all wrong.
const GO_ON: &str = "new records are accepted and local ones are served meanwhile.";

/// How a look ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// This is the cluster's store.
    Right,
    /// It is another one; what was found, and how the marker comes back if it was deleted.
    Wrong { found: String, cure: String },
    /// Nobody has marked the cluster's store yet.
    Unmarked,
    /// The store does not answer: nothing is known.
    Unread(String),
}

/// What the task works with.
#[derive(Clone)]
pub(super) struct Marking {
    pub(super) guard: StoreGuard,
    pub(super) url: String,
    pub(super) health: Health,
    pub(super) client: MetadataClient,
    pub(super) router: Router,
}

/// Starts the task; it ends with `tasks`. Until the marker was compared once, `health` says that the node is not ready. `exchange`: the other brokers, if there
/// are any.
pub(super) fn start(marking: Marking, exchange: Option<Exchange>, tasks: &Tasks) {
    marking
        .health
        .not_ready(PART, "not compared with the cluster's yet");
    let begun = Instant::now();
    tasks.supervise("store-mark", SOON, move || {
        let (marking, exchange) = (marking.clone(), exchange.clone());
        async move {
            let mut teller = Teller::new(marking.url.clone(), marking.health.clone(), begun);
            loop {
                let verdict = marking.look().await;
                match &verdict {
                    Verdict::Right | Verdict::Unmarked => marking.guard.set_wrong(None),
                    Verdict::Wrong { found, .. } => marking.guard.set_wrong(Some(found.clone())),
                    Verdict::Unread(_) => {}
                }
                let pause = pause(&verdict);
                let others_wrong = match &exchange {
                    // Before anything is said: whoever is asked looks at once, and a load balancer that is told of one broker alone takes it out.
                    Some(exchange) if matches!(verdict, Verdict::Wrong { .. }) => {
                        exchange.round().await;
                        exchange.fit.others_wrong()
                    }
                    Some(_) => false,
                    None => true,
                };
                teller.tell(verdict, others_wrong, Instant::now());
                tokio::select! {
                    () = tokio::time::sleep(marking.client.random.jitter(pause)) => {}
                    () = marking.guard.suspected() => {}
                }
            }
        }
    });
}

const fn pause(verdict: &Verdict) -> Duration {
    match verdict {
        Verdict::Right => IDLE,
        Verdict::Wrong { .. } | Verdict::Unread(_) => SOON,
        Verdict::Unmarked => WAIT,
    }
}

impl Marking {
    async fn look(&self) -> Verdict {
        if self.guard.expected().is_none() {
            if !self.client.group.is_leader() {
                // Who was wrong as leader does not come right by leading no more.
                return match self.guard.is_wrong() {
                    true => self.compare().await,
                    false => Verdict::Unmarked,
                };
            }
            match self.mark().await {
                Ok(None) => {}
                Ok(Some(verdict)) => return verdict,
                Err(error) => return Verdict::Unread(error.to_string()),
            }
        }
        self.compare().await
    }

    /// How the store compares now. Changes nothing.
    pub(super) async fn compare(&self) -> Verdict {
        // Marked by this broker a moment ago, perhaps.
        let Some(expected) = self.guard.expected() else {
            return match self.may_be_marked().await {
                Ok(None) => Verdict::Unmarked,
                Ok(Some(verdict)) => verdict,
                Err(error) => Verdict::Unread(error.to_string()),
            };
        };
        match marker::look(self.guard.store()).await {
            Ok(found) if found.is(expected) => Verdict::Right,
            Ok(found) => self.wrong(&found, expected),
            Err(error) => Verdict::Unread(error.to_string()),
        }
    }

    /// `None` if this may be the store of a cluster that has marked none yet: it has all that the groups held here have published, and nobody else's marker.
    async fn may_be_marked(&self) -> Result<Option<Verdict>, StoreError> {
        if let Some(verdict) = self.lacking().await? {
            return Ok(Some(verdict));
        }
        Ok(not_ours(&marker::look(self.guard.store()).await?))
    }

    /// What this store lacks of what was published, as a verdict; also while that is not known yet.
    async fn lacking(&self) -> Result<Option<Verdict>, StoreError> {
        let groups: Vec<_> = self.router.data_groups().collect();
        let lost = self.router.lost_groups();
        let behind = |group: &&crate::datagroup::DataGroup| {
            !lost.contains_key(&group.id()) && !group.group().is_in_sync()
        };
        // What they have published is not known yet.
        if groups.iter().any(|group| behind(&group)) {
            return Ok(Some(Verdict::Unmarked));
        }
        for group in groups {
            let published = group
                .group()
                .read(|machine| machine.partitions().published_sequence());
            if let Some(lacks) = lacks(self.guard.store(), group.id(), published).await? {
                return Ok(Some(Verdict::Wrong {
                    found: format!(
                        "it has no {lacks}, which group {} has published",
                        group.id()
                    ),
                    cure: String::new(),
                }));
            }
        }
        Ok(None)
    }

    /// Marks the store, and commits which it is; `None` if that went through. Whatever is lost on the way, the next leader finds the marker and
    /// adopts it.
    async fn mark(&self) -> Result<Option<Verdict>, StoreError> {
        if let Some(verdict) = self.lacking().await? {
            return Ok(Some(verdict));
        }
        let drawn = StoreId::new(self.client.random.uuid());
        let store = match marker::mark(self.guard.store(), drawn).await? {
            Found::Marked(store) => store,
            // Absent: deleted between two calls. Anew.
            found => return Ok(Some(not_ours(&found).unwrap_or(Verdict::Unmarked))),
        };
        crash_point(CrashPoint::StoreMarked);
        match self.commit(store).await {
            Ok(MetadataOutcome::StoreMarked(marked)) => {
                tracing::info!("object store {} is the cluster's: store {marked}", self.url);
                if marked == drawn
                    && let Ok(Some(text)) = used_before(self.guard.store()).await
                {
                    tracing::warn!("{text}");
                }
                Ok(None)
            }
            Ok(other) => {
                tracing::warn!(
                    "the cluster's store could not be recorded, it is tried again: {other:?}"
                );
                Ok(Some(Verdict::Unmarked))
            }
            Err(error) => {
                tracing::debug!("the cluster's store is not recorded yet: {error}");
                Ok(Some(Verdict::Unmarked))
            }
        }
    }

    /// By this leader or not at all: another one looks for itself.
    async fn commit(&self, store: StoreId) -> Result<MetadataOutcome, ProposeError> {
        let stamp = TimestampMs::new(self.client.clock.now_ms());
        let command = MetadataCommand::MarkStore { store }.encode(stamp);
        Ok(self.client.group.propose(command).await?.1)
    }

    fn wrong(&self, found: &Found, expected: StoreId) -> Verdict {
        let store = self.guard.store();
        let marker = Marker {
            cluster: store.cluster(),
            store: expected,
        };
        let line = String::from_utf8_lossy(&marker.encode())
            .trim_end()
            .to_owned();
        let cure = format!(
            " The cluster's is store {expected}. Only if this is that one, and its marker was deleted or overwritten: put {line} at {}",
            store.path(&key::marker())
        );
        let found = found.to_string();
        Verdict::Wrong { found, cure }
    }
}

/// What a marker says of a store that the cluster may come to mark; nothing if it is this cluster's, or there is none.
fn not_ours(found: &Found) -> Option<Verdict> {
    match found {
        Found::Marked(_) | Found::Absent => None,
        Found::Foreign(_) | Found::Unreadable(_) => Some(Verdict::Wrong {
            found: found.to_string(),
            cure: String::new(),
        }),
    }
}

/// The newest manifest of the group, if it has published one that the store does not have: then this store is not the one that the cluster has used
/// before there were markers.
async fn lacks(
    store: &TierStore,
    group: PlacementGroupId,
    published: u64,
) -> Result<Option<ObjectKey>, StoreError> {
    if published == 0 {
        return Ok(None);
    }
    let key = key::snapshot(group, published);
    match store.head(&key).await {
        Ok(_) => Ok(None),
        Err(StoreError::NotFound { .. }) => Ok(Some(key)),
        Err(error) => Err(error),
    }
}

/// What was said last.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Said {
    Nothing,
    Right,
    Wrong(String),
    Unmarked,
}

/// Says what looks have found: in health always, in the log once per change.
struct Teller {
    url: String,
    health: Health,
    begun: Instant,
    said: Said,
    /// Whether the store was the cluster's once since the start.
    was_right: bool,
}

impl Teller {
    const fn new(url: String, health: Health, begun: Instant) -> Self {
        Self {
            url,
            health,
            begun,
            said: Said::Nothing,
            was_right: false,
        }
    }

    /// `others_wrong`: all other brokers say that their store is another one, too.
    fn tell(&mut self, verdict: Verdict, others_wrong: bool, now: Instant) {
        let (health, url) = (&self.health, &self.url);
        let says = match verdict {
            Verdict::Right => {
                health.ready(PART);
                health.clear(PART);
                self.was_right = true;
                Said::Right
            }
            Verdict::Wrong { found, cure } => {
                let text = format!(
                    "store.url = {url} is not the store of this cluster: {found}. All brokers need the same store, one that all of them share (file:// only \
                     where all see the same directory): correct store.url, or mount the directory. Until then this broker uploads, publishes and trims \
                     nothing, and cannot read what is no longer local.{cure}"
                );
                // As an outage: it concerns all brokers at once, and they go on with what is local. A load balancer would have none left.
                if self.was_right && others_wrong {
                    health.ready(PART);
                    health.warn(PART, format!("{text} No broker has a better one: {GO_ON}"));
                } else {
                    health.clear(PART);
                    health.not_ready(PART, text.clone());
                }
                Said::Wrong(text)
            }
            Verdict::Unmarked => {
                let text = "the cluster's store is not marked yet: the leader of metadata does that when its store works. Nothing is uploaded or trimmed before";
                if now.saturating_duration_since(self.begun) < GRACE {
                    health.not_ready(PART, text);
                } else {
                    health.ready(PART);
                    health.warn(PART, text);
                }
                Said::Unmarked
            }
            // What was known stays: an outage is said elsewhere, and is no other store.
            Verdict::Unread(why) => {
                if matches!(self.said, Said::Nothing | Said::Unmarked) {
                    health.not_ready(
                        PART,
                        format!("the marker of the store could not be read yet: {why}"),
                    );
                }
                return;
            }
        };
        if self.said != says {
            match (&self.said, &says) {
                (_, Said::Wrong(text)) => tracing::error!("{text}"),
                (Said::Wrong(_), Said::Right) => {
                    tracing::info!("object store {url} is the cluster's again");
                }
                _ => {}
            }
            self.said = says;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;
    use object_store::memory::InMemory;
    use std::sync::Arc;
    use tidelog_env::SystemRandom;
    use tidelog_model::ClusterId;
    use tidelog_tiering::store::StoreLimits;

    fn wrong(found: &str) -> Verdict {
        Verdict::Wrong {
            found: found.to_owned(),
            cure: " CURE".to_owned(),
        }
    }

    fn unread() -> Verdict {
        Verdict::Unread("503".to_owned())
    }

    fn teller() -> (Teller, Health, Instant) {
        let (health, now) = (Health::default(), Instant::now());
        let teller = Teller::new("file:///d".to_owned(), health.clone(), now);
        (teller, health, now)
    }

    /// Proves that a wrong store ends readiness with a line that says what to do, that an outage changes nothing of what is known, and that the right
    /// store brings it back.
    #[test]
    fn a_wrong_store_ends_readiness() {
        let (mut teller, health, now) = teller();
        teller.tell(Verdict::Right, false, now);
        assert!(health.is_well(PART));
        teller.tell(unread(), false, now);
        assert!(health.is_well(PART), "an outage is no other store");
        teller.tell(wrong("it has no marker"), false, now);
        let said = health.reasons().remove(0);
        assert_eq!(said.part, "store-identity");
        for part in [
            "store.url = file:///d",
            "it has no marker. All",
            "share",
            "CURE",
        ] {
            assert!(said.message.contains(part), "{}", said.message);
        }
        teller.tell(unread(), false, now);
        assert_eq!(health.reasons(), [said]);
        teller.tell(Verdict::Right, false, now);
        assert!(health.is_well(PART));
    }

    /// Proves that brokers whose store was right and is wrong for all of them stay ready with a warning, as in an outage; that one which has never had the right
    /// one does not become ready by that; and that readiness ends where another one has it.
    #[test]
    fn a_store_that_is_wrong_for_all_is_a_warning() {
        let (mut teller, health, now) = teller();
        teller.tell(wrong("x"), true, now);
        assert!(health.reasons().len() == 1 && health.warnings().is_empty());
        teller.tell(Verdict::Right, false, now);
        for _ in 0..2 {
            teller.tell(wrong("x"), true, now);
            assert!(health.reasons().is_empty());
            let said = health.warnings().remove(0);
            assert_eq!(said.part, "store-identity");
            for part in ["CURE", GO_ON] {
                assert!(said.message.contains(part), "{}", said.message);
            }
            teller.tell(wrong("x"), false, now);
            assert!(health.reasons().len() == 1 && health.warnings().is_empty());
        }
        teller.tell(wrong("x"), true, now);
        teller.tell(Verdict::Right, false, now);
        assert!(health.is_well(PART));
    }

    /// Proves that a store which nobody has marked is waited for at a start, and is a warning later: who is updated first must become ready.
    #[test]
    fn an_unmarked_store_is_waited_for_a_while() {
        let (mut teller, health, now) = teller();
        teller.tell(Verdict::Unmarked, false, now);
        assert!(health.reasons()[0].message.contains("not marked yet"));
        teller.tell(unread(), false, now);
        assert!(health.reasons()[0].message.contains("503"));
        let later = now + GRACE;
        teller.tell(Verdict::Unmarked, false, later);
        assert!(health.reasons().is_empty());
        assert!(health.warnings()[0].message.contains("not marked yet"));
        teller.tell(wrong("x"), false, later);
        assert!(health.warnings().is_empty() && health.reasons().len() == 1);
        teller.tell(Verdict::Unmarked, false, later);
        teller.tell(Verdict::Right, false, later);
        assert!(health.is_well(PART));
    }

    /// Proves that a store without what a group has published is not marked: it is not the one that the cluster used before it knew markers.
    #[tokio::test]
    async fn what_was_published_must_be_there() {
        let store = TierStore::new(
            Arc::new(InMemory::new()),
            &object_store::path::Path::default(),
            ClusterId::new(uuid::Uuid::from_u128(1)),
            SystemRandom::seeded(1),
            StoreLimits::default(),
        );
        let group = PlacementGroupId::new(3);
        assert_eq!(lacks(&store, group, 0).await.unwrap(), None);
        let key = key::snapshot(group, 7);
        assert_eq!(lacks(&store, group, 7).await.unwrap(), Some(key.clone()));
        store.put_object(&key, vec!["m".into()]).await.unwrap();
        assert_eq!(lacks(&store, group, 7).await.unwrap(), None);
    }
}
