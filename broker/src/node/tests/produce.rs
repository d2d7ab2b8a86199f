//! Produce, and the configs that bound it.

use super::*;
use crate::wire::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use crate::wire::messages::produce_request::{PartitionProduceData, TopicProduceData};
use crate::wire::messages::produce_response::PartitionProduceResponse;
use crate::wire::messages::{IncrementalAlterConfigsRequest, ProduceRequest};

/// A quarter of the rig's log files, less what the directory of one batch takes.
const BATCH_BYTES_MAX: usize = (2 << 20) - 80;

impl Rig {
    async fn produce(
        &self,
        version: i16,
        topic: &str,
        batches: Vec<(i32, Bytes)>,
    ) -> Vec<PartitionProduceResponse> {
        let answer = self
            .connection
            .call(version..=version, deadline(), |_| {
                let mut data = TopicProduceData::default();
                data.name = StrBytes::from(topic);
                for (index, records) in batches {
                    let mut partition = PartitionProduceData::default();
                    partition.index = index;
                    partition.records = Some(records);
                    data.partition_data.push(partition);
                }
                let mut request = ProduceRequest::default();
                request.acks = -1;
                request.timeout_ms = 30_000;
                request.topic_data.push(data);
                request
            })
            .await
            .unwrap();
        answer.responses[0].partition_responses.clone()
    }

    /// Sets one config; the error's code and text.
    async fn alter(
        &self,
        topic: &str,
        name: &str,
        value: &str,
        validate_only: bool,
    ) -> (i16, String) {
        let answer = self
            .connection
            .call(1..=1, deadline(), |_| {
                let mut config = AlterableConfig::default();
                config.name = StrBytes::from(name);
                config.value = Some(StrBytes::from(value));
                let mut resource = AlterConfigsResource::default();
                resource.resource_type = 2;
                resource.resource_name = StrBytes::from(topic);
                resource.configs.push(config);
                let mut request = IncrementalAlterConfigsRequest::default();
                request.resources.push(resource);
                request.validate_only = validate_only;
                request
            })
            .await
            .unwrap();
        let result = &answer.responses[0];
        let text = result.error_message.as_ref().map(|text| text.as_str());
        (result.error_code, text.unwrap_or_default().to_owned())
    }
}

/// Proves that a topic cannot be told to take batches that no log entry holds, and that the refusal names the bound; the bound
/// itself can be set, and a batch of that size is appended.
#[tokio::test(flavor = "multi_thread")]
async fn the_largest_batch_is_what_an_entry_takes() {
    let rig = Rig::start(&[]).await;
    let (name, max) = ("max.message.bytes", BATCH_BYTES_MAX.to_string());
    let over = (BATCH_BYTES_MAX + 1).to_string();
    for value in [over.as_str(), "2147483647"] {
        let refused = rig.create("t", 1, Some((name, value))).await;
        assert_code(refused.error_code, ErrorCode::InvalidConfig);
        let text = refused.error_message.unwrap();
        assert!(text.as_str().contains(&max), "{}", text.as_str());
        assert!(
            text.as_str().contains("log.file-bytes"),
            "{}",
            text.as_str()
        );
    }
    let created = rig.create("t", 1, Some((name, &max))).await;
    assert_eq!(created.error_code, 0, "{:?}", created.error_message);
    for validate_only in [true, false] {
        let (code, text) = rig.alter("t", name, &over, validate_only).await;
        assert_code(code, ErrorCode::InvalidConfig);
        assert!(text.contains(&max), "{text}");
        let (code, text) = rig.alter("t", name, &max, validate_only).await;
        assert_eq!(code, 0, "{text}");
    }
    let empty = batch(Codec::None, 1 << 20).len() - (1 << 20);
    let largest = batch(Codec::None, BATCH_BYTES_MAX - empty);
    assert_eq!(largest.len(), BATCH_BYTES_MAX);
    let answer = rig.produce(9, "t", vec![(0, largest)]).await;
    assert_eq!(answer[0].error_code, 0, "{:?}", answer[0].error_message);
    let larger = batch(Codec::None, BATCH_BYTES_MAX - empty + 1);
    let answer = rig.produce(9, "t", vec![(0, larger)]).await;
    assert_code(answer[0].error_code, ErrorCode::MessageTooLarge);
    rig.stop().await;
}

/// Proves that batches of one request which no single entry holds together are appended all the same, each answered in its place
/// beside those that are refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_larger_than_an_entry_is_appended() {
    let rig = Rig::start(&["cluster.data-groups=1"]).await;
    rig.created("t", 8).await;
    for round in 0..2 {
        let batches = (0..10)
            .map(|index| {
                let bytes = if index == 3 { 1_500_000 } else { 900_000 };
                (index, batch(Codec::None, bytes))
            })
            .collect();
        let answer = rig.produce(9, "t", batches).await;
        for (index, partition) in (0..).zip(&answer) {
            assert_eq!(partition.index, index);
            match index {
                3 => assert_code(partition.error_code, ErrorCode::MessageTooLarge),
                8 | 9 => assert_code(partition.error_code, ErrorCode::UnknownTopicOrPartition),
                _ => {
                    assert_eq!(partition.error_code, 0, "{:?}", partition.error_message);
                    assert_eq!(partition.base_offset, round);
                }
            }
        }
    }
    rig.stop().await;
}

/// Proves KIP-110: zstd from a producer that is too old to know it is refused, since consumers of its age could not read it.
#[tokio::test(flavor = "multi_thread")]
async fn zstd_needs_its_version() {
    let rig = Rig::start(&[]).await;
    rig.created("t", 1).await;
    for (version, codec, expected) in [
        (6, Codec::Zstd, Some(ErrorCode::UnsupportedCompressionType)),
        (6, Codec::Gzip, None),
        (7, Codec::Zstd, None),
    ] {
        let answer = rig
            .produce(version, "t", vec![(0, batch(codec, 100))])
            .await;
        match expected {
            Some(code) => assert_code(answer[0].error_code, code),
            None => assert_eq!(answer[0].error_code, 0, "{codec:?} in version {version}"),
        }
    }
    rig.stop().await;
}
