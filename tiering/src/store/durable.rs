//! `file://`: a directory as an object store whose answers are as durable as S3's.
//!
//! Local log files are purged after an upload, so what is in a `file://` store must survive a power failure.
//! `LocalFileSystem` syncs the file before it gets its name and the directory after (`with_fsync`). Three cases are left
//! to this wrapper:
//! - Large files ([`staged`]): it syncs them in one go at the end, and on a disk that is also the broker's, appends wait
//!   meanwhile. Here they are synced as they grow.
//! - Directories another call has just made: it has not synced their parents yet when ours answers.
//! - `AlreadyExists` on a key whose writer died between naming the file and syncing the directory: whoever reads the
//!   key back and finds its own bytes takes them as stored, so they must be.
//!
//! A crash leaves no half object: files grow under `<name>#<number>`, which no listing shows and no key can name.
//! Deletions are not synced: a file that comes back after a power failure is an orphan for the collector.

#![allow(clippy::disallowed_methods, reason = "here the real thing lives")]

use super::staged::{SYNC_EVERY_BYTES, StagedUpload, failed};
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;

/// Directories remembered as synced; forgetting them costs a sync each, nothing else.
const SYNCED_MAX: usize = 4096;

/// A directory as an object store.
#[derive(Clone, Debug)]
pub struct DurableFiles {
    inner: LocalFileSystem,
    root: PathBuf,
    /// Directories whose own names, up to the root, are on disk.
    synced: Arc<Mutex<HashSet<PathBuf>>>,
    turn: Arc<Mutex<()>>,
}

impl std::fmt::Display for DurableFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "file://{}", self.root.display())
    }
}

impl DurableFiles {
    /// Opens (and makes, durably) the directory. Blocks.
    ///
    /// # Errors
    /// Whatever the system says.
    pub fn open(root: &FsPath) -> io::Result<Self> {
        let missing: Vec<PathBuf> = root
            .ancestors()
            .take_while(|directory| !directory.exists())
            .map(FsPath::to_path_buf)
            .collect();
        std::fs::create_dir_all(root)?;
        for made in &missing {
            if let Some(parent) = made.parent() {
                sync(parent)?;
            }
        }
        let root = std::fs::canonicalize(root)?;
        let inner = LocalFileSystem::new_with_prefix(&root)
            .map_err(io::Error::from)?
            .with_fsync(true);
        Ok(Self {
            inner,
            root,
            synced: Arc::default(),
            turn: Arc::default(),
        })
    }

    /// Held for a few MiB and their sync: large files grow one after the other, so that whoever syncs on the same disk
    /// waits for that much at most, not for each part and each upload under way.
    pub(super) fn turn(&self) -> Arc<Mutex<()>> {
        Arc::clone(&self.turn)
    }

    /// The file that holds an object.
    pub(super) fn file_of(&self, location: &Path) -> Result<PathBuf> {
        self.inner.path_to_filesystem(location)
    }

    /// Syncs what names `location`'s directory, up to the root; with `file` also the file and its own name.
    pub(super) async fn sync_names(&self, location: &Path, file: bool) -> Result<()> {
        let path = self.inner.path_to_filesystem(location)?;
        let Some(directory) = path.parent().map(FsPath::to_path_buf) else {
            return Ok(());
        };
        let known = self.synced.lock().contains(&directory);
        if known && !file {
            return Ok(());
        }
        let this = self.clone();
        let synced = tokio::task::spawn_blocking(move || -> io::Result<()> {
            if file {
                sync(&path)?;
                sync(&directory)?;
            }
            for parent in directory
                .ancestors()
                .skip(1)
                .take_while(|parent| parent.starts_with(&this.root))
            {
                sync(parent)?;
            }
            let mut synced = this.synced.lock();
            if synced.len() >= SYNCED_MAX {
                synced.clear();
            }
            synced.insert(directory);
            Ok(())
        })
        .await?;
        synced.map_err(failed)
    }
}

fn sync(path: &FsPath) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// The bytes of `range`; fewer when the file ends before.
fn read_range(mut file: &File, range: &Range<u64>) -> io::Result<Bytes> {
    let length = range.end.saturating_sub(range.start);
    let left = file.metadata()?.len().saturating_sub(range.start);
    let mut bytes =
        Vec::with_capacity(usize::try_from(length.min(left)).map_err(io::Error::other)?);
    file.seek(SeekFrom::Start(range.start))?;
    file.take(length).read_to_end(&mut bytes)?;
    Ok(Bytes::from(bytes))
}

#[async_trait]
impl ObjectStore for DurableFiles {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        if payload.content_length() > SYNC_EVERY_BYTES && options.mode == PutMode::Overwrite {
            let mut upload = StagedUpload::begin(self.clone(), location.clone()).await?;
            upload.put_part(payload).await?;
            return upload.complete().await;
        }
        let put = self.inner.put_opts(location, payload, options).await;
        match &put {
            Ok(_) => self.sync_names(location, false).await?,
            Err(Error::AlreadyExists { .. }) => self.sync_names(location, true).await?,
            Err(_) => {}
        }
        put
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        _options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let upload = StagedUpload::begin(self.clone(), location.clone()).await?;
        Ok(Box::new(upload))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(location, options).await
    }

    /// One open and one read each, into memory that is not cleared first, as `LocalFileSystem` does: that is one more
    /// pass over every byte, and in an unoptimised build a slow one.
    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let path = self.inner.path_to_filesystem(location)?;
        let (ranges, key) = (ranges.to_vec(), location.to_string());
        let read = tokio::task::spawn_blocking(move || -> io::Result<Vec<Bytes>> {
            let file = File::open(path)?;
            ranges
                .iter()
                .map(|range| read_range(&file, range))
                .collect()
        });
        read.await?.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => Error::NotFound {
                path: key,
                source: Box::new(source),
            },
            _ => failed(source),
        })
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await?;
        self.sync_names(to, true).await
    }
}
