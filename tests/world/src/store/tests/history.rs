//! Listings, and what checkers learn.

use super::super::objects::PAGE_KEYS;
use super::*;
use futures::TryStreamExt;

impl Rig {
    async fn keys(&self, prefix: &str) -> Vec<String> {
        let prefix = Path::from(prefix);
        let listed = self.client.list(Some(&prefix));
        let listed: Vec<_> = listed.try_collect().await.unwrap();
        listed
            .into_iter()
            .map(|meta| meta.location.to_string())
            .collect()
    }
}

/// Proves that listings are in order, whole over several pages, and below the prefix only.
#[tokio::test(start_paused = true)]
async fn listings_come_in_pages() {
    let rig = Rig::new(1);
    let keys: Vec<String> = (0..2 * PAGE_KEYS + 10)
        .map(|n| format!("p/{n:05}/x"))
        .collect();
    for key in keys.iter().rev() {
        rig.store
            .with(|objects| objects.put(key, Bytes::new(), &PutMode::Create).unwrap());
    }
    rig.put("p-near", "").await.unwrap();
    rig.put("p", "").await.unwrap();
    assert_eq!(rig.keys("p").await, keys);
    assert_eq!(rig.keys("p/00007").await, ["p/00007/x"]);
    let after = Path::from(keys[PAGE_KEYS].as_str());
    let rest: Vec<_> = rig
        .client
        .list_with_offset(Some(&Path::from("p")), &after)
        .try_collect()
        .await
        .unwrap();
    assert_eq!(rest.len(), PAGE_KEYS + 9);
    let top = rig.client.list_with_delimiter(None).await.unwrap();
    assert_eq!(top.common_prefixes, [Path::from("p")]);
    assert_eq!(top.objects.len(), 2);
    let below = rig
        .client
        .list_with_delimiter(Some(&Path::from("p")))
        .await
        .unwrap();
    assert_eq!(
        (below.common_prefixes.len(), below.objects.len()),
        (keys.len(), 0)
    );
}

/// Proves that a stale listing is one that was true a moment ago, and counts only when it differs.
#[tokio::test(start_paused = true)]
async fn listings_are_of_a_moment_ago() {
    let rig = Rig::new(1);
    rig.put("p/old", "v").await.unwrap();
    rig.put("p/gone", "v").await.unwrap();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    rig.rates(|rates| rates.stale_list = 1.0);
    assert_eq!(rig.keys("p").await, ["p/gone", "p/old"]);
    assert_eq!(rig.count("store.stale-list"), 0, "it was the same");
    rig.rates(|_| {});
    rig.client.delete(&Path::from("p/gone")).await.unwrap();
    rig.put("p/new", "v").await.unwrap();
    rig.rates(|rates| rates.stale_list = 1.0);
    let mut stale = 0;
    for _ in 0..20 {
        let keys = rig.keys("p").await;
        let truths = [
            vec!["p/gone", "p/old"],
            vec!["p/old"],
            vec!["p/new", "p/old"],
        ];
        assert!(truths.iter().any(|truth| keys == *truth), "{keys:?}");
        stale += u64::from(keys != truths[2]);
    }
    assert!(stale > 5);
    assert_eq!(rig.count("store.stale-list"), stale);
    rig.rates(|_| {});
    assert_eq!(rig.keys("p").await, ["p/new", "p/old"]);
}

/// Proves that overwrites and deletions are known to checkers, and that the same content again is neither.
#[tokio::test(start_paused = true)]
async fn checkers_learn_what_happened() {
    let rig = Rig::new(1);
    rig.put("k", "a").await.unwrap();
    rig.put("k", "a").await.unwrap();
    assert!(rig.store.overwritten().is_empty());
    rig.put("k", "b").await.unwrap();
    rig.client.delete(&Path::from("k")).await.unwrap();
    rig.client.delete(&Path::from("k")).await.unwrap();
    rig.put("k", "b").await.unwrap();
    rig.client.delete(&Path::from("k")).await.unwrap();
    rig.put("k", "c").await.unwrap();
    let overwritten = rig.store.overwritten();
    let there: Vec<bool> = overwritten.iter().map(|one| one.was_there).collect();
    assert_eq!(there, [true, false]);
    assert!(
        overwritten
            .iter()
            .all(|one| one.key == "k" && one.at_ms > START_MS)
    );
    assert_eq!(rig.store.deleted().len(), 2);
    assert_eq!(rig.store.snapshot().len(), 1);
}

/// Proves that an object vanishes by command, is missed by readers, and that nobody is said to have deleted it.
#[tokio::test(start_paused = true)]
async fn objects_vanish() {
    let rig = Rig::new(1);
    rig.put("k", "a").await.unwrap();
    assert!(rig.store.vanish("k"));
    assert!(!rig.store.vanish("k"));
    assert!(matches!(rig.get("k").await, Err(Error::NotFound { .. })));
    assert!(rig.store.deleted().is_empty());
    assert_eq!(rig.count("store.vanished"), 1);
}

/// Proves the rules of uploads in parts: small parts are refused, all must be there, an aborted one leaves nothing.
#[tokio::test(start_paused = true)]
async fn uploads_follow_the_rules() {
    let rig = Rig::new(1);
    let path = Path::from("k");
    let mut upload = rig.client.put_multipart(&path).await.unwrap();
    upload.put_part("small".into()).await.unwrap();
    upload.put_part("last".into()).await.unwrap();
    let error = upload.complete().await.unwrap_err();
    assert_eq!(request_failed(&error), Some(RequestFailed::Status(400)));
    assert_eq!(rig.store.open_uploads(), 1);
    upload.abort().await.unwrap();
    assert_eq!(rig.store.open_uploads(), 0);
    assert!(matches!(upload.abort().await, Err(Error::NotFound { .. })));
    let mut upload = rig.client.put_multipart(&path).await.unwrap();
    let never_sent = upload.put_part(vec![0; 6 << 20].into());
    upload.put_part("last".into()).await.unwrap();
    assert!(
        upload.complete().await.is_err(),
        "the first part is missing"
    );
    never_sent.await.unwrap();
    upload.complete().await.unwrap();
    assert_eq!(rig.held("k").unwrap().len(), (6 << 20) + 4);
}

/// Proves conditions on reads and updates: they hold for the content that had the tag.
#[tokio::test(start_paused = true)]
async fn tags_name_contents() {
    let rig = Rig::new(1);
    let path = Path::from("k");
    rig.put("k", "a").await.unwrap();
    let tag = rig.client.head(&path).await.unwrap().e_tag;
    let update = |tag: Option<String>| {
        let version = object_store::UpdateVersion {
            e_tag: tag,
            version: None,
        };
        let options = PutOptions::from(PutMode::Update(version));
        rig.client.put_opts(&path, "b".into(), options)
    };
    update(tag.clone()).await.unwrap();
    let late = update(tag.clone()).await;
    assert!(matches!(late, Err(Error::Precondition { .. })), "{late:?}");
    let options = object_store::GetOptions {
        if_match: tag,
        ..object_store::GetOptions::default()
    };
    let other = rig.client.get_opts(&path, options).await;
    assert!(matches!(other, Err(Error::Precondition { .. })));
    let copied = Path::from("copy");
    rig.client.copy(&path, &copied).await.unwrap();
    assert_eq!(rig.get("copy").await.unwrap(), "b");
    let kept = rig.client.copy_if_not_exists(&path, &copied).await;
    assert!(matches!(kept, Err(Error::NotSupported { .. })));
}
