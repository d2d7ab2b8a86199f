//! Certificates that are replaced while the broker runs: files are looked at again and again, good ones are taken, bad ones told.
//!
//! Owns: reading the files, when a change is taken, when an end of validity is told.
//! Not here: what is good (`material.rs`).
//! Spec: docs/protocols/peer.md (TLS)

use super::material::{Files, Material, PeerTlsError, PemFile};
use super::{Inner, words};
use crate::config::PeerTlsFiles;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidelog_env::Clock;
use tidelog_env::disk::{Disk, OpenMode};

/// Largest file. A bundle of CAs takes kilobytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Pause between two looks. The three files are kilobytes that the system has in memory.
pub(super) const LOOK_PAUSE: Duration = Duration::from_secs(10);
/// The end is told once it is nearer than a tenth of the whole time, and than this; and again every [`TELL_AGAIN_SECONDS`].
const TELL_BEFORE_SECONDS: u64 = 14 * 86_400;
const TELL_AGAIN_SECONDS: u64 = 86_400;

/// What was seen so far.
#[derive(Default)]
pub(super) struct Seen {
    /// Hash of the files in use.
    hash: u64,
    /// What is wrong with the files that are there now, and whether that was told.
    wrong: Option<(PeerTlsError, bool)>,
    /// When the end of validity was last told, seconds since the Unix epoch.
    told: Option<u64>,
}

impl Seen {
    /// Files with this hash are in use.
    pub(super) fn of(hash: u64) -> Self {
        Self {
            hash,
            ..Self::default()
        }
    }
}

fn read_one(disk: &dyn Disk, key: &'static str, path: &Path) -> Result<PemFile, PeerTlsError> {
    let wrong = |what: &dyn std::fmt::Display| {
        Err(PeerTlsError(format!("{key} = {}: {what}", path.display())))
    };
    let read = || -> std::io::Result<Option<Vec<u8>>> {
        let file = disk.open(path, OpenMode::Read)?;
        let length = file.length()?;
        if length > FILE_BYTES_MAX {
            return Ok(None);
        }
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        file.read_vec_at(0, length).map(Some)
    };
    match read() {
        Ok(Some(bytes)) => Ok(PemFile {
            key,
            path: path.to_owned(),
            bytes,
        }),
        Ok(None) => wrong(&format!("larger than {FILE_BYTES_MAX} bytes")),
        Err(error) => wrong(&error),
    }
}

impl Files {
    fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for file in [&self.cert, &self.key, &self.ca] {
            file.bytes.hash(&mut hasher);
        }
        hasher.finish()
    }
}

/// The files as they are now, with a hash of them.
pub(super) fn read(names: &PeerTlsFiles, disk: &dyn Disk) -> Result<(Files, u64), PeerTlsError> {
    let files = Files {
        cert: read_one(disk, "peer.tls-cert-file", &names.cert)?,
        key: read_one(disk, "peer.tls-key-file", &names.key)?,
        ca: read_one(disk, "peer.tls-ca-file", &names.ca)?,
    };
    let hash = files.hash();
    Ok((files, hash))
}

impl Inner {
    /// Looks at the files once. What is wrong is told at the second look that finds it: between the writing of a certificate and of its key the two do not fit.
    pub(super) fn look(&self) {
        let used = self.seen.lock().hash;
        let found = read(&self.files, self.disk.as_ref()).and_then(|(files, hash)| {
            let changed = hash != used;
            let read = changed.then(|| Material::read(&files, &self.hosts, &self.clock));
            Ok((read.transpose()?, hash))
        });
        match found {
            Ok((None, _)) => self.seen.lock().wrong = None,
            Ok((Some(material), hash)) => {
                tracing::info!(
                    "peer connections from now on use the new certificate of {}, valid until {}",
                    self.files.cert.display(),
                    words::when(material.not_after)
                );
                self.metrics.valid_until(material.not_after);
                self.metrics.reloads.inc();
                self.current.store(Arc::new(material));
                *self.seen.lock() = Seen::of(hash);
                self.tell_exposed();
            }
            Err(error) => self.tell(error),
        }
        self.tell_end();
    }

