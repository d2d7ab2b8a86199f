//! A small broker in the test's process: one node, topics in memory, idempotent appends, one consumer group at a time,
//! and a script of faults. Only for what a real broker cannot be made to do on demand.

#![allow(clippy::disallowed_methods, reason = "a listener of the test's own")]

mod topics;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_wire::api_versions_response::ApiVersion as ServedApi;
use kafka_wire::fetch_response::{FetchableTopicResponse, PartitionData};
use kafka_wire::join_group_response::JoinGroupResponseMember;
use kafka_wire::list_offsets_response::{ListOffsetsPartitionResponse, ListOffsetsTopicResponse};
use kafka_wire::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_wire::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use kafka_wire::offset_fetch_response::{OffsetFetchResponsePartition, OffsetFetchResponseTopic};
use kafka_wire::produce_response::{PartitionProduceResponse, TopicProduceResponse};
use kafka_wire::*;
use kafka_wire_core::{ApiVersion, DecodeLimits, Decoder, KafkaDecode, KafkaEncode, StrBytes};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use tidelog_model::batch::RecordBatch;
use tidelog_model::{LeaderEpoch, Offset};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What happens to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection closes; nothing was done.
    CloseBefore,
    /// It is done, and the connection closes without an answer.
    CloseAfter,
    /// It is done, and half of the answer is sent.
    CloseInTheMiddle,
    /// Refused with this code.
    Code(i16),
    /// Done, and never answered.
    Silence,
}

#[derive(Default)]
pub struct Partition {
    pub batches: Vec<RecordBatch>,
    pub log_start: i64,
    pub producers: BTreeMap<i64, (i32, VecDeque<(i32, i64)>)>,
}

impl Partition {
    pub fn end(&self) -> i64 {
        self.batches.last().map_or(self.log_start, |batch| {
            batch.header().base_offset.get() + i64::from(batch.header().last_offset_delta) + 1
        })
    }

    /// Values in the order of their offsets.
    pub fn values(&self) -> Vec<Vec<u8>> {
        let records = self
            .batches
            .iter()
            .flat_map(|batch| batch.records().unwrap());
        records
            .map(|record| record.unwrap().value.unwrap().to_vec())
            .collect()
    }

    fn produce(&mut self, bytes: Bytes) -> (i16, i64) {
        let Ok(batch) = RecordBatch::validate_produced(bytes, 2_000_000) else {
            return (2, -1);
        };
        let header = *batch.header();
        let offset = self.end();
        if header.producer_id.get() >= 0 {
            let (next, recent) = self.producers.entry(header.producer_id.get()).or_default();
            let sequence = header.base_sequence.get();
            if let Some((_, offset)) = recent.iter().find(|(base, _)| *base == sequence) {
                return (0, *offset);
            }
            if sequence != *next {
                return (45, -1);
            }
            *next += header.record_count;
            recent.push_back((sequence, offset));
            if recent.len() > 5 {
                recent.pop_front();
            }
        }
        self.batches
            .push(batch.with_offset_and_epoch(Offset::new(offset), LeaderEpoch::new(1)));
        (0, offset)
    }
}

#[derive(Default)]
pub struct State {
    pub topics: BTreeMap<String, Vec<Partition>>,
    /// Faults of coming requests, by API key.
    pub faults: BTreeMap<i16, VecDeque<Fault>>,
    /// Requests seen, by API key.
    pub seen: BTreeMap<i16, usize>,
    pub committed: BTreeMap<(String, String, i32), i64>,
    pub advertised_port: Option<u16>,
    first_port: u16,
    /// Brokers that share this state, beside the first, and who leads all partitions if not the first.
    pub others: BTreeMap<i32, u16>,
    pub leader: Option<i32>,
    /// Brokers that have not heard of any topic yet, and how many answers of metadata they stay so for.
    pub lagging: BTreeMap<i32, usize>,
    next_producer: i64,
    generation: i32,
    members: i32,
    assignments: BTreeMap<String, Bytes>,
    /// What the next heartbeats answer.
    pub heartbeat_code: i16,
    /// Ids and settings of topics that were created by a request.
    pub created: BTreeMap<String, topics::Created>,
    /// Partitions whose records cannot be read, and what a fetch of them says.
    pub unreadable: BTreeMap<i32, i16>,
    /// Partitions that have no leader.
    pub leaderless: BTreeSet<i32>,
    /// Partitions whose offsets are not told, and what is said instead.
    pub untold: BTreeMap<i32, i16>,
}

