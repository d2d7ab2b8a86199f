//! What a broker without a cluster does next, given what the other seeds said. Pure.
//!
//! Owns: [`decide`]; the rules that make one cluster id come out of any order of starts.
//! Not here: asking (`mod.rs`), making records durable (`identity.rs`).
//! Spec: docs/protocols/cluster-formation.md

use super::candidates::{Candidate, Reason};
use super::record::{Founding, MemberRecord};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The version of the answers.
pub(super) const VERSION: u32 = 2;

/// What a broker says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Told {
    pub(super) version: u32,
    pub(super) broker_id: i32,
    /// 0: not told to who asks.
    pub(super) raft_node_id: u64,
    /// Cluster name and seeds in words.
    pub(super) seeds: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) record: Option<Founding>,
    /// Who is a member now, by the metadata of who answers; absent while it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) members: Option<MembersNow>,
    /// Instead of the record and the members, for who asks and is not known to belong to the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) outside: Option<Outside>,
    /// Who asks was taken out of the cluster, with the data directory that it has.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) left: bool,
    /// Who has asked this one lately to be taken in; only if that is asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) waiting: Vec<Candidate>,
    /// Groups whose replica at this one is empty; only if `groups` is asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) empty: Vec<u32>,
    /// Groups that this one leads; only if `groups` is asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) led: Vec<u32>,
    /// Groups that this one leads and that need the Raft node that was asked about not; only if that is asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) safe: Vec<u32>,
    /// Why the caller, whose disk is damaged, is not taken in anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) refused: Option<String>,
    /// With `refused`: that passes by itself, or says what to do.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) says_all: bool,
    /// The caller, which is damaged and runs, may stop to be taken in anew.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) may_stop: bool,
}

/// What a stranger hears of a cluster: that there is one, and whether somebody has its id there. No ids by which it could pass for a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Outside {
    /// As in [`MembersNow`]; absent while who answers has no metadata.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) at: Option<u64>,
    /// The peer address of the member that has the broker id of who asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) taken: Option<String>,
}

impl Told {
    /// What a broker says that knows no more than itself.
    pub(super) fn new(
        broker_id: i32,
        raft_node_id: u64,
        seeds: String,
        record: Option<Founding>,
    ) -> Self {
        Self {
            version: VERSION,
            broker_id,
            raft_node_id,
            seeds,
            record,
            members: None,
            outside: None,
            left: false,
            waiting: Vec::new(),
            empty: Vec::new(),
            led: Vec::new(),
            safe: Vec::new(),
            refused: None,
            says_all: false,
            may_stop: false,
        }
    }

    /// Why the caller is not taken in, as this one says.
    pub(super) fn reason(&self) -> Option<Reason> {
        Reason::told(self.refused.as_deref(), self.says_all)
    }

    /// How new what it says of the members is; `None`: it has no metadata.
    pub(super) fn at(&self) -> Option<u64> {
        let members = self.members.as_ref().map(|members| members.at);
        members.or_else(|| self.outside.as_ref()?.at)
    }
}

/// The members of a cluster, as of an entry of its metadata group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MembersNow {
    /// The log index of that entry: the larger one knows better.
    pub(super) at: u64,
    pub(super) members: Vec<MemberRecord>,
}

impl MembersNow {
    fn has(&self, own: &Told) -> bool {
        let mut members = self.members.iter();
        members.any(|member| {
            (member.broker_id, member.raft_node_id) == (own.broker_id, own.raft_node_id)
        })
    }
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Ask again; who has not answered.
    Wait(Vec<i32>),
    /// Nobody founds while two differ: what to tell.
    Disagree(String),
    /// Found the cluster: the Raft node id of every seed.
    Found(BTreeMap<i32, u64>),
    /// Join this one.
    Join(Founding),
    /// The cluster exists without this broker, as that one says: go on asking until it is taken in.
    NotMember(i32),
}

