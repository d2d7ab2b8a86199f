//! The guard of the object store: whether this broker's store is the cluster's.
//!
//! Owns: the comparison of the marker that is in the store with the one that metadata names; that everything which leaves or empties a local
//! disk asks before.
//! Not here: marking a store, readiness and its words (`node::store_mark`).
//! Spec: docs/protocols/store-identity.md

use super::error::OffloadError;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tidelog_model::StoreId;
use tidelog_tiering::marker;
use tidelog_tiering::store::TierStore;
use tokio::sync::Notify;

type Expected = dyn Fn() -> Option<StoreId> + Send + Sync;

struct Inner {
    store: TierStore,
    expected: Box<Expected>,
    wrong: Arc<AtomicBool>,
    /// What was found in place of the cluster's store, while `wrong`.
    found: Mutex<String>,
    suspected: Notify,
}

/// The store, and which one it has to be. Clones share it.
#[derive(Clone)]
pub struct StoreGuard(Arc<Inner>);

impl StoreGuard {
    /// A guard of `store`; `expected` says which one is the cluster's, as far as this broker knows. It is asked often, and returns at once.
    #[must_use]
    pub fn new(
        store: TierStore,
        expected: impl Fn() -> Option<StoreId> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Inner {
            store,
            expected: Box::new(expected),
            wrong: Arc::default(),
            found: Mutex::default(),
            suspected: Notify::new(),
        }))
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &TierStore {
        &self.0.store
    }

    /// Which store is the cluster's; `None` while nobody has marked it, or this broker has not heard of it.
    #[must_use]
    pub fn expected(&self) -> Option<StoreId> {
        (self.0.expected)()
    }

    /// Set while this broker's store is known not to be the cluster's.
    #[must_use]
    pub fn wrong(&self) -> &Arc<AtomicBool> {
        &self.0.wrong
    }

    /// Whether this broker's store is known not to be the cluster's.
    #[must_use]
    pub fn is_wrong(&self) -> bool {
        self.0.wrong.load(Ordering::Relaxed)
    }

    /// What is known against this broker's store, without asking it.
    #[must_use]
    pub fn known_wrong(&self) -> Option<OffloadError> {
        self.is_wrong().then(|| OffloadError::WrongStore {
            found: self.0.found.lock().clone(),
        })
    }

    /// Says what is known of this broker's store: `found` in place of the cluster's, or nothing against it.
    pub fn set_wrong(&self, found: Option<String>) {
        let wrong = found.is_some();
        *self.0.found.lock() = found.unwrap_or_default();
        self.0.wrong.store(wrong, Ordering::Relaxed);
    }

    /// Reads the marker: `Ok` if this is the cluster's store now. A store that is known to be another one is not asked: who watches it does that.
    ///
    /// # Errors
    /// [`OffloadError::Unmarked`], [`OffloadError::WrongStore`]; [`OffloadError::Store`] if nothing is known of the store.
    pub async fn check(&self) -> Result<(), OffloadError> {
        let expected = self.expected().ok_or(OffloadError::Unmarked)?;
        if let Some(error) = self.known_wrong() {
            return Err(error);
        }
        let found = marker::look(self.store()).await?;
        if found.is(expected) {
            return Ok(());
        }
        self.suspect();
        Err(OffloadError::WrongStore {
            found: found.to_string(),
        })
    }

    /// Whether a store that is known to be another one is the cluster's again.
    pub async fn is_right_again(&self) -> bool {
        let Some(expected) = self.expected() else {
            return false;
        };
        let found = marker::look(self.store()).await;
        found.is_ok_and(|found| found.is(expected))
    }

    /// What is known of the store may be out of date: who watches it looks at once.
    pub fn suspect(&self) {
        self.0.suspected.notify_one();
    }

    /// Returns when a check has found another store, and nobody knew that yet, or [`StoreGuard::suspect`] was called.
    pub async fn suspected(&self) {
        self.0.suspected.notified().await;
    }
}
