//! Tests of the replicated state: fencing, expiry, bytes, golden files, determinism.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::coordinator::limits::{GROUP_OFFSETS_MAX, OFFSET_METADATA_BYTES_MAX};
use crate::coordinator::{ConsumerGroupError, limits};
use proptest::prelude::*;
use tidelog_model::{PartitionIndex, TopicId};
use uuid::Uuid;

fn group(name: &str) -> ConsumerGroupName {
    ConsumerGroupName::new(name)
}

fn partition(topic: u128, index: i32) -> PartitionId {
    PartitionId {
        topic: TopicId::new(Uuid::from_u128(topic)),
        index: PartitionIndex::new(index),
    }
}

fn new_offset(topic: u128, index: i32, offset: i64) -> NewOffset {
    NewOffset {
        partition: partition(topic, index),
        offset: Offset::new(offset),
        leader_epoch: LeaderEpoch::new(-1),
        metadata: String::new(),
    }
}

fn member(generation: i32, id: &str) -> Committer {
    Committer::Member {
        generation,
        member: MemberId::new(id),
        instance: None,
    }
}

fn commit(name: &str, committer: Committer, offset: i64) -> CoordinatorCommand {
    CoordinatorCommand::CommitOffsets {
        group: group(name),
        committer,
        offsets: vec![new_offset(1, 0, offset)],
    }
}

fn store(name: &str, generation: i32, ids: &[&str]) -> CoordinatorCommand {
    let stored = |id: &&str| {
        let member = StoredMember {
            instance: id.strip_prefix("static-").map(InstanceId::new),
            client_id: "c".into(),
            client_host: "h".into(),
            session_timeout_ms: 10_000,
            rebalance_timeout_ms: 60_000,
            subscription: Bytes::from_static(b"sub"),
            assignment: Bytes::from_static(b"asn"),
        };
        (MemberId::new(*id), member)
    };
    CoordinatorCommand::StoreGeneration {
        group: group(name),
        generation,
        protocol_type: "consumer".into(),
        protocol: "range".into(),
        leader: MemberId::new(*ids.first().unwrap_or(&"")),
        members: ids.iter().map(stored).collect(),
    }
}

fn expire(retention_ms: i64, names: &[&str]) -> CoordinatorCommand {
    CoordinatorCommand::ExpireOffsets {
        retention_ms,
        groups: names.iter().map(|name| group(name)).collect(),
    }
}

fn run(
    state: &mut ConsumerGroupsState,
    command: CoordinatorCommand,
    stamp: i64,
) -> CoordinatorOutcome {
    state.apply(command, TimestampMs::new(stamp))
}

fn refused(error: ConsumerGroupError) -> CoordinatorOutcome {
    CoordinatorOutcome::Refused(error)
}

fn committed(state: &ConsumerGroupsState, name: &str) -> Option<i64> {
    Some(
        state
            .group(&group(name))?
            .offsets
            .get(&partition(1, 0))?
            .offset
            .get(),
    )
}

/// Proves that a stale generation or an unknown member cannot commit, whatever the coordinator believed (R5).
#[test]
fn stale_members_are_fenced_in_apply() {
    let mut state = ConsumerGroupsState::new();
    assert_eq!(
        run(&mut state, commit("g", member(1, "a"), 5), 1),
        refused(ConsumerGroupError::IllegalGeneration)
    );
    assert_eq!(
        run(&mut state, store("g", 1, &["a", "b"]), 1),
        CoordinatorOutcome::Done
    );
    assert_eq!(
        run(&mut state, commit("g", member(1, "a"), 5), 1),
        CoordinatorOutcome::Done
    );
    assert_eq!(
        run(&mut state, commit("g", member(2, "a"), 9), 1),
        refused(ConsumerGroupError::IllegalGeneration)
    );
    assert_eq!(
        run(&mut state, commit("g", member(1, "x"), 9), 1),
        refused(ConsumerGroupError::UnknownMember)
    );
    assert_eq!(
        run(&mut state, commit("g", Committer::Simple, 9), 1),
        refused(ConsumerGroupError::UnknownMember)
    );
    assert_eq!(
        run(&mut state, store("g", 2, &["b"]), 1),
        CoordinatorOutcome::Done
    );
    assert_eq!(
        run(&mut state, commit("g", member(1, "a"), 9), 1),
        refused(ConsumerGroupError::UnknownMember)
    );
    assert_eq!(
        run(&mut state, commit("g", member(1, "b"), 9), 1),
        refused(ConsumerGroupError::IllegalGeneration)
    );
    assert_eq!(committed(&state, "g"), Some(5));
    assert_eq!(
        run(&mut state, commit("g", member(2, "b"), 6), 1),
        CoordinatorOutcome::Done
    );
    assert_eq!(committed(&state, "g"), Some(6));
}

