//! A cluster as a client sees it: brokers, topics, leaders, one connection per broker.
//!
//! Owns: bootstrap, the metadata cache and its refresh, the pool of connections.
//! Not here: when a topic is taken for unknown (`topic`), what is asked of a broker (`admin`, `producer`, `consumer`), pauses between attempts (`retry`).

mod metadata;
mod topic;

pub use metadata::{Broker, Metadata, PartitionMeta, TopicMeta};

use crate::connection::{Connection, ConnectionConfig};
use crate::error::Error;
use crate::retry::Attempts;
use kafka_wire::metadata_request::MetadataRequestTopic;
use kafka_wire::{MetadataRequest, MetadataResponse, RequestResponsePair};
use kafka_wire_core::{KafkaEncode, StrBytes};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::{Network, Random};
use tidelog_model::NodeId;
use tokio::time::{Instant, timeout};

/// A broker that has said nothing for so long, though something is awaited, may be paused or cut off.
pub(crate) const SILENCE: Duration = Duration::from_secs(1);
/// How long one broker is waited for while others can be asked the same.
const ASIDE: Duration = Duration::from_secs(2);
/// An attempt that cannot be repeated gets at least so long: unanswered it would leave open whether it was done.
const ATTEMPT_LEAST: Duration = Duration::from_secs(1);
/// Others that are asked before one is waited for to the end.
const ASIDES_MAX: usize = 3;

/// How a cluster is reached.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// `host:port` of some brokers; the first that answers tells of the others.
    pub bootstrap: Vec<String>,
    /// How connections are opened.
    pub connection: ConnectionConfig,
    /// Deadline of one request.
    pub request_timeout: Duration,
    /// Deadline of one operation with all its attempts.
    pub operation_timeout: Duration,
    /// Nothing is tried beyond this: for a program that does one thing. `None`: no such end.
    pub until: Option<Instant>,
}

impl ClusterConfig {
    /// The defaults, with one bootstrap address.
    #[must_use]
    pub fn new(bootstrap: &str) -> Self {
        Self {
            bootstrap: bootstrap
                .split(',')
                .map(|address| address.trim().to_owned())
                .collect(),
            connection: ConnectionConfig::default(),
            request_timeout: Duration::from_secs(30),
            operation_timeout: Duration::from_secs(60),
            until: None,
        }
    }
}

/// A handle to a cluster. Clones share the connections and the metadata.
#[derive(Clone)]
pub struct Cluster(Arc<Inner>);

struct Inner {
    config: ClusterConfig,
    bootstrap: Vec<(String, u16)>,
    network: Arc<dyn Network>,
    random: Arc<dyn Random>,
    slots: Mutex<BTreeMap<NodeId, Arc<Slot>>>,
    first: Slot,
    metadata: RwLock<Arc<Metadata>>,
    refreshing: tokio::sync::Mutex<()>,
}

/// One broker's connection; the lock makes those who wait share one attempt to connect.
#[derive(Default)]
struct Slot(tokio::sync::Mutex<Option<Connection>>);

impl Cluster {
    /// Checks the addresses; connects when something is asked for.
    pub fn new(
        config: ClusterConfig,
        network: Arc<dyn Network>,
        random: Arc<dyn Random>,
    ) -> Result<Self, Error> {
        let bootstrap = config
            .bootstrap
            .iter()
            .map(|address| parse_address(address))
            .collect::<Result<Vec<_>, _>>()?;
        if bootstrap.is_empty() {
            return Err(Error::Invalid("no bootstrap address is given".to_owned()));
        }
        Ok(Self(Arc::new(Inner {
            config,
            bootstrap,
            network,
            random,
            slots: Mutex::default(),
            first: Slot::default(),
            metadata: RwLock::default(),
            refreshing: tokio::sync::Mutex::default(),
        })))
    }

