//! Waiting that is not silent: what is in the way is said on stderr within seconds, and for how long it is tried.
//!
//! Owns: [`Patience`], when is looked, what is found in the way of Kafka verbs and of those of the admin address.
//! Not here: trying again (the library), the verbs.

use super::{Global, World, output};
use crate::admin_http::{AdminClient, MemberGroup, Members};
use crate::cluster::{Cluster, Metadata};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// What takes less is nobody's trouble: an election takes about two seconds.
const SILENT: Duration = Duration::from_secs(3);
/// Pause after a look; doubled while nothing is found, up to [`LOOK_MAX`].
const LOOK: Duration = Duration::from_secs(2);
/// A consumer may wait for days.
const LOOK_MAX: Duration = Duration::from_secs(16);
/// How long a look may take: some brokers that do not answer, and one that does.
const LOOK_WITHIN: Duration = Duration::from_secs(5);
/// What to do about a leader that is missing.
const ADVICE: &str = "is a majority of the brokers up? `tidelog cluster status` shows them";
/// Partitions and groups that are named at most.
const NAMED_MAX: usize = 5;

/// How long a verb waits, and what it has said meanwhile.
pub(super) struct Patience {
    timeout: Duration,
    until: Instant,
    trying: String,
    said: Option<String>,
}

impl Patience {
    /// Waits this long from now on, all together.
    pub(super) fn total(timeout: Duration, world: &World) -> Self {
        let timeout_ms = i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX);
        let end = world.clock.now_ms().saturating_add(timeout_ms);
        let end = Duration::from_millis(u64::try_from(end).unwrap_or(0));
        let shown = std::time::UNIX_EPOCH.checked_add(end).map_or_else(
            || "the end of time".to_owned(),
            |end| humantime::format_rfc3339_seconds(end).to_string(),
        );
        let far = Instant::now() + Duration::from_secs(86_400 * 365);
        Self {
            timeout,
            until: Instant::now().checked_add(timeout).unwrap_or(far),
            trying: format!("still trying until {shown}"),
            said: None,
        }
    }

    /// Waits until it is told to end, or as `trying` says.
    pub(super) fn open(trying: String, world: &World) -> Self {
        Self {
            trying,
            ..Self::total(Duration::from_secs(86_400 * 365), world)
        }
    }

    pub(super) const fn until(&self) -> Instant {
        self.until
    }

    pub(super) fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// The line for `problem`, if it is a new one.
    fn line(&mut self, problem: &str) -> Option<String> {
        if self.said.as_deref() == Some(problem) {
            return None;
        }
        self.said = Some(problem.to_owned());
        Some(format!("{problem}; {}", self.trying))
    }

    /// Says what is in the way, when that is new.
    pub(super) fn say(&mut self, problem: &str) {
        if let Some(line) = self.line(problem) {
            output::say(&line);
        }
    }

    /// What is said at the end: `last` is the newest reason, what was found in the way comes behind it.
    pub(super) fn given_up(&self, last: &str) -> String {
        let found = self.said.as_deref().filter(|said| !last.contains(*said));
        let found = found.map_or_else(String::new, |said| format!(": {said}"));
        format!("not done within {:?}{found}. {last}", self.timeout)
    }
}

/// Runs `work` to its end. When that takes long, what `look` finds in the way is said, again when it changes.
pub(super) async fn aloud<T, Looking>(
    patience: &mut Patience,
    work: impl Future<Output = T>,
    look: impl Fn() -> Looking,
) -> T
where
    Looking: Future<Output = Option<String>>,
{
    tokio::pin!(work);
    let mut pause = SILENT;
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = tokio::time::sleep(pause) => {}
        }
        let found = tokio::select! {
            biased;
            done = &mut work => return done,
            found = look() => found,
        };
        let again = if pause == SILENT { LOOK } else { pause * 2 };
        pause = again.min(LOOK_MAX);
        if let Some(problem) = found {
            patience.say(&problem);
            pause = LOOK;
        }
    }
}

/// What is in the way of a verb of Kafka's: on `topic`, or on what there is. Asks on connections of its own.
pub(super) async fn look_at_cluster(cluster: &Cluster, topic: Option<&str>) -> Option<String> {
    let cluster = cluster.separate();
    let names: Vec<&str> = topic.into_iter().collect();
    match timeout(LOOK_WITHIN, cluster.refresh(Some(&names))).await {
        Ok(Ok(metadata)) => in_the_way(&metadata, topic),
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some("no broker answers".to_owned()),
    }
}

fn named(numbers: &[String]) -> String {
    let mut text = numbers[..numbers.len().min(NAMED_MAX)].join(", ");
    if numbers.len() > NAMED_MAX {
        let more = numbers.len() - NAMED_MAX;
        let others = if more == 1 { "other" } else { "others" };
        text.push_str(&format!(" and {more} {others}"));
    }
    text
}