/// Proves that a generation is stored once and never goes back, so of two coordinators one at most succeeds.
#[test]
fn generations_grow() {
    let mut state = ConsumerGroupsState::new();
    assert_eq!(
        run(&mut state, store("g", 0, &["a"]), 1),
        refused(ConsumerGroupError::IllegalGeneration)
    );
    assert_eq!(
        run(&mut state, store("g", 3, &["a"]), 1),
        CoordinatorOutcome::Done
    );
    for generation in [1, 3] {
        assert_eq!(
            run(&mut state, store("g", generation, &["b"]), 1),
            refused(ConsumerGroupError::IllegalGeneration)
        );
    }
    assert_eq!(
        run(&mut state, store("g", 4, &[]), 7),
        CoordinatorOutcome::Done
    );
    assert_eq!(
        state.group(&group("g")).unwrap().empty_since,
        Some(TimestampMs::new(7))
    );
    // An empty generation of a group that is not stored leaves no trace.
    assert_eq!(
        run(&mut state, store("never", 1, &[]), 1),
        CoordinatorOutcome::Done
    );
    assert!(state.group(&group("never")).is_none());
}

/// Proves that a static member's newest id fences the older one, also as leader.
#[test]
fn static_members_are_replaced() {
    let mut state = ConsumerGroupsState::new();
    run(&mut state, store("g", 1, &["static-i", "b"]), 1);
    let replace = |generation, old: &str, new: &str| CoordinatorCommand::ReplaceStaticMember {
        group: group("g"),
        generation,
        instance: InstanceId::new("i"),
        old: MemberId::new(old),
        new: MemberId::new(new),
    };
    assert_eq!(
        run(&mut state, replace(2, "static-i", "new"), 1),
        refused(ConsumerGroupError::IllegalGeneration)
    );
    assert_eq!(
        run(&mut state, replace(1, "b", "new"), 1),
        refused(ConsumerGroupError::FencedInstance)
    );
    assert_eq!(
        run(&mut state, replace(1, "static-i", "b"), 1),
        refused(ConsumerGroupError::FencedInstance)
    );
    assert_eq!(
        run(&mut state, replace(1, "static-i", "new"), 1),
        CoordinatorOutcome::Done
    );
    assert_eq!(
        state.group(&group("g")).unwrap().leader,
        MemberId::new("new")
    );
    let with_instance = |id: &str| Committer::Member {
        generation: 1,
        member: MemberId::new(id),
        instance: Some(InstanceId::new("i")),
    };
    assert_eq!(
        run(&mut state, commit("g", with_instance("static-i"), 1), 1),
        refused(ConsumerGroupError::FencedInstance)
    );
    assert_eq!(
        run(&mut state, commit("g", with_instance("new"), 1), 1),
        CoordinatorOutcome::Done
    );
}

/// Proves that simple consumers may commit to new and to empty groups, and that metadata and offsets are bounded.
#[test]
fn simple_commits_and_limits() {
    let mut state = ConsumerGroupsState::new();
    assert_eq!(
        run(&mut state, commit("g", Committer::Simple, 5), 1),
        CoordinatorOutcome::Done
    );
    assert_eq!(
        run(&mut state, commit("g", Committer::Simple, 3), 1),
        CoordinatorOutcome::Done
    );
    assert_eq!(committed(&state, "g"), Some(3));
    assert_eq!(
        run(&mut state, commit("g", Committer::Simple, -1), 1),
        refused(ConsumerGroupError::OffsetOutOfRange)
    );
    let mut long = new_offset(1, 0, 1);
    long.metadata = "x".repeat(OFFSET_METADATA_BYTES_MAX + 1);
    let long = CoordinatorCommand::CommitOffsets {
        group: group("g"),
        committer: Committer::Simple,
        offsets: vec![long],
    };
    assert_eq!(
        run(&mut state, long, 1),
        refused(ConsumerGroupError::MetadataTooLarge)
    );
    let many = |from: usize, count: usize| CoordinatorCommand::CommitOffsets {
        group: group("many"),
        committer: Committer::Simple,
        offsets: (from..from + count)
            .map(|index| new_offset(2, i32::try_from(index).unwrap(), 1))
            .collect(),
    };
    assert_eq!(
        run(&mut state, many(0, GROUP_OFFSETS_MAX), 1),
        CoordinatorOutcome::Done
    );
    assert_eq!(run(&mut state, many(0, 10), 1), CoordinatorOutcome::Done);
    assert_eq!(
        run(&mut state, many(GROUP_OFFSETS_MAX, 1), 1),
        refused(ConsumerGroupError::CommitTooLarge)
    );
}

