//! Whether this broker should lead, and what the others say of themselves: told by whoever has something in the way, to all members.
//!
//! Owns: [`Fit`], what is known here; [`Exchange`], who is told and asked, and when; the answering side.
//! Not here: the bytes and what was said (`router::fitness`), what follows for leadership (`leaders`) and readiness (`store_mark`).
//! Spec: docs/protocols/fitness.md

use super::book::Book;
use super::store_mark::{Marking, Verdict};
use crate::metadata::Standing;
use crate::offload::StoreGuard;
use crate::peer::{CallService, Caller, PeerTransport};
use crate::router::{BrokerBook, Fitness, FitnessBook, Router};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tidelog_env::{Random, Tasks};
use tidelog_model::{NodeId, RaftNodeId};
use tokio::time::{Instant, timeout};

/// Service of fitness.
pub(super) const SERVICE_FITNESS: u8 = 18;
/// How often a broker that is fit looks whether it is: no call leaves it.
const TICK: Duration = Duration::from_millis(500);
/// Between two rounds of one that is not, with jitter: three ticks of a leader that prefers it, so that a leader which has just started hears of it before.
const PAUSE: Duration = Duration::from_secs(2);
/// How long the asked broker takes to compare its store: a GET of some bytes. An answer without it is one that it does not know.
const COMPARE_WITHIN: Duration = Duration::from_secs(2);
/// How long its answer may take.
const CALL_WITHIN: Duration = Duration::from_secs(3);
/// A comparison counts for who asks so shortly after it: several brokers ask at a time.
const COMPARED_FRESH: Duration = Duration::from_secs(1);

/// What is in the way of this broker's leading, and of the others'. Clones share it.
#[derive(Clone)]
pub(super) struct Fit {
    refusing: Arc<AtomicBool>,
    guard: StoreGuard,
    router: Router,
    given: Arc<AtomicU64>,
}

impl Fit {
    pub(super) fn new(refusing: Arc<AtomicBool>, guard: StoreGuard, router: Router) -> Self {
        Self {
            refusing,
            guard,
            router,
            given: Arc::default(),
        }
    }

    pub(super) fn own(&self) -> Fitness {
        Fitness {
            uncompared: false,
            no_room: self.refusing.load(Ordering::Relaxed),
            store_wrong: self.guard.is_wrong(),
        }
    }

    fn book(&self) -> &FitnessBook {
        self.router.fitness()
    }

    /// What the broker of a replica has said lately.
    pub(super) fn said_by(&self, replica: RaftNodeId) -> Option<Fitness> {
        let node = self.router.image(|image| {
            let mut members = image.members().iter();
            let found = members.find(|(_, member)| member.raft_node == replica);
            found.map(|(node, _)| *node)
        });
        self.book().said_by(node?)
    }

    /// Whether something is in the way still: a store may have come right a moment ago, as those of the others have.
    pub(super) async fn is_still_unfit(&self) -> bool {
        let own = self.own();
        if own.no_room || !own.store_wrong {
            return own.no_room;
        }
        let again = timeout(COMPARE_WITHIN, self.guard.is_right_again()).await;
        if again == Ok(true) {
            self.guard.suspect();
            return false;
        }
        true
    }

    /// Leadership of a group is given away once more; how often that was so since the start.
    pub(super) fn count_given(&self) -> u64 {
        self.given.fetch_add(1, Ordering::Relaxed) + 1
    }

    #[cfg(test)]
    pub(super) fn given(&self) -> u64 {
        self.given.load(Ordering::Relaxed)
    }

    /// The other members that live, as far as this broker knows.
    fn others(&self) -> Vec<NodeId> {
        let own = self.router.node();
        self.router.image(|image| {
            let others = image.members().keys().filter(|node| **node != own);
            others
                .filter(|node| image.is_live(**node))
                .copied()
                .collect()
        })
    }

    /// Whether all other members that live have said lately that their store is not the cluster's.
    pub(super) fn others_wrong(&self) -> bool {
        let others = self.others();
        others.into_iter().all(|node| self.book().store_wrong(node))
    }
}

/// Tells the others what is in the way here, and asks what is in theirs: one call to each does both.
#[derive(Clone)]
pub(super) struct Exchange {
    pub(super) fit: Fit,
    pub(super) transport: PeerTransport,
    pub(super) book: Arc<Book>,
    pub(super) random: Arc<dyn Random>,
}

