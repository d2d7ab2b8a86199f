//! openraft's own storage suite on our log store and machine store.

use super::*;
use crate::placement::log_store::LogStore;
use crate::placement::machine::MachineCell;
use crate::placement::machine_store::MachineStore;
use crate::placement::raft_types::Types;
use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};
use std::sync::atomic::{AtomicU64, Ordering};

/// Gives each test of the suite a directory of its own on one memory disk.
struct Builder {
    disk: MemoryDisk,
    next: AtomicU64,
}

impl StoreBuilder<Types, LogStore, MachineStore, ()> for Builder {
    async fn build(&self) -> Result<((), LogStore, MachineStore), StorageError<Types>> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let home = Home::on(
            self.disk.shared(),
            PathBuf::from(format!("/suite/{number}")),
            1,
        );
        let log = home.log().await;
        let machine = Arc::new(MachineCell::new(Values::new(Cuts::Latest)));
        let store = MachineStore::open(machine, log.clone())
            .await
            .expect("the store opens");
        Ok(((), LogStore::new(log), store))
    }
}

/// Proves that what openraft demands of a log and of a state machine holds for ours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openraft_storage_suite_passes() {
    let builder = Builder {
        disk: MemoryDisk::new(),
        next: AtomicU64::new(0),
    };
    Suite::test_all(builder).await.expect("the suite passes");
}
