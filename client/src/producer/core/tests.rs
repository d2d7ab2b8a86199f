#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
//! The producer's state against a tiny broker that loses requests, loses answers, and refuses.

use super::*;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::collections::BTreeSet;
use tidelog_model::batch::RecordBatch;
use tidelog_model::{Offset, ProducerEpoch, ProducerId};
use tokio::sync::Semaphore;

const NODE: NodeId = NodeId::new(1);

fn settings(idempotent: bool) -> Settings {
    Settings {
        batch_bytes: 200,
        linger: Duration::ZERO,
        codec: Codec::None,
        idempotent,
        delivery_timeout: Duration::from_secs(1000),
        request_bytes: 500,
    }
}

fn parts(value: &[u8]) -> Parts<'_> {
    Parts {
        timestamp: TimestampMs::new(1),
        key: None,
        value: Some(value),
        headers: &[],
    }
}

fn append(core: &mut Core, partition: Option<usize>, value: u32, now: Instant) -> Delivery {
    let mut room = Some(Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap());
    match core.append("t", partition, parts(&value.to_be_bytes()), &mut room, now) {
        Appended::Done { delivery, .. } => delivery,
        _ => panic!("not accepted"),
    }
}

fn error(code: ErrorCode) -> Error {
    code.check("produce", None).unwrap_err()
}

fn lost() -> Error {
    Error::NoAnswer {
        address: "b".to_owned(),
        cause: "closed".to_owned(),
    }
}

/// Remembers the last five batches of a producer, as brokers do.
#[derive(Default)]
struct Log {
    values: Vec<u32>,
    producers: BTreeMap<i64, (i32, VecDeque<(i32, i64)>)>,
}

impl Log {
    fn produce(&mut self, parcel: &Parcel) -> Result<BatchAck, Error> {
        let batch =
            RecordBatch::validate_produced(parcel.sealed().unwrap().clone(), 1 << 20).unwrap();
        let header = *batch.header();
        let (next, recent) = self.producers.entry(header.producer_id.get()).or_default();
        let sequence = header.base_sequence.get();
        let ack = |offset| {
            Ok(BatchAck {
                base_offset: Some(Offset::new(offset)),
                at: Instant::now(),
            })
        };
        if let Some((_, offset)) = recent.iter().find(|(base, _)| *base == sequence) {
            return ack(*offset);
        }
        if sequence != *next {
            return Err(error(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER));
        }
        let offset = i64::try_from(self.values.len()).unwrap();
        *next += header.record_count;
        recent.push_back((sequence, offset));
        if recent.len() > 5 {
            recent.pop_front();
        }
        for record in batch.records().unwrap() {
            let value = record.unwrap().value.unwrap();
            self.values
                .push(u32::from_be_bytes(value[..].try_into().unwrap()));
        }
        ack(offset)
    }
}

