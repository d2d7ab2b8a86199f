//! Ends of processes and machines, and pauses.

use super::*;

/// `a` writes one byte each 100 ms and notes when it stops being possible, and how reading ended.
fn beat(world: &mut World) -> Notes<(Duration, io::ErrorKind)> {
    let ended: Notes<(Duration, io::ErrorKind)> = Notes::default();
    let into = Arc::clone(&ended);
    world.dial(|host, stream| async move {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let noted = (Arc::clone(&into), host.time.clone());
        let reading = tokio::spawn(async move {
            let kind = fails(reader.read_u8()).await;
            noted.0.lock().push((noted.1.now(), kind));
        });
        let kind = loop {
            tokio::time::sleep(ms(100)).await;
            if let Err(error) = writer.write_u8(1).await {
                break error.kind();
            }
        };
        reading.await.unwrap();
        into.lock().push((host.time.now(), kind));
    });
    ended
}

/// Takes all that comes.
async fn drain(_: HostContext, mut accepted: Accepted) {
    let mut bytes = Vec::new();
    let _ = accepted.stream.read_to_end(&mut bytes).await;
}

/// Proves that the peer of a crashed process reads the end of the stream at once, and that its next bytes are answered with a reset.
#[test]
fn a_crashed_process() {
    let mut world = World::new(1);
    world.serve(drain);
    let ended = beat(&mut world);
    world.hosts.run_for(ms(550));
    assert!(world.hosts.crash(world.b));
    world.net.process_died(B);
    world.finish(world.a, MINUTE);
    let ended = ended.lock();
    assert_eq!(ended[0], (ms(551), io::ErrorKind::UnexpectedEof));
    // Sent at 612, answered 614; the next one, at 712, fails.
    assert_eq!(ended[1], (ms(712), io::ErrorKind::ConnectionReset));
    assert_eq!(world.net.connections(), 0);
}

/// Proves that a process that dies with unread bytes resets its peer, as a system does.
#[test]
fn a_crash_with_unread_bytes() {
    let mut world = World::new(1);
    world.serve(|_, accepted| async move {
        tokio::time::sleep(MINUTE).await;
        drop(accepted);
    });
    let ended = beat(&mut world);
    world.hosts.run_for(ms(550));
    world.hosts.crash(world.b);
    world.finish(world.a, MINUTE);
    assert_eq!(ended.lock()[0], (ms(551), io::ErrorKind::ConnectionReset));
}

/// Proves that a process that was halted at a point of its code sends nothing from there on, although its tasks run to the end of the step.
#[test]
fn a_halted_process_is_silent() {
    let mut world = World::with_tick(1, ms(50));
    world.serve(|host, mut accepted| async move {
        accepted.stream.read_u8().await.unwrap();
        accepted.stream.write_u8(1).await.unwrap();
        host.time.halt();
        tokio::spawn(async move {
            let _ = accepted.stream.write_u8(2).await;
        });
        tokio::time::sleep(MINUTE).await;
    });
    world.dial(|_, mut stream| async move {
        stream.write_u8(1).await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), 1);
        assert_eq!(fails(stream.read_u8()).await, io::ErrorKind::UnexpectedEof);
    });
    let b = world.b;
    assert!(world.hosts.run_until(MINUTE, |hosts| hosts.is_halted(b)));
    world.hosts.run_for(MINUTE);
    assert!(
        world.hosts.is_alive(world.a),
        "its system still has the connection"
    );
    world.hosts.crash(world.b);
    world.finish(world.a, MINUTE);
}

/// Proves that what no destructor closed is closed when the process is said to be dead: streams and listeners.
#[test]
fn what_leaks_is_closed() {
    let mut world = World::new(1);
    world.start(world.b, |_, network| async move {
        let mut listener = listen(&network).await;
        let accepted = listener.accept().await.unwrap();
        std::mem::forget((listener, accepted));
    });
    let ended = beat(&mut world);
    world.hosts.run_for(ms(250));
    assert!(!world.hosts.is_alive(world.b));
    assert!(ended.lock().is_empty());
    world.net.process_died(B);
    assert_eq!(world.count("net.process_died"), 1);
    world.finish(world.a, MINUTE);
    world.serve(drain);
    world.hosts.run_for(ms(50));
    assert!(world.hosts.is_alive(world.b), "the port is free");
}

