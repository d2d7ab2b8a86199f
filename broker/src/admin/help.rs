//! Groups that nobody leads, for an operator: whose start would help, and who cannot help though it lives.
//!
//! Owns: [`Helpers`], the refusal of a decommission that nobody could carry out.
//! Not here: what is lost with a replaced member (`replace.rs`), the rules of the image (`metadata`).
//! Spec: docs/protocols/membership.md (what is given up with a replaced broker; a broker goes)

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::AdminState;
use super::error::Failure;
use super::members::WaitingBroker;
use super::replace::{AGAIN_PAUSE, WITHIN};
use crate::metadata::{MetadataImage, brokers, groups_named};
use futures::future::BoxFuture;
use tidelog_model::{NodeId, PlacementGroupId};
use tokio::time::Instant;

/// What live members say of their replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicasSaid {
    /// Groups that one of them leads.
    pub led: BTreeSet<PlacementGroupId>,
    /// Those of them whose replica of the group has nothing.
    pub empty: BTreeMap<PlacementGroupId, BTreeSet<NodeId>>,
}

/// Asks this broker and all live members for their replicas. Takes a second at most.
pub type AskReplicas = Arc<dyn Fn() -> BoxFuture<'static, ReplicasSaid> + Send + Sync>;

/// What helps a damaged broker that others refuse to refill, and loses nothing, beside the brokers that are missing: what costs least first. Whole sentences.
pub const WITHOUT_LOSS: &str = "If no broker is missing, add one (`tidelog cluster add`): replicas of groups that are led move to it; where that is not enough, `tidelog cluster \
     decommission` one of the damaged brokers, which may come back with an empty data directory when it has left; nothing is lost by that. If the damaged bytes can be put back as \
     they were, do, and start it with `cluster.refill-damaged=false`: it goes on with what it has";

/// What helps before anything else, where it is not known who is missing. A whole sentence.
pub const START_FIRST: &str = "First start the brokers that are missing, if any are, with the data directories that they had: it is refilled by itself where the others have all that it \
     had then";

/// Who holds some groups that are not safe, and does not help as it is.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Helpers {
    /// They are silent: with what they had, they may help.
    start: Vec<NodeId>,
    /// Of those, who waits with an empty directory.
    start_empty: bool,
    /// They wait with a damaged disk; some run without these groups.
    damaged: Vec<NodeId>,
    /// They got new data directories, in which nothing is of these groups, and nobody leads who could give it.
    replaced: BTreeMap<NodeId, Vec<PlacementGroupId>>,
}

impl Helpers {
    /// Of `groups`, but for the broker `except`. `others`: all that wait.
    pub(super) fn of(
        image: &MetadataImage,
        groups: &[PlacementGroupId],
        except: Option<NodeId>,
        said: &ReplicasSaid,
        others: &[WaitingBroker],
    ) -> Self {
        let mut replaced: BTreeMap<NodeId, Vec<PlacementGroupId>> = BTreeMap::new();
        let mut silent = BTreeSet::new();
        for group in groups {
            let holders = image.holders(*group);
            for node in holders.into_iter().filter(|node| Some(*node) != except) {
                let empty = said.empty.get(group);
                let empty = empty.is_some_and(|empty| empty.contains(&node));
                let live = image.is_live(node);
                // Taken in, and never come: it has heard of nothing yet.
                let never_came = !live && !image.is_registered(node);
                let data = *group != PlacementGroupId::METADATA;
                if data && !said.led.contains(group) && (empty || never_came) {
                    // Who was only to get it had nothing of it before either.
                    let held = image.groups().get(group);
                    if held.is_some_and(|held| held.contains(&node)) {
                        replaced.entry(node).or_default().push(*group);
                    }
                } else if !live {
                    silent.insert(node);
                }
            }
        }
        silent.retain(|node| !replaced.contains_key(node));
        let waits = |damaged: bool| {
            let of_kind = others.iter().filter(move |one| one.damaged == damaged);
            of_kind.map(|one| one.node).collect::<BTreeSet<_>>()
        };
        let (waits_damaged, waits_empty) = (waits(true), waits(false));
        let (damaged, start): (BTreeSet<_>, BTreeSet<_>) = silent
            .into_iter()
            .partition(|at| waits_damaged.contains(at));
        let withholding = withholding(image, groups, except, others);
        Self {
            start_empty: start.iter().any(|at| waits_empty.contains(at)),
            start: start.into_iter().collect(),
            damaged: damaged.union(&withholding).copied().collect(),
            replaced,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start.is_empty() && self.damaged.is_empty() && self.replaced.is_empty()
    }

    /// Sentences behind another one, what costs nothing first.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        if !self.start.is_empty() {
            let directories = match self.start.len() {
                1 => "the data directory that it had",
                _ => "the data directories that they had",
            };
            text += &format!(". First start {} with {directories}", brokers(&self.start));
            if self.start_empty {
                text += " (who waits with an empty one does not help)";
            }
        }
        if !self.damaged.is_empty() {
            text += &format!(
                ". Damaged and waiting: {}. One whose damaged bytes can be put back as they were starts with `cluster.refill-damaged=false`; the others are refilled \
                 by themselves then",
                brokers(&self.damaged)
            );
        }
        for (node, groups) in &self.replaced {
            text += &format!(
                ". Broker {node} got a new data directory, in which nothing is of {}: if the one that it had before can be found, stop it, start it with that one, and run \
                 `tidelog cluster add {node}`; where the refusal of that names no other groups than these, `--give-up-data` gives up nothing, since the new one has nothing \
                 of them",
                groups_named(groups)
            );
        }
        text
    }
}