#[derive(Clone)]
pub struct FakeBroker {
    pub state: Arc<Mutex<State>>,
    pub address: std::net::SocketAddr,
    id: i32,
    paused: Arc<watch::Sender<bool>>,
}

impl FakeBroker {
    pub async fn start() -> Self {
        let first = Self::with(Arc::default(), 1).await;
        first.state.lock().first_port = first.address.port();
        first
    }

    /// Another broker of the same cluster, with this id.
    pub async fn start_other(&self, id: i32) -> Self {
        let other = Self::with(Arc::clone(&self.state), id).await;
        let port = other.address.port();
        self.state.lock().others.insert(id, port);
        other
    }

    /// From now on connections are accepted, as the system does, and nothing is read or answered.
    pub fn pause(&self) {
        self.paused.send_replace(true);
    }

    /// What was kept waiting is answered now.
    pub fn go_on(&self) {
        self.paused.send_replace(false);
    }

    async fn with(state: Arc<Mutex<State>>, id: i32) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let this = Self {
            state,
            address: listener.local_addr().unwrap(),
            id,
            paused: Arc::default(),
        };
        let broker = this.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let broker = broker.clone();
                tokio::spawn(async move {
                    let _ = broker.serve(stream).await;
                });
            }
        });
        this
    }

    pub fn topic(&self, name: &str, partitions: usize) {
        let partitions = (0..partitions).map(|_| Partition::default()).collect();
        self.state.lock().topics.insert(name.to_owned(), partitions);
    }

    pub fn fault(&self, api: i16, faults: &[Fault]) {
        self.state
            .lock()
            .faults
            .entry(api)
            .or_default()
            .extend(faults);
    }

    pub fn seen(&self, api: i16) -> usize {
        self.state.lock().seen.get(&api).copied().unwrap_or(0)
    }

    async fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut paused = self.paused.subscribe();
        loop {
            let length = stream.read_i32().await?;
            let _ = paused.wait_for(|paused| !paused).await;
            let mut frame = vec![0; usize::try_from(length).unwrap()];
            stream.read_exact(&mut frame).await?;
            let frame = Bytes::from(frame);
            let api = (&frame[0..2]).get_i16();
            let fault = {
                let mut state = self.state.lock();
                *state.seen.entry(api).or_default() += 1;
                state.faults.get_mut(&api).and_then(VecDeque::pop_front)
            };
            if fault == Some(Fault::CloseBefore) {
                return Ok(());
            }
            let code = match fault {
                Some(Fault::Code(code)) => code,
                _ => 0,
            };
            let answer = self.handle(frame, code).await;
            match fault {
                Some(Fault::CloseAfter) => return Ok(()),
                Some(Fault::CloseInTheMiddle) => {
                    stream.write_all(&answer[..answer.len() / 2]).await?;
                    return Ok(());
                }
                Some(Fault::Silence) => {}
                _ => stream.write_all(&answer).await?,
            }
        }
    }

    async fn handle(&self, frame: Bytes, code: i16) -> Bytes {
        let version = (&frame[2..4]).get_i16();
        match (&frame[0..2]).get_i16() {
            0 => reply::<ProduceRequest>(frame, version, |request| self.produce(request, code)),
            1 => {
                let empty = self.is_empty_fetch(&frame, version);
                if empty {
                    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                }
                reply::<FetchRequest>(frame, version, |request| self.fetch(request, code))
            }
            2 => reply::<ListOffsetsRequest>(frame, version, |request| {
                self.list_offsets(request, code)
            }),
            3 => reply::<MetadataRequest>(frame, version, |request| self.metadata(request)),
            8 => reply::<OffsetCommitRequest>(frame, version, |request| self.commit(request, code)),
            9 => reply::<OffsetFetchRequest>(frame, version, |request| self.offset_fetch(request)),
            10 => reply::<FindCoordinatorRequest>(frame, version, |_| {
                let mut response = FindCoordinatorResponse::default();
                response.error_code = code;
                response.node_id = 1;
                response.host = StrBytes::from("127.0.0.1");
                response.port = i32::from(self.address.port());
                response
            }),
            11 => reply::<JoinGroupRequest>(frame, version, |request| self.join(request, code)),
            12 => reply::<HeartbeatRequest>(frame, version, |_| {
                let mut response = HeartbeatResponse::default();
                response.error_code = std::mem::take(&mut self.state.lock().heartbeat_code);
                response
            }),
            13 => reply::<LeaveGroupRequest>(frame, version, |_| LeaveGroupResponse::default()),
            14 => reply::<SyncGroupRequest>(frame, version, |request| self.sync(request, code)),
            19 => {
                reply::<CreateTopicsRequest>(frame, version, |request| self.create(request, code))
            }
            20 => {
                reply::<DeleteTopicsRequest>(frame, version, |request| self.delete(request, code))
            }
            32 => reply::<DescribeConfigsRequest>(frame, version, |request| self.configs(request)),
            18 => reply::<ApiVersionsRequest>(frame, version, |_| versions()),
            22 => reply::<InitProducerIdRequest>(frame, version, |_| {
                let mut state = self.state.lock();
                state.next_producer += 1;
                let mut response = InitProducerIdResponse::default();
                response.error_code = code;
                response.producer_id = state.next_producer;
                response
            }),
            other => panic!("the fake broker does not know API {other}"),
        }
    }

    fn produce(&self, request: ProduceRequest, code: i16) -> ProduceResponse {
        let mut state = self.state.lock();
        let mut response = ProduceResponse::default();
        for topic in request.topic_data {
            let mut answer = TopicProduceResponse::default();
            answer.name = topic.name.clone();
            for data in topic.partition_data {
                let mut partition = PartitionProduceResponse::default();
                partition.index = data.index;
                let log = state
                    .topics
                    .get_mut(topic.name.as_str())
                    .and_then(|t| t.get_mut(usize::try_from(data.index).unwrap()));
                (partition.error_code, partition.base_offset) = match (code, log) {
                    (0, Some(log)) => log.produce(data.records.unwrap()),
                    (0, None) => (3, -1),
                    (code, _) => (code, -1),
                };
                answer.partition_responses.push(partition);
            }
            response.responses.push(answer);
        }
        response
    }

    fn is_empty_fetch(&self, frame: &Bytes, version: i16) -> bool {
        let request = decode::<FetchRequest>(frame.clone(), version).1;
        let response = self.fetch(request, 0);
        response
            .responses
            .iter()
            .flat_map(|topic| &topic.partitions)
            .all(|p| p.error_code == 0 && p.records.as_ref().is_none_or(Bytes::is_empty))
    }

    fn fetch(&self, request: FetchRequest, code: i16) -> FetchResponse {
        let state = self.state.lock();
        let mut response = FetchResponse::default();
        for topic in request.topics {
            let mut answer = FetchableTopicResponse::default();
            answer.topic = topic.topic.clone();
            for asked in topic.partitions {
                let mut data = PartitionData::default();
                data.partition_index = asked.partition;
                let code = state
                    .unreadable
                    .get(&asked.partition)
                    .copied()
                    .unwrap_or(code);
                data.error_code = code;
                if let Some(log) = state
                    .topics
                    .get(topic.topic.as_str())
                    .and_then(|t| t.get(usize::try_from(asked.partition).unwrap()))
                {
                    data.high_watermark = log.end();
                    data.last_stable_offset = log.end();
                    data.log_start_offset = log.log_start;
                    if asked.fetch_offset < log.log_start || asked.fetch_offset > log.end() {
                        data.error_code = 1;
                    } else if code == 0 {
                        let mut bytes = BytesMut::new();
                        for batch in &log.batches {
                            let header = batch.header();
                            if header.base_offset.get() + i64::from(header.last_offset_delta)
                                >= asked.fetch_offset
                            {
                                bytes.extend_from_slice(batch.bytes());
                                break;
                            }
                        }
                        data.records = Some(bytes.freeze());
                    }
                } else {
                    data.error_code = 3;
                }
                answer.partitions.push(data);
            }
            response.responses.push(answer);
        }
        response
    }

    fn list_offsets(&self, request: ListOffsetsRequest, code: i16) -> ListOffsetsResponse {
        let state = self.state.lock();
        let mut response = ListOffsetsResponse::default();
        for topic in request.topics {
            let mut answer = ListOffsetsTopicResponse::default();
            answer.name = topic.name.clone();
            for asked in topic.partitions {
                let log = &state.topics[topic.name.as_str()]
                    [usize::try_from(asked.partition_index).unwrap()];
                let mut partition = ListOffsetsPartitionResponse::default();
                partition.partition_index = asked.partition_index;
                let untold = state.untold.get(&asked.partition_index);
                partition.error_code = untold.copied().unwrap_or(code);
                partition.offset = match asked.timestamp {
                    -2 => log.log_start,
                    -1 => log.end(),
                    _ => -1,
                };
                answer.partitions.push(partition);
            }
            response.topics.push(answer);
        }
        response
    }

    fn metadata(&self, request: MetadataRequest) -> MetadataResponse {
        let mut state = self.state.lock();
        let left = state.lagging.get_mut(&self.id);
        let lags = left.is_some_and(|left| {
            let lags = *left > 0;
            *left = left.saturating_sub(1);
            lags
        });
        let mut broker = MetadataResponseBroker::default();
        broker.node_id = 1;
        broker.host = StrBytes::from("127.0.0.1");
        broker.port = i32::from(state.advertised_port.unwrap_or(state.first_port));
        let mut response = MetadataResponse::default();
        response.brokers = vec![broker];
        for (id, port) in &state.others {
            let mut other = MetadataResponseBroker::default();
            other.node_id = *id;
            other.host = StrBytes::from("127.0.0.1");
            other.port = i32::from(*port);
            response.brokers.push(other);
        }
        response.controller_id = 1;
        let names: Vec<String> = match request.topics {
            Some(topics) => topics
                .into_iter()
                .filter_map(|topic| topic.name)
                .map(|name| name.to_string())
                .collect(),
            None if lags => Vec::new(),
            None => state.topics.keys().cloned().collect(),
        };
        for name in names {
            let mut topic = MetadataResponseTopic::default();
            topic.name = Some(StrBytes::from(name.as_str()));
            match state.topics.get(&name).filter(|_| !lags) {
                None => topic.error_code = 3,
                Some(partitions) => {
                    let created = state.created.get(&name);
                    topic.topic_id = created.map(|topic| topic.id).unwrap_or_default();
                    for index in 0..partitions.len() {
                        let mut partition = MetadataResponsePartition::default();
                        partition.partition_index = i32::try_from(index).unwrap();
                        let leads = !state.leaderless.contains(&partition.partition_index);
                        partition.leader_id = if leads { state.leader.unwrap_or(1) } else { -1 };
                        partition.leader_epoch = 1;
                        topic.partitions.push(partition);
                    }
                }
            }
            response.topics.push(topic);
        }
        response
    }

    fn join(&self, request: JoinGroupRequest, code: i16) -> JoinGroupResponse {
        let mut state = self.state.lock();
        let mut response = JoinGroupResponse::default();
        response.protocol_name = Some(request.protocols[0].name.clone());
        if request.member_id.is_empty() {
            state.members += 1;
            response.error_code = 79;
            response.member_id = StrBytes::from(format!("member-{}", state.members));
            return response;
        }
        response.error_code = code;
        state.generation += 1;
        response.generation_id = state.generation;
        response.member_id = request.member_id.clone();
        response.leader = request.member_id.clone();
        let mut member = JoinGroupResponseMember::default();
        member.member_id = request.member_id;
        member.metadata = request.protocols[0].metadata.clone();
        response.members = vec![member];
        response
    }

    fn sync(&self, request: SyncGroupRequest, code: i16) -> SyncGroupResponse {
        let mut state = self.state.lock();
        for assignment in request.assignments {
            state
                .assignments
                .insert(assignment.member_id.to_string(), assignment.assignment);
        }
        let mut response = SyncGroupResponse::default();
        response.error_code = code;
        response.assignment = state
            .assignments
            .get(request.member_id.as_str())
            .cloned()
            .unwrap_or_default();
        response
    }

    fn commit(&self, request: OffsetCommitRequest, code: i16) -> OffsetCommitResponse {
        let mut state = self.state.lock();
        let current = request.generation_id_or_member_epoch == state.generation;
        let mut response = OffsetCommitResponse::default();
        for topic in request.topics {
            let mut answer = OffsetCommitResponseTopic::default();
            answer.name = topic.name.clone();
            for asked in topic.partitions {
                let mut partition = OffsetCommitResponsePartition::default();
                partition.partition_index = asked.partition_index;
                partition.error_code = if current { code } else { 22 };
                if partition.error_code == 0 {
                    let key = (
                        request.group_id.to_string(),
                        topic.name.to_string(),
                        asked.partition_index,
                    );
                    state.committed.insert(key, asked.committed_offset);
                }
                answer.partitions.push(partition);
            }
            response.topics.push(answer);
        }
        response
    }

    fn offset_fetch(&self, request: OffsetFetchRequest) -> OffsetFetchResponse {
        let state = self.state.lock();
        let mut response = OffsetFetchResponse::default();
        for topic in request.topics.unwrap_or_default() {
            let mut answer = OffsetFetchResponseTopic::default();
            answer.name = topic.name.clone();
            for index in topic.partition_indexes {
                let mut partition = OffsetFetchResponsePartition::default();
                partition.partition_index = index;
                let key = (request.group_id.to_string(), topic.name.to_string(), index);
                partition.committed_offset = state.committed.get(&key).copied().unwrap_or(-1);
                answer.partitions.push(partition);
            }
            response.topics.push(answer);
        }
        response
    }
}

