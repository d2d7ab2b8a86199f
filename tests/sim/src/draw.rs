//! How a seed's plan is drawn.
//!
//! Owns: how often which fault is planned, how close faults come, how large things are.
//! Not here: the plan and its text (`plan`), carrying it out (`breaking`).
//! Spec: docs/simulation.md (what a seed does)
//!
//! Not every seed has everything: where few kinds of faults come again and again, they meet in ways that they do not among twenty others.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tidelog_env::CrashPoint;

use crate::plan::{Fault, Plan, Shape, Step};
use crate::work::Work;

/// Time before the first fault: the cluster forms, and the load begins.
const CALM: Duration = Duration::from_secs(15);
/// How far a clock jumps, seconds: six jumps together stay within the hour that a broker allows a record to be ahead of it.
const JUMP: i64 = 600;
/// How much too fast or slow a clock runs; and in a quiet seed, whose faults last so long that it would be wrong by an hour in the end.
const SKEW: i32 = 50_000;
const SKEW_QUIET: i32 = 500;
/// How often a disk is damaged in a run. A broker sets aside damaged files four times, then it asks for a human.
const DAMAGES_MAX: usize = 3;
/// Kinds of faults of a seed that has few.
const FEW: std::ops::Range<usize> = 2..7;
/// Power cuts of one machine, one after the other, end by then.
const POWER_CUTS_MAX: Duration = Duration::from_secs(30);

/// How a seed's faults follow each other, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pace {
    /// How long things break.
    breaking: (u64, u64),
    /// Between the beginnings of two faults.
    between: (u64, u64),
    /// How long one lasts.
    lasts: (u64, u64),
}

const USUAL: Pace = Pace {
    breaking: (120_000, 600_000),
    between: (500, 20_000),
    lasts: (100, 30_000),
};
const STORM: Pace = Pace {
    breaking: (60_000, 180_000),
    between: (50, 3_000),
    lasts: (100, 5_000),
};
/// Hours, in which little happens: what is out stays out until nobody remembers it.
const QUIET: Pace = Pace {
    breaking: (3_600_000, 14_400_000),
    between: (180_000, 2_400_000),
    lasts: (60_000, 7_200_000),
};

/// What can be planned. As often as it is in the list, the more often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Kill,
    PowerCut,
    PowerCuts,
    PowerCutAll,
    Stop,
    Pause,
    Reset,
    SlowDisk,
    SlowDisks,
    BadDisk,
    FailSyncs,
    FullDisk,
    BadStore,
    StoreOutage,
    ClockJump,
    Skew,
    CrashPoint,
    Cut,
    CutOneWay,
    CutOff,
    SlowLink,
}

/// Those of one broker, and then those between two.
const KINDS: [Kind; 26] = [
    Kind::Kill,
    Kind::PowerCut,
    Kind::PowerCuts,
    Kind::PowerCuts,
    Kind::PowerCutAll,
    Kind::Stop,
    Kind::Pause,
    Kind::Reset,
    Kind::SlowDisk,
    Kind::SlowDisks,
    Kind::BadDisk,
    Kind::FailSyncs,
    Kind::FullDisk,
    Kind::BadStore,
    Kind::StoreOutage,
    Kind::ClockJump,
    Kind::Skew,
    Kind::CrashPoint,
    Kind::CrashPoint,
    Kind::CrashPoint,
    Kind::CrashPoint,
    Kind::Cut,
    Kind::CutOneWay,
    Kind::CutOneWay,
    Kind::CutOff,
    Kind::SlowLink,
];
const OF_ONE: usize = 21;

