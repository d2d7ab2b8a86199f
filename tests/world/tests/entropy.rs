//! The process's randomness is the seed's: this program starts itself, with one seed twice, with another one, and without.
//!
//! Owns: what is drawn, in the child, by way of std, tokio and the libraries.
//! Not here: the world's own randomness.
//! Spec: docs/simulation.md
//!
//! A program of its own without the test harness: hash maps of a thread that has drawn before keep their keys.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rand::{Rng, RngCore, SeedableRng};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::Command;
use tidelog_world::entropy;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some("draw") => {
            let drawn = match arguments.get(2).and_then(|seed| seed.parse().ok()) {
                Some(seed) => entropy::run_seeded(seed, draw).unwrap(),
                None => draw(),
            };
            std::io::stdout().write_all(drawn.as_bytes()).unwrap();
        }
        _ => judge(),
    }
}

/// Proves that each kind of draw is the same for the same seed and another one for another seed, and that without a seed the system's
/// randomness comes through.
fn judge() {
    let (first, again, other) = (child("7"), child("7"), child("8"));
    let (real, real_again) = (child("none"), child("none"));
    assert_eq!(first.len(), 7);
    assert_eq!(first, again, "the same seed, the same draws");
    for at in 0..first.len() - 1 {
        assert_ne!(first[at], other[at], "another seed, other draws");
        assert_ne!(real[at], real_again[at], "without a seed nothing repeats");
    }
    assert_eq!(first[6], "real draws false");
    assert_eq!(real[6], "real draws true");
}

fn child(seed: &str) -> Vec<String> {
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program).args(["draw", seed]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// One line for each kind.
fn draw() -> String {
    let before = entropy::real_draws();
    let mut text = String::new();
    let map: HashMap<u32, u32> = (0..64).map(|n| (n, n)).collect();
    writeln!(text, "map {:?}", map.keys().collect::<Vec<_>>()).unwrap();
    writeln!(text, "rng {}", rand::rng().random::<u64>()).unwrap();
    writeln!(text, "os {}", rand::rngs::StdRng::from_os_rng().next_u64()).unwrap();
    writeln!(text, "uuid {}", uuid::Uuid::new_v4()).unwrap();
    writeln!(text, "fastrand {}", fastrand::u64(..)).unwrap();
    writeln!(text, "select {}", select()).unwrap();
    writeln!(text, "real draws {}", entropy::real_draws() > before).unwrap();
    text
}

/// What `select!` chooses of two that are ready.
fn select() -> String {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut chosen = String::new();
        for _ in 0..128 {
            tokio::select! {
                () = std::future::ready(()) => chosen.push('a'),
                () = std::future::ready(()) => chosen.push('b'),
            }
        }
        chosen
    })
}
