//! Crashes of a one-voter group: what was answered stays, whatever the disk kept of the rest.

use super::*;
use tidelog_env::disk::Fault;

/// What a proposer knows after a life of the group.
#[derive(Default)]
struct Known {
    /// Positions and values that were answered.
    answered: Vec<(usize, u64)>,
    /// Values that were proposed, answered or not.
    proposed: Vec<u64>,
}

impl Known {
    /// What must hold of a machine after a restart.
    fn check(&self, values: &[u64], seed: u64) {
        for (position, value) in &self.answered {
            assert_eq!(
                values.get(*position),
                Some(value),
                "seed {seed}: an answered value is at its position"
            );
        }
        let mut left = self.proposed.iter();
        for value in values {
            assert!(
                left.any(|proposed| proposed == value),
                "seed {seed}: {value} out of order, twice, or never proposed"
            );
        }
    }
}

/// One life: proposes in a pipeline until the power goes at disk operation `cut_at` (counted from now).
async fn live(
    home: &Home,
    disk: &MemoryDisk,
    known: &mut Known,
    cuts: Cuts,
    cut_at: u64,
    seed: u64,
) {
    disk.fail_at(disk.operations() + cut_at, Fault::PowerCut);
    let Some(log) = home.try_log().await else {
        return;
    };
    let mut config = home.config();
    config.propose_deadline = Duration::from_secs(10);
    let group = match Group::start(config, log.clone(), Values::new(cuts), Arc::new(NoPeers)).await
    {
        Ok(group) => group,
        Err(_) => {
            let _ = log.close().await;
            return;
        }
    };
    let mut fatal = group.fatal();
    let leads = tokio::select! {
        led = group.wait_leader(WAIT) => led.is_ok(),
        _ = fatal.wait_for(Option::is_some) => false,
    };
    if leads {
        known.check(&group.read(|machine| machine.values.clone()), seed);
        produce(&group, known).await;
    }
    group.stop().await;
}

/// Proposes in a pipeline, cuts, persists and purges in between, until something fails.
async fn produce(group: &Group<Values>, known: &mut Known) {
    let mut next = known.proposed.len() as u64;
    'life: loop {
        let batch: Vec<_> = (0..8)
            .map(|_| {
                let value = next;
                next += 1;
                known.proposed.push(value);
                group.propose_ordered(add(value, 300))
            })
            .collect();
        for waiting in batch {
            match waiting.await {
                Ok((_, outcome)) => known.answered.push(outcome),
                Err(error) => {
                    assert!(error.may_have_happened(), "{error}");
                    break 'life;
                }
            }
        }
        if next.is_multiple_of(24) && group.propose(cut()).await.is_err() {
            break;
        }
        if next.is_multiple_of(40)
            && let Ok(last) = group.snapshot_and_persist().await
            && group.purge(last.index).await.is_err()
        {
            break;
        }
    }
}

impl Home {
    async fn try_log(&self) -> Option<GroupLog> {
        let cluster = ClusterId::new(uuid::Uuid::from_u128(7));
        let mut config = GroupLogConfig::new(self.dir.clone(), cluster, GROUP, self.node);
        config.file_bytes = 64 << 10;
        config.entry_bytes_max = 4 << 10;
        config.lazy_delay = Duration::from_millis(1);
        let env = LogEnv {
            disk: Arc::clone(&self.disk),
            random: SystemRandom::seeded(3),
            tasks: Tasks::new(),
            fatal: Arc::new(|_| {}),
            observer: Arc::new(NoObserver),
        };
        GroupLog::open(config, env).await.ok()
    }
}

async fn lives(cuts: Cuts, seed: u64) {
    let disk = MemoryDisk::new();
    let home = Home::in_memory(&disk);
    let random = SystemRandom::seeded(seed);
    let mut known = Known::default();
    for life in 0..6 {
        let cut_at = 1 + random.next_u64() % if life == 0 { 40 } else { 300 };
        live(&home, &disk, &mut known, cuts, cut_at, seed).await;
        disk.crash(random.next_u64());
    }
    // A life without a crash: everything that was answered is there, and it goes on.
    let group = home.restart(cuts).await;
    let values = group.read(|machine| machine.values.clone());
    known.check(&values, seed);
    let (_, outcome) = group
        .propose(add(u64::MAX - 1, 0))
        .await
        .expect("it goes on");
    assert_eq!(outcome, (values.len(), u64::MAX - 1), "seed {seed}");
    group.stop().await;
}