/// Decides for the broker that says `own` of itself. `answers` are those of the other `seeds`.
pub(super) fn decide(
    own: &Told,
    seeds: &BTreeMap<i32, String>,
    answers: &BTreeMap<i32, Told>,
) -> Decision {
    if let Some(newer) = answers.values().find(|told| told.version != VERSION) {
        return Decision::Disagree(format!(
            "broker {} speaks version {} of cluster formation, this one {VERSION}: run the same release on all seeds",
            newer.broker_id, newer.version
        ));
    }
    if let Some(decision) = known(own, answers) {
        return decision;
    }
    if let Some(other) = answers.values().find(|told| told.seeds != own.seeds) {
        return Decision::Disagree(format!(
            "the seed lists disagree, so no cluster is founded: broker {} has [{}], broker {} has [{}]",
            own.broker_id, own.seeds, other.broker_id, other.seeds
        ));
    }
    let missing: Vec<i32> = seeds
        .keys()
        .copied()
        .filter(|id| *id != own.broker_id && !answers.contains_key(id))
        .collect();
    if !missing.is_empty() || seeds.keys().next() != Some(&own.broker_id) {
        return Decision::Wait(missing);
    }
    let mut nodes: BTreeMap<i32, u64> = answers
        .iter()
        .map(|(id, told)| (*id, told.raft_node_id))
        .collect();
    nodes.insert(own.broker_id, own.raft_node_id);
    let distinct: BTreeSet<u64> = nodes.values().copied().collect();
    if distinct.len() < nodes.len() {
        return Decision::Disagree(
            "two seeds have the same Raft node id, so no cluster is founded: one data directory is a copy of another"
                .to_owned(),
        );
    }
    Decision::Found(nodes)
}

