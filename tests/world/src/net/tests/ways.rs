//! Ways that work: addresses, order, speed, the window.

use super::*;

/// Proves that bytes go there and back in two latencies each, that one direction ends alone, and that nothing of the connection is left.
#[test]
fn there_and_back() {
    let mut world = World::new(1);
    world.serve(|_, mut accepted| async move {
        let mut bytes = Vec::new();
        accepted.stream.read_to_end(&mut bytes).await.unwrap();
        assert_eq!((accepted.local.ip(), accepted.local.port()), (B, PORT));
        assert_eq!(accepted.peer.ip(), A);
        accepted.stream.write_all(&bytes).await.unwrap();
    });
    world.dial(|host, mut stream| async move {
        assert_eq!(host.time.now(), ms(12), "a handshake there and back");
        stream.write_all(b"hello").await.unwrap();
        stream.shutdown().await.unwrap();
        assert_eq!(
            fails(stream.write_all(b"more")).await,
            io::ErrorKind::BrokenPipe
        );
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.unwrap();
        assert_eq!(bytes, b"hello");
        let took = host.time.now() - ms(12);
        // Each host may have run before the other one in a step.
        assert!(took >= ms(2) && took <= ms(4), "{took:?}");
    });
    world.finish(world.b, ms(1000));
    world.finish(world.a, ms(1000));
    world.hosts.run_for(ms(10));
    assert_eq!(world.net.connections(), 0);
    assert!(world.faults.counts().is_empty());
}

/// Proves who may bind what, and what a dialler finds there.
#[test]
fn addresses() {
    let mut world = World::new(1);
    world.start(world.b, |_, network| async move {
        let bind = async |address: &str| network.listen(address.parse().unwrap()).await;
        let any = bind("0.0.0.0:0").await.unwrap();
        let port = any.local_addr().unwrap().port();
        assert!(port >= 32_768);
        assert_eq!(
            fails(bind(&format!("10.0.0.2:{port}"))).await,
            io::ErrorKind::AddrInUse
        );
        assert_eq!(
            fails(bind("10.0.0.9:1")).await,
            io::ErrorKind::AddrNotAvailable
        );
        let mut own = bind("10.0.0.2:9001").await.unwrap();
        let mut local = bind("127.0.0.1:9001").await.unwrap();
        let _here = network.connect("localhost", 9001).await.unwrap();
        let accepted = local.accept().await.unwrap();
        assert!(accepted.peer.ip().is_loopback() && accepted.local.ip().is_loopback());
        let _there = network.connect("b.test", 9001).await.unwrap();
        assert_eq!(own.accept().await.unwrap().peer.ip(), B);
        drop(any);
        bind(&format!("10.0.0.2:{port}")).await.unwrap();
        let _open = bind("127.0.0.1:9002").await.unwrap();
        tokio::time::sleep(ms(1000)).await;
    });
    world.start(world.a, |host, network| async move {
        tokio::time::sleep(ms(100)).await;
        assert_eq!(
            fails(network.connect("nobody.test", 1)).await,
            io::ErrorKind::NotFound
        );
        assert_eq!(host.time.now(), ms(100));
        assert_eq!(
            fails(network.connect("10.0.0.2", 1)).await,
            io::ErrorKind::ConnectionRefused
        );
        assert_eq!(host.time.now(), ms(102));
        assert_eq!(
            fails(network.connect("10.0.0.2", 9002)).await,
            io::ErrorKind::ConnectionRefused,
            "only its own host may"
        );
        network.connect("10.0.0.2", 9001).await.unwrap();
    });
    world.finish(world.a, ms(2000));
    world.finish(world.b, ms(2000));
}

/// Proves that a link's bandwidth is what it was set to, in its direction only.
#[test]
fn a_slow_link_takes_its_time() {
    let mut world = World::new(1);
    let slow = LinkConfig {
        bytes_per_second: Some(100_000),
        ..EVEN
    };
    world.net.set_link(A, B, slow);
    world.serve(|host, mut accepted| async move {
        let mut bytes = Vec::new();
        accepted.stream.read_to_end(&mut bytes).await.unwrap();
        assert_eq!(bytes.len(), 1_000_000);
        let took = host.time.now();
        assert!(took >= ms(10_010) && took < ms(10_020), "{took:?}");
        accepted.stream.write_all(&bytes).await.unwrap();
    });
    world.dial(|host, mut stream| async move {
        stream.write_all(&vec![1; 1_000_000]).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.unwrap();
        assert_eq!(bytes.len(), 1_000_000);
        assert!(host.time.now() < ms(10_040), "{:?}", host.time.now());
    });
    world.finish(world.b, MINUTE);
    world.finish(world.a, MINUTE);
    assert!(world.count("net.slow") >= 10);
}

