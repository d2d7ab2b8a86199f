//! Some things have one home; nothing else names them.
//!
//! Owns: the list of such things.
//! Not here: imports between our own modules (`imports`).
//! Spec: CONTRIBUTING.md

use crate::sources::{all, none};

/// A name, the folders that may use it in production code, why.
const HOMES: &[(&str, &[&str], &str)] = &[
    (
        "openraft",
        &["broker/src/placement/"],
        "consensus stays replaceable behind one module",
    ),
    (
        "kafka_wire",
        &["broker/src/wire/", "client/src/"],
        "the codec is young and stays behind one module",
    ),
    (
        "LocalFileSystem",
        &["tiering/src/"],
        "stores are opened in one place",
    ),
    (
        "AmazonS3Builder",
        &["tiering/src/"],
        "stores are opened in one place",
    ),
];

/// Pieces of object keys, as string literals.
const KEY_PIECES: &[&str] = &["\"v1/", "/v1/{", ".seg\"", "\"snap/", "\"meta/"];

// Proves: each of these names appears in its home only.
#[test]
fn names_stay_home() {
    let mut violations = Vec::new();
    for source in all("rs") {
        for (name, homes, why) in HOMES {
            if homes.iter().any(|home| source.path.starts_with(home)) {
                continue;
            }
            let uses = source.code().filter(|(_, line)| names(line, name));
            violations.extend(
                uses.map(|(line, _)| format!("{}:{line}: names {name} ({why})", source.path)),
            );
        }
    }
    none("names stay home", &violations);
}

/// True when the line uses the name as a path or a type, not as a part of another word or of a text.
fn names(line: &str, name: &str) -> bool {
    line.match_indices(name).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + name.len()..].chars().next();
        let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        let quoted = line[..at].matches('"').count() % 2 == 1;
        !part(before) && !part(after) && !quoted
    })
}

// Proves: the search tells a use from a mention.
#[test]
fn a_mention_is_no_use() {
    assert!(names("use openraft::Raft;", "openraft"));
    assert!(names("    x: Arc<openraft::Raft<T>>,", "openraft"));
    assert!(!names("let my_openraft_x = 1;", "openraft"));
    assert!(!names("tracing::info!(\"openraft says\");", "openraft"));
}

// Proves: only tiering/key builds object keys.
#[test]
fn object_keys_have_one_home() {
    let mut violations = Vec::new();
    for source in all("rs") {
        if source.path.starts_with("tiering/src/key") {
            continue;
        }
        for (line, text) in source.code() {
            if KEY_PIECES.iter().any(|piece| text.contains(piece)) && !text.contains("/api/v1/") {
                violations.push(format!("{}:{line}: {}", source.path, text.trim()));
            }
        }
    }
    none("only tiering/key builds object keys", &violations);
}
