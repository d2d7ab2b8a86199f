//! Which partition a record goes to.
//!
//! Owns: Java's murmur2 over the key, so that a key lands on the same partition whichever client wrote it.
//! Not here: records without a key (they follow the open batch, see `core`).

use tidelog_model::PartitionIndex;

const SEED: u32 = 0x9747_b28c;
const M: u32 = 0x5bd1_e995;

/// The partition of a key among `count` (at least 1) partitions, as Kafka's Java client chooses it.
#[must_use]
pub fn partition_of(key: &[u8], count: i32) -> PartitionIndex {
    let positive = murmur2(key) & 0x7fff_ffff;
    let count = u32::try_from(count.max(1)).unwrap_or(1);
    PartitionIndex::new(i32::try_from(positive % count).unwrap_or(0))
}

/// MurmurHash 2, 32 bits, with Kafka's seed.
#[must_use]
pub fn murmur2(data: &[u8]) -> u32 {
    // The hash is defined over the length modulo 2^32; keys are far shorter.
    let mut hash = SEED ^ u32::try_from(data.len()).unwrap_or(u32::MAX);
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        for (at, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * at);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    /// Proves equality with the values of Kafka's own test (UtilsTest.testMurmur2).
    #[test]
    fn murmur2_as_java() {
        let cases: [(&[u8], i32); 6] = [
            (b"21", -973_932_308),
            (b"foobar", -790_332_482),
            (b"a-little-bit-long-string", -985_981_536),
            (b"a-little-bit-longer-string", -1_486_304_829),
            (
                b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
                -58_897_971,
            ),
            (b"abc", 479_470_107),
        ];
        for (key, hash) in cases {
            assert_eq!(murmur2(key).cast_signed(), hash, "{key:?}");
        }
    }

    /// Proves that every partition number is valid, for one partition and for many.
    #[test]
    fn partitions_are_in_range() {
        for count in [1, 2, 6, 1000, i32::MAX] {
            for key in [&b""[..], b"a", b"ab", b"abc", b"abcd", b"abcde"] {
                let partition = partition_of(key, count).get();
                assert!((0..count).contains(&partition));
            }
        }
    }
}
