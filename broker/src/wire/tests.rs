#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::fetch::{FetchAnswer, FetchedPartition, FetchedTopic};
use super::messages::fetch_response::{AbortedTransaction, NodeEndpoint};
use super::messages::{ListGroupsResponse, MetadataResponse, StrBytes, WireUuid};
use super::*;
use crate::error::ErrorCode;
use bytes::{BufMut, Bytes, BytesMut};
use proptest::prelude::*;

pub(crate) mod golden;

fn request(frame: &Bytes) -> Request {
    match decode(frame.slice(4..)).unwrap() {
        Incoming::Request(request) => *request,
        other @ Incoming::UnsupportedApiVersions { .. } => panic!("{other:?}"),
    }
}

/// A request frame without its length.
fn raw(api_key: i16, version: i16, body: &[u8]) -> Bytes {
    let mut out = BytesMut::new();
    out.put_i16(api_key);
    out.put_i16(version);
    out.put_i32(7);
    out.put_i16(-1);
    out.put_slice(body);
    out.freeze()
}

fn joined(frame: &Frame) -> Bytes {
    assert!(frame.chunks().iter().all(|chunk| !chunk.is_empty()));
    let all = Bytes::from(frame.chunks().concat());
    assert_eq!(all.len(), frame.bytes());
    all
}

/// Proves that every cut of every request is refused, also when the length says that this is all; and that bytes after the last field
/// change nothing.
#[test]
fn every_cut_of_every_request_is_refused() {
    for message in golden::all().into_iter().filter(|message| message.request) {
        let frame = message.frame.slice(4..);
        for cut in 0..frame.len() {
            let refused = decode(frame.slice(..cut));
            assert!(
                refused.is_err(),
                "{} {} cut at {cut}: {refused:?}",
                message.api.name(),
                message.version
            );
        }
        let mut longer = frame.to_vec();
        longer.extend([0, 1, 0]);
        assert_eq!(
            decode(Bytes::from(longer)).unwrap(),
            decode(frame).unwrap(),
            "{} {}",
            message.api.name(),
            message.version
        );
    }
}

/// Proves that the request of librdkafka 2.16 for the metadata of all topics is read, byte for byte as it is sent.
#[test]
fn librdkafka_asks_for_all_topics_with_bytes_to_spare() {
    let sent: Vec<u8> = b"\0\x03\0\x0d\0\0\0\x03\0\x07rdkafka\0\0\0\0\0\x01\0\0".to_vec();
    let Incoming::Request(request) = decode(Bytes::from(sent)).unwrap() else {
        panic!("it is no request");
    };
    assert_eq!((request.version, request.correlation_id), (13, 3));
    assert!(matches!(request.body, RequestBody::Metadata(asked) if asked.topics.is_none()));
}

/// Proves that hostile lengths and counts anywhere in any request make an error or a request, never a panic.
#[test]
fn hostile_numbers_anywhere_do_not_panic() {
    for message in golden::all().into_iter().filter(|message| message.request) {
        let frame = message.frame.slice(4..);
        for at in 8..frame.len() {
            for number in [i32::MAX, -2, i32::MIN, 100_000] {
                let mut hostile = frame.to_vec();
                for (to, from) in hostile[at..].iter_mut().zip(number.to_be_bytes()) {
                    *to = from;
                }
                let _ = decode(Bytes::from(hostile));
            }
            let mut hostile = frame.to_vec();
            hostile.splice(at..=at, [0xff, 0xff, 0xff, 0xff, 0x07]);
            let _ = decode(Bytes::from(hostile));
        }
    }
}

/// Proves that a count is not believed: arrays of billions in a few bytes are refused, as are more elements than any
/// client names, and more partitions of one Produce than bounded by arrays of arrays.
#[test]
fn hostile_counts_are_refused() {
    for count in [i32::MAX, 1_000_000_000, 100_001] {
        let refused = decode(raw(3, 1, &count.to_be_bytes()));
        assert!(
            matches!(
                refused,
                Err(WireError::Malformed {
                    api: "Metadata",
                    version: 1,
                    ..
                })
            ),
            "{refused:?}"
        );
    }
    // Produce 3: no transactional id, acks -1, timeout; 3 topics of 10,000 partitions without records each.
    let mut body = BytesMut::new();
    body.put_i16(-1);
    body.put_i16(-1);
    body.put_i32(1000);
    body.put_i32(3);
    for _ in 0..3 {
        body.put_i16(0);
        body.put_i32(10_000);
        for partition in 0..10_000 {
            body.put_i32(partition);
            body.put_i32(-1);
        }
    }
    match decode(raw(0, 3, &body)) {
        Err(WireError::Malformed { reason, .. }) => {
            assert!(reason.contains("partitions of one Produce"), "{reason}")
        }
        other => panic!("{other:?}"),
    }
}

