//! A damaged broker waits until the others take it in anew, and begins anew then.
//!
//! Owns: [`decide`]: what the answers mean to it. Pure.
//! Not here: the order of what happens on its disk (`refill::mark`), the others' decision (`refill::admit`).
//! Spec: docs/protocols/refill.md (steps 2 and 5)

use super::super::error::StartError;
use super::super::identity::Directory;
use super::super::refill::Mark;
use super::candidates::Reason;
use super::decide::{MembersNow, Told};
use super::{Asker, Formed, Founding, ROUND_PAUSE};
use crate::admin::{START_FIRST, WITHOUT_LOSS};
use crate::metadata::Standing;
use std::collections::BTreeMap;
use std::time::Duration;
use tidelog_env::{CrashPoint, crash_point};
use tidelog_model::{NodeId, RaftNodeId};
use tokio::time::Instant;

/// So long the newest answers must say that there is no place for this broker: who answers may be behind for a moment.
const OVER_AFTER: Duration = Duration::from_secs(10);

/// So long a broker that could run in part serves nothing and asks, longer than `session`s twice: it counts as living for one of them after a crash, and leaders are elected
/// in its place. What may take it in then takes it in within seconds.
const ASKS_BEYOND: Duration = Duration::from_secs(10);

/// What a damaged broker learned.
#[derive(Debug, PartialEq, Eq)]
enum Learned {
    /// It is a member under its new Raft node.
    TakenIn,
    /// It is not yet; what it waits for.
    Waits(String),
    /// It is not, since something depends on what it had; why, as whoever decides says.
    Refused(Reason),
    /// It has no place in the cluster any more, under neither of its Raft nodes.
    Over(Standing),
}

/// What the broker `node` says while it waits: `found` on its disk. What costs nothing first; the command that gives something up last, and only where data are in the
/// way and nothing else may help. `in_part`: it serves its other groups soon, and knows more then.
fn waiting(node: NodeId, found: &str, in_part: bool, learned: &Learned) -> String {
    let (why, what_to_do) = match learned {
        Learned::Refused(why) if why.says_all => (
            format!("they refuse now, since {}", why.text),
            String::new(),
        ),
        Learned::Refused(why) if in_part => (
            format!("they refuse, since {}", why.text),
            ". If that does not change within seconds, it serves its other groups, and says what helps".to_owned(),
        ),
        Learned::Refused(why) => (
            format!("they refuse, since {}", why.text),
            format!(
                ". {START_FIRST}. {WITHOUT_LOSS}. Only what can be had back in none of these ways is given up by `tidelog cluster add {node} --give-up-data`: partitions whose other copies are too few are lost then; without the flag the command \
                 says which"
            ),
        ),
        Learned::Waits(why) => (why.clone(), String::new()),
        Learned::Over(standing) => (over(node, *standing), String::new()),
        Learned::TakenIn => ("it is taken in".to_owned(), String::new()),
    };
    format!(
        "the data directory is damaged ({found}), so broker {node} serves nothing and waits to be refilled by the others: {why}{what_to_do}"
    )
}

/// Why it waits for nothing any more.
fn over(node: NodeId, standing: Standing) -> String {
    match standing {
        Standing::Replaced => format!(
            "another data directory has taken the place of this one: it is not used any more. If data were given up with it, it may have the only copy of them: keep it. If it \
             runs beside that one, give one of them another node.id than {node}"
        ),
        Standing::Member | Standing::Gone => format!(
            "broker {node} is no member of the cluster any more: this data directory is not used any more. To have the broker back, keep this one aside, start it with an empty \
             one, and run `tidelog cluster add {node}`"
        ),
    }
}

/// The answers of this broker's own cluster.
fn of_cluster<'a>(own: &Told, answers: &'a BTreeMap<i32, Told>) -> impl Iterator<Item = &'a Told> {
    let cluster = own.record.as_ref().map(Founding::cluster);
    let same = move |told: &&Told| told.record.as_ref().map(Founding::cluster) == cluster;
    answers.values().filter(same)
}

/// Who is a member, as who knows it best says.
fn newest<'a>(own: &Told, answers: &'a BTreeMap<i32, Told>) -> Option<&'a MembersNow> {
    let known = of_cluster(own, answers).filter_map(|told| told.members.as_ref());
    known.max_by_key(|members| members.at)
}