impl Home {
    async fn restart(&self, cuts: Cuts) -> Group<Values> {
        let log = self.try_log().await.expect("the log opens");
        let group = Group::start(self.config(), log, Values::new(cuts), Arc::new(NoPeers))
            .await
            .expect("it starts");
        group.wait_leader(WAIT).await.expect("it leads");
        group
    }
}

/// Proves that what was answered survives power cuts at arbitrary disk operations, in order, once, with checkpoints and purges in
/// between; for a machine that persists everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answered_values_survive_power_cuts() {
    for seed in 0..12 {
        lives(Cuts::Latest, seed).await;
    }
}

/// The same for a machine whose image is older than what is applied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answered_values_survive_power_cuts_with_old_images() {
    for seed in 100..112 {
        lives(Cuts::AtCut, seed).await;
    }
}

/// Proves that a crash at any disk operation of the very first start is resumed: the group is set up once, and leads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_start_can_crash_anywhere() {
    for cut_at in 0..60 {
        let disk = MemoryDisk::new();
        let home = Home::in_memory(&disk);
        disk.fail_at(disk.operations() + cut_at, Fault::PowerCut);
        if let Some(log) = home.try_log().await {
            let started = Group::start(
                home.config(),
                log.clone(),
                Values::new(Cuts::Latest),
                Arc::new(NoPeers),
            )
            .await;
            match started {
                Ok(group) => {
                    let mut fatal = group.fatal();
                    tokio::select! {
                        led = group.wait_leader(WAIT) => { led.ok(); }
                        _ = fatal.wait_for(Option::is_some) => {}
                    }
                    group.stop().await;
                }
                Err(_) => {
                    log.close().await.ok();
                }
            }
        }
        disk.crash(cut_at);
        let group = home.restart(Cuts::Latest).await;
        assert_eq!(
            group.propose(add(5, 0)).await.expect("applied").1,
            (0, 5),
            "crash at operation {cut_at}"
        );
        group.stop().await;
    }
}

/// Proves that a failed sync ends the group: nothing is answered after it, and the reason is on the watch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_error_is_fatal() {
    let disk = MemoryDisk::new();
    let home = Home::in_memory(&disk);
    let group = home.lead(Values::new(Cuts::Latest)).await;
    group.propose(add(1, 0)).await.expect("applied");
    for operation in 0..4 {
        disk.fail_at(disk.operations() + operation, Fault::Eio);
    }
    let error = group.propose(add(2, 0)).await.expect_err("the disk fails");
    assert!(matches!(error, ProposeError::Fatal(_)), "{error}");
    let mut fatal = group.fatal();
    let why = tokio::time::timeout(WAIT, fatal.wait_for(Option::is_some))
        .await
        .expect("reported")
        .expect("running");
    assert!(why.is_some());
    drop(why);
    assert!(home.failure.lock().is_some(), "the log said so too");
    assert_eq!(group.read(|machine| machine.values.clone()), vec![1]);
    group.stop().await;
}

/// Proves that a checkpoint that cannot be written is an error of the call, not of the group.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_for_a_checkpoint_leaves_the_group_running() {
    let disk = MemoryDisk::new();
    let home = Home::in_memory(&disk);
    let group = home.lead(Values::new(Cuts::Latest)).await;
    for value in 0..10 {
        group.propose(add(value, 10)).await.expect("applied");
    }
    disk.set_capacity(0);
    let error = group.snapshot_and_persist().await.expect_err("no room");
    assert!(matches!(error, SnapshotError::Write(_)), "{error}");
    disk.set_capacity(u64::MAX);
    group.propose(add(10, 10)).await.expect("it goes on");
    let last = group.snapshot_and_persist().await.expect("room again");
    assert_eq!(Some(last), *group.applied().borrow());
    assert_eq!(*group.fatal().borrow(), None);
    group.stop().await;
}
