//! Hosts alone: steps, pauses, crashes, ends, clocks.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use parking_lot::Mutex;
use std::rc::Rc;
use tokio::time::{Instant, sleep};

type Seen<T> = Arc<Mutex<Vec<T>>>;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn hosts(tick_ms: u64) -> Hosts {
    Hosts::new(ms(tick_ms), 7, Faults::default())
}

fn whole(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap()
}

/// Starts a main that notes its world time every `every_ms`, in a task.
fn ticker(hosts: &mut Hosts, id: HostId, every_ms: u64) -> Seen<u64> {
    let seen = Seen::default();
    let into = Arc::clone(&seen);
    let main = move |host: HostContext| async move {
        let ticking = tokio::spawn(async move {
            loop {
                sleep(ms(every_ms)).await;
                into.lock().push(whole(host.time.now()));
            }
        });
        ticking.await.map_err(|error| error.to_string())
    };
    hosts.start(id, main).unwrap();
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
    hosts.run_for(ms(60));
    assert_eq!(*seen.lock(), [20, 40, 60, 80, 100, 120, 140]);
}

/// Proves that ticks are cut to their bounds and to whole milliseconds.
#[test]
fn ticks_have_bounds() {
    let tick = |tick| Hosts::new(tick, 1, Faults::default()).tick();
    assert_eq!(tick(Duration::from_micros(10)), ms(1));
    assert_eq!(tick(Duration::from_micros(7_900)), ms(7));
    assert_eq!(tick(ms(1000)), ms(50));
}

/// Proves that a resumed host finds its clock at now before any of its code runs: what was due meanwhile is late, and nothing is replayed.
#[test]
fn a_pause_is_a_jump() {
    let mut hosts = hosts(10);
    let id = hosts.add("a");
    let seen = ticker(&mut hosts, id, 25);
    hosts.run_for(ms(30));
    assert!(hosts.pause(id) && !hosts.pause(id) && hosts.is_paused(id));
    hosts.run_for(ms(970));
    assert_eq!(*seen.lock(), [25]);
    hosts.resume(id);
    hosts.run_for(ms(30));
    assert_eq!(*seen.lock(), [25, 1000, 1025]);
    hosts.pause(id);
    hosts.resume(id);
    hosts.run_for(ms(30));
    assert_eq!(
        *seen.lock(),
        [25, 1000, 1025, 1050],
        "a pause of no length changes nothing"
    );
}

/// Says when it is dropped, and whether a runtime was there.
struct Last(Seen<bool>);

impl Drop for Last {
    fn drop(&mut self) {
        self.0
            .lock()
            .push(tokio::runtime::Handle::try_current().is_ok());
    }
}

/// Proves that a crash drops main and tasks without running them, that a paused host crashes too, and that the next incarnation starts on the same host's time.
#[test]
fn a_crash_and_a_restart() {
    let mut hosts = hosts(10);
    let id = hosts.add("a");
    let dropped = Seen::default();
    let (main_last, task_last) = (Last(Arc::clone(&dropped)), Last(Arc::clone(&dropped)));
    hosts
        .start(id, move |host| async move {
            assert_eq!((host.incarnation, &*host.name), (0, "a"));
            tokio::spawn(async move {
                sleep(ms(1000)).await;
                drop(task_last);
                panic!("it runs on");
            });
            sleep(ms(1000)).await;
            drop(main_last);
            panic!("it runs on");
        })
        .unwrap();
    assert!(matches!(
        hosts.start(id, |_| async { Ok(()) }),
        Err(StartError::Running(_))
    ));
    hosts.run_for(ms(990));
    hosts.pause(id);
    hosts.run_for(ms(100));
    assert!(hosts.is_alive(id) && dropped.lock().is_empty());
    assert!(hosts.crash(id) && !hosts.crash(id));
    assert_eq!(*dropped.lock(), [true, true]);
    assert!(!hosts.is_alive(id) && hosts.ended(id).is_none());
    hosts.run_for(ms(10));
    hosts
        .start(id, |host| async move {
            assert_eq!((host.incarnation, host.time.now()), (1, ms(1100)));
            sleep(ms(5)).await;
            assert_eq!(host.time.now(), ms(1105));
            Ok(())
        })
        .unwrap();
    assert!(hosts.run_until(ms(2000), |hosts| !hosts.is_alive(id)));
    assert_eq!(hosts.ended(id), Some(&Ended::Returned(Ok(()))));
    assert_eq!(hosts.faults.counts().get("host.crash"), Some(&1));
}

/// Proves that a halted process is not stepped again, whatever it does afterwards in its step, until it is taken away; and that the next one is not halted.
#[test]
fn a_halt() {
    let mut hosts = hosts(10);
    let id = hosts.add("a");
    hosts
        .start(id, move |host| async move {
            sleep(ms(25)).await;
            host.time.halt();
            Err("nobody hears this".to_owned())
        })
        .unwrap();
    assert!(hosts.run_until(ms(100), |hosts| hosts.is_halted(id)));
    assert_eq!((hosts.now(), hosts.ended(id)), (ms(30), None));
    assert!(matches!(
        hosts.start(id, |_| async { Ok(()) }),
        Err(StartError::Running(_))
    ));
    hosts.run_for(ms(100));
    assert!(hosts.is_halted(id) && hosts.crash(id) && !hosts.is_halted(id));
    let seen = ticker(&mut hosts, id, 10);
    hosts.run_for(ms(25));
    assert_eq!(*seen.lock(), [140, 150]);
}

