//! Frames that kafka-python 3.0.12 encoded, for every served API and version (`testdata/README.md`).

use super::super::*;
use bytes::{Bytes, BytesMut};
use kafka_wire::fetch_response::{
    EpochEndOffset, FetchableTopicResponse, LeaderIdAndEpoch, PartitionData,
};
use kafka_wire::{FetchResponse, RequestHeader};
use kafka_wire_core::{ApiVersion, KafkaEncode};

/// One golden frame, length included.
pub(crate) struct Message {
    pub(crate) api: Api,
    pub(crate) request: bool,
    pub(crate) version: i16,
    pub(crate) frame: Bytes,
}

fn text(api: Api) -> &'static str {
    macro_rules! files {
        ($($name:ident)*) => {
            match api {
                $(Api::$name => include_str!(concat!("../testdata/", stringify!($name), ".txt")),)*
            }
        };
    }
    files!(
        Produce Fetch ListOffsets Metadata OffsetCommit OffsetFetch FindCoordinator JoinGroup Heartbeat LeaveGroup
        SyncGroup DescribeGroups ListGroups ApiVersions CreateTopics DeleteTopics DeleteRecords InitProducerId
        OffsetForLeaderEpoch DescribeConfigs DeleteGroups IncrementalAlterConfigs OffsetDelete
        DescribeCluster
    )
}

fn unhex(hex: &str) -> Bytes {
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect()
}

/// The golden frames of `api`.
pub(crate) fn of(api: Api) -> Vec<Message> {
    text(api)
        .lines()
        .map(|line| {
            let mut words = line.split(' ');
            let request = words.next() == Some("request");
            let version = words.next().unwrap().parse().unwrap();
            Message {
                api,
                request,
                version,
                frame: unhex(words.next().unwrap()),
            }
        })
        .collect()
}

/// All golden frames.
pub(crate) fn all() -> Vec<Message> {
    Api::ALL.iter().flat_map(|api| of(*api)).collect()
}

