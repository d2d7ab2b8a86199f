//! One voter: proposals, order, limits, restarts, checkpoints, the end.

use super::*;
use crate::log::DIR_BYTES_MAX;
use bytes::Bytes;
use futures::future::join_all;
use tokio::time::Instant;

/// Proves the whole way of a proposal: the outcome belongs to the command, the entry is in the log with its bytes,
/// the machine holds it, and `applied` agrees with the machine under its lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proposal_comes_back_with_its_outcome() {
    let group = Home::in_memory(&MemoryDisk::new())
        .lead(Values::new(Cuts::Latest))
        .await;
    assert!(group.is_leader() && group.can_serve_reads());
    assert_eq!(group.leadership().borrow().leader, Some(NodeId::new(1)));
    let (id, outcome) = group.propose(add(42, 100)).await.expect("applied");
    assert_eq!(outcome, (0, 42));
    group
        .read_barrier()
        .await
        .expect("the only voter is its own quorum");
    assert_eq!(id.term, group.term());
    assert_eq!(
        group.read(|machine| (machine.last, machine.values.clone())),
        (Some(id), vec![42])
    );
    assert_eq!(*group.applied().borrow(), Some(id));
    let body = group
        .log()
        .read_bodies(&[(id.index, 0..100)])
        .await
        .expect("in the log");
    assert_eq!(body, [Bytes::from(vec![42; 100])]);
    // Entry 0 is the membership, entry 1 the blank one of the first term.
    assert_eq!(group.read(|machine| machine.blanks), 2);
    assert_eq!(group.in_flight(), (0, 0));
    group.stop().await;
}

/// Proves that pipelined calls keep their order in the log and each gets its own outcome.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ordered_proposals_keep_the_order_of_the_calls() {
    let group = Home::in_memory(&MemoryDisk::new())
        .lead(Values::new(Cuts::Latest))
        .await;
    let mut before = None;
    for round in 0..20_u64 {
        let waiting: Vec<_> = (0..200)
            .map(|at| group.propose_ordered(add(round * 200 + at, 10)))
            .collect();
        for (at, result) in join_all(waiting).await.into_iter().enumerate() {
            let (id, (position, value)) = result.expect("applied");
            let expected = round * 200 + u64::try_from(at).expect("small");
            assert_eq!(
                (position, value),
                (usize::try_from(expected).expect("small"), expected)
            );
            assert!(Some(id) > before, "{id} after {before:?}");
            before = Some(id);
        }
    }
    assert_eq!(
        group.read(|machine| machine.values.clone()),
        (0..4000).collect::<Vec<_>>()
    );
    group.stop().await;
}

/// Proves that a call enqueues at once: futures that are dropped unpolled have happened all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_future_does_not_take_the_command_back() {
    let group = Home::in_memory(&MemoryDisk::new())
        .lead(Values::new(Cuts::Latest))
        .await;
    drop(group.propose_ordered(add(1, 0)));
    let (_, outcome) = group.propose(add(2, 0)).await.expect("applied");
    assert_eq!(outcome, (1, 2));
    assert_eq!(group.read(|machine| machine.values.clone()), vec![1, 2]);
    assert_eq!(
        group.in_flight(),
        (0, 0),
        "the slot of the dropped one came back too"
    );
    group.stop().await;
}

/// Proves that proposals of many tasks each get their own outcome.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outcomes_go_to_their_proposers() {
    let group = Home::in_memory(&MemoryDisk::new())
        .lead(Values::new(Cuts::Latest))
        .await;
    let proposers = (0..16_u64).map(|proposer| {
        let group = group.clone();
        tokio::spawn(async move {
            for round in 0..50 {
                let value = proposer * 1000 + round;
                let (_, (position, echoed)) = group.propose(add(value, 1)).await.expect("applied");
                assert_eq!(echoed, value);
                assert_eq!(group.read(|machine| machine.values[position]), value);
            }
        })
    });
    for proposer in join_all(proposers).await {
        proposer.expect("no proposer panicked");
    }
    group.stop().await;
}