fn in_the_way(metadata: &Metadata, topic: Option<&str>) -> Option<String> {
    let Some(topic) = topic else {
        let known = metadata.controller.is_some();
        return (!known)
            .then(|| format!("no leader of the cluster's metadata is known ({ADVICE})"));
    };
    let partitions = metadata.topics.get(topic).map(|topic| &topic.partitions);
    let without = (0..).zip(partitions.into_iter().flatten());
    let without = without.filter(|(_, partition)| partition.leader.is_none());
    let without: Vec<String> = without
        .map(|(index, _): (u32, _)| index.to_string())
        .collect();
    (!without.is_empty()).then(|| {
        let (what, verb) = match without.len() {
            1 => ("partition", "leader"),
            _ => ("partitions", "leaders"),
        };
        format!(
            "no {verb} of {what} {} of '{topic}' known ({ADVICE})",
            named(&without)
        )
    })
}

/// What is in the way of a verb of the admin address.
pub(super) async fn look_at_members(global: &Global, world: &World) -> Option<String> {
    let admin = AdminClient::new(&global.admin_url, Arc::clone(&world.network)).ok()?;
    match timeout(LOOK_WITHIN, admin.members()).await {
        Ok(Ok(members)) => no_leader(&members),
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some(format!("{} does not answer", global.admin_url)),
    }
}

/// Groups that nobody is known to lead. A lost one has no leader to wait for.
pub(super) fn no_leader(members: &Members) -> Option<String> {
    if members.metadata_leader.is_none() {
        return Some(format!(
            "no leader of the cluster's metadata is known ({ADVICE})"
        ));
    }
    let waits = |at: &&MemberGroup| at.leader.is_none() && at.lost.is_none();
    let groups = members.groups.iter().filter(waits);
    let groups: Vec<String> = groups.map(|at| at.group.to_string()).collect();
    (!groups.is_empty()).then(|| {
        let what = if groups.len() == 1 { "group" } else { "groups" };
        format!("no leader of {what} {} is known ({ADVICE})", named(&groups))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::cluster::{PartitionMeta, TopicMeta};
    use crate::error::ErrorCode;
    use std::cell::RefCell;
    use tidelog_model::NodeId;

    fn metadata(controller: Option<i32>, leaders: &[Option<i32>]) -> Metadata {
        let partition = |leader: &Option<i32>| PartitionMeta {
            leader: leader.map(NodeId::new),
            leader_epoch: 0,
            replicas: Vec::new(),
            in_sync: Vec::new(),
        };
        let topic = TopicMeta {
            error: ErrorCode::NONE,
            id: [0; 16],
            is_internal: false,
            partitions: leaders.iter().map(partition).collect(),
        };
        Metadata {
            controller: controller.map(NodeId::new),
            topics: [("t".to_owned(), topic)].into(),
            ..Metadata::default()
        }
    }

    /// Proves what is found in the way of each kind of verb, and nothing where there is nothing.
    #[test]
    fn what_is_in_the_way() {
        let found = |at: &Metadata, topic| in_the_way(at, topic).unwrap_or_default();
        let good = metadata(Some(1), &[Some(1), Some(2)]);
        assert_eq!(in_the_way(&good, None), None);
        assert_eq!(in_the_way(&good, Some("t")), None);
        assert_eq!(in_the_way(&good, Some("unknown")), None);
        let none = metadata(None, &[Some(1), None]);
        assert!(found(&none, None).starts_with("no leader of the cluster's metadata is known"));
        assert!(found(&none, Some("t")).starts_with("no leader of partition 1 of 't' known"));
        let one_more = found(&metadata(Some(1), &[None; 6]), Some("t"));
        assert!(one_more.contains("4 and 1 other of"), "{one_more}");
        let many = metadata(Some(1), &[None; 7]);
        let text = found(&many, Some("t"));
        assert!(
            text.starts_with("no leaders of partitions 0, 1, 2, 3, 4 and 2 others of 't' known"),
            "{text}"
        );
    }

    /// Proves that a problem is said with its end when it is new, and named when the verb gives up.
    #[tokio::test]
    async fn problems_are_said_once() {
        let mut patience = Patience::total(Duration::from_secs(60), &World::system());
        let line = patience.line("no leader").unwrap();
        assert!(
            line.starts_with("no leader; still trying until 2"),
            "{line}"
        );
        assert_eq!(patience.line("no leader"), None);
        assert!(patience.line("another").is_some());
        assert_eq!(
            patience.given_up("NOT_CONTROLLER"),
            "not done within 60s: another. NOT_CONTROLLER"
        );
        assert_eq!(
            patience.given_up("it was another"),
            "not done within 60s. it was another"
        );
    }

    /// Proves that what ends soon is not looked at, and that what does not is, within seconds and again and again until it ends.
    #[tokio::test(start_paused = true)]
    async fn a_long_wait_is_looked_at() {
        let looks = RefCell::new(Vec::new());
        let began = Instant::now();
        let look = || {
            looks.borrow_mut().push(began.elapsed().as_secs());
            std::future::ready(None)
        };
        let mut patience = Patience::total(Duration::from_secs(60), &World::system());
        aloud(&mut patience, tokio::time::sleep(SILENT / 2), look).await;
        assert!(looks.borrow().is_empty());
        let began_again = began.elapsed().as_secs();
        let work = async {
            tokio::time::sleep(Duration::from_secs(8)).await;
            7
        };
        assert_eq!(aloud(&mut patience, work, look).await, 7);
        let at: Vec<u64> = looks.borrow().iter().map(|at| at - began_again).collect();
        assert_eq!(at, [3, 5]);
    }
}
