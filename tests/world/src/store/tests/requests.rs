//! Faults of requests and replies.

use super::*;
use std::collections::BTreeSet;
use tidelog_tiering::PutOutcome;
use tidelog_tiering::store::contract::Subject;

type Set = fn(&mut StoreFaults);

/// Proves for each status that the client tries twice and then says so, that each is counted, and that healing helps.
#[tokio::test(start_paused = true)]
async fn refusals_are_tried_twice_and_heal() {
    let faults: [(Set, &str, u16); 4] = [
        (|rates| rates.status_503 = 1.0, "store.503", 503),
        (|rates| rates.status_500 = 1.0, "store.500", 500),
        (|rates| rates.status_429 = 1.0, "store.429", 429),
        (|rates| rates.status_408 = 1.0, "store.408", 408),
    ];
    for (set, kind, status) in faults {
        let rig = Rig::new(1);
        rig.rates(set);
        let path = Path::from("k");
        let errors = [
            rig.put("k", "v").await.unwrap_err(),
            rig.get("k").await.unwrap_err(),
            rig.client.head(&path).await.unwrap_err(),
            rig.client.delete(&path).await.unwrap_err(),
            rig.client.list_with_delimiter(None).await.unwrap_err(),
        ];
        for error in &errors {
            assert_eq!(
                request_failed(error),
                Some(RequestFailed::Status(status)),
                "{error}"
            );
        }
        assert_eq!(rig.count(kind), 10);
        assert_eq!(rig.counts.counts().len(), 1);
        if status != 500 {
            assert!(rig.store.snapshot().is_empty(), "nothing was done");
        }
        rig.rates(|_| {});
        rig.put("k", "v").await.unwrap();
        assert_eq!(rig.get("k").await.unwrap(), "v");
        assert_eq!(rig.count(kind), 10);
    }
}

/// Proves that a 409 is "exists" although nothing does, and hits nothing but puts if absent.
#[tokio::test(start_paused = true)]
async fn a_conflict_looks_like_an_object() {
    let rig = Rig::new(1);
    rig.rates(|rates| rates.status_409 = 1.0);
    let conflict = rig.create("k", "v").await;
    assert!(
        matches!(conflict, Err(Error::AlreadyExists { .. })),
        "{conflict:?}"
    );
    assert!(rig.held("k").is_none());
    rig.put("k", "v").await.unwrap();
    assert_eq!(rig.count("store.409"), 1);
}

/// Proves that a 500 and a lost reply leave it open whether a put if absent was done, and that the client's own retry may
/// then find its own object in its way.
#[tokio::test(start_paused = true)]
async fn unclear_replies_are_unclear() {
    let cases: [(Set, &str); 2] = [
        (|rates| rates.status_500 = 1.0, "store.500"),
        (|rates| rates.lost_reply = 1.0, "store.lost-reply"),
    ];
    for (set, kind) in cases {
        let mut seen = BTreeSet::new();
        for seed in 0..60 {
            let rig = Rig::new(seed);
            rig.rates(set);
            let said = match rig.create("k", "v").await.unwrap_err() {
                Error::AlreadyExists { .. } => "exists".to_owned(),
                error => format!("{:?}", request_failed(&error).unwrap()),
            };
            assert!((1..=2).contains(&rig.count(kind)));
            seen.insert((said, rig.held("k").is_some()));
        }
        let expected: Vec<(String, bool)> = match kind {
            "store.500" => vec![
                ("Status(500)".to_owned(), false),
                ("Status(500)".to_owned(), true),
            ],
            _ => vec![("Closed".to_owned(), true), ("Reset".to_owned(), true)],
        };
        for one in expected {
            assert!(seen.contains(&one), "{kind} {one:?} of {seen:?}");
        }
    }
}

/// Proves that the client's own retry after a closed connection finds the object it has just made.
#[tokio::test(start_paused = true)]
async fn a_retry_meets_its_own_object() {
    let mut met = 0;
    for seed in 0..100 {
        let rig = Rig::new(seed);
        rig.rates(|rates| rates.lost_reply = 0.5);
        if let Err(Error::AlreadyExists { .. }) = rig.create("k", "ours").await {
            assert_eq!(rig.held("k").unwrap(), "ours");
            met += 1;
        }
    }
    assert!(met > 5, "{met}");
}

