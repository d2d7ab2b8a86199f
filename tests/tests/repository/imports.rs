//! Imports run one way: between the crates, and between the modules of the broker.
//!
//! Owns: the allowed edges, as data. A new edge is a commit with a reason.
//! Not here: cycles inside one module.
//! Spec: CONTRIBUTING.md

use std::collections::BTreeSet;

use crate::sources::{all, none, root};

/// The broker's modules, lowest level first. A module may use those of lower levels; modules of one
/// level do not know each other.
const LEVELS: &[&[&str]] = &[
    // `intake` reads frames for the listeners of clients (`net`) and of brokers (`peer`).
    &["error", "format", "config", "observe", "intake"],
    &["log", "wire"],
    &["placement"],
    // `peer` is the transport between brokers: placement's messages as bytes.
    &["partition", "metadata", "coordinator", "peer"],
    // Puts partition and coordinator into one replicated state machine.
    &["datagroup"],
    &["router", "offload"],
    &["api", "admin"],
    &["net"],
    &["node"],
    // The verbs of the binary.
    &["cmd"],
];

/// Edges beside the levels, each with its reason.
const MORE_EDGES: &[(&str, &str, &str)] = &[];

/// What each crate may depend on, besides crates of others.
const CRATES: &[(&str, &[&str])] = &[
    ("broker/model", &[]),
    ("broker/env", &[]),
    ("tiering", &["tidelog-model", "tidelog-env"]),
    ("client", &["tidelog-model", "tidelog-env"]),
    ("minio-dev", &[]),
    (
        "archive",
        &[
            "tidelog-model",
            "tidelog-env",
            "tidelog-tiering",
            "tidelog-client",
        ],
    ),
    (
        "broker",
        &[
            "tidelog-model",
            "tidelog-env",
            "tidelog-tiering",
            "tidelog-client",
            "tidelog-archive",
            "tidelog-minio-dev",
        ],
    ),
    // What judges the broker shares no code with it; what drives it is a client.
    ("tests/check", &[]),
    (
        "tests/sim",
        &[
            "tidelog",
            "tidelog-check",
            "tidelog-client",
            "tidelog-cluster",
            "tidelog-env",
            "tidelog-model",
            "tidelog-world",
        ],
    ),
    // The world does not know what runs in it.
    ("tests/world", &["tidelog-env", "tidelog-tiering"]),
    (
        "tests/cluster",
        &[
            "tidelog-model",
            "tidelog-env",
            "tidelog-client",
            "tidelog-check",
        ],
    ),
];

fn level(module: &str) -> Option<usize> {
    LEVELS.iter().position(|level| level.contains(&module))
}

fn allowed(from: &str, to: &str) -> bool {
    let more = MORE_EDGES.iter().any(|(a, b, _)| (*a, *b) == (from, to));
    from == to || more || level(to) < level(from)
}

// Proves: no module of the broker uses one of its own level or above, and every module has a level.
#[test]
fn modules_of_the_broker() {
    let mut violations = Vec::new();
    for source in all("rs") {
        let Some(module) = module_of(&source.path) else {
            continue;
        };
        if level(module).is_none() {
            violations.push(format!(
                "{}: module {module} has no level in {}",
                source.path,
                file!()
            ));
            continue;
        }
        for (line, text) in source.code() {
            for used in used_modules(text) {
                if level(used).is_some() && !allowed(module, used) {
                    violations.push(format!("{}:{line}: {module} uses {used}", source.path));
                }
            }
        }
    }
    none("imports run one way", &violations);
}

/// `broker/src/log/…` and `broker/src/log.rs` are `log`; the crate's root files are none.
fn module_of(path: &str) -> Option<&str> {
    let rest = path.strip_prefix("broker/src/")?;
    let first = rest.split('/').next()?;
    let module = first.strip_suffix(".rs").unwrap_or(first);
    (!matches!(module, "lib" | "main")).then_some(module)
}

/// The modules named as `crate::m` or in `crate::{m, n::…}` on this line.
fn used_modules(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (at, found_text) in line.match_indices("crate::") {
        // `other_crate::` is not ours.
        if line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let rest = &line[at + found_text.len()..];
        let Some(list) = rest.strip_prefix('{') else {
            found.push(word(rest));
            continue;
        };
        let mut depth = 0;
        let mut start = 0;
        for (at, c) in list.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth > 0 => depth -= 1,
                ',' | '}' if depth == 0 => {
                    found.push(word(list[start..at].trim_start()));
                    start = at + 1;
                    if c == '}' {
                        break;
                    }
                }
                _ => {}
            }
        }
    }
    found
}

fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    &text[..end.unwrap_or(text.len())]
}

// Proves: the reader of `use` lines sees every form that is used here, and the levels refuse what they must.
#[test]
fn the_reader_sees_the_edges() {
    assert_eq!(used_modules("use crate::log::{A, B};"), ["log"]);
    assert_eq!(
        used_modules("use crate::{error::E, log::{A, B}, wire};"),
        ["error", "log", "wire"]
    );
    assert_eq!(
        used_modules("pub(crate) fn f(x: crate::api::X) -> other_crate::y::Z"),
        ["api"]
    );
    assert!(allowed("api", "partition") && allowed("log", "log") && allowed("node", "net"));
    assert!(
        !allowed("log", "placement")
            && !allowed("api", "admin")
            && !allowed("metadata", "partition")
    );
    assert_eq!(module_of("broker/src/log/writer.rs"), Some("log"));
    assert_eq!(module_of("broker/src/node.rs"), Some("node"));
    assert_eq!(module_of("broker/src/main.rs"), None);
    assert_eq!(module_of("broker/model/src/ids.rs"), None);
}

// Proves: the crates depend on each other in one direction.
#[test]
fn crates_of_the_workspace() {
    let mut violations = Vec::new();
    for (folder, allowed) in CRATES {
        let manifest = std::fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
        let mut section = "";
        let mut used = BTreeSet::new();
        for line in manifest.lines() {
            if line.starts_with('[') {
                section = line;
            } else if section == "[dependencies]" && line.starts_with("tidelog-") {
                used.insert(line.split(['.', ' ', '=']).next().unwrap());
            }
        }
        for name in used {
            if !allowed.contains(&name) {
                violations.push(format!("{folder} depends on {name}"));
            }
        }
    }
    none("crates depend one way", &violations);
}
