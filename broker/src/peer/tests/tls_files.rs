//! The files of TLS: what is wrong with them is one line, and what changes is taken while the broker runs.

use super::*;
use crate::config::TlsMode;
use crate::peer::certificates::{Authority, Issued, files, key_mode, load, write};
use rcgen::{ExtendedKeyUsagePurpose, date_time_ymd};
use tempfile::TempDir;
use tidelog_env::{RealDisk, SystemClock};

const HERE: &[&str] = &["127.0.0.1"];

/// What loading files says that `break_it` has changed after good ones were written.
fn wrong(break_it: impl FnOnce(&Authority, &TempDir)) -> String {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    write(dir.path(), &authority.issue(HERE), &authority.pem);
    break_it(&authority, &dir);
    let error = load(dir.path(), TlsMode::Require).err();
    let text = error.expect("refused").to_string();
    assert_eq!(text.lines().count(), 1, "{text}");
    text.replace(&dir.path().display().to_string(), "")
}

#[allow(clippy::disallowed_methods, reason = "an operator writes these")]
fn put(dir: &TempDir, name: &str, text: impl AsRef<[u8]>) {
    std::fs::write(dir.path().join(name), text).unwrap();
}

#[allow(clippy::disallowed_methods, reason = "an operator removes these")]
fn remove(dir: &TempDir, name: &str) {
    std::fs::remove_file(dir.path().join(name)).unwrap();
}

/// Proves that files that are missing or hold something else are named with their key, and that nothing of a private key is told.
#[test]
fn unreadable_files_are_named() {
    let says = |text: String, expected: &str| assert_eq!(text, expected);
    says(
        wrong(|_, dir| remove(dir, "cert.pem")),
        "peer.tls-cert-file = /cert.pem: No such file or directory (os error 2)",
    );
    says(
        wrong(|_, dir| put(dir, "ca.pem", vec![b'x'; (1 << 20) + 1])),
        "peer.tls-ca-file = /ca.pem: larger than 1048576 bytes",
    );
    says(
        wrong(|_, dir| put(dir, "ca.pem", "")),
        "peer.tls-ca-file = /ca.pem: no certificate in it (-----BEGIN CERTIFICATE-----)",
    );
    says(
        wrong(|_, dir| put(dir, "cert.pem", "-----BEGIN CERTIFICATE-----\n!\n")),
        "peer.tls-cert-file = /cert.pem: it is not PEM from beginning to end",
    );
    let nonsense = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    says(
        wrong(|_, dir| put(dir, "cert.pem", nonsense)),
        "peer.tls-cert-file = /cert.pem: the certificate cannot be read",
    );
    let many = wrong(|authority, dir| put(dir, "ca.pem", authority.pem.repeat(33)));
    assert!(many.contains("more than 32 certificates"), "{many}");
    let ca = wrong(|_, dir| put(dir, "ca.pem", nonsense));
    assert!(
        ca.contains("a certificate in it is not one of a CA"),
        "{ca}"
    );
    says(
        wrong(|authority, dir| put(dir, "key.pem", &authority.pem)),
        "peer.tls-key-file = /key.pem: no private key in it (-----BEGIN PRIVATE KEY-----)",
    );
    let locked =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let text = wrong(|_, dir| put(dir, "key.pem", locked));
    assert!(text.contains("the private key has a passphrase"), "{text}");
    for secret in [
        "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n",
        "-----BEGIN PRIVATE KEY-----\nsecret secret!\n-----END PRIVATE KEY-----\n",
        "-----BEGIN PRIVATE KEY-----\nsecret\n",
        "-----BEGIN secret",
    ] {
        let text = wrong(|_, dir| put(dir, "key.pem", secret));
        assert!(text.starts_with("peer.tls-key-file = /key.pem: "), "{text}");
        assert!(!text.contains("secret") && !text.contains("c2Vj"), "{text}");
    }
}

