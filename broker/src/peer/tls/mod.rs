//! Mutual TLS on the connections between brokers, where it is configured.
//!
//! Owns: [`PeerTls`]: which connections are TLS, both ends of its handshake.
//! Not here: the hello that follows (`greeting.rs`, `dial.rs`), the keys (`config::peer_tls`).
//! Spec: docs/protocols/peer.md (TLS)
//!
//! A plain connection stays the stream that it is: nothing is put around it.

mod material;
mod metrics;
mod prefixed;
mod reload;
mod words;

pub use material::PeerTlsError;

use super::hello::HEAD_BYTES;
use crate::config::{PeerTlsFiles, TlsMode};
use arc_swap::ArcSwap;
use material::Material;
use metrics::TlsMetrics;
use parking_lot::Mutex;
use prefixed::Prefixed;
use prometheus_client::registry::Registry;
use reload::{LOOK_PAUSE, Seen};
use rustls::pki_types::ServerName;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tidelog_env::disk::Disk;
use tidelog_env::{BoxStream, Clock, Tasks};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// How long a caller that is refused may take to read why and to close: a reset before that would take the reason from it.
const LINGER: Duration = Duration::from_millis(500);
/// Read from the socket at once: rustls takes 4 KiB at a time by itself, which is 256 calls for a large frame.
const READ_BYTES: usize = 64 << 10;
/// Pause before looking at files begins anew after a panic.
const RESTART_PAUSE: Duration = Duration::from_secs(10);

/// TLS between brokers, or none. Clones share it.
#[derive(Clone, Default)]
pub struct PeerTls {
    inner: Option<Arc<Inner>>,
}

/// What is so of files that are good now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerTlsCheck {
    /// Until when the own certificate is valid.
    pub valid_until: String,
    /// What to see to.
    pub warnings: Vec<String>,
}

struct Inner {
    files: PeerTlsFiles,
    /// Where other brokers dial this one.
    hosts: Vec<String>,
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    current: ArcSwap<Material>,
    seen: Mutex<Seen>,
    /// It was told that others may read the key.
    exposed: AtomicBool,
    metrics: TlsMetrics,
}

impl PeerTls {
    /// Plain connections only.
    #[must_use]
    pub fn off() -> Self {
        Self::default()
    }

