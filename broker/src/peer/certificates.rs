//! Certificates for tests: authorities, and brokers' files in a directory.

use crate::config::{PeerTlsFiles, TlsMode};
use crate::peer::{PeerTls, PeerTlsError};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tidelog_env::{RealDisk, SystemClock};

/// A CA. All have the same name, as CAs that follow each other have.
pub(crate) struct Authority {
    pub(crate) pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, PEM.
pub(crate) struct Issued {
    pub(crate) cert: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_before = date_time_ymd(2000, 1, 1);
        let key = KeyPair::generate().unwrap();
        Self {
            pem: params.self_signed(&key).unwrap().pem(),
            issuer: Issuer::new(params, key),
        }
    }

    /// A CA that this one has signed.
    pub(crate) fn between(&self) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, "between");
        let key = KeyPair::generate().unwrap();
        Self {
            pem: params.signed_by(&key, &self.issuer).unwrap().pem(),
            issuer: Issuer::new(params, key),
        }
    }

    /// For these hosts, valid for a long time.
    pub(crate) fn issue(&self, hosts: &[&str]) -> Issued {
        self.issue_with(hosts, |_| {})
    }

    pub(crate) fn issue_with(
        &self,
        hosts: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> Issued {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(2100, 1, 1);
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        change(&mut params);
        self.sign(&params, &KeyPair::generate().unwrap())
    }

    /// For this key.
    pub(crate) fn issue_for(&self, hosts: &[&str], key: &KeyPair) -> Issued {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        self.sign(&CertificateParams::new(hosts).unwrap(), key)
    }

    fn sign(&self, params: &CertificateParams, key: &KeyPair) -> Issued {
        Issued {
            cert: params.signed_by(key, &self.issuer).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }
}

/// Where the files of a broker are in `dir`.
pub(crate) fn files(dir: &Path, mode: TlsMode) -> PeerTlsFiles {
    PeerTlsFiles {
        mode,
        cert: dir.join("cert.pem"),
        key: dir.join("key.pem"),
        ca: dir.join("ca.pem"),
    }
}

/// Writes the files of a broker into `dir`.
#[allow(clippy::disallowed_methods, reason = "an operator writes these")]
pub(crate) fn write(dir: &Path, issued: &Issued, ca: &str) {
    std::fs::create_dir_all(dir).unwrap();
    std::fs::write(dir.join("cert.pem"), &issued.cert).unwrap();
    std::fs::write(dir.join("key.pem"), &issued.key).unwrap();
    key_mode(dir, 0o600);
    std::fs::write(dir.join("ca.pem"), ca).unwrap();
}

/// Says who may read the key in `dir`.
#[allow(clippy::disallowed_methods, reason = "an operator does this")]
pub(crate) fn key_mode(dir: &Path, mode: u32) {
    let permissions = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(dir.join("key.pem"), permissions).unwrap();
}

/// TLS with the files in `dir`, for a broker that is dialled at 127.0.0.1.
pub(crate) fn load(dir: &Path, mode: TlsMode) -> Result<PeerTls, PeerTlsError> {
    let (disk, clock) = (RealDisk::shared(), SystemClock::shared());
    let hosts = vec!["127.0.0.1".to_owned()];
    PeerTls::load(files(dir, mode), hosts, disk, clock)
}
