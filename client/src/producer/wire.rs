//! Produce requests as a list of buffers: the batches are not copied into a frame.
//!
//! Owns: the byte layout of Produce requests, versions 3 to 12.
//! Not here: the answer (decoded by kafka-wire).
//! Spec: Kafka's ProduceRequest.json; a test compares every version with kafka-wire's encoder.

use bytes::{BufMut, Bytes, BytesMut};
use std::ops::RangeInclusive;

/// Versions this encoder writes. From 13 on topics go by id.
pub(super) const VERSIONS: RangeInclusive<i16> = 3..=12;
const FIRST_FLEXIBLE: i16 = 9;
const API_KEY: i16 = 0;

/// One topic of a request.
pub(super) struct TopicBatches<'a> {
    pub(super) name: &'a str,
    pub(super) batches: Vec<(i32, Bytes)>,
}

/// Header fields and settings of a request.
pub(super) struct Head<'a> {
    pub(super) version: i16,
    pub(super) correlation: i32,
    pub(super) client_id: &'a str,
    pub(super) acks: i16,
    pub(super) timeout_ms: i32,
}

/// The frame in pieces, the length prefix included. `None` when a name or the whole is too long for its length field.
pub(super) fn encode(head: &Head<'_>, topics: &[TopicBatches<'_>]) -> Option<Vec<Bytes>> {
    let mut writer = Writer {
        flexible: head.version >= FIRST_FLEXIBLE,
        out: BytesMut::with_capacity(256),
        chunks: Vec::new(),
    };
    writer.out.put_i16(API_KEY);
    writer.out.put_i16(head.version);
    writer.out.put_i32(head.correlation);
    // The client id of a request header is never compact.
    writer
        .out
        .put_i16(i16::try_from(head.client_id.len()).ok()?);
    writer.out.put_slice(head.client_id.as_bytes());
    writer.tags();
    if writer.flexible {
        writer.out.put_u8(0)
    } else {
        writer.out.put_i16(-1)
    }
    writer.out.put_i16(head.acks);
    writer.out.put_i32(head.timeout_ms);
    writer.length(topics.len())?;
    for topic in topics {
        writer.string(topic.name)?;
        writer.length(topic.batches.len())?;
        for (partition, batch) in &topic.batches {
            writer.out.put_i32(*partition);
            writer.length(batch.len())?;
            writer.splice(batch);
            writer.tags();
        }
        writer.tags();
    }
    writer.tags();
    writer.finish()
}

struct Writer {
    flexible: bool,
    out: BytesMut,
    chunks: Vec<Bytes>,
}

impl Writer {
    /// The length of an array or of bytes.
    fn length(&mut self, length: usize) -> Option<()> {
        let length = i32::try_from(length).ok()?;
        if !self.flexible {
            self.out.put_i32(length);
            return Some(());
        }
        self.varint(u32::try_from(length).ok()?.checked_add(1)?);
        Some(())
    }

    fn string(&mut self, text: &str) -> Option<()> {
        let length = i16::try_from(text.len()).ok()?;
        if self.flexible {
            self.varint(u32::try_from(length).ok()? + 1);
        } else {
            self.out.put_i16(length);
        }
        self.out.put_slice(text.as_bytes());
        Some(())
    }

    fn varint(&mut self, mut value: u32) {
        while value >= 0x80 {
            self.out
                .put_u8(u8::try_from(value & 0x7f).unwrap_or(0) | 0x80);
            value >>= 7;
        }
        self.out.put_u8(u8::try_from(value).unwrap_or(0));
    }

    fn tags(&mut self) {
        if self.flexible {
            self.out.put_u8(0);
        }
    }

    fn splice(&mut self, bytes: &Bytes) {
        self.chunks.push(self.out.split().freeze());
        self.chunks.push(bytes.clone());
    }

    fn finish(mut self) -> Option<Vec<Bytes>> {
        self.chunks.push(self.out.freeze());
        let total: usize = self.chunks.iter().map(Bytes::len).sum();
        let prefix = i32::try_from(total).ok()?.to_be_bytes();
        self.chunks.insert(0, Bytes::copy_from_slice(&prefix));
        Some(self.chunks)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use kafka_wire::produce_request::{PartitionProduceData, TopicProduceData};
    use kafka_wire::{OutboundFrameLimits, ProduceRequest, encode_request};
    use kafka_wire_core::{ApiVersion, StrBytes};

    /// Proves that every version is byte for byte what the generated encoder writes.
    #[test]
    fn equals_the_generated_encoder() {
        let batches = [
            ("orders", vec![(0, vec![1u8; 10]), (7, vec![2; 200])]),
            ("x", vec![(3, vec![3; 70_000])]),
        ];
        for version in VERSIONS {
            let mut request = ProduceRequest::default();
            request.acks = -1;
            request.timeout_ms = 1234;
            for (name, parts) in &batches {
                let mut topic = TopicProduceData::default();
                topic.name = StrBytes::from(*name);
                for (index, bytes) in parts {
                    let mut partition = PartitionProduceData::default();
                    partition.index = *index;
                    partition.records = Some(Bytes::from(bytes.clone()));
                    topic.partition_data.push(partition);
                }
                request.topic_data.push(topic);
            }
            let mut expected = BytesMut::new();
            let limits = OutboundFrameLimits::new(1 << 20);
            let client = Some(StrBytes::from("tidelog"));
            encode_request(
                &mut expected,
                42,
                client,
                &request,
                ApiVersion::new(version),
                limits,
            )
            .unwrap();
            let head = Head {
                version,
                correlation: 42,
                client_id: "tidelog",
                acks: -1,
                timeout_ms: 1234,
            };
            let topics: Vec<_> = batches
                .iter()
                .map(|(name, parts)| TopicBatches {
                    name,
                    batches: parts
                        .iter()
                        .map(|(index, bytes)| (*index, Bytes::from(bytes.clone())))
                        .collect(),
                })
                .collect();
            let chunks = encode(&head, &topics).unwrap();
            assert_eq!(chunks.concat(), expected, "version {version}");
        }
    }
}
