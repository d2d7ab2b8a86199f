//! The store of one cluster: reads, lists, deletes. Writes are in `put.rs`.
//!
//! Owns: [`TierStore`]: keys in, deadlines and retries around every call.
//! Not here: caching (`reader`), deciding what is written.

use super::error::{Failure, StoreError};
use super::limits::{StoreLimits, Tries};
use crate::format::codec::wide;
use crate::key::{self, ObjectKey};
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt};
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use tidelog_env::Random;
use tidelog_model::{ClusterId, TimestampMs};

/// What the store says of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its length in bytes.
    pub length: u64,
    /// When it was written, by the store's clock.
    pub last_modified: TimestampMs,
}

/// One object of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedObject {
    /// Its key.
    pub key: ObjectKey,
    /// Length and time.
    pub info: ObjectInfo,
}

struct Inner {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    root: Path,
    cluster: ClusterId,
    random: Arc<dyn Random>,
    limits: StoreLimits,
}

/// The part of an object store that belongs to one cluster. Clones share it.
///
/// Every call has a deadline per try, a bounded number of tries with growing, jittered pauses, and says in its error
/// whether it did not happen or may have ([`StoreError`]). Dropping a call's future leaves a write that may or may
/// not happen.
#[derive(Clone)]
pub struct TierStore(Arc<Inner>);

impl fmt::Debug for TierStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TierStore({} in {})", self.0.root, self.0.store)
    }
}

impl TierStore {
    /// The cluster's part of `store`, below `prefix`.
    #[must_use]
    pub fn new(
        store: Arc<dyn ObjectStore>,
        prefix: &Path,
        cluster: ClusterId,
        random: Arc<dyn Random>,
        limits: StoreLimits,
    ) -> Self {
        Self(Arc::new(Inner {
            store,
            prefix: prefix.clone(),
            root: key::cluster_root(prefix, cluster),
            cluster,
            random,
            limits,
        }))
    }

    /// The same store under other limits.
    #[must_use]
    pub fn with_limits(&self, limits: StoreLimits) -> Self {
        let Inner {
            store,
            prefix,
            cluster,
            random,
            ..
        } = &*self.0;
        let (store, random) = (Arc::clone(store), Arc::clone(random));
        Self::new(store, prefix, *cluster, random, limits)
    }

    /// What belongs to another cluster in the same store.
    #[must_use]
    pub fn of_cluster(&self, cluster: ClusterId) -> Self {
        let Inner {
            store,
            prefix,
            random,
            limits,
            ..
        } = &*self.0;
        let (store, random) = (Arc::clone(store), Arc::clone(random));
        Self::new(store, prefix, cluster, random, *limits)
    }

    /// The clusters that have anything in this store, as a listing says: for people, not for decisions.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Refused`].
    pub async fn clusters(&self) -> Result<Vec<ClusterId>, StoreError> {
        let root = key::clusters_root(&self.0.prefix);
        let list = || async { Ok(self.0.store.list_with_delimiter(Some(&root)).await?) };
        let listed = self.read("list", &root, 0, list).await?;
        let mut found: Vec<_> = listed
            .common_prefixes
            .iter()
            .filter_map(|path| key::cluster_below(&root, path))
            .collect();
        found.sort_unstable();
        Ok(found)
    }

