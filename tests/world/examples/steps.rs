//! What a step of an idle host costs: `cargo run --release -p tidelog-world --example steps`. Wall time: under load, divide the CPU time.
//!
//! Owns: the measurement.
//! Not here: what hosts do (`tests/sim`).
//! Spec: docs/simulation.md

use std::io::Write;
use std::time::{Duration, Instant};
use tidelog_world::faults::Faults;
use tidelog_world::hosts::Hosts;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = std::io::stdout().lock();
    for tasks in [0, 10, 100] {
        let mut hosts = Hosts::new(Duration::from_millis(10), 1, Faults::default());
        let count = 5;
        for number in 0..count {
            let id = hosts.add(&number.to_string());
            hosts.start(id, move |_| async move {
                for _ in 0..tasks {
                    tokio::spawn(std::future::pending::<()>());
                }
                std::future::pending().await
            })?;
        }
        hosts.run_for(Duration::from_secs(1));
        let steps = 100_000_u32;
        let start = Instant::now();
        for _ in 0..steps {
            hosts.step();
        }
        let each = start.elapsed() / (steps * count);
        writeln!(
            out,
            "{count} hosts, {tasks} waiting tasks on each: {} ns per host and step",
            each.as_nanos()
        )?;
    }
    Ok(())
}
