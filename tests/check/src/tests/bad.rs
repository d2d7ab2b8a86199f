//! Hand-made histories, one bad one of each kind, and good ones that look bad.

use super::*;
use crate::Summary;

/// Two records sent and read by one reader, who is told the end.
fn good() -> Vec<Event> {
    vec![
        read_from(1, 0, 0),
        sent(1, 0, 0),
        sent(1, 1, 0),
        acknowledged(1, 0, 0),
        high_watermark(1, 0, 1),
        polled(1, 0, 0, &value(1, 0)),
        acknowledged(1, 1, 1),
        high_watermark(1, 0, 2),
        polled(1, 0, 1, &value(1, 1)),
        caught_up(1, 0, 2),
    ]
}

// Proves: a good history passes, and is counted.
#[test]
fn a_good_history_passes() {
    let summary = crate::check(&History::from_iter(good())).unwrap();
    let expected = Summary {
        sent: 2,
        acknowledged: 2,
        failed: 0,
        unknown: 0,
        polled: 2,
        offsets: 2,
    };
    assert_eq!(summary, expected);
}

// Proves: what may be does not fail: an unknown result in the log or not, a sure failure that is nowhere, an offset that
// nobody's record has, a reader that starts late or moves back by its own will, an answer of no offset.
#[test]
fn what_may_be_passes() {
    let mut events = good();
    events.pop();
    events.extend([
        sent(1, 2, 0),
        sent(1, 3, 0),
        sent(1, 4, 0),
        sent(1, 5, 0),
        failed(1, 2, true),
        failed(1, 3, true),
        failed(1, 4, false),
        Event::Acknowledged {
            producer: Producer(1),
            sequence: Sequence(5),
            offset: None,
        },
        high_watermark(1, 0, 5),
        // Offset 2 holds no record.
        polled(1, 0, 3, &value(1, 2)),
        polled(1, 0, 4, &value(1, 5)),
        read_from(1, 0, 1),
        polled(1, 0, 1, &value(1, 1)),
        read_from(2, 0, 4),
        polled(2, 0, 4, &value(1, 5)),
        caught_up(2, 0, 5),
    ]);
    assert_eq!(rules(events), []);
}

// Proves: an acknowledged record that a reader went past is found, with the acknowledgement and the poll that show it.
#[test]
fn a_skipped_record() {
    let mut events = good();
    events.remove(5);
    let report = report(events);
    assert_eq!(report.violations.len(), 1);
    assert_eq!(report.violations[0].rule, Rule::Lost);
    assert_eq!(report.violations[0].events, [3, 7]);
}

// Proves: a record that only another reader has seen is missed too, though nobody acknowledged it.
#[test]
fn a_skipped_record_without_acknowledgement() {
    let mut events = good();
    events[3] = failed(1, 0, true);
    assert_eq!(rules(events.clone()), []);
    events.extend([read_from(2, 0, 0), polled(2, 0, 1, &value(1, 1))]);
    assert_eq!(rules(events), [Rule::Lost]);
}

// Proves: acknowledged records cut off the end of the log are found, though no reader reads past them.
#[test]
fn a_shortened_log() {
    let mut events = good();
    events.truncate(7);
    events.push(caught_up(1, 0, 1));
    assert_eq!(rules(events), [Rule::Lost]);
}

// Proves: a reader that says it read everything, and did not, is a loss.
#[test]
fn an_end_that_was_not_reached() {
    let mut events = good();
    events.remove(8);
    assert_eq!(rules(events), [Rule::Lost]);
}

// Proves: a record acknowledged without an offset that nobody finds is a loss.
#[test]
fn a_record_that_is_nowhere() {
    let mut events = good();
    events.insert(
        9,
        Event::Acknowledged {
            producer: Producer(1),
            sequence: Sequence(2),
            offset: None,
        },
    );
    events.insert(9, sent(1, 2, 0));
    assert_eq!(rules(events), [Rule::Lost]);
}

// Proves: two acknowledgements at one offset, and two values read at one offset, are found.
#[test]
fn two_values_at_one_offset() {
    let mut events = good();
    events[6] = acknowledged(1, 1, 0);
    assert!(rules(events).contains(&Rule::OneValuePerOffset));
    let mut events = good();
    events.insert(9, sent(2, 0, 0));
    events.insert(10, read_from(2, 0, 0));
    events.insert(11, polled(2, 0, 0, &value(2, 0)));
    assert_eq!(rules(events), [Rule::OneValuePerOffset]);
}

