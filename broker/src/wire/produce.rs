//! A first pass over Produce requests that counts their partitions before the codec makes a structure of each.
//!
//! Owns: the bound on partitions per request (the codec bounds each array, not arrays of arrays).
//! Not here: decoding.
//! Spec: docs/protocols/kafka-wire.md

use kafka_wire_core::{DecodeError, Decoder};
use tidelog_model::limits;

/// Walks the body that `decoder` stands before; it is not moved.
pub(super) fn check_partition_count(
    decoder: &Decoder,
    version: i16,
    flexible: bool,
) -> Result<(), DecodeError> {
    let mut walk = decoder.clone();
    nullable_string(&mut walk, flexible)?;
    walk.read_i16()?;
    walk.read_i32()?;
    let mut partitions = 0usize;
    for _ in 0..array_len(&mut walk, flexible)? {
        if version >= 13 {
            walk.read_uuid()?;
        } else {
            name(&mut walk, flexible)?;
        }
        let count = array_len(&mut walk, flexible)?;
        partitions = partitions.saturating_add(count);
        if partitions > limits::PRODUCE_PARTITIONS_MAX {
            return Err(DecodeError::LimitExceeded {
                kind: "partitions of one Produce request",
                length: partitions,
                limit: limits::PRODUCE_PARTITIONS_MAX,
                offset: walk.offset(),
            });
        }
        for _ in 0..count {
            walk.read_i32()?;
            records(&mut walk, flexible)?;
            if flexible {
                walk.read_tagged_fields()?;
            }
        }
        if flexible {
            walk.read_tagged_fields()?;
        }
    }
    Ok(())
}

fn array_len(walk: &mut Decoder, flexible: bool) -> Result<usize, DecodeError> {
    let count = if flexible {
        walk.read_compact_array_len()?
    } else {
        walk.read_array_len()?
    };
    Ok(count.get())
}

fn nullable_string(walk: &mut Decoder, flexible: bool) -> Result<(), DecodeError> {
    if flexible {
        walk.read_compact_nullable_string()?
    } else {
        walk.read_nullable_string()?
    };
    Ok(())
}

fn name(walk: &mut Decoder, flexible: bool) -> Result<(), DecodeError> {
    if flexible {
        walk.read_compact_string()?
    } else {
        walk.read_string()?
    };
    Ok(())
}

fn records(walk: &mut Decoder, flexible: bool) -> Result<(), DecodeError> {
    if flexible {
        walk.read_compact_nullable_bytes()?
    } else {
        walk.read_nullable_bytes()?
    };
    Ok(())
}
