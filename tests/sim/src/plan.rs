//! What one seed does: how large the cluster is, and what breaks when.
//!
//! Owns: the plan, how it is written and read as text (a kept seed may have a plan with less in it).
//! Not here: how it is drawn from the seed (`draw`), carrying it out (`run`).
//! Spec: docs/simulation.md

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tidelog_env::{CrashPoint, Mutant};

use crate::work::Work;

/// One seed's world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    /// 1, 3, or 5.
    pub(crate) brokers: usize,
    /// Length of a step of simulated time.
    pub(crate) tick: Duration,
    /// How long things break. What comes after heals.
    pub(crate) breaking: Duration,
    pub(crate) shape: Shape,
    /// What clients do. The load always.
    pub(crate) works: Vec<Work>,
    /// A fault that the brokers' code has. Never drawn.
    pub(crate) mutant: Option<Mutant>,
    pub(crate) steps: Vec<Step>,
}

/// How large things are: of what is small, more happens in the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// `raft.heartbeat-ms`; elections are three to five times as long.
    pub(crate) heartbeat: u64,
    /// `cluster.data-groups`.
    pub(crate) groups: u64,
    /// Size of a log file; records fill several, or a part of one.
    pub(crate) file_bytes: u64,
    /// `tier.local-bytes`: what stays local of what is in the store.
    pub(crate) local_bytes: u64,
    /// `tier.cut-interval-ms`.
    pub(crate) cut_interval: u64,
    /// A record has up to so many bytes more than it needs.
    pub(crate) padding: u64,
    /// Records of a burst, and the time between two, ms.
    pub(crate) burst: u64,
    pub(crate) pause: u64,
    /// A sync takes up to so many ms, usually.
    pub(crate) sync_max: u64,
}

impl Shape {
    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let known = self.named().into_iter().find(|(known, _)| *known == name);
        let (_, place) = known.with_context(|| format!("no such line: {name} {value}"))?;
        *place = value.parse().with_context(|| format!("{name} {value}"))?;
        Ok(())
    }

    /// Names and values, in the order of a plan's text.
    fn named(&mut self) -> [(&'static str, &mut u64); 9] {
        [
            ("heartbeat", &mut self.heartbeat),
            ("groups", &mut self.groups),
            ("file-bytes", &mut self.file_bytes),
            ("local-bytes", &mut self.local_bytes),
            ("cut-interval", &mut self.cut_interval),
            ("padding", &mut self.padding),
            ("burst", &mut self.burst),
            ("pause", &mut self.pause),
            ("sync-max", &mut self.sync_max),
        ]
    }
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            heartbeat: 500,
            groups: 2,
            file_bytes: 512 << 10,
            local_bytes: 64 << 10,
            cut_interval: 10_000,
            padding: 100,
            burst: 4,
            pause: 400,
            sync_max: 2,
        }
    }
}

/// A fault, and how long it stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) at: Duration,
    pub(crate) lasts: Duration,
    pub(crate) fault: Fault,
}

/// Brokers are counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The process dies; it starts again when the fault ends.
    Kill(usize),
    /// The machine loses power: what was not synced is lost or torn.
    PowerCut(usize),
    /// Power goes and comes again and again, also while the broker recovers.
    PowerCuts(usize),
    /// All machines at once.
    PowerCutAll,
    /// The machine is gone, and comes back with an empty disk; an operator takes it in.
    LoseDisk(usize),
    /// A bit of a placement group's files turns.
    Rot(usize),
    /// Some of the writes to them land elsewhere.
    Misdirect(usize),
    /// The process dies at a point of its code, when it has passed it so often.
    CrashAt(usize, CrashPoint, u32),
    /// The machine loses power at one.
    PowerCutAt(usize, CrashPoint, u32),
    /// SIGTERM; it starts again when the fault ends.
    Stop(usize),
    /// SIGSTOP, and SIGCONT when it ends.
    Pause(usize),
    /// Nothing arrives from the first at the second.
    CutOneWay(usize, usize),
    /// Nothing arrives either way.
    Cut(usize, usize),
    /// A broker and all others do not hear each other; clients do.
    CutOff(usize),
    /// Between two brokers: 2 to 500 ms, some loss, and few bytes a second.
    SlowLink(usize, usize),
    /// Every connection of a broker breaks.
    Reset(usize),
    /// Writes and syncs of a broker's disk take up to seconds.
    SlowDisk(usize),
    /// Those of all brokers take long.
    SlowDisks,
    /// A few of its reads, writes, and syncs fail.
    BadDisk(usize),
    /// Many of its syncs fail, and nothing else.
    FailSyncs(usize),
    /// It has no room.
    FullDisk(usize),
    /// One call in five of every kind goes wrong at the store.
    BadStore,
    /// No call comes through.
    StoreOutage,
    /// The wall clock of a broker jumps by so many seconds, and back when the fault ends.
    ClockJump(usize, i64),
    /// Its clocks run by so many parts per million too fast.
    Skew(usize, i32),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill(broker) => write!(f, "kill {broker}"),
            Self::PowerCut(broker) => write!(f, "power-cut {broker}"),
            Self::PowerCuts(broker) => write!(f, "power-cuts {broker}"),
            Self::PowerCutAll => write!(f, "power-cut-all"),
            Self::LoseDisk(broker) => write!(f, "lose-disk {broker}"),
            Self::Rot(broker) => write!(f, "rot {broker}"),
            Self::Misdirect(broker) => write!(f, "misdirect {broker}"),
            Self::CrashAt(broker, at, skip) => write!(f, "crash-at {broker} {at} {skip}"),
            Self::PowerCutAt(broker, at, skip) => write!(f, "power-cut-at {broker} {at} {skip}"),
            Self::Stop(broker) => write!(f, "stop {broker}"),
            Self::Pause(broker) => write!(f, "pause {broker}"),
            Self::CutOneWay(from, to) => write!(f, "cut-one-way {from} {to}"),
            Self::Cut(one, other) => write!(f, "cut {one} {other}"),
            Self::CutOff(broker) => write!(f, "cut-off {broker}"),
            Self::SlowLink(one, other) => write!(f, "slow-link {one} {other}"),
            Self::Reset(broker) => write!(f, "reset {broker}"),
            Self::SlowDisk(broker) => write!(f, "slow-disk {broker}"),
            Self::SlowDisks => write!(f, "slow-disks"),
            Self::BadDisk(broker) => write!(f, "bad-disk {broker}"),
            Self::FailSyncs(broker) => write!(f, "fail-syncs {broker}"),
            Self::FullDisk(broker) => write!(f, "full-disk {broker}"),
            Self::BadStore => write!(f, "bad-store"),
            Self::StoreOutage => write!(f, "store-outage"),
            Self::ClockJump(broker, seconds) => write!(f, "clock-jump {broker} {seconds}"),
            Self::Skew(broker, ppm) => write!(f, "skew {broker} {ppm}"),
        }
    }
}