/// Proves that what the others would refuse is found before anybody connects.
#[test]
fn what_others_would_refuse_is_found_at_the_start() {
    let issued = |dir: &TempDir, authority: &Authority, issued: &Issued| {
        write(dir.path(), issued, &authority.pem);
    };
    let key = wrong(|authority, dir| put(dir, "key.pem", authority.issue(HERE).key));
    assert_eq!(
        key,
        "peer.tls-key-file = /key.pem: not the key of the certificate in peer.tls-cert-file = /cert.pem"
    );
    let other = wrong(|_, dir| put(dir, "ca.pem", Authority::new().pem));
    assert_eq!(
        other,
        "peer.tls-cert-file = /cert.pem: the certificate is not signed by a CA in peer.tls-ca-file = /ca.pem, or a certificate between them is missing from the file"
    );
    let old = wrong(|authority, dir| {
        let expired = authority.issue_with(HERE, |params| {
            params.not_after = date_time_ymd(2020, 2, 3);
        });
        issued(dir, authority, &expired);
    });
    assert_eq!(
        old,
        "peer.tls-cert-file = /cert.pem: the certificate has expired at 2020-02-03T00:00:00Z"
    );
    let early = wrong(|authority, dir| {
        let early = authority.issue_with(HERE, |params| {
            params.not_before = date_time_ymd(2090, 1, 1);
        });
        issued(dir, authority, &early);
    });
    assert!(
        early.contains("not valid before 2090-01-01T00:00:00Z (is a clock wrong?)"),
        "{early}"
    );
    for (purpose, allowed) in [
        (ExtendedKeyUsagePurpose::ServerAuth, "server"),
        (ExtendedKeyUsagePurpose::ClientAuth, "client"),
    ] {
        let text = wrong(|authority, dir| {
            let one = authority.issue_with(HERE, |params| {
                params.extended_key_usages = vec![purpose];
            });
            issued(dir, authority, &one);
        });
        assert!(
            text.contains("allowed for servers and for clients"),
            "{allowed}: {text}"
        );
    }
    let named = |hosts: &'static [&'static str]| {
        wrong(|authority, dir| issued(dir, authority, &authority.issue(hosts)))
    };
    assert_eq!(
        named(&["tidelog-2", "10.0.0.7"]),
        "peer.tls-cert-file = /cert.pem: the certificate is for tidelog-2, 10.0.0.7, not for 127.0.0.1, where other brokers dial this one (cluster.seeds, peer.advertised)"
    );
    assert!(named(&[]).contains("names no host (subjectAltName), not for 127.0.0.1"));
}