/// Decides for the broker that says `own` of itself, under its new Raft node, and was `damaged` before.
fn decide(own: &Told, damaged: RaftNodeId, answers: &BTreeMap<i32, Told>) -> Learned {
    let waits = |text: &str| Learned::Waits(text.to_owned());
    let now = newest(own, answers);
    let outside = answers
        .values()
        .filter_map(|told| told.outside.as_ref())
        .max_by_key(|outside| outside.at);
    if let Some(outside) = outside
        && outside.at > now.map(|now| now.at)
    {
        // They know neither of its Raft nodes any more.
        return Learned::Over(if outside.taken.is_some() {
            Standing::Replaced
        } else {
            Standing::Gone
        });
    }
    let Some(now) = now else {
        return waits("no other broker is reached that knows the members of the cluster");
    };
    let mut members = now.members.iter();
    let member = members.find(|member| member.broker_id == own.broker_id);
    match member.map(|member| member.raft_node_id) {
        Some(known) if known == own.raft_node_id => Learned::TakenIn,
        Some(known) if known == damaged.get() => {
            let refused = of_cluster(own, answers).find_map(Told::reason);
            refused.map_or_else(
                || waits("the others have not decided yet"),
                Learned::Refused,
            )
        }
        Some(_) => Learned::Over(Standing::Replaced),
        None => Learned::Over(Standing::Gone),
    }
}

