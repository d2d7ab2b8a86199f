//! Replacing a member: taking in a broker that waits with a member's id, and refusing where the old one may be needed.
//!
//! Owns: the look at what may be lost, how often it is made, and what an operator is told.
//! Not here: whose start helps (`help.rs`), the rule (`metadata`), what leaders know of their copies (`placement`), the route (`members.rs`).
//! Spec: docs/protocols/membership.md (what is given up with a replaced broker)

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::AdminState;
use super::error::Failure;
use super::help::{Helpers, ReplicasSaid, START_FIRST, WITHOUT_LOSS};
use super::members::{WaitingBroker, proposed};
use crate::metadata::{
    Admission, AdmissionExpects, MetadataCommand, MetadataImage, MetadataOutcome, Refusal, brokers,
    groups_named,
};
use crate::placement::ReplicasNow;
use futures::future::BoxFuture;
use tidelog_model::{LogIndex, NodeId, PlacementGroupId, RaftNodeId};
use tokio::time::Instant;

/// Asks this broker and all live members which of the groups that they lead, metadata's too, need this Raft node not. Takes a second at most.
pub type AskWithout =
    Arc<dyn Fn(RaftNodeId) -> BoxFuture<'static, BTreeSet<PlacementGroupId>> + Send + Sync>;

/// So long it is looked again: an election after the old one was killed, and a change of metadata between the look and the command, are over by then.
pub(super) const WITHIN: Duration = Duration::from_secs(8);
pub(super) const AGAIN_PAUSE: Duration = Duration::from_millis(300);

/// Whom to take in, and what the operator has asked for.
pub(super) struct Wanted {
    pub(super) waiting: WaitingBroker,
    pub(super) admission: Admission,
    /// Also in place of a member that lives.
    pub(super) force: bool,
    /// Whatever is lost with the old one.
    pub(super) give_up_data: bool,
}

/// Takes it in. In place of a member, without being asked to give anything up, only on a look that says that no group needs the old one.
///
/// # Errors
/// What the operator is told; unless it says so, nothing was changed.
pub(super) async fn admit(
    state: &AdminState,
    wanted: &Wanted,
    others: &[WaitingBroker],
) -> Result<(), Failure> {
    let until = Instant::now() + WITHIN;
    loop {
        let failure = match admit_once(state, wanted, others).await? {
            None => return Ok(()),
            Some(failure) => failure,
        };
        if Instant::now() + AGAIN_PAUSE >= until {
            return Err(failure);
        }
        tokio::time::sleep(AGAIN_PAUSE).await;
    }
}

/// `Some`: why not, and it may pass.
async fn admit_once(
    state: &AdminState,
    wanted: &Wanted,
    others: &[WaitingBroker],
) -> Result<Option<Failure>, Failure> {
    let node = wanted.admission.node;
    // What this broker's image says may be old. What changes after this is seen when the command is applied.
    if let Err(error) = state.router.metadata_barrier().await {
        return Err(
            match no_majority(&state.router.metadata().replicas(), others) {
                Some(text) => Failure::refused(text),
                None => Failure::unavailable(error.to_string()),
            },
        );
    }
    let (member, lives, checked) = state.router.image(|image| {
        let member = image.members().get(&node).map(|member| member.raft_node);
        (member, image.is_live(node), image.last().index)
    });
    let old = member.filter(|raft_node| *raft_node != wanted.admission.raft_node);
    if old.is_some() && lives && !wanted.force {
        return Err(match &wanted.waiting.withheld {
            Some(groups) => Failure::refused(runs_in_part(node, groups)),
            None => Failure::lives(node),
        });
    }
    let mut safe_as_of = None;
    if let Some(old) = old {
        let needed = look(state, node, old, checked).await;
        match needed {
            Ok(groups) if groups.is_empty() => safe_as_of = Some(checked),
            Ok(groups) if wanted.give_up_data => name(state, node, &groups),
            Ok(groups) => {
                let said = (state.ask_replicas)().await;
                let (text, passes) = state.router.image(|image| {
                    let text = refusal(image, &wanted.waiting, &groups, &said, others);
                    (text, !image.only_at(node).iter().eq(&groups))
                });
                let failure = Failure::data_needed(text);
                // No election brings an only copy back.
                return if passes {
                    Ok(Some(failure))
                } else {
                    Err(failure)
                };
            }
            Err(Changed) if wanted.give_up_data => {}
            Err(Changed) => return Ok(Some(changed())),
        }
    }
    let admission = Admission {
        expects: Some(AdmissionExpects {
            member,
            although_it_lives: wanted.force,
            checked: safe_as_of.filter(|_| !wanted.give_up_data),
        }),
        ..wanted.admission.clone()
    };
    match proposed(state, &MetadataCommand::AdmitBroker(admission)).await? {
        MetadataOutcome::MembersChanged => Ok(None),
        MetadataOutcome::Refused(Refusal::Outdated) => Ok(Some(changed())),
        MetadataOutcome::Refused(Refusal::MemberLives(node)) => Err(Failure::lives(node)),
        MetadataOutcome::Refused(refusal) => Err(Failure::refused(refusal.to_string())),
        other => Err(Failure::refused(format!(
            "an answer to something else: {other:?}"
        ))),
    }
}