    /// Reads and checks the files. `hosts` are those under which other brokers dial this one: its certificate must be for all of them.
    /// Blocks while it reads.
    ///
    /// # Errors
    /// One line that says which file and what to do.
    pub fn load(
        files: PeerTlsFiles,
        hosts: Vec<String>,
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, PeerTlsError> {
        let (read, hash) = reload::read(&files, disk.as_ref())?;
        let material = Material::read(&read, &hosts, &clock)?;
        let metrics = TlsMetrics::default();
        metrics.valid_until(material.not_after);
        tracing::info!(
            mode = files.mode.name(),
            "peer connections use the certificate of {}, valid until {}",
            files.cert.display(),
            words::when(material.not_after)
        );
        let seen = Mutex::new(Seen::of(hash));
        let inner = Inner {
            files,
            hosts,
            disk,
            clock,
            current: ArcSwap::from_pointee(material),
            seen,
            exposed: AtomicBool::new(false),
            metrics,
        };
        inner.tell_exposed();
        Ok(Self {
            inner: Some(Arc::new(inner)),
        })
    }

    /// Checks the files as [`PeerTls::load`] does, and tells what will not be good for long. Blocks while it reads.
    ///
    /// # Errors
    /// As [`PeerTls::load`].
    pub fn check(
        files: &PeerTlsFiles,
        hosts: &[String],
        disk: &dyn Disk,
        clock: &Arc<dyn Clock>,
    ) -> Result<PeerTlsCheck, PeerTlsError> {
        let (read, _) = reload::read(files, disk)?;
        let material = Material::read(&read, hosts, clock)?;
        let ends = reload::ends(files, &material, reload::seconds(clock.as_ref()), None);
        let exposed = reload::exposed(files, disk);
        Ok(PeerTlsCheck {
            valid_until: words::when(material.not_after),
            warnings: ends.into_iter().chain(exposed).collect(),
        })
    }

    /// Takes new files into use as they come, until the tasks stop. Open connections stay as they are.
    pub fn watch(&self, tasks: &Tasks) {
        let Some(inner) = &self.inner else { return };
        let inner = Arc::clone(inner);
        tasks.supervise("peer-tls-files", RESTART_PAUSE, move || {
            let inner = Arc::clone(&inner);
            async move {
                loop {
                    let looking = Arc::clone(&inner);
                    let looked = tokio::task::spawn_blocking(move || looking.look()).await;
                    if let Err(error) = looked {
                        tracing::error!("looking at the files of peer.tls-* failed: {error}");
                    }
                    tokio::time::sleep(LOOK_PAUSE).await;
                }
            }
        });
    }

    /// Puts the metrics into `registry`, if TLS is on.
    pub fn register(&self, registry: &mut Registry) {
        if let Some(inner) = &self.inner {
            inner.metrics.register(registry);
        }
    }

    /// Looks at the files once, if TLS is on.
    #[cfg(test)]
    pub(super) fn look(&self) {
        if let Some(inner) = &self.inner {
            inner.look();
        }
    }

    pub(super) fn metrics(&self) -> Option<&TlsMetrics> {
        self.inner.as_ref().map(|inner| &inner.metrics)
    }

    pub(super) fn is_on(&self) -> bool {
        self.inner.is_some()
    }

    fn mode(&self) -> TlsMode {
        self.inner
            .as_ref()
            .map_or(TlsMode::Off, |inner| inner.files.mode)
    }

    pub(super) fn takes_plain(&self) -> bool {
        self.mode().takes_plain()
    }

    /// The caller's half of the TLS handshake, if this broker dials TLS; the stream itself else. The caller sets the deadline.
    pub(super) async fn connect(&self, host: &str, stream: BoxStream) -> Result<BoxStream, String> {
        let Some(inner) = self.inner.as_ref().filter(|_| self.mode().dials_tls()) else {
            return Ok(stream);
        };
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| format!("\"{host}\" is no name that a certificate can be for"))?;
        let client = Arc::clone(&inner.current.load().client);
        let stream = BufReader::with_capacity(READ_BYTES, stream);
        let connected = TlsConnector::from(client).connect(name, stream).await;
        match connected {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) => Err(words::connection(&error)),
        }
    }

    /// The listener's half, for a connection that begins with `head`. The caller sets the deadline.
    pub(super) async fn accept(
        &self,
        head: [u8; HEAD_BYTES],
        stream: BoxStream,
    ) -> Result<BoxStream, String> {
        let Some(inner) = &self.inner else {
            return Err("TLS is off".to_owned());
        };
        let server = Arc::clone(&inner.current.load().server);
        let stream = BufReader::with_capacity(READ_BYTES, Prefixed::new(head, stream));
        let accepting = TlsAcceptor::from(server).accept(stream).into_fallible();
        match accepting.await {
            Ok(stream) => Ok(Box::new(stream)),
            Err((error, stream)) => {
                linger(stream).await;
                Err(words::connection(&error))
            }
        }
    }
}

/// Waits until the caller has closed, in turn, a connection that is refused.
async fn linger(mut stream: BufReader<Prefixed>) {
    let read = async {
        let mut rest = [0; 1024];
        stream.shutdown().await?;
        while stream.read(&mut rest).await? > 0 {}
        Ok::<_, io::Error>(())
    };
    // It may be gone already: then there is nobody to tell.
    let _ = timeout(LINGER, read).await;
}

/// Whether a connection begins as TLS does: a record of the handshake, a hello in it.
pub(super) fn is_tls(head: &[u8; HEAD_BYTES]) -> bool {
    head[0] == 22 && head[1] == 3 && head[5] == 1
}

/// What TLS says about a connection that failed after its handshake.
pub(super) fn refusal(error: &io::Error) -> Option<String> {
    words::refusal(error)
}
