//! Offsets that are committed at a broker which does not lead the partition.

use super::three::{Three, create};
use super::*;
use crate::coordinator::ConsumerGroupError;
use crate::coordinator::service::CommitCheck as _;
use crate::router::CommitBounds;
use tidelog_model::Offset;

/// Proves that an offset past the end, asked for at a replica that does not lead, is answered with the next sign of life of the leader: nobody waits
/// for what does not come.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_answers_with_the_next_heartbeat() {
    let mut three = Three::new();
    three.start(&[1, 2, 3]).await;
    let connection = three.connect(1).await;
    create(&connection, "t", 1).await;
    let leader = three.leaders("t").await[0];
    let other = (1..=3).find(|id| *id != leader).unwrap();
    let router = three.nodes[&other].parts.groups.router.clone();
    let partition = router.partition("t", 0).unwrap();
    let bounds = CommitBounds(router);
    assert!(bounds.check(&[(partition, Offset::ZERO)]).await[0].is_ok());
    let mut took = Vec::new();
    // A machine that does other things may be late once.
    for _ in 0..5 {
        let asked = Instant::now();
        let checked = bounds.check(&[(partition, Offset::new(9))]).await;
        assert!(
            matches!(checked[0], Err(ConsumerGroupError::Unavailable)),
            "{checked:?}"
        );
        took.push(asked.elapsed());
    }
    let best = took.iter().min().unwrap();
    assert!(*best < Duration::from_millis(1_000), "{took:?}");
    three.stop().await;
}
