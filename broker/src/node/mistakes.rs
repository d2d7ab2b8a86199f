//! Mistakes of identity in readiness: which one keeps this broker from its cluster.
//!
//! Owns: part `identity` of health.
//! Not here: what the mistakes are (`peer`), who waits to be taken in and says so himself (`formation`).
//! Spec: docs/operating/health.md (identity)

use super::book::Book;
use crate::admin::Health;
use crate::peer::PeerTransport;
use std::sync::Arc;
use std::time::Duration;
use tidelog_env::Tasks;

/// How often it is looked.
const TICK: Duration = Duration::from_millis(500);
const IDENTITY: &str = "identity";

/// Keeps part `identity` of `health` current until `tasks` stop. A broker that hears the leader of metadata is in its cluster, whoever else refuses it: it may have
/// called a stranger at an address of the configuration.
pub(super) fn watch(transport: &PeerTransport, book: &Arc<Book>, health: &Health, tasks: &Tasks) {
    let (transport, book, health) = (transport.clone(), Arc::clone(book), health.clone());
    tasks.supervise("identity", TICK, move || {
        let (transport, book, health) = (transport.clone(), Arc::clone(&book), health.clone());
        async move {
            loop {
                let mistake = transport.mistake().filter(|_| !book.hears_leader());
                match mistake {
                    Some(why) => health.not_ready(IDENTITY, why),
                    None => health.ready(IDENTITY),
                }
                tokio::time::sleep(TICK).await;
            }
        }
    });
}
