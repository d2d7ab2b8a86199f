//! Which fault hits which request of the store.
//!
//! Owns: [`StoreFaults`], the drawing.
//! Not here: meeting it (`client`, and `Fault` in tidelog-tiering).
//! Spec: docs/simulation.md

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::time::Duration;
use tidelog_tiering::store::faulty::{Call, Fault};

/// How often which fault hits. Rates are probabilities, 0 to 1, each for the requests it can hit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StoreFaults {
    /// 503, with nothing done.
    pub status_503: f64,
    /// 500, whether it was done or not.
    pub status_500: f64,
    /// 429, with nothing done.
    pub status_429: f64,
    /// 408, with nothing done.
    pub status_408: f64,
    /// 409 to a put-if-absent, with nothing done: another one for the key is said to be under way.
    pub status_409: f64,
    /// 200 with an error as its body, whether it was done or not: completions of uploads, copies, deletions.
    pub error_body: f64,
    /// Done, then the connection is reset or closed.
    pub lost_reply: f64,
    /// No answer ever, whether it was done or not.
    pub black_hole: f64,
    /// An answer after up to [`StoreFaults::slow_max`].
    pub slow: f64,
    /// A body that comes in small pieces with pauses.
    pub trickle: f64,
    /// A body that ends early, with or without an error.
    pub short_body: f64,
    /// A body with one bit turned.
    pub wrong_bytes: f64,
    /// A body of the right length from another place of the object.
    pub wrong_range: f64,
    /// A listing of up to [`StoreFaults::stale_max`] ago.
    pub stale_list: f64,
    /// A put-if-absent that overwrites: a store that lies.
    pub ignored_condition: f64,
    /// A write whose sender gives up or dies while it is under way arrives later, by up to [`StoreFaults::late_max`].
    pub late: f64,
    /// What a request takes at least.
    pub latency_min: Duration,
    /// What it takes at most, usually, besides the transfer.
    pub latency_max: Duration,
    /// Bytes that are transferred in a second.
    pub bytes_per_second: u64,
    /// The longest a slow request takes.
    pub slow_max: Duration,
    /// The longest pause between two pieces of a trickling body.
    pub pause_max: Duration,
    /// The most that a listing is behind by.
    pub stale_max: Duration,
    /// The latest that a write arrives.
    pub late_max: Duration,
}

impl Default for StoreFaults {
    /// No faults, the latency of a store in the same region.
    fn default() -> Self {
        Self {
            status_503: 0.0,
            status_500: 0.0,
            status_429: 0.0,
            status_408: 0.0,
            status_409: 0.0,
            error_body: 0.0,
            lost_reply: 0.0,
            black_hole: 0.0,
            slow: 0.0,
            trickle: 0.0,
            short_body: 0.0,
            wrong_bytes: 0.0,
            wrong_range: 0.0,
            stale_list: 0.0,
            ignored_condition: 0.0,
            late: 0.0,
            latency_min: Duration::from_millis(5),
            latency_max: Duration::from_millis(50),
            bytes_per_second: 100 * 1024 * 1024,
            slow_max: Duration::from_secs(120),
            pause_max: Duration::from_secs(5),
            stale_max: Duration::from_secs(60),
            late_max: Duration::from_secs(60),
        }
    }
}

/// What hits a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Hit {
    Nothing,
    /// The request or its reply.
    Fault(Fault, &'static str),
    /// The body of the reply.
    Body(BodyFault),
    /// A listing, by so many milliseconds.
    Stale(i64),
    IgnoredCondition,
}

/// What hits the body of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyFault {
    Trickle,
    Short,
    WrongBytes,
    WrongRange,
}

/// What becomes of a write that is under way when its sender has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Abandoned {
    Lost,
    Arrives,
    ArrivesLate(i64),
}

pub(super) struct Drawing {
    pub(super) random: StdRng,
    pub(super) rates: StoreFaults,
}

