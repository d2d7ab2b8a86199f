//! The network as tasks on hosts see it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::*;
use crate::hosts::{HostId, Hosts};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

struct World {
    hosts: Hosts,
    net: Net,
    faults: Faults,
    a: HostId,
    b: HostId,
}

fn world(seed: u64) -> World {
    let faults = Faults::default();
    let mut hosts = Hosts::new(ms(1), seed, faults.clone());
    let net = Net::new(seed, hosts.world_time(), faults.clone());
    let (a, b) = (hosts.add("a"), hosts.add("b"));
    World {
        hosts,
        net,
        faults,
        a,
        b,
    }
}

/// Proves that bytes go there and back in about two latencies, and the end of the stream behind them.
#[test]
fn there_and_back() {
    let mut world = world(1);
    let network = world.net.host(B, world.hosts.time(world.b));
    world
        .hosts
        .start(world.b, move |_| async move {
            let mut listener = network
                .listen("0.0.0.0:9000".parse().unwrap())
                .await
                .unwrap();
            let mut accepted = listener.accept().await.unwrap();
            let mut bytes = Vec::new();
            accepted.stream.read_to_end(&mut bytes).await.unwrap();
            accepted.stream.write_all(&bytes).await.unwrap();
            Ok(())
        })
        .unwrap();
    let network = world.net.host(A, world.hosts.time(world.a));
    world
        .hosts
        .start(world.a, move |host| async move {
            tokio::time::sleep(ms(5)).await;
            let mut stream = network.connect("10.0.0.2", 9000).await.unwrap();
            stream.write_all(b"hello").await.unwrap();
            stream.shutdown().await.unwrap();
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).await.unwrap();
            assert_eq!(bytes, b"hello");
            let took = host.time.now() - ms(5);
            assert!(took >= ms(4) && took <= ms(14), "{took:?}");
            Ok(())
        })
        .unwrap();
    let (a, b) = (world.a, world.b);
    assert!(
        world
            .hosts
            .run_until(ms(1000), |hosts| !hosts.is_alive(a) && !hosts.is_alive(b))
    );
    assert_eq!(
        world.hosts.ended(a),
        Some(&crate::hosts::Ended::Returned(Ok(())))
    );
    assert_eq!(world.net.connections(), 0);
    assert!(world.faults.counts().is_empty());
}