/// Proves that what the log could not write is refused before Raft takes it: such an entry would end the group.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_log_cannot_hold_is_refused() {
    let disk = MemoryDisk::new();
    let home = Home::in_memory(&disk);
    let group = home
        .lead_with(home.config(), Values::new(Cuts::Latest))
        .await;
    let bytes_max = group.log().entry_bytes_max();
    let directory = Command::new(vec![0; DIR_BYTES_MAX + 1].into(), Bytes::new());
    let body = Command::new(Bytes::from_static(&[0; 8]), Bytes::from(vec![0; bytes_max]));
    for command in [directory, body] {
        let refused = group.propose(command).await.expect_err("too large");
        assert!(
            matches!(refused, ProposeError::TooLarge { .. }),
            "{refused:?}"
        );
    }
    assert!(group.propose(add(1, 0)).await.is_ok(), "the group lives");
    group.stop().await;
}

/// Proves the limits: too large for ever, too much for now, and that both did not happen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_refuse_before_anything_happens() {
    let disk = MemoryDisk::new();
    let home = Home::in_memory(&disk);
    let mut config = home.config();
    config.entry_bytes_max = 1008;
    config.in_flight_bytes_max = 3000;
    config.in_flight_count_max = 4;
    let group = home.lead_with(config, Values::new(Cuts::Latest)).await;
    let too_large = group.propose(add(9, 1001)).await.expect_err("too large");
    assert_eq!(
        too_large,
        ProposeError::TooLarge {
            bytes: 1009,
            bytes_max: 1008
        }
    );

    let hold = disk.hold_syncs();
    let by_count: Vec<_> = (0..4)
        .map(|value| group.propose_ordered(add(value, 0)))
        .collect();
    assert_eq!(
        group.propose(add(9, 0)).await,
        Err(ProposeError::Overloaded),
        "count"
    );
    assert_eq!(group.in_flight(), (4, 32));
    drop(hold);
    for result in join_all(by_count).await {
        result.expect("applied once the disk syncs");
    }
    let hold = disk.hold_syncs();
    let by_bytes: Vec<_> = (4..6)
        .map(|value| group.propose_ordered(add(value, 1000)))
        .collect();
    assert_eq!(
        group.propose(add(9, 1000)).await,
        Err(ProposeError::Overloaded),
        "bytes"
    );
    drop(hold);
    for result in join_all(by_bytes).await {
        result.expect("applied");
    }
    assert_eq!(
        group.read(|machine| machine.values.clone()),
        (0..6).collect::<Vec<_>>()
    );
    group.stop().await;
}

/// Proves that a deadline ends the waiting and not the proposal, and that nothing is answered or applied before the sync.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_may_have_happened() {
    let disk = MemoryDisk::new();
    let home = Home::in_memory(&disk);
    let mut config = home.config();
    config.propose_deadline = Duration::from_millis(100);
    let group = home.lead_with(config, Values::new(Cuts::Latest)).await;
    let hold = disk.hold_syncs();
    let late = group
        .propose(add(7, 0))
        .await
        .expect_err("the disk does not sync");
    assert_eq!(late, ProposeError::Timeout);
    assert!(late.may_have_happened());
    assert_eq!(
        group.read(|machine| machine.values.clone()),
        Vec::<u64>::new(),
        "not applied before the sync (I7)"
    );
    assert_eq!(group.in_flight().0, 1, "the slot stays taken");
    drop(hold);
    let mut applied = group.applied();
    let holds_it = tokio::time::timeout(WAIT, async {
        while group.read(|machine| machine.values.is_empty()) {
            applied.changed().await.expect("the group runs");
        }
    });
    holds_it.await.expect("it happened after all");
    group.stop().await;
}

