//! The documents point at what exists.
//!
//! Owns: relative links, `Spec:` lines in sources.
//! Not here: whether generated pages are fresh; those are compared where they are generated.
//! Spec: CONTRIBUTING.md

use crate::sources::{all, none, root};

// Proves: every relative link in a document leads to a file.
#[test]
fn links_lead_somewhere() {
    let mut violations = Vec::new();
    for source in all("md") {
        let folder = root().join(&source.path).parent().unwrap().to_owned();
        for target in links(&source.text) {
            if !folder.join(target).exists() {
                violations.push(format!("{}: {target}", source.path));
            }
        }
    }
    none("links lead to files", &violations);
}

// Proves: the README's first command, `cargo run --release -- dev`, is not ambiguous: without a name cargo runs the one
// program of the default member.
#[test]
fn the_first_command_has_one_program() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    assert!(readme.contains("cargo run --release -- dev"));
    let workspace = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    assert!(workspace.contains("default-members = [\"broker\"]"));
    let broker = std::fs::read_to_string(root().join("broker/Cargo.toml")).unwrap();
    assert!(!broker.contains("[[bin]]") && !root().join("broker/src/bin").exists());
}

/// Targets of `](…)` that are relative paths, without their anchors.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| {
        let target = rest.split(')').next()?.split('#').next()?;
        let outside = target.contains("://") || target.starts_with("mailto:");
        (!target.is_empty() && !outside).then_some(target)
    })
}

// Proves: the page a source file names as its specification exists.
#[test]
fn specifications_exist() {
    let mut violations = Vec::new();
    for source in all("rs") {
        for line in source
            .text
            .lines()
            .take_while(|line| line.starts_with("//!"))
        {
            let Some(rest) = line.strip_prefix("//! Spec: ") else {
                continue;
            };
            for word in rest.split([' ', ',', ';', '`', '(', ')', '#']) {
                let page = word.trim_end_matches('.');
                let named = page.ends_with(".md") && !root().join(page).exists();
                if named {
                    violations.push(format!("{}: {page}", source.path));
                }
            }
        }
    }
    none("`Spec:` names a page that exists", &violations);
}

// Proves: the files and tests that INVARIANTS.md names exist: it cannot promise what was removed.
#[test]
fn places_exist() {
    let page = std::fs::read_to_string(root().join("docs/INVARIANTS.md")).unwrap();
    let mut violations = Vec::new();
    let mut count = 0;
    for quoted in page.split('`').skip(1).step_by(2) {
        let (file, function) = quoted.split_once("::").unwrap_or((quoted, ""));
        if !file.contains('/') || !(file.ends_with(".rs") || file.ends_with(".py")) {
            continue;
        }
        count += 1;
        let Ok(text) = std::fs::read_to_string(root().join(file)) else {
            violations.push(format!("no file {file}"));
            continue;
        };
        if !function.is_empty() && !text.contains(&format!("fn {function}(")) {
            violations.push(format!("no test {function} in {file}"));
        }
    }
    none("places in INVARIANTS.md exist", &violations);
    assert!(count > 10, "only {count} places: is the page read right?");
}

// Proves: the reader of links takes what it should.
#[test]
fn reader_of_links() {
    let text = "[a](b.md) [c](https://d/e) ![p](f/g.png) [h](i.md#j) [k](#l)";
    assert_eq!(links(text).collect::<Vec<_>>(), ["b.md", "f/g.png", "i.md"]);
}