/// Brokers that hold one of `groups`, but for `except`, and live without it, since it is damaged there.
fn withholding(
    image: &MetadataImage,
    groups: &[PlacementGroupId],
    except: Option<NodeId>,
    others: &[WaitingBroker],
) -> BTreeSet<NodeId> {
    let withholds = |one: &&WaitingBroker| {
        let withheld = one.withheld.as_ref();
        let mut groups = groups.iter();
        withheld.is_some_and(|withheld| {
            groups
                .any(|group| withheld.contains(group) && image.holders(*group).contains(&one.node))
        })
    };
    let others = others.iter().filter(|one| Some(one.node) != except);
    others.filter(withholds).map(|one| one.node).collect()
}

/// Refuses to drain `node` while it holds groups, with something in them, that nobody leads: only their leaders move what it holds, so it would wait for ever. An
/// election is waited for. What the image refuses anyway is left to it.
///
/// # Errors
/// What the operator is told; nothing was changed.
pub(super) async fn check_drain(state: &AdminState, node: NodeId) -> Result<(), Failure> {
    let until = Instant::now() + WITHIN;
    loop {
        let current = state.router.metadata_barrier().await;
        current.map_err(|error| Failure::unavailable(error.to_string()))?;
        let mut said = (state.ask_replicas)().await;
        // A leader that has not answered in time is one all the same.
        let known: Vec<_> = state
            .router
            .image(|image| image.groups().keys().copied().collect());
        let known = known.into_iter();
        said.led
            .extend(known.filter(|group| state.router.leader(*group).is_some()));
        let stuck = state.router.image(|image| match image.check_drain(node) {
            Ok(()) => image.unled_content(node, &said.led),
            Err(_) => Vec::new(),
        });
        if stuck.is_empty() {
            return Ok(());
        }
        if Instant::now() + AGAIN_PAUSE >= until {
            let others = (state.ask_members)().await;
            let text = state
                .router
                .image(|image| not_drained(image, node, &stuck, &said, &others));
            return Err(Failure::refused(text));
        }
        tokio::time::sleep(AGAIN_PAUSE).await;
    }
}

