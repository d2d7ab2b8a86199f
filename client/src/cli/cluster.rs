//! `tidelog cluster status | add | decommission` and `tidelog leaders balance | transfer`: brokers, their replicas, their leadership.
//!
//! Owns: the verbs, waiting for what goes on in the background, and its progress on stderr.
//! Not here: what a status looks like (`status.rs`), what follows in the cluster (docs/protocols/membership.md).

mod status;

use super::patience::{Patience, aloud, look_at_members, no_leader};
use super::{Failure, Global, World, output};
use crate::admin_http::{AdminClient, AdminError, MemberGroup, Members};
use clap::{Args, Subcommand};
use status::{lost_alone, print, shown};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

/// How long a broker may take to tell the status: it asks all others for a second.
const STATUS_WITHIN: Duration = Duration::from_secs(30);
/// What was so before a change is told if it is known by then.
const BEFORE_WITHIN: Duration = Duration::from_secs(2);
/// What an answer takes at least: a broker asks the others for a second.
const ASK_WITHIN_MIN: Duration = Duration::from_secs(2);
/// How often the background is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// A broker that cannot be reached for so long is not waited for. More than a restart takes.
const GONE_AFTER: Duration = Duration::from_secs(30);

/// Flags of `tidelog cluster`.
#[derive(Args, Debug)]
pub struct ClusterArgs {
    /// What to do.
    #[command(subcommand)]
    pub verb: ClusterVerb,
}

/// What to do with the brokers of the cluster.
#[derive(Subcommand, Debug)]
pub enum ClusterVerb {
    /// Brokers, brokers that wait to be taken in, replicas and leaders of every placement group.
    Status,
    /// Take in a broker that waits: a new one, or one that lost its disk.
    #[command(
        after_help = "A broker waits when it was started with an empty data directory and a cluster.seeds that names itself and brokers of the \
                      cluster. A broker that has the id of a member takes its place: every replica is built anew from the others. That is refused where \
                      what the old one had may be needed: a group without a leader, or whose other copies are too few. The refusal names the groups, \
                      some of their partitions, and the brokers to start first."
    )]
    Add {
        /// Its node.id.
        #[arg(value_name = "ID")]
        broker: i32,
        /// Also in place of a member that lives.
        #[arg(long)]
        force: bool,
        /// Also where data may be lost with the old broker: nobody can append to or read its partitions then whose other copies are too few.
        #[arg(long)]
        give_up_data: bool,
        /// Come back at once; replicas are on their way then.
        #[arg(long)]
        no_wait: bool,
        /// Give up waiting after this long (it goes on).
        #[arg(long, default_value = "10m", value_parser = output::duration, value_name = "TIME")]
        timeout: Duration,
    },
    /// Move everything off a broker and take it out. Refused when too few brokers would stay.
    Decommission {
        /// Its node.id.
        #[arg(value_name = "ID")]
        broker: i32,
        /// Keep it after all: what is on its way turns back.
        #[arg(long)]
        cancel: bool,
        /// Come back at once; replicas are on their way then.
        #[arg(long)]
        no_wait: bool,
        /// Give up waiting after this long (it goes on).
        #[arg(long, default_value = "1h", value_parser = output::duration, value_name = "TIME")]
        timeout: Duration,
    },
    /// The same as `tidelog leaders`.
    #[command(alias = "leader")]
    Leaders(LeadersArgs),
}

/// Flags of `tidelog leaders`.
#[derive(Args, Debug)]
pub struct LeadersArgs {
    /// What to do.
    #[command(subcommand)]
    pub verb: LeadersVerb,
}

/// What to do with leadership of placement groups.
#[derive(Subcommand, Debug)]
pub enum LeadersVerb {
    /// Spread leadership evenly again: wishes of `transfer` are taken back.
    Balance {
        /// Give up waiting after this long (it goes on).
        #[arg(long, default_value = "60s", value_parser = output::duration, value_name = "TIME")]
        timeout: Duration,
    },
    /// Let a broker lead a group, and keep it while it can.
    Transfer {
        /// The placement group (`tidelog cluster status` lists them; 0 is metadata).
        #[arg(value_name = "GROUP")]
        group: u32,
        /// The node.id of a broker that holds a replica.
        #[arg(value_name = "ID")]
        broker: i32,
        /// Give up waiting after this long (it goes on).
        #[arg(long, default_value = "60s", value_parser = output::duration, value_name = "TIME")]
        timeout: Duration,
    },
}