/// Proves that the number of groups is bounded.
#[test]
fn groups_are_bounded() {
    let mut state = ConsumerGroupsState::new();
    for number in 0..limits::GROUPS_MAX {
        run(
            &mut state,
            commit(&format!("g{number}"), Committer::Simple, 1),
            1,
        );
    }
    assert_eq!(
        run(&mut state, commit("one more", Committer::Simple, 1), 1),
        refused(ConsumerGroupError::Overloaded)
    );
    assert_eq!(
        run(&mut state, store("one more", 1, &["a"]), 1),
        refused(ConsumerGroupError::Overloaded)
    );
    assert_eq!(
        run(&mut state, commit("g0", Committer::Simple, 2), 1),
        CoordinatorOutcome::Done
    );
}

/// Proves that groups with members are not deleted and that a deleted group is gone (field report A28).
#[test]
fn deleting() {
    let mut state = ConsumerGroupsState::new();
    let delete = || CoordinatorCommand::DeleteGroup { group: group("g") };
    let delete_offsets = |index| CoordinatorCommand::DeleteOffsets {
        group: group("g"),
        partitions: vec![partition(1, 0), partition(1, index)],
    };
    assert_eq!(
        run(&mut state, delete(), 1),
        refused(ConsumerGroupError::GroupNotFound)
    );
    run(&mut state, store("g", 1, &["a"]), 1);
    run(&mut state, commit("g", member(1, "a"), 5), 1);
    assert_eq!(
        run(&mut state, delete(), 1),
        refused(ConsumerGroupError::NonEmptyGroup)
    );
    assert_eq!(
        run(&mut state, delete_offsets(1), 1),
        refused(ConsumerGroupError::NonEmptyGroup)
    );
    run(&mut state, store("g", 2, &[]), 1);
    assert_eq!(
        run(&mut state, delete_offsets(1), 1),
        CoordinatorOutcome::Removed {
            offsets: 1,
            groups: 0
        }
    );
    run(&mut state, commit("g", Committer::Simple, 5), 1);
    assert_eq!(
        run(&mut state, delete(), 1),
        CoordinatorOutcome::Removed {
            offsets: 1,
            groups: 1
        }
    );
    let restored = ConsumerGroupsState::decode(&state.encode()).unwrap();
    assert!(restored.groups().is_empty());
}

/// Proves that offsets expire only in groups without members, from the later of commit and leaving (A27).
#[test]
fn expiry_spares_groups_with_members() {
    let mut state = ConsumerGroupsState::new();
    run(&mut state, store("g", 1, &["a"]), 1_000);
    run(&mut state, commit("g", member(1, "a"), 5), 1_000);
    let nothing = CoordinatorOutcome::Removed {
        offsets: 0,
        groups: 0,
    };
    assert_eq!(
        run(&mut state, expire(100, &["g", "unknown"]), 9_000),
        nothing
    );
    run(&mut state, store("g", 2, &[]), 9_000);
    assert_eq!(run(&mut state, expire(100, &["g"]), 9_099), nothing);
    assert_eq!(
        run(&mut state, commit("g", Committer::Simple, 6), 9_050),
        CoordinatorOutcome::Done
    );
    assert_eq!(run(&mut state, expire(100, &["g"]), 9_120), nothing);
    let gone = CoordinatorOutcome::Removed {
        offsets: 1,
        groups: 1,
    };
    assert_eq!(run(&mut state, expire(100, &["g"]), 9_200), gone);
    assert!(state.group(&group("g")).is_none());
    // A leader with a slow clock does not turn time back.
    assert_eq!(state.stamp(), TimestampMs::new(9_200));
    run(&mut state, commit("h", Committer::Simple, 1), 5);
    assert_eq!(run(&mut state, expire(100, &["h"]), 6), nothing);
}