/// Proves that a black hole ends with the client's own timeout, done or not, and that a caller may give up before.
#[tokio::test(start_paused = true)]
async fn black_holes_never_answer() {
    let mut done = BTreeSet::new();
    for seed in 0..20 {
        let rig = Rig::new(seed);
        rig.rates(|rates| rates.black_hole = 1.0);
        let before = Instant::now();
        let error = rig.put("k", "v").await.unwrap_err();
        assert_eq!(request_failed(&error), Some(RequestFailed::TimedOut));
        assert_eq!(before.elapsed().as_secs(), 120);
        done.insert(rig.held("k").is_some());
        let limit = Duration::from_secs(10);
        assert!(tokio::time::timeout(limit, rig.get("k")).await.is_err());
        assert_eq!(rig.count("store.black-hole"), 2);
        rig.rates(|_| {});
        rig.put("k", "v").await.unwrap();
    }
    assert_eq!(done.len(), 2);
}

/// Proves that slow requests take from one second to two minutes.
#[tokio::test(start_paused = true)]
async fn slow_requests_take_long() {
    let rig = Rig::new(1);
    rig.rates(|rates| rates.slow = 1.0);
    let mut seconds = Vec::new();
    for _ in 0..50 {
        let before = Instant::now();
        let slow = rig.put("k", "v").await;
        seconds.push(before.elapsed().as_secs());
        assert!(slow.is_ok() || before.elapsed().as_secs() == 120);
    }
    assert!(
        seconds.iter().all(|took| (1..=120).contains(took)),
        "{seconds:?}"
    );
    assert!(seconds.iter().any(|took| *took < 5) && seconds.iter().any(|took| *took > 60));
    assert_eq!(rig.count("store.slow"), 50);
}

/// Proves what a 200 with an error does: it is tried again, and a completion may then find its upload gone.
#[tokio::test(start_paused = true)]
async fn a_success_may_hold_an_error() {
    let mut seen = BTreeSet::new();
    for seed in 0..40 {
        let rig = Rig::new(seed);
        let path = Path::from("k");
        let mut upload = rig.client.put_multipart(&path).await.unwrap();
        upload.put_part("part".into()).await.unwrap();
        rig.rates(|rates| rates.error_body = 1.0);
        let error = upload.complete().await.unwrap_err();
        seen.insert((
            format!("{:?}", request_failed(&error)),
            rig.held("k").is_some(),
        ));
        assert_eq!(rig.count("store.200-with-error"), 2);
        let error = rig.client.delete(&path).await.unwrap_err();
        assert_eq!(request_failed(&error), Some(RequestFailed::ErrorBody));
        assert_eq!(rig.count("store.200-with-error"), 4);
        rig.rates(|_| {});
        rig.client.delete(&path).await.unwrap();
        assert!(rig.held("k").is_none());
    }
    assert!(seen.len() >= 2, "{seen:?}");
}

/// Proves that an outage fails every call, everybody's or one host's, until it is lifted.
#[tokio::test(start_paused = true)]
async fn outages_last_until_lifted() {
    let rig = Rig::new(1);
    let other = rig.store.client("b");
    let path = Path::from("k");
    for (outage, failed) in [
        (Outage::Refused, RequestFailed::NotConnected),
        (Outage::Unavailable, RequestFailed::Status(503)),
    ] {
        rig.store.set_outage(Some(outage));
        for client in [&rig.client, &other] {
            let error = client.put(&path, "v".into()).await.unwrap_err();
            assert_eq!(request_failed(&error), Some(failed));
        }
        rig.store.set_outage(None);
        rig.put("k", "v").await.unwrap();
        rig.store.set_outage_of("b", Some(outage));
        assert!(other.get(&path).await.is_err());
        assert_eq!(rig.get("k").await.unwrap(), "v");
        rig.store.set_outage_of("b", None);
        other.get(&path).await.unwrap();
    }
    assert_eq!(
        rig.count("store.outage"),
        12,
        "two requests for each of six calls"
    );
}

