//! TLS between brokers: who gets in, what who does not is told, and that nobody is kept out by others.

use super::receiver::Recorder;
use super::*;
use crate::config::TlsMode;
use crate::peer::certificates::{Authority, files, load, write};
use crate::placement::Lane;
use rcgen::date_time_ymd;
use std::path::Path;
use tempfile::TempDir;
use tidelog_env::{Clock, RealDisk};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const HERE: &[&str] = &["127.0.0.1"];

/// An authority, and the place of its brokers' files.
struct World {
    authority: Authority,
    dir: TempDir,
    book: Arc<Book>,
}

impl World {
    fn new() -> Self {
        Self {
            authority: Authority::new(),
            dir: tempfile::tempdir().unwrap(),
            book: Arc::default(),
        }
    }

    /// TLS of broker `id` with a certificate of its own.
    fn tls(&self, id: i32, mode: TlsMode) -> PeerTls {
        let dir = self.dir.path().join(id.to_string());
        write(&dir, &self.authority.issue(HERE), &self.authority.pem);
        load(&dir, mode).unwrap()
    }

    fn broker(&self, id: i32, tls: PeerTls) -> Broker {
        let identity = identity(Some(cluster()), id);
        Broker::secured(identity, PeerConfig::default(), &self.book, tls)
    }

    fn of_mode(&self, id: i32, mode: TlsMode) -> Broker {
        let tls = match mode {
            TlsMode::Off => PeerTls::off(),
            mode => self.tls(id, mode),
        };
        self.broker(id, tls)
    }
}

fn asked() -> VoteRequest {
    VoteRequest {
        vote: vote(3),
        last: None,
        transfer: false,
    }
}

