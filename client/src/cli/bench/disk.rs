//! What a disk can do: sequential writes into a file that is there already, each made durable.
//!
//! Owns: the measurement that a produce rate is compared with.
//! Not here: the broker's disk (`tidelog-env`); this is a user's directory on a user's machine, measured as it is.

#![allow(
    clippy::disallowed_methods,
    reason = "it measures the real disk with the real clock"
)]

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes of the file. It is written over and over: no allocation of blocks, no metadata, as a recycled log file.
const FILE_BYTES: u64 = 256 * 1024 * 1024;

/// A file in the directory, removed at the end.
pub(super) struct Disk {
    path: PathBuf,
    file: File,
    position: u64,
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Disk {
    /// Creates and fills the file. Blocking.
    pub(super) fn prepare(directory: &Path, fill: &[u8]) -> io::Result<Self> {
        let path = directory.join(format!(".tidelog-bench-{}", std::process::id()));
        let file = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .open(&path)?;
        let mut disk = Self {
            path,
            file,
            position: 0,
        };
        let mut written = 0;
        while written < FILE_BYTES {
            let left = usize::try_from(FILE_BYTES - written).unwrap_or(usize::MAX);
            let piece = &fill[..fill.len().min(left)];
            disk.file.write_all(piece)?;
            written += u64::try_from(piece.len()).unwrap_or(0);
        }
        disk.file.sync_all()?;
        Ok(disk)
    }

    /// Writes `block` again and again for `duration`, with an fdatasync after each. Returns bytes and seconds. Blocking.
    pub(super) fn measure(&mut self, block: &[u8], duration: Duration) -> io::Result<(u64, f64)> {
        let length = u64::try_from(block.len()).unwrap_or(u64::MAX);
        let started = Instant::now();
        let mut bytes = 0;
        while started.elapsed() < duration {
            if self.position + length > FILE_BYTES {
                self.position = 0;
            }
            self.file.seek(SeekFrom::Start(self.position))?;
            self.file.write_all(block)?;
            self.file.sync_data()?;
            self.position += length;
            bytes += length;
        }
        Ok((bytes, started.elapsed().as_secs_f64()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    /// Proves that it measures, and leaves nothing behind.
    #[test]
    fn measures_and_cleans_up() {
        let directory = tempfile::tempdir().unwrap();
        let mut disk = Disk::prepare(directory.path(), &[7; 1 << 20]).unwrap();
        let (bytes, seconds) = disk.measure(&[1; 4096], Duration::from_millis(20)).unwrap();
        assert!(bytes >= 4096 && seconds >= 0.02);
        drop(disk);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        assert!(Disk::prepare(&directory.path().join("absent"), &[7]).is_err());
    }
}