/// The plan of a seed.
pub(crate) fn plan(seed: u64) -> Plan {
    let mut dice = StdRng::seed_from_u64(seed);
    let brokers = [1, 3, 3, 3, 5][dice.random_range(0..5)];
    let quiet = dice.random_ratio(1, 5);
    let pace = match dice.random_range(0..4) {
        _ if quiet => QUIET,
        0 => STORM,
        _ => USUAL,
    };
    let tick = if quiet {
        50
    } else {
        one(&mut dice, &[5, 20, 50])
    };
    let breaking = Duration::from_millis(dice.random_range(pace.breaking.0..pace.breaking.1));
    let shape = if quiet {
        quiet_shape(&mut dice)
    } else {
        shape(&mut dice)
    };
    let works = Work::ALL.into_iter().filter(|work| match work {
        Work::Load => true,
        Work::Repair => brokers > 1,
        Work::Members => brokers > 1 && dice.random_bool(0.4),
        Work::Tiers => dice.random_bool(0.4),
        // They ask twice a second, and would do so for hours.
        Work::Groups | Work::Topics => !quiet && dice.random_bool(0.4),
    });
    let works = works.collect();
    let possible = if brokers == 1 { OF_ONE } else { KINDS.len() };
    let mut kinds = KINDS[..possible].to_vec();
    if dice.random_bool(0.5) {
        let few = dice.random_range(FEW);
        kinds = (0..few)
            .map(|_| kinds[dice.random_range(0..kinds.len())])
            .collect();
    }
    let mut drawing = Drawing {
        dice,
        brokers,
        quiet,
        pace,
    };
    let mut steps = Vec::new();
    let mut at = CALM;
    while at < breaking {
        drawing.add(at, &kinds, &mut steps);
        at += drawing.time(pace.between);
    }
    if brokers > 1 && drawing.dice.random_bool(0.4) {
        drawing.damage(breaking, &mut steps);
    }
    Plan {
        seed,
        brokers,
        tick: Duration::from_millis(tick),
        breaking,
        shape,
        works,
        mutant: None,
        steps,
    }
}

fn one(dice: &mut StdRng, of: &[u64]) -> u64 {
    of.get(dice.random_range(0..of.len())).copied().unwrap_or(1)
}

fn shape(dice: &mut StdRng) -> Shape {
    Shape {
        heartbeat: one(dice, &[200, 500, 1000, 2000]),
        groups: one(dice, &[1, 2, 3]),
        file_bytes: one(dice, &[128 << 10, 512 << 10, 8 << 20]),
        local_bytes: one(dice, &[0, 64 << 10, 1 << 30]),
        cut_interval: one(dice, &[2000, 10_000, 60_000]),
        padding: one(dice, &[100, 1000, 4000]),
        burst: one(dice, &[1, 4, 16]),
        pause: one(dice, &[400, 1000, 3000]),
        sync_max: one(dice, &[2, 2, 20, 100]),
    }
}

/// Little traffic, and nobody in a hurry.
fn quiet_shape(dice: &mut StdRng) -> Shape {
    Shape {
        heartbeat: one(dice, &[3000, 6000, 10_000]),
        groups: one(dice, &[1, 2]),
        file_bytes: one(dice, &[128 << 10, 512 << 10]),
        local_bytes: one(dice, &[0, 64 << 10, 1 << 30]),
        cut_interval: one(dice, &[60_000, 600_000]),
        padding: one(dice, &[1000, 4000]),
        // After the healing each partition must take twenty: a few bursts.
        burst: 16,
        pause: one(dice, &[15_000, 60_000]),
        sync_max: one(dice, &[2, 20, 100]),
    }
}

/// What the faults of one seed are drawn with.
struct Drawing {
    dice: StdRng,
    brokers: usize,
    quiet: bool,
    pace: Pace,
}

impl Drawing {
    fn time(&mut self, (least, most): (u64, u64)) -> Duration {
        Duration::from_millis(self.dice.random_range(least..most))
    }

    /// A fault of one of these kinds, and what goes with it.
    fn add(&mut self, at: Duration, kinds: &[Kind], steps: &mut Vec<Step>) {
        let kind = kinds[self.dice.random_range(0..kinds.len())];
        let fault = self.fault(kind);
        let mut lasts = self.time(self.pace.lasts);
        match fault {
            Fault::PowerCuts(_) => lasts = lasts.min(POWER_CUTS_MAX),
            // What a failed sync has left shows when the power goes.
            Fault::FailSyncs(broker) if self.dice.random_bool(0.5) => {
                // A plan's text has whole milliseconds.
                let later = lasts.mul_f64(self.dice.random_range(0.1..1.0)).as_millis();
                let at = at + Duration::from_millis(u64::try_from(later).unwrap_or(0));
                let lasts = self.time(STORM.lasts);
                let fault = Fault::PowerCut(broker);
                steps.push(Step { at, lasts, fault });
            }
            _ => {}
        }
        steps.push(Step { at, lasts, fault });
    }