/// Why `from` does not reach `to`.
async fn unreached(from: &Broker, to: &Broker) -> String {
    let link = from.link(to, Lane::Signals);
    match link.vote(asked(), DEADLINE).await {
        Err(PeerError::Unreachable(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn has(text: &str, part: &str) {
    assert!(text.contains(part), "{text}");
}

/// Proves that all four lanes go over TLS with the largest frames in both directions, and that nobody in between reads them.
#[tokio::test]
async fn all_lanes_go_over_tls() {
    let world = World::new();
    let (one, two) = (
        world.of_mode(1, TlsMode::Require),
        world.of_mode(2, TlsMode::Require),
    );
    let recorder = Recorder::new();
    let listener = two.listen().await;
    let _registered = two.groups.register(GROUP, recorder.clone());
    two.services.register(7, Arc::new(Echo));
    let link = one.link(&two, Lane::Appends);
    let largest = vec![5; crate::peer::limits::APPEND_PAYLOAD_BYTES_MAX - 8];
    link.append(append_at(1, &largest), WAIT)
        .await
        .expect("a reply");
    link.append(append_at(2, b"small"), WAIT)
        .await
        .expect("a reply");
    link.vote(asked(), WAIT).await.expect("a reply");
    let image = Bytes::from(vec![9; 3 << 20]);
    let snapshot = SnapshotRequest {
        vote: vote(3),
        image,
    };
    link.snapshot(snapshot, WAIT).await.expect("a reply");
    let request = Bytes::from(vec![3; CALL_BYTES_MAX]);
    let answer = one.transport.call(&two.target(), 7, request.clone(), WAIT);
    assert_eq!(answer.await.expect("an answer"), request);
    assert_eq!(recorder.seen(), [1, 2]);
    let open = &two.tls.metrics().unwrap().connections_accepted_open;
    assert_eq!(open.get(), 4);
    assert_eq!(two.metrics.connections_accepted_open.get(), 4);
    one.tasks.stop().await;
    until("closed", || open.get() == 0).await;
    // An end without a word of TLS before it is one like another.
    assert_eq!(two.metrics.closed_for("broken"), 0);
    listener.stop().await;
}

/// Answers what it is asked.
struct Echo;

impl CallService for Echo {
    fn call(&self, _: Caller, request: Bytes) -> ::futures::future::BoxFuture<'static, Bytes> {
        Box::pin(std::future::ready(request))
    }
}

/// Proves that a connection that breaks in the middle of a snapshot is made anew over TLS, and that the snapshot goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_goes_on_after_a_break() {
    const BYTES: usize = 12 << 20;
    let world = World::new();
    let (one, two) = (
        world.of_mode(1, TlsMode::Require),
        world.of_mode(2, TlsMode::Require),
    );
    let recorder = Recorder::new();
    let listener = two.listen().await;
    let _registered = two.groups.register(GROUP, recorder.clone());
    let front = super::snapshots::proxy(listener.local_addr(), 6 << 20, Arc::default()).await;
    world
        .book
        .0
        .lock()
        .insert(NodeId::new(2), front.to_string());
    let image = Bytes::from(vec![9; BYTES]);
    let request = SnapshotRequest {
        vote: vote(3),
        image: image.clone(),
    };
    let link = one.link(&two, Lane::Snapshots);
    let error = link.snapshot(request.clone(), WAIT).await.expect_err("cut");
    assert!(matches!(error, PeerError::Failed(_)), "{error}");
    let again = async {
        while link.snapshot(request.clone(), WAIT).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(WAIT, again).await.expect("it goes on");
    assert_eq!(*recorder.snapshots.lock(), [image]);
    assert!(one.metrics.snapshot_bytes_resumed.get() > 2 << 20);
    listener.stop().await;
}

/// Proves which modes get on with each other: neighbours always, so that a cluster changes one broker at a time.
#[tokio::test]
async fn neighbouring_modes_get_on() {
    use TlsMode::{Allow, Off, Prefer, Require};
    let world = World::new();
    let modes = [Off, Allow, Prefer, Require];
    for to in modes {
        let two = world.of_mode(2, to);
        let recorder = Recorder::new();
        let listener = two.listen().await;
        let _registered = two.groups.register(GROUP, recorder.clone());
        for from in modes {
            let one = world.of_mode(1, from);
            let reached = one.link(&two, Lane::Signals).vote(asked(), WAIT).await;
            let gets_on = match from {
                Off | Allow => to != Require,
                Prefer | Require => to != Off,
            };
            assert_eq!(reached.is_ok(), gets_on, "{from:?} to {to:?}: {reached:?}");
            if let Some(metrics) = two.tls.metrics().filter(|_| gets_on) {
                let open = metrics.connections_accepted_open.get();
                assert_eq!(open == 1, from.dials_tls(), "{from:?} to {to:?}");
            }
            one.tasks.stop().await;
            until("closed", || {
                two.metrics.connections_accepted_open.get() == 0
            })
            .await;
        }
        listener.stop().await;
    }
}

/// Proves that plain meets TLS with one clear line on each side that names the key to set.
#[tokio::test]
async fn plain_and_tls_are_told_apart() {
    let (log, _logged) = Log::start();
    let world = World::new();
    let (plain, secured) = (
        world.of_mode(1, TlsMode::Off),
        world.of_mode(2, TlsMode::Require),
    );
    let (at_plain, at_secured) = (plain.listen().await, secured.listen().await);
    let text = unreached(&plain, &secured).await;
    let says = "broker 2 takes TLS connections only (peer.tls-mode is require), and broker 1 dials without: set peer.tls-mode = \"prefer\" or \"require\" there";
    has(&text, &format!("refuses: {says}"));
    assert_eq!(secured.metrics.refused_for("tls"), 1);
    let text = unreached(&secured, &plain).await;
    has(
        &text,
        "it ended the connection in the TLS handshake: is its peer.tls-mode off?",
    );
    assert_eq!(plain.metrics.closed_for("tls_off"), 1);
    let lines = log.lines();
    assert_eq!(lines.len(), 4, "{lines:?}");
    has(&lines[0], &format!("a broker is refused: {says}"));
    has(&lines[1], "broker 2 at 127.0.0.1:");
    has(
        &lines[2],
        "a TLS connection is closed: this broker takes plain ones only; set peer.tls-mode and its files",
    );
    has(&lines[3], "is its peer.tls-mode off?");
    at_plain.stop().await;
    at_secured.stop().await;
}

/// Stands still.
struct Stopped(i64);

impl Clock for Stopped {
    fn now_ms(&self) -> i64 {
        self.0 * 1000
    }
}

/// Proves that a broker of another CA gets in nowhere, takes nobody in, and harms nobody; each side is told.
#[tokio::test]
async fn another_ca_is_refused() {
    let (log, _logged) = Log::start();
    let (world, other) = (World::new(), World::new());
    let one = world.of_mode(1, TlsMode::Require);
    let stranger = world.broker(3, other.tls(3, TlsMode::Require));
    let recorder = Recorder::new();
    let (listener, theirs) = (one.listen().await, stranger.listen().await);
    let _registered = one.groups.register(GROUP, recorder.clone());
    let unsigned = "the certificate is not signed by a CA of peer.tls-ca-file";
    has(&unreached(&stranger, &one).await, unsigned);
    has(&unreached(&one, &stranger).await, unsigned);
    until("told", || one.metrics.closed_for("tls") == 1).await;
    let lines = log.lines();
    let refused = lines
        .iter()
        .find(|line| line.contains("a TLS connection is refused"));
    has(
        refused.expect("a line"),
        "it refuses the certificate of this broker: it is not signed by a CA of its peer.tls-ca-file",
    );

    // One that trusts our CA, and whose own certificate is of another: the listener judges it.
    let dir = other.dir.path().join("4");
    let both = format!("{}{}", world.authority.pem, other.authority.pem);
    write(&dir, &other.authority.issue(HERE), &both);
    let spy = world.broker(4, load(&dir, TlsMode::Require).unwrap());
    has(
        &unreached(&spy, &one).await,
        "it refuses the certificate of this broker: it is not signed by a CA of its peer.tls-ca-file",
    );
    until("told", || one.metrics.closed_for("tls") == 2).await;
    assert!(recorder.seen().is_empty());
    assert_eq!(
        one.metrics
            .lane(crate::peer::frame::WireLane::Signals)
            .received_messages
            .get(),
        0
    );

    let friend = world.of_mode(2, TlsMode::Require);
    let link = friend.link(&one, Lane::Signals);
    link.vote(asked(), WAIT).await.expect("a reply");
    listener.stop().await;
    theirs.stop().await;
}

/// TLS whose clock stands at `now`.
fn at_time(dir: &Path, now: i64) -> PeerTls {
    let clock = Arc::new(Stopped(now));
    let files = files(dir, TlsMode::Require);
    let hosts = vec!["127.0.0.1".to_owned()];
    PeerTls::load(files, hosts, RealDisk::shared(), clock).unwrap()
}

/// Proves that a certificate that has expired meanwhile, or is for another host, is refused by either side in words that say so.
#[tokio::test]
async fn expired_and_foreign_certificates_are_refused() {
    let (log, _logged) = Log::start();
    let world = World::new();
    let dir = world.dir.path().join("old");
    let expired = world.authority.issue_with(HERE, |params| {
        params.not_after = date_time_ymd(2020, 1, 1);
    });
    write(&dir, &expired, &world.authority.pem);
    let then = date_time_ymd(2019, 1, 1).unix_timestamp();
    let (one, old) = (
        world.of_mode(1, TlsMode::Require),
        world.broker(2, at_time(&dir, then)),
    );
    let (listener, at_old) = (one.listen().await, old.listen().await);
    has(
        &unreached(&one, &old).await,
        "its certificate: the certificate has expired at 2020-01-01T00:00:00Z",
    );
    has(
        &unreached(&old, &one).await,
        "it refuses the certificate of this broker: it has expired, or a clock is wrong",
    );
    let told =
        "a TLS connection is refused: its certificate: the certificate has expired at 2020-01-01";
    until(told, || log.lines().iter().any(|line| line.contains(told))).await;
    // The same port by another name: what was dialled counts, not where it leads.
    let port = listener.local_addr().port();
    let address = format!("localhost:{port}");
    world.book.0.lock().insert(NodeId::new(1), address);
    let two = world.of_mode(3, TlsMode::Require);
    has(
        &unreached(&two, &one).await,
        "its certificate: the certificate is for 127.0.0.1, not for localhost",
    );
    listener.stop().await;
    at_old.stop().await;
}

/// Proves that the end of the own certificate is told by the running broker.
#[tokio::test]
async fn the_end_is_told() {
    let (log, _logged) = Log::start();
    let world = World::new();
    let dir = world.dir.path().join("1");
    let short = world.authority.issue_with(HERE, |params| {
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2020, 1, 11);
    });
    write(&dir, &short, &world.authority.pem);
    at_time(&dir, date_time_ymd(2020, 1, 5).unix_timestamp()).look();
    assert!(log.lines().is_empty());
    let late = at_time(&dir, date_time_ymd(2020, 1, 10).unix_timestamp() + 1);
    late.look();
    late.look();
    let lines = log.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    has(&lines[0], "the certificate expires at 2020-01-11T00:00:00Z");
}

/// Proves that a caller without a certificate, one that speaks TLS 1.2 only, and one that breaks off are refused.
#[tokio::test]
async fn callers_without_a_certificate_are_refused() {
    let (log, _logged) = Log::start();
    let world = World::new();
    let one = world.of_mode(1, TlsMode::Prefer);
    let listener = one.listen().await;
    let mut roots = rustls::RootCertStore::empty();
    use rustls::pki_types::pem::PemObject;
    let ca = rustls::pki_types::CertificateDer::from_pem_slice(world.authority.pem.as_bytes());
    roots.add(ca.unwrap()).unwrap();
    let roots = Arc::new(roots);
    for (version, part) in [
        (&rustls::version::TLS13, "it has shown no certificate"),
        (
            &rustls::version::TLS12,
            "it does not speak TLS 1.3 as brokers do",
        ),
    ] {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let client = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(Arc::clone(&roots))
            .with_no_client_auth();
        let stream = TcpStream::connect(listener.local_addr()).await.unwrap();
        let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(client));
        if let Ok(mut stream) = connector.connect(name, stream).await {
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).await.expect_err("refused");
            assert!(rest.is_empty());
        }
        until(part, || log.lines().iter().any(|line| line.contains(part))).await;
        // The next one has a line of its own.
        listener.shared.said.forget();
    }
    assert_eq!(one.metrics.closed_for("tls"), 2);
    // A TLS hello that is nothing more.
    let mut stream = TcpStream::connect(listener.local_addr()).await.unwrap();
    stream
        .write_all(&[22, 3, 1, 0, 5, 1, 0, 0, 1, 0, 9, 9])
        .await
        .unwrap();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    until("refused", || one.metrics.closed_for("tls") == 3).await;
    listener.stop().await;
}