impl Exchange {
    /// One call to each other member that lives; what those say that answer is noted. Returns what they were told.
    pub(super) async fn round(&self) -> Fitness {
        let (own, others) = (self.fit.own(), self.fit.others());
        self.fit.book().keep(|node| others.contains(&node));
        let asked = others.into_iter().filter_map(|node| {
            let target = self.book.target(node)?;
            Some(async move {
                let told = own.encode();
                let answer = self
                    .transport
                    .call(&target, SERVICE_FITNESS, told, CALL_WITHIN);
                match Fitness::decode(&answer.await.ok()?) {
                    Ok(said) => Some((node, said)),
                    Err(error) => {
                        tracing::debug!(
                            "broker {node} says whether it should lead in words that cannot be read: {error}"
                        );
                        None
                    }
                }
            })
        });
        for (node, said) in futures::future::join_all(asked).await.into_iter().flatten() {
            self.fit.book().note(node, said);
        }
        own
    }

    /// Rounds while something is in the way here, and a last one when nothing is any more; they end with `tasks`.
    pub(super) fn start(&self, tasks: &Tasks) {
        let exchange = self.clone();
        tasks.supervise("fitness", TICK, move || {
            let exchange = exchange.clone();
            async move {
                let mut told = Fitness::FIT;
                loop {
                    if told == Fitness::FIT && exchange.fit.own() == Fitness::FIT {
                        tokio::time::sleep(TICK).await;
                        continue;
                    }
                    told = exchange.round().await;
                    tokio::time::sleep(exchange.random.jitter(PAUSE)).await;
                }
            }
        });
    }
}

/// The answering side: what the caller says is noted, and it hears the same of this broker.
#[derive(Clone)]
pub(super) struct FitnessService(Arc<Answering>);

struct Answering {
    fit: Fit,
    marking: Marking,
    /// How the store compared, and when. Who waits for it gets what another caller has waited for.
    compared: tokio::sync::Mutex<Option<(Instant, Fitness)>>,
}

impl FitnessService {
    pub(super) fn new(fit: Fit, marking: Marking) -> Self {
        Self(Arc::new(Answering {
            fit,
            marking,
            compared: tokio::sync::Mutex::default(),
        }))
    }
}

impl Answering {
    async fn answer(&self, caller: Caller, request: Bytes) -> Fitness {
        let said = Fitness::decode(&request);
        let standing = |node, raft_node| {
            let router = &self.fit.router;
            router.image(|image| image.standing(node, raft_node))
        };
        if let Ok(said) = said
            && standing(caller.broker, caller.node) == Standing::Member
        {
            self.fit.book().note(caller.broker, said);
        }
        let own = self.fit.own();
        if own.store_wrong {
            // The caller's store has come right: this one may have, too.
            if said == Ok(Fitness::FIT) {
                self.fit.guard.suspect();
            }
            return own;
        }
        // Whose disk is full gains by a hand-over whatever this store is; this broker looks at it in its own time.
        if !said.is_ok_and(|said| said.store_wrong) {
            return own;
        }
        Fitness {
            no_room: own.no_room,
            ..self.compare().await
        }
    }

    /// A look at the store now. What was true half a minute ago is not enough for who has just lost it: all may have.
    async fn compare(&self) -> Fitness {
        let mut compared = self.compared.lock().await;
        if let Some((at, known)) = *compared
            && at.elapsed() < COMPARED_FRESH
        {
            return known;
        }
        let verdict = timeout(COMPARE_WITHIN, self.marking.compare()).await;
        let found = match verdict {
            Ok(Verdict::Right | Verdict::Unmarked) => Fitness::FIT,
            Ok(Verdict::Wrong { .. }) => {
                self.fit.guard.suspect();
                Fitness {
                    store_wrong: true,
                    ..Fitness::FIT
                }
            }
            Ok(Verdict::Unread(_)) | Err(_) => Fitness {
                uncompared: true,
                ..Fitness::FIT
            },
        };
        *compared = Some((Instant::now(), found));
        found
    }
}

impl CallService for FitnessService {
    fn call(&self, caller: Caller, request: Bytes) -> BoxFuture<'static, Bytes> {
        let answering = Arc::clone(&self.0);
        async move { answering.answer(caller, request).await.encode() }.boxed()
    }
}
