//! What brokers say of a partition, against what was said before: one leader in an epoch, bounds that never go back, ends of epochs that stay (I4, I5).
//!
//! Owns: what was known at each event, whether an answer to a question that was asked later may say less.
//! Not here: records (`judge`), asking (whoever makes the history).
//! Spec: docs/INVARIANTS.md (I4, I5), docs/protocols/follower-reads.md
//!
//! An answer is compared with what somebody knew when its question was asked: what came in between may be newer than the answer.

use std::collections::{BTreeMap, HashMap};

use crate::history::{
    Answer, Bound, Broker, Event, Offset, Partition, Producer, Question, Sequence,
};
use crate::report::{Rule, Violation};

type At = usize;

/// A value that only rises, and when it was known first.
#[derive(Debug, Default)]
struct Rising(Vec<(At, Offset)>);

impl Rising {
    fn learn(&mut self, at: At, offset: Offset) {
        if self.0.last().is_none_or(|(_, known)| *known < offset) {
            self.0.push((at, offset));
        }
    }

    /// What was known before this event.
    fn before(&self, at: At) -> Option<(At, Offset)> {
        let count = self.0.partition_point(|(known, _)| *known < at);
        self.0.get(count.checked_sub(1)?).copied()
    }
}

/// A record on its way.
#[derive(Clone, Copy, Debug)]
struct Sent {
    at: At,
    partition: Partition,
}

/// What was heard so far.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    asked: HashMap<Question, At>,
    leaders: BTreeMap<(Partition, i32), (At, Broker)>,
    bounds: BTreeMap<(Partition, Bound), Rising>,
    /// Of epochs that were over.
    epoch_ends: BTreeMap<(Partition, i32), (At, i32, Offset)>,
    sent: HashMap<(Producer, Sequence), Sent>,
    /// Offsets that were acknowledged.
    appended: BTreeMap<Partition, Rising>,
    pub(crate) violations: Vec<Violation>,
}

impl Answers {
    /// The next event.
    pub(crate) fn take(&mut self, at: At, event: &Event) {
        match event {
            Event::Sent {
                producer,
                sequence,
                partition,
                ..
            } => {
                let partition = *partition;
                self.sent
                    .insert((*producer, *sequence), Sent { at, partition });
            }
            Event::Acknowledged {
                producer,
                sequence,
                offset: Some(offset),
            } => self.acknowledged(at, (*producer, *sequence), *offset),
            Event::HighWatermark {
                partition, offset, ..
            } => self.learn(at, *partition, Bound::End, *offset),
            Event::CaughtUp { partition, end, .. } => self.learn(at, *partition, Bound::End, *end),
            Event::Asks(question) => {
                self.asked.insert(*question, at);
            }
            Event::Answers {
                question,
                broker,
                partition,
                answer,
            } => {
                let Some(asked) = self.asked.get(question).copied() else {
                    self.broken(Rule::WellFormed, vec![at], "nobody asked".to_owned());
                    return;
                };
                self.answer(at, asked, *broker, *partition, *answer);
            }
            _ => {}
        }
    }

    fn broken(&mut self, rule: Rule, events: Vec<At>, what: String) {
        self.violations.push(Violation { rule, events, what });
    }

    fn learn(&mut self, at: At, partition: Partition, bound: Bound, offset: Offset) {
        let known = self.bounds.entry((partition, bound)).or_default();
        known.learn(at, offset);
    }

    /// A record that was sent after another was acknowledged lies behind it.
    fn acknowledged(&mut self, at: At, id: (Producer, Sequence), offset: Offset) {
        let Some(Sent {
            at: sent,
            partition,
        }) = self.sent.get(&id).copied()
        else {
            return;
        };
        let appended = self.appended.entry(partition).or_default();
        let before = appended.before(sent);
        appended.learn(at, offset);
        if let Some((known, there)) = before.filter(|(_, there)| *there >= offset) {
            let what = format!(
                "partition {}: offset {} is of a record that was sent after offset {} was acknowledged",
                partition.0, offset.0, there.0
            );
            self.broken(Rule::AppendOrder, vec![known, sent, at], what);
        }
        self.learn(at, partition, Bound::End, offset.next());
    }

    fn answer(&mut self, at: At, asked: At, broker: Broker, partition: Partition, answer: Answer) {
        match answer {
            Answer::Leader { epoch, leader } => self.leads(at, partition, epoch, leader),
            Answer::Bound {
                epoch,
                bound,
                offset,
            } => {
                self.leads(at, partition, epoch, broker);
                self.forward(at, asked, partition, bound, offset);
                // All of them lie below the end.
                self.learn(at, partition, Bound::End, offset);
            }
            Answer::EpochEnd {
                current,
                of,
                epoch,
                end,
            } => {
                self.leads(at, partition, current, broker);
                if of == current {
                    self.forward(at, asked, partition, Bound::End, end);
                } else {
                    self.ended(at, (partition, of), epoch, end);
                }
            }
        }
    }

    fn leads(&mut self, at: At, partition: Partition, epoch: i32, broker: Broker) {
        let first = self.leaders.entry((partition, epoch));
        let (before, leader) = *first.or_insert((at, broker));
        if leader != broker {
            let what = format!(
                "partition {}: brokers {} and {} lead in epoch {epoch}",
                partition.0, leader.0, broker.0
            );
            self.broken(Rule::OneLeader, vec![before, at], what);
        }
    }

    fn forward(&mut self, at: At, asked: At, partition: Partition, bound: Bound, offset: Offset) {
        let known = self.bounds.entry((partition, bound)).or_default();
        let before = known.before(asked);
        known.learn(at, offset);
        if let Some((known, higher)) = before.filter(|(_, higher)| *higher > offset) {
            let what = format!(
                "partition {}: {bound:?} is {}, where {} was known before anybody asked",
                partition.0, offset.0, higher.0
            );
            self.broken(Rule::AnswersForward, vec![known, asked, at], what);
        }
    }

    /// The end of an epoch that is over never changes.
    fn ended(&mut self, at: At, of: (Partition, i32), epoch: i32, end: Offset) {
        let first = self.epoch_ends.entry(of);
        let (before, first_epoch, first_end) = *first.or_insert((at, epoch, end));
        if (first_epoch, first_end) != (epoch, end) {
            let what = format!(
                "partition {}: epoch {} has ended at {} (in epoch {first_epoch}), and at {} (in epoch {epoch})",
                of.0.0, of.1, first_end.0, end.0
            );
            self.broken(Rule::EpochEnds, vec![before, at], what);
        }
    }
}