fn versions() -> ApiVersionsResponse {
    let mut response = ApiVersionsResponse::default();
    for (key, min, max) in [
        (0, 3, 11),
        (1, 4, 12),
        (2, 1, 7),
        (3, 0, 12),
        (8, 2, 8),
        (9, 1, 7),
        (10, 0, 3),
        (11, 0, 7),
        (12, 0, 4),
        (13, 0, 4),
        (14, 0, 5),
        (18, 0, 3),
        (19, 2, 7),
        (20, 1, 6),
        (32, 1, 4),
        (22, 0, 4),
    ] {
        let mut api = ServedApi::default();
        (api.api_key, api.min_version, api.max_version) = (key, min, max);
        response.api_keys.push(api);
    }
    response
}

fn decode<R: KafkaRequest>(frame: Bytes, version: i16) -> (i32, R) {
    let mut decoder = Decoder::new(frame, DecodeLimits::default()).unwrap();
    let version = ApiVersion::new(version);
    let header = RequestHeader::decode(
        &mut decoder,
        ApiVersion::new(request_header_version(R::is_flexible(version))),
    )
    .unwrap();
    let request = R::decode(&mut decoder, version).unwrap();
    decoder.finish().unwrap();
    (header.correlation_id, request)
}

fn reply<R: RequestResponsePair>(
    frame: Bytes,
    version: i16,
    handle: impl FnOnce(R) -> R::Response,
) -> Bytes {
    let (correlation, request) = decode::<R>(frame, version);
    let response = handle(request);
    let mut body = BytesMut::new();
    body.put_i32(correlation);
    if response_header_version_for::<R>(ApiVersion::new(version)).unwrap() >= 1 {
        body.put_u8(0);
    }
    response
        .encode_into(&mut body, ApiVersion::new(version))
        .unwrap();
    let mut out = BytesMut::new();
    out.put_i32(i32::try_from(body.len()).unwrap());
    out.extend_from_slice(&body);
    out.freeze()
}