/// Proves that a dead machine is silent, that its peers are reset by what they sent once it is back, and that its listeners are gone.
#[test]
fn a_crashed_machine() {
    let mut world = World::with_tick(1, ms(10));
    world.serve(drain);
    let ended = beat(&mut world);
    world.hosts.run_for(ms(550));
    world.net.machine_died(B);
    world.hosts.crash(world.b);
    world.hosts.run_for(MINUTE);
    assert!(ended.lock().is_empty(), "silence");
    let back = world.hosts.now();
    world.net.machine_back(B);
    world.finish(world.a, 2 * MINUTE);
    let (at, kind) = ended.lock()[0];
    assert_eq!(kind, io::ErrorKind::ConnectionReset);
    assert!(
        at > back && at < back + MINUTE,
        "with the next retransmission: {at:?}"
    );
    assert_eq!(world.net.connections(), 0);
    world.start(world.a, |_, network| async move {
        assert_eq!(
            fails(network.connect("b.test", PORT)).await,
            io::ErrorKind::ConnectionRefused
        );
    });
    world.finish(world.a, MINUTE);
    assert_eq!(world.count("net.machine_died"), 1);
    assert_eq!(
        world.count("net.cut") + world.count("net.cut_connect"),
        0,
        "a dead machine is no cut"
    );
}

/// Proves that who waits for bytes of a machine that died hears nothing, and who sends gives up after five minutes.
#[test]
fn a_machine_that_stays_away() {
    let mut world = World::with_tick(1, ms(10));
    world.serve(drain);
    let ended = beat(&mut world);
    world.hosts.run_for(ms(550));
    world.net.machine_died(B);
    world.hosts.crash(world.b);
    world.finish(world.a, 10 * MINUTE);
    assert_eq!(
        ended.lock()[0],
        (5 * MINUTE + ms(612), io::ErrorKind::TimedOut)
    );
}

/// Proves that connects to a dead machine wait until it is back and somebody listens.
#[test]
fn a_connect_to_a_dead_machine_waits() {
    let mut world = World::new(1);
    world.net.machine_died(B);
    world.dial(|host, _stream| async move {
        assert_eq!(host.time.now(), ms(3012));
    });
    world.hosts.run_for(ms(2000));
    world.serve(drain);
    world.finish(world.a, MINUTE);
}

/// Proves that connections and bytes for a paused process wait with its system, and that it finds them all when it goes on, late.
#[test]
fn a_paused_receiver() {
    let mut world = World::new(1);
    let heard: Notes<(Duration, Duration)> = Notes::default();
    let into = Arc::clone(&heard);
    world.start(world.b, |host, network| async move {
        let mut listener = listen(&network).await;
        let mut accepted = listener.accept().await.unwrap();
        let sent = ms(accepted.stream.read_u64().await.unwrap());
        into.lock().push((sent, host.time.now()));
        let sent = ms(accepted.stream.read_u64().await.unwrap());
        into.lock().push((sent, host.time.now()));
    });
    world.dial(|host, mut stream| async move {
        for _ in 0..2 {
            let now = host.time.now().as_millis();
            stream.write_u64(u64::try_from(now).unwrap()).await.unwrap();
            tokio::time::sleep(ms(100)).await;
        }
        tokio::time::sleep(MINUTE).await;
    });
    world.hosts.run_for(ms(5));
    world.hosts.pause(world.b);
    world.hosts.run_for(ms(995));
    world.hosts.resume(world.b);
    world.finish(world.b, ms(10));
    assert_eq!(*heard.lock(), [(ms(12), ms(1000)), (ms(112), ms(1000))]);
}

/// Proves that connections nobody accepts are bounded: further ones wait, and get in when there is room.
#[test]
fn the_backlog_is_bounded() {
    let mut world = World::new(1);
    world.start(world.b, |_, network| async move {
        let mut listener = listen(&network).await;
        tokio::time::sleep(ms(500)).await;
        for _ in 0..130 {
            listener.accept().await.unwrap();
        }
    });
    let connected: Notes<Duration> = Notes::default();
    let into = Arc::clone(&connected);
    world.start(world.a, |host, network| async move {
        tokio::time::sleep(ms(10)).await;
        let all = (0..130).map(|_| async {
            let stream = network.connect("b.test", PORT).await.unwrap();
            into.lock().push(host.time.now());
            stream
        });
        futures::future::join_all(all).await;
    });
    world.hosts.run_for(ms(400));
    assert_eq!(connected.lock().len(), 128);
    world.finish(world.a, MINUTE);
    world.finish(world.b, MINUTE);
    assert_eq!(*connected.lock().last().unwrap(), ms(1012));
}

/// Proves that connections in the queue of a listener that goes are reset.
#[test]
fn a_listener_goes() {
    let mut world = World::new(1);
    world.start(world.b, |_, network| async move {
        let listener = listen(&network).await;
        tokio::time::sleep(ms(100)).await;
        drop(listener);
        tokio::time::sleep(MINUTE).await;
    });
    world.dial(|host, mut stream| async move {
        assert_eq!(
            fails(stream.read_u8()).await,
            io::ErrorKind::ConnectionReset
        );
        assert_eq!(host.time.now(), ms(101));
    });
    world.finish(world.a, MINUTE);
    assert_eq!(world.net.connections(), 0);
}
