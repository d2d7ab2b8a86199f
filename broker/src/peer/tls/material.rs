//! What the three files hold: a certificate, its key, the CAs; checked, and made into what a connection needs.
//!
//! Owns: [`Material`], every check that can be made before anybody connects.
//! Not here: reading files and when (`reload.rs`).
//! Spec: docs/protocols/peer.md (TLS)

use super::words;
use rustls::client::danger::ServerCertVerifier;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::time_provider::TimeProvider;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, Error, InconsistentKeys, RootCertStore, ServerConfig,
};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::Clock;

/// Certificates in one file. A chain has two or three, a bundle of CAs as many while they change.
const CERTIFICATES_MAX: usize = 32;

/// Why the files of `peer.tls-*` cannot be used: one line that names the key, the file, and what to do. Nothing of a private key is in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PeerTlsError(pub(super) String);

/// One of the three files.
pub(super) struct PemFile {
    pub(super) key: &'static str,
    pub(super) path: PathBuf,
    pub(super) bytes: Vec<u8>,
}

impl PemFile {
    fn wrong<T>(&self, what: impl std::fmt::Display) -> Result<T, PeerTlsError> {
        let (key, path) = (self.key, self.path.display());
        Err(PeerTlsError(format!("{key} = {path}: {what}")))
    }

    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, PeerTlsError> {
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.bytes)
            .take(CERTIFICATES_MAX + 1)
            .collect();
        match read {
            Ok(found) if found.is_empty() => {
                self.wrong("no certificate in it (-----BEGIN CERTIFICATE-----)")
            }
            Ok(found) if found.len() > CERTIFICATES_MAX => {
                self.wrong(format!("more than {CERTIFICATES_MAX} certificates in it"))
            }
            Ok(found) => Ok(found),
            Err(_) => self.wrong("it is not PEM from beginning to end"),
        }
    }

    /// What the parser says is not told: it may quote the file.
    fn private_key(&self) -> Result<PrivateKeyDer<'static>, PeerTlsError> {
        match PrivateKeyDer::from_pem_slice(&self.bytes) {
            Ok(key) => Ok(key),
            Err(_) if contains(&self.bytes, b"ENCRYPTED") => self.wrong(
                "the private key has a passphrase: write it without one (openssl pkey -in FILE -out FILE)",
            ),
            Err(_) => self.wrong("no private key in it (-----BEGIN PRIVATE KEY-----)"),
        }
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// The three files.
pub(super) struct Files {
    pub(super) cert: PemFile,
    pub(super) key: PemFile,
    pub(super) ca: PemFile,
}

/// What a connection needs.
pub(super) struct Material {
    pub(super) client: Arc<ClientConfig>,
    pub(super) server: Arc<ServerConfig>,
    /// Seconds since the Unix epoch between which the own certificate is valid.
    pub(super) not_before: u64,
    pub(super) not_after: u64,
}

/// The node's clock, for validity.
struct ClockTime(Arc<dyn Clock>);

impl std::fmt::Debug for ClockTime {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("the node's clock")
    }
}

impl TimeProvider for ClockTime {
    fn current_time(&self) -> Option<UnixTime> {
        let now = u64::try_from(self.0.now_ms()).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_millis(now)))
    }
}

/// The two ends' rules of who is a broker.
struct Verifiers {
    server: Arc<WebPkiServerVerifier>,
    client: Arc<dyn ClientCertVerifier>,
}

impl Material {
    /// Reads and checks the files. `hosts` are where other brokers dial this one.
    pub(super) fn read(
        files: &Files,
        hosts: &[String],
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, PeerTlsError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let chain = files.cert.certificates()?;
        let own = own_key(files, chain.clone(), &provider)?;
        let verifiers = verifiers(files, &provider)?;
        let time: Arc<dyn TimeProvider> = Arc::new(ClockTime(Arc::clone(clock)));
        let now = time
            .current_time()
            .ok_or_else(|| PeerTlsError("the clock stands before 1970".to_owned()))?;
        let (not_before, not_after) = check_own(files, &chain, &verifiers, hosts, now)?;
        let failed = |error: Error| PeerTlsError(format!("TLS between brokers: {error}"));
        let own = Arc::new(SingleCertAndKey::from(own));
        let mut client =
            ClientConfig::builder_with_details(Arc::clone(&provider), Arc::clone(&time))
                .with_protocol_versions(&[&TLS13])
                .map_err(failed)?
                .with_webpki_verifier(verifiers.server)
                .with_client_cert_resolver(Arc::clone(&own) as _);
        let mut server = ServerConfig::builder_with_details(provider, time)
            .with_protocol_versions(&[&TLS13])
            .map_err(failed)?
            .with_client_cert_verifier(verifiers.client)
            .with_cert_resolver(own);
        // Every connection shows its certificate: a resumed one would live on what was valid then.
        client.resumption = Resumption::disabled();
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok(Self {
            client: Arc::new(client),
            server: Arc::new(server),
            not_before,
            not_after,
        })
    }
}

