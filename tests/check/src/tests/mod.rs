//! Tests of the checker itself: a judge that finds nothing proves nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod answers;
mod bad;
mod mutated;

use crate::{Event, History, Offset, Partition, Producer, Reader, Report, Rule, Sequence};

pub(super) fn value(producer: u32, sequence: u64) -> Vec<u8> {
    format!("{producer}:{sequence}").into_bytes()
}

pub(super) fn sent(producer: u32, sequence: u64, partition: i32) -> Event {
    Event::Sent {
        producer: Producer(producer),
        sequence: Sequence(sequence),
        partition: Partition(partition),
        value: value(producer, sequence),
    }
}

pub(super) fn acknowledged(producer: u32, sequence: u64, offset: i64) -> Event {
    Event::Acknowledged {
        producer: Producer(producer),
        sequence: Sequence(sequence),
        offset: Some(Offset(offset)),
    }
}

pub(super) fn failed(producer: u32, sequence: u64, may_have_happened: bool) -> Event {
    Event::Failed {
        producer: Producer(producer),
        sequence: Sequence(sequence),
        may_have_happened,
    }
}

pub(super) fn read_from(reader: u32, partition: i32, offset: i64) -> Event {
    Event::ReadFrom {
        reader: Reader(reader),
        partition: Partition(partition),
        offset: Offset(offset),
    }
}

pub(super) fn high_watermark(reader: u32, partition: i32, offset: i64) -> Event {
    Event::HighWatermark {
        reader: Reader(reader),
        partition: Partition(partition),
        offset: Offset(offset),
    }
}

pub(super) fn polled(reader: u32, partition: i32, offset: i64, value: &[u8]) -> Event {
    Event::Polled {
        reader: Reader(reader),
        partition: Partition(partition),
        offset: Offset(offset),
        value: value.to_vec(),
    }
}

pub(super) fn caught_up(reader: u32, partition: i32, end: i64) -> Event {
    Event::CaughtUp {
        reader: Reader(reader),
        partition: Partition(partition),
        end: Offset(end),
    }
}

pub(super) fn report(events: Vec<Event>) -> Report {
    crate::check(&History::from_iter(events)).unwrap_err()
}

pub(super) fn rules(events: Vec<Event>) -> Vec<Rule> {
    let history = History::from_iter(events);
    let found = crate::check(&history).err();
    found.map_or(Vec::new(), |report| {
        report.violations.iter().map(|v| v.rule).collect()
    })
}
