//! The long forms of the cluster scenarios: how long a failover takes, and many faults.
//!
//! Owns: their arguments, how many rounds in which runs.
//! Not here: the scenarios (`tests/cluster`), how they are built and run (`steps`).
//! Spec: tests/README.md

use std::ffi::OsString;

/// Kills whose history is judged together: every record of it is in memory.
const KILLS_TOGETHER: u32 = 50;
/// Faults of each other scenario.
const ROUNDS: u32 = 100;

/// Sizes of the replica move: what is in the store, and what is not.
pub(crate) const REPLICA_MOVE: [(&str, &str); 2] =
    [("REPLICA_TIERED_MIB", "5120"), ("REPLICA_HOT_MIB", "50")];

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) kills: u32,
    pub(crate) seed: u64,
}

/// One run of scenarios: those whose name contains one of `names`, or all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) names: Vec<String>,
    pub(crate) rounds: u32,
    pub(crate) seed: u64,
}

impl Settings {
    /// `[--kills N] [--seed S]`
    pub(crate) fn parse(words: &[&str], kills: u32) -> Option<Self> {
        let mut settings = Self { kills, seed: 1 };
        let mut pairs = words.chunks_exact(2);
        for pair in &mut pairs {
            match pair {
                ["--kills", number] => settings.kills = number.parse().ok()?,
                ["--seed", number] => settings.seed = number.parse().ok()?,
                _ => return None,
            }
        }
        (pairs.remainder().is_empty() && settings.kills > 0).then_some(settings)
    }

    /// Kills and pauses of leaders, one at a time.
    pub(crate) fn failover(self) -> Run {
        Run {
            names: vec!["three::failover".to_owned()],
            rounds: self.kills,
            seed: self.seed,
        }
    }

    /// Every scenario with many rounds, then the kills, some at a time.
    pub(crate) fn soak(self) -> Vec<Run> {
        let mut runs = vec![Run {
            names: Vec::new(),
            rounds: ROUNDS,
            seed: self.seed,
        }];
        let mut left = self.kills;
        while left > 0 {
            let rounds = left.min(KILLS_TOGETHER);
            left -= rounds;
            runs.push(Run {
                names: vec!["three::leader_kills".to_owned()],
                rounds,
                seed: self.seed.wrapping_add(u64::from(left)),
            });
        }
        runs
    }
}

impl Run {
    /// What the scenarios read.
    pub(crate) fn environment(&self) -> [(&'static str, OsString); 2] {
        [
            ("CLUSTER_ROUNDS", self.rounds.to_string().into()),
            ("CLUSTER_SEED", self.seed.to_string().into()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that arguments are read, wrong ones refused, and that a soak has each kill once, under seeds of their own.
    #[test]
    fn kills_are_shared_out() {
        assert_eq!(Settings::parse(&["--kills"], 10), None);
        assert_eq!(Settings::parse(&["--kills", "0"], 10), None);
        assert_eq!(Settings::parse(&["--kill", "1"], 10), None);
        let usual = Settings { kills: 10, seed: 1 };
        assert_eq!(Settings::parse(&[], 10), Some(usual));
        let asked = Settings::parse(&["--seed", "7", "--kills", "120"], 10);
        let runs = asked.map(Settings::soak).unwrap_or_default();
        let rounds: Vec<u32> = runs.iter().map(|run| run.rounds).collect();
        assert_eq!(rounds, [ROUNDS, 50, 50, 20]);
        let seeds: std::collections::BTreeSet<u64> =
            runs.iter().skip(1).map(|run| run.seed).collect();
        assert_eq!(seeds.len(), 3);
    }
}
