//! The broker's admin address: what Kafka has no words for.
//!
//! Owns: requests over HTTP/1.1, their errors, the JSON shapes of tier and archive.
//! Not here: the server side.
//! Spec: `docs/guides/cli.md` (shapes).

use crate::limits::ADMIN_RESPONSE_BYTES_MAX;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::Network;
use tokio::time::Instant;
use url::Url;

/// Per partition: where the log begins, what is in the store, what is local.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct TierStatus {
    /// In the order of topic and partition.
    pub partitions: Vec<TierPartition>,
    /// Partitions of which nothing is known now, in the same order.
    #[serde(default)]
    pub unanswered: Vec<TierUnanswered>,
    /// Partitions that a flush has left out, since most of their copies are gone with their disks: nobody leads them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
}

/// A partition that exists and that nobody has told of.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct TierUnanswered {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// Its placement group.
    pub group: u32,
    /// The broker that leads it, as far as that is known.
    pub leader: Option<i32>,
    /// Why nothing is known, for people.
    pub why: String,
}

/// One partition's part.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct TierPartition {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// Its placement group.
    pub group: u32,
    /// The broker that leads it.
    pub leader: Option<i32>,
    /// First offset still there.
    pub log_start: i64,
    /// First offset not yet in a committed segment of the store.
    pub tiered_until: i64,
    /// Where the records that may be read end.
    pub high_watermark: i64,
    /// First offset on the local disk.
    pub local_start: i64,
    /// Bytes on the local disk.
    pub local_bytes: u64,
    /// Whose disk that is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_broker: Option<i32>,
    /// Bytes in the store.
    pub remote_bytes: u64,
}

/// The tables of the archive.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct ArchiveStatus {
    /// In the order of their topics.
    pub tables: Vec<ArchiveTable>,
    /// As in [`TierStatus`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
}

/// One table.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct ArchiveTable {
    /// The topic.
    pub topic: String,
    /// Its id.
    pub topic_id: String,
    /// The table's root in the store.
    pub location: String,
    /// Its newest metadata file; readers that take a file take this one.
    pub metadata_location: Option<String>,
    /// Its newest snapshot.
    pub snapshot_id: Option<i64>,
    /// Rows of that snapshot.
    pub rows: u64,
    /// Progress.
    pub partitions: Vec<ArchivePartition>,
}

/// How far one partition is archived.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct ArchivePartition {
    /// The partition.
    pub partition: i32,
    /// First offset not in the table.
    pub archived_until: i64,
    /// First offset not in the store.
    pub tiered_until: i64,
}

/// Who is in the cluster, and who holds and leads what.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Members {
    /// The cluster.
    pub cluster_id: String,
    /// The broker that leads metadata.
    pub metadata_leader: Option<i32>,
    /// How old it is what is said of who lives: the asked broker has heard no leader of metadata for so long. `None`: it is current.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub liveness_age_ms: Option<u64>,
    /// Its members.
    pub brokers: Vec<MemberBroker>,
    /// Brokers that ask to be taken in.
    pub waiting: Vec<WaitingBroker>,
    /// All placement groups; 0 is metadata.
    pub groups: Vec<MemberGroup>,
}

/// One member.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct MemberBroker {
    /// Its id.
    pub id: i32,
    /// Its zone.
    pub zone: String,
    /// Where other brokers reach it.
    pub peer: String,
    /// Its Raft node: another disk, another number.
    pub raft_node: u64,
    /// It was heard lately.
    pub live: bool,
    /// It has come since it was taken in.
    #[serde(default = "yes")]
    pub registered: bool,
    /// It is being emptied.
    pub draining: bool,
    /// Replicas that it holds or is getting.
    pub replicas: usize,
    /// Groups that it leads.
    pub leads: usize,
}

const fn yes() -> bool {
    true
}

/// A broker that asks to be taken in.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct WaitingBroker {
    /// Its id.
    pub id: i32,
    /// Its zone.
    pub zone: String,
    /// Where it says that others reach it.
    pub peer: String,
    /// Its Raft node.
    pub raft_node: u64,
    /// A member has this id: adding this one replaces it.
    pub replaces: bool,
    /// It was the member, and found its disk damaged: it is taken in anew by itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub damaged: bool,
    /// Why it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// It is damaged and serves all but these groups, the first of many. Absent: it serves nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withheld: Option<Vec<u32>>,
}

