//! How long nothing was acknowledged around each fault, from a history's times.
//!
//! Owns: [`Pauses`]: the longest gap between two acknowledgements of a partition, per fault; their distribution.
//! Not here: what is right or wrong (`judge`): no pause breaks a rule.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::history::{Event, History, Partition};

/// The longest pauses of a history, one for each fault and partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pauses {
    faults: Vec<BTreeMap<Partition, Duration>>,
}

impl Pauses {
    /// A fault is a note that `is_fault` says yes to; its time lasts until the next, or until the first note after it that `is_end` says
    /// yes to. A pause counts from the last acknowledgement before it, and belongs to the fault in whose time it ends. Partitions
    /// without an acknowledgement before or in that time have none.
    #[must_use]
    pub fn of(
        history: &History,
        is_fault: impl Fn(&str) -> bool,
        is_end: impl Fn(&str) -> bool,
    ) -> Self {
        let mut pauses = Self::default();
        let mut places = BTreeMap::new();
        let mut last: BTreeMap<Partition, Duration> = BTreeMap::new();
        let mut in_fault = false;
        for (at, event) in history.events() {
            match event {
                Event::Sent {
                    producer,
                    sequence,
                    partition,
                    ..
                } => {
                    places.insert((*producer, *sequence), *partition);
                }
                Event::Acknowledged {
                    producer, sequence, ..
                } => {
                    let Some(partition) = places.remove(&(*producer, *sequence)) else {
                        continue;
                    };
                    let before = last.insert(partition, *at);
                    if let (true, Some(before), Some(fault)) =
                        (in_fault, before, pauses.faults.last_mut())
                    {
                        let longest = fault.entry(partition).or_default();
                        *longest = (*longest).max(at.saturating_sub(before));
                    }
                }
                Event::Note(text) if is_fault(text) => {
                    pauses.faults.push(BTreeMap::new());
                    in_fault = true;
                }
                Event::Note(text) if is_end(text) => in_fault = false,
                _ => {}
            }
        }
        pauses
    }

    /// Per fault the pause of the partition that waited longest, shortest first.
    #[must_use]
    pub fn worst_of_each(&self) -> Vec<Duration> {
        let mut worst: Vec<Duration> = self
            .faults
            .iter()
            .filter_map(|fault| fault.values().max().copied())
            .collect();
        worst.sort();
        worst
    }

    /// The pauses of all faults and partitions, shortest first.
    #[must_use]
    pub fn all(&self) -> Vec<Duration> {
        let each = self.faults.iter().flat_map(BTreeMap::values);
        let mut all: Vec<Duration> = each.copied().collect();
        all.sort();
        all
    }
}

/// The value below which `percent` of the sorted values lie (the nearest one).
#[must_use]
pub fn percentile(sorted: &[Duration], percent: usize) -> Option<Duration> {
    let last = sorted.len().checked_sub(1)?;
    let at = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(at.min(last)).copied()
}

impl fmt::Display for Pauses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let worst = self.worst_of_each();
        let line = |f: &mut fmt::Formatter<'_>, sorted: &[Duration]| {
            for (name, percent) in [("median", 50), ("p95", 95), ("p99", 99), ("worst", 100)] {
                let value = percentile(sorted, percent).unwrap_or_default();
                write!(f, " {name} {:.2} s", value.as_secs_f64())?;
            }
            Ok(())
        };
        write!(f, "{} faults; slowest partition of each:", worst.len())?;
        line(f, &worst)?;
        write!(f, "; all partitions:")?;
        line(f, &self.all())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Offset, Producer, Sequence};

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn history(acknowledged: &[(u64, i32)], notes: &[(u64, &str)]) -> History {
        let mut events = Vec::new();
        for (number, (at, partition)) in acknowledged.iter().enumerate() {
            let sequence = Sequence(u64::try_from(number).unwrap_or(u64::MAX));
            let sent = Event::Sent {
                producer: Producer(0),
                sequence,
                partition: Partition(*partition),
                value: vec![],
            };
            let acknowledged = Event::Acknowledged {
                producer: Producer(0),
                sequence,
                offset: Some(Offset(0)),
            };
            events.extend([(ms(*at), sent), (ms(*at), acknowledged)]);
        }
        let notes = notes
            .iter()
            .map(|(at, text)| (ms(*at), Event::Note((*text).to_owned())));
        events.extend(notes);
        events.sort_by_key(|(at, _)| *at);
        let mut history = History::default();
        for (at, event) in events {
            history.push(at, event);
        }
        history
    }

    // Proves: each fault has the longest pause of each partition that ends in its time, counted from before the fault; what is
    // outside every fault's time does not count.
    #[test]
    fn pauses_belong_to_faults() {
        let acknowledged = [
            (0, 0),
            (0, 1),
            (5000, 0),
            (6000, 0),
            (6000, 1),
            (8000, 0),
            (6100, 1),
            (9000, 0),
            (20000, 0),
        ];
        let notes = [(5500, "kill 1"), (8500, "kill 2"), (10000, "over")];
        let history = history(&acknowledged, &notes);
        let pauses = Pauses::of(
            &history,
            |text| text.starts_with("kill"),
            |text| text == "over",
        );
        assert_eq!(pauses.all(), [ms(1000), ms(2000), ms(6000)]);
        assert_eq!(pauses.worst_of_each(), [ms(1000), ms(6000)]);
        let text = pauses.to_string();
        assert!(
            text.contains("2 faults; slowest partition of each: median 1.00 s"),
            "{text}"
        );
    }

    // Proves: percentiles are values that are there, the last one included; of nothing there is none.
    #[test]
    fn percentiles() {
        let sorted: Vec<Duration> = (1..=200).map(ms).collect();
        assert_eq!(percentile(&sorted, 50), Some(ms(100)));
        assert_eq!(percentile(&sorted, 99), Some(ms(198)));
        assert_eq!(percentile(&sorted, 100), Some(ms(200)));
        assert_eq!(percentile(&sorted[..1], 50), Some(ms(1)));
        assert_eq!(percentile(&[], 50), None);
    }
}
