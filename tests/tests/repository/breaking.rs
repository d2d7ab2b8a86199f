//! Crash points and mutants are used where they belong.
//!
//! Owns: that each is named in production code, each crash point once per place of the code, each mutant with its question.
//! Not here: their names and words (`tidelog-env`), whether the simulation finds them (`tests/sim`).
//! Spec: docs/simulation.md

use crate::sources::{Source, all, none, root};

/// The crates whose code may break on purpose.
const CRATES: &[&str] = &["broker/src/", "tiering/src/"];

/// Variants of the list in this file, in its order.
fn variants(file: &str) -> Vec<String> {
    let path = format!("broker/env/src/breaking/{file}.rs");
    let text = std::fs::read_to_string(root().join(path)).unwrap();
    variants_of(&text)
}

/// Lines `Name = "name",`.
fn variants_of(text: &str) -> Vec<String> {
    let lines = text.lines().filter_map(|line| {
        let (name, rest) = line.trim().split_once(" = \"")?;
        let named = name.chars().all(|c| c.is_ascii_alphanumeric());
        (named && rest.ends_with("\",")).then(|| name.to_owned())
    });
    lines.collect()
}

/// Production code of those crates, without its comments.
fn code() -> Vec<String> {
    let wanted = |source: &Source| CRATES.iter().any(|folder| source.path.starts_with(folder));
    let mut found = Vec::new();
    for source in all("rs").iter().filter(|source| wanted(source)) {
        let lines: Vec<&str> = source.code().map(|(_, line)| line).collect();
        found.push(lines.join("\n"));
    }
    found
}

// Proves: no crash point and no mutant was forgotten, and the code passes a crash point in one place only: a run that passed it has
// been there.
#[test]
fn each_has_its_place() {
    let code = code();
    let mut violations = Vec::new();
    for (list, call, once) in [
        ("points", "crash_point(CrashPoint::", true),
        ("mutants", "mutant(Mutant::", false),
    ] {
        let names = variants(list);
        assert!(names.len() > 30, "only {} {list}", names.len());
        for name in names {
            let call = format!("{call}{name})");
            let places: usize = code.iter().map(|text| text.matches(&call).count()).sum();
            match places {
                0 => violations.push(format!("{name} of {list}: nowhere")),
                1 => {}
                _ if once => violations.push(format!("{name} of {list}: in {places} places")),
                _ => {}
            }
        }
    }
    none("crash points and mutants are in the code", &violations);
}

// Proves: the archive, the client, and the tests' own crates stay whole: what is judged breaks, not what judges.
#[test]
fn nothing_else_breaks() {
    let allowed = |path: &str| {
        let own = [
            "broker/env/src/breaking/",
            "tests/sim/",
            "tests/tests/repository/breaking.rs",
        ];
        CRATES
            .iter()
            .chain(&own)
            .any(|folder| path.starts_with(folder))
    };
    let mut violations = Vec::new();
    for source in all("rs").iter().filter(|source| !allowed(&source.path)) {
        for (number, line) in source.code() {
            if line.contains("CrashPoint::") || line.contains("Mutant::") {
                violations.push(format!("{}:{number}: {}", source.path, line.trim()));
            }
        }
    }
    none(
        "only the broker and the tiers break on purpose",
        &violations,
    );
}

// Proves: no crate but the simulation's switches the feature on.
#[test]
fn the_feature_is_the_simulations() {
    let mut violations = Vec::new();
    for source in all("toml") {
        let names =
            source.text.contains("tidelog-env/breaking") || source.text.contains("\"breaking\"");
        if names && source.path != "tests/sim/Cargo.toml" {
            violations.push(source.path.clone());
        }
    }
    none("only tests/sim has the feature `breaking`", &violations);
}

// Proves: the reader of the lists takes variants and nothing else.
#[test]
fn reader_of_lists() {
    let text =
        "    /// A = \"x\",\n    CrashPoint {\n        LogWritten = \"log.written\",\n    }\n";
    assert_eq!(variants_of(text), ["LogWritten"]);
}