struct World {
    core: Core,
    random: StdRng,
    now: Instant,
    logs: Vec<Log>,
    /// Requests on their way, in the order of one connection.
    wire: VecDeque<Vec<Parcel>>,
    next_identity: i64,
    sent: Vec<(usize, u32, Delivery)>,
    trouble: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut core = Core::new(settings(true));
        core.add_topic("t", 3, 0);
        Self {
            core,
            random: StdRng::seed_from_u64(seed),
            now: Instant::now(),
            logs: (0..3).map(|_| Log::default()).collect(),
            wire: VecDeque::new(),
            next_identity: 1,
            sent: Vec::new(),
            trouble: true,
        }
    }

    fn step(&mut self) {
        self.now += Duration::from_millis(10);
        if self.trouble && self.random.random_bool(0.6) {
            for _ in 0..self.random.random_range(1..20) {
                let partition = self.random.random_range(0..3);
                let value = u32::try_from(self.sent.len()).unwrap();
                let delivery = append(&mut self.core, Some(partition), value, self.now);
                self.sent.push((partition, value, delivery));
            }
        }
        if self.core.needs_identity() && self.random.random_bool(0.7) {
            let identity = Identity {
                id: ProducerId::new(self.next_identity),
                epoch: ProducerEpoch::new(0),
            };
            self.next_identity += 1;
            self.core.set_identity(identity);
        }
        let room = PRODUCE_IN_FLIGHT_MAX - self.wire.len();
        for mut parcels in self
            .core
            .drain(self.now, |_, _| Some(NODE), |_| room)
            .requests
            .into_values()
        {
            parcels.iter_mut().for_each(|parcel| parcel.seal().unwrap());
            self.wire.push_back(parcels);
        }
        let what = if self.trouble {
            self.random.random_range(0..10)
        } else {
            9
        };
        match what {
            0 => self.lose_connection(),
            1 => {}
            _ => self.answer_first(),
        }
    }

    /// The broker got some of the requests; nobody hears of it.
    fn lose_connection(&mut self) {
        let arrived = self.random.random_range(0..=self.wire.len());
        for (at, parcels) in std::mem::take(&mut self.wire).into_iter().enumerate() {
            for parcel in parcels {
                if at < arrived {
                    let _ = self.logs[usize::try_from(parcel.partition).unwrap()].produce(&parcel);
                }
                self.core
                    .complete(parcel, Err(lost()), Duration::from_millis(5), self.now);
            }
        }
    }

    fn answer_first(&mut self) {
        for parcel in self.wire.pop_front().unwrap_or_default() {
            let log = &mut self.logs[usize::try_from(parcel.partition).unwrap()];
            let what = if self.trouble {
                self.random.random_range(0..30)
            } else {
                29
            };
            let result = match what {
                0 => Err(error(ErrorCode::NOT_LEADER_OR_FOLLOWER)),
                1 => Err(error(ErrorCode::REQUEST_TIMED_OUT)),
                2 => log
                    .produce(&parcel)
                    .and(Err(error(ErrorCode::REQUEST_TIMED_OUT))),
                3 => Err(error(ErrorCode::MESSAGE_TOO_LARGE)),
                _ => log.produce(&parcel),
            };
            self.core
                .complete(parcel, result, Duration::from_millis(5), self.now);
        }
    }
}

/// Proves that with lost requests, lost answers, refusals in the middle and new identities, every acknowledged record
/// is in the log once, at its offset, every record refused for certain is not, and the order never changes.
#[test]
fn acknowledged_once_and_in_order() {
    let (mut acknowledged, mut refused, mut open) = (0, 0, 0);
    for seed in 0..150 {
        let mut world = World::new(seed);
        for _ in 0..120 {
            world.step();
        }
        world.trouble = false;
        for _ in 0..2000 {
            if world.core.outstanding().is_empty() {
                break;
            }
            world.step();
        }
        assert!(
            world.core.outstanding().is_empty(),
            "seed {seed}: something is never settled"
        );
        for (partition, log) in world.logs.iter().enumerate() {
            let unique: BTreeSet<_> = log.values.iter().collect();
            assert_eq!(
                unique.len(),
                log.values.len(),
                "seed {seed}: a record twice in {partition}"
            );
            assert!(
                log.values.is_sorted(),
                "seed {seed}: order changed in {partition}"
            );
        }
        for (partition, value, delivery) in &world.sent {
            let place = world.logs[*partition]
                .values
                .iter()
                .position(|found| found == value);
            match delivery.done.result_for_test() {
                Ok(ack) => {
                    acknowledged += 1;
                    let offset = ack.base_offset.unwrap().get() + i64::from(delivery.index);
                    assert_eq!(
                        place.map(|at| i64::try_from(at).unwrap()),
                        Some(offset),
                        "seed {seed}"
                    );
                }
                Err(failed) if failed.outcome == Outcome::DidNotHappen => {
                    refused += 1;
                    assert_eq!(
                        place, None,
                        "seed {seed}: {value} is in the log though it was refused"
                    );
                }
                Err(_) => open += 1,
            }
        }
    }
    assert!(
        acknowledged > 10_000 && refused > 100 && open > 10,
        "{acknowledged} {refused} {open}: trouble did not happen"
    );
}