pub(super) async fn run(args: ClusterArgs, global: &Global, world: &World) -> Result<(), Failure> {
    let members = match args.verb {
        ClusterVerb::Leaders(args) => return leaders(args, global, world).await,
        ClusterVerb::Status => {
            Asking::new(STATUS_WITHIN, global, world)?
                .admin
                .members()
                .await?
        }
        ClusterVerb::Add {
            broker,
            force,
            give_up_data,
            no_wait,
            timeout,
        } => {
            let asking = Asking::new(timeout, global, world)?;
            let asking = Adding {
                asking,
                broker,
                force,
                give_up_data,
            };
            asking.run(no_wait).await?
        }
        ClusterVerb::Decommission {
            broker,
            cancel,
            no_wait,
            timeout,
        } => {
            let mut asking = Asking::new(timeout, global, world)?;
            let members = asking
                .ask(|admin| admin.decommission(broker, cancel))
                .await?;
            match (cancel, no_wait) {
                (true, _) => {
                    output::say(&format!("broker {broker} stays"));
                    members
                }
                (false, true) => members,
                (false, false) => {
                    let members = asking.wait(|members| left(members, broker)).await?;
                    output::say(&format!(
                        "broker {broker} holds nothing any more and has left: its process ends by itself, its data directory may be deleted"
                    ));
                    members
                }
            }
        }
    };
    print(&members, global.output)
}

/// A broker that is taken in.
struct Adding<'a> {
    asking: Asking<'a>,
    broker: i32,
    force: bool,
    give_up_data: bool,
}

impl Adding<'_> {
    async fn run(self, no_wait: bool) -> Result<Members, Failure> {
        let Self {
            mut asking,
            broker,
            force,
            give_up_data,
        } = self;
        let before = tokio::time::timeout(BEFORE_WITHIN, asking.admin.members()).await;
        let members = if give_up_data {
            asking
                .ask(|admin| admin.add_broker_giving_up_data(broker, force))
                .await?
        } else {
            asking.ask(|admin| admin.add_broker(broker, force)).await?
        };
        output::say(&format!("broker {broker} is a member now"));
        if matches!(&before, Ok(Ok(before)) if is_draining(before, broker)) {
            output::say(&format!(
                "its decommission is over with that: it stays. If it shall go, run `tidelog cluster decommission {broker}` again"
            ));
        }
        if no_wait {
            return Ok(members);
        }
        asking.wait(|members| Ok(arrived(members, broker))).await
    }
}

pub(super) async fn leaders(
    args: LeadersArgs,
    global: &Global,
    world: &World,
) -> Result<(), Failure> {
    let members = match args.verb {
        LeadersVerb::Balance { timeout } => {
            let mut asking = Asking::new(timeout, global, world)?;
            asking.ask(AdminClient::balance_leaders).await?;
            asking.wait(|members| Ok(unbalanced(members))).await?
        }
        LeadersVerb::Transfer {
            group,
            broker,
            timeout,
        } => {
            let mut asking = Asking::new(timeout, global, world)?;
            asking
                .ask(|admin| admin.transfer_leader(group, broker))
                .await?;
            let rest = |members: &Members| {
                let mut groups = members.groups.iter();
                let at = groups.find(|at| at.group == group);
                let leader = at.and_then(|at| at.leader);
                Ok((leader != Some(broker))
                    .then(|| format!("group {group} is led by {}", named(leader))))
            };
            asking.wait(rest).await?
        }
    };
    print(&members, global.output)
}

fn named(leader: Option<i32>) -> String {
    leader.map_or_else(|| "nobody".to_owned(), |id| format!("broker {id}"))
}

/// One broker that is asked, and for how long, the change and the waiting for what follows from it together.
struct Asking<'a> {
    admin: AdminClient,
    patience: Patience,
    global: &'a Global,
    world: &'a World,
}

impl<'a> Asking<'a> {
    fn new(timeout: Duration, global: &'a Global, world: &'a World) -> Result<Self, Failure> {
        let patience = Patience::total(timeout, world);
        let admin = AdminClient::new(&global.admin_url, world.network.clone())?;
        Ok(Self {
            admin: admin.until(patience.until()),
            patience,
            global,
            world,
        })
    }