    fn fault(&mut self, kind: Kind) -> Fault {
        let (brokers, dice) = (self.brokers, &mut self.dice);
        let broker = dice.random_range(0..brokers);
        let other = (broker + 1 + dice.random_range(0..brokers.max(2) - 1)) % brokers;
        match kind {
            Kind::Kill => Fault::Kill(broker),
            Kind::PowerCut => Fault::PowerCut(broker),
            Kind::PowerCuts => Fault::PowerCuts(broker),
            Kind::PowerCutAll => Fault::PowerCutAll,
            Kind::Stop => Fault::Stop(broker),
            Kind::Pause => Fault::Pause(broker),
            Kind::Reset => Fault::Reset(broker),
            Kind::SlowDisk => Fault::SlowDisk(broker),
            Kind::SlowDisks => Fault::SlowDisks,
            Kind::BadDisk => Fault::BadDisk(broker),
            Kind::FailSyncs => Fault::FailSyncs(broker),
            Kind::FullDisk => Fault::FullDisk(broker),
            Kind::BadStore => Fault::BadStore,
            Kind::StoreOutage => Fault::StoreOutage,
            Kind::ClockJump => Fault::ClockJump(broker, dice.random_range(-JUMP..JUMP)),
            Kind::Skew => {
                let most = if self.quiet { SKEW_QUIET } else { SKEW };
                Fault::Skew(broker, dice.random_range(-most..most))
            }
            Kind::CrashPoint => {
                let point = CrashPoint::ALL[dice.random_range(0..CrashPoint::ALL.len())];
                let skip = [0, 0, 1, 5, 50][dice.random_range(0..5)];
                match dice.random_range(0..2) {
                    0 => Fault::CrashAt(broker, point, skip),
                    _ => Fault::PowerCutAt(broker, point, skip),
                }
            }
            Kind::Cut => Fault::Cut(broker, other),
            Kind::CutOneWay => Fault::CutOneWay(broker, other),
            Kind::CutOff => Fault::CutOff(broker),
            Kind::SlowLink => Fault::SlowLink(broker, other),
        }
    }

    /// What is on a disk is lost or wrong, of one broker at most in a run: of an only copy nothing would be left.
    fn damage(&mut self, breaking: Duration, steps: &mut Vec<Step>) {
        let victim = self.dice.random_range(0..self.brokers);
        for _ in 0..self.dice.random_range(1..=DAMAGES_MAX) {
            let fault = match self.dice.random_range(0..3) {
                0 => Fault::LoseDisk(victim),
                1 => Fault::Rot(victim),
                _ => Fault::Misdirect(victim),
            };
            let at = self.dice.random_range(CALM.as_secs()..breaking.as_secs());
            let lasts = self.time(self.pace.lasts);
            steps.push(Step {
                at: Duration::from_secs(at),
                lasts,
                fault,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Proves that a seed has one plan, that seeds have different ones, that each kind of fault is in some, and that some are quiet and most are not.
    #[test]
    fn seeds_have_plans_of_their_own() {
        let mut kinds = BTreeSet::new();
        let mut quiet = 0;
        for seed in 0..300 {
            let drawn = plan(seed);
            assert_eq!(drawn, plan(seed));
            assert_ne!(drawn.steps, plan(seed + 1).steps);
            quiet += u32::from(drawn.breaking > Duration::from_secs(3600));
            for step in &drawn.steps {
                let text = step.fault.to_string();
                kinds.extend(text.split(' ').next().map(str::to_owned));
            }
        }
        assert_eq!(kinds.len(), 25, "{kinds:?}");
        assert!((30..100).contains(&quiet), "{quiet} quiet seeds of 300");
    }

    /// Proves that a clock is never wrong by more than brokers take: a client would give up through no fault of theirs.
    #[test]
    fn clocks_stay_within_the_hour() {
        for seed in 0..300 {
            let plan = plan(seed);
            for broker in 0..plan.brokers {
                let (mut jumps, mut skewed) = (Vec::new(), 0.0);
                for step in &plan.steps {
                    match step.fault {
                        Fault::ClockJump(at, seconds) if at == broker => {
                            jumps.push((step.at..step.at + step.lasts, seconds));
                        }
                        Fault::Skew(at, ppm) if at == broker => {
                            skewed += step.lasts.as_secs_f64() * f64::from(ppm.abs()) / 1e6;
                        }
                        _ => {}
                    }
                }
                for (of, _) in &jumps {
                    let on = jumps.iter().filter(|(time, _)| time.contains(&of.start));
                    let (ahead, behind) = on.fold((0, 0), |(ahead, behind), (_, seconds)| {
                        (ahead + seconds.max(&0), behind - seconds.min(&0))
                    });
                    let most = i32::try_from(ahead.max(behind)).unwrap_or(i32::MAX);
                    let wrong = f64::from(most) + skewed;
                    assert!(wrong < 3500.0, "seed {seed}: broker {broker} by {wrong} s");
                }
            }
        }
    }
}
