//! Random lives of a group against its invariants.

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Join { instance: Option<u8>, known: bool },
    Rejoin(usize, bool),
    Sync(usize),
    Heartbeat(usize),
    Leave(usize),
    Pass(u64),
    Save(bool),
    Restart,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (proptest::option::weighted(0.3, 0u8..2), any::<bool>())
            .prop_map(|(instance, known)| Step::Join { instance, known }),
        6 => (0usize..8, any::<bool>()).prop_map(|(who, changed)| Step::Rejoin(who, changed)),
        8 => (0usize..8).prop_map(Step::Sync),
        3 => (0usize..8).prop_map(Step::Heartbeat),
        1 => (0usize..8).prop_map(Step::Leave),
        4 => prop_oneof![0u64..1_000, 1_000u64..30_000].prop_map(Step::Pass),
        6 => proptest::bool::weighted(0.85).prop_map(Step::Save),
        1 => Just(Step::Restart),
    ]
}

/// Remembers who was told to lead which generation.
fn leaders(rig: &Rig, told: &mut BTreeMap<i32, BTreeSet<MemberId>>) {
    for joined in rig.joins.values().flatten() {
        if joined.leader == joined.member && !joined.skip_assignment {
            told.entry(joined.generation)
                .or_default()
                .insert(joined.member.clone());
        }
    }
}

fn take_step(rig: &mut Rig, step: Step) {
    let known: Vec<MemberId> = rig
        .group
        .members()
        .keys()
        .chain(rig.group.pending.keys())
        .cloned()
        .collect();
    let pick = |who: usize| {
        known
            .get(who % known.len().max(1))
            .cloned()
            .unwrap_or_else(|| MemberId::new("nobody"))
    };
    let generation = rig.group.generation();
    match step {
        Step::Join { instance, known } => {
            let base = instance.map_or_else(request, |number| statically(&format!("i{number}")));
            rig.join(JoinRequest {
                require_known_member: known,
                ..base
            });
        }
        Step::Rejoin(who, changed) => {
            let subscription = Bytes::from_static(if changed { b"changed" } else { b"sub" });
            let protocols = vec![("range".to_owned(), subscription)];
            rig.join(JoinRequest {
                member: pick(who),
                protocols,
                ..request()
            });
        }
        Step::Sync(who) => {
            let id = pick(who);
            rig.sync(&id, generation, &[(&id, "part")]);
        }
        Step::Heartbeat(who) => drop(rig.group.heartbeat(rig.now, &pick(who), None, generation)),
        Step::Leave(who) => drop(rig.leave(&pick(who), None)),
        Step::Pass(ms) => rig.pass(ms),
        Step::Save(works) => rig.save_next((!works).then_some(ConsumerGroupError::Unavailable)),
        Step::Restart => {
            // What was on its way into the log is lost; another coordinator begins from the log.
            rig.saves.clear();
            let effects = rig.group.kill(ConsumerGroupError::NotCoordinator);
            rig.effects(effects);
            let name = ConsumerGroupName::new("g");
            let stored = rig.log.group(&name).cloned().unwrap_or_default();
            rig.group = Membership::restore(name, rig.group.config, &stored, rig.now);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Proves, over random lives of a group: generations never go back between restarts, one leader per generation,
    /// what is stored is what was answered, no ticket is answered twice (the rig checks), none is forgotten, and the
    /// group is never stuck: left alone, it ends empty with everything answered.
    #[test]
    fn random_lives(steps in proptest::collection::vec(any_step(), 1..120)) {
        let mut rig = Rig::new();
        rig.saves_at_once = false;
        let mut told = BTreeMap::new();
        let mut generation = 0;
        for step in steps {
            if matches!(step, Step::Restart) {
                leaders(&rig, &mut told);
                told.clear();
                rig.joins.retain(|_, answer| answer.is_err());
                generation = 0;
            }
            take_step(&mut rig, step);
            prop_assert!(rig.group.generation() >= generation, "the generation went back");
            generation = rig.group.generation();
            leaders(&rig, &mut told);
            if !rig.group.is_vacant() {
                let waits = rig.group.members().values().any(Member::waits);
                let saving = !rig.saves.is_empty();
                prop_assert!(rig.group.next_deadline().is_some() || (waits && saving), "stuck");
            }
            for member in rig.group.members().values() {
                if let Some(instance) = &member.instance {
                    prop_assert!(rig.group.instances.contains_key(instance));
                }
            }
            if rig.group.phase() == Phase::Stable && rig.saves.is_empty() {
                let stored = rig.log.group(&ConsumerGroupName::new("g")).unwrap();
                prop_assert_eq!(stored.generation, rig.group.generation());
                for id in rig.group.members().keys() {
                    let committer =
                        Committer::Member { generation: stored.generation, member: id.clone(), instance: None };
                    prop_assert_eq!(stored.check_committer(&committer), Ok(()));
                }
            }
        }
        for (generation, who) in &told {
            prop_assert!(who.len() <= 1, "generation {} had the leaders {:?}", generation, who);
        }
        // Everyone goes silent: saves come through, timers run, and the group comes to rest.
        for _ in 0..50 {
            while !rig.saves.is_empty() {
                rig.save_next(None);
            }
            rig.pass(60_000);
        }
        prop_assert!(rig.group.is_idle(), "not at rest: {:?}", rig.group);
        prop_assert_eq!(rig.group.next_deadline(), None);
    }
}
