//! The rules, over one history.
//!
//! Owns: what is known after each event, and what only the whole history can tell.
//! Not here: words (`report`).

use std::collections::{BTreeMap, HashMap};

use crate::answers::Answers;
use crate::history::{Event, History, Offset, Partition, Producer, Reader, Sequence};
use crate::report::{Report, Rule, Summary, Violation};

/// A record, by who sent it.
type RecordId = (Producer, Sequence);

/// The number of an event.
type At = usize;

#[derive(Clone, Copy)]
struct Sent {
    at: At,
    partition: Partition,
    result: Option<(At, Outcome)>,
    place: Option<(At, Partition, Offset)>,
    read: Option<At>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Acknowledged,
    Failed { may_have_happened: bool },
}

/// One reader in one partition.
#[derive(Clone, Copy)]
struct Reading {
    next: Offset,
    at: At,
    high_watermark: Option<(At, Offset)>,
}

/// A reader went over these offsets without getting anything.
struct Skip {
    partition: Partition,
    from: Offset,
    until: Offset,
    at: At,
}

#[derive(Default)]
pub(crate) struct Judge<'a> {
    sent: HashMap<RecordId, Sent>,
    by_value: HashMap<&'a [u8], RecordId>,
    /// What is at an offset, and the event that told it first.
    log: BTreeMap<(Partition, Offset), (At, RecordId)>,
    readings: BTreeMap<(Reader, Partition), Reading>,
    skips: Vec<Skip>,
    /// The last event that told where a partition ends, after which nothing acknowledged may be missing.
    ends: BTreeMap<Partition, (At, Offset)>,
    answers: Answers,
    summary: Summary,
    violations: Vec<Violation>,
}

impl<'a> Judge<'a> {
    pub(crate) fn judge(mut self, history: &'a History) -> Result<Summary, Report> {
        for (at, (_, event)) in history.events().iter().enumerate() {
            self.take(at, event);
            self.answers.take(at, event);
        }
        self.violations.append(&mut self.answers.violations);
        self.skipped();
        self.order();
        self.fates();
        if self.violations.is_empty() {
            self.summary.offsets = self.log.len();
            Ok(self.summary)
        } else {
            Err(Report::new(history, self.violations))
        }
    }

    fn take(&mut self, at: At, event: &'a Event) {
        match event {
            Event::Sent {
                producer,
                sequence,
                partition,
                value,
            } => self.sent(at, (*producer, *sequence), *partition, value),
            Event::Acknowledged {
                producer,
                sequence,
                offset,
            } => self.acknowledged(at, (*producer, *sequence), *offset),
            Event::Failed {
                producer,
                sequence,
                may_have_happened,
            } => {
                let outcome = Outcome::Failed {
                    may_have_happened: *may_have_happened,
                };
                if *may_have_happened {
                    self.summary.unknown += 1;
                } else {
                    self.summary.failed += 1;
                }
                self.result(at, (*producer, *sequence), outcome);
            }
            Event::ReadFrom {
                reader,
                partition,
                offset,
            } => self.read_from(at, *reader, *partition, *offset),
            Event::HighWatermark {
                reader,
                partition,
                offset,
            } => self.high_watermark(at, *reader, *partition, *offset),
            Event::Polled {
                reader,
                partition,
                offset,
                value,
            } => self.polled(at, (*reader, *partition), *offset, value),
            Event::CaughtUp {
                reader,
                partition,
                end,
            } => self.caught_up(at, *reader, *partition, *end),
            Event::Asks(_) | Event::Answers { .. } | Event::Note(_) => {}
        }
    }

    fn broken(&mut self, rule: Rule, mut events: Vec<At>, what: String) {
        events.sort_unstable();
        events.dedup();
        self.violations.push(Violation { rule, events, what });
    }

    fn sent(&mut self, at: At, id: RecordId, partition: Partition, value: &'a [u8]) {
        self.summary.sent += 1;
        let sent = Sent {
            at,
            partition,
            result: None,
            place: None,
            read: None,
        };
        if let Some(before) = self.sent.insert(id, sent) {
            self.broken(
                Rule::WellFormed,
                vec![before.at, at],
                "one sequence was sent twice".to_owned(),
            );
        }
        if let Some(other) = self.by_value.insert(value, id) {
            let other = self.sent.get(&other).map_or(at, |sent| sent.at);
            self.broken(
                Rule::WellFormed,
                vec![other, at],
                "one value was sent twice".to_owned(),
            );
        }
    }