    /// Asks for a change until it is taken. Asked again while nothing was changed for want of a leader.
    async fn ask<'b, Asked>(
        &'b mut self,
        change: impl Fn(&'b AdminClient) -> Asked,
    ) -> Result<Members, Failure>
    where
        Asked: Future<Output = Result<Members, AdminError>>,
    {
        let Self {
            admin,
            patience,
            global,
            world,
        } = self;
        loop {
            let look = || look_at_members(global, world);
            let error = match aloud(patience, change(admin), look).await {
                Ok(members) => return Ok(members),
                Err(error) => error,
            };
            let again = matches!(&error, AdminError::Refused { code, .. } if code == "unavailable");
            // A last question without time for an answer would hide what is known.
            let left = patience.until().saturating_duration_since(Instant::now());
            let last = again && left < ASK_WITHIN_MIN;
            if last {
                tokio::time::sleep(left).await;
            }
            if last || patience.is_over() {
                return Err(Failure::Failed(patience.given_up(&error.to_string())));
            }
            if !again {
                return Err(error.into());
            }
            patience.say(&error.to_string());
            let look = LOOK.min(patience.until() - Instant::now());
            tokio::time::sleep(look).await;
        }
    }

    /// Looks until `rest` says that nothing is left, or that waiting is of no use, and tells what it says when it changes.
    async fn wait(
        &mut self,
        rest: impl Fn(&Members) -> Result<Option<String>, Failure>,
    ) -> Result<Members, Failure> {
        let mut said = None;
        let mut reached = Instant::now();
        loop {
            let answer = self.admin.members().await;
            if !matches!(answer, Err(AdminError::Unreachable { .. })) {
                reached = Instant::now();
            }
            let left = match answer {
                Ok(members) => match rest(&members)? {
                    None => return Ok(members),
                    Some(left) => no_leader(&members)
                        .filter(|_| members.metadata_leader.is_none())
                        .map_or_else(|| left.clone(), |why| format!("{left}: {why}")),
                },
                Err(error) if reached.elapsed() >= GONE_AFTER => {
                    return Err(Failure::Failed(format!(
                        "{error}. What was started goes on: look with `tidelog cluster status` at another broker (one that has left the \
                         cluster ends by itself)"
                    )));
                }
                // The asked broker may be the one that leaves, or stop for a moment.
                Err(AdminError::Refused { message, .. }) => message,
                // Nor does one that had no time left say anything.
                Err(error) => {
                    let known = said.clone().filter(|_| self.patience.is_over());
                    known.unwrap_or_else(|| error.to_string())
                }
            };
            if said.as_ref() != Some(&left) {
                output::say(&left);
                said = Some(left.clone());
            }
            if self.patience.is_over() {
                return Err(Failure::Failed(
                    self.patience.given_up(&format!("It goes on: {left}")),
                ));
            }
            let look = LOOK.min(self.patience.until() - Instant::now());
            tokio::time::sleep(look).await;
        }
    }
}

fn is_draining(members: &Members, broker: i32) -> bool {
    let mut brokers = members.brokers.iter();
    brokers.any(|at| at.id == broker && at.draining)
}

/// What is missing until a broker is there with its replicas.
fn arrived(members: &Members, broker: i32) -> Option<String> {
    let at = members.brokers.iter().find(|at| at.id == broker);
    let Some(at) = at.filter(|at| at.live) else {
        return Some(format!("waiting for broker {broker} to serve"));
    };
    // Loads are evened out as soon as it serves; a moment before nothing is planned yet.
    let uneven = members.brokers.iter().any(|other| other.replicas >= 2);
    if at.replicas == 0 && uneven {
        return Some(format!("waiting for replicas of broker {broker}"));
    }
    let moving = members.groups.iter().filter(|group| group.target.is_some());
    match moving.count() {
        0 => None,
        count => Some(format!("{count} groups have replicas on their way")),
    }
}