/// Proves that the end of main ends the process with its tasks, and that errors and panics are told; that a panic in a task is counted.
#[test]
fn ends_are_told() {
    let mut hosts = hosts(10);
    let (fails, panics_too) = (hosts.add("fails"), hosts.add("panics"));
    let before = panics();
    let ticked = Seen::default();
    let into = Arc::clone(&ticked);
    hosts
        .start(fails, |_| async move {
            tokio::spawn(async move {
                loop {
                    sleep(ms(1)).await;
                    into.lock().push(());
                }
            });
            let task = tokio::spawn(async { panic!("in a task") });
            let failed = task.await.is_err();
            sleep(ms(3)).await;
            Err(format!("a task failed: {failed}"))
        })
        .unwrap();
    hosts
        .start(panics_too, |host| async move {
            assert!(host.incarnation > 0, "something");
            Ok(())
        })
        .unwrap();
    hosts.run_for(ms(20));
    let error = Err("a task failed: true".to_owned());
    assert_eq!(hosts.ended(fails), Some(&Ended::Returned(error)));
    assert_eq!(
        hosts.ended(panics_too),
        Some(&Ended::Panicked("something".to_owned()))
    );
    assert!(
        ticked.lock().len() <= 3,
        "the process's tasks ended with it"
    );
    assert!(panics() >= before + 2);
    assert!(panic_texts().iter().any(|text| text.contains("in a task")));
}

/// Proves that main need not be Send, and that looking at nothing for a while ends at the deadline.
#[test]
fn mains_stay_on_the_thread() {
    let mut hosts = hosts(1);
    let id = hosts.add("a");
    let shared = Rc::new(std::cell::Cell::new(0));
    let inside = Rc::clone(&shared);
    hosts
        .start(id, move |_| async move {
            sleep(ms(2)).await;
            inside.set(7);
            Ok(())
        })
        .unwrap();
    assert!(!hosts.run_until(ms(1), |_| shared.get() == 7));
    assert!(hosts.run_until(ms(10), |_| shared.get() == 7));
    assert!(hosts.now() < ms(5));
}

/// Proves that the order of hosts inside steps changes, and is the seed's.
#[test]
fn the_order_is_the_seeds() {
    let run = |seed| {
        let mut hosts = Hosts::new(ms(10), seed, Faults::default());
        let order: Seen<usize> = Seen::default();
        for name in ["a", "b", "c", "d"] {
            let id = hosts.add(name);
            let into = Arc::clone(&order);
            let main = move |host: HostContext| async move {
                loop {
                    into.lock().push(host.id.index());
                    sleep(ms(10)).await;
                }
            };
            hosts.start(id, main).unwrap();
        }
        hosts.run_for(ms(200));
        std::mem::take(&mut *order.lock())
    };
    let first = run(1);
    assert_eq!(first, run(1));
    assert_ne!(first, run(2));
    assert!(first.chunks(4).any(|order| order != &first[..4]));
}

/// Proves that a wall clock starts at the epoch, moves with time, jumps when told in both directions, and is the same inside and outside of the host.
#[test]
fn wall_clocks_jump() {
    let mut hosts = hosts(10);
    let id = hosts.add("a");
    let clock = hosts.clock(id);
    assert_eq!(clock.now_ms(), WORLD_EPOCH_MS);
    let seen: Seen<i64> = Seen::default();
    let into = Arc::clone(&seen);
    hosts
        .start(id, move |host| async move {
            loop {
                sleep(ms(5)).await;
                into.lock().push(host.clock.now_ms() - WORLD_EPOCH_MS);
            }
        })
        .unwrap();
    hosts.run_for(ms(10));
    hosts.jump(id, -1_000);
    assert_eq!(clock.now_ms(), WORLD_EPOCH_MS - 990);
    hosts.run_for(ms(10));
    hosts.jump(id, 5_000);
    hosts.run_for(ms(10));
    assert_eq!(*seen.lock(), [5, 10, -985, -980, 4025, 4030]);
}

/// Proves that a rate moves both clocks of a host, that it finds a world time that it sleeps for neither early nor late by more than a millisecond, and
/// that world time stays the same for all.
#[test]
fn rates() {
    for ppm in [-500_000, -100_000, -37, 50, 333_333, 1_000_000] {
        let mut hosts = hosts(10);
        let id = hosts.add("a");
        hosts.run_for(ms(100));
        hosts.skew(id, ppm);
        hosts
            .start(id, move |host| async move {
                let begun = Instant::now();
                for target in [ms(101), ms(555), ms(1000), ms(10_000)] {
                    while host.time.now() < target {
                        tokio::time::sleep_until(host.time.instant_at(target)).await;
                    }
                    let late = host.time.now() - target;
                    assert!(late <= ms(2), "{ppm}: {late:?} late");
                }
                let own = whole(begun.elapsed());
                let expected = 9_900 * u64::try_from(1_000_000 + ppm).unwrap() / 1_000_000;
                assert!(
                    own.abs_diff(expected) <= 2,
                    "{ppm}: {own} instead of {expected}"
                );
                let wall = host.clock.now_ms() - WORLD_EPOCH_MS - 100;
                assert!(wall.abs_diff(i64::try_from(own).unwrap()) <= 1);
                Ok(())
            })
            .unwrap();
        hosts.run_until(ms(20_000), |hosts| !hosts.is_alive(id));
        assert_eq!(hosts.ended(id), Some(&Ended::Returned(Ok(()))));
        assert!(hosts.now() <= ms(10_020));
    }
}