impl std::str::FromStr for Fault {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let broker = |word: &str| word.parse::<usize>().context("a broker's number");
        let point = |word: &str| word.parse::<CrashPoint>().map_err(anyhow::Error::msg);
        Ok(match words.as_slice() {
            ["kill", one] => Self::Kill(broker(one)?),
            ["power-cut", one] => Self::PowerCut(broker(one)?),
            ["power-cuts", one] => Self::PowerCuts(broker(one)?),
            ["power-cut-all"] => Self::PowerCutAll,
            ["lose-disk", one] => Self::LoseDisk(broker(one)?),
            ["rot", one] => Self::Rot(broker(one)?),
            ["misdirect", one] => Self::Misdirect(broker(one)?),
            ["crash-at", one, at, skip] => Self::CrashAt(broker(one)?, point(at)?, skip.parse()?),
            ["power-cut-at", one, at, skip] => {
                Self::PowerCutAt(broker(one)?, point(at)?, skip.parse()?)
            }
            ["stop", one] => Self::Stop(broker(one)?),
            ["pause", one] => Self::Pause(broker(one)?),
            ["cut-one-way", one, other] => Self::CutOneWay(broker(one)?, broker(other)?),
            ["cut", one, other] => Self::Cut(broker(one)?, broker(other)?),
            ["cut-off", one] => Self::CutOff(broker(one)?),
            ["slow-link", one, other] => Self::SlowLink(broker(one)?, broker(other)?),
            ["reset", one] => Self::Reset(broker(one)?),
            ["slow-disk", one] => Self::SlowDisk(broker(one)?),
            ["slow-disks"] => Self::SlowDisks,
            ["bad-disk", one] => Self::BadDisk(broker(one)?),
            ["fail-syncs", one] => Self::FailSyncs(broker(one)?),
            ["full-disk", one] => Self::FullDisk(broker(one)?),
            ["bad-store"] => Self::BadStore,
            ["store-outage"] => Self::StoreOutage,
            ["clock-jump", one, seconds] => Self::ClockJump(broker(one)?, seconds.parse()?),
            ["skew", one, ppm] => Self::Skew(broker(one)?, ppm.parse()?),
            _ => bail!("no such fault: {text}"),
        })
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}", self.seed)?;
        writeln!(f, "brokers {}", self.brokers)?;
        writeln!(f, "tick {}", self.tick.as_millis())?;
        writeln!(f, "breaking {}", self.breaking.as_millis())?;
        for (name, value) in self.shape.clone().named() {
            writeln!(f, "{name} {value}")?;
        }
        for work in &self.works {
            writeln!(f, "work {work}")?;
        }
        if let Some(mutant) = self.mutant {
            writeln!(f, "mutant {mutant}")?;
        }
        for Step { at, lasts, fault } in &self.steps {
            writeln!(f, "at {} for {} {fault}", at.as_millis(), lasts.as_millis())?;
        }
        Ok(())
    }
}

impl std::str::FromStr for Plan {
    type Err = anyhow::Error;