/// What is missing until a broker is gone.
fn left(members: &Members, broker: i32) -> Result<Option<String>, Failure> {
    let Some(at) = members.brokers.iter().find(|at| at.id == broker) else {
        return Ok(None);
    };
    if !at.draining {
        return Err(Failure::Failed(format!(
            "broker {broker} is no longer drained: somebody has decided to keep it"
        )));
    }
    let holds = |group: &&MemberGroup| {
        let kept = group.offsets_at.iter().flatten();
        let mut at = group.replicas.iter().chain(kept);
        group.group != 0 && at.any(|id| *id == broker)
    };
    let held: Vec<_> = members.groups.iter().filter(holds).collect();
    let lost = held.iter().flat_map(|group| group.lost.iter().flatten());
    let lost: Vec<&str> = lost.map(String::as_str).collect();
    if !lost.is_empty() {
        return Err(Failure::Failed(format!(
            "broker {broker} cannot go: most copies of {} are gone with their disks, and nobody could take over what it holds. Start the brokers with the \
             disks that they had, if these are found; or delete these topics: it goes on then. `--cancel` keeps the broker",
            shown(&lost)
        )));
    }
    let (lost, moving): (Vec<&MemberGroup>, Vec<_>) =
        held.into_iter().partition(|group| group.lost.is_some());
    if moving.is_empty() && !lost.is_empty() {
        return Ok(Some(lost_alone(&lost, at)));
    }
    let leaderless = moving.iter().filter(|group| group.leader.is_none());
    let leaderless: Vec<_> = leaderless.map(|group| group.group.to_string()).collect();
    let leaderless: Vec<&str> = leaderless.iter().map(String::as_str).collect();
    let waits = if leaderless.is_empty() {
        String::new()
    } else {
        format!(
            "; no leader is there to move the groups {}: are the brokers up that hold them?",
            shown(&leaderless)
        )
    };
    Ok(Some(format!(
        "broker {broker} still holds {} replicas{waits}",
        moving.len()
    )))
}

/// What is missing until leadership is known, and spread evenly. A lost group has no leader to wait for.
fn unbalanced(members: &Members) -> Option<String> {
    if members.metadata_leader.is_none() {
        return Some("no leader of the cluster's metadata is known".to_owned());
    }
    let waits = |at: &&MemberGroup| at.leader.is_none() && at.lost.is_none();
    let without = members.groups.iter().filter(waits).count();
    if without > 0 {
        return Some(format!("placement groups without a leader: {without}"));
    }
    uneven(members)
}

