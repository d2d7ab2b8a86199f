//! What a broker says of elections.

use super::*;
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};

/// What is logged on this thread.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Said {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Proves that the log of a broker says of each of its groups, once and as no complaint, that it leads it, and that its metrics count no change of leader then.
#[tokio::test]
async fn the_log_says_who_leads() {
    // With a single subscriber, a line that another test's thread reaches first would be off for this one too.
    static ANOTHER: OnceLock<tracing::Dispatch> = OnceLock::new();
    ANOTHER.get_or_init(|| {
        tracing_subscriber::fmt()
            .with_writer(std::io::sink)
            .finish()
            .into()
    });
    let said = Said::default();
    let writer = said.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::INFO)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let guard = tracing::subscriber::set_default(subscriber);
    let rig = Rig::start(&["cluster.data-groups=2"]).await;
    let lines = || {
        let text = String::from_utf8(said.0.lock().clone()).unwrap();
        let lines = text.lines().filter(|line| line.contains("from now on"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let told = async {
        while lines().len() < 3 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(WITHIN, told).await.unwrap();
    let lines = lines();
    assert_eq!(lines.len(), 3, "{lines:?}");
    for group in 0..3 {
        let line = format!("this broker leads group {group} from now on, in term ");
        let mut lines = lines.iter().filter(|at| at.contains(&line));
        assert!(lines.next().unwrap().contains(" INFO "), "{lines:?}");
    }
    let (_, page) = rig.get("/metrics").await;
    let counted = "\ntidelog_group_leader_changes_total{group=\"0\"} 0\n";
    assert!(page.contains(counted), "{page}");
    drop(guard);
    rig.stop().await;
}
