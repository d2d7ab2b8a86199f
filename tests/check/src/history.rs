//! What happened, in the order in which it was seen from outside.
//!
//! Owns: events and their text.
//! Not here: what they must be like (`judge`).

use std::fmt;
use std::time::Duration;

/// A producer, numbered by the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Producer(pub u32);

/// A reader, numbered by the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reader(pub u32);

/// A partition of the one topic of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition(pub i32);

/// An offset, as Kafka has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Offset(pub i64);

/// Counts the records of one producer over all partitions, in the order of its sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub u64);

impl Offset {
    /// The offset behind it.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// One thing that somebody outside the brokers did or saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A producer is about to send a record. Its value is unique in the history.
    Sent {
        /// Who.
        producer: Producer,
        /// Which of its records.
        sequence: Sequence,
        /// Where to.
        partition: Partition,
        /// What.
        value: Vec<u8>,
    },
    /// The record was acknowledged; without an offset where the client was not told.
    Acknowledged {
        /// Whose record.
        producer: Producer,
        /// Which.
        sequence: Sequence,
        /// Where it is.
        offset: Option<Offset>,
    },
    /// The record was given up.
    Failed {
        /// Whose record.
        producer: Producer,
        /// Which.
        sequence: Sequence,
        /// Whether it may be in the log all the same.
        may_have_happened: bool,
    },
    /// A reader starts here, or moves here by its own will.
    ReadFrom {
        /// Who.
        reader: Reader,
        /// Where.
        partition: Partition,
        /// The first offset it wants.
        offset: Offset,
    },
    /// A reader was told a high watermark: before the records of the same answer.
    HighWatermark {
        /// Who.
        reader: Reader,
        /// Of which partition.
        partition: Partition,
        /// The first offset that cannot be read yet.
        offset: Offset,
    },
    /// A reader got a record.
    Polled {
        /// Who.
        reader: Reader,
        /// From where.
        partition: Partition,
        /// At which offset.
        offset: Offset,
        /// What.
        value: Vec<u8>,
    },
    /// A reader has read up to where the log ends, and asked for that end after everything before this event.
    CaughtUp {
        /// Who.
        reader: Reader,
        /// Where.
        partition: Partition,
        /// The first offset that is not in the log.
        end: Offset,
    },
    /// Something that was done to the brokers. Not judged; shown in the report.
    Note(String),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sent {
                producer,
                sequence,
                partition,
                value,
            } => write!(
                f,
                "producer {} sends {} to partition {}: {}",
                producer.0,
                sequence.0,
                partition.0,
                Shown(value)
            ),
            Self::Acknowledged {
                producer,
                sequence,
                offset,
            } => {
                write!(f, "producer {}: {} acknowledged ", producer.0, sequence.0)?;
                match offset {
                    Some(offset) => write!(f, "at offset {}", offset.0),
                    None => write!(f, "without an offset"),
                }
            }
            Self::Failed {
                producer,
                sequence,
                may_have_happened,
            } => {
                let fate = if *may_have_happened {
                    "unknown"
                } else {
                    "surely failed"
                };
                write!(f, "producer {}: {} {fate}", producer.0, sequence.0)
            }
            Self::ReadFrom {
                reader,
                partition,
                offset,
            } => write!(
                f,
                "reader {} reads partition {} from offset {}",
                reader.0, partition.0, offset.0
            ),
            Self::HighWatermark {
                reader,
                partition,
                offset,
            } => write!(
                f,
                "reader {} is told high watermark {} of partition {}",
                reader.0, offset.0, partition.0
            ),
            Self::Polled {
                reader,
                partition,
                offset,
                value,
            } => write!(
                f,
                "reader {} gets offset {} of partition {}: {}",
                reader.0,
                offset.0,
                partition.0,
                Shown(value)
            ),
            Self::CaughtUp {
                reader,
                partition,
                end,
            } => write!(
                f,
                "reader {} has read partition {} up to its end {}",
                reader.0, partition.0, end.0
            ),
            Self::Note(text) => write!(f, "-- {text}"),
        }
    }
}

/// The first bytes of a value, as text.
struct Shown<'a>(&'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const BYTES_MAX: usize = 40;
        let head = self.0.get(..BYTES_MAX).unwrap_or(self.0);
        write!(f, "\"{}\"", head.escape_ascii())?;
        if head.len() < self.0.len() {
            write!(f, "… ({} bytes)", self.0.len())?;
        }
        Ok(())
    }
}

/// Events with the time since the start. The order is what counts; the times are for people.
#[derive(Clone, Debug, Default)]
pub struct History {
    events: Vec<(Duration, Event)>,
}

impl History {
    /// Adds what happened last.
    pub fn push(&mut self, at: Duration, event: Event) {
        self.events.push((at, event));
    }

    /// All events, first to last.
    #[must_use]
    pub fn events(&self) -> &[(Duration, Event)] {
        &self.events
    }
}

impl FromIterator<Event> for History {
    fn from_iter<I: IntoIterator<Item = Event>>(events: I) -> Self {
        let events = events.into_iter().map(|event| (Duration::ZERO, event));
        Self {
            events: events.collect(),
        }
    }
}
