//! Certificates of the rig's brokers, and configurations that name them.
//!
//! Owns: authorities, the files beside a broker's configuration.
//! Not here: what brokers do with them (docs/protocols/peer.md).
//! Spec: docs/operating/three-brokers.md

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Result;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

/// Where others dial a broker of the rig.
const HOST: &str = "127.0.0.1";

/// One who signs certificates of brokers.
pub struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// A new one, with a key of its own.
    ///
    /// # Errors
    /// There is no randomness.
    pub fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate()?;
        Ok(Self {
            pem: params.self_signed(&key)?.pem(),
            issuer: Issuer::new(params, key),
        })
    }

    /// Writes a new certificate, its key, and the authority's own certificate.
    pub(crate) fn certify(&self, folder: &Path) -> Result<()> {
        let key = KeyPair::generate()?;
        let cert = CertificateParams::new([HOST.to_owned()])?.signed_by(&key, &self.issuer)?;
        std::fs::write(folder.join("cert.pem"), cert.pem())?;
        let at = folder.join("key.pem");
        std::fs::write(&at, key.serialize_pem())?;
        std::fs::set_permissions(&at, std::fs::Permissions::from_mode(0o600))?;
        Ok(std::fs::write(folder.join("ca.pem"), &self.pem)?)
    }
}

/// `text`, a configuration, with TLS of this mode and the files in `folder`.
pub(crate) fn configured(text: &str, folder: &Path, mode: &str) -> String {
    let (before, after) = text.split_once("[peer]\n").unwrap_or((text, ""));
    let keys = after.lines().skip_while(|line| line.starts_with("tls-"));
    let keys: Vec<_> = keys.collect();
    let at = |name| folder.join(name);
    format!(
        "{before}[peer]\ntls-mode = \"{mode}\"\ntls-cert-file = {:?}\ntls-key-file = {:?}\ntls-ca-file = {:?}\n{}\n",
        at("cert.pem"),
        at("key.pem"),
        at("ca.pem"),
        keys.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    // Proves: the keys come into their section, once however often the mode changes.
    #[test]
    fn the_mode_changes() {
        let plain = "[node]\nid = 1\n[peer]\nlisten = \"x\"\n[admin]\n";
        let folder = Path::new("/f");
        let first = configured(plain, folder, "allow");
        assert_eq!(
            first,
            "[node]\nid = 1\n[peer]\ntls-mode = \"allow\"\ntls-cert-file = \"/f/cert.pem\"\ntls-key-file = \"/f/key.pem\"\ntls-ca-file = \"/f/ca.pem\"\nlisten = \"x\"\n[admin]\n"
        );
        let second = configured(&first, folder, "prefer");
        assert_eq!(second, first.replace("allow", "prefer"));
    }
}
