//! Readers that say where they are (KIP-392): sent to a follower in their zone, served there from the tail and from history, never past
//! what is applied there, and sent back when it cannot.

use super::asking::{Wanted, batches, fetch, held, produce_one};
use super::three::{SETTLE, Three, until};
use super::*;
use crate::wire::messages::fetch_response::PartitionData;
use tidelog_model::PlacementGroupId;

const GROUP: PlacementGroupId = PlacementGroupId::new(1);
const NOT_LEADER: i16 = ErrorCode::NotLeaderOrFollower.code();

struct Followers {
    three: Three,
    leader: i32,
    follower: i32,
    rack: String,
}

impl Followers {
    async fn start() -> Self {
        let mut three = Three::new();
        three.set.push("cluster.data-groups=1".to_owned());
        three.start(&[1, 2, 3]).await;
        three.cluster().create_topic("t", 1, &[]).await.unwrap();
        // Where it stays: the preferred replica of group 1.
        let settled = Instant::now() + SETTLE;
        while three.leaders("t").await != [2] {
            assert!(
                Instant::now() < settled,
                "the preferred replica does not lead"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Self {
            three,
            leader: 2,
            follower: 3,
            rack: "zone-3".to_owned(),
        }
    }

    async fn produce(&self, records: i64) {
        let connection = self.three.connect(self.leader).await;
        for _ in 0..records {
            assert_eq!(produce_one(&connection, "t", 0, 10_000).await.0, 0);
        }
        connection.close("produced");
    }

    /// What broker `id` answers a reader in `rack`.
    async fn read(&self, id: i32, rack: &str, offset: i64, wait_ms: i32) -> PartitionData {
        let connection = self.three.connect(id).await;
        let mut wanted = Wanted::from("t", 0, offset);
        (wanted.rack, wanted.wait_ms) = (rack, wait_ms);
        let until = Instant::now() + SETTLE;
        let found = loop {
            let found = fetch(&connection, wanted).await;
            // On a busy machine its lease may run out for a moment.
            if id != self.leader || found.error_code != NOT_LEADER || Instant::now() > until {
                break found;
            }
        };
        connection.close("read");
        found
    }

    /// The offsets that the follower gives from `from` to `end`.
    async fn read_all(&self, from: i64, end: i64) -> Vec<(i64, i64)> {
        let (mut offset, mut all) = (from, Vec::new());
        let until = Instant::now() + SETTLE;
        while offset < end {
            let found = self.read(self.follower, &self.rack, offset, 500).await;
            assert!(Instant::now() < until, "{found:?}");
            // A follower on a busy machine may be too far behind for a moment.
            if found.error_code == NOT_LEADER {
                continue;
            }
            assert_eq!((found.error_code, found.preferred_read_replica), (0, -1));
            for (_, from, end) in batches(found.records.unwrap_or_default()) {
                assert!(end <= found.high_watermark);
                all.push((from, end));
                offset = end;
            }
        }
        all
    }
}

/// Proves that the leader sends a reader to the live follower in its zone and serves everybody else itself; that the follower serves that
/// reader's zone only, tail and history (also what its own log holds no more), with its own high watermark, and wakes its long poll; that an
/// offset it does not have is the leader's to judge; and that epochs are checked there, too.
#[tokio::test(flavor = "multi_thread")]
async fn readers_are_served_in_their_zone() {
    let followers = Followers::start().await;
    followers.produce(20).await;
    until("the leader sends readers there", || async {
        let found = followers.read(2, "zone-3", 0, 0).await;
        assert_eq!((found.error_code, found.high_watermark), (0, 20));
        found.preferred_read_replica == 3
    })
    .await;
    for rack in ["", "zone-2", "zone-9"] {
        let found = followers.read(2, rack, 0, 0).await;
        assert_eq!((found.error_code, found.preferred_read_replica), (0, -1));
        assert!(!batches(found.records.unwrap()).is_empty(), "{rack}");
    }
    for rack in ["", "zone-2", "zone-1"] {
        let found = followers.read(3, rack, 0, 0).await;
        assert_eq!(found.error_code, NOT_LEADER, "{rack}");
    }
    let expected: Vec<_> = (0..20).map(|offset| (offset, offset + 1)).collect();
    assert_eq!(followers.read_all(0, 20).await, expected);

    // At the end it waits, and wakes.
    let waiting = followers.read(3, "zone-3", 20, 20_000);
    let writing = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        followers.produce(1).await;
    };
    let asked = Instant::now();
    let (found, ()) = tokio::join!(waiting, writing);
    assert_eq!(batches(found.records.unwrap_or_default()).len(), 1);
    assert!(asked.elapsed() < Duration::from_secs(15));
    // Past the end: the leader knows.
    let found = followers.read(3, "zone-3", 1_000, 100).await;
    assert_eq!(found.error_code, NOT_LEADER);
    let found = followers.read(2, "zone-2", 1_000, 100).await;
    assert_eq!(found.error_code, ErrorCode::OffsetOutOfRange.code());
    check_epochs(&followers).await;
    check_history(&followers).await;
    followers.three.stop().await;
}

async fn check_epochs(followers: &Followers) {
    let current = held(&followers.three, 3, GROUP).epoch().get();
    let connection = followers.three.connect(3).await;
    for (epoch, expected) in [
        (current, 0),
        (current - 1, ErrorCode::FencedLeaderEpoch.code()),
        (current + 1, ErrorCode::UnknownLeaderEpoch.code()),
    ] {
        until("the follower is close", || async {
            let mut wanted = Wanted::from("t", 0, 0);
            (wanted.rack, wanted.current_epoch) = ("zone-3", epoch);
            let code = fetch(&connection, wanted).await.error_code;
            assert!(code == expected || code == NOT_LEADER, "{code}");
            code == expected
        })
        .await;
    }
    connection.close("asked");
}

/// Everything leaves the local logs, of the follower too.
async fn check_history(followers: &Followers) {
    let group = |id: i32| held(&followers.three, id, GROUP);
    let hot = |id: i32| {
        group(id).group().read(|machine| {
            let bytes = machine.partitions().iter().map(|state| state.hot.bytes());
            bytes.sum::<u64>()
        })
    };
    let offloads = &followers.three.nodes[&2].parts.groups.offloads;
    until("it is in the store only", || async {
        offloads.get(GROUP).unwrap().flush(true).await;
        // The follower has the checkpoint of the published cut, and may drop what is below it.
        let at = group(3).group().log().load_newest_checkpoint().await;
        if let Ok(Some((at, _))) = at {
            group(3).purge(at.index).await.unwrap();
        }
        hot(2) == 0 && hot(3) == 0
    })
    .await;
    let expected: Vec<_> = (0..21).map(|offset| (offset, offset + 1)).collect();
    assert_eq!(followers.read_all(0, 21).await, expected);
}

/// Proves that a follower that lost touch with its leader serves nobody, and that a leader sends nobody to one that is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_follower_serves_nobody() {
    let mut followers = Followers::start().await;
    followers.produce(3).await;
    until("the leader sends readers there", || async {
        followers
            .read(2, "zone-3", 0, 0)
            .await
            .preferred_read_replica
            == 3
    })
    .await;
    // The leader and the other one fall silent: broker 3 is left.
    let gone = [1, 2].map(|id| followers.three.nodes.remove(&id).unwrap());
    for node in gone {
        node.stop_abruptly().await;
    }
    until("it serves nobody", || async {
        let found = followers.read(3, "zone-3", 0, 0).await;
        assert!([0, NOT_LEADER].contains(&found.error_code));
        found.error_code == NOT_LEADER
    })
    .await;
    followers.three.start(&[1, 2]).await;
    followers.leader = 0;
    let lost = followers.three.nodes.remove(&3).unwrap();
    lost.stop_abruptly().await;
    until("readers stay with the leader", || async {
        let leader = followers.three.leaders("t").await[0];
        let found = followers.read(leader, "zone-3", 0, 0).await;
        found.error_code == 0 && found.preferred_read_replica == -1
    })
    .await;
    followers.three.stop().await;
}
