//! A store that is not the one this group has published to.

use super::*;
use futures::TryStreamExt;
use object_store::ObjectStoreExt;
use object_store::path::Path;

/// Every object there is, and then none of them.
async fn take_away(memory: &InMemory) -> Vec<(Path, Bytes)> {
    let found: Vec<_> = memory.list(None).try_collect().await.unwrap();
    let mut taken = Vec::new();
    for object in found {
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
/// stage of a cut.
#[tokio::test(flavor = "multi_thread")]
async fn an_exchanged_store_is_refused() {
    for stage in ["cut", "uploaded"] {
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
        let taken = take_away(&rig.memory).await;
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