/// One placement group.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct MemberGroup {
    /// The group.
    pub group: u32,
    /// The brokers that hold its replicas.
    pub replicas: Vec<i32>,
    /// Where they are going, while they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Vec<i32>>,
    /// The broker that leads it.
    pub leader: Option<i32>,
    /// Its term.
    pub term: Option<u64>,
    /// The leader that an operator asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred: Option<i32>,
    /// Partitions that nobody can append to or read, since the disks of a majority of the replicas are gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<Vec<String>>,
    /// Brokers with a copy of offsets of consumer groups, which keep a lost group without partitions from being replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offsets_at: Option<Vec<i32>>,
}

#[derive(Serialize)]
struct FlushBody<'a> {
    topic: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trim_local: Option<bool>,
    timeout_ms: u64,
}

#[derive(Deserialize)]
struct ErrorBody {
    error: ErrorDetail,
}

#[derive(Deserialize)]
struct ErrorDetail {
    code: String,
    message: String,
}

/// Why the admin address did not do what was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AdminError {
    /// The URL cannot be used.
    #[error(
        "'{url}' is no admin address: {cause}. Say http://HOST:PORT, for example http://127.0.0.1:9640"
    )]
    BadUrl {
        /// What was given.
        url: String,
        /// What is wrong with it.
        cause: String,
    },
    /// No connection. Did not happen.
    #[error(
        "cannot reach the admin address {url}: {cause}. Is a broker running there? --admin-url or TIDELOG_ADMIN_URL says where it is"
    )]
    Unreachable {
        /// The address.
        url: String,
        /// The system's words.
        cause: String,
    },
    /// No (whole) answer. May have happened.
    #[error("no answer from {url}: {cause}. What was asked may still be done")]
    NoAnswer {
        /// The address.
        url: String,
        /// Why.
        cause: String,
    },
    /// The broker refused or failed; it says why.
    #[error("{message} ({code})")]
    Refused {
        /// A stable word, for example `unknown_topic`, `timeout`, `store_unavailable`.
        code: String,
        /// For people.
        message: String,
    },
    /// Not the answer of a Tidelog broker.
    #[error("{url} does not answer as a Tidelog broker does: {cause}")]
    Strange {
        /// The address.
        url: String,
        /// What came.
        cause: String,
    },
}

/// A client of one admin address. Opens a connection per request.
pub struct AdminClient {
    url: Url,
    network: Arc<dyn Network>,
    until: Option<Instant>,
}

impl AdminClient {
    /// Checks the URL.
    pub fn new(url: &str, network: Arc<dyn Network>) -> Result<Self, AdminError> {
        let bad = |cause: String| AdminError::BadUrl {
            url: url.to_owned(),
            cause,
        };
        let parsed = Url::parse(url).map_err(|error| bad(error.to_string()))?;
        if parsed.scheme() != "http" {
            return Err(bad(format!("the scheme is '{}'", parsed.scheme())));
        }
        if parsed.host_str().is_none_or(str::is_empty) {
            return Err(bad("it has no host".to_owned()));
        }
        Ok(Self {
            url: parsed,
            network,
            until: None,
        })
    }

    /// The same, which ends every request by then.
    #[must_use]
    pub fn until(mut self, deadline: Instant) -> Self {
        self.until = Some(deadline);
        self
    }

    /// What is where.
    pub async fn tier_status(&self, topic: Option<&str>) -> Result<TierStatus, AdminError> {
        self.get("/api/v1/tier", topic).await
    }

    /// Moves what is committed to the store; with `trim_local` drops it from the local disks.
    pub async fn tier_flush(
        &self,
        topic: Option<&str>,
        trim_local: bool,
        timeout: Duration,
    ) -> Result<TierStatus, AdminError> {
        self.flush("/api/v1/tier/flush", topic, Some(trim_local), timeout)
            .await
    }

    /// Who is in the cluster, and who holds and leads what.
    pub async fn members(&self) -> Result<Members, AdminError> {
        self.get("/api/v1/members", None).await
    }

    /// Takes in a broker that waits; with `force` also in place of one that lives. Refused where data may be lost with the one it replaces.
    pub async fn add_broker(&self, broker: i32, force: bool) -> Result<Members, AdminError> {
        let body = serde_json::json!({"broker": broker, "force": force});
        self.post("/api/v1/members/add", &body).await
    }

    /// The same, whatever is lost with the one it replaces.
    pub async fn add_broker_giving_up_data(
        &self,
        broker: i32,
        force: bool,
    ) -> Result<Members, AdminError> {
        let body = serde_json::json!({"broker": broker, "force": force, "give_up_data": true});
        self.post("/api/v1/members/add", &body).await
    }

    /// Begins to drain a broker, or with `cancel` keeps it. Goes on in the background.
    pub async fn decommission(&self, broker: i32, cancel: bool) -> Result<Members, AdminError> {
        let body = serde_json::json!({"broker": broker, "cancel": cancel});
        self.post("/api/v1/members/decommission", &body).await
    }

