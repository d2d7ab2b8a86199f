//! What the judge says: counts of a good history, or what breaks a rule and the events that show it.
//!
//! Owns: the rules' names, the text of a report.
//! Not here: finding violations (`judge`).

use std::fmt;
use std::time::Duration;

use crate::history::{Event, History};

/// Violations that a report prints; the rest is counted.
const SHOWN_MAX: usize = 8;

/// What was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// An acknowledged or once read record is not where it was.
    Lost,
    /// An offset has had two values.
    OneValuePerOffset,
    /// A record is in the log more than once.
    Once,
    /// A producer's records of one partition are not in the order of its sends.
    Order,
    /// A reader was told a lower high watermark than before.
    HighWatermarkForward,
    /// A record was read at or above the high watermark of its answer.
    BelowHighWatermark,
    /// A reader got offsets again, or in a wrong order, without having moved back.
    ReadForward,
    /// A record is visible that surely was not appended.
    FailedInvisible,
    /// A record is visible that nobody sent, or in another partition than it was sent to.
    OnlyWhatWasSent,
    /// Two brokers lead a partition in one epoch.
    OneLeader,
    /// A bound of a partition is lower than it was known to be before it was asked for.
    AnswersForward,
    /// The end of a leader epoch that is over has changed.
    EpochEnds,
    /// A record lies in front of one that was acknowledged before it was sent.
    AppendOrder,
    /// The history itself makes no sense: a fault of the load, not of the brokers.
    WellFormed,
}

impl Rule {
    fn text(self) -> &'static str {
        match self {
            Self::Lost => "a record is lost",
            Self::OneValuePerOffset => "an offset has two values",
            Self::Once => "a record is there twice",
            Self::Order => "a producer's records are out of order",
            Self::HighWatermarkForward => "a high watermark went back",
            Self::BelowHighWatermark => "a record was read above the high watermark",
            Self::ReadForward => "a reader was sent back",
            Self::FailedInvisible => "a record that surely failed is visible",
            Self::OnlyWhatWasSent => "a record is visible that was not sent there",
            Self::OneLeader => "two brokers lead in one epoch",
            Self::AnswersForward => "an answer says less than was known",
            Self::EpochEnds => "the end of an epoch has changed",
            Self::AppendOrder => "a later record lies in front of an acknowledged one",
            Self::WellFormed => "the history makes no sense",
        }
    }
}

/// One broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub rule: Rule,
    /// The events that together break it, by their numbers, rising. The last one is where it shows.
    pub events: Vec<usize>,
    /// What is wrong, in words.
    pub what: String,
}

/// Counts of a history that keeps all rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Records sent.
    pub sent: usize,
    /// Acknowledged of them.
    pub acknowledged: usize,
    /// Surely failed of them.
    pub failed: usize,
    /// Given up, though they may be in the log.
    pub unknown: usize,
    /// Records read, by all readers together.
    pub polled: usize,
    /// Offsets known to hold a record.
    pub offsets: usize,
}

/// Everything that breaks a rule, in the order in which it shows.
#[derive(Clone, Debug)]
pub struct Report {
    /// At least one.
    pub violations: Vec<Violation>,
    lines: Vec<String>,
}

impl Report {
    /// Sorts and words the violations of `history`.
    pub(crate) fn new(history: &History, mut violations: Vec<Violation>) -> Self {
        violations.sort_by(|a, b| (a.events.last(), &a.events).cmp(&(b.events.last(), &b.events)));
        let mut lines = vec![format!("{} violations", violations.len())];
        for violation in violations.iter().take(SHOWN_MAX) {
            lines.push(format!("{}: {}", violation.rule.text(), violation.what));
            let mut noted = None;
            for event in &violation.events {
                let note = note_before(history, *event);
                if let Some(note) = note.filter(|_| note != noted) {
                    lines.push(line(history, note));
                    noted = Some(note);
                }
                lines.push(line(history, *event));
            }
        }
        if violations.len() > SHOWN_MAX {
            lines.push(format!("… and {} more", violations.len() - SHOWN_MAX));
        }
        Self { violations, lines }
    }
}

/// What was last done to the brokers before this event.
fn note_before(history: &History, event: usize) -> Option<usize> {
    let before = history.events().get(..event)?;
    before
        .iter()
        .rposition(|(_, event)| matches!(event, Event::Note(_)))
}

fn line(history: &History, number: usize) -> String {
    match history.events().get(number) {
        Some((at, event)) => format!("    #{number} {:.3} s  {event}", seconds(*at)),
        None => format!("    #{number}"),
    }
}

fn seconds(at: Duration) -> f64 {
    at.as_secs_f64()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines.join("\n"))
    }
}

impl std::error::Error for Report {}
