//! Hand-made answers of brokers: in order, and not.

use super::*;
use crate::{Answer, Bound, Broker, Question};

fn asks(question: u64) -> Event {
    Event::Asks(Question(question))
}

fn answers(question: u64, broker: i32, answer: Answer) -> Event {
    Event::Answers {
        question: Question(question),
        broker: Broker(broker),
        partition: Partition(0),
        answer,
    }
}

fn leader(epoch: i32, leader: i32) -> Answer {
    let leader = Broker(leader);
    Answer::Leader { epoch, leader }
}

fn bound(epoch: i32, bound: Bound, offset: i64) -> Answer {
    Answer::Bound {
        epoch,
        bound,
        offset: Offset(offset),
    }
}

fn epoch_end(current: i32, of: i32, epoch: i32, end: i64) -> Answer {
    Answer::EpochEnd {
        current,
        of,
        epoch,
        end: Offset(end),
    }
}

// Proves: answers of several brokers about several epochs pass; one that comes late may say what was so when it was asked for, and one
// broker may name another.
#[test]
fn answers_in_order_pass() {
    let events = vec![
        asks(1),
        asks(2),
        answers(1, 1, leader(1, 1)),
        answers(1, 2, leader(2, 3)),
        sent(1, 0, 0),
        acknowledged(1, 0, 0),
        answers(2, 1, bound(1, Bound::End, 0)),
        asks(3),
        answers(3, 3, bound(2, Bound::End, 1)),
        asks(4),
        answers(4, 3, bound(2, Bound::TieredUntil, 1)),
        answers(4, 3, epoch_end(2, 1, 0, 1)),
        answers(4, 3, epoch_end(2, 2, 2, 4)),
        asks(5),
        answers(5, 3, bound(2, Bound::LogStart, 0)),
        answers(5, 3, epoch_end(2, 1, 0, 1)),
    ];
    assert_eq!(rules(events), []);
}

// Proves: a second leader of one epoch is found, whether a broker names it or it answers as one.
#[test]
fn two_leaders_in_one_epoch() {
    for second in [leader(1, 2), bound(1, Bound::End, 9), epoch_end(1, 0, 0, 0)] {
        let events = vec![asks(1), answers(1, 2, leader(1, 1)), answers(1, 2, second)];
        assert_eq!(rules(events), [Rule::OneLeader]);
    }
}

// Proves: an end below an acknowledged record, below a high watermark, below what is in the store, or below another answer is found, if it
// was asked for afterwards; so is a log start or the end of the present epoch that goes back.
#[test]
fn an_answer_says_less_than_was_known() {
    let known: [Vec<Event>; 5] = [
        vec![sent(1, 0, 0), acknowledged(1, 0, 4)],
        vec![read_from(1, 0, 0), high_watermark(1, 0, 5)],
        vec![asks(8), answers(8, 1, bound(1, Bound::TieredUntil, 5))],
        vec![asks(8), answers(8, 1, bound(1, Bound::End, 5))],
        vec![asks(8), answers(8, 1, epoch_end(1, 1, 1, 5))],
    ];
    for known in known {
        for less in [bound(3, Bound::End, 4), epoch_end(3, 3, 3, 4)] {
            let mut events = known.clone();
            events.push(asks(9));
            events.push(answers(9, 2, less));
            assert_eq!(rules(events), [Rule::AnswersForward]);
            let mut events = known.clone();
            events.insert(0, asks(9));
            events.push(answers(9, 2, less));
            assert_eq!(rules(events), [], "it was asked for before");
        }
    }
    let events = vec![
        asks(1),
        answers(1, 1, bound(1, Bound::LogStart, 3)),
        asks(2),
        answers(2, 1, bound(1, Bound::LogStart, 2)),
    ];
    assert_eq!(rules(events), [Rule::AnswersForward]);
}

// Proves: an epoch that is over and ends elsewhere, or in another epoch, is found.
#[test]
fn an_epoch_ends_elsewhere() {
    for other in [epoch_end(4, 1, 1, 8), epoch_end(4, 1, 0, 7)] {
        let events = vec![
            asks(1),
            answers(1, 2, epoch_end(3, 1, 1, 7)),
            answers(1, 3, other),
        ];
        assert_eq!(rules(events), [Rule::EpochEnds]);
    }
}

// Proves: a record in front of one that was acknowledged before it was sent is found; of two that were on their way together either may be first.
#[test]
fn a_late_record_in_front() {
    let together = vec![
        sent(1, 0, 0),
        sent(2, 0, 0),
        acknowledged(1, 0, 1),
        acknowledged(2, 0, 0),
    ];
    assert_eq!(rules(together), []);
    let after = vec![
        sent(1, 0, 0),
        acknowledged(1, 0, 1),
        sent(2, 0, 0),
        acknowledged(2, 0, 0),
    ];
    assert_eq!(rules(after), [Rule::AppendOrder]);
}

// Proves: an answer to what nobody asked is a fault of the load.
#[test]
fn an_answer_without_a_question() {
    assert_eq!(rules(vec![answers(1, 1, leader(1, 1))]), [Rule::WellFormed]);
}
