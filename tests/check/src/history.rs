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

/// A broker, by its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Broker(pub i32);

/// A question to one broker, numbered by whoever asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Question(pub u64);

/// A bound of a partition that never goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Bound {
    /// The first offset that may be read.
    LogStart,
    /// The first offset that is not in the store.
    TieredUntil,
    /// The high watermark.
    End,
}

/// What a broker says of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Who leads in this epoch.
    Leader {
        /// The epoch.
        epoch: i32,
        /// Who.
        leader: Broker,
    },
    /// The broker leads in this epoch, and says where the partition begins or ends.
    Bound {
        /// The epoch.
        epoch: i32,
        /// Which bound.
        bound: Bound,
        /// Where.
        offset: Offset,
    },
    /// The broker leads in an epoch, and says where the newest epoch up to another one ends.
    EpochEnd {
        /// The epoch it leads in.
        current: i32,
        /// The one that was asked for.
        of: i32,
        /// The newest with records up to that.
        epoch: i32,
        /// Where it ends.
        end: Offset,
    },
}

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
    /// A question to one broker is about to be sent.
    Asks(Question),
    /// The broker has answered.
    Answers {
        /// What.
        question: Question,
        /// Who.
        broker: Broker,
        /// Of which partition.
        partition: Partition,
        /// What it says.
        answer: Answer,
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
            Self::Asks(question) => write!(f, "question {} is asked", question.0),
            Self::Answers {
                question,
                broker,
                partition,
                answer,
            } => {
                let (broker, question, partition) = (broker.0, question.0, partition.0);
                write!(
                    f,
                    "broker {broker} answers question {question} about partition {partition}: {answer}"
                )
            }
            Self::Note(text) => write!(f, "-- {text}"),
            Self::ReadFrom { .. }
            | Self::HighWatermark { .. }
            | Self::Polled { .. }
            | Self::CaughtUp { .. } => self.fmt_seen(f),
        }
    }
}

impl Event {
    /// The text of what a reader does or sees.
    fn fmt_seen(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
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
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leader { epoch, leader } => {
                write!(f, "broker {} leads in epoch {epoch}", leader.0)
            }
            Self::Bound {
                epoch,
                bound,
                offset,
            } => write!(f, "in epoch {epoch}, {bound:?} is {}", offset.0),
            Self::EpochEnd {
                current,
                of,
                epoch,
                end,
            } => write!(
                f,
                "in epoch {current}, epoch {of} ends at {} (in {epoch})",
                end.0
            ),
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
