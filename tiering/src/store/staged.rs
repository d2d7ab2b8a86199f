//! A large file on its way into a `file://` store: written under another name, synced as it grows, then named.
//!
//! Owns: the staged name, and how much of a file may be unsynced.
//! Not here: directories (`durable.rs`), small files (`LocalFileSystem`).
//!
//! A sync of a whole object keeps a disk busy for as long as it takes to write it, and whoever syncs a few KiB on the same
//! disk in the meantime waits: with 32 MiB that was most of an append's latency.

#![allow(clippy::disallowed_methods, reason = "here the real thing lives")]

use super::durable::DurableFiles;
use async_trait::async_trait;
use object_store::path::Path;
use object_store::{Error, Extensions, MultipartUpload, PutPayload, PutResult, Result, UploadPart};
use parking_lot::Mutex;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes that are written between two syncs: 2 MiB take a local disk 4 ms at 500 MB/s.
pub(super) const SYNC_EVERY_BYTES: usize = 2 << 20;

/// A file that has no name of an object yet. Dropped before [`StagedFile::finish`], it is removed.
#[derive(Debug)]
pub(super) struct StagedFile {
    file: File,
    staged: PathBuf,
    target: PathBuf,
    /// See [`DurableFiles::turn`].
    turn: Arc<Mutex<()>>,
    named: AtomicBool,
}

impl StagedFile {
    /// Creates it, and the directories above. Blocks.
    pub(super) fn create(target: &FsPath, turn: Arc<Mutex<()>>) -> io::Result<Self> {
        let mut number = 1u64;
        loop {
            // `LocalFileSystem` neither lists nor opens names of this form, and uses the same for its own.
            let mut staged = target.as_os_str().to_owned();
            staged.push(format!("#{number}"));
            let staged = PathBuf::from(staged);
            let mut options = OpenOptions::new();
            match options.write(true).create_new(true).open(&staged) {
                Ok(file) => {
                    return Ok(Self {
                        file,
                        staged,
                        target: target.to_owned(),
                        turn,
                        named: AtomicBool::new(false),
                    });
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
                Err(error) if error.kind() == ErrorKind::NotFound => match target.parent() {
                    Some(directory) if !directory.is_dir() => std::fs::create_dir_all(directory)?,
                    _ => return Err(error),
                },
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes the payload at `position`, [`SYNC_EVERY_BYTES`] and a sync at a time. Blocks.
    pub(super) fn write(&self, position: u64, payload: &PutPayload) -> io::Result<()> {
        let mut at = position;
        let mut unsynced = 0;
        let mut turn = None;
        for chunk in payload {
            for piece in chunk.chunks(SYNC_EVERY_BYTES) {
                turn.get_or_insert_with(|| self.turn.lock());
                self.file.write_all_at(piece, at)?;
                at += u64::try_from(piece.len()).map_err(io::Error::other)?;
                unsynced += piece.len();
                if unsynced >= SYNC_EVERY_BYTES {
                    self.file.sync_data()?;
                    unsynced = 0;
                    turn = None;
                }
            }
        }
        Ok(())
    }

    /// Gives it its name, replacing what has it; the bytes and the name are on disk when this returns. Blocks.
    pub(super) fn finish(&self) -> io::Result<()> {
        self.file.sync_all()?;
        std::fs::rename(&self.staged, &self.target)?;
        self.named.store(true, Ordering::Relaxed);
        match self.target.parent() {
            Some(directory) => File::open(directory)?.sync_all(),
            None => Ok(()),
        }
    }
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        if !self.named.load(Ordering::Relaxed) {
            // What is left after a failure here, or a crash, is no object: nothing lists it.
            let _ = std::fs::remove_file(&self.staged);
        }
    }
}

/// An upload in parts into a staged file.
#[derive(Debug)]
pub(super) struct StagedUpload {
    /// Gone after `complete` or `abort`.
    file: Option<Arc<StagedFile>>,
    store: DurableFiles,
    location: Path,
    position: u64,
}

impl StagedUpload {
    pub(super) async fn begin(store: DurableFiles, location: Path) -> Result<Self> {
        let target = store.file_of(&location)?;
        let turn = store.turn();
        let file = blocking(move || StagedFile::create(&target, turn)).await?;
        Ok(Self {
            file: Some(Arc::new(file)),
            store,
            location,
            position: 0,
        })
    }
}

#[async_trait]
impl MultipartUpload for StagedUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let position = self.position;
        let length = u64::try_from(data.content_length()).unwrap_or(u64::MAX);
        self.position = position.saturating_add(length);
        let file = self.file.clone();
        Box::pin(async move {
            let file = file.ok_or_else(|| failed(ended()))?;
            blocking(move || file.write(position, &data)).await
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let file = self.file.take().ok_or_else(|| failed(ended()))?;
        blocking(move || file.finish()).await?;
        self.store.sync_names(&self.location, false).await?;
        // No tags: names are unique or put-if-absent, nobody compares versions.
        Ok(PutResult {
            e_tag: None,
            version: None,
            extensions: Extensions::default(),
        })
    }

    async fn abort(&mut self) -> Result<()> {
        let file = self.file.take();
        blocking(move || {
            drop(file);
            Ok(())
        })
        .await
    }
}

fn ended() -> io::Error {
    io::Error::other("the upload has ended")
}

async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(act).await?.map_err(failed)
}

pub(super) fn failed(source: io::Error) -> Error {
    Error::Generic {
        store: "DurableFiles",
        source: Box::new(source),
    }
}
