//! The contract between the listener and what answers requests.
//!
//! Owns: what is known about a connection, the two steps in which a request is answered.
//! Not here: sockets (`net`), answers (`api`).

use super::messages::ApiVersionsRequest;
use super::{Request, Response, api_versions_answer, is_software_name};
use crate::error::ErrorCode;
use crate::wire::messages::ApiVersionsResponse;
use async_trait::async_trait;
use futures::future::BoxFuture;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

/// What a client says it is (ApiVersions 3 and later).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientSoftware {
    /// Name, as `apache-kafka-java`.
    pub name: String,
    /// Version.
    pub version: String,
}

/// One client's connection, as long as it is open.
#[derive(Debug)]
pub struct Connection {
    /// Number of the connection, unique in this process.
    pub id: u64,
    /// Who connected.
    pub peer: SocketAddr,
    /// The address of ours that was dialled: what is advertised where nothing is configured.
    pub local: SocketAddr,
    software: OnceLock<ClientSoftware>,
}

impl Connection {
    /// A connection of which nothing more is known.
    #[must_use]
    pub fn new(id: u64, peer: SocketAddr, local: SocketAddr) -> Self {
        Self {
            id,
            peer,
            local,
            software: OnceLock::new(),
        }
    }

    /// What the client said it is.
    #[must_use]
    pub fn software(&self) -> Option<&ClientSoftware> {
        self.software.get()
    }

    /// Answers ApiVersions and remembers what the client says it is. The first word counts.
    #[must_use]
    pub fn negotiate(&self, request: &ApiVersionsRequest, version: i16) -> ApiVersionsResponse {
        if version < 3 {
            return api_versions_answer(ErrorCode::None);
        }
        let (name, version) = (
            request.client_software_name.as_str(),
            request.client_software_version.as_str(),
        );
        if !is_software_name(name) || !is_software_name(version) {
            return api_versions_answer(ErrorCode::InvalidRequest);
        }
        self.software.get_or_init(|| ClientSoftware {
            name: name.into(),
            version: version.into(),
        });
        api_versions_answer(ErrorCode::None)
    }
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.peer)
    }
}

/// A request that was started.
pub enum Answer {
    /// The answer is there.
    Now(Response),
    /// It comes later. The future runs as a task of its own, beside those of later requests of the connection, and is
    /// dropped when the connection closes: what it waits for must not depend on it.
    Later(BoxFuture<'static, Response>),
}

impl<R: Into<Response>> From<R> for Answer {
    fn from(response: R) -> Self {
        Self::Now(response.into())
    }
}

/// Answers requests.
#[async_trait]
pub trait Service: Send + Sync + 'static {
    /// Does what must happen in the order of the connection's requests (a Produce joins the proposer's queue here), and
    /// says where the answer comes from. The connection's next request is started after this returns; waiting here
    /// slows this client down, and only it.
    ///
    /// At most one Fetch of a connection is in work; `limits::CONNECTION_REQUESTS_IN_FLIGHT_MAX` of all kinds.
    async fn start(&self, connection: &Arc<Connection>, request: Request) -> Answer;
}
