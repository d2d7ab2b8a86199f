//! Fetch answers, framed by hand so that records are not copied.
//!
//! Owns: the answer as a value whose records are chunks, its encoding for every served version.
//! Not here: what is fetched (`api`).
//! Spec: docs/protocols/kafka-wire.md
//!
//! A test compares each version with the codec's own encoding.

use super::frame::FrameBuilder;
use super::messages::fetch_response::{AbortedTransaction, NodeEndpoint};
use super::messages::{StrBytes, WireUuid};
use bytes::{BufMut, Bytes, BytesMut};
use kafka_wire_core::EncodeError;

/// First version with tagged fields.
const FLEXIBLE: i16 = 12;
/// First version that names topics by id.
const TOPIC_IDS: i16 = 13;

/// The answer to one Fetch request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FetchAnswer {
    /// How long the client should wait because of a quota.
    pub throttle_time_ms: i32,
    /// Error of the whole request (version 7 and later say it).
    pub error_code: i16,
    /// The fetch session, 0 for none.
    pub session_id: i32,
    /// The topics.
    pub topics: Vec<FetchedTopic>,
    /// Addresses of leaders named in the partitions (version 16 and later say them).
    pub node_endpoints: Vec<NodeEndpoint>,
}

/// One topic of a [`FetchAnswer`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FetchedTopic {
    /// The name; on the wire before version 13.
    pub topic: StrBytes,
    /// The id; on the wire from version 13 on.
    pub topic_id: WireUuid,
    /// The partitions.
    pub partitions: Vec<FetchedPartition>,
}

/// One partition of a [`FetchAnswer`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FetchedPartition {
    /// The partition's number.
    pub partition_index: i32,
    /// Its error, or 0.
    pub error_code: i16,
    /// The high watermark, -1 with an error.
    pub high_watermark: i64,
    /// The last stable offset, -1 with an error.
    pub last_stable_offset: i64,
    /// The log start, -1 with an error.
    pub log_start_offset: i64,
    /// Where the client's log and this one part (version 12 and later say it): epoch and its end offset.
    pub diverging_epoch: Option<(i32, i64)>,
    /// Leader and leader epoch, told with an error of leadership (version 12 and later say it).
    pub current_leader: Option<(i32, i32)>,
    /// Transactions whose records a reader of committed data leaves out. `None` unless it asked for that.
    pub aborted_transactions: Option<Vec<AbortedTransaction>>,
    /// Broker to read from instead, or -1.
    pub preferred_read_replica: i32,
    /// Whole batches, in order, in pieces of any size: for each batch its patched prefix and its body. Empty for none;
    /// never null on the wire.
    pub records: Vec<Bytes>,
}

impl Default for FetchedPartition {
    /// No error, no records, unknown offsets.
    fn default() -> Self {
        Self {
            partition_index: 0,
            error_code: 0,
            high_watermark: -1,
            last_stable_offset: -1,
            log_start_offset: -1,
            diverging_epoch: None,
            current_leader: None,
            aborted_transactions: None,
            preferred_read_replica: -1,
            records: Vec::new(),
        }
    }
}

impl FetchedPartition {
    /// Bytes of records.
    #[must_use]
    pub fn records_bytes(&self) -> usize {
        self.records.iter().map(Bytes::len).sum()
    }

    fn encode(&self, frame: &mut FrameBuilder, version: i16) -> Result<(), EncodeError> {
        let flexible = version >= FLEXIBLE;
        let out = frame.buffer();
        out.put_i32(self.partition_index);
        out.put_i16(self.error_code);
        out.put_i64(self.high_watermark);
        out.put_i64(self.last_stable_offset);
        if version >= 5 {
            out.put_i64(self.log_start_offset);
        }
        put_nullable_length(
            out,
            flexible,
            self.aborted_transactions.as_ref().map(Vec::len),
        )?;
        for aborted in self.aborted_transactions.iter().flatten() {
            out.put_i64(aborted.producer_id);
            out.put_i64(aborted.first_offset);
            put_no_tags(out, flexible);
        }
        if version >= 11 {
            out.put_i32(self.preferred_read_replica);
        }
        put_nullable_length(out, flexible, Some(self.records_bytes()))?;
        for chunk in &self.records {
            frame.put(chunk.clone());
        }
        if flexible {
            self.encode_tags(frame.buffer());
        }
        Ok(())
    }

