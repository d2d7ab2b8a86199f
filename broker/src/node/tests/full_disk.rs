//! A broker whose disk is full from its start: what it leads.

use super::three::{Three, until};

/// Proves that a broker without room comes to lead nothing: what it was elected for it gives to those that have room, and these hear why.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_without_room_leads_nothing() {
    let mut three = Three::new();
    let reserve = format!("log.reserve-bytes={}", i64::MAX);
    three.own.insert(2, vec![reserve]);
    three.start(&[2, 1, 3]).await;
    three.cluster().create_topic("t", 3, &[]).await.unwrap();
    let leads = |id: i32| {
        let router = &three.nodes[&id].parts.groups.router;
        let data = router.data_groups();
        let data = data.filter(|group| group.group().is_leader()).count();
        data + usize::from(router.metadata().is_leader())
    };
    let heard = |id: i32| {
        let router = &three.nodes[&id].parts.groups.router;
        let said = router.fitness().said_by(tidelog_model::NodeId::new(2));
        said.is_some_and(|said| said.no_room)
    };
    until("the others lead all, and know why", || async {
        leads(1) + leads(3) == 4 && leads(2) == 0 && heard(1) && heard(3)
    })
    .await;
    three.stop().await;
}