/// Proves that a restart comes back fast, in a new term, with everything, and passes the barrier before it leads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_holds_everything_and_begins_a_new_term() {
    let home = Home::in_memory(&MemoryDisk::new());
    let mut term = Term::new(0);
    for round in 0..6_u64 {
        let started = Instant::now();
        let group = home.lead(Values::new(Cuts::Latest)).await;
        assert!(
            started.elapsed() < Duration::from_millis(1000),
            "no election timer: {:?}",
            started.elapsed()
        );
        assert!(group.term() > term, "{} after {term}", group.term());
        term = group.term();
        let expected: Vec<u64> = (0..round * 10).collect();
        assert_eq!(
            group.read(|machine| machine.values.clone()),
            expected,
            "all there when it leads"
        );
        let adds =
            (round * 10..round * 10 + 10).map(|value| group.propose_ordered(add(value, 500)));
        for result in join_all(adds.collect::<Vec<_>>()).await {
            result.expect("applied");
        }
        group.stop().await;
    }
}

/// Proves that a checkpoint at the last applied entry, a purge and a restart lose nothing, and that the restart does not need
/// what was purged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checkpoint_purge_restart() {
    let home = Home::in_memory(&MemoryDisk::new());
    let group = home.lead(Values::new(Cuts::Latest)).await;
    for value in 0..50 {
        group.propose(add(value, 2000)).await.expect("applied");
    }
    let last = group.snapshot_and_persist().await.expect("persisted");
    assert_eq!(Some(last), *group.applied().borrow());
    assert_eq!(
        group.snapshot_and_persist().await,
        Ok(last),
        "nothing newer: nothing to do"
    );
    group.purge(last.index).await.expect("asked");
    wait_purged(&group, last.index).await;
    group.propose(add(50, 0)).await.expect("applied");
    group.stop().await;

    let group = home.lead(Values::new(Cuts::Latest)).await;
    assert_eq!(
        group.read(|machine| machine.values.clone()),
        (0..=50).collect::<Vec<_>>()
    );
    assert_eq!(
        group.log().state().purged.map(|id| id.index),
        Some(last.index)
    );
    assert_eq!(
        group.propose(add(51, 0)).await.expect("applied").1,
        (51, 51)
    );
    group.stop().await;
}

async fn wait_purged(group: &Group<Values>, upto: LogIndex) {
    let gone = tokio::time::timeout(WAIT, async {
        while group.log().state().purged.map(|id| id.index) < Some(upto) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    gone.await.expect("purged");
}

/// Proves that an image older than the last applied entry is legal, gates the purge, and that the restart re-applies what came
/// after it exactly once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_older_than_applied_gates_the_purge() {
    let home = Home::in_memory(&MemoryDisk::new());
    let group = home.lead(Values::new(Cuts::AtCut)).await;
    assert_eq!(
        group.snapshot_and_persist().await,
        Err(SnapshotError::Nothing)
    );
    group.purge(LogIndex::new(1)).await.expect("asked");
    for value in 0..30 {
        group.propose(add(value, 100)).await.expect("applied");
    }
    let (at_cut, _) = group.propose(cut()).await.expect("applied");
    for value in 30..60 {
        group.propose(add(value, 100)).await.expect("applied");
    }
    assert_eq!(group.log().state().purged, None, "no checkpoint, no purge");
    assert_eq!(group.snapshot_and_persist().await, Ok(at_cut));
    let beyond = group.applied().borrow().expect("applied").index;
    group.purge(beyond).await.expect("asked");
    wait_purged(&group, at_cut.index).await;
    assert_eq!(
        group.log().state().purged,
        Some(at_cut),
        "never past the checkpoint (I10)"
    );
    group.stop().await;

    let group = home.lead(Values::new(Cuts::AtCut)).await;
    assert_eq!(
        group.read(|machine| machine.values.clone()),
        (0..60).collect::<Vec<_>>()
    );
    let (second, _) = group.propose(cut()).await.expect("applied");
    assert_eq!(group.snapshot_and_persist().await, Ok(second));
    group.stop().await;

    let group = home.lead(Values::new(Cuts::AtCut)).await;
    assert_eq!(
        group.read(|machine| machine.values.clone()),
        (0..60).collect::<Vec<_>>()
    );
    group.stop().await;
}

/// Proves that a machine that offers more than is applied is refused before anything is written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_ahead_of_applied_is_refused() {
    struct Ahead(Values);
    impl StateMachine for Ahead {
        type Outcome = (usize, u64);
        fn apply(&mut self, id: LogId, command: &Command) -> Self::Outcome {
            self.0.apply(id, command)
        }
        fn snapshot(&self) -> Option<(LogId, Bytes)> {
            let offered = LogId {
                term: Term::new(99),
                index: LogIndex::new(99),
            };
            Some((offered, Bytes::new()))
        }
        fn restore(&mut self, _last: LogId, _image: &Bytes) -> Result<(), String> {
            Err("never restored".to_owned())
        }
    }
    let home = Home::in_memory(&MemoryDisk::new());
    let machine = Ahead(Values::new(Cuts::Latest));
    let group = Group::start(home.config(), home.log().await, machine, Arc::new(NoPeers))
        .await
        .expect("starts");
    group.wait_leader(WAIT).await.expect("leads");
    let error = group.snapshot_and_persist().await.expect_err("refused");
    assert!(matches!(error, SnapshotError::Ahead { .. }), "{error}");
    assert_eq!(
        group
            .log()
            .load_newest_checkpoint()
            .await
            .expect("readable"),
        None
    );
    group.stop().await;
}

