//! What the log must not say.

use super::*;
use parking_lot::Mutex;

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

/// Proves that a group which is let go in order says nothing of it: its driver does not end before it is stopped, whichever of its parts goes first.
#[tokio::test]
async fn a_stop_in_order_is_quiet() {
    let said = Said::default();
    let writer = said.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let rig = Rig::new();
    let Running {
        tasks,
        group,
        offload,
        ..
    } = rig.start().await;
    // It takes a request, so that it runs.
    assert_eq!(offload.flush(false).await, FlushOutcome::Done);
    drop(offload);
    // Everything that is ready on this thread runs.
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    tasks.stop().await;
    group.group().stop().await;
    let said = String::from_utf8(said.0.lock().clone()).unwrap();
    assert_eq!(said, "");
}