// Proves: one record at two offsets is found, also when the first was only acknowledged.
#[test]
fn a_record_twice() {
    let mut events = good();
    events[8] = polled(1, 0, 1, &value(1, 0));
    assert!(rules(events.clone()).contains(&Rule::Once));
    events.remove(5);
    assert!(rules(events).contains(&Rule::Once));
}

// Proves: records of one producer in another order than they were sent are found; those of two producers have no order.
#[test]
fn records_out_of_order() {
    let swapped = |second: u32| {
        vec![
            read_from(1, 0, 0),
            sent(1, 0, 0),
            sent(second, 1, 0),
            acknowledged(1, 0, 1),
            acknowledged(second, 1, 0),
            polled(1, 0, 0, &value(second, 1)),
            polled(1, 0, 1, &value(1, 0)),
        ]
    };
    let report = report(swapped(1));
    assert_eq!(report.violations[0].rule, Rule::Order);
    assert_eq!(report.violations[0].events, [3, 4]);
    assert_eq!(rules(swapped(2)), []);
}

// Proves: a high watermark that goes back for one reader is found; another reader may be behind.
#[test]
fn a_high_watermark_goes_back() {
    let mut events = good();
    events.extend([read_from(2, 0, 0), high_watermark(2, 0, 1)]);
    assert_eq!(rules(events.clone()), []);
    events.push(high_watermark(1, 0, 1));
    assert_eq!(rules(events), [Rule::HighWatermarkForward]);
}

// Proves: a record at the high watermark of its answer is found.
#[test]
fn a_record_above_the_high_watermark() {
    let mut events = good();
    events.remove(7);
    assert_eq!(rules(events), [Rule::BelowHighWatermark]);
}

// Proves: a reader that gets an offset again is found.
#[test]
fn a_reader_sent_back() {
    let mut events = good();
    events.insert(9, polled(1, 0, 0, &value(1, 0)));
    assert!(rules(events).contains(&Rule::ReadForward));
}

// Proves: a visible record that surely was not appended is found.
#[test]
fn a_failed_record_is_visible() {
    let mut events = good();
    events[6] = failed(1, 1, false);
    assert_eq!(rules(events), [Rule::FailedInvisible]);
}

// Proves: bytes nobody sent, a changed byte, a record of another partition, and one read before it was sent are found.
#[test]
fn a_record_that_was_not_sent_there() {
    let mut events = good();
    events[8] = polled(1, 0, 1, b"1:x");
    assert!(rules(events).contains(&Rule::OnlyWhatWasSent));
    let mut events = good();
    events[2] = sent(1, 1, 3);
    assert!(rules(events).contains(&Rule::OnlyWhatWasSent));
    let early = vec![read_from(1, 0, 0), polled(1, 0, 0, b"1:0"), sent(1, 0, 0)];
    assert_eq!(rules(early), [Rule::OnlyWhatWasSent]);
}

// Proves: a load that records nonsense is told so, not the brokers.
#[test]
fn a_history_that_makes_no_sense() {
    for more in [
        vec![sent(1, 1, 0)],
        vec![acknowledged(1, 1, 1)],
        vec![acknowledged(3, 3, 7)],
        vec![polled(7, 0, 0, &value(1, 0))],
    ] {
        let mut events = good();
        events.extend(more);
        assert!(rules(events).contains(&Rule::WellFormed));
    }
}

// Proves: a report begins with what showed first, names the events with what was done to the brokers before, and is short.
#[test]
fn a_report_names_the_first_events() {
    let mut events = good();
    events[8] = polled(1, 0, 1, &value(1, 0));
    events.insert(6, Event::Note("kill broker 1".to_owned()));
    for _ in 0..40 {
        events.push(polled(1, 0, 0, &value(1, 0)));
    }
    let report = report(events);
    let text = report.to_string();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("42 violations"));
    assert!(text.contains("#3 0.000 s  producer 1: 0 acknowledged at offset 0"));
    assert!(text.contains("#9 0.000 s  reader 1 gets offset 1 of partition 0: \"1:0\""));
    assert!(text.contains("#6 0.000 s  -- kill broker 1"));
    assert!(text.ends_with("… and 34 more"));
    let last: Vec<_> = report.violations.iter().map(|v| v.events.last()).collect();
    assert!(last.is_sorted());
}
