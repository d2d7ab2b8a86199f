//! A real server: started, checked, restarted with its data, stopped, found missing.
//!
//! Owns: the life of one SeaweedFS, which `cargo xtask setup` installs.
//! Not here: MinIO and Docker; they are used where they are installed, CI has neither.
//! Spec: docs/guides/local-s3.md

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;

use tidelog_minio_dev::{Error, Server, State, UpOptions, check, down, up};

fn options(folder: &Path) -> UpOptions {
    UpOptions {
        server: Server::Seaweedfs,
        bucket: "trial".to_owned(),
        port: 0,
        data_dir: folder.to_owned(),
    }
}

fn client(state: &State) -> aws_sdk_s3::Client {
    use aws_sdk_s3::config::{BehaviorVersion, Credentials, Region};
    let credentials = Credentials::new(&state.access_key, &state.secret_key, None, None, "test");
    let config = aws_sdk_s3::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new(state.region.clone()))
        .endpoint_url(&state.endpoint)
        .credentials_provider(credentials)
        .force_path_style(true)
        .build();
    aws_sdk_s3::Client::from_conf(config)
}

async fn all_checks_pass(folder: &Path) {
    for result in check(folder).await.unwrap() {
        assert_eq!(result.failure, None, "{}", result.name);
    }
}

// Proves: up leaves a server that meets every need; a second up finds it; down ends exactly it; an
// object put before is there after another up; down and check without a server say so.
#[tokio::test]
async fn the_life_of_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    assert!(matches!(down(folder).await, Err(Error::NotStarted(_))));
    assert!(matches!(check(folder).await, Err(Error::NotStarted(_))));

    let first = up(&options(folder)).await.unwrap();
    assert_eq!(State::load(folder).unwrap().unwrap(), first);
    all_checks_pass(folder).await;
    assert_eq!(up(&options(folder)).await.unwrap(), first);
    let put = client(&first).put_object().bucket("trial").key("kept");
    put.body(b"bytes".to_vec().into()).send().await.unwrap();

    let (stopped, ran) = down(folder).await.unwrap();
    assert_eq!((&stopped, ran), (&first, true));
    assert!(!first.is_running());
    assert!(matches!(check(folder).await, Err(Error::NotStarted(_))));

    let second = up(&options(folder)).await.unwrap();
    assert_ne!(second.running, first.running);
    let get = client(&second).get_object().bucket("trial").key("kept");
    let body = get.send().await.unwrap().body.collect().await.unwrap();
    assert_eq!(&body.to_vec(), b"bytes");
    assert!(down(folder).await.unwrap().1);
    assert!(matches!(down(folder).await, Err(Error::NotStarted(_))));
}

// Proves: a taken port and a server that ends at its start are told in one clear error, with the end
// of the server's log, and nothing stays behind.
#[tokio::test]
async fn failures_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = up(&UpOptions {
        port,
        ..options(folder)
    })
    .await
    .unwrap_err();
    assert!(matches!(error, Error::PortInUse { .. }), "{error}");

    std::fs::write(folder.join("data/filerldb2"), "in the way").unwrap();
    let error = up(&options(folder)).await.unwrap_err();
    let Error::NotReady {
        reason, log_tail, ..
    } = error
    else {
        panic!("{error}");
    };
    assert!(reason.contains("it ended with"), "{reason}");
    assert!(!log_tail.is_empty());
    assert_eq!(State::load(folder).unwrap(), None);
}
