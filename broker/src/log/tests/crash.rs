//! Crashes: at every operation of a small history, and at random in random ones.

use super::model::{Act, Driver, script};
use proptest::prelude::*;
use tidelog_env::disk::Fault;

/// Runs the history with the power cut at operation `cut`; says whether the cut came.
fn run_until_cut(driver: &mut Driver, acts: &[Act], cut: u64) -> bool {
    let cut = driver.rig.disk.operations() + cut;
    driver.rig.disk.fail_at(cut, Fault::PowerCut);
    if driver.open() {
        for act in acts {
            if !driver.act(act) {
                break;
            }
        }
    }
    driver.rig.disk.operations() > cut
}

/// Proves that recovery finds a prefix with everything acknowledged, wherever the power goes and whatever part of the
/// unsynced sectors and names survives; that a second recovery finds the same; and that the log can be used on.
#[test]
fn power_cut_at_every_operation() {
    let mut cut = 0;
    loop {
        let mut reached = false;
        for seed in 0..5 {
            let mut driver = Driver::new();
            reached = run_until_cut(&mut driver, &script(), cut);
            driver.lose(seed + cut * 8, false);
            assert!(driver.open(), "cut {cut} seed {seed}");
            let before = driver.log().unwrap().state();
            driver.lose(0, false);
            assert!(driver.open(), "recovery is idempotent");
            assert_eq!(
                driver.log().unwrap().state(),
                before,
                "what a recovery showed is durable"
            );
            for act in [Act::Append(vec![10, 900]), Act::Vote, Act::Step] {
                assert!(driver.act(&act));
            }
            driver.lose(seed, false);
            assert!(driver.open());
        }
        if !reached {
            break;
        }
        cut += 1;
    }
    assert!(cut > 80, "the history has {cut} operations");
}

/// Proves that a power cut inside a recovery is recovered from, at every operation of it.
#[test]
fn power_cut_inside_recovery() {
    for first in (20..100).step_by(7) {
        let mut cut = 0;
        loop {
            let mut driver = Driver::new();
            run_until_cut(&mut driver, &script(), first);
            driver.lose(2 + first * 4, false);
            let reached = run_until_cut(&mut driver, &[], cut);
            driver.lose(3 + first + cut * 4, false);
            assert!(driver.open(), "first {first} cut {cut}");
            if !reached {
                break;
            }
            cut += 1;
        }
    }
}

/// Proves that after the process alone was lost, what a recovery shows is durable although it came from the page cache.
#[test]
fn kill_at_every_operation_then_lose_the_cache() {
    let mut cut = 0;
    loop {
        let mut driver = Driver::new();
        let reached = run_until_cut(&mut driver, &script(), cut);
        driver.rig.disk.restore_power();
        driver.lose(0, true);
        assert!(driver.open(), "cut {cut}");
        driver.lose(4 * cut, false);
        assert!(driver.open(), "cut {cut}: lost what was shown");
        if !reached {
            break;
        }
        cut += 1;
    }
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => proptest::collection::vec(prop_oneof![3 => 0usize..200, 2 => 200usize..4000], 1..5).prop_map(Act::Append),
        2 => (1u64..6).prop_map(Act::Truncate),
        2 => (0u64..6).prop_map(Act::Purge),
        1 => (0u64..3).prop_map(Act::PurgeBeyond),
        2 => Just(Act::Vote),
        2 => Just(Act::Committed),
        5 => Just(Act::Step),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Proves the same for random histories with several crashes one after the other.
    #[test]
    fn random_histories_survive_several_crashes(
        rounds in proptest::collection::vec(
            (proptest::collection::vec(act(), 1..25), 0u64..120, any::<u64>(), any::<bool>()), 1..5)
    ) {
        let mut driver = Driver::new();
        for (acts, cut, seed, kill) in rounds {
            run_until_cut(&mut driver, &acts, cut);
            driver.rig.disk.restore_power();
            driver.lose(seed, kill);
            prop_assert!(driver.open());
            driver.lose(seed / 3, false);
        }
        prop_assert!(driver.open());
    }
}

/// Proves that frames of an earlier use of a file never come back: files are recycled many times, with a crash after
/// each round that keeps everything.
#[test]
fn stale_frames_never_surface() {
    let mut driver = Driver::new();
    assert!(driver.open());
    let mut recycled = 0;
    for round in 0..12 {
        for size in [3000, 1000, 3000, 1000, 3000, 1000, 3000] {
            assert!(driver.act(&Act::Append(vec![size])));
            assert!(driver.act(&Act::Step));
        }
        assert!(driver.act(&Act::Purge(1)));
        assert!(driver.act(&Act::Step));
        recycled += driver.log().unwrap().metrics().files_recycled.get();
        driver.lose(1 + round * 4, false);
        assert!(driver.open());
    }
    assert!(recycled > 10, "{recycled} files were recycled");
}
