//! What is wrong with a certificate or a TLS handshake, in words for the people who run brokers.
//!
//! Owns: the texts. Pure.
//! Not here: who is told (`mod.rs`, `greeting.rs`, `dial.rs`).

use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};
use std::io;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Names of a certificate that a line tells.
const NAMES_MAX: usize = 8;

/// A point in time, as `2026-01-31T12:00:00Z`.
pub(super) fn when(seconds: u64) -> String {
    i64::try_from(seconds)
        .ok()
        .and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok())
        .and_then(|time| time.format(&Rfc3339).ok())
        .unwrap_or_else(|| format!("{seconds} s after 1970"))
}

fn at(time: &UnixTime) -> String {
    when(time.as_secs())
}

/// What is wrong with a certificate.
pub(super) fn certificate(error: &CertificateError) -> String {
    match error {
        CertificateError::ExpiredContext { not_after, .. } => {
            format!("the certificate has expired at {}", at(not_after))
        }
        CertificateError::NotValidYetContext { not_before, .. } => format!(
            "the certificate is not valid before {} (is a clock wrong?)",
            at(not_before)
        ),
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "the certificate is not signed by a CA of peer.tls-ca-file".to_owned()
        }
        CertificateError::NotValidForNameContext {
            expected,
            presented,
        } => {
            let names = if presented.is_empty() {
                "names no host (subjectAltName)".to_owned()
            } else {
                let names = presented.iter().take(NAMES_MAX).map(|name| bare(name));
                let more = presented.len().saturating_sub(NAMES_MAX);
                let names = names.collect::<Vec<_>>().join(", ");
                match more {
                    0 => format!("is for {names}"),
                    more => format!("is for {names} and {more} more"),
                }
            };
            format!("the certificate {names}, not for {}", expected.to_str())
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "the certificate must be allowed for servers and for clients (extendedKeyUsage serverAuth and clientAuth, or none)".to_owned()
        }
        CertificateError::BadEncoding => "the certificate cannot be read".to_owned(),
        other => format!("the certificate is refused: {other}"),
    }
}

/// `DnsName("a")`, `IpAddress(1.2.3.4)`: what is inside.
fn bare(presented: &str) -> &str {
    let inside = presented
        .split_once('(')
        .and_then(|(_, rest)| rest.strip_suffix(')'));
    inside.map_or(presented, |name| name.trim_matches('"'))
}

/// Why there is no TLS connection with a peer, or why it ended.
pub(super) fn connection(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    match inner {
        Some(error) => tls(error),
        None if is_end(error) => {
            "it ended the connection in the TLS handshake: is its peer.tls-mode off?".to_owned()
        }
        None => format!("the connection failed in the TLS handshake: {error}"),
    }
}

fn is_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionAborted
    )
}

/// What TLS says once a connection is there, if it is TLS that says it: a listener judges the caller's certificate after the caller's handshake is done.
pub(super) fn refusal(error: &io::Error) -> Option<String> {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    inner.map(tls)
}

fn tls(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(error) => format!("its certificate: {}", certificate(error)),
        Error::NoCertificatesPresented => "it has shown no certificate".to_owned(),
        Error::AlertReceived(alert) => alerted(*alert),
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "what it sends is not TLS: is its peer.tls-mode off?".to_owned()
        }
        Error::PeerIncompatible(_) => format!("it does not speak TLS 1.3 as brokers do ({error})"),
        other => format!("TLS failed: {other}"),
    }
}

/// The other side has refused.
fn alerted(alert: AlertDescription) -> String {
    let why = match alert {
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "it is not signed by a CA of its peer.tls-ca-file"
        }
        AlertDescription::CertificateExpired => "it has expired, or a clock is wrong",
        AlertDescription::BadCertificate => "it is not for the host that was dialled, or not sound",
        AlertDescription::UnsupportedCertificate => "it is not allowed for this use",
        AlertDescription::CertificateRequired => "there is none",
        other => return format!("it refuses the TLS connection ({other:?})"),
    };
    format!("it refuses the certificate of this broker: {why}")
}