    fn acknowledged(&mut self, at: At, id: RecordId, offset: Option<Offset>) {
        self.summary.acknowledged += 1;
        let Some(partition) = self.result(at, id, Outcome::Acknowledged) else {
            return;
        };
        if let Some(offset) = offset {
            self.place(at, id, partition, offset);
        }
    }

    /// Keeps a record's end; its partition if it was sent.
    fn result(&mut self, at: At, id: RecordId, outcome: Outcome) -> Option<Partition> {
        let Some(sent) = self.sent.get_mut(&id) else {
            self.broken(
                Rule::WellFormed,
                vec![at],
                "a result of what was never sent".to_owned(),
            );
            return None;
        };
        let partition = sent.partition;
        if let Some((before, _)) = sent.result.replace((at, outcome)) {
            self.broken(
                Rule::WellFormed,
                vec![before, at],
                "a record has two results".to_owned(),
            );
        }
        Some(partition)
    }

    /// Learns that the record is at the offset.
    fn place(&mut self, at: At, id: RecordId, partition: Partition, offset: Offset) {
        let (first, there) = *self.log.entry((partition, offset)).or_insert((at, id));
        if there != id {
            let what = format!(
                "offset {} of partition {} is {} and {}",
                offset.0,
                partition.0,
                shown(there),
                shown(id)
            );
            self.broken(Rule::OneValuePerOffset, vec![first, at], what);
        }
        let Some(sent) = self.sent.get_mut(&id) else {
            return;
        };
        let (first, was_in, was_at) = *sent.place.get_or_insert((at, partition, offset));
        if (was_in, was_at) != (partition, offset) {
            let what = format!(
                "{} is at offset {} of partition {} and at offset {} of partition {}",
                shown(id),
                was_at.0,
                was_in.0,
                offset.0,
                partition.0
            );
            self.broken(Rule::Once, vec![first, at], what);
        }
    }

    fn read_from(&mut self, at: At, reader: Reader, partition: Partition, offset: Offset) {
        let old = self.readings.get(&(reader, partition));
        let high_watermark = old.and_then(|reading| reading.high_watermark);
        let reading = Reading {
            next: offset,
            at,
            high_watermark,
        };
        self.readings.insert((reader, partition), reading);
    }

    /// The reader's state; it must have said from where it reads.
    fn reading(&mut self, at: At, reader: Reader, partition: Partition) -> Option<Reading> {
        let found = self.readings.get(&(reader, partition)).copied();
        if found.is_none() {
            self.broken(
                Rule::WellFormed,
                vec![at],
                "a reader that did not start here".to_owned(),
            );
        }
        found
    }

    fn high_watermark(&mut self, at: At, reader: Reader, partition: Partition, offset: Offset) {
        let Some(mut reading) = self.reading(at, reader, partition) else {
            return;
        };
        if let Some((before, higher)) = reading.high_watermark.filter(|(_, old)| *old > offset) {
            let what = format!("partition {}: {} after {}", partition.0, offset.0, higher.0);
            self.broken(Rule::HighWatermarkForward, vec![before, at], what);
        }
        reading.high_watermark = Some((at, offset));
        self.readings.insert((reader, partition), reading);
    }

    fn polled(&mut self, at: At, of: (Reader, Partition), offset: Offset, value: &[u8]) {
        self.summary.polled += 1;
        let (reader, partition) = of;
        let Some(mut reading) = self.reading(at, reader, partition) else {
            return;
        };
        if let Some((told, above)) = reading.high_watermark.filter(|(_, hw)| *hw <= offset) {
            let what = format!("offset {} at high watermark {}", offset.0, above.0);
            self.broken(Rule::BelowHighWatermark, vec![told, at], what);
        }
        if offset < reading.next {
            let what = format!("offset {} where {} was next", offset.0, reading.next.0);
            self.broken(Rule::ReadForward, vec![reading.at, at], what);
        }
        self.skip(at, partition, reading.next, offset);
        reading.next = offset.next();
        reading.at = at;
        self.readings.insert(of, reading);
        let Some(id) = self.by_value.get(value).copied() else {
            let what = format!(
                "offset {} of partition {} holds what nobody sent",
                offset.0, partition.0
            );
            self.broken(Rule::OnlyWhatWasSent, vec![at], what);
            return;
        };
        if let Some(sent) = self.sent.get_mut(&id) {
            sent.read.get_or_insert(at);
            if sent.partition != partition {
                let events = vec![sent.at, at];
                let what = format!("{} is in partition {}", shown(id), partition.0);
                self.broken(Rule::OnlyWhatWasSent, events, what);
            }
        }
        self.place(at, id, partition, offset);
    }