    /// Says once that others than the owner may read the private key.
    pub(super) fn tell_exposed(&self) {
        if let Some(text) = exposed(&self.files, self.disk.as_ref())
            && !self.exposed.swap(true, Ordering::Relaxed)
        {
            tracing::warn!("{text}");
        }
    }

    fn tell(&self, error: PeerTlsError) {
        let mut seen = self.seen.lock();
        let again = seen.wrong.as_ref().filter(|(known, _)| *known == error);
        let told = again.map(|(_, told)| *told);
        if told == Some(false) {
            self.metrics.reload_failures.inc();
            tracing::warn!("the certificate that was in use stays in use: {error}");
        }
        seen.wrong = Some((error, told.is_some()));
    }

    fn tell_end(&self) {
        let now = seconds(self.clock.as_ref());
        let material = self.current.load();
        let mut seen = self.seen.lock();
        let Some(text) = ends(&self.files, &material, now, seen.told) else {
            return;
        };
        seen.told = Some(now);
        if now > material.not_after {
            tracing::error!("{text}");
        } else {
            tracing::warn!("{text}");
        }
    }
}

/// Seconds since the Unix epoch.
pub(super) fn seconds(clock: &dyn Clock) -> u64 {
    u64::try_from(clock.now_ms() / 1000).unwrap_or(0)
}

/// What is said of a certificate that ends soon, or has, if that is due.
pub(super) fn ends(
    files: &PeerTlsFiles,
    material: &Material,
    now: u64,
    told: Option<u64>,
) -> Option<String> {
    if !is_due(material.not_before, material.not_after, now, told) {
        return None;
    }
    let (file, until) = (files.cert.display(), words::when(material.not_after));
    Some(if now > material.not_after {
        format!(
            "peer.tls-cert-file = {file}: the certificate has expired at {until}; other brokers refuse new connections with this one"
        )
    } else {
        format!(
            "peer.tls-cert-file = {file}: the certificate expires at {until}; write a new one to the same place"
        )
    })
}

/// What is said of a private key that others may read.
pub(super) fn exposed(files: &PeerTlsFiles, disk: &dyn Disk) -> Option<String> {
    // Whether it is there was found out by reading it.
    let exposed = disk.others_may_read(&files.key).unwrap_or(false);
    exposed.then(|| {
        format!(
            "peer.tls-key-file = {}: others than its owner may read the private key, and with it be a broker of this cluster: chmod 600 it",
            files.key.display()
        )
    })
}

/// Whether the end of validity is told now.
fn is_due(not_before: u64, not_after: u64, now: u64, told: Option<u64>) -> bool {
    let whole = not_after.saturating_sub(not_before);
    let near = (whole / 10).min(TELL_BEFORE_SECONDS);
    let is_near = now.saturating_add(near) >= not_after;
    let again = told.is_none_or(|told| now.abs_diff(told) >= TELL_AGAIN_SECONDS);
    // Expiring between two daily lines is worth one of its own.
    let has_ended = told.is_some_and(|told| told <= not_after && now > not_after);
    is_near && (again || has_ended)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400;

    /// Proves that the end of a long and of a short certificate is told in time, once a day, and once more when it is there.
    #[test]
    fn the_end_is_told_in_time() {
        let year = |now, told| is_due(0, 365 * DAY, now, told);
        assert!(!year(350 * DAY, None));
        assert!(year(351 * DAY, None));
        assert!(!year(351 * DAY + 100, Some(351 * DAY)));
        assert!(year(352 * DAY, Some(351 * DAY)));
        let day = |now, told| is_due(DAY, 2 * DAY, now, told);
        assert!(!day(DAY + DAY / 2, None));
        assert!(day(2 * DAY - DAY / 10, None));
        assert!(!day(2 * DAY, Some(2 * DAY - DAY / 10)));
        assert!(day(2 * DAY + 1, Some(2 * DAY - DAY / 10)));
        assert!(!day(2 * DAY + 100, Some(2 * DAY + 1)));
        assert!(!is_due(0, u64::MAX, 365 * DAY, None));
    }
}