    /// Asks for a leader.
    pub async fn transfer_leader(&self, group: u32, broker: i32) -> Result<Members, AdminError> {
        let body = serde_json::json!({"group": group, "broker": broker});
        self.post("/api/v1/leaders/transfer", &body).await
    }

    /// Takes all wishes for leaders back.
    pub async fn balance_leaders(&self) -> Result<Members, AdminError> {
        self.post("/api/v1/leaders/balance", &serde_json::json!({}))
            .await
    }

    /// The tables.
    pub async fn archive_status(&self, topic: Option<&str>) -> Result<ArchiveStatus, AdminError> {
        self.get("/api/v1/archive", topic).await
    }

    /// Moves what is committed to the store and into the tables.
    pub async fn archive_flush(
        &self,
        topic: Option<&str>,
        timeout: Duration,
    ) -> Result<ArchiveStatus, AdminError> {
        self.flush("/api/v1/archive/flush", topic, None, timeout)
            .await
    }

    async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        topic: Option<&str>,
    ) -> Result<T, AdminError> {
        let mut url = self.at(path);
        if let Some(topic) = topic {
            url.query_pairs_mut().append_pair("topic", topic);
        }
        self.request(Method::GET, &url, Bytes::new(), Duration::from_secs(30))
            .await
    }

    async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &serde_json::Value,
    ) -> Result<T, AdminError> {
        let url = self.at(path);
        let body = Bytes::from(body.to_string());
        // Longer than a change looks for a leader.
        self.request(Method::POST, &url, body, Duration::from_secs(30))
            .await
    }

    async fn flush<T: DeserializeOwned>(
        &self,
        path: &str,
        topic: Option<&str>,
        trim_local: Option<bool>,
        timeout: Duration,
    ) -> Result<T, AdminError> {
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let url = self.at(path);
        let body = serde_json::to_vec(&FlushBody {
            topic,
            trim_local,
            timeout_ms,
        })
        .map_err(|error| AdminError::Strange {
            url: url.to_string(),
            cause: error.to_string(),
        })?;
        // The broker ends at its timeout and says so; ours is there for one that does not.
        self.request(
            Method::POST,
            &url,
            Bytes::from(body),
            timeout + Duration::from_secs(2),
        )
        .await
    }

    fn at(&self, path: &str) -> Url {
        let mut url = self.url.clone();
        url.set_path(&format!("{}{path}", self.url.path().trim_end_matches('/')));
        url.set_query(None);
        url
    }

    async fn request<T: DeserializeOwned>(
        &self,
        method: Method,
        url: &Url,
        body: Bytes,
        timeout: Duration,
    ) -> Result<T, AdminError> {
        let left = self
            .until
            .map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = left.map_or(timeout, |left| left.min(timeout));
        let deadline = Instant::now() + timeout;
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let port = url.port_or_known_default().unwrap_or(80);
        let unreachable = |cause: String| AdminError::Unreachable {
            url: self.url.to_string(),
            cause,
        };
        let connect_within = timeout.min(Duration::from_secs(10));
        let connect = tokio::time::timeout(connect_within, self.network.connect(host, port));
        let stream = connect
            .await
            .map_err(|_| unreachable(format!("no connection within {connect_within:.1?}")))?
            .map_err(|error| unreachable(error.to_string()))?;
        let no_answer = |cause: String| AdminError::NoAnswer {
            url: self.url.to_string(),
            cause,
        };
        match tokio::time::timeout_at(deadline, exchange(stream, method, url, body)).await {
            Err(_) => Err(no_answer(format!("nothing within {timeout:.1?}"))),
            Ok(Err(cause)) => Err(no_answer(cause)),
            Ok(Ok((status, body))) => self.understand(status, &body),
        }
    }

    fn understand<T: DeserializeOwned>(
        &self,
        status: StatusCode,
        body: &[u8],
    ) -> Result<T, AdminError> {
        let strange = |cause: String| AdminError::Strange {
            url: self.url.to_string(),
            cause,
        };
        if status.is_success() {
            return serde_json::from_slice(body).map_err(|error| strange(error.to_string()));
        }
        match serde_json::from_slice::<ErrorBody>(body) {
            Ok(ErrorBody { error }) => Err(AdminError::Refused {
                code: error.code,
                message: error.message,
            }),
            Err(_) => {
                let start: String = String::from_utf8_lossy(body).chars().take(200).collect();
                Err(strange(format!("status {status}, '{start}'")))
            }
        }
    }
}