/// Why a damaged member that runs without `groups` is not replaced.
fn runs_in_part(node: NodeId, groups: &BTreeSet<PlacementGroupId>) -> String {
    let groups: Vec<_> = groups.iter().copied().collect();
    format!(
        "nothing was changed: broker {node} is damaged, and serves all but {}. It is refilled by itself when nothing needs it; `tidelog cluster status` says why it is not yet. {START_FIRST}. {WITHOUT_LOSS}. `--force` replaces it now, unless data may be lost with what it has",
        groups_named(&groups)
    )
}

/// Why nobody will lead metadata again, as far as those that wait say: most of its voters are brokers that have other data directories now, and know nothing of it.
fn no_majority(metadata: &ReplicasNow, others: &[WaitingBroker]) -> Option<String> {
    let voters = metadata.members.iter();
    let voters: BTreeMap<NodeId, RaftNodeId> = voters
        .filter(|(id, _)| metadata.voters.contains(*id))
        .map(|(id, member)| (member.broker, *id))
        .collect();
    let gone = voters.iter().filter(|(node, raft_node)| {
        let mut waiting = others.iter().filter(|one| !one.damaged);
        waiting.any(|one| one.node == **node && one.raft_node != **raft_node)
    });
    let gone: Vec<NodeId> = gone.map(|(node, _)| *node).collect();
    if gone.is_empty() || 2 * (voters.len() - gone.len()) > voters.len() {
        return None;
    }
    let voters: Vec<NodeId> = voters.into_keys().collect();
    Some(format!(
        "nothing was changed, and nobody can be taken in: {} decide on the cluster's metadata, and of these {} wait with other data directories than they had, so that no \
         majority is left that knows it. Start so many of them with the data directories that they had that a majority is up. Where those are gone for good, no command brings \
         the cluster back: keep the data directories that are left, and see docs/operating/three-brokers.md, when most disks are lost",
        brokers(&voters),
        brokers(&gone)
    ))
}

fn changed() -> Failure {
    Failure::refused(
        "metadata changes all the time, so that nobody can say what is lost with the old broker; nothing was changed, try again",
    )
}

/// Metadata has changed while the others were asked.
struct Changed;

/// Groups that may need `old`, on the image as of `checked`.
async fn look(
    state: &AdminState,
    node: NodeId,
    old: RaftNodeId,
    checked: LogIndex,
) -> Result<Vec<PlacementGroupId>, Changed> {
    let safe = (state.ask_without)(old).await;
    state.router.image(|image| {
        if image.last().index == checked {
            Ok(image.needed(node, &safe))
        } else {
            Err(Changed)
        }
    })
}

/// What an operator gives up is told once, where it is done.
fn name(state: &AdminState, node: NodeId, groups: &[PlacementGroupId]) {
    let content = state.router.image(|image| image.content_names(groups));
    tracing::warn!(
        "broker {node} is replaced as an operator asks, though {} may need what it had: {content}",
        groups_named(groups)
    );
}

