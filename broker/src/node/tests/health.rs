//! Health over HTTP, of a broker whose store is a directory.

use super::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

impl Rig {
    /// Status and body of a GET of the admin listener.
    pub(super) async fn get(&self, path: &str) -> (u16, String) {
        self.ask(&format!("GET {path}"), "").await
    }

    /// The same of any request: method and path, further headers with their ends of lines, an empty line, and the body.
    async fn ask(&self, what: &str, rest: &str) -> (u16, String) {
        let at = self.node.addresses().admin;
        let mut stream = tokio::net::TcpStream::connect(at).await.unwrap();
        let rest = if rest.is_empty() { "\r\n" } else { rest };
        let request = format!("{what} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n{rest}");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        (status, body.to_owned())
    }
}

/// Proves that a broker with a good store becomes ready without warnings, and that the store has its gauge.
#[tokio::test(flavor = "multi_thread")]
async fn a_good_store_makes_the_broker_ready() {
    let rig = Rig::start(&[]).await;
    let ready = async {
        loop {
            let (status, body) = rig.get("/readyz").await;
            if status == 200 {
                return body;
            }
            tokio::task::yield_now().await;
        }
    };
    let body = tokio::time::timeout(WITHIN, ready).await.unwrap();
    assert_eq!(body, r#"{"ready":true,"reasons":[],"warnings":[]}"#);
    let (_, page) = rig.get("/metrics").await;
    assert!(page.contains("\ntidelog_store_up 1\n"), "{page}");
    rig.stop().await;
}

/// Proves that a request whose body is not what the route takes is answered as every error is.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_cannot_be_read_is_an_error_like_others() {
    let rig = Rig::start(&[]).await;
    let json = "Content-Type: application/json\r\n";
    for (body, expected) in [
        (format!("{json}Content-Length: 3\r\n\r\n{{x}}"), 400),
        (
            format!("{json}Content-Length: 10\r\n\r\n{{\"id\":\"x\"}}"),
            422,
        ),
        ("Content-Length: 2\r\n\r\n{}".to_owned(), 415),
    ] {
        let (status, answer) = rig.ask("POST /api/v1/members/decommission", &body).await;
        assert_eq!(status, expected, "{answer}");
        assert!(
            answer.starts_with(r#"{"error":{"code":"bad_request","message":""#),
            "{answer}"
        );
    }
    rig.stop().await;
}

/// Proves that a broker whose store does not work starts, serves, and says why it is not ready.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_never_worked_is_a_reason() {
    // What everything would lie below is a file: nothing can be written.
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("v1"), "in the way").unwrap();
    let store = format!("store.url=file://{}", dir.path().display());
    let rig = Rig::start(&[&store]).await;
    rig.created("t", 1).await;
    let (status, body) = rig.get("/readyz").await;
    assert_eq!(status, 503, "{body}");
    assert!(body.contains(r#""part":"store""#), "{body}");
    let (_, page) = rig.get("/metrics").await;
    assert!(page.contains("\ntidelog_store_up 0\n"), "{page}");
    rig.stop().await;
}
