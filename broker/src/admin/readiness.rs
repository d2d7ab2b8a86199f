//! Whether the placement groups of this broker are such that clients can be sent here, and that the next broker may be stopped.
//!
//! Owns: part `groups` of health, looked at in the background: a broker that came back is ready when its replicas have caught up once, and a
//! change of leaders does not end that.
//! Not here: the other parts (`health.rs`, `node`), which groups are lost (`router`).
//! Spec: docs/operating/health.md

use super::health::Health;
use crate::metadata::{MetadataImage, brokers};
use crate::placement::{Group, StateMachine};
use crate::router::Router;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::Tasks;
use tidelog_model::{NodeId, PlacementGroupId, RaftNodeId, TimestampMs};
use tokio::time::Instant;

/// How often it is looked.
const TICK: Duration = Duration::from_millis(250);
/// A group may be without a leader for so long before clients are kept away: elections take 2 s, and 10 s at worst.
const LEADERLESS_WITHIN: Duration = Duration::from_secs(10);
/// A broker that has not caught up so long after its start is only warned about: what it waits for may never come.
const CATCH_UP_WITHIN: Duration = Duration::from_secs(600);
/// Groups that are named at most.
const NAMED_MAX: usize = 5;

/// What a replica here is to its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Now {
    /// It leads, or follows closely.
    InSync,
    /// It hears a leader, and lacks what that has committed.
    Behind,
    /// No leader is heard.
    Leaderless,
    /// So many copies are gone with their disks that the others elect no leader.
    Lost,
}

/// What health says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Verdict {
    not_ready: Option<String>,
    warning: Option<String>,
}

/// What was seen so far.
struct Seen {
    started: Instant,
    /// All had caught up at one time: what comes later need not be waited for.
    came: bool,
    caught_up: BTreeMap<PlacementGroupId, bool>,
    leaderless: BTreeMap<PlacementGroupId, Instant>,
}

impl Seen {
    const fn new(now: Instant) -> Self {
        Self {
            started: now,
            came: false,
            caught_up: BTreeMap::new(),
            leaderless: BTreeMap::new(),
        }
    }

    /// Looks at the groups of this broker; metadata is one of them.
    fn look(&mut self, now: Instant, groups: &BTreeMap<PlacementGroupId, Now>) -> Verdict {
        self.caught_up.retain(|group, _| groups.contains_key(group));
        self.leaderless
            .retain(|group, _| groups.get(group) == Some(&Now::Leaderless));
        let (mut behind, mut leaderless, mut lost) = (Vec::new(), Vec::new(), Vec::new());
        for (group, at) in groups {
            let caught_up = self.caught_up.entry(*group).or_insert(self.came);
            match at {
                Now::InSync => *caught_up = true,
                Now::Behind => {}
                Now::Leaderless => {
                    let since = *self.leaderless.entry(*group).or_insert(now);
                    // Without metadata's leader a broker that has caught up serves all that there is.
                    let waited = now.saturating_duration_since(since) < LEADERLESS_WITHIN;
                    if *group != PlacementGroupId::METADATA && (!*caught_up || !waited) {
                        leaderless.push(*group);
                        continue;
                    }
                }
                Now::Lost => {
                    lost.push(*group);
                    continue;
                }
            }
            if !*caught_up {
                behind.push(*group);
            }
        }
        self.came |= behind.is_empty() && leaderless.is_empty();
        let late = now.saturating_duration_since(self.started) >= CATCH_UP_WITHIN;
        let lag = said(
            &behind,
            "has not caught up since this broker started",
            "have not caught up since this broker started",
        );
        let (lag, late) = if late { (None, lag) } else { (lag, None) };
        let leaderless = said(&leaderless, "has no leader", "have no leader");
        let lost = said(
            &lost,
            "is lost: most of its copies are gone with their disks",
            "are lost: most of their copies are gone with their disks",
        );
        Verdict {
            not_ready: both(leaderless, lag),
            warning: both(lost, late),
        }
    }
}

