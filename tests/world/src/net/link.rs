//! One direction between two hosts: how long what is sent takes.
//!
//! Owns: latency, jitter, bandwidth, loss; when TCP sends again.
//! Not here: what is sent (`wire`).
//! Spec: docs/simulation.md

use rand::{Rng, rngs::StdRng};
use std::time::Duration;

/// What a link does to what is sent over it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkConfig {
    /// The least time on the way.
    pub latency: Duration,
    /// Up to this much more, at random for each segment. Order within a connection stays.
    pub jitter: Duration,
    /// Bandwidth, shared by all connections over the link. `None`: unlimited.
    pub bytes_per_second: Option<u64>,
    /// How many segments in a million are lost. TCP sends them again: what is behind them waits too.
    pub loss_ppm: u32,
    /// How many segments in a million break their connection.
    pub reset_ppm: u32,
}

impl LinkConfig {
    /// A good network: 1 ms to 2 ms, nothing lost.
    pub const GOOD: Self = Self {
        latency: Duration::from_millis(1),
        jitter: Duration::from_millis(1),
        bytes_per_second: None,
        loss_ppm: 0,
        reset_ppm: 0,
    };

    /// From a host to itself.
    pub(super) const LOOPBACK: Self = Self {
        latency: Duration::ZERO,
        jitter: Duration::ZERO,
        ..Self::GOOD
    };
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self::GOOD
    }
}

/// How often one segment is lost in a row, at most.
const LOST_IN_A_ROW_MAX: u32 = 8;
/// Linux: the first retransmission after 200 ms, each pause twice the one before, none above 120 s.
const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(120);

/// The state of one direction.
#[derive(Debug, Default)]
pub(super) struct Link {
    /// `None`: the network's default.
    pub(super) config: Option<LinkConfig>,
    pub(super) cut: bool,
    /// Bytes that were sent before leave the sender until then.
    busy_until: Duration,
}

/// What happened to a segment on a link.
pub(super) struct Travel {
    pub(super) arrives: Duration,
    pub(super) losses: u32,
    pub(super) slowed: bool,
    pub(super) resets: bool,
}

impl Link {
    /// Sends `length` bytes at `now`.
    pub(super) fn travel(
        &mut self,
        config: LinkConfig,
        random: &mut StdRng,
        now: Duration,
        length: usize,
    ) -> Travel {
        let mut leaves = now;
        if let Some(rate) = config.bytes_per_second {
            leaves = now.max(self.busy_until) + send_time(length, rate);
            self.busy_until = leaves;
        }
        let mut losses = 0;
        while losses < LOST_IN_A_ROW_MAX && one_of(random, config.loss_ppm) {
            losses += 1;
        }
        Travel {
            arrives: leaves + latency(config, random) + retries_take(losses),
            losses,
            slowed: leaves > now,
            resets: one_of(random, config.reset_ppm),
        }
    }

    /// What was on the way when the link was cut is sent anew.
    pub(super) fn forget_queue(&mut self) {
        self.busy_until = Duration::ZERO;
    }
}

/// The time of one small packet on the way.
pub(super) fn latency(config: LinkConfig, random: &mut StdRng) -> Duration {
    let jitter = u64::try_from(config.jitter.as_nanos()).unwrap_or(u64::MAX);
    if jitter == 0 {
        return config.latency;
    }
    config.latency + Duration::from_nanos(random.random_range(0..=jitter))
}

/// True so many times in a million. Draws nothing for zero.
pub(super) fn one_of(random: &mut StdRng, ppm: u32) -> bool {
    ppm > 0 && random.random_range(0..1_000_000) < ppm
}

fn send_time(length: usize, bytes_per_second: u64) -> Duration {
    let bits = u128::try_from(length).unwrap_or(u128::MAX);
    let nanos = bits.saturating_mul(1_000_000_000) / u128::from(bytes_per_second.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// From the first sending to the `count`th retransmission.
fn retries_take(count: u32) -> Duration {
    let mut pause = RETRY_FIRST;
    let mut sum = Duration::ZERO;
    for _ in 0..count {
        sum += pause;
        pause = (pause * 2).min(RETRY_PAUSE_MAX);
    }
    sum
}

/// The first retransmission at or after `healed` of a segment that was sent at `sent` and not acknowledged.
pub(super) fn sent_again(sent: Duration, healed: Duration) -> Duration {
    let mut pause = RETRY_FIRST;
    let mut at = sent + pause;
    while at < healed {
        pause = (pause * 2).min(RETRY_PAUSE_MAX);
        at += pause;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that retransmissions come where Linux makes them, and at most two minutes apart.
    #[test]
    fn retransmissions() {
        let ms = Duration::from_millis;
        assert_eq!(sent_again(ms(0), ms(0)), ms(200));
        assert_eq!(sent_again(ms(0), ms(201)), ms(600));
        assert_eq!(sent_again(ms(1000), ms(2000)), ms(2400));
        assert_eq!(retries_take(3), ms(1400));
        let late = Duration::from_secs(3600);
        assert!(sent_again(ms(0), late) - late <= RETRY_PAUSE_MAX);
    }

    /// Proves that bytes wait for those that were sent before them, by the link's bandwidth.
    #[test]
    fn bandwidth_is_shared() {
        let mut random = rand::SeedableRng::seed_from_u64(1);
        let config = LinkConfig {
            bytes_per_second: Some(1_000_000),
            jitter: Duration::ZERO,
            ..LinkConfig::GOOD
        };
        let mut link = Link::default();
        let first = link.travel(config, &mut random, Duration::ZERO, 500_000);
        let second = link.travel(config, &mut random, Duration::ZERO, 250_000);
        assert_eq!(first.arrives, Duration::from_millis(501));
        assert_eq!(second.arrives, Duration::from_millis(751));
    }
}
