//! The operating system's disk, with the threads of production.

use super::*;
use tidelog_env::RealDisk;

async fn open(dir: &std::path::Path, config: &GroupLogConfig) -> Result<GroupLog, LogError> {
    let config = GroupLogConfig {
        dir: dir.join("groups/1"),
        writer: WriterMode::Thread,
        ..config.clone()
    };
    GroupLog::open(config, env(RealDisk::shared(), &Arc::default(), &mut 5)).await
}

/// Proves the whole life on a real disk: appends over many files, reads past the cache, purge with recycling, truncation,
/// votes, checkpoints, close, lock, reopen.
#[tokio::test]
async fn a_life_on_a_real_disk() {
    let dir = tempfile::tempdir().unwrap();
    let config = config("unused").with_file_bytes(64 * 1024);
    let log = open(dir.path(), &config).await.unwrap();
    assert!(matches!(
        open(dir.path(), &config).await,
        Err(LogError::Locked { .. })
    ));
    let mut waits = Vec::new();
    for index in 0..200 {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let size = usize::try_from(index * 37 % 3000).unwrap();
        log.append(
            vec![entry(1, index, size)],
            Box::new(move |done| drop(sender.send(done))),
        );
        waits.push(receiver);
        if index % 20 == 10 {
            log.save_committed(Some(id(1, index - 1)));
        }
    }
    for wait in waits {
        wait.await.unwrap().unwrap();
    }
    log.truncate_after(Some(id(1, 189))).await.unwrap();
    log.save_vote(vote(8)).await.unwrap();
    for index in 0..190 {
        let found = log.entries(at(index)..at(index + 1), 1).await.unwrap();
        assert_eq!(
            found,
            vec![entry(1, index, usize::try_from(index * 37 % 3000).unwrap())]
        );
    }
    log.purge(id(1, 150)).await.unwrap();
    log.save_vote(vote(9)).await.unwrap();
    log.save_checkpoint(id(1, 150), Bytes::from_static(b"image"))
        .await
        .unwrap();
    assert!(log.metrics().rotations.get() > 3);
    let state = log.state();
    log.close().await.unwrap();
    let log = open(dir.path(), &config).await.unwrap();
    assert_eq!(log.state(), state);
    assert_eq!(
        log.entries(at(151)..at(190), usize::MAX)
            .await
            .unwrap()
            .len(),
        39
    );
    assert_eq!(
        log.load_newest_checkpoint().await.unwrap(),
        Some((id(1, 150), Bytes::from_static(b"image")))
    );
    log.close().await.unwrap();
}

/// Proves that a directory copied to another node is refused on a real disk too.
#[tokio::test]
async fn another_node_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let config = config("unused");
    open(dir.path(), &config)
        .await
        .unwrap()
        .close()
        .await
        .unwrap();
    let other = GroupLogConfig {
        node: RaftNodeId::new(99),
        ..config
    };
    let message = open(dir.path(), &other).await.err().unwrap().to_string();
    assert!(
        message.contains("raft node 7") && message.contains("raft node 99"),
        "{message}"
    );
}