/// Why the member whose id `waiting` has is not replaced, what would be lost, who else could help, and what the flag does. `others`: all that wait.
fn refusal(
    image: &MetadataImage,
    waiting: &WaitingBroker,
    needed: &[PlacementGroupId],
    said: &ReplicasSaid,
    others: &[WaitingBroker],
) -> String {
    let node = waiting.node;
    let alone = image.only_at(node);
    let (alone, unsafe_now): (Vec<_>, Vec<_>) =
        { needed.iter().copied() }.partition(|group| alone.contains(group));
    let mut text = format!("nothing was changed: data may be lost with what broker {node} had");
    if !unsafe_now.is_empty() {
        text += &format!(
            ". No leader now whose other copies have all that was acknowledged: {} ({})",
            groups_named(&unsafe_now),
            image.content_names(&unsafe_now)
        );
    }
    if !alone.is_empty() {
        text += &format!(
            ". It holds what nobody else has: {} ({})",
            groups_named(&alone),
            image.content_names(&alone)
        );
    }
    let helpers = Helpers::of(image, &unsafe_now, Some(node), said, others);
    text += &helpers.text();
    if helpers.is_empty() && !unsafe_now.is_empty() {
        text += ". All others live: copies are on their way perhaps, try again in a minute. Where that does not pass, a broker that holds them was replaced too early, and is needed \
                 with the data directory that it had before";
        if alone.is_empty() {
            // It passes, most likely.
            return text;
        }
    }
    text += &if waiting.damaged {
        format!(". {WITHOUT_LOSS}")
    } else {
        format!(
            ". If the data directory that broker {node} had can be found, start it with that one"
        )
    };
    text += ". `--give-up-data` takes it in all the same: partitions of these groups whose other copies are too few are lost then, nobody can append to them or \
             read them, and records that only it had are gone";
    text
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::metadata::Address;
    use crate::placement::Member;
    use tidelog_model::{ClusterId, TimestampMs, TopicId};
    use uuid::Uuid;

    pub(in super::super) fn group(id: u32) -> PlacementGroupId {
        PlacementGroupId::new(id)
    }

    fn apply(image: &mut MetadataImage, command: MetadataCommand) {
        let outcome = image.apply(command, TimestampMs::new(1));
        assert!(
            !matches!(outcome, MetadataOutcome::Refused(_)),
            "{outcome:?}"
        );
    }

    /// Groups 1 and 2 on the brokers 1 to 3, group 3 on broker 1; one partition in each. Broker 4 has nothing. These live.
    pub(in super::super) fn image(live: &[i32]) -> MetadataImage {
        let mut image = MetadataImage::default();
        let all = [1, 2, 3].map(NodeId::new).to_vec();
        let groups = BTreeMap::from([
            (group(1), all.clone()),
            (group(2), all),
            (group(3), vec![NodeId::new(1)]),
        ]);
        let cluster = ClusterId::new(Uuid::from_u128(7));
        let name = "t".to_owned();
        apply(
            &mut image,
            MetadataCommand::BootstrapCluster {
                cluster,
                name,
                groups,
            },
        );
        for id in 1..=4 {
            let node = NodeId::new(id);
            let admission = Admission {
                node,
                raft_node: RaftNodeId::new(u64::try_from(id * 10).unwrap()),
                zone: "z".to_owned(),
                peer: None,
                by_operator: true,
                expects: None,
            };
            let at = Address {
                host: "h".to_owned(),
                port: 1,
            };
            let register = MetadataCommand::RegisterBroker {
                node,
                raft_node: Some(admission.raft_node),
                zone: admission.zone.clone(),
                kafka: Some(at),
                peer: None,
                admin: None,
            };
            apply(&mut image, MetadataCommand::AdmitBroker(admission));
            apply(&mut image, register);
            let fenced = !live.contains(&id);
            apply(&mut image, MetadataCommand::SetBrokerFence { node, fenced });
        }
        let (id, name) = (TopicId::new(Uuid::from_u128(1)), "a".to_owned());
        let (partitions, configs) = ((1..=3).map(group).collect(), BTreeMap::new());
        apply(
            &mut image,
            MetadataCommand::CreateTopic {
                id,
                name,
                partitions,
                configs,
                before: crate::metadata::NameBefore::Unknown,
            },
        );
        image
    }

    pub(in super::super) fn waits(id: i32, damaged: bool) -> WaitingBroker {
        WaitingBroker {
            node: NodeId::new(id),
            raft_node: RaftNodeId::new(99),
            zone: String::new(),
            peer: "h:1".to_owned(),
            damaged,
            refused: None,
            withheld: None,
        }
    }

    fn said() -> ReplicasSaid {
        ReplicasSaid::default()
    }

    /// Proves that a refusal names groups and partitions, those without another copy by themselves, who should be started, and what the flag does, in this order.
    #[test]
    fn a_refusal_says_what_to_do() {
        let image = image(&[3, 4]);
        let needed = [1, 2, 3].map(group);
        let one = waits(1, true);
        let text = refusal(&image, &one, &needed, &said(), std::slice::from_ref(&one));
        let at = |words: &str| {
            text.find(words)
                .unwrap_or_else(|| panic!("{words}: {text}"))
        };
        assert!(at("groups 1, 2 (a-0, a-1 and offsets") < at("nobody else has: group 3 (a-2"));
        assert!(at("group 3 (a-2") < at("First start broker 2 with"));
        assert!(at("First start broker 2 with") < at("`cluster.refill-damaged=false`"));
        assert!(at("`cluster.refill-damaged=false`") < at("`--give-up-data`"));

        let both = [one.clone(), waits(2, true)];
        let text = refusal(&image, &one, &needed, &said(), &both);
        assert!(text.contains("Damaged and waiting: broker 2."), "{text}");
        assert!(!text.contains("First start"), "{text}");

        let both = [waits(1, false), waits(2, false)];
        let text = refusal(&image, &both[0], &needed, &said(), &both);
        assert!(text.contains("who waits with an empty one"), "{text}");
        assert!(
            text.contains("directory that broker 1 had can be found"),
            "{text}"
        );
    }

    /// Proves that it is said, with the brokers, when so many voters of metadata wait with other directories that no majority is left, and only then: not of one, not of
    /// damaged ones, whose bytes may be put back, nor of one that waits as who it is.
    #[test]
    fn no_majority_is_said_at_once() {
        let members = (1..=3).map(|id| {
            let member = Member {
                broker: NodeId::new(id),
                address: String::new(),
            };
            (RaftNodeId::new(u64::try_from(id * 10).unwrap()), member)
        });
        let members: BTreeMap<_, _> = members.collect();
        let metadata = ReplicasNow {
            voters: members.keys().copied().collect(),
            members,
            settled: true,
        };
        let says = |others: &[WaitingBroker]| no_majority(&metadata, others);
        assert_eq!(says(&[waits(2, false)]), None);
        assert_eq!(says(&[waits(2, true), waits(3, true)]), None);
        assert_eq!(says(&[waits(2, false), waits(4, false)]), None);
        let mut itself = waits(3, false);
        itself.raft_node = RaftNodeId::new(30);
        assert_eq!(says(&[waits(2, false), itself]), None);
        let text = says(&[waits(2, false), waits(3, false)]).unwrap();
        assert!(
            text.contains("brokers 1, 2, 3 decide") && text.contains("of these brokers 2, 3 wait"),
            "{text}"
        );
        assert!(!text.contains("give-up-data"), "{text}");
    }

    /// Proves that nobody is asked to start who lives, and that long lists are told short.
    #[test]
    fn who_lives_is_not_to_be_started() {
        let image = image(&[2, 3, 4]);
        let one = waits(1, false);
        let text = refusal(
            &image,
            &one,
            &[group(1)],
            &said(),
            std::slice::from_ref(&one),
        );
        assert!(
            text.contains("All others live") && !text.contains("First start"),
            "{text}"
        );
        assert!(!text.contains("give-up-data"), "it passes: {text}");
        let mut empty = said();
        let two = BTreeSet::from([NodeId::new(2)]);
        empty.empty.insert(group(1), two);
        let text = refusal(
            &image,
            &one,
            &[group(1)],
            &empty,
            std::slice::from_ref(&one),
        );
        assert!(
            text.contains("Broker 2 got a new data directory") && !text.contains("All others live"),
            "{text}"
        );
        let text = refusal(
            &image,
            &one,
            &[group(3)],
            &said(),
            std::slice::from_ref(&one),
        );
        assert!(!text.contains("All others live"), "{text}");
        let many: Vec<_> = (1..=12).map(group).collect();
        assert!(groups_named(&many).ends_with("9, 10 and 2 more"));
        assert_eq!(groups_named(&many[..1]), "group 1");
    }
}