/// Proves that while a batch waits to be sent again nothing after it is sent.
#[test]
fn retry_goes_alone_and_first() {
    let now = Instant::now();
    let mut core = Core::new(settings(true));
    core.add_topic("t", 1, 0);
    core.set_identity(Identity {
        id: ProducerId::new(9),
        epoch: ProducerEpoch::new(0),
    });
    let take = |core: &mut Core, now| {
        core.drain(now, |_, _| Some(NODE), |_| 5)
            .requests
            .remove(&NODE)
    };
    for value in 0..20 {
        append(&mut core, Some(0), value, now);
    }
    let mut first = take(&mut core, now).unwrap().remove(0);
    first.seal().unwrap();
    let bytes = first.sealed().unwrap().clone();
    let second = take(&mut core, now).unwrap().remove(0);
    core.complete(first, Err(lost()), Duration::from_millis(50), now);
    assert!(take(&mut core, now).is_none(), "paused");
    let later = now + Duration::from_millis(60);
    assert!(
        take(&mut core, later).is_none(),
        "the second is still on its way"
    );
    core.complete(
        second,
        Err(error(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER)),
        Duration::ZERO,
        later,
    );
    let again = take(&mut core, later).unwrap().remove(0);
    assert_eq!(
        again.sealed(),
        Some(&bytes),
        "the same bytes under the same sequence"
    );
    assert!(take(&mut core, later).is_none(), "one at a time");
}

/// Proves that nothing is sent to a new leader before what is on its way to the old one has come back: it may be in the log, and a broker
/// does not recognise it any more once five later batches are.
#[test]
fn a_new_leader_waits_for_the_old_one() {
    const OTHER: NodeId = NodeId::new(2);
    let now = Instant::now();
    let mut core = Core::new(settings(true));
    core.add_topic("t", 1, 0);
    core.set_identity(Identity {
        id: ProducerId::new(9),
        epoch: ProducerEpoch::new(0),
    });
    for value in 0..200 {
        append(&mut core, Some(0), value, now);
    }
    let take = |core: &mut Core, node| {
        let mut requests = core.drain(now, |_, _| Some(node), |_| 5).requests;
        requests.remove(&node).map(|mut parcels| parcels.remove(0))
    };
    let old: Vec<Parcel> = (0..3).map(|_| take(&mut core, NODE).unwrap()).collect();
    assert!(
        take(&mut core, OTHER).is_none(),
        "three are at the old leader"
    );
    for parcel in old {
        core.complete(parcel, Err(lost()), Duration::ZERO, now);
    }
    let again = take(&mut core, OTHER).unwrap();
    assert_eq!(again.order, 0);
    assert!(take(&mut core, OTHER).is_none(), "one at a time");
}

/// Proves that answers in another order do not let more batches out than a broker recognises.
#[test]
fn the_oldest_bounds_what_is_sent() {
    let now = Instant::now();
    let mut core = Core::new(settings(true));
    core.add_topic("t", 1, 0);
    core.set_identity(Identity {
        id: ProducerId::new(9),
        epoch: ProducerEpoch::new(0),
    });
    for value in 0..200 {
        append(&mut core, Some(0), value, now);
    }
    let take = |core: &mut Core| {
        let mut requests = core.drain(now, |_, _| Some(NODE), |_| 5).requests;
        requests.remove(&NODE).map(|mut parcels| parcels.remove(0))
    };
    let mut sent: Vec<Parcel> = (0..PRODUCE_IN_FLIGHT_MAX)
        .map(|_| take(&mut core).unwrap())
        .collect();
    let ack = BatchAck {
        base_offset: None,
        at: now,
    };
    core.complete(sent.remove(1), Ok(ack), Duration::ZERO, now);
    assert!(take(&mut core).is_none(), "the oldest is still on its way");
    core.complete(sent.remove(0), Ok(ack), Duration::ZERO, now);
    assert!(take(&mut core).is_some());
}