fn said(groups: &[PlacementGroupId], one: &str, several: &str) -> Option<String> {
    let names = groups.iter().take(NAMED_MAX).map(ToString::to_string);
    let names = names.collect::<Vec<_>>().join(", ");
    let more = groups.len().saturating_sub(NAMED_MAX);
    match (groups.len(), more) {
        (0, _) => None,
        (1, _) => Some(format!("group {names} {one}")),
        (_, 0) => Some(format!("groups {names} {several}")),
        (_, 1) => Some(format!("groups {names} and 1 other {several}")),
        (_, more) => Some(format!("groups {names} and {more} others {several}")),
    }
}

fn both(one: Option<String>, other: Option<String>) -> Option<String> {
    match (one, other) {
        (Some(one), Some(other)) => Some(format!("{one}; {other}")),
        (one, other) => one.or(other),
    }
}

/// Whether the replica here votes for good, if it shall: until then the others must not go.
fn votes<M: StateMachine>(router: &Router, id: PlacementGroupId, group: &Group<M>) -> bool {
    let (own, now) = (router.node(), router.now());
    let shall = router.image(|image| shall_vote(image, own, now, id));
    shall.is_none_or(|raft_node| group.votes(raft_node))
}

/// As which Raft node `own` shall vote in the group; `None`: it shall not.
fn shall_vote(
    image: &MetadataImage,
    own: NodeId,
    now: TimestampMs,
    id: PlacementGroupId,
) -> Option<RaftNodeId> {
    let wanted = if id == PlacementGroupId::METADATA {
        image.metadata_replicas(now).0.contains(&own)
    } else {
        image.replicas_wanted(id).contains(&own)
    };
    let member = image.members().get(&own).filter(|_| wanted);
    member.map(|member| member.raft_node)
}

fn replica<M: StateMachine>(router: &Router, id: PlacementGroupId, group: &Group<M>) -> Now {
    if group.is_in_sync() && votes(router, id, group) {
        Now::InSync
    } else if router.known_leader(group).is_some() {
        Now::Behind
    } else {
        Now::Leaderless
    }
}

fn groups(router: &Router) -> BTreeMap<PlacementGroupId, Now> {
    let lost = router.lost_groups();
    let data = router.data_groups().map(|group| {
        let now = if lost.contains_key(&group.id()) {
            Now::Lost
        } else {
            replica(router, group.id(), group.group())
        };
        (group.id(), now)
    });
    let metadata = (
        PlacementGroupId::METADATA,
        replica(router, PlacementGroupId::METADATA, router.metadata()),
    );
    let here = std::iter::once(metadata).chain(data).collect();
    let own = router.node();
    let mut all = router.image(|image| with_coming(image, own, here));
    // Part `refill` speaks of those that do not come until the broker is refilled.
    all.retain(|group, _| !router.is_withheld(*group));
    all
}

/// What is `here`, and the groups that are not, though the image wants a replica here: a broker that is taken in anew has none of them yet when it knows its cluster, and
/// is behind in all.
fn with_coming(
    image: &MetadataImage,
    own: NodeId,
    here: BTreeMap<PlacementGroupId, Now>,
) -> BTreeMap<PlacementGroupId, Now> {
    let mut all = here;
    let groups = image.groups().keys();
    let wanted =
        groups.filter(|id| image.replicas_wanted(**id).contains(&own) && !image.is_lost(**id));
    for id in wanted {
        all.entry(*id).or_insert(Now::Behind);
    }
    all
}

/// Keeps part `groups` of `health` current until `tasks` stop. It is, when this returns.
pub fn watch_groups(router: &Router, health: &Health, tasks: &Tasks) {
    let seen = Arc::new(Mutex::new(Seen::new(Instant::now())));
    let look = move |router: &Router| {
        let mut verdict = seen.lock().look(Instant::now(), &groups(router));
        verdict.warning = both(verdict.warning, say_reverted(&router.reverted()));
        let kept = router.image(|image| say_kept_offsets(&image.kept_offsets()));
        verdict.warning = both(verdict.warning, kept);
        verdict
    };
    tell(health, look(router));
    let (router, health) = (router.clone(), health.clone());
    tasks.supervise("readiness", TICK, move || {
        let (router, health, look) = (router.clone(), health.clone(), look.clone());
        async move {
            let mut named = BTreeMap::new();
            loop {
                tokio::time::sleep(TICK).await;
                tell(&health, look(&router));
                let lost = router.lost_groups();
                say_lost(&lost, &named);
                named = lost;
            }
        }
    });
}

