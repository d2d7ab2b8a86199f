//! Counters of the archive, read by whoever renders metrics.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Plain counters since the start of the process. All only grow.
        #[derive(Debug, Default)]
        pub struct ArchiveMetrics {
            $($(#[$doc])* pub $name: AtomicU64,)*
            /// Wall clock of the last run that ended without an error, in milliseconds; 0: none yet.
            pub last_success_ms: AtomicI64,
        }

        impl ArchiveMetrics {
            /// Name and value of each counter.
            #[must_use]
            pub fn counters(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Ordering::Relaxed)),)*]
            }
        }
    };
}

counters! {
    /// Runs begun.
    runs_total,
    /// Runs that ended with an error in any table.
    run_failures_total,
    /// Commits that took effect.
    commits_total,
    /// Commits that another archiver won.
    commits_lost_total,
    /// Commits whose reply was lost and could not be resolved at once.
    commits_unknown_total,
    /// Rows in commits that took effect.
    rows_total,
    /// Data files in commits that took effect.
    files_total,
    /// Bytes of these files.
    file_bytes_total,
    /// Bytes read from segments.
    segment_bytes_total,
    /// Offsets without a record (control batches).
    offsets_skipped_total,
    /// Offsets that retention took before they were archived.
    offsets_lost_total,
    /// Times a partition was stopped by damage.
    partitions_stopped_total,
}

pub(crate) fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Ordering::Relaxed);
}
