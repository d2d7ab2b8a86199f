//! A table in the store: finding its newest version, storing files, committing the next version.
//!
//! Owns: the order of store operations of a commit, and what their outcomes mean.
//! Not here: what the objects hold (`commit.rs`), what is to be archived (`job.rs`).
//! Spec: docs/protocols/archive-commit.md (steps 2, 3, 5 to 9)

use crate::commit::{Head, NewVersion};
use crate::datafile::FinishedFile;
use crate::error::ArchiveError;
use crate::location::{HINT_NAME, METADATA_FOLDER, TableLocation, metadata_name, metadata_version};
use crate::mark::Mark;
use crate::schema;
use bytes::Bytes;
use iceberg::spec::{DataFile, FormatVersion, ManifestList, TableMetadata};
use tidelog_tiering::{PutOutcome, StoreError, TierStore};
use uuid::Uuid;

/// How a commit ended.
#[derive(Debug)]
pub(crate) enum CommitOutcome {
    /// It is the new head.
    Committed,
    /// Someone else's version is there.
    Lost,
    /// It may have happened, now or later.
    Unknown(StoreError),
}

/// One table.
pub(crate) struct Table {
    store: TierStore,
    location: TableLocation,
}

impl Table {
    /// The table at `location`, which may not exist yet.
    #[must_use]
    pub(crate) const fn new(store: TierStore, location: TableLocation) -> Self {
        Self { store, location }
    }

    /// Where it is.
    #[must_use]
    pub(crate) const fn location(&self) -> &TableLocation {
        &self.location
    }

    /// The newest version; `None` when the table does not exist.
    ///
    /// # Errors
    /// [`ArchiveError::Store`]; [`ArchiveError::ForeignTable`] and [`ArchiveError::Unreadable`] when it is not a table
    /// that we can continue.
    pub(crate) async fn load(&self) -> Result<Option<Head>, ArchiveError> {
        let Some(version) = self.newest_version().await? else {
            return Ok(None);
        };
        let bytes = self.get(&metadata_name(version)).await?;
        let metadata: TableMetadata =
            serde_json::from_slice(&bytes).map_err(|error| ArchiveError::Unreadable {
                key: self.location.key_of(&metadata_name(version)),
                reason: error.to_string(),
            })?;
        let mark = self
            .check(&metadata)
            .map_err(|reason| self.foreign(reason))?;
        Ok(Some(Head {
            version,
            metadata,
            mark,
        }))
    }

    /// The manifest list of the head's current snapshot.
    ///
    /// # Errors
    /// As [`Table::load`].
    pub(crate) async fn manifest_list(
        &self,
        head: &Head,
    ) -> Result<Option<ManifestList>, ArchiveError> {
        let Some(snapshot) = head.metadata.current_snapshot() else {
            return Ok(None);
        };
        let uri = snapshot.manifest_list();
        let name = self
            .location
            .name_of(uri)
            .ok_or_else(|| self.foreign(format!("its manifest list is at {uri}")))?;
        let bytes = self.get(name).await?;
        let list =
            ManifestList::parse_with_version(&bytes, FormatVersion::V2).map_err(|error| {
                ArchiveError::Unreadable {
                    key: self.location.key_of(name),
                    reason: error.to_string(),
                }
            })?;
        Ok(Some(list))
    }

    /// Stores a data file. Storing it again changes nothing: its name says its content.
    ///
    /// # Errors
    /// [`ArchiveError::Store`]; the file may be there, which nobody sees.
    pub(crate) async fn store_file(
        &self,
        file: FinishedFile,
    ) -> Result<(i32, DataFile), ArchiveError> {
        let entry = file.describe(self.location.uri_of(&file.name))?;
        let spec = file.spec_id();
        self.put(&file.name, file.bytes).await?;
        Ok((spec, entry))
    }

    /// Stores manifests and list, then creates the version's metadata file, which is the commit.
    ///
    /// # Errors
    /// [`ArchiveError::Store`]: the commit did not happen.
    pub(crate) async fn commit(
        &self,
        next: NewVersion,
        commit: Uuid,
    ) -> Result<CommitOutcome, ArchiveError> {
        for (name, bytes) in next.objects {
            self.put(&name, bytes).await?;
        }
        let name = metadata_name(next.version);
        match self
            .store
            .put_if_absent(&self.location.key_of(&name), next.metadata)
            .await
        {
            Ok(PutOutcome::Created) => {}
            Ok(PutOutcome::Exists) => {
                if !self.is_ours(&name, commit).await? {
                    return Ok(CommitOutcome::Lost);
                }
            }
            Err(error) if error.did_not_happen() => {
                return Err(ArchiveError::Store {
                    doing: format!("commit {}", self.location.uri_of(&name)),
                    source: error,
                });
            }
            Err(error) => return Ok(CommitOutcome::Unknown(error)),
        }
        self.hint(next.version).await;
        Ok(CommitOutcome::Committed)
    }

