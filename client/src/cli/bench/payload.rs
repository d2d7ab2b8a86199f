//! What bench records contain: seeded, half of it compressible.
//!
//! Owns: a pool of values made before the clock runs; a record costs no allocation.

use rand::{RngCore, SeedableRng, rngs::StdRng};

/// Bytes of the pool. Larger than a CPU's caches would be unfair to brokers that never see such locality, smaller
/// would let a codec find repeats between records.
const POOL_BYTES: usize = 8 * 1024 * 1024;
/// Different values at most.
const VALUES_MAX: usize = 8192;

/// Values of one size.
#[derive(Clone)]
pub(super) struct Payload {
    bytes: Vec<u8>,
    size: usize,
    next: usize,
}

impl Payload {
    /// The same seed and size make the same values.
    pub(super) fn new(size: usize, seed: u64) -> Self {
        let values = (POOL_BYTES / size).clamp(1, VALUES_MAX);
        let mut random = StdRng::seed_from_u64(seed);
        let mut bytes = vec![0; values * size];
        for value in bytes.chunks_exact_mut(size) {
            let (text, noise) = value.split_at_mut(size / 2);
            random.fill_bytes(noise);
            let number = random.next_u32() % 1000;
            let line = format!(
                "2026-01-01 INFO order {number} accepted by shard {} in {} ms; ",
                number % 7,
                number % 90
            );
            for (at, byte) in text.iter_mut().zip(line.bytes().cycle()) {
                *at = byte;
            }
        }
        Self {
            bytes,
            size,
            next: 0,
        }
    }

    /// The next value.
    pub(super) fn value(&mut self) -> &[u8] {
        let start = self.next;
        self.next = if start + 2 * self.size <= self.bytes.len() {
            start + self.size
        } else {
            0
        };
        &self.bytes[start..start + self.size]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use tidelog_model::codec::{Codec, compress};

    /// Proves size, repeatability, and that about half of it compresses.
    #[test]
    fn half_compresses() {
        for size in [1, 2, 100] {
            let (mut one, mut other) = (Payload::new(size, 7), Payload::new(size, 7));
            for _ in 0..20 {
                assert_eq!(one.value().len(), size);
                assert_eq!(one.value(), {
                    other.value();
                    other.value()
                });
            }
        }
        let mut payload = Payload::new(200, 1);
        let many: Vec<u8> = (0..5000).flat_map(|_| payload.value().to_vec()).collect();
        let compressed = compress(Codec::Zstd, &many).unwrap().len();
        assert!((480_000..620_000).contains(&compressed), "{compressed}");
    }
}