impl Asker<'_> {
    /// Waits until this broker is a member under the Raft node that `mark` names, and gives the directory over to that one. The groups of `directory`, the damaged
    /// one's, are set aside then. One that could run in part does not wait long.
    pub(super) async fn form_anew(
        &self,
        directory: &mut Directory,
        mark: &Mark,
    ) -> Result<Formed, StartError> {
        let begun = Instant::now();
        let session = Duration::from_millis(self.config.cluster.session_ms);
        let patience = mark.withheld().map(|_| 2 * session + ASKS_BEYOND);
        let own = self.formation.told.lock().clone();
        let mut seeds = self.config.seeds();
        let mut said: Option<(String, Instant)> = None;
        let mut over_since: Option<Instant> = None;
        loop {
            let answers = self.ask_all(&seeds, own.broker_id).await;
            // The leader of metadata may be none of the seeds.
            for member in newest(&own, &answers)
                .into_iter()
                .flat_map(|now| &now.members)
            {
                if !member.peer.is_empty() {
                    let peer = || member.peer.clone();
                    seeds.entry(member.broker_id).or_insert_with(peer);
                }
            }
            match decide(&own, mark.raft_node, &answers) {
                Learned::TakenIn => break,
                learned => {
                    let in_part = patience.is_some();
                    let text = waiting(directory.node, &mark.what, in_part, &learned);
                    self.say(&mut said, text);
                    let waits = matches!(learned, Learned::Waits(_) | Learned::Refused(_));
                    if waits && patience.is_some_and(|patience| begun.elapsed() >= patience) {
                        return Ok(Formed::Otherwise);
                    }
                    over_since = match learned {
                        Learned::Over(_) => over_since.or_else(|| Some(Instant::now())),
                        _ => None,
                    };
                    if let (Learned::Over(standing), Some(since)) = (learned, over_since)
                        && since.elapsed() >= OVER_AFTER
                    {
                        return Err(StartError::Refused(over(directory.node, standing)));
                    }
                }
            }
            tokio::time::sleep(self.world.random.jitter(ROUND_PAUSE)).await;
        }
        crash_point(CrashPoint::RefillLearned);
        let record = directory.founding.clone();
        let record = record.ok_or_else(|| StartError::Metadata("no cluster".to_owned()))?;
        let disk = self.world.disk.as_ref();
        mark.begin_anew(disk, &self.config.node.data_dir, directory)?;
        directory.raft_node = mark.next;
        tracing::info!(raft_node = %mark.next, "this broker was taken in anew and is refilled");
        Ok(Formed::In(record))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::super::decide::Outside;
    use super::super::record::MemberRecord;
    use super::*;
    use uuid::Uuid;

    const DAMAGED: RaftNodeId = RaftNodeId::new(33);

    fn told(id: i32, cluster: u128, at: u64, third: Option<u64>) -> Told {
        let member = |broker_id, raft_node_id| MemberRecord {
            broker_id,
            raft_node_id,
            peer: String::new(),
        };
        let third = third.map(|raft_node| member(3, raft_node));
        let members = [member(1, 11), member(2, 22)].into_iter().chain(third);
        let record = Founding {
            cluster_id: Uuid::from_u128(cluster),
            name: "t".to_owned(),
            members: Vec::new(),
        };
        Told {
            members: (at > 0).then(|| MembersNow {
                at,
                members: members.collect(),
            }),
            ..Told::new(
                id,
                u64::try_from(id * 11).unwrap(),
                String::new(),
                Some(record),
            )
        }
    }

    fn learned(answers: &[Told]) -> Learned {
        let mut own = told(3, 7, 0, None);
        own.raft_node_id = 34;
        let answers = answers.iter().map(|told| (told.broker_id, told.clone()));
        decide(&own, DAMAGED, &answers.collect())
    }

    fn reason(text: &str, says_all: bool) -> Learned {
        let text = text.to_owned();
        Learned::Refused(Reason { text, says_all })
    }

    fn waits(answers: &[Told]) -> String {
        match learned(answers) {
            Learned::Waits(text) => text,
            other => panic!("{other:?}"),
        }
    }

    /// Proves that a damaged broker begins anew only when who knows best names it under its new Raft node: not when nobody answers, when nobody has
    /// metadata, when all are as damaged as it is, nor in another cluster.
    #[test]
    fn only_who_is_named_begins_anew() {
        assert!(waits(&[]).contains("no other broker is reached"));
        let silent = [told(1, 7, 0, None), told(2, 7, 0, None)];
        assert!(waits(&silent).contains("no other broker is reached"));
        let stranger = [told(1, 8, 9, Some(34))];
        assert!(waits(&stranger).contains("no other broker is reached"));
        let asks = [told(1, 7, 9, Some(33))];
        assert!(waits(&asks).contains("have not decided"));
        assert_eq!(learned(&[told(1, 7, 9, Some(34))]), Learned::TakenIn);
        let behind = [told(1, 7, 9, Some(33)), told(2, 7, 10, Some(34))];
        assert_eq!(learned(&behind), Learned::TakenIn);
        let undone = [told(1, 7, 9, Some(34)), told(2, 7, 10, Some(35))];
        assert_eq!(learned(&undone), Learned::Over(Standing::Replaced));
        assert_eq!(
            learned(&[told(1, 7, 9, None)]),
            Learned::Over(Standing::Gone)
        );
        // Who knows more, and neither of its Raft nodes.
        let mut outside = told(2, 7, 0, None);
        outside.record = None;
        let says = |at, taken: Option<&str>| {
            let taken = taken.map(str::to_owned);
            Some(Outside { at, taken })
        };
        outside.outside = says(Some(10), Some("h:1"));
        let both = |outside: &Told| learned(&[told(1, 7, 9, Some(33)), outside.clone()]);
        assert_eq!(both(&outside), Learned::Over(Standing::Replaced));
        outside.outside = says(Some(10), None);
        assert_eq!(both(&outside), Learned::Over(Standing::Gone));
        outside.outside = says(Some(8), None);
        assert!(
            matches!(both(&outside), Learned::Waits(text) if text.contains("have not decided"))
        );
        outside.outside = says(None, None);
        assert!(waits(&[outside]).contains("no other broker is reached"));
    }

    /// Proves that it says why it is refused, as whoever decides tells it.
    #[test]
    fn why_it_is_refused_is_said() {
        let mut leader = told(2, 7, 9, Some(33));
        leader.refused = Some("group 3 has\nno".to_owned());
        leader.says_all = true;
        let refused = learned(&[told(1, 7, 9, Some(33)), leader]);
        assert_eq!(refused, reason("group 3 has\\nno", true));
    }

    /// Proves that it says first what costs nothing, and names the command that gives data up last, with its flag, and only where it is refused.
    #[test]
    fn what_to_do_first_is_said_first() {
        let says = |learned| waiting(NodeId::new(3), "a bit", false, &learned);
        let text = says(Learned::Waits("nobody is reached".to_owned()));
        assert!(
            text.ends_with("refilled by the others: nobody is reached"),
            "{text}"
        );
        let text = says(reason("group 4 waits for broker 2", false));
        let at = |words: &str| {
            text.find(words)
                .unwrap_or_else(|| panic!("{words}: {text}"))
        };
        assert!(at("group 4 waits for broker 2") < at("First start the brokers"));
        assert!(at("First start the brokers") < at("cluster.refill-damaged=false"));
        let command = at("`tidelog cluster add 3 --give-up-data`");
        assert!(at("cluster.refill-damaged=false") < command);
        assert!(at("are lost then") > command);
        // Who serves something soon is not told to give anything up.
        let refused = reason("group 4 waits for broker 2", false);
        let text = waiting(NodeId::new(3), "a bit", true, &refused);
        assert!(text.contains("it serves its other groups"), "{text}");
        assert!(!text.contains("give-up-data"), "{text}");
        // Nor is anybody where no data are in the way.
        for in_part in [false, true] {
            let passes = reason("broker 2 is refilled first; it is tried again", true);
            let text = waiting(NodeId::new(3), "a bit", in_part, &passes);
            assert!(text.ends_with("first; it is tried again"), "{text}");
        }
    }
}