    /// Whether the version at `name` carries our commit id: the store's client may have repeated a request that had
    /// taken effect.
    async fn is_ours(&self, name: &str, commit: Uuid) -> Result<bool, ArchiveError> {
        let bytes = self.get(name).await?;
        let metadata: Option<TableMetadata> = serde_json::from_slice(&bytes).ok();
        Ok(metadata
            .and_then(|metadata| Mark::read(&metadata).ok())
            .is_some_and(|mark| mark.commit == commit))
    }

    async fn hint(&self, version: u64) {
        let bytes = Bytes::from(version.to_string());
        if let Err(error) = self
            .store
            .put_object(&self.location.key_of(HINT_NAME), vec![bytes])
            .await
        {
            tracing::warn!(
                table = self.location.uri(),
                version,
                "version hint not written, the next commit does it: {error}"
            );
        }
    }

    /// Step 2: hint or listing say where to start, HEAD decides.
    async fn newest_version(&self) -> Result<Option<u64>, ArchiveError> {
        let hinted = self.read_hint().await?;
        let mut version = match hinted {
            Some(version) if self.exists(version).await? => version,
            _ => self.largest_listed().await?,
        };
        while let Some(next) = version.checked_add(1) {
            if !self.exists(next).await? {
                break;
            }
            version = next;
        }
        Ok((version > 0).then_some(version))
    }

    async fn read_hint(&self) -> Result<Option<u64>, ArchiveError> {
        match self.store.get(&self.location.key_of(HINT_NAME)).await {
            Ok(bytes) => Ok(std::str::from_utf8(&bytes)
                .ok()
                .and_then(|text| text.trim().parse().ok())),
            Err(StoreError::NotFound { .. } | StoreError::Corrupt { .. }) => Ok(None),
            Err(source) => Err(ArchiveError::Store {
                doing: format!("read {}", self.location.uri_of(HINT_NAME)),
                source,
            }),
        }
    }

    async fn largest_listed(&self) -> Result<u64, ArchiveError> {
        let folder = self.location.key_of(METADATA_FOLDER);
        let listed = self
            .store
            .list(&folder)
            .await
            .map_err(|source| ArchiveError::Store {
                doing: format!("list {}", self.location.uri_of(METADATA_FOLDER)),
                source,
            })?;
        let versions = listed
            .iter()
            .filter_map(|object| metadata_version(object.key.as_str().rsplit('/').next()?));
        Ok(versions.max().unwrap_or(0))
    }

    async fn exists(&self, version: u64) -> Result<bool, ArchiveError> {
        let name = metadata_name(version);
        match self.store.head(&self.location.key_of(&name)).await {
            Ok(_) => Ok(true),
            Err(StoreError::NotFound { .. }) => Ok(false),
            Err(source) => Err(ArchiveError::Store {
                doing: format!("look for {}", self.location.uri_of(&name)),
                source,
            }),
        }
    }

    async fn get(&self, name: &str) -> Result<Bytes, ArchiveError> {
        self.store
            .get(&self.location.key_of(name))
            .await
            .map_err(|source| ArchiveError::Store {
                doing: format!("read {}", self.location.uri_of(name)),
                source,
            })
    }

    async fn put(&self, name: &str, bytes: Bytes) -> Result<(), ArchiveError> {
        self.store
            .put_object(&self.location.key_of(name), vec![bytes])
            .await
            .map_err(|source| ArchiveError::Store {
                doing: format!("write {}", self.location.uri_of(name)),
                source,
            })
    }

    /// Step 3.
    fn check(&self, metadata: &TableMetadata) -> Result<Mark, String> {
        if metadata.location() != self.location.uri() {
            return Err(format!("it says that it is at {}", metadata.location()));
        }
        schema::check(metadata)?;
        let mark = Mark::read(metadata)?;
        if mark.cluster != self.location.cluster() || mark.topic != self.location.topic() {
            return Err(format!(
                "it belongs to topic {} of cluster {}",
                mark.topic, mark.cluster
            ));
        }
        Ok(mark)
    }

    fn foreign(&self, reason: String) -> ArchiveError {
        ArchiveError::ForeignTable {
            location: self.location.uri().to_owned(),
            reason,
        }
    }
}