/// Proves which requests are told apart as not served, and that ApiVersions of any version gets its answer.
#[test]
fn what_is_not_served_is_told_apart() {
    for (api_key, version) in [
        (0, 2),
        (0, 14),
        (1, 3),
        (17, 0),
        (36, 0),
        (999, 0),
        (-1, 0),
        (3, -1),
    ] {
        assert_eq!(
            decode(raw(api_key, version, &[])),
            Err(WireError::Unsupported { api_key, version })
        );
    }
    for version in [5, 127, -1] {
        let incoming = decode(raw(18, version, &[1, 2, 3]));
        assert_eq!(
            incoming,
            Ok(Incoming::UnsupportedApiVersions { correlation_id: 7 })
        );
    }
}

/// Proves the answer to ApiVersions: version 0 for unknown versions with error 35, the whole table, Produce from 0,
/// SASL not offered, and the old header at every version.
#[test]
fn api_versions_says_the_table() {
    let frame = joined(&unsupported_api_versions_frame(9).unwrap());
    assert_eq!(frame[4..10], [0, 0, 0, 9, 0, 35]);
    let body = ResponseBody::decode(Api::ApiVersions, 0, frame.slice(8..)).unwrap();
    let ResponseBody::ApiVersions(answer) = body else {
        panic!("{body:?}")
    };
    let told: Vec<_> = answer
        .api_keys
        .iter()
        .map(|key| (key.api_key, key.min_version, key.max_version))
        .collect();
    let table: Vec<_> = Api::ALL
        .iter()
        .map(|api| (api.key(), api.range().advertised_min, api.range().max))
        .collect();
    assert_eq!(told, table);
    assert!(told.contains(&(0, 0, 13)) && told.contains(&(1, 4, 18)) && told.contains(&(18, 0, 4)));
    assert!(!told.iter().any(|(key, ..)| [17, 36].contains(key)));
    assert!(told.windows(2).all(|pair| pair[0].0 < pair[1].0));

    for version in 0..=4 {
        let body = ResponseBody::ApiVersions(api_versions_answer(ErrorCode::None));
        let frame = joined(&encode(Api::ApiVersions, version, 9, &body).unwrap());
        assert_eq!(
            frame[4..10],
            [0, 0, 0, 9, 0, 0],
            "header version 0, then the error code"
        );
    }
}

/// Proves that names of client software are remembered if they may be one, and refused if not (KIP-511).
#[test]
fn client_software_is_remembered() {
    for good in ["a", "apache-kafka-java", "librdkafka", "2.16.0", "X1"] {
        assert!(is_software_name(good), "{good}");
    }
    for bad in ["", "-", "a-", ".a", "a b", "a\n", "n\u{e4}me"] {
        assert!(!is_software_name(bad), "{bad}");
    }
    let address = "127.0.0.1:1".parse().unwrap();
    let connection = Connection::new(1, address, address);
    let mut ask = messages::ApiVersionsRequest::default();
    assert_eq!(connection.negotiate(&ask, 0).error_code, 0);
    assert_eq!(
        connection.negotiate(&ask, 3).error_code,
        ErrorCode::InvalidRequest.code()
    );
    assert_eq!(connection.software(), None);
    ask.client_software_name = "librdkafka".into();
    ask.client_software_version = "2.16.0".into();
    assert_eq!(connection.negotiate(&ask, 4).error_code, 0);
    assert_eq!(connection.software().unwrap().name, "librdkafka");
}

