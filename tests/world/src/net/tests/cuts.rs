//! Cuts and resets.

use super::*;

/// Proves that a cut holds one direction only, and that what it held arrives with TCP's next retransmission after it.
#[test]
fn a_cut_of_one_direction() {
    let mut world = World::new(1);
    let heard: Notes<(Duration, u8)> = Notes::default();
    let into = Arc::clone(&heard);
    world.serve(|host, accepted| async move {
        let (mut reader, mut writer) = tokio::io::split(accepted.stream);
        tokio::spawn(async move {
            for _ in 0..10 {
                tokio::time::sleep(ms(100)).await;
                writer.write_u8(9).await.unwrap();
            }
        });
        for _ in 0..2 {
            let byte = reader.read_u8().await.unwrap();
            into.lock().push((host.time.now(), byte));
        }
    });
    let there: Notes<Duration> = Notes::default();
    let back = Arc::clone(&there);
    world.dial(|host, mut stream| async move {
        stream.write_u8(1).await.unwrap();
        tokio::time::sleep(ms(88)).await;
        stream.write_u8(2).await.unwrap();
        loop {
            match stream.read_u8().await {
                Ok(_) => back.lock().push(host.time.now()),
                Err(_) => return,
            }
        }
    });
    world.hosts.run_for(ms(50));
    assert_eq!(heard.lock().len(), 1);
    world.net.cut(A, B);
    assert!(world.net.is_cut(A, B) && !world.net.is_cut(B, A));
    world.hosts.run_for(ms(550));
    assert_eq!(heard.lock().len(), 1, "nothing arrives");
    assert!(there.lock().len() >= 4, "the other direction does");
    world.net.heal(A, B);
    world.finish(world.b, MINUTE);
    // Sent at 100, again at 300, and after the cut at 700.
    assert_eq!(heard.lock()[1], (ms(701), 2));
    assert!(world.count("net.cut") > 0);
}

/// Proves that bytes that were on the way when the cut came are held too, and that those that had arrived can be read.
#[test]
fn a_cut_holds_what_is_on_the_way() {
    let mut world = World::new(1);
    world.net.set_link(
        A,
        B,
        LinkConfig {
            latency: ms(100),
            ..EVEN
        },
    );
    let heard: Notes<Duration> = Notes::default();
    let into = Arc::clone(&heard);
    world.serve(|host, mut accepted| async move {
        for _ in 0..2 {
            // The first one waits for its reader in front of the cut.
            tokio::time::sleep(ms(250)).await;
            accepted.stream.read_u8().await.unwrap();
            into.lock().push(host.time.now());
        }
    });
    world.dial(|host, mut stream| async move {
        assert_eq!(host.time.now(), ms(111));
        stream.write_u8(1).await.unwrap();
        tokio::time::sleep(ms(200)).await;
        stream.write_u8(2).await.unwrap();
        tokio::time::sleep(MINUTE).await;
    });
    world.hosts.run_for(ms(350));
    world.net.cut(A, B);
    world.hosts.run_for(ms(1000));
    assert_eq!(heard.lock().len(), 1);
    world.net.heal(A, B);
    world.finish(world.b, MINUTE);
    // Sent at 311, again at 511, 911, 1711.
    assert_eq!(heard.lock()[1], ms(1811));
}

/// Proves that a writer whose acknowledgements are cut off stops at the window although its reader reads, and goes on after the cut.
#[test]
fn no_acknowledgements_no_window() {
    let mut world = World::new(1);
    let written = Arc::new(Mutex::new(0));
    world.serve(|_, mut accepted| async move {
        let mut all = Vec::new();
        accepted.stream.read_to_end(&mut all).await.unwrap();
        assert_eq!(all.len(), 2_000_000);
    });
    let count = Arc::clone(&written);
    world.dial(|_, mut stream| async move {
        tokio::time::sleep(ms(50)).await;
        while *count.lock() < 2_000_000 {
            let left = 2_000_000 - *count.lock();
            let n = stream
                .write(&[7; 10_000][..left.min(10_000)])
                .await
                .unwrap();
            *count.lock() += n;
        }
    });
    world.hosts.run_for(ms(30));
    world.net.cut(B, A);
    world.hosts.run_for(ms(1000));
    assert_eq!(*written.lock(), connection::WINDOW);
    world.net.heal(B, A);
    world.finish(world.b, MINUTE);
}