    /// A handle to the same cluster with connections of its own, and what is known of it so far.
    #[must_use]
    pub fn separate(&self) -> Self {
        Self(Arc::new(Inner {
            config: self.0.config.clone(),
            bootstrap: self.0.bootstrap.clone(),
            network: Arc::clone(&self.0.network),
            random: Arc::clone(&self.0.random),
            slots: Mutex::default(),
            first: Slot::default(),
            metadata: RwLock::new(self.metadata()),
            refreshing: tokio::sync::Mutex::default(),
        }))
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &ClusterConfig {
        &self.0.config
    }

    /// The source of jitter.
    #[must_use]
    pub fn random(&self) -> Arc<dyn Random> {
        Arc::clone(&self.0.random)
    }

    /// The deadline of a request that starts now.
    #[must_use]
    pub fn request_deadline(&self) -> Instant {
        self.at_most(Instant::now() + self.0.config.request_timeout)
    }

    fn at_most(&self, deadline: Instant) -> Instant {
        self.0
            .config
            .until
            .map_or(deadline, |until| deadline.min(until))
    }

    /// Attempts of one operation that starts now.
    #[must_use]
    pub fn attempts(&self) -> Attempts {
        let deadline = Instant::now() + self.0.config.operation_timeout;
        Attempts::until(self.at_most(deadline), self.random())
    }

    /// The metadata known now. Topics appear in it once [`Cluster::refresh`] has asked for them.
    #[must_use]
    pub fn metadata(&self) -> Arc<Metadata> {
        Arc::clone(&self.0.metadata.read())
    }

    /// The connection to a broker of the cluster, opened if need be.
    pub async fn node(&self, id: NodeId) -> Result<Connection, Error> {
        let Some(broker) = self.metadata().brokers.get(&id).cloned() else {
            return Err(Error::NotSent {
                address: format!("broker {id}"),
                cause: "its address is not known".to_owned(),
            });
        };
        let slot = Arc::clone(self.0.slots.lock().entry(id).or_default());
        let mut held = slot.0.lock().await;
        if let Some(connection) = held.as_ref()
            && connection.is_open()
            && connection.address() == broker.address()
        {
            return Ok(connection.clone());
        }
        let opened = Connection::open(
            &*self.0.network,
            &broker.host,
            broker.port,
            &self.0.config.connection,
        )
        .await;
        let connection = opened.map_err(|error| self.explain(error, Some(id)))?;
        *held = Some(connection.clone());
        Ok(connection)
    }

    /// Whether a broker is silent for at least `limit` though something is awaited from it, a connection that is being opened
    /// included.
    pub(crate) fn is_silent(&self, id: NodeId, limit: Duration) -> bool {
        let slot = self.0.slots.lock().get(&id).cloned();
        slot.is_some_and(|slot| match slot.0.try_lock() {
            Ok(held) => held
                .as_ref()
                .is_some_and(|held| held.is_open() && held.silent_for() >= limit),
            Err(_) => true,
        })
    }

    /// Closes the connection to a broker: what it has not answered is open, and may be sent to another one.
    pub(crate) fn leave(&self, id: NodeId, why: &str) {
        let slot = self.0.slots.lock().get(&id).cloned();
        if let Some(slot) = slot
            && let Ok(mut held) = slot.0.try_lock()
            && let Some(connection) = held.take()
        {
            connection.close(why);
        }
    }

    /// A connection to any broker: the known ones first, from a random one on, then the bootstrap addresses. Silent ones come
    /// after those that talk.
    pub async fn any(&self) -> Result<Connection, Error> {
        let mut known: Vec<NodeId> = self.metadata().brokers.keys().copied().collect();
        if !known.is_empty() {
            let count = u64::try_from(known.len()).unwrap_or(1);
            let start = usize::try_from(self.0.random.next_u64() % count).unwrap_or(0);
            known.rotate_left(start);
        }
        let is_silent = |id: &NodeId| self.is_silent(*id, SILENCE);
        let (silent, talking): (Vec<_>, Vec<_>) = known.into_iter().partition(is_silent);
        for id in talking {
            if let Ok(Ok(connection)) = timeout(ASIDE, self.node(id)).await {
                return Ok(connection);
            }
        }
        for id in silent {
            if let Ok(connection) = self.node(id).await {
                return Ok(connection);
            }
        }
        self.bootstrap().await
    }

    async fn bootstrap(&self) -> Result<Connection, Error> {
        let mut held = self.0.first.0.lock().await;
        if let Some(connection) = held.as_ref()
            && connection.is_open()
        {
            return Ok(connection.clone());
        }
        let mut last = Error::Stopped;
        for (at, (host, port)) in self.0.bootstrap.iter().enumerate() {
            let mut config = self.0.config.connection.clone();
            if at + 1 < self.0.bootstrap.len() {
                config.connect_timeout = config.connect_timeout.min(ASIDE);
            }
            match Connection::open(&*self.0.network, host, *port, &config).await {
                Ok(connection) => {
                    *held = Some(connection.clone());
                    return Ok(connection);
                }
                Err(error) => last = self.explain(error, None),
            }
        }
        Err(last)
    }

    /// Says in an error where the address comes from and what to do.
    fn explain(&self, error: Error, advertised_by: Option<NodeId>) -> Error {
        let Error::Unreachable { address, cause, .. } = error else {
            return error;
        };
        let (known_by, advice) = match advertised_by {
            Some(id) => (
                format!(" (advertised by broker {id}, bootstrap {})", self.0.config.bootstrap.join(",")),
                "If that address is right only elsewhere, set kafka.advertised on the broker to one that this machine \
                 reaches"
                    .to_owned(),
            ),
            None => (
                " (bootstrap)".to_owned(),
                "Is a broker running there? `tidelog dev` starts one; --bootstrap or TIDELOG_BOOTSTRAP says where it is"
                    .to_owned(),
            ),
        };
        Error::Unreachable {
            address,
            known_by,
            cause,
            advice,
        }
    }

    /// Asks for the brokers and for `topics` (all topics: `None`). One attempt; several callers take turns.
    pub async fn refresh(&self, topics: Option<&[&str]>) -> Result<Arc<Metadata>, Error> {
        let _turn = self.0.refreshing.lock().await;
        let response = self
            .ask_talking::<MetadataRequest>(4..=12, |_| metadata_request(topics))
            .await?;
        self.learn(&response, topics.is_none())
    }

    /// Lays an answer over what is known; `all`: to "all topics".
    fn learn(&self, response: &MetadataResponse, all: bool) -> Result<Arc<Metadata>, Error> {
        let merged = Arc::new(self.metadata().merge(response, all)?);
        *self.0.metadata.write() = Arc::clone(&merged);
        Ok(merged)
    }

    /// Nobody ever answered at the bootstrap addresses: that is told at once, not after a minute of attempts. A cluster
    /// that was there before is waited for.
    pub(crate) fn never_reached(&self, error: &Error) -> bool {
        matches!(error, Error::Unreachable { .. }) && self.metadata().brokers.is_empty()
    }

    /// One request that may be repeated, to any broker; one that does not answer for a while is left for another.
    pub(crate) async fn ask_talking<R>(
        &self,
        ours: RangeInclusive<i16>,
        build: impl Fn(i16) -> R,
    ) -> Result<R::Response, Error>
    where
        R: RequestResponsePair + KafkaEncode,
    {
        let deadline = self.request_deadline();
        let others = self.metadata().brokers.len().saturating_sub(1);
        for _ in 0..others.min(ASIDES_MAX) {
            let connection = self.any().await?;
            let call = connection.call::<R>(ours.clone(), deadline, &build);
            // The connection stays as it is: others may wait for it.
            if let Ok(answer) = timeout(ASIDE, call).await {
                return answer;
            }
        }
        let connection = self.any().await?;
        connection
            .call::<R>(ours, self.request_deadline(), &build)
            .await
    }

    /// One request to any broker, tried again until the operation's deadline. `check` says of an answer whether it is the wanted one; its
    /// second argument, whether an earlier attempt may have been done: the answer to a change may then say that it is done already.
    /// `reads`: the request changes nothing, and a broker that does not answer for a while is left for another one.
    pub(crate) async fn ask_any<R>(
        &self,
        ours: RangeInclusive<i16>,
        reads: bool,
        build: impl Fn(i16) -> R,
        check: impl Fn(&R::Response, bool) -> Result<(), Error>,
    ) -> Result<R::Response, Error>
    where
        R: RequestResponsePair + KafkaEncode,
    {
        let mut attempts = self.attempts();
        loop {
            let answer = if reads {
                self.ask_talking::<R>(ours.clone(), &build).await
            } else {
                match self.any().await {
                    Ok(connection) => {
                        connection
                            .call::<R>(ours.clone(), self.request_deadline(), &build)
                            .await
                    }
                    Err(error) => Err(error),
                }
            };
            let error = match answer {
                Ok(response) => match check(&response, attempts.may_have_happened()) {
                    Ok(()) => return Ok(response),
                    Err(error) => error,
                },
                Err(error) if self.never_reached(&error) && !attempts.may_have_happened() => {
                    return Err(error);
                }
                Err(error) => error,
            };
            let least = if reads { Duration::ZERO } else { ATTEMPT_LEAST };
            attempts.again_for(least, error).await?;
        }
    }
}

/// Asks for `topics` (all: `None`), and creates none.
fn metadata_request(topics: Option<&[&str]>) -> MetadataRequest {
    let mut request = MetadataRequest::default();
    request.topics = topics.map(|names| {
        let topic = |name: &&str| {
            let mut topic = MetadataRequestTopic::default();
            topic.name = Some(StrBytes::from(*name));
            topic
        };
        names.iter().map(topic).collect()
    });
    request.allow_auto_topic_creation = false;
    request
}

/// `host:port`, `[v6]:port`.
fn parse_address(address: &str) -> Result<(String, u16), Error> {
    let wrong = || {
        Error::Invalid(format!(
            "'{address}' is not an address: say HOST:PORT, for example 127.0.0.1:9092"
        ))
    };
    let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
    let port = port
        .parse::<u16>()
        .ok()
        .filter(|port| *port != 0)
        .ok_or_else(wrong)?;
    let host = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(host);
    if host.is_empty() || host.contains('/') {
        return Err(wrong());
    }
    Ok((host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    /// Proves which addresses are taken.
    #[test]
    fn addresses() {
        assert_eq!(parse_address("h:1").unwrap(), ("h".to_owned(), 1));
        assert_eq!(
            parse_address("[::1]:9092").unwrap(),
            ("::1".to_owned(), 9092)
        );
        for wrong in ["", "h", ":1", "h:", "h:0", "h:65536", "http://h:1"] {
            assert!(parse_address(wrong).is_err(), "{wrong}");
        }
    }
}