/// Proves that other kinds of keys, a certificate without extended key usage, one that a CA between has signed, and several names are as good.
#[test]
fn other_good_certificates_are_taken() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    let plain = authority.issue_with(HERE, |params| params.extended_key_usages = Vec::new());
    write(dir.path(), &plain, &authority.pem);
    let tls = load(dir.path(), TlsMode::Require).expect("good");
    let expires = tls.metrics().unwrap().expires_at();
    assert_eq!(expires, date_time_ymd(2100, 1, 1).unix_timestamp());
    for kind in [
        &rcgen::PKCS_RSA_SHA256,
        &rcgen::PKCS_ECDSA_P384_SHA384,
        &rcgen::PKCS_ED25519,
    ] {
        let key = rcgen::KeyPair::generate_for(kind).unwrap();
        write(dir.path(), &authority.issue_for(HERE, &key), &authority.pem);
        load(dir.path(), TlsMode::Require).expect("good");
    }
    let between = authority.between();
    let mut issued = between.issue(HERE);
    write(dir.path(), &issued, &authority.pem);
    let text = load(dir.path(), TlsMode::Require)
        .err()
        .unwrap()
        .to_string();
    let missing = "or a certificate between them is missing from the file";
    assert!(text.contains(missing), "{text}");
    issued.cert.push_str(&between.pem);
    write(dir.path(), &issued, &authority.pem);
    load(dir.path(), TlsMode::Require).expect("good");
    // By name, in capitals too, and by all that it is dialled by.
    let named = authority.issue(&["tidelog-1.example", "10.0.0.1", "*.inner.example"]);
    write(dir.path(), &named, &authority.pem);
    let at = |hosts: &[&str]| {
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        let (disk, clock) = (RealDisk::shared(), SystemClock::shared());
        let loaded = PeerTls::load(files(dir.path(), TlsMode::Require), hosts, disk, clock);
        loaded.map(|_| ()).map_err(|error| error.to_string())
    };
    let all = ["Tidelog-1.Example", "10.0.0.1", "one.inner.example"];
    assert_eq!(at(&all), Ok(()));
    let text = at(&["10.0.0.1", "10.0.0.2"]).unwrap_err();
    assert!(text.contains("not for 10.0.0.2"), "{text}");
    let text = at(&["no host"]).unwrap_err();
    assert!(text.contains("\"no host\", where other brokers"), "{text}");
    // Of many names a line tells some.
    let names: Vec<String> = (0..20).map(|number| format!("n{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    write(dir.path(), &authority.issue(&names), &authority.pem);
    let text = at(&["10.0.0.1"]).unwrap_err();
    assert!(text.contains("n6, n7 and 12 more, not for"), "{text}");
}

/// Proves that new files are taken as they come, that bad ones leave the old ones in use and are told once, at the second look, and that the
/// brokers go on talking all the while, also across a change of the CA.
#[tokio::test]
async fn files_are_taken_as_they_change() {
    let (log, _logged) = Log::start();
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    write(dir.path(), &authority.issue(HERE), &authority.pem);
    let one = load(dir.path(), TlsMode::Require).unwrap();
    let before = one.metrics().unwrap().expires_at();
    one.look();
    assert_eq!(one.metrics().unwrap().reloads.get(), 0);

    // The certificate comes before its key: nobody is alarmed.
    let next = authority.issue_with(HERE, |params| {
        params.not_after = date_time_ymd(2090, 1, 1);
    });
    put(&dir, "cert.pem", &next.cert);
    one.look();
    assert_eq!(one.metrics().unwrap().expires_at(), before);
    put(&dir, "key.pem", &next.key);
    one.look();
    let after = one.metrics().unwrap().expires_at();
    assert_eq!(after, date_time_ymd(2090, 1, 1).unix_timestamp());
    assert!(log.lines().is_empty(), "{:?}", log.lines());

    put(&dir, "cert.pem", "");
    for _ in 0..3 {
        one.look();
    }
    let lines = log.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].contains("the certificate that was in use stays in use: peer.tls-cert-file = ")
            && lines[0].contains("no certificate in it"),
        "{lines:?}"
    );
    let metrics = one.metrics().unwrap();
    assert_eq!(
        (metrics.reload_failures.get(), metrics.reloads.get()),
        (1, 1)
    );
    assert_eq!(metrics.expires_at(), after);

    // Both CAs, then the new certificate, then the new CA alone: what a new CA takes.
    let successor = Authority::new();
    let both = format!("{}{}", authority.pem, successor.pem);
    for (issued, ca) in [
        (authority.issue(HERE), &both),
        (successor.issue(HERE), &both),
        (successor.issue(HERE), &successor.pem),
    ] {
        write(dir.path(), &issued, ca);
        one.look();
    }
    assert_eq!(metrics.reloads.get(), 4);
    assert_eq!(log.lines().len(), 1);
}

/// Proves that a private key which others may read is taken, and told of once, at the start or when it comes to be so.
#[tokio::test]
async fn a_key_that_others_may_read_is_told() {
    let (log, _logged) = Log::start();
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    write(dir.path(), &authority.issue(HERE), &authority.pem);
    let good = load(dir.path(), TlsMode::Require).unwrap();
    assert!(log.lines().is_empty(), "{:?}", log.lines());
    for mode in [0o640, 0o604] {
        let before = log.lines().len();
        key_mode(dir.path(), mode);
        let one = load(dir.path(), TlsMode::Require).unwrap();
        one.look();
        let lines = log.lines();
        assert_eq!(lines.len(), before + 1, "{lines:?}");
        assert!(lines[before].contains("chmod 600"), "{lines:?}");
    }
    // The files are as readable as they were when the next certificate comes.
    put(&dir, "key.pem", "");
    write(dir.path(), &authority.issue(HERE), &authority.pem);
    key_mode(dir.path(), 0o644);
    good.look();
    good.look();
    assert_eq!(log.lines().len(), 3, "{:?}", log.lines());
    // Who asks is told each time.
    let names = files(dir.path(), TlsMode::Require);
    let hosts = ["127.0.0.1".to_owned()];
    let check = || PeerTls::check(&names, &hosts, &RealDisk, &SystemClock::shared()).unwrap();
    let found = check();
    assert_eq!(found.valid_until, "2100-01-01T00:00:00Z");
    assert!(found.warnings.len() == 1 && found.warnings[0].contains("chmod 600"));
    key_mode(dir.path(), 0o600);
    assert!(check().warnings.is_empty());
}