    /// Lines of [`Plan`]'s text; empty ones and those that begin with `#` say nothing, and what is not said of its shape is as usual.
    fn from_str(text: &str) -> Result<Self> {
        let mut lines = text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        let mut number = |name: &str| -> Result<u64> {
            let line = lines.next().with_context(|| format!("no line {name}"))?;
            let value = line.strip_prefix(name).context("another line")?;
            value.trim().parse().with_context(|| line.to_owned())
        };
        let mut plan = Self {
            seed: number("seed")?,
            brokers: usize::try_from(number("brokers")?)?,
            tick: Duration::from_millis(number("tick")?),
            breaking: Duration::from_millis(number("breaking")?),
            shape: Shape::default(),
            works: Vec::new(),
            mutant: None,
            steps: Vec::new(),
        };
        for line in lines {
            match line.split_once(' ') {
                Some(("work", name)) => plan.works.push(name.parse()?),
                Some(("mutant", name)) => {
                    plan.mutant = Some(name.parse().map_err(anyhow::Error::msg)?);
                }
                Some(("at", _)) => plan.steps.push(line.parse()?),
                Some((name, value)) => plan.shape.set(name, value)?,
                None => bail!("no step: {line}"),
            }
        }
        if plan.works.is_empty() {
            plan.works.push(Work::Load);
        }
        plan.check()?;
        Ok(plan)
    }
}

impl std::str::FromStr for Step {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let step = || -> Option<(u64, u64, &str)> {
            let (at, rest) = text.strip_prefix("at ")?.split_once(" for ")?;
            let (lasts, fault) = rest.split_once(' ')?;
            Some((at.parse().ok()?, lasts.parse().ok()?, fault))
        };
        let (at, lasts, fault) = step().with_context(|| format!("no step: {text}"))?;
        Ok(Self {
            at: Duration::from_millis(at),
            lasts: Duration::from_millis(lasts),
            fault: fault.parse()?,
        })
    }
}

impl Plan {
    /// Whether it can be carried out.
    fn check(&self) -> Result<()> {
        if !(1..=9).contains(&self.brokers) || self.tick.is_zero() {
            bail!("1 to 9 brokers, and a tick of at least 1 ms");
        }
        if !self.works.contains(&Work::Load) {
            bail!("without the load nothing is written");
        }
        for step in &self.steps {
            if step.fault.brokers().iter().any(|at| *at >= self.brokers) {
                bail!("no such broker: {}", step.fault);
            }
        }
        Ok(())
    }
}

impl Fault {
    /// Those that it is about.
    fn brokers(self) -> Vec<usize> {
        match self {
            Self::Kill(one)
            | Self::PowerCut(one)
            | Self::PowerCuts(one)
            | Self::LoseDisk(one)
            | Self::Rot(one)
            | Self::Misdirect(one)
            | Self::CrashAt(one, _, _)
            | Self::PowerCutAt(one, _, _)
            | Self::Stop(one)
            | Self::Pause(one)
            | Self::CutOff(one)
            | Self::Reset(one)
            | Self::SlowDisk(one)
            | Self::BadDisk(one)
            | Self::FailSyncs(one)
            | Self::FullDisk(one)
            | Self::ClockJump(one, _)
            | Self::Skew(one, _) => vec![one],
            Self::CutOneWay(one, other) | Self::Cut(one, other) | Self::SlowLink(one, other) => {
                vec![one, other]
            }
            Self::PowerCutAll | Self::SlowDisks | Self::BadStore | Self::StoreOutage => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Proves that a plan is the same after it was written and read.
    #[test]
    fn plans_are_kept_as_text() {
        for seed in 0..200 {
            let plan = crate::draw::plan(seed);
            let read: Plan = plan.to_string().parse().unwrap();
            assert_eq!(read, plan);
        }
    }

    /// Proves that what cannot be carried out is refused.
    #[test]
    fn a_plan_that_cannot_be_is_refused() {
        let plan = Plan {
            seed: 1,
            brokers: 3,
            tick: Duration::from_millis(5),
            breaking: Duration::from_secs(1),
            shape: Shape::default(),
            works: vec![Work::Load],
            mutant: None,
            steps: Vec::new(),
        };
        let text = plan.to_string();
        for more in [
            "at 1 for 2 kill 3",
            "at 1 for 2 kil 1",
            "at 1 kill 1",
            "at 1 for 2 kill -1",
            "groups none",
            "grups 3",
            "work hard",
            "mutant none",
            "at 1 for 2 crash-at 1 nowhere 0",
        ] {
            let read: Result<Plan> = format!("{text}{more}\n").parse();
            assert!(read.is_err(), "{more}");
        }
        assert!(
            "seed 1\nbrokers 0\ntick 5\nbreaking 1\n"
                .parse::<Plan>()
                .is_err()
        );
        assert!("brokers 3".parse::<Plan>().is_err());
        let idle = text.replace("work load", "work groups");
        assert!(idle.parse::<Plan>().is_err(), "nothing is written");
    }
}