/// Proves that a sender gives up after five minutes without acknowledgement, also while the cut lasts, and that the other end learns it when it sends.
#[test]
fn a_long_cut_breaks_the_connection() {
    let mut world = World::with_tick(1, ms(20));
    let ended: Notes<(Duration, io::ErrorKind)> = Notes::default();
    let (at_a, at_b) = (Arc::clone(&ended), Arc::clone(&ended));
    world.serve(|host, mut accepted| async move {
        tokio::time::sleep(8 * MINUTE).await;
        accepted.stream.write_u8(1).await.unwrap();
        let kind = fails(accepted.stream.read_u8()).await;
        at_b.lock().push((host.time.now(), kind));
    });
    world.dial(|host, mut stream| async move {
        tokio::time::sleep(MINUTE - host.time.now()).await;
        stream.write_u8(1).await.unwrap();
        let kind = fails(stream.read_u8()).await;
        at_a.lock().push((host.time.now(), kind));
        // The process keeps the socket.
        tokio::time::sleep(10 * MINUTE).await;
    });
    world.hosts.run_for(ms(200));
    world.net.cut(A, B);
    world.hosts.run_for(7 * MINUTE);
    world.net.heal(A, B);
    world.finish(world.b, 10 * MINUTE);
    let ended = ended.lock();
    assert_eq!(ended[0], (6 * MINUTE, io::ErrorKind::TimedOut));
    assert_eq!(ended[1].1, io::ErrorKind::ConnectionReset);
    assert!(ended[1].0 < 8 * MINUTE + ms(50));
    assert_eq!(world.count("net.gave_up"), 1);
}

/// Proves that a connect across a cut waits, in both directions of the cut, and gets through after it with the next SYN; and that nobody waits for ever.
#[test]
fn a_connect_waits_for_the_cut_to_end() {
    for (from, to) in [(A, B), (B, A)] {
        let mut world = World::new(1);
        world.serve(echo);
        world.net.cut(from, to);
        world.dial(|host, stream| async move {
            // SYNs at 10, 1010, 3010, and 7010.
            assert_eq!(host.time.now(), ms(7012));
            drop(stream);
        });
        world.hosts.run_for(ms(4000));
        world.net.heal(from, to);
        world.finish(world.a, MINUTE);
        assert_eq!(world.count("net.cut_connect"), 3);
    }
    let mut world = World::with_tick(1, ms(50));
    world.serve(echo);
    world.net.cut(A, B);
    world.start(world.a, |host, network| async move {
        assert_eq!(
            fails(network.connect("b.test", PORT)).await,
            io::ErrorKind::TimedOut
        );
        assert_eq!(host.time.now(), Duration::from_secs(127));
    });
    world.finish(world.a, 5 * MINUTE);
}

/// Proves that a reset breaks both ends at once and loses what was on the way, and leaves other connections alone.
#[test]
fn a_reset_breaks_both_ends() {
    let mut world = World::new(1);
    world.net.set_link(
        A,
        B,
        LinkConfig {
            latency: ms(100),
            ..EVEN
        },
    );
    let ended: Notes<(Duration, io::ErrorKind)> = Notes::default();
    let (at_a, at_b) = (Arc::clone(&ended), Arc::clone(&ended));
    world.serve(|host, mut accepted| async move {
        let kind = fails(accepted.stream.read_u8()).await;
        at_b.lock().push((host.time.now(), kind));
    });
    world.dial(|host, mut stream| async move {
        tokio::time::sleep(ms(400) - host.time.now()).await;
        stream.write_u8(1).await.unwrap();
        let kind = fails(stream.read_u8()).await;
        at_a.lock().push((host.time.now(), kind));
        assert_eq!(
            fails(stream.write_u8(1)).await,
            io::ErrorKind::ConnectionReset
        );
    });
    world.hosts.run_for(ms(450));
    assert_eq!(world.net.reset(A, IpAddr::from([10, 0, 0, 3])), 0);
    assert_eq!(world.net.reset(B, A), 1);
    world.finish(world.a, ms(10));
    world.finish(world.b, ms(10));
    assert_eq!(
        *ended.lock(),
        [(ms(450), io::ErrorKind::ConnectionReset); 2]
    );
    assert_eq!((world.count("net.reset"), world.net.connections()), (1, 0));
}

/// Proves that a link that breaks connections does so at both ends, and counts it.
#[test]
fn random_resets() {
    let mut world = World::new(1);
    world.net.set_link(
        A,
        B,
        LinkConfig {
            reset_ppm: 20_000,
            ..EVEN
        },
    );
    world.serve(|_, mut accepted| async move {
        let mut all = Vec::new();
        assert_eq!(
            fails(accepted.stream.read_to_end(&mut all)).await,
            io::ErrorKind::ConnectionReset
        );
        assert!(!all.is_empty());
    });
    world.dial(|_, mut stream| async move {
        let writing = async {
            loop {
                tokio::time::sleep(ms(10)).await;
                stream.write_u8(1).await?;
            }
        };
        assert_eq!(fails::<()>(writing).await, io::ErrorKind::ConnectionReset);
    });
    world.finish(world.a, MINUTE);
    world.finish(world.b, MINUTE);
    assert_eq!(world.count("net.reset"), 1);
}
