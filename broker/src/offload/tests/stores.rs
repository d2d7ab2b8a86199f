//! A store that is not the one this group has published to.

use super::*;
use futures::TryStreamExt;
use object_store::ObjectStoreExt;
use object_store::path::Path;

/// The objects whose path `holds`, and then none of them.
async fn take_away(memory: &InMemory, holds: fn(&Path) -> bool) -> Vec<(Path, Bytes)> {
    let found: Vec<_> = memory.list(None).try_collect().await.unwrap();
    let mut taken = Vec::new();
    for object in found.into_iter().filter(|object| holds(&object.location)) {
        let bytes = memory
            .get(&object.location)
            .await
            .unwrap()
            .bytes()
            .await
            .unwrap();
        memory.delete(&object.location).await.unwrap();
        taken.push((object.location, bytes));
    }
    taken
}

/// Proves that an empty store in place of the one that holds published manifests gets nothing, and costs nothing: the step
/// fails with its reason, local records stay, and when the right store is back everything goes on and is readable. In each
/// stage of a cut. With the marker gone, and with the marker there but what was published gone.
#[tokio::test(flavor = "multi_thread")]
async fn an_exchanged_store_is_refused() {
    let is_marker = |path: &Path| path.as_ref().ends_with("store.json");
    let is_other = |path: &Path| !path.as_ref().ends_with("store.json");
    let both: [fn(&Path) -> bool; 2] = [is_marker, is_other];
    for (stage, taken) in [
        ("cut", both[0]),
        ("uploaded", both[0]),
        ("cut", both[1]),
        ("uploaded", both[1]),
    ] {
        let rig = Rig::new();
        let running = rig.start().await;
        running.create(0).await;
        running.append(0, 0, 10).await;
        running.flush(true).await;
        assert_eq!(running.published().await, 1);
        running.append(0, 10, 10).await;
        if stage == "uploaded" {
            // The manifest cannot be put, so the cut waits to be published.
            rig.faulty
                .inject_forever(Call::PutIfAbsent, Fault::Unavailable);
            running
                .flush_until(|stage| matches!(stage, CutStage::Uploaded(_)))
                .await;
        }
        let taken = take_away(&rig.memory, taken).await;
        rig.faulty.heal();
        let flush = {
            let offload = running.offload.clone();
            tokio::spawn(async move { offload.flush(true).await })
        };
        let refused = async {
            while running
                .offload
                .progress()
                .last_error()
                .is_none_or(|error| !error.contains("store.url"))
            {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(WITHIN, refused)
            .await
            .expect("the step is refused with its reason");
        assert!(!flush.is_finished(), "{stage}");
        let local = running.group.group().read(|machine| {
            machine
                .partitions()
                .get(partition(0))
                .unwrap()
                .hot
                .contains(Offset::new(10))
        });
        assert!(local, "{stage}: what is only local stays");
        let published = running
            .group
            .group()
            .read(|machine| machine.partitions().published_sequence());
        assert_eq!(published, 1, "{stage}: nothing counts as published");
        for (path, bytes) in taken {
            rig.memory.put(&path, bytes.into()).await.unwrap();
        }
        let outcome = tokio::time::timeout(WITHIN, flush).await;
        assert_eq!(
            outcome.expect("the flush ends").unwrap(),
            FlushOutcome::Done
        );
        running.check(0, 20).await;
        assert_eq!(running.published().await, 2);
        running.crash().await;
    }
}

/// Proves that nothing leaves the local disk while metadata names no store, nor into a store that is another one than it names, also where the group has
/// published nothing yet; that a replica in which a cut was published does not trim there either; and that all goes on in the right one.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_clusters_store_gets_anything() {
    let rig = Rig::new();
    rig.marked.store(false, Ordering::Relaxed);
    let running = rig.start().await;
    running.create(0).await;
    running.append(0, 0, 10).await;
    let flush = {
        let offload = running.offload.clone();
        tokio::spawn(async move { offload.flush(true).await })
    };
    let says = |text: &'static str| {
        let progress = running.offload.progress();
        let said = async move {
            while progress
                .last_error()
                .is_none_or(|error| !error.contains(text))
            {
                tokio::task::yield_now().await;
            }
        };
        async move { tokio::time::timeout(WITHIN, said).await.expect(text) }
    };
    says("not marked yet").await;
    let of_cluster = take_away(&rig.memory, |_| true).await;
    let paths: Vec<_> = of_cluster.iter().map(|(path, _)| path.clone()).collect();
    assert_eq!(paths.len(), 1, "only the marker: {paths:?}");
    // A store of this broker alone, which a leader before it has marked.
    let own = StoreId::new(Uuid::from_u128(6));
    assert!(marker::mark(&running.store, own).await.unwrap().is(own));
    rig.marked.store(true, Ordering::Relaxed);
    says("00000006").await;
    let objects: Vec<_> = rig.memory.list(None).try_collect().await.unwrap();
    assert_eq!(objects.len(), 1, "only the other marker");
    assert!(!flush.is_finished());
    assert_eq!(
        running
            .offload
            .progress()
            .steps_failed
            .load(Ordering::Relaxed),
        0
    );
    for (path, bytes) in of_cluster {
        rig.memory.put(&path, bytes.into()).await.unwrap();
    }
    let outcome = tokio::time::timeout(WITHIN, flush).await;
    assert_eq!(
        outcome.expect("the flush ends").unwrap(),
        FlushOutcome::Done
    );
    running.check(0, 10).await;
    running.crash().await;
}
