//! Flushes that are asked of a broker which does not lead all that they concern.

use super::asking::{http, produce_one};
use super::three::{SETTLE, Three, create, create_with, until};
use super::*;

/// Proves that every broker moves all partitions into the store, whoever leads them, and shows so in its answer; and that without a majority
/// the answer says by the deadline which groups have no leader.
#[tokio::test(flavor = "multi_thread")]
async fn any_broker_flushes_all_groups() {
    let mut three = Three::new();
    // Nothing moves by itself.
    three.set.push("tier.cut-interval-ms=600000".to_owned());
    three.start(&[1, 2, 3]).await;
    three.cluster().create_topic("t", 6, &[]).await.unwrap();
    for asked in 1..=3 {
        let until = Instant::now() + SETTLE;
        for partition in 0..6 {
            loop {
                let at = usize::try_from(partition).unwrap();
                let leader = three.leaders("t").await[at];
                let connection = three.connect(leader).await;
                let (code, _) = produce_one(&connection, "t", partition, 10_000).await;
                connection.close("produced");
                if code == 0 {
                    break;
                }
                assert!(Instant::now() < until, "{code}");
            }
        }
        let body = r#"{"topic":"t"}"#;
        let (status, answer) = http(&three, asked, "POST", "/api/v1/tier/flush", body).await;
        assert_eq!(status, 200, "{answer}");
        let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
        let partitions = answer["partitions"].as_array().unwrap();
        assert_eq!(partitions.len(), 6);
        for partition in partitions {
            assert_eq!(partition["tiered_until"], partition["high_watermark"]);
            assert!(partition["high_watermark"].as_i64().unwrap() >= i64::from(asked));
        }
    }
    for id in [1, 2] {
        three.nodes.remove(&id).unwrap().stop_abruptly().await;
    }
    let asked = Instant::now();
    let body = r#"{"topic":null,"timeout_ms":4000}"#;
    let (status, answer) = http(&three, 3, "POST", "/api/v1/tier/flush", body).await;
    assert_eq!(status, 504, "{answer}");
    assert!(
        answer.contains("\"timeout\"") && answer.contains("group "),
        "{answer}"
    );
    assert!(asked.elapsed() < Duration::from_secs(12));
    three.stop().await;
}

/// Where the log of a partition begins on the disk of broker `id`, if it leads it.
fn local_start(three: &Three, id: i32, at: &serde_json::Value) -> Option<i64> {
    let router = &three.nodes[&id].parts.groups.router;
    let index = i32::try_from(at["partition"].as_i64()?).ok()?;
    let partition = router.partition(at["topic"].as_str()?, index)?;
    let group = router.leader_of(partition).ok()?;
    group.group().read(|machine| {
        let found = machine.partitions().get(partition);
        found.map(|partition| partition.local_start().get())
    })
}

/// Proves that every broker shows each partition as its leader has it, also where its own log begins elsewhere, and where it holds no copy.
#[tokio::test(flavor = "multi_thread")]
async fn every_broker_tells_what_the_leaders_have() {
    let mut three = Three::new();
    three.set.push("tier.cut-interval-ms=600000".to_owned());
    three.start(&[1, 2, 3]).await;
    let connection = three.connect(1).await;
    create(&connection, "three", 3).await;
    let single = create_with(&connection, "one", 3, 1).await;
    assert_eq!(single.error_code, 0);
    for topic in ["one", "three"] {
        for partition in 0..3 {
            let at = usize::try_from(partition).unwrap();
            // Leaders may move meanwhile.
            until("it is appended", || async {
                let connection = three.connect(three.leaders(topic).await[at]).await;
                produce_one(&connection, topic, partition, 10_000).await.0 == 0
            })
            .await;
        }
    }
    // Followers trim later, and less.
    let body = r#"{"trim_local":true}"#;
    let (status, answer) = http(&three, 2, "POST", "/api/v1/tier/flush", body).await;
    assert_eq!(status, 200, "{answer}");
    until("all say the same", || async {
        let mut told = Vec::new();
        for id in 1..=3 {
            let (status, answer) = http(&three, id, "GET", "/api/v1/tier", "").await;
            assert_eq!(status, 200, "{answer}");
            let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
            told.push(answer["partitions"].as_array().unwrap().clone());
        }
        // Leaders may move meanwhile, and the next one may have trimmed less.
        let as_led = |at: &serde_json::Value| {
            let leader = at["leader"].as_i64().and_then(|id| i32::try_from(id).ok());
            let start = leader.and_then(|id| local_start(&three, id, at));
            let same = at["local_start"].as_i64() == start;
            start.is_some() && same && at["local_broker"] == at["leader"]
        };
        told[0].len() == 6 && told[0].iter().all(as_led) && told.iter().all(|all| *all == told[0])
    })
    .await;
    three.stop().await;
}