    fn encode_tags(&self, out: &mut BytesMut) {
        out.put_u8(
            u8::from(self.diverging_epoch.is_some()) + u8::from(self.current_leader.is_some()),
        );
        if let Some((epoch, end_offset)) = self.diverging_epoch {
            // Tag 0, 13 bytes: int32, int64, no tags.
            out.put_slice(&[0, 13]);
            out.put_i32(epoch);
            out.put_i64(end_offset);
            out.put_u8(0);
        }
        if let Some((leader, epoch)) = self.current_leader {
            // Tag 1, 9 bytes: int32, int32, no tags.
            out.put_slice(&[1, 9]);
            out.put_i32(leader);
            out.put_i32(epoch);
            out.put_u8(0);
        }
    }
}

impl FetchAnswer {
    /// Bytes of records in all partitions.
    #[must_use]
    pub fn records_bytes(&self) -> usize {
        self.topics
            .iter()
            .flat_map(|topic| &topic.partitions)
            .map(FetchedPartition::records_bytes)
            .sum()
    }

    pub(super) fn encode(&self, frame: &mut FrameBuilder, version: i16) -> Result<(), EncodeError> {
        let flexible = version >= FLEXIBLE;
        let out = frame.buffer();
        out.put_i32(self.throttle_time_ms);
        if version >= 7 {
            out.put_i16(self.error_code);
            out.put_i32(self.session_id);
        }
        put_length(out, flexible, self.topics.len())?;
        for topic in &self.topics {
            let out = frame.buffer();
            if version >= TOPIC_IDS {
                out.put_slice(topic.topic_id.as_bytes());
            } else {
                put_string(out, flexible, &topic.topic)?;
            }
            put_length(out, flexible, topic.partitions.len())?;
            for partition in &topic.partitions {
                partition.encode(frame, version)?;
            }
            put_no_tags(frame.buffer(), flexible);
        }
        if flexible {
            self.encode_tags(frame.buffer(), version)?;
        }
        Ok(())
    }

    fn encode_tags(&self, out: &mut BytesMut, version: i16) -> Result<(), EncodeError> {
        if version < 16 || self.node_endpoints.is_empty() {
            out.put_u8(0);
            return Ok(());
        }
        let mut nodes = BytesMut::new();
        put_length(&mut nodes, true, self.node_endpoints.len())?;
        for node in &self.node_endpoints {
            nodes.put_i32(node.node_id);
            put_string(&mut nodes, true, &node.host)?;
            nodes.put_i32(node.port);
            match &node.rack {
                Some(rack) => put_string(&mut nodes, true, rack)?,
                None => nodes.put_u8(0),
            }
            nodes.put_u8(0);
        }
        out.put_slice(&[1, 0]);
        put_varint(out, to_u32(nodes.len())?);
        out.put_slice(&nodes);
        Ok(())
    }
}

fn too_large(bytes: usize) -> EncodeError {
    EncodeError::FrameTooLarge { bytes }
}

fn to_u32(length: usize) -> Result<u32, EncodeError> {
    i32::try_from(length)
        .map(i32::cast_unsigned)
        .map_err(|_| too_large(length))
}

fn put_varint(out: &mut BytesMut, mut value: u32) {
    while value >= 0x80 {
        out.put_u8(u8::try_from(value & 0x7f).unwrap_or(0) | 0x80);
        value >>= 7;
    }
    out.put_u8(u8::try_from(value).unwrap_or(0));
}

fn put_length(out: &mut BytesMut, flexible: bool, length: usize) -> Result<(), EncodeError> {
    put_nullable_length(out, flexible, Some(length))
}

fn put_nullable_length(
    out: &mut BytesMut,
    flexible: bool,
    length: Option<usize>,
) -> Result<(), EncodeError> {
    match (flexible, length) {
        (true, None) => out.put_u8(0),
        (true, Some(length)) => put_varint(out, to_u32(length)?.saturating_add(1)),
        (false, None) => out.put_i32(-1),
        (false, Some(length)) => out.put_u32(to_u32(length)?),
    }
    Ok(())
}

fn put_string(out: &mut BytesMut, flexible: bool, value: &StrBytes) -> Result<(), EncodeError> {
    if flexible {
        put_length(out, true, value.len())?;
    } else {
        out.put_i16(i16::try_from(value.len()).map_err(|_| too_large(value.len()))?);
    }
    out.put_slice(value.as_bytes());
    Ok(())
}

fn put_no_tags(out: &mut BytesMut, flexible: bool) {
    if flexible {
        out.put_u8(0);
    }
}