/// Proves that offsets of deleted topics go, and with them groups that hold nothing else.
#[test]
fn forgetting_topics() {
    let mut state = ConsumerGroupsState::new();
    run(&mut state, commit("only", Committer::Simple, 1), 1);
    run(&mut state, store("live", 1, &["a"]), 1);
    run(&mut state, commit("live", member(1, "a"), 1), 1);
    run(&mut state, store("fresh", 1, &["a"]), 1);
    run(&mut state, store("fresh", 2, &[]), 1);
    let forget = CoordinatorCommand::ForgetTopics {
        topics: vec![TopicId::new(Uuid::from_u128(1))],
    };
    assert_eq!(
        run(&mut state, forget, 1),
        CoordinatorOutcome::Removed {
            offsets: 2,
            groups: 1
        }
    );
    let names: Vec<_> = state
        .groups()
        .keys()
        .map(ConsumerGroupName::as_str)
        .collect();
    assert_eq!(names, ["fresh", "live"]);
}

fn samples() -> Vec<CoordinatorCommand> {
    let mut noted = new_offset(1, 2, 42);
    noted.metadata = "note".into();
    noted.leader_epoch = LeaderEpoch::new(3);
    vec![
        store("g", 1, &["a", "static-i"]),
        CoordinatorCommand::CommitOffsets {
            group: group("g"),
            committer: Committer::Member {
                generation: 1,
                member: MemberId::new("static-i"),
                instance: Some(InstanceId::new("i")),
            },
            offsets: vec![noted, new_offset(2, 0, 7)],
        },
        commit("simple", Committer::Simple, 9),
        commit("expired", Committer::Simple, 9),
        CoordinatorCommand::ReplaceStaticMember {
            group: group("g"),
            generation: 1,
            instance: InstanceId::new("i"),
            old: MemberId::new("static-i"),
            new: MemberId::new("static-j"),
        },
        CoordinatorCommand::DeleteOffsets {
            group: group("simple"),
            partitions: vec![partition(9, 1)],
        },
        CoordinatorCommand::DeleteGroup {
            group: group("expired"),
        },
        expire(1_000, &["none", "simple"]),
        CoordinatorCommand::ForgetTopics {
            topics: vec![TopicId::new(Uuid::from_u128(2))],
        },
        store("empty", 1, &["a"]),
        store("empty", 2, &[]),
    ]
}

fn sample_state() -> ConsumerGroupsState {
    let mut state = ConsumerGroupsState::new();
    for command in samples() {
        let outcome = run(&mut state, command, 1_700_000_000_000);
        assert!(
            !matches!(outcome, CoordinatorOutcome::Refused(_)),
            "{outcome:?}"
        );
    }
    state
}

/// Proves that commands survive their bytes, that damage is refused, and that a damaged command changes nothing.
#[test]
fn commands_survive_their_bytes() {
    for command in samples() {
        let encoded = command.encode(TimestampMs::new(5));
        assert!(encoded.body.is_empty());
        assert!(COMMAND_KINDS.contains(&encoded.dir[0]));
        assert_eq!(
            decode_command(&encoded.dir).unwrap(),
            (command, TimestampMs::new(5))
        );
        for length in 0..encoded.dir.len() {
            assert!(decode_command(&encoded.dir[..length]).is_err());
            let mut state = sample_state();
            assert_eq!(
                state.apply_bytes(&encoded.dir[..length]),
                refused(ConsumerGroupError::Unreadable)
            );
            assert_eq!(state, sample_state());
        }
        let mut longer = encoded.dir.to_vec();
        longer.push(0);
        assert!(decode_command(&longer).is_err());
        let mut newer = encoded.dir.to_vec();
        newer[1] = 2;
        assert!(decode_command(&newer).is_err());
    }
}

fn golden(name: &str, bytes: &[u8]) {
    let path = format!(
        "{}/src/coordinator/testdata/{name}",
        env!("CARGO_MANIFEST_DIR")
    );
    if std::env::var_os("TIDELOG_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, bytes).unwrap();
    }
    assert_eq!(
        std::fs::read(&path).unwrap(),
        bytes,
        "{name} differs: a released format may not change"
    );
}

/// Proves that version 1 of both formats stays as released.
#[test]
fn formats_are_golden() {
    let mut commands = Vec::new();
    for command in samples() {
        let dir = command.encode(TimestampMs::new(1_700_000_000_000)).dir;
        commands.extend_from_slice(&u32::try_from(dir.len()).unwrap().to_le_bytes());
        commands.extend_from_slice(&dir);
    }
    golden("coordinator-commands-v1.bin", &commands);
    let state = sample_state();
    golden("coordinator-state-v1.bin", &state.encode());
    assert_eq!(ConsumerGroupsState::decode(&state.encode()).unwrap(), state);
}

