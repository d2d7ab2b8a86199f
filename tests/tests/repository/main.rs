//! The rules of the house that neither the compiler nor Clippy knows, checked on the sources themselves.
//!
//! Owns: import directions, who names which crate, file heads and sizes, links in the documents, places of crash points and mutants.
//! Not here: formatting and lints (`cargo xtask lint`), behaviour.
//! Spec: CONTRIBUTING.md

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod breaking;
mod documents;
mod files;
mod imports;
mod names;
mod sources;