    /// The cluster.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.0.cluster
    }

    /// The store itself, without retries: for libraries that bring their own.
    #[must_use]
    pub fn raw(&self) -> &Arc<dyn ObjectStore> {
        &self.0.store
    }

    /// `<prefix>/v1/<cluster>`.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.0.root
    }

    /// Where a key is in the store.
    #[must_use]
    pub fn path(&self, key: &ObjectKey) -> Path {
        key::full_path(&self.0.root, key)
    }

    /// The limits in force.
    #[must_use]
    pub fn limits(&self) -> &StoreLimits {
        &self.0.limits
    }

    pub(crate) fn random(&self) -> &Arc<dyn Random> {
        &self.0.random
    }

    /// The whole object. For manifests and the like: refused above `get_bytes_max`.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::Unavailable`], [`StoreError::Refused`], [`StoreError::Corrupt`] when
    /// larger than allowed.
    pub async fn get(&self, key: &ObjectKey) -> Result<Bytes, StoreError> {
        let path = self.path(key);
        let length_max = self.0.limits.get_bytes_max;
        let read = || async {
            // Two deadlines: how much there is to wait for is known only after the first answer.
            let open = async { Ok(self.0.store.get_opts(&path, GetOptions::default()).await?) };
            let found = within(self.0.limits.deadline(0), open).await?;
            let length = found.meta.size;
            if length > length_max {
                return Ok(Err(length));
            }
            let body = async { Ok(found.bytes().await?) };
            let bytes = within(self.0.limits.deadline(length), body).await?;
            if wide(bytes.len()) == length {
                Ok(Ok(bytes))
            } else {
                Err(Failure::Unclear(format!(
                    "{} of {length} bytes came",
                    bytes.len()
                )))
            }
        };
        self.read("get", &path, length_max, read)
            .await?
            .map_err(|length| StoreError::Corrupt {
                key: path.to_string(),
                reason: format!("{length} bytes, more than the {length_max} allowed"),
            })
    }

    /// Exactly the bytes of `range`.
    ///
    /// # Errors
    /// As [`TierStore::get`]; [`StoreError::Corrupt`] when the object ends before the range does.
    pub async fn get_range(&self, key: &ObjectKey, range: Range<u64>) -> Result<Bytes, StoreError> {
        let length = range.end.saturating_sub(range.start);
        if length == 0 {
            return Ok(Bytes::new());
        }
        let path = self.path(key);
        let ranges = [range];
        let read = || async {
            // `get_ranges` and not `get_range`: on files the former is one open and one pread, the latter two hops.
            let bytes = self
                .0
                .store
                .get_ranges(&path, &ranges)
                .await?
                .into_iter()
                .next()
                .unwrap_or_default();
            if wide(bytes.len()) == length {
                Ok(bytes)
            } else {
                Err(Failure::Unclear(format!(
                    "{} of {length} bytes came",
                    bytes.len()
                )))
            }
        };
        let failed = match self.read("get", &path, length, read).await {
            Ok(bytes) => return Ok(bytes),
            Err(failed) => failed,
        };
        if let StoreError::Unavailable { .. } = failed
            && let Ok(info) = self.head_once(&path).await
            && info.length < ranges[0].end
        {
            let reason = format!(
                "it has {} bytes, bytes up to {} were asked",
                info.length, ranges[0].end
            );
            return Err(StoreError::Corrupt {
                key: path.to_string(),
                reason,
            });
        }
        Err(failed)
    }

    /// Length and time of an object.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::Unavailable`], [`StoreError::Refused`].
    pub async fn head(&self, key: &ObjectKey) -> Result<ObjectInfo, StoreError> {
        let path = self.path(key);
        self.read("head", &path, 0, || self.head_once(&path)).await
    }

    /// All objects below `prefix` (a key whose parts are a whole prefix), in key order.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Refused`]; [`StoreError::Corrupt`] when there are more than
    /// `list_count_max`.
    pub async fn list(&self, prefix: &ObjectKey) -> Result<Vec<ListedObject>, StoreError> {
        self.list_from(prefix, None).await
    }

    /// The objects below `prefix` whose keys come after `after`, in key order.
    ///
    /// # Errors
    /// As [`TierStore::list`].
    pub async fn list_after(
        &self,
        prefix: &ObjectKey,
        after: &ObjectKey,
    ) -> Result<Vec<ListedObject>, StoreError> {
        self.list_from(prefix, Some(after)).await
    }

    async fn list_from(
        &self,
        prefix: &ObjectKey,
        after: Option<&ObjectKey>,
    ) -> Result<Vec<ListedObject>, StoreError> {
        let path = self.path(prefix);
        let after = after.map(|after| self.path(after));
        let count_max = self.0.limits.list_count_max;
        let list = || self.list_once(&path, after.as_ref());
        // Each page has its own deadline; this one allows for the slowest listing that is still within bounds.
        let listed = self.read("list", &path, wide(count_max) * 64, list).await?;
        listed.ok_or_else(|| StoreError::Corrupt {
            key: path.to_string(),
            reason: format!("more than {count_max} objects lie below it"),
        })
    }

    async fn list_once(
        &self,
        path: &Path,
        after: Option<&Path>,
    ) -> Result<Option<Vec<ListedObject>>, Failure> {
        let mut stream = match after {
            Some(after) => self.0.store.list_with_offset(Some(path), after),
            None => self.0.store.list(Some(path)),
        };
        let mut listed = Vec::new();
        let page = self.0.limits.deadline(0);
        while let Some(meta) = within(page, async { Ok(stream.try_next().await?) }).await? {
            if listed.len() == self.0.limits.list_count_max {
                return Ok(None);
            }
            if let Some(key) = key::relative(&self.0.root, &meta.location) {
                listed.push(ListedObject {
                    key,
                    info: info(&meta),
                });
            }
        }
        listed.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(Some(listed))
    }

    /// Deletes an object; one that is not there is deleted already.
    ///
    /// # Errors
    /// [`StoreError::MayHaveHappened`], [`StoreError::Refused`].
    pub async fn delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        let path = self.path(key);
        match self
            .read("delete", &path, 0, || async {
                Ok(self.0.store.delete(&path).await?)
            })
            .await
        {
            Err(StoreError::NotFound { .. }) => Ok(()),
            Err(StoreError::Unavailable {
                operation,
                key,
                tries,
                reason,
            }) => Err(StoreError::MayHaveHappened {
                operation,
                key,
                tries,
                reason,
            }),
            other => other,
        }
    }

    pub(crate) async fn head_once(&self, path: &Path) -> Result<ObjectInfo, Failure> {
        let limit = self.0.limits.deadline(0);
        Ok(info(
            &within(limit, async { Ok(self.0.store.head(path).await?) }).await?,
        ))
    }

    /// Tries `call` until it is answered or the tries are used up.
    async fn read<T, F, R>(
        &self,
        operation: &'static str,
        path: &Path,
        bytes: u64,
        call: F,
    ) -> Result<T, StoreError>
    where
        F: Fn() -> R,
        R: Future<Output = Result<T, Failure>>,
    {
        let mut tries = Tries::new(self);
        loop {
            let key = || path.to_string();
            match within(self.0.limits.deadline(bytes), call()).await {
                Ok(value) => return Ok(value),
                Err(Failure::NotFound) => return Err(StoreError::NotFound { key: key() }),
                Err(Failure::Refused(reason)) => {
                    return Err(StoreError::Refused {
                        operation,
                        key: key(),
                        reason,
                    });
                }
                Err(failure) => {
                    if !tries.next().await {
                        let (tries, reason) = (tries.made, failure.reason());
                        return Err(StoreError::Unavailable {
                            operation,
                            key: key(),
                            tries,
                            reason,
                        });
                    }
                }
            }
        }
    }
}

/// `call` with a deadline; passing it leaves the outcome unclear.
pub(crate) async fn within<T>(
    limit: std::time::Duration,
    call: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer,
        Err(_) => Err(Failure::Unclear(format!(
            "no answer within {} ms",
            limit.as_millis()
        ))),
    }
}

fn info(meta: &ObjectMeta) -> ObjectInfo {
    ObjectInfo {
        length: meta.size,
        last_modified: TimestampMs::new(meta.last_modified.timestamp_millis()),
    }
}