/// Proves the checks before a frame is allocated: lengths, larger frames for Produce only, other protocols.
#[test]
fn frame_heads_are_checked() {
    let limits = FrameLimits {
        produce_bytes_max: 1000,
        other_bytes_max: 100,
    };
    let head = |length: i32, api_key: i16| {
        let mut head = [0; FRAME_HEAD_BYTES];
        head[..4].copy_from_slice(&length.to_be_bytes());
        head[4..6].copy_from_slice(&api_key.to_be_bytes());
        FrameHead::parse(&head, &limits)
    };
    assert_eq!(
        head(1000, 0),
        Ok(FrameHead {
            bytes: 1000,
            api: Some(Api::Produce)
        })
    );
    assert_eq!(head(100, 3).unwrap().decode_bytes(), 3200);
    assert_eq!(head(1000, 0).unwrap().decode_bytes(), 0);
    assert_eq!(
        head(8, 12_345),
        Ok(FrameHead {
            bytes: 8,
            api: None
        })
    );
    for (length, api_key) in [
        (1001, 0),
        (101, 3),
        (101, 12_345),
        (7, 0),
        (0, 0),
        (-1, 0),
        (i32::MIN, 3),
        (i32::MAX, 0),
    ] {
        assert!(
            matches!(head(length, api_key), Err(WireError::FrameLength { .. })),
            "{length} {api_key}"
        );
    }
    for http in [
        "GET / HTTP/1.1",
        "POST /x HTTP/1.1",
        "PRI * HTTP/2.0",
        "CONNECT a:1 HTTP/1.1",
    ] {
        assert_eq!(
            FrameHead::parse(
                http.as_bytes().first_chunk().unwrap(),
                &FrameLimits::default()
            ),
            Err(WireError::Http)
        );
    }
    let hello = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 0];
    assert_eq!(
        FrameHead::parse(&hello, &FrameLimits::default()),
        Err(WireError::Tls)
    );
}

/// Proves that a Produce request's records are slices of its frame.
#[test]
fn produced_records_are_not_copied() {
    for message in golden::of(Api::Produce)
        .into_iter()
        .filter(|message| message.request)
    {
        let RequestBody::Produce(produce) = request(&message.frame).body else {
            panic!()
        };
        let inside = message.frame.as_ptr_range();
        for partition in produce
            .topic_data
            .iter()
            .flat_map(|topic| &topic.partition_data)
        {
            let records = partition.records.as_ref().unwrap().as_ptr_range();
            assert!(inside.start < records.start && records.end <= inside.end);
        }
    }
}

fn fetch_answer(records: Vec<Bytes>) -> FetchAnswer {
    let partition = FetchedPartition {
        partition_index: 4,
        high_watermark: 9,
        records,
        ..Default::default()
    };
    let topic = FetchedTopic {
        topic: "t".into(),
        topic_id: WireUuid::from_bytes([7; 16]),
        partitions: vec![partition],
    };
    FetchAnswer {
        topics: vec![topic],
        ..Default::default()
    }
}

/// Proves that large record chunks go into the frame as they are and small ones are gathered.
#[test]
fn fetched_records_are_not_copied() {
    let large = [Bytes::from(vec![1; 5000]), Bytes::from(vec![2; 2000])];
    let records = vec![
        Bytes::from_static(&[0; 16]),
        large[0].clone(),
        Bytes::from_static(&[0; 16]),
        large[1].clone(),
    ];
    let frame = encode(
        Api::Fetch,
        12,
        1,
        &ResponseBody::Fetch(fetch_answer(records)),
    )
    .unwrap();
    let pointers: Vec<_> = frame.chunks().iter().map(|chunk| chunk.as_ptr()).collect();
    assert!(large.iter().all(|chunk| pointers.contains(&chunk.as_ptr())));
    assert_eq!(frame.chunks().len(), 5, "head, large, prefix, large, tail");

    let small = vec![Bytes::from_static(&[3; 100]); 50];
    let frame = encode(Api::Fetch, 12, 1, &ResponseBody::Fetch(fetch_answer(small))).unwrap();
    assert_eq!(frame.chunks().len(), 1);
    assert_eq!(
        fetch_answer(vec![Bytes::from_static(&[3; 100]); 50]).records_bytes(),
        5000
    );
}

/// Proves that no records are told as zero bytes, never as null.
#[test]
fn fetched_records_are_never_null() {
    for version in 4..=18 {
        let frame = joined(
            &encode(
                Api::Fetch,
                version,
                1,
                &ResponseBody::Fetch(fetch_answer(vec![])),
            )
            .unwrap(),
        );
        let body = frame.slice(if version >= 12 { 9 } else { 8 }..);
        let decoded =
            <kafka_wire::FetchResponse as kafka_wire_core::KafkaDecode>::decode_from_bytes(
                body,
                kafka_wire_core::ApiVersion::new(version),
                request::decode_limits(),
            );
        assert_eq!(
            decoded.unwrap().responses[0].partitions[0].records,
            Some(Bytes::new()),
            "version {version}"
        );
    }
}

/// Proves that an answer of another API, or one that its version cannot say, is an error and not bytes.
#[test]
fn answers_that_do_not_fit_are_errors() {
    let other = ResponseBody::ListGroups(ListGroupsResponse::default());
    assert!(matches!(
        encode(Api::Metadata, 1, 1, &other),
        Err(WireError::Answer {
            api: "Metadata",
            ..
        })
    ));
    let body = ResponseBody::Metadata(MetadataResponse::default());
    assert!(matches!(
        encode(Api::Metadata, 14, 1, &body),
        Err(WireError::Answer { .. })
    ));
}

