//! A damaged broker that runs without the groups in which damage was found, and asks meanwhile to be refilled.
//!
//! Owns: [`InPart`]: the asking, what is said meanwhile, when the broker stops for its refill.
//! Not here: which groups are opened (`groups`), the question (`formation`), the leader's decision (`admit.rs`).
//! Spec: docs/protocols/refill.md (running in part)

use super::super::error::{Ended, StartError};
use super::super::formation::Heard;
use super::super::peers::Peers;
use super::mark::Mark;
use crate::admin::{Health, START_FIRST, WITHOUT_LOSS};
use crate::metadata::{Refusal, groups_named};
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::{CrashPoint, Random, Tasks, crash_point};
use tidelog_model::{NodeId, PlacementGroupId};
use tokio::sync::watch;
use tokio::time::Instant;

/// The part of health that says what is withheld.
const PART: &str = "refill";
/// Pause between two questions, with jitter: others remember who asks for 4 s.
const ASK_PAUSE: Duration = Duration::from_secs(1);
/// One line per this long about what is withheld.
const SAY_PAUSE: Duration = Duration::from_secs(10);
/// It runs for so many sessions (60 s) before it stops again: where a refill fails after each stop, that is how often its groups are without it.
const RUNS_SESSIONS: u32 = 10;

/// A broker that runs in part.
pub(in crate::node) struct InPart {
    pub(in crate::node) mark: Mark,
    pub(in crate::node) node: NodeId,
    pub(in crate::node) peers: Arc<Peers>,
    pub(in crate::node) zone: String,
    /// `host:port` where others reach it.
    pub(in crate::node) peer: String,
    pub(in crate::node) session: Duration,
    pub(in crate::node) health: Health,
    pub(in crate::node) random: Arc<dyn Random>,
    pub(in crate::node) fatal: watch::Sender<Option<Ended>>,
}

impl InPart {
    /// Asks, and says so, until `tasks` stop, or until the broker is to stop for its refill. It has asked once when this returns.
    pub(in crate::node) async fn start(self, tasks: &Tasks) {
        self.ask().await;
        let asks = Arc::new(self);
        let begun = Instant::now();
        tasks.supervise("refill-asks", ASK_PAUSE, move || {
            let asks = Arc::clone(&asks);
            async move {
                let mut said: Option<(String, Instant)> = None;
                loop {
                    let heard = asks.ask().await;
                    let has_run = begun.elapsed() >= RUNS_SESSIONS * asks.session;
                    if heard.may_stop && has_run {
                        asks.stop();
                        return std::future::pending().await;
                    }
                    asks.say(&mut said, &heard);
                    tokio::time::sleep(asks.random.jitter(ASK_PAUSE)).await;
                }
            }
        });
    }

    async fn ask(&self) -> Heard {
        let at = (self.zone.as_str(), self.peer.as_str());
        let formation = &self.peers.formation;
        formation
            .ask_in_part(&self.peers.transport, &self.mark, at)
            .await
    }

    fn say(&self, said: &mut Option<(String, Instant)>, heard: &Heard) {
        let text = waits(self.node, &self.mark, heard);
        self.health.not_ready(PART, text.as_str());
        let known = said
            .as_ref()
            .is_some_and(|(last, at)| *last == text && at.elapsed() < SAY_PAUSE);
        if !known {
            tracing::warn!("{text}");
            *said = Some((text, Instant::now()));
        }
    }

    /// Nothing needs it now.
    fn stop(&self) {
        crash_point(CrashPoint::RefillMayStop);
        let text = format!(
            "{} damaged on broker {}, and nobody needs what it had: it stops, and is refilled when it is started again with this data directory",
            are(&self.mark),
            self.node
        );
        self.fatal.send_if_modified(|known| {
            let first = known.is_none();
            if first {
                *known = Some(Ended::Refills(text));
            }
            first
        });
    }
}

/// Why such a broker ends that has lost its place.
pub(in crate::node) fn replaced_in_part(node: NodeId) -> Ended {
    Ended::Refills(replaced(node))
}