impl Drawing {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            rates: StoreFaults::default(),
        }
    }

    pub(super) fn hits(&mut self, rate: f64) -> bool {
        rate > 0.0 && self.random.random_bool(rate.min(1.0))
    }

    /// What hits the next request of this kind: the first of those that can.
    pub(super) fn hit(&mut self, call: Call) -> Hit {
        let rates = self.rates;
        let done = self.random.random_bool(0.5);
        let either = |yes: Fault, no: Fault| if done { yes } else { no };
        let has_error_body = matches!(call, Call::MultipartComplete | Call::Delete | Call::Copy);
        let faults = [
            (rates.status_503, Fault::Status(503), "store.503"),
            (
                rates.status_500,
                either(Fault::StatusAfter(500), Fault::Status(500)),
                "store.500",
            ),
            (rates.status_429, Fault::Status(429), "store.429"),
            (rates.status_408, Fault::Status(408), "store.408"),
            (
                if call == Call::PutIfAbsent {
                    rates.status_409
                } else {
                    0.0
                },
                Fault::Status(409),
                "store.409",
            ),
            (
                if has_error_body {
                    rates.error_body
                } else {
                    0.0
                },
                Fault::ErrorBody(done),
                "store.200-with-error",
            ),
            (
                rates.lost_reply,
                either(Fault::LoseReply, Fault::CloseReply),
                "store.lost-reply",
            ),
            (
                rates.black_hole,
                either(Fault::LoseReplyAndHang, Fault::BlackHole),
                "store.black-hole",
            ),
        ];
        for (rate, fault, kind) in faults {
            if self.hits(rate) {
                return Hit::Fault(fault, kind);
            }
        }
        if self.hits(rates.slow) {
            return Hit::Fault(Fault::Slow(self.slow_delay()), "store.slow");
        }
        match call {
            Call::Get => [
                (rates.trickle, BodyFault::Trickle),
                (rates.short_body, BodyFault::Short),
                (rates.wrong_bytes, BodyFault::WrongBytes),
                (rates.wrong_range, BodyFault::WrongRange),
            ]
            .into_iter()
            .find(|(rate, _)| self.hits(*rate))
            .map_or(Hit::Nothing, |(_, fault)| Hit::Body(fault)),
            Call::List if self.hits(rates.stale_list) => {
                let most = i64::try_from(rates.stale_max.as_millis()).unwrap_or(i64::MAX);
                Hit::Stale(self.random.random_range(1..=most.max(1)))
            }
            Call::PutIfAbsent if self.hits(rates.ignored_condition) => Hit::IgnoredCondition,
            _ => Hit::Nothing,
        }
    }

    /// From a second to the longest, as many below ten seconds as above.
    fn slow_delay(&mut self) -> Duration {
        let most = self.rates.slow_max.as_secs_f64().max(1.0);
        Duration::from_secs_f64(most.powf(self.random.random_range(0.0..=1.0)))
    }

    /// How long a request takes until it is performed, and how long until its reply is there.
    pub(super) fn latency(&mut self, bytes: usize) -> (Duration, Duration) {
        let rates = self.rates;
        let most = rates.latency_max.max(rates.latency_min);
        let whole = self.random.random_range(rates.latency_min..=most);
        let before = whole.mul_f64(self.random.random_range(0.1..0.9));
        (before + self.transfer(bytes), whole - before)
    }

    pub(super) fn transfer(&self, bytes: usize) -> Duration {
        let micros = (bytes as u64).saturating_mul(1_000_000) / self.rates.bytes_per_second.max(1);
        Duration::from_micros(micros)
    }

    pub(super) fn abandoned(&mut self) -> Abandoned {
        if self.hits(self.rates.late) {
            let most = i64::try_from(self.rates.late_max.as_millis()).unwrap_or(i64::MAX);
            return Abandoned::ArrivesLate(self.random.random_range(1..=most.max(1)));
        }
        if self.random.random_bool(0.5) {
            Abandoned::Arrives
        } else {
            Abandoned::Lost
        }
    }
}