/// Proves that a checkpoint that is damaged or of another position stops the start with one line, and changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_checkpoint_is_refused_at_the_start() {
    let disk = MemoryDisk::new();
    let home = Home::in_memory(&disk);
    let group = home.lead(Values::new(Cuts::Latest)).await;
    group.propose(add(1, 0)).await.expect("applied");
    let last = group.snapshot_and_persist().await.expect("persisted");
    let (_, image) = group
        .log()
        .load_newest_checkpoint()
        .await
        .expect("readable")
        .expect("there");
    let later = LogId {
        term: last.term,
        index: last.index.next(),
    };
    group
        .log()
        .save_checkpoint(later, image)
        .await
        .expect("saved under a wrong name");
    group.stop().await;
    let log = home.log().await;
    let refused = Group::start(
        home.config(),
        log.clone(),
        Values::new(Cuts::Latest),
        Arc::new(NoPeers),
    )
    .await;
    let error = refused.err().expect("refused");
    assert!(
        matches!(&error, PlacementError::Checkpoint { why, .. } if why.contains("says it is of")),
        "{error}"
    );
    log.save_checkpoint(later, Bytes::from_static(b"nonsense"))
        .await
        .expect("saved");
    let refused = Group::start(
        home.config(),
        log,
        Values::new(Cuts::Latest),
        Arc::new(NoPeers),
    )
    .await;
    assert!(matches!(
        refused.err().expect("refused"),
        PlacementError::Checkpoint { .. }
    ));
}

/// Proves that a group without first members waits: it does not lead, and a proposal did not happen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_members_nobody_leads() {
    let home = Home::in_memory(&MemoryDisk::new());
    let config = GroupConfig::new(GROUP, home.node, BTreeMap::new());
    let group = Group::start(
        config,
        home.log().await,
        Values::new(Cuts::Latest),
        Arc::new(NoPeers),
    )
    .await
    .expect("starts");
    assert_eq!(
        group.propose(add(1, 0)).await,
        Err(ProposeError::NotLeader { leader: None })
    );
    assert!(!group.is_leader() && !group.can_serve_reads());
    group
        .wait_leader(Duration::from_millis(50))
        .await
        .expect_err("nobody leads");
    group.stop().await;
    // The same log, now with members: it is set up then.
    let group = home.lead(Values::new(Cuts::Latest)).await;
    group.propose(add(1, 0)).await.expect("applied");
    group.stop().await;
}