fn own_key(
    files: &Files,
    chain: Vec<CertificateDer<'static>>,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, PeerTlsError> {
    let key = files.key.private_key()?;
    match CertifiedKey::from_der(chain, key, provider) {
        Ok(own) => Ok(own),
        Err(Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => files.key.wrong(format!(
            "not the key of the certificate in peer.tls-cert-file = {}",
            files.cert.path.display()
        )),
        Err(Error::InvalidCertificate(error)) => files.cert.wrong(words::certificate(&error)),
        Err(_) => files.key.wrong(
            "this kind of private key is not supported: RSA of 2048 to 8192 bits, ECDSA (P-256, P-384, P-521), or Ed25519",
        ),
    }
}

fn verifiers(files: &Files, provider: &Arc<CryptoProvider>) -> Result<Verifiers, PeerTlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in files.ca.certificates()? {
        if let Err(error) = roots.add(certificate) {
            return files
                .ca
                .wrong(format!("a certificate in it is not one of a CA: {error}"));
        }
    }
    let roots = Arc::new(roots);
    let (own, theirs) = (Arc::clone(provider), Arc::clone(provider));
    let server = WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), own).build();
    let client = WebPkiClientVerifier::builder_with_provider(roots, theirs).build();
    match (server, client) {
        (Ok(server), Ok(client)) => Ok(Verifiers { server, client }),
        (Err(error), _) | (_, Err(error)) => files.ca.wrong(error),
    }
}

/// The own certificate as the others will see it, in both roles. From when until when it is valid.
fn check_own(
    files: &Files,
    chain: &[CertificateDer<'static>],
    verifiers: &Verifiers,
    hosts: &[String],
    now: UnixTime,
) -> Result<(u64, u64), PeerTlsError> {
    let wrong = |error: Error| {
        match error {
        Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            files.cert.wrong(format!(
                "the certificate is not signed by a CA in peer.tls-ca-file = {}, or a certificate between them is missing from the file",
                files.ca.path.display()
            ))
        }
        Error::InvalidCertificate(
            error @ (CertificateError::NotValidForNameContext { .. } | CertificateError::NotValidForName),
        ) => files.cert.wrong(format!(
            "{}, where other brokers dial this one (cluster.seeds, peer.advertised)",
            words::certificate(&error)
        )),
        Error::InvalidCertificate(error) => files.cert.wrong(words::certificate(&error)),
        error => files.cert.wrong(error),
    }
    };
    let Some((own, between)) = chain.split_first() else {
        return files.cert.wrong("no certificate in it");
    };
    let as_client = |time| verifiers.client.verify_client_cert(own, between, time);
    if let Err(error) = as_client(now) {
        return wrong(error);
    }
    for host in hosts {
        let Ok(name) = ServerName::try_from(host.clone()) else {
            return files.cert.wrong(format!(
                "\"{host}\", where other brokers dial this one, is no name that a certificate can be for"
            ));
        };
        let server = &verifiers.server;
        if let Err(error) = server.verify_server_cert(own, between, &name, &[], now) {
            return wrong(error);
        }
    }
    // The end of validity is what a check says that is made after it: no other parser of certificates than the one that judges them.
    let ends = match as_client(UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX))) {
        Err(Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => {
            not_after.as_secs()
        }
        _ => u64::MAX,
    };
    let begins = match as_client(UnixTime::since_unix_epoch(Duration::ZERO)) {
        Err(Error::InvalidCertificate(CertificateError::NotValidYetContext {
            not_before, ..
        })) => not_before.as_secs(),
        _ => 0,
    };
    Ok((begins, ends))
}