/// Of which groups, that this broker leads, which other ones have lost acknowledged entries.
fn say_reverted(reverted: &BTreeMap<PlacementGroupId, Vec<NodeId>>) -> Option<String> {
    let brokers: BTreeSet<String> = reverted.values().flatten().map(NodeId::to_string).collect();
    let groups: Vec<_> = reverted.keys().copied().collect();
    let brokers = brokers.into_iter().collect::<Vec<_>>().join(", ");
    let (one, several) = (
        format!("has a copy that lost acknowledged entries, on broker {brokers}"),
        format!("have copies that lost acknowledged entries, on broker {brokers}"),
    );
    said(&groups, &one, &several)
}

/// Which consumer groups nobody can use, though no partition is lost any more, and the way out. On every broker: their members are told nothing but to try again.
fn say_kept_offsets(kept: &BTreeMap<PlacementGroupId, &[NodeId]>) -> Option<String> {
    let at: BTreeSet<NodeId> = kept
        .values()
        .flat_map(|nodes| nodes.iter().copied())
        .collect();
    let at: Vec<NodeId> = at.into_iter().collect();
    let groups: Vec<_> = kept.keys().copied().collect();
    let holders = brokers(&at);
    let (have, command, stop) = match at.as_slice() {
        [one] => ("has", format!("`tidelog cluster decommission {one}`"), "it"),
        _ => (
            "have",
            "`tidelog cluster decommission` each of them".to_owned(),
            "each",
        ),
    };
    let of = |what: &str| {
        format!(
            "{what} no partitions any more, but offsets of consumer groups, which {holders} {have} a copy of: nobody can use these consumer groups. Start the other brokers \
             with the disks that they had; or give these offsets up, and the consumer groups begin anew: {command}, and stop {stop} when that says so"
        )
    };
    let (one, several) = (of("is lost, and has"), of("are lost, and have"));
    said(&groups, &one, &several)
}

/// An error line about each group that was not `named` before.
fn say_lost(
    lost: &BTreeMap<PlacementGroupId, Vec<String>>,
    named: &BTreeMap<PlacementGroupId, Vec<String>>,
) {
    for (group, partitions) in lost.iter().filter(|(group, _)| !named.contains_key(*group)) {
        tracing::error!(
            group = %group,
            "the group is lost: its only copy, or most of its copies, are gone with their disks. Nobody can append to or read {}",
            names(partitions)
        );
    }
}

/// Partitions for people: none, some, or the first of many.
fn names(partitions: &[String]) -> String {
    const SHOWN: usize = 20;
    let shown: Vec<&str> = partitions.iter().take(SHOWN).map(String::as_str).collect();
    match partitions.len() {
        0 => "anything that it would hold; it holds no partition".to_owned(),
        count if count == SHOWN + 1 => format!("{} and 1 other", shown.join(", ")),
        count if count > SHOWN => format!("{} and {} others", shown.join(", "), count - SHOWN),
        _ => shown.join(", "),
    }
}

