//! The mutants.
//!
//! Owns: their names, what each breaks, and where such a fault was seen.
//! Not here: what they do (the code that asks).
//! Spec: docs/simulation.md (mutants)

super::named! {
    /// A fault of this system or of one like it, switched on to see whether the simulation finds it.
    Mutant {
        /// Appends are acknowledged when they are written, before they are synced.
        AckBeforeSync = "ack-before-sync",
    }
}