/// Why it did not start, in words that fit.
pub(in crate::node) fn not_started_in_part(error: StartError, node: NodeId) -> StartError {
    match error {
        StartError::Refused(why) if why == Refusal::OtherRaftNode(node).to_string() => {
            StartError::Refused(replaced(node))
        }
        error => error,
    }
}

/// Most likely to whom it asked to be.
fn replaced(node: NodeId) -> String {
    format!(
        "broker {node}, which ran without its damaged groups, has another Raft node now: most likely the one that it asked to be. Start it again with this data directory: it \
         goes on as that one, and sets aside what it has, or says that another data directory has its place"
    )
}

/// `group 3 is`, `groups 3, 4 are`.
fn are(mark: &Mark) -> String {
    let groups: Vec<PlacementGroupId> = mark.withheld().into_iter().flatten().copied().collect();
    let is = if groups.len() == 1 { "is" } else { "are" };
    format!("{} {is}", groups_named(&groups))
}

/// What broker `node` says while it waits. What costs nothing first; the command that gives something up last, and only where data are in the way and nothing else may
/// help.
fn waits(node: NodeId, mark: &Mark, heard: &Heard) -> String {
    let (why, what_to_do) = match (&heard.refused, heard.may_stop) {
        (_, true) => (
            "nobody needs what it had, so it stops for that soon".to_owned(),
            String::new(),
        ),
        (None, false) => ("the others have not decided yet".to_owned(), String::new()),
        (Some(why), false) if why.says_all => (
            format!("they refuse now, since {}", why.text),
            String::new(),
        ),
        (Some(why), false) => (
            format!("they refuse, since {}", why.text),
            format!(
                ". {START_FIRST}. {WITHOUT_LOSS}. Only what can be had back \
                 in none of these ways is given up by `tidelog cluster add {node} --force --give-up-data`: partitions whose other copies are too few are lost then; without the last \
                 flag the command says which"
            ),
        ),
    };
    format!(
        "{} damaged on broker {node} ({}), and withheld: it serves its other groups, and waits to be refilled by the others: {why}{what_to_do}",
        are(mark),
        mark.what
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::super::super::formation::Reason;
    use super::*;
    use tidelog_model::RaftNodeId;

    /// Proves that it says which groups it lacks and that it serves the others, what costs nothing before what does, and the command that gives data up last, with its
    /// flags, and only where it is refused.
    #[test]
    fn what_to_do_first_is_said_first() {
        let node = NodeId::new(3);
        let [x, y] = [11, 12].map(RaftNodeId::new);
        let mark = Mark::new(x, y, PlacementGroupId::new(1), "a bit");
        let says = |mark: &Mark, may_stop, refused: Option<(&str, bool)>| {
            let refused = refused.map(|(text, says_all)| Reason {
                text: text.to_owned(),
                says_all,
            });
            waits(node, mark, &Heard { may_stop, refused })
        };
        let text = says(&mark, false, None);
        assert!(
            text.starts_with("group 1 is damaged on broker 3 (a bit), and withheld: it serves its"),
            "{text}"
        );
        assert!(text.ends_with("have not decided yet"), "{text}");
        let text = says(&mark, true, None);
        assert!(text.ends_with("it stops for that soon"), "{text}");
        let both = mark.with(PlacementGroupId::new(5), "a file");
        let passes = "broker 2 is refilled first; it is tried again";
        let text = says(&both, false, Some((passes, true)));
        assert!(text.ends_with(passes), "{text}");
        let text = says(&both, false, Some(("group 4 waits for broker 2", false)));
        assert!(
            text.starts_with("groups 1, 5 are damaged on broker 3 (a bit; a file)"),
            "{text}"
        );
        let at = |words: &str| {
            text.find(words)
                .unwrap_or_else(|| panic!("{words}: {text}"))
        };
        assert!(at("group 4 waits for broker 2") < at("First start the brokers"));
        assert!(at("First start the brokers") < at("add one (`tidelog cluster add`)"));
        assert!(at("add one (") < at("cluster.refill-damaged=false"));
        let command = at("`tidelog cluster add 3 --force --give-up-data`");
        assert!(at("cluster.refill-damaged=false") < command);
        assert!(at("are lost then") > command);
    }
}