/// Proves that a store that ignores conditions overwrites, and that this counts only where something was overwritten.
#[tokio::test(start_paused = true)]
async fn conditions_may_be_ignored() {
    let rig = Rig::new(1);
    rig.rates(|rates| rates.ignored_condition = 1.0);
    rig.create("k", "first").await.unwrap();
    assert_eq!(rig.count("store.ignored-condition"), 0);
    rig.create("k", "second").await.unwrap();
    assert_eq!(rig.held("k").unwrap(), "second");
    assert_eq!(rig.count("store.ignored-condition"), 1);
    rig.rates(|_| {});
    let refused = rig.create("k", "third").await;
    assert!(matches!(refused, Err(Error::AlreadyExists { .. })));
}

/// Proves that a write whose sender dies while it is under way is done or not, or arrives when nobody waits any more.
#[tokio::test(start_paused = true)]
async fn writes_of_the_dead_may_arrive() {
    let mut done = [0, 0];
    for seed in 0..40 {
        let rig = Rig::new(seed);
        let put = rig.put("k", "v");
        assert!(
            tokio::time::timeout(Duration::from_micros(100), put)
                .await
                .is_err()
        );
        done[usize::from(rig.held("k").is_some())] += 1;
        let get = rig.get("k");
        assert!(
            tokio::time::timeout(Duration::from_micros(100), get)
                .await
                .is_err()
        );
    }
    assert!(done[0] > 5 && done[1] > 5, "{done:?}");
    let rig = Rig::new(1);
    rig.rates(|rates| rates.late = 1.0);
    let put = rig.put("k", "v");
    assert!(
        tokio::time::timeout(Duration::from_micros(100), put)
            .await
            .is_err()
    );
    assert!(rig.held("k").is_none());
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!(rig.held("k").unwrap(), "v");
    assert_eq!(rig.count("store.late"), 1);
    let written = rig
        .client
        .head(&Path::from("k"))
        .await
        .unwrap()
        .last_modified;
    assert!(
        written.timestamp_millis() <= START_MS + 60_001,
        "when it arrived, not when somebody looked"
    );
}

/// Proves that Tidelog's own store calls stay true through all of it: what was said to be created is there, what was read is right.
#[tokio::test(start_paused = true)]
async fn tier_stores_stay_true() {
    let mut said = BTreeSet::new();
    for seed in 0..30 {
        let rig = Rig::new(seed);
        rig.rates(|rates| {
            for rate in [
                &mut rates.status_503,
                &mut rates.status_500,
                &mut rates.status_429,
                &mut rates.status_408,
                &mut rates.status_409,
                &mut rates.error_body,
                &mut rates.lost_reply,
                &mut rates.black_hole,
                &mut rates.slow,
                &mut rates.trickle,
                &mut rates.short_body,
                &mut rates.stale_list,
            ] {
                *rate = 0.05;
            }
            rates.late = 0.3;
        });
        let random = SystemRandom::seeded(seed);
        let open = OpenStore {
            store: Arc::clone(&rig.client),
            prefix: Path::default(),
        };
        let tier = Subject::new(&open, random).store;
        for number in 1..=10 {
            let key = tidelog_tiering::key::metadata(number);
            let path = tier.path(&key).to_string();
            let (ours, theirs) = (Bytes::from_static(b"ours"), Bytes::from_static(b"theirs"));
            match tier.put_if_absent(&key, ours.clone()).await {
                Ok(PutOutcome::Created) => assert_eq!(rig.held(&path), Some(ours.clone())),
                Ok(PutOutcome::Exists) => panic!("nobody else put it"),
                Err(error) => drop(said.insert(error.did_not_happen())),
            }
            if let Ok(outcome) = tier.put_if_absent(&key, theirs.clone()).await {
                let held = rig.held(&path).unwrap();
                assert_eq!(outcome == PutOutcome::Created, held == theirs);
            }
            if let Ok(read) = tier.get(&key).await {
                assert_eq!(Some(read), rig.held(&path));
            }
        }
        assert!(rig.store.overwritten().is_empty());
    }
    assert!(
        said.iter().all(|did_not| !did_not),
        "an unclear put is said to be unclear"
    );
}