/// Proves that a damaged state is refused, and that no bytes are the empty state.
#[test]
fn damaged_states_are_refused() {
    assert_eq!(
        ConsumerGroupsState::decode(b"").unwrap(),
        ConsumerGroupsState::new()
    );
    let bytes = sample_state().encode();
    for length in 1..bytes.len() {
        assert!(
            ConsumerGroupsState::decode(&bytes[..length]).is_err(),
            "length {length}"
        );
    }
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(ConsumerGroupsState::decode(&damaged).is_err(), "bit {bit}");
    }
}

fn any_command() -> impl Strategy<Value = CoordinatorCommand> {
    let name = || prop_oneof![Just("g"), Just("h"), Just("k")];
    let ids = prop_oneof![
        Just(vec![]),
        Just(vec!["a"]),
        Just(vec!["a", "b"]),
        Just(vec!["b", "static-i"])
    ];
    let who = prop_oneof![
        Just(Committer::Simple),
        (0i32..6, prop_oneof![Just("a"), Just("b"), Just("static-i")])
            .prop_map(|(generation, id)| member(generation, id)),
    ];
    prop_oneof![
        4 => (name(), who, 0i64..100).prop_map(|(name, who, offset)| commit(name, who, offset)),
        3 => (name(), 0i32..6, ids).prop_map(|(name, generation, ids)| store(name, generation, &ids)),
        1 => name().prop_map(|name| CoordinatorCommand::DeleteGroup { group: group(name) }),
        1 => (0i64..20).prop_map(|retention| expire(retention, &["g", "h", "k"])),
        1 => Just(CoordinatorCommand::ForgetTopics { topics: vec![TopicId::new(Uuid::from_u128(1))] }),
    ]
}

/// What a group may do, in a few lines: the model that the state is compared with.
#[derive(Default, Clone)]
struct Model {
    generation: i32,
    members: Vec<String>,
    offset: Option<i64>,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Proves that replicas agree byte for byte, also when one was restored on the way, and that a commit is accepted
    /// exactly when a tiny model says so.
    #[test]
    fn replicas_agree(commands in proptest::collection::vec((any_command(), 0i64..50), 1..80), cut in 0usize..80) {
        let mut one = ConsumerGroupsState::new();
        let mut two = ConsumerGroupsState::new();
        let mut models: BTreeMap<String, Model> = BTreeMap::new();
        for (index, (command, stamp)) in commands.into_iter().enumerate() {
            let encoded = command.encode(TimestampMs::new(stamp));
            let outcome = one.apply_bytes(&encoded.dir);
            prop_assert_eq!(&outcome, &two.apply_bytes(&encoded.dir));
            if index == cut {
                two = ConsumerGroupsState::decode(&two.encode()).unwrap();
            }
            let done = !matches!(outcome, CoordinatorOutcome::Refused(_));
            match command {
                CoordinatorCommand::CommitOffsets { group, committer, offsets } => {
                    let model = models.entry(group.as_str().to_owned()).or_default();
                    let allowed = match &committer {
                        Committer::Simple => model.members.is_empty(),
                        Committer::Member { generation, member, .. } => {
                            *generation == model.generation && model.members.iter().any(|id| id == member.as_str())
                        }
                    };
                    prop_assert_eq!(done, allowed);
                    if done {
                        model.offset = Some(offsets[0].offset.get());
                    }
                }
                CoordinatorCommand::StoreGeneration { group, generation, members, .. } => {
                    let known = one.group(&group).is_some();
                    let model = models.entry(group.as_str().to_owned()).or_default();
                    prop_assert_eq!(done, generation > model.generation);
                    if done && known {
                        model.generation = generation;
                        model.members = members.keys().map(|id| id.as_str().to_owned()).collect();
                    }
                }
                _ => {
                    // Groups and offsets that went away begin anew.
                    for (name, model) in &mut models {
                        match one.group(&group(name)) {
                            None => *model = Model::default(),
                            Some(_) => model.offset = committed(&one, name),
                        }
                    }
                }
            }
            for (name, model) in &models {
                prop_assert_eq!(committed(&one, name), model.offset);
            }
        }
        prop_assert_eq!(one.encode(), two.encode());
        prop_assert_eq!(ConsumerGroupsState::decode(&one.encode()).unwrap(), one);
    }
}
