//! The network as tasks on hosts see it, in simulated time.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cuts;
mod ends;
mod ways;

use super::*;
use crate::hosts::{Ended, HostContext, HostId, Hosts};
use std::future::Future;
use tidelog_env::Accepted;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
const PORT: u16 = 9000;
const MINUTE: Duration = Duration::from_secs(60);

/// The good network without jitter: every packet takes 1 ms.
const EVEN: LinkConfig = LinkConfig {
    jitter: Duration::ZERO,
    ..LinkConfig::GOOD
};

type Notes<T> = Arc<Mutex<Vec<T>>>;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Two hosts: `a` dials, `b` listens.
struct World {
    hosts: Hosts,
    net: Net,
    faults: Faults,
    a: HostId,
    b: HostId,
}

impl World {
    fn new(seed: u64) -> Self {
        Self::with_tick(seed, ms(1))
    }

    fn with_tick(seed: u64, tick: Duration) -> Self {
        let faults = Faults::default();
        let mut hosts = Hosts::new(tick, seed, faults.clone());
        let net = Net::new(seed, hosts.world_time(), faults.clone());
        net.set_default_link(EVEN);
        net.register("b.test", B);
        let (a, b) = (hosts.add("a"), hosts.add("b"));
        Self {
            hosts,
            net,
            faults,
            a,
            b,
        }
    }

    fn start<F, Fut>(&mut self, id: HostId, main: F)
    where
        F: FnOnce(HostContext, Arc<dyn Network>) -> Fut + 'static,
        Fut: Future<Output = ()> + 'static,
    {
        let ip = if id == self.a { A } else { B };
        let network = self.net.host(ip, self.hosts.time(id));
        let main = move |host| async move {
            main(host, network).await;
            Ok(())
        };
        self.hosts.start(id, main).unwrap();
    }

    /// `b` accepts one connection and does this with it.
    fn serve<F, Fut>(&mut self, act: F)
    where
        F: FnOnce(HostContext, Accepted) -> Fut + 'static,
        Fut: Future<Output = ()> + 'static,
    {
        self.start(self.b, |host, network| async move {
            let mut listener = listen(&network).await;
            act(host, listener.accept().await.unwrap()).await;
        });
    }

    /// `a` connects, a little later, and does this with the connection.
    fn dial<F, Fut>(&mut self, act: F)
    where
        F: FnOnce(HostContext, BoxStream) -> Fut + 'static,
        Fut: Future<Output = ()> + 'static,
    {
        // In the step in which it begins, the other host may not have run yet.
        let wait = self.hosts.tick().max(ms(10));
        self.start(self.a, move |host, network| async move {
            tokio::time::sleep(wait).await;
            act(host, network.connect("b.test", PORT).await.unwrap()).await;
        });
    }

    /// Runs until the host's main has returned. It must not panic.
    fn finish(&mut self, id: HostId, within: Duration) {
        let deadline = self.hosts.now() + within;
        assert!(
            self.hosts.run_until(deadline, |hosts| !hosts.is_alive(id)),
            "it does not end"
        );
        assert_eq!(self.hosts.ended(id), Some(&Ended::Returned(Ok(()))));
    }

    fn count(&self, kind: &str) -> u64 {
        self.faults.counts().get(kind).copied().unwrap_or(0)
    }
}

async fn listen(network: &Arc<dyn Network>) -> Box<dyn Listener> {
    let any = SocketAddr::new(std::net::Ipv4Addr::UNSPECIFIED.into(), PORT);
    network.listen(any).await.unwrap()
}

/// Sends back what comes, and its end.
async fn echo(_: HostContext, mut accepted: Accepted) {
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let count = accepted.stream.read(&mut bytes).await.unwrap();
        if count == 0 {
            return;
        }
        accepted.stream.write_all(&bytes[..count]).await.unwrap();
    }
}

/// How the call fails, which it must.
async fn fails<T>(call: impl Future<Output = io::Result<T>>) -> io::ErrorKind {
    call.await.err().expect("an error").kind()
}