/// Why `node` is not drained, and what to do, since nobody leads the groups `stuck`.
fn not_drained(
    image: &MetadataImage,
    node: NodeId,
    stuck: &[PlacementGroupId],
    said: &ReplicasSaid,
    others: &[WaitingBroker],
) -> String {
    let helpers = Helpers::of(image, stuck, None, said, others);
    let mut text = format!(
        "nothing was changed: broker {node} cannot go now, since nobody leads {} ({}), and only their leaders can move what it holds{}",
        groups_named(stuck),
        image.content_names(stuck),
        helpers.text()
    );
    if helpers.is_empty() {
        text += ". All brokers that hold them live: try again in a minute";
    }
    if !image.is_live(node) {
        let start = if helpers.damaged.contains(&node) {
            ""
        } else {
            "keep the data directory that it has, start it with an empty one, and "
        };
        text += &format!(
            ". If what broker {node} had cannot be had back: {start}run `tidelog cluster add {node}`, which says what would be given up; it can be decommissioned when these \
             groups are led, or their topics are deleted"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::super::replace::tests::{group, image, waits};
    use super::*;

    fn said(led: &[u32], empty: &[(u32, i32)]) -> ReplicasSaid {
        let mut said = ReplicasSaid {
            led: led.iter().copied().map(group).collect(),
            ..ReplicasSaid::default()
        };
        for (id, node) in empty {
            let empty = said.empty.entry(group(*id)).or_default();
            empty.insert(NodeId::new(*node));
        }
        said
    }

    /// Proves that a broker which lives and has nothing is told from one that helps when it is started, that the words fit one and several, and that one whose group is
    /// led is on its way.
    #[test]
    fn who_has_nothing_does_not_help() {
        let image = image(&[2, 3, 4]);
        let groups = [group(1), group(2)];
        let of = |said: &ReplicasSaid, except| Helpers::of(&image, &groups, except, said, &[]);
        let one = of(&said(&[], &[(1, 2), (2, 2)]), None).text();
        assert!(
            one.starts_with(". First start broker 1 with the data directory that it had. Broker 2 got a new data directory"),
            "{one}"
        );
        assert!(
            one.contains("nothing is of groups 1, 2:") && one.contains("`tidelog cluster add 2`"),
            "{one}"
        );
        assert!(of(&said(&[1, 2], &[(1, 2)]), Some(NodeId::new(1))).is_empty());
        let all = super::super::replace::tests::image(&[1, 2, 3, 4]);
        let with = |withheld: &[u32]| {
            let mut runs = waits(2, true);
            runs.withheld = Some(withheld.iter().copied().map(group).collect());
            Helpers::of(&all, &groups, None, &said(&[], &[]), &[runs])
        };
        assert_eq!(with(&[2]).damaged, [NodeId::new(2)], "it runs without one");
        assert!(with(&[7]).is_empty());
        let none = super::super::replace::tests::image(&[3, 4]);
        let several = Helpers::of(&none, &groups, None, &said(&[], &[]), &[waits(2, false)]).text();
        assert!(
            several.starts_with(
                ". First start brokers 1, 2 with the data directories that they had (who waits"
            ),
            "{several}"
        );
    }

    /// Proves that a drain which nobody could carry out is refused with the groups, who helps, and, for a silent broker alone, how it is given up; and that groups
    /// that are led, that it does not hold, or that are on it alone, are no reason.
    #[test]
    fn a_drain_needs_leaders() {
        let image = image(&[2, 3, 4]);
        let unled = |id, led: &[u32]| image.unled_content(NodeId::new(id), &said(led, &[]).led);
        assert_eq!(unled(1, &[3]), [group(1), group(2)]);
        assert_eq!(unled(1, &[1, 2]), [group(3)]);
        assert_eq!(unled(2, &[1]), [group(2)]);
        assert_eq!(unled(4, &[]), []);
        let stuck = [group(1), group(2)];
        let said = said(&[], &[(1, 2), (2, 2)]);
        let says = |id| not_drained(&image, NodeId::new(id), &stuck, &said, &[]);
        let text = says(1);
        let at = |words: &str| {
            text.find(words)
                .unwrap_or_else(|| panic!("{words}: {text}"))
        };
        assert!(at("nobody leads groups 1, 2 (a-0, a-1") < at("First start broker 1"));
        assert!(at("First start broker 1") < at("`tidelog cluster add 1`, which says"));
        assert!(!says(3).contains("had cannot be had back"), "it lives");
        let damaged = [waits(1, true)];
        let text = not_drained(&image, NodeId::new(1), &stuck, &said, &damaged);
        assert!(text.contains("Damaged and waiting: broker 1."), "{text}");
        assert!(!text.contains("start it with an empty one"), "{text}");
    }
}
