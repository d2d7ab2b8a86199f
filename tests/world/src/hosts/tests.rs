//! Hosts alone: steps, pauses, crashes, clocks.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::*;
use parking_lot::Mutex;
use tokio::time::sleep;

type Seen<T> = Arc<Mutex<Vec<T>>>;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn hosts(tick_ms: u64) -> Hosts {
    Hosts::new(ms(tick_ms), 7, Faults::default())
}

/// A main that notes its world time every `every_ms`.
fn ticker(hosts: &mut Hosts, id: HostId, every_ms: u64) -> Seen<u64> {
    let seen = Seen::default();
    let into = Arc::clone(&seen);
    hosts
        .start(id, move |host| async move {
            loop {
                sleep(ms(every_ms)).await;
                into.lock()
                    .push(u64::try_from(host.time.now().as_millis()).unwrap());
            }
        })
        .unwrap();
    seen
}

/// Proves that a host's timers fire at their own times inside of a step, not at its end.
#[test]
fn timers_inside_a_step() {
    let mut hosts = hosts(50);
    let id = hosts.add("a");
    let seen = ticker(&mut hosts, id, 20);
    hosts.step();
    assert_eq!(*seen.lock(), [20, 40]);
    assert_eq!(hosts.now(), ms(50));
    hosts.run_for(ms(50));
    assert_eq!(*seen.lock(), [20, 40, 60, 80, 100]);
}