async fn exchange(
    stream: tidelog_env::BoxStream,
    method: Method,
    url: &Url,
    body: Bytes,
) -> Result<(StatusCode, Bytes), String> {
    let text = |error: hyper::Error| error.to_string();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(text)?;
    let target = &url[url::Position::BeforePath..url::Position::AfterQuery];
    let request = Request::builder()
        .method(method)
        .uri(target)
        .header(
            "host",
            &url[url::Position::BeforeHost..url::Position::AfterPort],
        )
        .header("content-type", "application/json")
        .header("accept", "application/json")
        .header("user-agent", concat!("tidelog/", env!("CARGO_PKG_VERSION")))
        .body(Full::new(body))
        .map_err(|error| error.to_string())?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(text)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ADMIN_RESPONSE_BYTES_MAX)
            .collect()
            .await;
        Ok((status, body.map_err(|error| error.to_string())?.to_bytes()))
    };
    tokio::pin!(connection);
    tokio::pin!(answer);
    tokio::select! {
        biased;
        answer = &mut answer => answer,
        ended = &mut connection => match ended {
            // The connection's work is done; the answer is complete or will say why not.
            Ok(()) => answer.await,
            Err(error) => Err(error.to_string()),
        },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use tidelog_env::TcpNetwork;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn answer(status: &str, body: &str) -> String {
        format!(
            "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    }

    async fn serve(answer: String) -> (AdminClient, tokio::task::JoinHandle<String>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let served = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            let mut piece = [0; 4096];
            loop {
                let read = stream.read(&mut piece).await.unwrap();
                request.extend_from_slice(&piece[..read]);
                let text = String::from_utf8_lossy(&request);
                let whole = text.split_once("\r\n\r\n").is_some_and(|(head, body)| {
                    let length = head
                        .lines()
                        .find_map(|line| line.strip_prefix("content-length: "))
                        .map_or(0, |n| n.parse().unwrap());
                    body.len() >= length
                });
                if whole || read == 0 {
                    break;
                }
            }
            stream.write_all(answer.as_bytes()).await.unwrap();
            String::from_utf8_lossy(&request).into_owned()
        });
        (
            AdminClient::new(&url, TcpNetwork::shared()).unwrap(),
            served,
        )
    }

    /// Proves the request line (topic escaped) and the shape of the answer.
    #[tokio::test]
    async fn tier_status_is_read() {
        let body = r#"{"partitions":[{"topic":"a","partition":0,"group":1,"leader":1,"log_start":0,"tiered_until":5,"high_watermark":9,"local_start":5,"local_bytes":10,"remote_bytes":20,"later":"field"}]}"#;
        let (client, served) = serve(answer("200 OK", body)).await;
        let status = client.tier_status(Some("a b&c")).await.unwrap();
        assert_eq!(status.partitions[0].tiered_until, 5);
        assert!(
            served
                .await
                .unwrap()
                .starts_with("GET /api/v1/tier?topic=a+b%26c HTTP/1.1\r\n")
        );
    }

    /// Proves what a flush sends, and that the broker's error is given back with its code.
    #[tokio::test]
    async fn flush_error_is_given_back() {
        let body = r#"{"error":{"code":"timeout","message":"the store is slow"}}"#;
        let (client, served) = serve(answer("504 Gateway Timeout", body)).await;
        let error = client
            .tier_flush(None, true, Duration::from_secs(3))
            .await
            .unwrap_err();
        assert!(
            matches!(&error, AdminError::Refused { code, .. } if code == "timeout"),
            "{error:?}"
        );
        let request = served.await.unwrap();
        assert!(
            request.starts_with("POST /api/v1/tier/flush HTTP/1.1"),
            "{request}"
        );
        assert!(
            request.ends_with(r#"{"topic":null,"trim_local":true,"timeout_ms":3000}"#),
            "{request}"
        );
    }

    /// Proves the three other ends: nobody listens, a broken answer, not our broker.
    #[tokio::test]
    async fn other_ends() {
        let (client, _served) =
            serve("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{".to_owned()).await;
        let error = client.archive_status(None).await.unwrap_err();
        assert!(matches!(error, AdminError::NoAnswer { .. }), "{error:?}");
        let (client, _served) = serve(answer("404 Not Found", "nope")).await;
        let error = client.archive_status(None).await.unwrap_err();
        assert!(error.to_string().contains("nope"), "{error}");
        let client = AdminClient::new("http://127.0.0.1:1", TcpNetwork::shared()).unwrap();
        assert!(matches!(
            client.tier_status(None).await.unwrap_err(),
            AdminError::Unreachable { .. }
        ));
        for bad in ["", "127.0.0.1:9640", "https://h:1", "ftp://h"] {
            assert!(
                matches!(
                    AdminClient::new(bad, TcpNetwork::shared()),
                    Err(AdminError::BadUrl { .. })
                ),
                "{bad}"
            );
        }
    }
}
