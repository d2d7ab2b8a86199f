//! The crash points.
//!
//! Owns: their names and places.
//! Not here: what they do (`breaking`).
//! Spec: docs/simulation.md (crash points)

super::named! {
    /// A point of the code at which a process may die, between two effects that a crash must not tear apart.
    CrashPoint {
        /// Entries are written to the group log, and not yet synced.
        LogWritten = "log.written",
        /// They are synced, and nobody was told.
        LogSynced = "log.synced",
    }
}