/// Proves that connections that say nothing, or begin a TLS handshake and do not go on, keep no broker out and are closed in time.
#[tokio::test]
async fn silent_connections_keep_nobody_out() {
    let (log, _logged) = Log::start();
    let world = World::new();
    let one = world.of_mode(1, TlsMode::Require);
    let mut config = PeerListenerConfig::new(loopback());
    config.handshakes_max = 4;
    config.connections_max = 4;
    let listener = one.listen_with(config).await;
    let _registered = one.groups.register(GROUP, Recorder::new());
    let mut silent = Vec::new();
    for number in 0..10 {
        let mut stream = TcpStream::connect(listener.local_addr()).await.unwrap();
        if number % 2 == 1 {
            // A record of 512 bytes of which 6 come.
            stream
                .write_all(&[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3])
                .await
                .unwrap();
        }
        silent.push(stream);
    }
    until("the oldest give way", || {
        one.metrics.closed_for("handshakes") == 6
    })
    .await;
    let friend = world.of_mode(2, TlsMode::Require);
    let link = friend.link(&one, Lane::Signals);
    link.vote(asked(), WAIT).await.expect("a reply");
    link.append(heartbeat(), WAIT).await.expect("a reply");
    assert_eq!(one.metrics.connections_over_bound.get(), 0);
    // All that are left end with the time of a handshake.
    until("closed", || one.metrics.closed_for("handshake") == 3).await;
    until("gone", || one.metrics.connections_accepted_open.get() == 1).await;
    let mut rest = Vec::new();
    for stream in &mut silent {
        let _ = stream.read_to_end(&mut rest).await;
    }
    assert!(rest.is_empty());
    let lines = log.lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
    has(&lines[0], "the oldest is closed for each new one");
    has(&lines[1], "no handshake within 3s");
    link.vote(asked(), WAIT).await.expect("a reply");
    listener.stop().await;
}
