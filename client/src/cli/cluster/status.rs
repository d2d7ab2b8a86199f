//! What brokers, those that wait, and groups look like to people.
//!
//! Owns: the tables and lines of a status, and what each line says to do.
//! Not here: the verbs, and what they wait for (`cluster.rs`).

use super::super::{Failure, Output, output};
use crate::admin_http::{MemberBroker, MemberGroup, Members, WaitingBroker};

/// What a broker waits for that holds nothing any more but lost groups without partitions: that its offsets are given up, if it has any.
pub(super) fn lost_alone(lost: &[&MemberGroup], at: &MemberBroker) -> String {
    let broker = at.id;
    let kept = lost.iter().filter(|group| {
        let mut kept = group.offsets_at.iter().flatten();
        at.live && kept.any(|id| *id == broker)
    });
    let kept: Vec<&MemberGroup> = kept.copied().collect();
    let numbers = |groups: &[&MemberGroup]| {
        let names: Vec<_> = groups.iter().map(|group| group.group.to_string()).collect();
        let what = if names.len() == 1 { "group" } else { "groups" };
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        format!("{what} {}", shown(&names))
    };
    let others = lost
        .iter()
        .flat_map(|group| group.offsets_at.iter().flatten());
    let mut others: Vec<i32> = others.copied().filter(|id| *id != broker).collect();
    others.sort_unstable();
    others.dedup();
    let others = match others.as_slice() {
        [] => String::new(),
        ids => format!(
            ". A copy of such offsets is on broker {} too: decommission and stop that one in the same way",
            list(ids)
        ),
    };
    if kept.is_empty() && !others.is_empty() {
        return format!(
            "broker {broker} holds nothing any more but the lost {}{others}",
            numbers(lost)
        );
    }
    if kept.is_empty() {
        return format!(
            "broker {broker} holds nothing any more but the lost {}: an empty group takes the place of each by itself",
            numbers(lost)
        );
    }
    format!(
        "broker {broker} holds nothing any more but the lost {}, and has a copy of the offsets of consumer groups there. Stop it, and do not start it again: the offsets are given \
         up then, and these consumer groups begin anew{others}",
        numbers(&kept)
    )
}

/// Names for people: all, or the first of many.
pub(super) fn shown(names: &[&str]) -> String {
    const SHOWN: usize = 20;
    let first = names.iter().take(SHOWN).copied().collect::<Vec<_>>();
    match names.len().saturating_sub(SHOWN) {
        0 => first.join(", "),
        1 => format!("{} and 1 other", first.join(", ")),
        more => format!("{} and {more} others", first.join(", ")),
    }
}

fn list(ids: &[i32]) -> String {
    let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
    ids.join(",")
}

/// `known`: who lives is known now, not from some time ago.
fn state(at: &MemberBroker, known: bool) -> &'static str {
    match (at.live && at.registered, at.registered, at.draining, known) {
        (true, _, false, true) => "live",
        (true, _, false, false) => "was live",
        (true, _, true, true) => "draining",
        (true, _, true, false) => "was draining",
        (false, false, false, _) => "taken in, has not come",
        (false, false, true, _) => "has not come, draining",
        (false, true, false, true) => "silent",
        (false, true, false, false) => "was silent",
        (false, true, true, true) => "silent, draining",
        (false, true, true, false) => "was silent, draining",
    }
}

/// What is said of a status whose broker cannot know who lives.
fn aged(members: &Members) -> Option<String> {
    let age = members.liveness_age_ms? / 1000;
    Some(format!(
        "liveness as of {age} s ago; metadata has no leader that the asked broker hears. Is a majority of the brokers up? Ask another one too\n"
    ))
}

pub(super) fn print(members: &Members, output: Output) -> Result<(), Failure> {
    if output == Output::Json {
        return output::json(members);
    }
    let brokers = members.brokers.iter().map(|at| {
        let state = state(at, members.liveness_age_ms.is_none());
        vec![
            at.id.to_string(),
            at.zone.clone(),
            at.peer.clone(),
            state.to_owned(),
            at.replicas.to_string(),
            at.leads.to_string(),
        ]
    });
    let waiting = members.waiting.iter().map(|at| {
        let state = match (at.damaged, &at.withheld, at.replaces) {
            (true, Some(_), _) => "damaged, serves in part, waits to be refilled",
            (true, None, _) => "damaged, waits to be refilled",
            (false, _, true) => "waits, replaces the member",
            (false, _, false) => "waits",
        };
        vec![
            at.id.to_string(),
            at.zone.clone(),
            at.peer.clone(),
            state.to_owned(),
            "-".to_owned(),
            "-".to_owned(),
        ]
    });
    let head = ["BROKER", "ZONE", "PEER", "STATE", "REPLICAS", "LEADS"];
    output::table(&head, &brokers.chain(waiting).collect::<Vec<_>>())?;
    output::data("\n")?;
    let groups = members.groups.iter().map(|at| {
        let target = at.target.as_ref();
        vec![
            at.group.to_string(),
            list(&at.replicas),
            target.map_or_else(|| "-".to_owned(), |target| list(target)),
            at.leader
                .map_or_else(|| "-".to_owned(), |id| id.to_string()),
            at.term
                .map_or_else(|| "-".to_owned(), |term| term.to_string()),
        ]
    });
    let head = ["GROUP", "REPLICAS", "MOVING-TO", "LEADER", "TERM"];
    output::table(&head, &groups.collect::<Vec<_>>())?;
    let notes = aged(members).into_iter();
    let notes = notes.chain(members.waiting.iter().filter_map(withheld));
    let notes = notes.chain(members.waiting.iter().filter_map(refused));
    let notes: String = notes
        .chain(members.groups.iter().filter_map(lost))
        .collect();
    if notes.is_empty() {
        Ok(())
    } else {
        output::data(&format!("\n{notes}"))
    }
}

