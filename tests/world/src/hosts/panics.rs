//! Panics of the whole process, also those that a runtime catches.
//!
//! Owns: the panic hook that counts.
//! Not here: who fails because of them (`tests/sim`).
//! Spec: docs/simulation.md

use parking_lot::Mutex;
use std::panic;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// As many panics are kept with their text.
const KEPT: usize = 16;

static HOOK: Once = Once::new();
static COUNT: AtomicU64 = AtomicU64::new(0);
static TEXTS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Counts panics from now on, in front of the hook that is there. Once is enough.
pub fn watch_panics() {
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            COUNT.fetch_add(1, Ordering::Relaxed);
            let mut texts = TEXTS.lock();
            if texts.len() < KEPT {
                texts.push(info.to_string());
            }
            drop(texts);
            before(info);
        }));
    });
}

/// How many threads or tasks of the process have panicked since [`watch_panics`], caught or not.
#[must_use]
pub fn panics() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

/// The texts of the first panics, with their places.
#[must_use]
pub fn panic_texts() -> Vec<String> {
    TEXTS.lock().clone()
}

/// What a caught panic says.
pub(super) fn text(payload: &(dyn std::any::Any + Send)) -> String {
    payload
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| {
            payload
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
        })
        .unwrap_or_else(|| "a panic without text".to_owned())
}