fn tell(health: &Health, verdict: Verdict) {
    match verdict.not_ready {
        Some(why) => health.not_ready("groups", why),
        None => health.ready("groups"),
    }
    match verdict.warning {
        Some(what) => health.warn("replicas", what),
        None => health.clear("replicas"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::metadata::{Admission, MetadataCommand, MetadataOutcome};
    use tidelog_model::ClusterId;

    struct Rig {
        seen: Seen,
        now: Instant,
    }

    impl Rig {
        fn new() -> Self {
            let now = Instant::now();
            let seen = Seen::new(now);
            Self { seen, now }
        }

        /// What is said so many seconds later, with these groups.
        fn after(&mut self, seconds: u64, groups: &[(u32, Now)]) -> Verdict {
            self.now += Duration::from_secs(seconds);
            let groups = groups
                .iter()
                .map(|(id, at)| (PlacementGroupId::new(*id), *at));
            self.seen.look(self.now, &groups.collect())
        }
    }

    fn not_ready(why: &str) -> Verdict {
        Verdict {
            not_ready: Some(why.to_owned()),
            warning: None,
        }
    }

    /// Proves that a broker which came back is ready when every replica has caught up once, the one of metadata too, and that it is not held up by
    /// what comes later.
    #[test]
    fn ready_when_all_have_caught_up_once() {
        let mut rig = Rig::new();
        let lag = |groups: &str| {
            not_ready(&format!(
                "groups {groups} have not caught up since this broker started"
            ))
        };
        let all = [(0, Now::Behind), (1, Now::Behind), (2, Now::InSync)];
        assert_eq!(rig.after(0, &all), lag("0, 1"));
        let all = [(0, Now::Behind), (1, Now::Leaderless), (2, Now::Behind)];
        let both = "group 1 has no leader; group 0 has not caught up since this broker started";
        assert_eq!(rig.after(1, &all), not_ready(both));
        let all = [(0, Now::InSync), (1, Now::InSync), (2, Now::Behind)];
        assert_eq!(rig.after(1, &all), Verdict::default(), "each had caught up");
        let all = [(0, Now::Behind), (1, Now::Behind), (3, Now::Behind)];
        assert_eq!(
            rig.after(1, &all),
            Verdict::default(),
            "3 has come by a move"
        );
    }

    /// What the image says when broker 3, of three, was taken in anew as Raft node 31: group 9, which it held alone, is lost.
    fn taken_in_anew() -> MetadataImage {
        let node = NodeId::new;
        let at = |ids: &[i32]| ids.iter().copied().map(node).collect::<Vec<_>>();
        let groups = [
            (1, at(&[1, 2, 3])),
            (2, at(&[1, 2, 3])),
            (4, at(&[1, 2])),
            (9, at(&[3])),
        ];
        let groups = groups.map(|(id, at)| (PlacementGroupId::new(id), at));
        let mut image = MetadataImage::default();
        let mut run = |command| image.apply(command, TimestampMs::new(5));
        run(MetadataCommand::BootstrapCluster {
            cluster: ClusterId::new(uuid::Uuid::from_u128(7)),
            name: "t".to_owned(),
            groups: BTreeMap::from(groups),
        });
        for (id, raft_node) in [(1, 10), (2, 20), (3, 30), (3, 31)] {
            let outcome = run(MetadataCommand::AdmitBroker(Admission {
                node: node(id),
                raft_node: RaftNodeId::new(raft_node),
                zone: format!("zone-{id}"),
                peer: None,
                by_operator: true,
                expects: None,
            }));
            assert_eq!(outcome, MetadataOutcome::MembersChanged);
            let fenced = false;
            run(MetadataCommand::SetBrokerFence {
                node: node(id),
                fenced,
            });
        }
        image
    }

    /// Proves that a broker which is taken in anew is not ready before each replica that it shall have is there and in sync, whenever it looks; that it waits neither for what
    /// others hold nor for what is lost; and as whom it must vote first.
    #[test]
    fn what_is_still_to_come_is_waited_for() {
        let (image, own) = (taken_in_anew(), NodeId::new(3));
        let group = PlacementGroupId::new;
        assert!(image.is_lost(group(9)));
        let mut rig = Rig::new();
        let mut look = |here: &[(u32, Now)]| {
            let here = here.iter().map(|(id, now)| (group(*id), *now)).collect();
            let all = with_coming(&image, own, here);
            let all: Vec<_> = all.iter().map(|(id, now)| (id.get(), *now)).collect();
            rig.after(1, &all)
        };
        let lacks = "groups 1, 2 have not caught up since this broker started";
        assert_eq!(look(&[(0, Now::InSync)]), not_ready(lacks), "none is there");
        let some = [(0, Now::InSync), (1, Now::InSync)];
        let lacks = "group 2 has not caught up since this broker started";
        assert_eq!(look(&some), not_ready(lacks));
        let all = [some[0], some[1], (2, Now::Behind)];
        assert_eq!(look(&all), not_ready(lacks));
        let all = [some[0], some[1], (2, Now::InSync)];
        assert_eq!(look(&all), Verdict::default());
        let shall = |id: u32| shall_vote(&image, own, TimestampMs::new(5), group(id));
        assert_eq!(shall(1), Some(RaftNodeId::new(31)));
        assert_eq!(shall(4), None);
    }

    /// Proves that leaders may move, and that a group without one for long ends readiness until somebody leads it.
    #[test]
    fn moving_leaders_do_not_end_readiness() {
        let mut rig = Rig::new();
        let (led, gone) = ([(1, Now::InSync)], [(1, Now::Leaderless)]);
        assert_eq!(rig.after(0, &led), Verdict::default());
        assert_eq!(rig.after(1, &gone), Verdict::default());
        assert_eq!(rig.after(9, &gone), Verdict::default());
        assert_eq!(rig.after(1, &gone), not_ready("group 1 has no leader"));
        assert_eq!(rig.after(1, &led), Verdict::default());
        assert_eq!(rig.after(1, &gone), Verdict::default(), "it begins anew");
        // Metadata without a leader: appends and reads go on.
        assert_eq!(
            rig.after(60, &[(0, Now::Leaderless), led[0]]),
            Verdict::default()
        );
    }

    /// Proves that a group with a copy that went back is not called well by its leader.
    #[test]
    fn copies_that_went_back_are_a_warning() {
        let group = PlacementGroupId::new;
        let mut reverted = BTreeMap::new();
        assert_eq!(say_reverted(&reverted), None);
        reverted.insert(group(4), vec![NodeId::new(3)]);
        let said = "group 4 has a copy that lost acknowledged entries, on broker 3";
        assert_eq!(say_reverted(&reverted).as_deref(), Some(said));
        reverted.insert(group(5), vec![NodeId::new(2), NodeId::new(3)]);
        let said = "groups 4, 5 have copies that lost acknowledged entries, on broker 2, 3";
        assert_eq!(say_reverted(&reverted).as_deref(), Some(said));
    }

    /// Proves that it is said which consumer groups nobody can use since the offsets of a lost group are kept, where, and how they are given up.
    #[test]
    fn kept_offsets_are_told() {
        let (one, two) = ([NodeId::new(1)], [NodeId::new(2)]);
        let mut kept: BTreeMap<_, &[NodeId]> = BTreeMap::new();
        assert_eq!(say_kept_offsets(&kept), None);
        kept.insert(PlacementGroupId::new(1), &two);
        let text = say_kept_offsets(&kept).unwrap();
        assert!(
            text.starts_with("group 1 is lost, and has no partitions any more, but offsets of consumer groups, which broker 2 has"),
            "{text}"
        );
        assert!(text.contains("`tidelog cluster decommission 2`"), "{text}");
        kept.insert(PlacementGroupId::new(4), &one);
        let text = say_kept_offsets(&kept).unwrap();
        assert!(
            text.contains("groups 1, 4 are lost") && text.contains("which brokers 1, 2 have"),
            "{text}"
        );
    }

    /// Proves that what can never come is not waited for: a lost group is a warning from the beginning, a lag after ten minutes.
    #[test]
    fn what_never_comes_is_a_warning() {
        let mut rig = Rig::new();
        let all = [(1, Now::Lost), (2, Now::Behind)];
        let told = rig.after(0, &all);
        let lost = "group 1 is lost: most of its copies are gone with their disks";
        assert_eq!(told.warning.as_deref(), Some(lost));
        assert!(told.not_ready.unwrap().contains("group 2"));
        let told = rig.after(600, &all);
        assert_eq!(told.not_ready, None);
        assert!(told.warning.unwrap().contains("group 2 has not caught up"));
        let many: Vec<(u32, Now)> = (1..=7).map(|id| (id, Now::Lost)).collect();
        let told = rig.after(1, &many).warning.unwrap();
        assert!(
            told.starts_with("groups 1, 2, 3, 4, 5 and 2 others are"),
            "{told}"
        );
    }
}