/// A line about a damaged broker that runs.
fn withheld(at: &WaitingBroker) -> Option<String> {
    let groups = at.withheld.as_ref()?;
    let ids: Vec<String> = groups.iter().map(ToString::to_string).collect();
    let groups = if ids.len() == 1 { "group" } else { "groups" };
    Some(format!(
        "broker {} is damaged in {groups} {}, and serves its other groups\n",
        at.id,
        ids.join(", ")
    ))
}

/// A line about a damaged broker that nobody refills.
fn refused(at: &WaitingBroker) -> Option<String> {
    let why = at.refused.as_ref()?;
    Some(format!(
        "broker {} is damaged and not refilled, since {why}\n",
        at.id
    ))
}

/// A line about a group whose replicas are gone.
fn lost(at: &MemberGroup) -> Option<String> {
    let partitions: Vec<&str> = at.lost.as_ref()?.iter().map(String::as_str).collect();
    let group = at.group;
    let what = format!("group {group} has lost its replicas, or most of them, with their disks");
    let Some(kept) = at.offsets_at.as_deref() else {
        return Some(if partitions.is_empty() {
            format!("{what}; it has no partitions, and an empty group takes its place by itself\n")
        } else {
            format!(
                "{what}, nobody can append to or read: {}\n",
                shown(&partitions)
            )
        });
    };
    let brokers = list(kept);
    let (which, each) = match kept {
        [one] => (
            format!("broker {one} has"),
            format!("`tidelog cluster decommission {one}`"),
        ),
        _ => (
            format!("the brokers {brokers} have"),
            "`tidelog cluster decommission` each of them".to_owned(),
        ),
    };
    Some(format!(
        "{what}; it has no partitions, but offsets of consumer groups, which {which} a copy of: nobody can use these consumer groups. Start the other brokers with the disks that they \
         had; or give these offsets up, and the consumer groups begin anew: {each}, which says when to stop it\n"
    ))
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    pub(in super::super) fn members() -> Members {
        let broker = |id| MemberBroker {
            id,
            zone: "a".to_owned(),
            peer: format!("b{id}:1"),
            raft_node: 7,
            live: true,
            registered: true,
            draining: false,
            replicas: 1,
            leads: 1,
        };
        Members {
            cluster_id: "c".to_owned(),
            metadata_leader: Some(1),
            liveness_age_ms: None,
            brokers: vec![broker(1), broker(2)],
            waiting: Vec::new(),
            groups: vec![MemberGroup {
                group: 1,
                replicas: vec![1],
                target: Some(vec![2]),
                leader: Some(1),
                term: Some(3),
                preferred: None,
                lost: None,
                offsets_at: None,
            }],
        }
    }

    /// Proves that a group without replicas is told with its partitions, and no other one.
    #[test]
    fn lost_groups_are_named() {
        let mut at = members().groups.remove(0);
        assert_eq!(lost(&at), None);
        at.lost = Some(vec!["t-0".to_owned(), "t-1".to_owned()]);
        assert!(lost(&at).unwrap().ends_with("or read: t-0, t-1\n"));
        at.lost = Some((0..30).map(|index| format!("t-{index}")).collect());
        assert!(lost(&at).unwrap().ends_with("t-19 and 10 others\n"));
        at.lost = Some(Vec::new());
        let text = lost(&at).unwrap();
        assert!(text.ends_with("takes its place by itself\n"), "{text}");
        at.offsets_at = Some(vec![3]);
        let text = lost(&at).unwrap();
        assert!(
            text.contains("broker 3 has a copy of: nobody can use") && !text.contains("by itself"),
            "{text}"
        );
        assert!(text.contains("`tidelog cluster decommission 3`"), "{text}");
        at.offsets_at = Some(vec![3, 5]);
        let text = lost(&at).unwrap();
        assert!(text.contains("the brokers 3,5 have"), "{text}");
    }

    /// Proves that it is said which groups a damaged broker that runs lacks, and of no other one.
    #[test]
    fn what_is_withheld_is_named() {
        let mut at = WaitingBroker {
            id: 3,
            zone: String::new(),
            peer: "b3:1".to_owned(),
            raft_node: 9,
            replaces: true,
            damaged: true,
            refused: None,
            withheld: None,
        };
        assert_eq!(withheld(&at), None);
        at.withheld = Some(vec![4]);
        let line = "broker 3 is damaged in group 4, and serves its other groups\n";
        assert_eq!(withheld(&at).as_deref(), Some(line));
        at.withheld = Some(vec![4, 6]);
        assert!(withheld(&at).unwrap().contains("in groups 4, 6, and"));
    }

    /// Proves that a member which has never come is told from one that fell silent.
    #[test]
    fn states_of_members() {
        let mut at = members().brokers.remove(0);
        assert_eq!(state(&at, true), "live");
        assert_eq!(state(&at, false), "was live");
        at.live = false;
        assert_eq!(state(&at, true), "silent");
        assert_eq!(state(&at, false), "was silent");
        at.registered = false;
        assert_eq!(state(&at, true), "taken in, has not come");
        at.live = true;
        assert_eq!(
            state(&at, true),
            "taken in, has not come",
            "nobody was heard"
        );
    }

    /// Proves that a status whose broker cannot know who lives says how old it is, and no other does.
    #[test]
    fn an_old_status_says_so() {
        let mut now = members();
        assert_eq!(aged(&now), None);
        now.liveness_age_ms = Some(42_900);
        assert!(
            aged(&now)
                .unwrap()
                .starts_with("liveness as of 42 s ago; metadata has no leader")
        );
    }
}
