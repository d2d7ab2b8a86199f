//! Requests to one partition, as several tests make them.

use super::three::Three;
use super::*;
use crate::datagroup::DataGroup;
use crate::wire::messages::fetch_request::{FetchPartition, FetchTopic};
use crate::wire::messages::fetch_response::PartitionData;
use crate::wire::messages::produce_request::{PartitionProduceData, TopicProduceData};
use crate::wire::messages::{FetchRequest, ProduceRequest};
use tidelog_model::PlacementGroupId;
use tidelog_model::batch::RecordBatch;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The replica of broker `id`.
pub(super) fn held(three: &Three, id: i32, group: PlacementGroupId) -> DataGroup {
    let router = &three.nodes[&id].parts.groups.router;
    router.data_group(group).unwrap()
}

/// Status and body of a request to the admin listener of broker `id`. A GET is sent again where the connection ends without an answer: a
/// broker that starts anew closes them.
pub(super) async fn http(
    three: &Three,
    id: i32,
    method: &str,
    path: &str,
    body: &str,
) -> (u16, String) {
    let deadline = tokio::time::Instant::now() + WITHIN;
    loop {
        match try_http(three, id, method, path, body).await {
            Ok(answer) => return answer,
            other => assert!(
                method == "GET" && tokio::time::Instant::now() < deadline,
                "{method} {path} of broker {id}: {other:?}"
            ),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The same, of a broker that may be starting, or starting over.
pub(super) async fn try_http(
    three: &Three,
    id: i32,
    method: &str,
    path: &str,
    body: &str,
) -> std::io::Result<(u16, String)> {
    let at = ("127.0.0.1", three.ports[&id][2]);
    let mut stream = tokio::net::TcpStream::connect(at).await?;
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let cut = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    let (head, text) = answer.split_once("\r\n\r\n").ok_or_else(cut)?;
    let status = head.split(' ').nth(1).ok_or_else(cut)?;
    Ok((status.parse().unwrap(), text.to_owned()))
}

/// What to fetch.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) topic: &'a str,
    pub(super) partition: i32,
    pub(super) offset: i64,
    pub(super) current_epoch: i32,
    pub(super) rack: &'a str,
    pub(super) wait_ms: i32,
}

impl<'a> Wanted<'a> {
    /// From `offset` on, without anything special.
    pub(super) const fn from(topic: &'a str, partition: i32, offset: i64) -> Self {
        Self {
            topic,
            partition,
            offset,
            current_epoch: -1,
            rack: "",
            wait_ms: 0,
        }
    }
}

/// The answer to a Fetch 12.
pub(super) async fn fetch(connection: &Connection, wanted: Wanted<'_>) -> PartitionData {
    let answer = connection.call(12..=12, deadline(), |_| {
        let mut partition = FetchPartition::default();
        partition.partition = wanted.partition;
        partition.fetch_offset = wanted.offset;
        partition.current_leader_epoch = wanted.current_epoch;
        partition.partition_max_bytes = 1 << 20;
        let mut topic = FetchTopic::default();
        topic.topic = StrBytes::from(wanted.topic);
        topic.partitions.push(partition);
        let mut request = FetchRequest::default();
        request.max_wait_ms = wanted.wait_ms;
        request.min_bytes = 1;
        request.max_bytes = 1 << 20;
        request.rack_id = StrBytes::from(wanted.rack);
        request.topics.push(topic);
        request
    });
    answer
        .await
        .unwrap()
        .responses
        .remove(0)
        .partitions
        .remove(0)
}

/// Epoch, first and end offset of each batch in an answer.
pub(super) fn batches(mut records: Bytes) -> Vec<(i32, i64, i64)> {
    let mut batches = Vec::new();
    while !records.is_empty() {
        let length = 12 + i32::from_be_bytes(records[8..12].try_into().unwrap());
        let batch = records.split_to(usize::try_from(length).unwrap());
        let batch = RecordBatch::parse(batch).unwrap();
        let header = batch.header();
        let (from, end) = (header.base_offset.get(), header.next_offset().get());
        batches.push((header.leader_epoch.get(), from, end));
    }
    batches
}

/// Error code and offset of one record, produced without idempotence.
pub(super) async fn produce_one(
    connection: &Connection,
    topic: &str,
    partition: i32,
    timeout_ms: i32,
) -> (i16, i64) {
    let answer = connection.call(9..=9, deadline(), |_| {
        let mut data = TopicProduceData::default();
        data.name = StrBytes::from(topic);
        let mut one = PartitionProduceData::default();
        one.index = partition;
        one.records = Some(batch(Codec::None, 10));
        data.partition_data.push(one);
        let mut request = ProduceRequest::default();
        request.acks = -1;
        request.timeout_ms = timeout_ms;
        request.topic_data.push(data);
        request
    });
    let answer = answer.await.unwrap();
    let one = &answer.responses[0].partition_responses[0];
    (one.error_code, one.base_offset)
}