/// Proves that requests of another implementation are understood, by encoding them again: nothing was lost.
#[test]
fn golden_requests_decode_and_encode_to_the_same_bytes() {
    for message in all().into_iter().filter(|message| message.request) {
        let name = format!("{} {}", message.api.name(), message.version);
        let head = FrameHead::parse(
            message.frame.first_chunk().unwrap(),
            &FrameLimits::default(),
        )
        .unwrap();
        assert_eq!(
            (head.bytes, head.api),
            (message.frame.len() - 4, Some(message.api)),
            "{name}"
        );
        let request = match decode(message.frame.slice(4..)) {
            Ok(Incoming::Request(request)) => request,
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!(
            (request.api(), request.version, request.correlation_id),
            (message.api, message.version, 0x0123_4567)
        );
        let mut header = RequestHeader::default();
        header.request_api_key = message.api.key();
        header.request_api_version = message.version;
        header.correlation_id = request.correlation_id;
        header.client_id = request.client_id.clone();
        let header_version = ApiVersion::new(if message.api.is_flexible(message.version) {
            2
        } else {
            1
        });
        let mut again = BytesMut::new();
        header.encode_into(&mut again, header_version).unwrap();
        again.extend_from_slice(&request.body.encode_again(message.version).unwrap());
        assert_eq!(again, message.frame.slice(4..), "{name}");
    }
}

/// Proves that our answers have the bytes that another implementation gives them, header and length included.
#[test]
fn golden_answers_encode_to_the_same_bytes() {
    for message in all().into_iter().filter(|message| !message.request) {
        let name = format!("{} {}", message.api.name(), message.version);
        let tagged = message.api.is_flexible(message.version) && message.api != Api::ApiVersions;
        let body = message.frame.slice(if tagged { 9 } else { 8 }..);
        let body = ResponseBody::decode(message.api, message.version, body)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let frame = encode(message.api, message.version, 0x0123_4567, &body).unwrap();
        assert_eq!(frame.chunks().concat(), message.frame, "{name}");
    }
}

/// Proves that the files cover the table: both directions of every version, filled and empty.
#[test]
fn golden_frames_cover_the_table() {
    for api in Api::ALL {
        let messages = of(*api);
        for version in api.range().min..=api.range().max {
            let requests = messages
                .iter()
                .filter(|message| message.request && message.version == version)
                .count();
            let answers = messages
                .iter()
                .filter(|message| !message.request && message.version == version)
                .count();
            let expected = if *api == Api::ApiVersions && version >= 3 {
                1
            } else {
                2
            };
            assert_eq!(
                (requests, answers),
                (2, expected),
                "{} {version}",
                api.name()
            );
        }
    }
}

impl From<FetchResponse> for FetchAnswer {
    fn from(response: FetchResponse) -> Self {
        let partition = |data: PartitionData| FetchedPartition {
            partition_index: data.partition_index,
            error_code: data.error_code,
            high_watermark: data.high_watermark,
            last_stable_offset: data.last_stable_offset,
            log_start_offset: data.log_start_offset,
            diverging_epoch: (data.diverging_epoch != EpochEndOffset::default())
                .then_some((data.diverging_epoch.epoch, data.diverging_epoch.end_offset)),
            current_leader: (data.current_leader != LeaderIdAndEpoch::default()).then_some((
                data.current_leader.leader_id,
                data.current_leader.leader_epoch,
            )),
            aborted_transactions: data.aborted_transactions,
            preferred_read_replica: data.preferred_read_replica,
            records: data.records.into_iter().collect(),
        };
        let topic = |data: FetchableTopicResponse| FetchedTopic {
            topic: data.topic,
            topic_id: data.topic_id,
            partitions: data.partitions.into_iter().map(partition).collect(),
        };
        Self {
            throttle_time_ms: response.throttle_time_ms,
            error_code: response.error_code,
            session_id: response.session_id,
            topics: response.responses.into_iter().map(topic).collect(),
            node_endpoints: response.node_endpoints,
        }
    }
}

/// The body of `answer` as the codec encodes it, what `version` has no place for left out.
pub(super) fn fetch_by_the_codec(answer: &FetchAnswer, version: i16) -> Bytes {
    let partition = |from: &FetchedPartition| {
        let mut data = PartitionData::default();
        data.partition_index = from.partition_index;
        data.error_code = from.error_code;
        data.high_watermark = from.high_watermark;
        data.last_stable_offset = from.last_stable_offset;
        data.log_start_offset = if version >= 5 {
            from.log_start_offset
        } else {
            -1
        };
        data.aborted_transactions
            .clone_from(&from.aborted_transactions);
        data.preferred_read_replica = if version >= 11 {
            from.preferred_read_replica
        } else {
            -1
        };
        data.records = Some(from.records.concat().into());
        if let (true, Some((epoch, end_offset))) = (version >= 12, from.diverging_epoch) {
            data.diverging_epoch.epoch = epoch;
            data.diverging_epoch.end_offset = end_offset;
        }
        if let (true, Some((leader, epoch))) = (version >= 12, from.current_leader) {
            data.current_leader.leader_id = leader;
            data.current_leader.leader_epoch = epoch;
        }
        data
    };
    let topic = |from: &FetchedTopic| {
        let mut data = FetchableTopicResponse::default();
        if version >= 13 {
            data.topic_id = from.topic_id;
        } else {
            data.topic = from.topic.clone();
        }
        data.partitions = from.partitions.iter().map(partition).collect();
        data
    };
    let mut response = FetchResponse::default();
    response.throttle_time_ms = answer.throttle_time_ms;
    if version >= 7 {
        response.error_code = answer.error_code;
        response.session_id = answer.session_id;
    }
    response.responses = answer.topics.iter().map(topic).collect();
    if version >= 16 {
        response.node_endpoints.clone_from(&answer.node_endpoints);
    }
    response.encode_to_bytes(ApiVersion::new(version)).unwrap()
}