fn any_chunks() -> impl Strategy<Value = Vec<Bytes>> {
    proptest::collection::vec(
        (any::<u8>(), 0..3000usize).prop_map(|(byte, len)| Bytes::from(vec![byte; len])),
        0..5,
    )
}

fn any_partition() -> impl Strategy<Value = FetchedPartition> {
    let aborted = proptest::collection::vec((any::<i64>(), any::<i64>()), 0..3);
    (
        (
            any::<i32>(),
            any::<i16>(),
            any::<i64>(),
            any::<i64>(),
            any::<i64>(),
            any::<i32>(),
        ),
        proptest::option::of((0..i32::MAX, 0..i64::MAX)),
        proptest::option::of((0..i32::MAX, 0..i32::MAX)),
        proptest::option::of(aborted),
        any_chunks(),
    )
        .prop_map(
            |(numbers, diverging_epoch, current_leader, aborted, records)| FetchedPartition {
                partition_index: numbers.0,
                error_code: numbers.1,
                high_watermark: numbers.2,
                last_stable_offset: numbers.3,
                log_start_offset: numbers.4,
                preferred_read_replica: numbers.5,
                diverging_epoch,
                current_leader,
                aborted_transactions: aborted.map(|all| {
                    all.into_iter()
                        .map(|(producer_id, first_offset)| {
                            let mut aborted = AbortedTransaction::default();
                            aborted.producer_id = producer_id;
                            aborted.first_offset = first_offset;
                            aborted
                        })
                        .collect()
                }),
                records,
            },
        )
}

fn any_fetch() -> impl Strategy<Value = FetchAnswer> {
    let topic = (
        "[a-z]{0,200}",
        any::<[u8; 16]>(),
        proptest::collection::vec(any_partition(), 0..4),
    )
        .prop_map(|(topic, id, partitions)| FetchedTopic {
            topic: StrBytes::from(topic),
            topic_id: WireUuid::from_bytes(id),
            partitions,
        });
    let node = (
        any::<i32>(),
        "[a-z]{1,9}",
        any::<i32>(),
        proptest::option::of("[a-z]{0,9}"),
    )
        .prop_map(|(id, host, port, rack)| {
            let mut node = NodeEndpoint::default();
            node.node_id = id;
            node.host = StrBytes::from(host);
            node.port = port;
            node.rack = rack.map(StrBytes::from);
            node
        });
    let topics = proptest::collection::vec(topic, 0..4);
    (
        any::<i32>(),
        any::<i16>(),
        any::<i32>(),
        topics,
        proptest::collection::vec(node, 0..3),
    )
        .prop_map(
            |(throttle_time_ms, error_code, session_id, topics, node_endpoints)| FetchAnswer {
                throttle_time_ms,
                error_code,
                session_id,
                topics,
                node_endpoints,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Proves that the hand-made Fetch frame has the bytes that the codec makes, at every version.
    #[test]
    fn fetch_frames_are_the_codecs(answer in any_fetch()) {
        for version in 4..=18 {
            let frame = joined(&encode(Api::Fetch, version, 5, &ResponseBody::Fetch(answer.clone())).unwrap());
            prop_assert_eq!(frame[..4].to_vec(), i32::try_from(frame.len() - 4).unwrap().to_be_bytes().to_vec());
            let body = frame.slice(if version >= 12 { 9 } else { 8 }..);
            prop_assert_eq!(body, golden::fetch_by_the_codec(&answer, version), "version {}", version);
        }
    }

    /// Proves that garbage is an error or a request, and never a panic, for every API.
    #[test]
    fn garbage_does_not_panic(
        api in 0..Api::ALL.len(), version in 0i16..19, body in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let _ = decode(raw(Api::ALL[api].key(), version, &body));
    }
}

/// Proves that the document says the table.
#[test]
fn the_document_says_the_table() {
    let document = include_str!("../../../docs/protocols/kafka-wire.md");
    let told: Vec<&str> = document
        .lines()
        .skip_while(|line| !line.starts_with("| Key |"))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .collect();
    let table = Api::ALL.iter().map(|api| {
        let ApiRange {
            min,
            max,
            advertised_min,
        } = api.range();
        let versions = if min == max {
            min.to_string()
        } else {
            format!("{min}-{max}")
        };
        let note = if advertised_min < min {
            format!(" (advertised {advertised_min}-{max})")
        } else {
            String::new()
        };
        format!("| {} | {} | {versions}{note} |", api.key(), api.name())
    });
    assert_eq!(told, table.collect::<Vec<_>>());
}
