//! Good histories out of a tiny model, and the same with one fault: the good pass, each fault is found as what it is.

use std::collections::VecDeque;

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::{Answer, Bound, Broker, Question};

const PRODUCERS: u32 = 2;
const PARTITIONS: i32 = 2;
const READERS: u32 = 2;

#[derive(Clone, Copy, Debug)]
enum Fate {
    Acknowledged,
    UnknownInLog,
    UnknownNowhere,
    Failed,
}

#[derive(Clone, Debug)]
enum Step {
    Send(u32, i32, Fate),
    Answer,
    Poll(u32, i32, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let fate = prop_oneof![
        4 => Just(Fate::Acknowledged),
        1 => Just(Fate::UnknownInLog),
        1 => Just(Fate::UnknownNowhere),
        1 => Just(Fate::Failed),
    ];
    prop_oneof![
        (0..PRODUCERS, 0..PARTITIONS, fate).prop_map(|(who, to, fate)| Step::Send(who, to, fate)),
        Just(Step::Answer),
        (0..READERS, 0..PARTITIONS, 1..5_usize)
            .prop_map(|(who, of, count)| Step::Poll(who, of, count)),
    ]
}

/// One log per partition; results that producers do not know yet.
#[derive(Default)]
struct Model {
    events: Vec<Event>,
    logs: [Vec<Vec<u8>>; PARTITIONS as usize],
    next: [[usize; PARTITIONS as usize]; READERS as usize],
    sequence: [u64; PRODUCERS as usize],
    answers: VecDeque<Event>,
}

impl Model {
    fn run(steps: &[Step]) -> Vec<Event> {
        let mut model = Self::default();
        for reader in 0..READERS {
            for partition in 0..PARTITIONS {
                model.events.push(read_from(reader, partition, 0));
            }
        }
        // Enough of everything for every fault.
        for producer in 0..PRODUCERS {
            for partition in 0..PARTITIONS {
                model.send(producer, partition, Fate::Acknowledged);
                model.send(producer, partition, Fate::Acknowledged);
            }
        }
        for step in steps {
            match step {
                Step::Send(who, to, fate) => model.send(*who, *to, *fate),
                Step::Answer => model.events.extend(model.answers.pop_front()),
                Step::Poll(who, of, count) => model.poll(*who, *of, *count),
            }
        }
        model.events.extend(model.answers.drain(..));
        for reader in 0..READERS {
            for partition in 0..PARTITIONS {
                model.poll(reader, partition, usize::MAX);
                let end = model.logs[partition as usize].len();
                model.events.push(caught_up(reader, partition, end as i64));
            }
        }
        model.events
    }

    fn send(&mut self, producer: u32, partition: i32, fate: Fate) {
        let sequence = self.sequence[producer as usize];
        self.sequence[producer as usize] += 1;
        self.events.push(sent(producer, sequence, partition));
        let log = &mut self.logs[partition as usize];
        let offset = log.len() as i64;
        if matches!(fate, Fate::Acknowledged | Fate::UnknownInLog) {
            log.push(value(producer, sequence));
        }
        self.answers.push_back(match fate {
            Fate::Acknowledged => acknowledged(producer, sequence, offset),
            Fate::Failed => failed(producer, sequence, false),
            Fate::UnknownInLog | Fate::UnknownNowhere => failed(producer, sequence, true),
        });
    }