/// Proves that one voter of three elects nobody alone: an unreachable peer grants no pre-vote, and the term stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreachable_peers_grant_nothing() {
    let home = Home::in_memory(&MemoryDisk::new());
    let members = (1..=3).map(|id| (RaftNodeId::new(id), member(1))).collect();
    let mut config = GroupConfig::new(GROUP, home.node, members);
    config.heartbeat = Duration::from_millis(20);
    config.election_min = Duration::from_millis(80);
    config.election_max = Duration::from_millis(120);
    let group = Group::start(
        config,
        home.log().await,
        Values::new(Cuts::Latest),
        Arc::new(NoPeers),
    )
    .await
    .expect("starts");
    // Several election timeouts.
    group
        .wait_leader(Duration::from_millis(600))
        .await
        .expect_err("no quorum");
    // Setting a group up campaigns once without asking first; every later attempt asks, and nobody answers.
    assert_eq!(
        group.term(),
        Term::new(1),
        "pre-votes do not inflate the term"
    );
    group.stop().await;
}

/// Proves that stop ends everything: proposals fail as Fatal, leadership is gone, and it is no failure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_group_answers_and_reports_no_failure() {
    let group = Home::in_memory(&MemoryDisk::new())
        .lead(Values::new(Cuts::Latest))
        .await;
    group.stop().await;
    let error = group.propose(add(1, 0)).await.expect_err("stopped");
    assert!(matches!(error, ProposeError::Fatal(_)), "{error}");
    assert!(!group.is_leader());
    assert_eq!(*group.fatal().borrow(), None);
    assert!(matches!(
        group.snapshot_and_persist().await,
        Err(SnapshotError::Fatal(_) | SnapshotError::Write(_))
    ));
    group.purge(LogIndex::new(0)).await.expect_err("stopped");
    assert_eq!(group.in_flight(), (0, 0));
}

/// Proves that a machine that panics stops the group with a reason, instead of leaving proposers waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_panics_stops_the_group() {
    let mut machine = Values::new(Cuts::Latest);
    machine.poison = Some(13);
    let group = Home::in_memory(&MemoryDisk::new()).lead(machine).await;
    group.propose(add(12, 0)).await.expect("applied");
    let error = group
        .propose(add(13, 0))
        .await
        .expect_err("the machine panics");
    assert!(matches!(error, ProposeError::Fatal(_)), "{error}");
    let mut fatal = group.fatal();
    let why = tokio::time::timeout(WAIT, fatal.wait_for(Option::is_some))
        .await
        .expect("reported")
        .expect("running");
    assert!(
        why.as_ref().expect("a reason").contains("panicked"),
        "{why:?}"
    );
    drop(why);
    assert!(!group.is_leader() && !group.can_serve_reads());
    group.stop().await;
}

/// Prints how many small proposals per second one group takes on real files; nothing is asserted about the number.
#[allow(clippy::print_stderr, reason = "the number is what this test is for")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_proposals() {
    let (_dir, home) = real_home();
    let group = home.lead(Values::new(Cuts::Latest)).await;
    let started = Instant::now();
    let mut waiting = std::collections::VecDeque::new();
    for value in 0..10_000_u64 {
        if waiting.len() == 256 {
            let oldest: futures::future::BoxFuture<'_, _> = waiting.pop_front().expect("full");
            let result: Result<(LogId, (usize, u64)), ProposeError> = oldest.await;
            result.expect("applied");
        }
        waiting.push_back(futures::FutureExt::boxed(
            group.propose_ordered(add(value, 1000)),
        ));
    }
    for rest in waiting {
        rest.await.expect("applied");
    }
    let took = started.elapsed();
    let rate = 10_000.0 / took.as_secs_f64();
    eprintln!(
        "10k proposals of 1 KB, 256 in flight: {took:?}, {rate:.0}/s, {:.1} MB/s",
        rate / 1000.0
    );
    assert_eq!(group.read(|machine| machine.values.len()), 10_000);
    group.stop().await;
}
