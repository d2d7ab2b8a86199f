//! The name of a deleted topic, while a broker has not heard of the deletion.

use super::asking::produce_one;
use super::three::{Three, create_with, create_with_timeout, until};
use super::*;

/// Proves that a name is not given to a new topic while the leader of a partition of the old one may not know that it is gone: it is silent here. The refusal
/// says that nothing was created; when the broker is back, it drops what it has, and the name is free: what is written then is in the new topic only.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_name_is_held_until_all_have_dropped_it() {
    let mut three = Three::new();
    three.start(&[1, 2, 3]).await;
    let connection = three.connect(1).await;
    let created = create_with(&connection, "t", 3, 1).await;
    assert_eq!(created.error_code, 0, "{:?}", created.error_message);
    let leaders = three.leaders("t").await;
    let at = leaders.iter().position(|leader| *leader != 1).unwrap();
    let gone = leaders[at];
    let held = i32::try_from(at).unwrap();
    let old = three.connect(gone).await;
    assert_eq!(produce_one(&old, "t", held, 10_000).await, (0, 0));
    three.nodes.remove(&gone).unwrap().stop_abruptly().await;
    three.cluster().delete_topic("t").await.unwrap();
    let refused = create_with_timeout(&connection, "t", 3, 2_000).await;
    assert_eq!(refused.error_code, ErrorCode::RequestTimedOut.code());
    let why = refused.error_message.unwrap();
    assert!(why.contains("Nothing was created"), "{why}");
    // Another name waits for nobody.
    let other = create_with(&connection, "other", 1, 3).await;
    assert!(
        other.error_code == 0 || other.error_code == ErrorCode::InvalidReplicationFactor.code(),
        "{:?}",
        other.error_message
    );
    three.start(&[gone]).await;
    until("the name is free", || async {
        let created = create_with_timeout(&connection, "t", 3, 2_000).await;
        let (code, why) = (created.error_code, created.error_message);
        let held = ErrorCode::RequestTimedOut.code();
        assert!(code == 0 || code == held, "{code} {why:?}");
        code == 0
    })
    .await;
    let leaders = three.leaders("t").await;
    for (partition, leader) in (0i32..).zip(leaders) {
        let connection = three.connect(leader).await;
        let (code, offset) = produce_one(&connection, "t", partition, 10_000).await;
        assert_eq!((code, offset), (0, 0), "the new topic is empty");
    }
    three.stop().await;
}
