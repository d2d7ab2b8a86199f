//! TLS of the connections between brokers, as the configuration says it.
//!
//! Owns: the modes, which keys go together.
//! Not here: what the files hold (`peer::tls`).
//! Spec: docs/protocols/peer.md (TLS)

use super::Config;
use super::load::ConfigError;
use std::path::PathBuf;

/// What peer connections are: the steps of a cluster on its way from plain connections to TLS, each of which gets on with its neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsMode {
    /// Plain connections only.
    Off,
    /// Takes both, dials plain.
    Allow,
    /// Takes both, dials TLS.
    Prefer,
    /// TLS only.
    Require,
}

impl TlsMode {
    const ALL: [Self; 4] = [Self::Off, Self::Allow, Self::Prefer, Self::Require];

    /// As it stands in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Allow => "allow",
            Self::Prefer => "prefer",
            Self::Require => "require",
        }
    }

    /// Whether the listener takes connections without TLS.
    #[must_use]
    pub const fn takes_plain(self) -> bool {
        !matches!(self, Self::Require)
    }

    /// Whether this broker connects to others with TLS. There is no way back to plain if that fails: who could make it fail could read along.
    #[must_use]
    pub const fn dials_tls(self) -> bool {
        matches!(self, Self::Prefer | Self::Require)
    }
}

/// `peer.tls-*`, when it is not off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerTlsFiles {
    /// Not [`TlsMode::Off`].
    pub mode: TlsMode,
    /// The broker's certificate, then those between it and the CA.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Certificates of the CAs whose certificates brokers have.
    pub ca: PathBuf,
}

fn wrong<T>(text: String) -> Result<T, ConfigError> {
    Err(ConfigError::new(text))
}

impl Config {
    /// TLS between brokers; `None` when it is off.
    #[must_use]
    pub fn peer_tls(&self) -> Option<PeerTlsFiles> {
        // Checked when the configuration was loaded.
        self.read_peer_tls().ok().flatten()
    }

    pub(super) fn check_peer_tls(&self) -> Result<(), ConfigError> {
        self.read_peer_tls().map(|_| ())
    }

    fn read_peer_tls(&self) -> Result<Option<PeerTlsFiles>, ConfigError> {
        let peer = &self.peer;
        let named = TlsMode::ALL
            .into_iter()
            .find(|mode| mode.name() == peer.tls_mode);
        if named.is_none() && !peer.tls_mode.is_empty() {
            return wrong(format!(
                "peer.tls-mode = {:?}: expected off, allow, prefer or require",
                peer.tls_mode
            ));
        }
        let files = [
            ("peer.tls-cert-file", &peer.tls_cert_file),
            ("peer.tls-key-file", &peer.tls_key_file),
            ("peer.tls-ca-file", &peer.tls_ca_file),
        ];
        let of = |set: bool| {
            let files = files.iter();
            let files = files.filter(move |(_, path)| path.as_os_str().is_empty() != set);
            files.map(|(key, _)| *key).collect::<Vec<_>>()
        };
        let (set, missing) = (of(true), of(false));
        let default = if set.is_empty() {
            TlsMode::Off
        } else {
            TlsMode::Require
        };
        let mode = named.unwrap_or(default);
        if !set.is_empty() && !missing.is_empty() {
            return wrong(format!(
                "{} set without {}: TLS between brokers needs all three",
                set.join(" and "),
                missing.join(" and ")
            ));
        }
        if mode == TlsMode::Off {
            return Ok(None);
        }
        if set.is_empty() {
            return wrong(format!(
                "peer.tls-mode = \"{}\" needs {}",
                mode.name(),
                missing.join(", ")
            ));
        }
        Ok(Some(PeerTlsFiles {
            mode,
            cert: peer.tls_cert_file.clone(),
            key: peer.tls_key_file.clone(),
            ca: peer.tls_ca_file.clone(),
        }))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::super::Sources;
    use super::*;

    fn load(set: &[&str]) -> Result<Option<PeerTlsFiles>, String> {
        let sources = Sources {
            set: set.iter().map(|set| (*set).to_owned()).collect(),
            ..Sources::default()
        };
        let config = Config::load(&sources).map_err(|error| error.to_string())?;
        Ok(config.peer_tls())
    }

    const FILES: [&str; 3] = [
        "peer.tls-cert-file=/c",
        "peer.tls-key-file=/k",
        "peer.tls-ca-file=/a",
    ];

    fn with(mode: &str) -> Result<Option<PeerTlsFiles>, String> {
        load(&[FILES[0], FILES[1], FILES[2], mode])
    }

    /// Proves that the files alone mean TLS only, that the mode can be set beside them, and what each mode does.
    #[test]
    fn files_mean_tls_only() {
        assert_eq!(load(&[]), Ok(None));
        assert_eq!(load(&["peer.tls-mode=off"]), Ok(None));
        let alone = load(&FILES).unwrap().unwrap();
        assert_eq!((alone.mode, alone.key), (TlsMode::Require, "/k".into()));
        assert_eq!(with("peer.tls-mode=off"), Ok(None));
        for (mode, takes_plain, dials_tls) in [
            ("allow", true, false),
            ("prefer", true, true),
            ("require", false, true),
        ] {
            let read = with(&format!("peer.tls-mode={mode}")).unwrap().unwrap();
            assert_eq!(read.mode.name(), mode);
            assert_eq!(
                (read.mode.takes_plain(), read.mode.dials_tls()),
                (takes_plain, dials_tls)
            );
        }
    }

    /// Proves that half a setting is refused with the keys that are missing.
    #[test]
    fn half_a_setting_is_refused() {
        let text = |set: &[&str]| load(set).unwrap_err();
        assert_eq!(
            text(&FILES[..2]),
            "peer.tls-cert-file and peer.tls-key-file set without peer.tls-ca-file: TLS between brokers needs all three"
        );
        assert_eq!(
            text(&["peer.tls-mode=allow"]),
            "peer.tls-mode = \"allow\" needs peer.tls-cert-file, peer.tls-key-file, peer.tls-ca-file"
        );
        assert_eq!(
            with("peer.tls-mode=on").unwrap_err(),
            "peer.tls-mode = \"on\": expected off, allow, prefer or require"
        );
        // Half is wrong also where it has no effect: it would be missed on the day of need.
        assert!(text(&[FILES[0], "peer.tls-mode=off"]).contains("set without"));
    }
}
