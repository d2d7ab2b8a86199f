//! The admin address of a broker, as the rig needs it.
//!
//! Owns: one GET, the parts of `/api/v1/cluster` that conditions look at.
//! Not here: waiting (`wait`).
//! Spec: docs/protocols/admin-http.md

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A broker that is up answers at once; one that is paused never does.
const DEADLINE: Duration = Duration::from_secs(2);
const ANSWER_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// What a broker says of its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterView {
    /// The cluster's id.
    pub cluster_id: String,
    /// The ids of its brokers.
    pub brokers: Vec<i32>,
    /// The placement groups that carry partitions.
    pub groups: Vec<GroupView>,
}

/// What a broker says of a placement group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupView {
    /// Its id.
    pub group: u64,
    /// The broker that leads it, as far as this one knows.
    pub leader: Option<i64>,
    /// In which term.
    pub term: u64,
}

/// Status and body of `GET path`.
pub(crate) async fn get(address: &str, path: &str) -> Result<(u16, String)> {
    tokio::time::timeout(DEADLINE, exchange(address, path))
        .await
        .with_context(|| format!("no answer from {address}{path} within {DEADLINE:?}"))?
}

async fn exchange(address: &str, path: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    let mut bounded = stream.take(ANSWER_BYTES_MAX);
    bounded.read_to_end(&mut answer).await?;
    parse(&String::from_utf8_lossy(&answer))
}

fn parse(answer: &str) -> Result<(u16, String)> {
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .context("an answer without a head")?;
    let head = head.to_ascii_lowercase();
    if head.contains("transfer-encoding") {
        bail!("an answer in chunks, which is not read here");
    }
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .context("an answer without a status")?;
    Ok((status, body.to_owned()))
}

/// Reads the answer of `/api/v1/cluster`.
pub(crate) fn cluster_view(body: &str) -> Result<ClusterView> {
    let value: Value = serde_json::from_str(body)?;
    let list = |name: &str| {
        let list = value.get(name).and_then(Value::as_array);
        list.with_context(|| format!("no {name} in {body}"))
    };
    let mut view = ClusterView {
        cluster_id: value
            .get("cluster_id")
            .and_then(Value::as_str)
            .context("no cluster_id")?
            .to_owned(),
        brokers: Vec::new(),
        groups: Vec::new(),
    };
    for broker in list("brokers")? {
        let id = broker.get("id").and_then(Value::as_i64);
        let id = id.and_then(|id| i32::try_from(id).ok());
        view.brokers.push(id.context("a broker without an id")?);
    }
    for group in list("groups")? {
        let number = |name: &str| {
            let number = group.get(name).and_then(Value::as_u64);
            number.with_context(|| format!("no {name} in {group}"))
        };
        view.groups.push(GroupView {
            group: number("group")?,
            leader: group.get("leader").and_then(Value::as_i64),
            term: number("term")?,
        });
    }
    Ok(view)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    // Proves: an answer is taken apart, and what is none is refused.
    #[test]
    fn answers_are_read() {
        let (status, body) =
            parse("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\n{}").unwrap();
        assert_eq!((status, body.as_str()), (503, "{}"));
        assert!(parse("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").is_err());
        assert!(parse("HTTP/1.1 200").is_err());
        let view = cluster_view(
            r#"{"cluster_id":"c","brokers":[{"id":2}],"groups":[{"group":1,"leader":null,"term":3}]}"#,
        )
        .unwrap();
        assert_eq!(view.brokers, [2]);
        let group = GroupView {
            group: 1,
            leader: None,
            term: 3,
        };
        assert_eq!(view.groups, [group]);
        assert!(cluster_view("{}").is_err());
    }
}
