//! Kafka's APIs: one answer per request, from the parts below.
//!
//! Owns: what each request means, and which Kafka error each failure is.
//! Not here: bytes (`wire`), sockets (`net`), state (`router` and below).
//! Spec: docs/protocols/kafka-wire.md
//!
//! Where to change what: one file per subject; the dispatch below is exhaustive over the table of served APIs.

mod answer_memory;
mod configs;
mod context;
mod fetch;
mod fetch_partition;
mod group_offsets;
mod groups;
mod list_offsets;
mod metadata;
mod produce;
mod producer_id;
mod topics;

use std::sync::Arc;

use crate::observe::ApiLabel;
use crate::wire::{Answer, Connection, Request, RequestBody, Response, Service};
use async_trait::async_trait;
use tokio::time::Instant;

pub use answer_memory::AnswerMemory;
pub use context::{ApiConfig, Broker};

#[async_trait]
impl Service for Broker {
    async fn start(&self, connection: &Arc<Connection>, request: Request) -> Answer {
        let started = Instant::now();
        let label = ApiLabel {
            api: request.api().name(),
        };
        let broker = self.clone();
        let connection = Arc::clone(connection);
        match request.body {
            // The order of a connection's batches is fixed here; the wait for their commit is not.
            RequestBody::Produce(body) => {
                let accepted = produce::accept(self, body, request.version).await;
                Answer::Later(Box::pin(async move {
                    let response = accepted.answer(&broker).await;
                    broker.count(&label, started, true);
                    response
                }))
            }
            // Commits of one consumer group take effect in the order in which they came.
            RequestBody::OffsetCommit(body) => {
                let committed = group_offsets::commit(self, body, request.version);
                Answer::Later(Box::pin(async move {
                    let response = committed.await.into();
                    broker.count(&label, started, true);
                    response
                }))
            }
            RequestBody::ApiVersions(body) => {
                let response = connection.negotiate(&body, request.version);
                self.count(&label, started, true);
                response.into()
            }
            body => {
                let (version, client) = (request.version, request.client_id);
                let client = client.map(|id| id.as_str().to_owned()).unwrap_or_default();
                Answer::Later(Box::pin(async move {
                    let response = broker.answer(&connection, body, version, &client).await;
                    let counted =
                        !matches!(&response, Response::Body(body) if is_empty_fetch(body));
                    broker.count(&label, started, counted);
                    response
                }))
            }
        }
    }
}

fn is_empty_fetch(body: &crate::wire::ResponseBody) -> bool {
    matches!(body, crate::wire::ResponseBody::Fetch(answer) if answer.records_bytes() == 0)
}

impl Broker {
    fn count(&self, label: &ApiLabel, started: Instant, timed: bool) {
        self.metrics.requests.get_or_create(label).inc();
        if timed {
            self.metrics
                .request_seconds
                .get_or_create(label)
                .observe(started.elapsed().as_secs_f64());
        }
    }

    async fn answer(
        &self,
        connection: &Arc<Connection>,
        body: RequestBody,
        version: i16,
        client: &str,
    ) -> Response {
        match body {
            RequestBody::Produce(body) => {
                produce::accept(self, body, version)
                    .await
                    .answer(self)
                    .await
            }
            RequestBody::ApiVersions(body) => connection.negotiate(&body, version).into(),
            RequestBody::Fetch(body) => fetch::fetch(self, body, version).await.into(),
            RequestBody::ListOffsets(body) => {
                list_offsets::list_offsets(self, body, version).await.into()
            }
            RequestBody::OffsetForLeaderEpoch(body) => {
                list_offsets::offset_for_leader_epoch(self, body).into()
            }
            RequestBody::DeleteRecords(body) => {
                list_offsets::delete_records(self, body).await.into()
            }
            RequestBody::Metadata(body) => metadata::metadata(self, connection, body, version)
                .await
                .into(),
            RequestBody::DescribeCluster(body) => {
                metadata::describe_cluster(self, connection, &body).into()
            }
            RequestBody::CreateTopics(body) => topics::create(self, body).await.into(),
            RequestBody::DeleteTopics(body) => topics::delete(self, body).await.into(),
            RequestBody::DescribeConfigs(body) => configs::describe_configs(self, body).into(),
            RequestBody::IncrementalAlterConfigs(body) => configs::alter(self, body).await.into(),
            RequestBody::InitProducerId(body) => producer_id::init(self, body).await.into(),
            RequestBody::FindCoordinator(body) => {
                groups::find_coordinator(self, connection, body, version).into()
            }
            RequestBody::JoinGroup(body) => groups::join(self, connection, body, version, client)
                .await
                .into(),
            RequestBody::SyncGroup(body) => groups::sync(self, body, version).await.into(),
            RequestBody::Heartbeat(body) => groups::heartbeat(self, &body).into(),
            RequestBody::LeaveGroup(body) => groups::leave(self, body, version).into(),
            RequestBody::OffsetCommit(body) => {
                group_offsets::commit(self, body, version).await.into()
            }
            RequestBody::OffsetFetch(body) => group_offsets::fetch_offsets(self, body, version)
                .await
                .into(),
            RequestBody::OffsetDelete(body) => {
                group_offsets::delete_offsets(self, body).await.into()
            }
            RequestBody::ListGroups(body) => groups::list(self, &body).into(),
            RequestBody::DescribeGroups(body) => groups::describe(self, body, version).into(),
            RequestBody::DeleteGroups(body) => groups::delete(self, body).await.into(),
        }
    }
}