/// Proves that without idempotence an open outcome is given up, since a repeat could append twice, and a certain
/// refusal is tried again.
#[test]
fn without_idempotence_only_certain_refusals_are_repeated() {
    let now = Instant::now();
    let mut core = Core::new(settings(false));
    core.add_topic("t", 1, 0);
    let take = |core: &mut Core| {
        core.drain(now, |_, _| Some(NODE), |_| 5)
            .requests
            .remove(&NODE)
    };
    let delivery = append(&mut core, Some(0), 1, now);
    let parcel = take(&mut core).unwrap().remove(0);
    assert!(parcel.place.is_none());
    core.complete(
        parcel,
        Err(error(ErrorCode::NOT_LEADER_OR_FOLLOWER)),
        Duration::ZERO,
        now,
    );
    let parcel = take(&mut core).unwrap().remove(0);
    core.complete(parcel, Err(lost()), Duration::ZERO, now);
    assert_eq!(
        delivery.done.result_for_test().unwrap_err().outcome,
        Outcome::MayHaveHappened
    );
    assert!(take(&mut core).is_none());
}

/// Proves that a batch nobody could take is given up at its deadline, as certainly not appended.
#[test]
fn deadline_without_a_leader() {
    let now = Instant::now();
    let mut core = Core::new(settings(true));
    core.add_topic("t", 1, 0);
    core.set_identity(Identity {
        id: ProducerId::new(9),
        epoch: ProducerEpoch::new(0),
    });
    let delivery = append(&mut core, Some(0), 1, now);
    let drained = core.drain(now, |_, _| None, |_| 5);
    assert_eq!(drained.leaderless.len(), 1);
    core.drain(now + Duration::from_secs(2000), |_, _| None, |_| 5);
    assert_eq!(
        delivery.done.result_for_test().unwrap_err().outcome,
        Outcome::DidNotHappen
    );
    assert!(core.outstanding().is_empty());
}

/// Proves that keyless records fill one batch and then go to the next partition, and that batches wait for `linger`
/// unless they are flushed.
#[test]
fn keyless_records_fill_batches_in_turn() {
    let now = Instant::now();
    let mut core = Core::new(Settings {
        linger: Duration::from_millis(5),
        ..settings(true)
    });
    core.add_topic("t", 3, 0);
    core.set_identity(Identity {
        id: ProducerId::new(9),
        epoch: ProducerEpoch::new(0),
    });
    let partitions: Vec<i32> = (0..60)
        .map(|value| append(&mut core, None, value, now).partition())
        .collect();
    let mut runs = partitions.clone();
    runs.dedup();
    assert!(
        runs.len() >= 4 && runs.windows(3).all(|three| three[0] != three[2]),
        "{runs:?}"
    );
    let mut drained = core.drain(now, |_, _| Some(NODE), |_| 5);
    let closed: usize = drained
        .requests
        .remove(&NODE)
        .map_or(0, |parcels| parcels.len());
    assert!(closed > 0 && closed <= 3);
    let mut fresh = Core::new(Settings {
        linger: Duration::from_millis(5),
        ..settings(true)
    });
    fresh.add_topic("t", 1, 0);
    fresh.set_identity(Identity {
        id: ProducerId::new(9),
        epoch: ProducerEpoch::new(0),
    });
    append(&mut fresh, None, 1, now);
    let drained = fresh.drain(now, |_, _| Some(NODE), |_| 5);
    assert!(drained.requests.is_empty());
    assert_eq!(drained.wake, Some(now + Duration::from_millis(5)));
    fresh.flushing = 1;
    assert_eq!(fresh.drain(now, |_, _| Some(NODE), |_| 5).requests.len(), 1);
}

/// Proves that a record no batch can hold is refused and leaves no empty batch behind.
#[test]
fn oversize_record_is_refused() {
    let now = Instant::now();
    let mut core = Core::new(settings(true));
    core.add_topic("t", 1, 0);
    let huge = vec![0; tidelog_model::limits::BATCH_BYTES_MAX + 1];
    let mut room = Some(Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap());
    assert!(matches!(
        core.append("t", Some(0), parts(&huge), &mut room, now),
        Appended::Refused(Error::Invalid(_))
    ));
    assert!(core.outstanding().is_empty());
    assert!(core.topics[0].queues[0].is_idle());
}