/// What follows for a broker when somebody knows a cluster. Who is a member now is better known than who was first.
fn known(own: &Told, answers: &BTreeMap<i32, Told>) -> Option<Decision> {
    let knows = |told: &&Told| told.record.is_some() || told.outside.is_some();
    let newest = answers
        .values()
        .filter(knows)
        .max_by_key(|told| (told.at(), told.record.is_some()))?;
    let Some(record) = newest.record.clone() else {
        return Some(match (&own.record, newest.at()) {
            // It has just started too, and does not know who has come later.
            (Some(record), None) => Decision::Join(record.clone()),
            _ => Decision::NotMember(newest.broker_id),
        });
    };
    let founder = record
        .members
        .iter()
        .any(|member| (member.broker_id, member.raft_node_id) == (own.broker_id, own.raft_node_id));
    // Who answers without metadata has just started, as this one: then what this one knew counts.
    let was = founder || own.record.is_some();
    let member = newest.members.as_ref().map_or(was, |now| now.has(own));
    Some(if member {
        Decision::Join(record)
    } else {
        Decision::NotMember(newest.broker_id)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn told(id: i32) -> Told {
        let raft_node = u64::try_from(id).unwrap() * 11;
        Told::new(id, raft_node, "t: 1@a, 2@b, 3@c".to_owned(), None)
    }

    fn seeds() -> BTreeMap<i32, String> {
        (1..=3).map(|id| (id, format!("h{id}:1"))).collect()
    }

    fn answers(ids: &[i32]) -> BTreeMap<i32, Told> {
        ids.iter().map(|id| (*id, told(*id))).collect()
    }

    fn record(nodes: [u64; 3]) -> Founding {
        Founding {
            cluster_id: uuid::Uuid::from_u128(7),
            name: "t".to_owned(),
            members: (1..)
                .zip(nodes)
                .map(|(broker_id, raft_node_id)| MemberRecord {
                    broker_id,
                    raft_node_id,
                    peer: String::new(),
                })
                .collect(),
        }
    }

    /// Proves that only the lowest seed founds, and only when every other seed has answered without a record.
    #[test]
    fn one_founder_and_only_with_all() {
        let waits = |own: i32, from: &[i32]| decide(&told(own), &seeds(), &answers(from));
        assert_eq!(waits(1, &[]), Decision::Wait(vec![2, 3]));
        assert_eq!(waits(1, &[3]), Decision::Wait(vec![2]));
        assert_eq!(waits(2, &[1, 3]), Decision::Wait(vec![]));
        assert_eq!(waits(3, &[1, 2]), Decision::Wait(vec![]));
        let nodes = BTreeMap::from([(1, 11), (2, 22), (3, 33)]);
        assert_eq!(waits(1, &[2, 3]), Decision::Found(nodes));
    }

    /// Proves that a record is joined by its members alone: a broker that lost its disk, the founder too, neither joins nor founds.
    #[test]
    fn a_record_is_for_its_members() {
        for own in 1..=3 {
            let other = if own == 3 { 2 } else { 3 };
            let mut from = answers(&[other]);
            from.get_mut(&other).unwrap().record = Some(record([11, 22, 33]));
            let joined = decide(&told(own), &seeds(), &from);
            assert_eq!(joined, Decision::Join(record([11, 22, 33])));
            let mut lost = told(own);
            lost.raft_node_id = 99;
            let refused = decide(&lost, &seeds(), &from);
            assert_eq!(refused, Decision::NotMember(other));
        }
    }

    /// Proves that who is a member now counts more than who was first, and the newest answer most: a broker taken in later joins, one that
    /// was taken out or replaced does not.
    #[test]
    fn members_now_count_more() {
        let member = |broker_id, raft_node_id| MemberRecord {
            broker_id,
            raft_node_id,
            peer: String::new(),
        };
        let mut from = answers(&[1, 2]);
        for (id, at) in [(1, 5), (2, 9)] {
            let told = from.get_mut(&id).unwrap();
            told.record = Some(record([11, 22, 33]));
            let third = if id == 1 {
                member(3, 33)
            } else {
                member(4, 44)
            };
            told.members = Some(MembersNow {
                at,
                members: vec![member(1, 11), member(2, 22), third],
            });
        }
        let left = decide(&told(3), &seeds(), &from);
        assert_eq!(left, Decision::NotMember(2));
        let came = decide(&told(4), &seeds(), &from);
        assert_eq!(came, Decision::Join(record([11, 22, 33])));
        // All start anew: nobody has metadata yet, and a member that came later knows that it is one.
        for told in from.values_mut() {
            told.members = None;
        }
        let fourth = told(4);
        assert!(matches!(
            decide(&fourth, &seeds(), &from),
            Decision::NotMember(_)
        ));
        let mut back = told(4);
        back.record = Some(record([11, 22, 33]));
        assert!(matches!(decide(&back, &seeds(), &from), Decision::Join(_)));
        let mut stranger = told(4);
        stranger.raft_node_id = 45;
        assert!(matches!(
            decide(&stranger, &seeds(), &from),
            Decision::NotMember(_)
        ));
    }

    /// Proves that who is told no more than that there is a cluster founds nothing, whatever the others say, and waits; that a member goes on with what it knows
    /// where others know less; and that who knows most is believed, also when it says no more than that.
    #[test]
    fn strangers_found_nothing() {
        let mut from = answers(&[2, 3]);
        from.get_mut(&3).unwrap().outside = Some(Outside {
            at: None,
            taken: None,
        });
        assert_eq!(decide(&told(1), &seeds(), &from), Decision::NotMember(3));
        let mut own = told(1);
        own.record = Some(record([11, 22, 33]));
        let goes_on = Decision::Join(record([11, 22, 33]));
        assert_eq!(decide(&own, &seeds(), &from), goes_on);
        let second = from.get_mut(&2).unwrap();
        second.record = Some(record([11, 22, 33]));
        assert_eq!(decide(&own, &seeds(), &from), goes_on);
        from.get_mut(&3).unwrap().outside = Some(Outside {
            at: Some(7),
            taken: Some("h:1".to_owned()),
        });
        assert_eq!(decide(&own, &seeds(), &from), Decision::NotMember(3));
        let members = vec![MemberRecord {
            broker_id: 1,
            raft_node_id: 11,
            peer: String::new(),
        }];
        from.get_mut(&2).unwrap().members = Some(MembersNow { at: 8, members });
        assert_eq!(decide(&own, &seeds(), &from), goes_on);
    }

    /// Proves that nothing is founded while seed lists, names, versions, or Raft node ids do not fit, and that both are named.
    #[test]
    fn disagreement_founds_nothing() {
        let mut from = answers(&[2, 3]);
        from.get_mut(&3).unwrap().seeds = "t: 1@a, 3@c".to_owned();
        let Decision::Disagree(text) = decide(&told(1), &seeds(), &from) else {
            panic!("founded");
        };
        assert!(
            text.contains("1@a, 2@b, 3@c") && text.contains("[t: 1@a, 3@c]"),
            "{text}"
        );
        let mut from = answers(&[2, 3]);
        from.get_mut(&2).unwrap().raft_node_id = 11;
        let copied = decide(&told(1), &seeds(), &from);
        assert!(matches!(copied, Decision::Disagree(text) if text.contains("copy")));
        let mut from = answers(&[2, 3]);
        from.get_mut(&2).unwrap().version = 3;
        let newer = decide(&told(1), &seeds(), &from);
        assert!(matches!(newer, Decision::Disagree(text) if text.contains("version 3")));
    }
}