    /// The reader went from one offset to the other; whether something was between them shows at the end.
    fn skip(&mut self, at: At, partition: Partition, from: Offset, until: Offset) {
        if from < until {
            self.skips.push(Skip {
                partition,
                from,
                until,
                at,
            });
        }
    }

    fn caught_up(&mut self, at: At, reader: Reader, partition: Partition, end: Offset) {
        // The end that a reader is told is a high watermark too.
        self.high_watermark(at, reader, partition, end);
        let Some(reading) = self.readings.get(&(reader, partition)).copied() else {
            return;
        };
        self.skip(at, partition, reading.next, end);
        self.ends.insert(partition, (at, end));
        let above = self
            .log
            .range((partition, end)..=(partition, Offset(i64::MAX)));
        let missing: Vec<(At, RecordId, Offset)> = above
            .map(|((_, offset), (first, id))| (*first, *id, *offset))
            .collect();
        for (first, id, offset) in missing {
            let what = format!(
                "{} was at offset {} of partition {}, which now ends at {}",
                shown(id),
                offset.0,
                partition.0,
                end.0
            );
            self.broken(Rule::Lost, vec![first, at], what);
        }
    }

    /// What lay between two offsets that a reader got one after the other.
    fn skipped(&mut self) {
        for skip in std::mem::take(&mut self.skips) {
            let between = (skip.partition, skip.from)..(skip.partition, skip.until);
            let missing: Vec<(At, RecordId, Offset)> = self
                .log
                .range(between)
                .map(|((_, offset), (first, id))| (*first, *id, *offset))
                .collect();
            for (first, id, offset) in missing {
                let what = format!(
                    "{} is at offset {} of partition {}, a reader did not get it",
                    shown(id),
                    offset.0,
                    skip.partition.0
                );
                self.broken(Rule::Lost, vec![first, skip.at], what);
            }
        }
    }

    /// Each producer's records rise with the offsets.
    fn order(&mut self) {
        let mut last: HashMap<(Partition, Producer), (At, Sequence)> = HashMap::new();
        let mut found = Vec::new();
        for ((partition, offset), (at, (producer, sequence))) in &self.log {
            let before = last.insert((*partition, *producer), (*at, *sequence));
            let Some((before_at, before)) = before.filter(|(_, before)| before > sequence) else {
                continue;
            };
            let what = format!(
                "partition {}: {} of producer {} is at offset {}, behind {before}",
                partition.0,
                sequence.0,
                producer.0,
                offset.0,
                before = before.0
            );
            found.push((vec![before_at, *at], what));
        }
        for (events, what) in found {
            self.broken(Rule::Order, events, what);
        }
    }

    /// What became of each record, against what its producer was told.
    fn fates(&mut self) {
        let mut found = Vec::new();
        for (id, sent) in &self.sent {
            let surely_failed = Outcome::Failed {
                may_have_happened: false,
            };
            match (sent.result, sent.read) {
                (Some((at, outcome)), Some(read)) if outcome == surely_failed => {
                    let what = format!("{} was read", shown(*id));
                    found.push((Rule::FailedInvisible, vec![at, read], what));
                }
                (Some((at, Outcome::Acknowledged)), None) if sent.place.is_none() => {
                    // Acknowledged without an offset: it must be somewhere once somebody has read everything.
                    if let Some((end, _)) = self.ends.get(&sent.partition).filter(|(e, _)| *e > at)
                    {
                        let what = format!(
                            "{} is nowhere in partition {}",
                            shown(*id),
                            sent.partition.0
                        );
                        found.push((Rule::Lost, vec![at, *end], what));
                    }
                }
                _ => {}
            }
        }
        for (rule, events, what) in found {
            self.broken(rule, events, what);
        }
    }
}

fn shown((producer, sequence): RecordId) -> String {
    format!("record {} of producer {}", sequence.0, producer.0)
}