/// Proves that lost segments arrive later, in their order, and are counted.
#[test]
fn loss_delays() {
    let mut world = World::new(3);
    world.net.set_link(
        A,
        B,
        LinkConfig {
            loss_ppm: 200_000,
            ..EVEN
        },
    );
    world.serve(|host, mut accepted| async move {
        let mut bytes = Vec::new();
        accepted.stream.read_to_end(&mut bytes).await.unwrap();
        let expected: Vec<u8> = (0..100).collect();
        assert_eq!(bytes, expected);
        assert!(host.time.now() > ms(210));
    });
    world.dial(|_, mut stream| async move {
        for byte in 0..100_u8 {
            stream.write_all(&[byte]).await.unwrap();
        }
    });
    world.finish(world.b, MINUTE);
    assert!(world.count("net.loss") > 5);
}

/// Proves that a writer whose reader does not read stops at the window, and goes on when it reads.
#[test]
fn a_full_window_stops_the_writer() {
    let mut world = World::new(1);
    let written = Arc::new(Mutex::new(0));
    world.serve(|_, mut accepted| async move {
        tokio::time::sleep(ms(1000)).await;
        let mut bytes = vec![0; 100_000];
        accepted.stream.read_exact(&mut bytes).await.unwrap();
        tokio::time::sleep(ms(1000)).await;
        let mut rest = Vec::new();
        accepted.stream.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest.len(), 1_900_000);
    });
    let count = Arc::clone(&written);
    world.dial(|_, mut stream| async move {
        while *count.lock() < 2_000_000 {
            let left = 2_000_000 - *count.lock();
            let n = stream
                .write(&[7; 10_000][..left.min(10_000)])
                .await
                .unwrap();
            *count.lock() += n;
        }
    });
    world.hosts.run_for(ms(900));
    assert_eq!(*written.lock(), connection::WINDOW);
    world.hosts.run_for(ms(500));
    assert_eq!(*written.lock(), connection::WINDOW + 100_000);
    world.finish(world.b, MINUTE);
}

/// Proves that nothing arrives before it was sent plus the latency, in whatever order the hosts run inside long steps.
#[test]
fn nothing_arrives_too_early() {
    for seed in 0..20 {
        let mut world = World::with_tick(seed, ms(50));
        let sent: Notes<Duration> = Notes::default();
        let expected = Arc::clone(&sent);
        world.serve(|host, mut accepted| async move {
            for at in 0..200 {
                accepted.stream.read_u8().await.unwrap();
                let now = host.time.now();
                assert!(now >= expected.lock()[at] + ms(1), "{at}: {now:?}");
                assert!(now <= expected.lock()[at] + ms(51), "{at}: {now:?}");
            }
        });
        world.dial(|host, mut stream| async move {
            for at in 0..200_u64 {
                tokio::time::sleep(ms(at % 7)).await;
                sent.lock().push(host.time.now());
                stream.write_u8(1).await.unwrap();
            }
            tokio::time::sleep(MINUTE).await;
        });
        world.finish(world.b, MINUTE);
    }
}

/// Proves that the same seed gives the same times and bytes on both ends, and the same trace; and another seed another one.
#[test]
fn same_seed_same_trace() {
    let run = |seed: u64| {
        let mut world = World::with_tick(seed, ms(5));
        let bad = LinkConfig {
            jitter: ms(20),
            loss_ppm: 50_000,
            bytes_per_second: Some(1_000_000),
            ..LinkConfig::GOOD
        };
        world.net.set_default_link(bad);
        let notes: Notes<(u128, usize)> = Notes::default();
        world.serve(echo);
        let into = Arc::clone(&notes);
        world.dial(|host, mut stream| async move {
            for at in 1..50 {
                stream.write_all(&vec![1; at * 321]).await.unwrap();
                let mut bytes = vec![0; 100_000];
                let count = stream.read(&mut bytes).await.unwrap();
                into.lock().push((host.time.now().as_nanos(), count));
            }
        });
        world.finish(world.a, 10 * MINUTE);
        (
            std::mem::take(&mut *notes.lock()),
            world.net.trace(),
            world.faults.counts(),
        )
    };
    let first = run(11);
    assert_eq!(first, run(11));
    assert_ne!(first.1, run(12).1);
}