    fn poll(&mut self, reader: u32, partition: i32, count: usize) {
        let log = &self.logs[partition as usize];
        let next = &mut self.next[reader as usize][partition as usize];
        let end = log.len() as i64;
        self.events.push(high_watermark(reader, partition, end));
        for value in log.iter().skip(*next).take(count) {
            self.events
                .push(polled(reader, partition, *next as i64, value));
            *next += 1;
        }
    }
}

/// The numbers of the events that are polls.
fn polls(events: &[Event]) -> Vec<usize> {
    let is_poll = |at: &usize| matches!(events[*at], Event::Polled { .. });
    (0..events.len()).filter(is_poll).collect()
}

fn parts(event: &Event) -> (Reader, Partition, Offset, Vec<u8>) {
    match event {
        Event::Polled {
            reader,
            partition,
            offset,
            value,
        } => (*reader, *partition, *offset, value.clone()),
        other => panic!("not a poll: {other}"),
    }
}

/// Puts one fault of the rule into a good history.
fn spoil(mut events: Vec<Event>, rule: Rule, which: Index) -> Vec<Event> {
    let polls = polls(&events);
    let at = polls[which.index(polls.len())];
    let (reader, partition, offset, value) = parts(&events[at]);
    match rule {
        Rule::Lost => {
            events.remove(at);
        }
        Rule::OneValuePerOffset => {
            let all = |event: &Event| match event {
                Event::Sent { value: other, .. } => (*other != value).then(|| other.clone()),
                _ => None,
            };
            let before: Vec<Vec<u8>> = events[..at].iter().filter_map(all).collect();
            let other = &before[which.index(before.len())];
            events[at] = polled(reader.0, partition.0, offset.0, other);
        }
        Rule::Once => {
            for reader in 0..READERS {
                let is_end = |event: &Event| matches!(event, Event::CaughtUp { reader: Reader(r), partition: p, .. } if *r == reader && *p == partition);
                let at = events.iter().position(is_end).unwrap();
                let Event::CaughtUp { end, .. } = events[at] else {
                    panic!("found above");
                };
                let again = [
                    high_watermark(reader, partition.0, end.0 + 1),
                    polled(reader, partition.0, end.0, &value),
                    caught_up(reader, partition.0, end.0 + 1),
                ];
                events.splice(at..=at, again);
            }
        }
        Rule::Order => exchange(&mut events, partition),
        Rule::HighWatermarkForward => {
            events.insert(at + 1, high_watermark(reader.0, partition.0, 0));
        }
        Rule::BelowHighWatermark => {
            for event in &mut events[..at] {
                match event {
                    Event::HighWatermark {
                        reader: r,
                        partition: p,
                        offset: told,
                    } if *r == reader && *p == partition => *told = offset.min(*told),
                    _ => {}
                }
            }
        }
        Rule::ReadForward => events.insert(at, events[at].clone()),
        Rule::FailedInvisible => {
            let id = events.iter().find_map(|event| match event {
                Event::Sent {
                    producer,
                    sequence,
                    value: v,
                    ..
                } if *v == value => Some((*producer, *sequence)),
                _ => None,
            });
            let (whose, which) = id.unwrap();
            for event in &mut events {
                match event {
                    Event::Acknowledged {
                        producer, sequence, ..
                    }
                    | Event::Failed {
                        producer, sequence, ..
                    } if (*producer, *sequence) == (whose, which) => {
                        *event = failed(whose.0, which.0, false);
                    }
                    _ => {}
                }
            }
        }
        Rule::OnlyWhatWasSent => {
            events[at] = polled(reader.0, partition.0, offset.0, b"nobody's");
        }
        Rule::OneLeader => events.extend(asked(partition, [leader(1, 1), leader(1, 2)])),
        Rule::AnswersForward => {
            let back = Answer::Bound {
                epoch: 1,
                bound: Bound::End,
                offset: Offset(0),
            };
            events.extend(asked(partition, [leader(1, 0), back]));
        }
        Rule::EpochEnds => events.extend(asked(partition, [1, 2].map(ended))),
        Rule::AppendOrder => events.extend([
            sent(PRODUCERS, 0, partition.0),
            acknowledged(PRODUCERS, 0, 0),
        ]),
        Rule::WellFormed => events.push(acknowledged(PRODUCERS, 0, 0)),
    }
    events
}

/// A question to broker 0, and what it says.
fn asked(partition: Partition, answers: [Answer; 2]) -> Vec<Event> {
    let question = Question(0);
    let mut events = vec![Event::Asks(question)];
    events.extend(answers.map(|answer| Event::Answers {
        question,
        broker: Broker(0),
        partition,
        answer,
    }));
    events
}

fn leader(epoch: i32, leader: i32) -> Answer {
    let leader = Broker(leader);
    Answer::Leader { epoch, leader }
}

/// Where epoch 3 has ended.
fn ended(end: i64) -> Answer {
    Answer::EpochEnd {
        current: 5,
        of: 3,
        epoch: 3,
        end: Offset(end),
    }
}

/// Exchanges the places of the first two records of producer 0 in the partition, for everybody.
fn exchange(events: &mut [Event], partition: Partition) {
    let first = if partition.0 == 0 { 0 } else { 2 };
    let (a, b) = (value(0, first), value(0, first + 1));
    for event in events {
        match event {
            Event::Polled { value, .. } if *value == a => *value = b.clone(),
            Event::Polled { value, .. } if *value == b => *value = a.clone(),
            Event::Acknowledged {
                producer: Producer(0),
                sequence,
                ..
            } if sequence.0 == first => sequence.0 += 1,
            Event::Acknowledged {
                producer: Producer(0),
                sequence,
                ..
            } if sequence.0 == first + 1 => sequence.0 -= 1,
            _ => {}
        }
    }
}

const FAULTS: [Rule; 14] = [
    Rule::Lost,
    Rule::OneValuePerOffset,
    Rule::Once,
    Rule::Order,
    Rule::HighWatermarkForward,
    Rule::BelowHighWatermark,
    Rule::ReadForward,
    Rule::FailedInvisible,
    Rule::OnlyWhatWasSent,
    Rule::OneLeader,
    Rule::AnswersForward,
    Rule::EpochEnds,
    Rule::AppendOrder,
    Rule::WellFormed,
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    // Proves: no history of the model is refused, and each kind of fault, put anywhere in it, is found.
    #[test]
    fn every_fault_is_found(
        steps in prop::collection::vec(step(), 0..60),
        which in any::<Index>(),
    ) {
        let good = Model::run(&steps);
        prop_assert_eq!(rules(good.clone()), []);
        for rule in FAULTS {
            let found = rules(spoil(good.clone(), rule, which));
            prop_assert!(found.contains(&rule), "{:?} is not in {:?}", rule, found);
        }
    }
}
