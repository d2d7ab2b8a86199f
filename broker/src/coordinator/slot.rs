//! Which slot a consumer group belongs to.
//!
//! Spec: docs/protocols/consumer-groups.md, "Slots". The hash is fixed for ever: it decides where offsets lie.

use super::ConsumerGroupName;

/// Number of slots; metadata maps each to a placement group.
pub const SLOTS: usize = 64;

/// The slot of `group`: CRC-32C of its UTF-8 bytes, modulo 64.
#[must_use]
pub fn slot_of(group: &ConsumerGroupName) -> usize {
    usize::try_from(crc32c::crc32c(group.as_str().as_bytes())).unwrap_or(0) % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves the documented test vectors, and that slots are filled evenly enough.
    #[test]
    fn vectors() {
        for (name, slot) in [
            ("", 0),
            ("123456789", 3),
            ("search", 1),
            ("fraud", 22),
            ("analytics", 46),
        ] {
            assert_eq!(slot_of(&ConsumerGroupName::new(name)), slot, "{name}");
        }
        let mut filled = [0u32; SLOTS];
        for number in 0..6_400 {
            filled[slot_of(&ConsumerGroupName::new(format!("group-{number}")))] += 1;
        }
        assert!(
            filled.iter().all(|count| (50..200).contains(count)),
            "{filled:?}"
        );
    }
}
