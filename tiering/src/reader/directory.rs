//! What an object says of itself: its segments, without any manifest. For restore and scrub; not cached.

use super::config::ReadError;
use crate::format::codec::{check_crc, wide};
use crate::format::{FOOTER_LENGTH, Footer, FormatError, decode_directory};
use crate::key;
use crate::manifest::{ObjectId, SegmentEntry};
use crate::store::TierStore;
use std::ops::Range;
use tidelog_model::PartitionId;

/// About 400 000 segments; an object has as many as a group has partitions.
const DIRECTORY_BYTES_MAX: u32 = 64 * 1024 * 1024;

/// The segments of an object, from its footer and directory, all checked.
///
/// # Errors
/// [`ReadError::Store`], [`ReadError::Corrupt`].
pub async fn read_directory(
    store: &TierStore,
    object: ObjectId,
) -> Result<Vec<(PartitionId, SegmentEntry)>, ReadError> {
    let key = key::data(&object);
    let length = store.head(&key).await?.length;
    let damaged = |range: Range<u64>, reason: String| ReadError::Corrupt {
        object: key.clone(),
        range,
        reason,
    };
    let tail = length.saturating_sub(wide(FOOTER_LENGTH))..length;
    let bytes = store.get_range(&key, tail.clone()).await?;
    let footer =
        Footer::decode(&bytes).map_err(|error| damaged(tail.clone(), error.to_string()))?;
    if footer.object != object || footer.object_length != length {
        return Err(damaged(
            tail,
            "the footer is that of another object".to_owned(),
        ));
    }
    let start = footer.directory_position.get();
    let range = start..start + u64::from(footer.directory_length);
    if footer.directory_length > DIRECTORY_BYTES_MAX {
        return Err(damaged(range, "the directory is too long".to_owned()));
    }
    let bytes = store.get_range(&key, range.clone()).await?;
    let read = || {
        check_crc("segment directory", footer.directory_crc, &bytes)?;
        let segments = decode_directory(object, &bytes)?;
        if wide(segments.len()) == u64::from(footer.segment_count) {
            Ok(segments)
        } else {
            Err(FormatError::Rule {
                what: "segment directory",
                rule: "its count is not the footer's",
            })
        }
    };
    read().map_err(|error: FormatError| damaged(range.clone(), error.to_string()))
}