/// What is missing until leadership is spread evenly: for every number of copies the brokers lead the same number of groups, give or take one.
/// Groups that a broker withholds do not count: it cannot lead those that it should, and nothing says which other one does. Without them there may be as many less on one broker.
fn uneven(members: &Members) -> Option<String> {
    let withheld = members.waiting.iter().filter_map(|at| at.withheld.as_ref());
    let withheld: BTreeSet<u32> = withheld.flatten().copied().collect();
    let apart = |id: i32| {
        let groups = members.groups.iter().filter(|at| at.leader == Some(id));
        groups.filter(|at| withheld.contains(&at.group)).count()
    };
    let open = members.brokers.iter().filter(|at| at.live && !at.draining);
    let leads = open.map(|at| at.leads.saturating_sub(apart(at.id)));
    let leads: Vec<usize> = leads.collect();
    let (most, least) = (leads.iter().max()?, leads.iter().min()?);
    (most - least > 2 + withheld.len())
        .then(|| format!("brokers lead between {least} and {most} groups"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::status::tests::members;
    use super::*;
    use crate::admin_http::WaitingBroker;

    /// Proves that a command which is refused for want of a leader until its deadline ends with that reason: it asks no last question whose answer it would not wait for.
    #[tokio::test]
    async fn the_reason_is_told_at_the_deadline() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let global = Global {
            bootstrap: String::new(),
            admin_url: format!("http://{}", listener.local_addr().unwrap()),
            output: super::super::Output::Table,
        };
        // Two answers, then it only listens.
        let serves = tokio::spawn(async move {
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = vec![0; 4096];
                let _some = stream.read(&mut request).await.unwrap();
                let body = r#"{"error":{"code":"unavailable","message":"nobody leads"}}"#;
                let head = format!(
                    "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    body.len()
                );
                let answer = format!("{head}{body}");
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
            listener
        });
        let world = World::system();
        let timeout = ASK_WITHIN_MIN + LOOK / 2;
        let mut asking = Asking::new(timeout, &global, &world).unwrap();
        let asked = asking.ask(|admin| admin.decommission(1, false)).await;
        let Err(Failure::Failed(text)) = asked else {
            panic!("it is done");
        };
        assert!(
            text.contains("nobody leads") && !text.contains("nothing within"),
            "{text}"
        );
        drop(serves);
    }

    /// Proves that leadership is not taken for spread while nobody is known to lead something, and that a lost group is not waited for.
    #[test]
    fn who_leads_nothing_is_not_balanced() {
        let mut now = members();
        assert_eq!(unbalanced(&now), None);
        now.groups[0].leader = None;
        let text = unbalanced(&now).unwrap();
        assert_eq!(text, "placement groups without a leader: 1");
        now.groups[0].lost = Some(Vec::new());
        assert_eq!(unbalanced(&now), None);
        now.metadata_leader = None;
        let text = unbalanced(&now).unwrap();
        assert_eq!(text, "no leader of the cluster's metadata is known");
        now.metadata_leader = Some(1);
        now.brokers[0].leads = 4;
        assert!(unbalanced(&now).unwrap().contains("between 1 and 4"));
    }

    /// Proves that leadership counts as spread where only the groups that a damaged broker withholds are led by another one than they should be, and not where more is uneven.
    #[test]
    fn what_is_withheld_is_not_waited_for() {
        let mut now = members();
        let first = now.groups[0].clone();
        let led = |group| MemberGroup {
            group,
            ..first.clone()
        };
        now.groups = (1..=4).map(led).collect();
        now.brokers[0].leads = 4;
        now.brokers[1].leads = 0;
        assert!(unbalanced(&now).unwrap().contains("between 0 and 4"));
        now.waiting = vec![WaitingBroker {
            id: 2,
            zone: String::new(),
            peer: "b2:1".to_owned(),
            raft_node: 9,
            replaces: true,
            damaged: true,
            refused: None,
            withheld: Some(vec![2]),
        }];
        assert_eq!(unbalanced(&now), None);
        now.groups.extend((5..=6).map(led));
        now.brokers[0].leads = 6;
        assert!(unbalanced(&now).unwrap().contains("between 0 and 5"));
        now.waiting[0].withheld = None;
        assert!(unbalanced(&now).unwrap().contains("between 0 and 6"));
    }

    /// Proves that a drain that cannot end because of a lost group fails with its partitions, and that one that waits for a leader says so.
    #[test]
    fn drains_that_cannot_go_on_say_why() {
        let mut now = members();
        now.brokers[0].draining = true;
        let says = |now: &Members| left(now, 1);
        let text = says(&now).unwrap().unwrap();
        assert_eq!(text, "broker 1 still holds 1 replicas");
        now.groups[0].leader = None;
        let text = says(&now).unwrap().unwrap();
        assert!(
            text.contains("no leader is there to move the groups 1:"),
            "{text}"
        );
        now.groups[0].lost = Some(Vec::new());
        let text = says(&now).unwrap().unwrap();
        assert!(
            text.contains("but the lost group 1: an empty group takes"),
            "{text}"
        );
        // The holders that are wanted are others; this one has something left.
        now.groups[0].replicas = vec![2];
        now.groups[0].offsets_at = Some(vec![1, 3]);
        let text = says(&now).unwrap().unwrap();
        assert!(
            text.contains("Stop it, and do not start") && text.contains("is on broker 3 too"),
            "{text}"
        );
        assert!(!text.contains("are the brokers up"), "{text}");
        now.brokers[0].live = false;
        let text = says(&now).unwrap().unwrap();
        assert!(
            text.contains("is on broker 3 too") && !text.contains("Stop it"),
            "{text}"
        );
        now.groups[0].offsets_at = Some(vec![1]);
        let text = says(&now).unwrap().unwrap();
        assert!(
            text.contains("an empty group takes"),
            "it was stopped: {text}"
        );
        now.brokers[0].live = true;
        let led = MemberGroup {
            group: 2,
            replicas: vec![1],
            lost: None,
            leader: Some(1),
            offsets_at: None,
            ..now.groups[0].clone()
        };
        now.groups.push(led);
        let text = says(&now).unwrap().unwrap();
        assert_eq!(text, "broker 1 still holds 1 replicas", "not yet");
        now.groups[0].replicas = vec![1];
        now.groups[0].offsets_at = None;
        now.groups[0].lost = Some(vec!["t-0".to_owned()]);
        let Err(Failure::Failed(text)) = says(&now) else {
            panic!("it waits");
        };
        assert!(text.contains("most copies of t-0 are gone"), "{text}");
    }

    /// Proves what each command waits for.
    #[test]
    fn what_is_waited_for() {
        let mut now = members();
        assert!(arrived(&now, 2).unwrap().contains("1 groups"));
        assert!(arrived(&now, 3).unwrap().contains("to serve"));
        now.groups[0].target = None;
        assert_eq!(arrived(&now, 2), None);
        assert!(left(&now, 1).is_err(), "kept: waiting would never end");
        now.brokers[0].draining = true;
        assert!(is_draining(&now, 1) && !is_draining(&now, 2));
        assert!(left(&now, 1).unwrap().unwrap().contains("holds 1 replicas"));
        assert_eq!(left(&now, 3).unwrap(), None);
        now.brokers[0].draining = false;
        assert_eq!(uneven(&now), None);
        now.brokers[0].leads = 4;
        assert!(uneven(&now).unwrap().contains("between 1 and 4"));
    }
}
