//! The files of the repository as the checks see them.
//!
//! Owns: the walk, what counts as production code, the report of all violations at once.
//! Not here: the rules.
//! Spec: CONTRIBUTING.md

use std::path::{Path, PathBuf};

/// One text file, with its path from the repository's root, `/` between the parts.
pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Where the repository is now, not where the tests were built: one build cache may serve several clones.
pub(crate) fn root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR");
    Path::new(&package.unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into()))
        .parent()
        .unwrap()
        .to_owned()
}

/// All files with this extension, in order of their paths. Hidden folders and build output are left out.
pub(crate) fn all(extension: &str) -> Vec<Source> {
    let mut found = Vec::new();
    walk(&root(), &mut |path| {
        if path.extension().is_some_and(|e| e == extension) {
            let relative = path.strip_prefix(root()).unwrap();
            let parts: Vec<&str> = relative.iter().map(|part| part.to_str().unwrap()).collect();
            found.push(Source {
                path: parts.join("/"),
                text: std::fs::read_to_string(path).unwrap(),
            });
        }
    });
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(
        !found.is_empty(),
        "no .{extension} files: is the root right?"
    );
    found
}

/// Calls `visit` with every file below `folder`.
pub(crate) fn walk(folder: &Path, visit: &mut impl FnMut(&Path)) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.starts_with('.') || name == "target" || name.starts_with("tidelog-") {
            continue;
        }
        if path.is_dir() {
            walk(&path, visit);
        } else {
            visit(&path);
        }
    }
}

impl Source {
    /// The lines up to the test module, numbered from 1. A file of tests only has none.
    pub(crate) fn production(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines: Vec<&str> = self.text.lines().collect();
        let is_module = |line: &str| line.starts_with("mod ") || line.starts_with("#[allow");
        let tests = lines.windows(2).position(|pair| {
            pair[0] == "#[cfg(test)]" && is_module(pair[1]) && !pair[1].ends_with(';')
        });
        let end = if self.is_test() {
            0
        } else {
            tests.unwrap_or(lines.len())
        };
        lines
            .into_iter()
            .take(end)
            .enumerate()
            .map(|(at, line)| (at + 1, line))
    }

    /// The same without comments.
    pub(crate) fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.production()
            .filter(|(_, line)| !line.trim_start().starts_with("//"))
    }

    pub(crate) fn is_test(&self) -> bool {
        let mut parts = self.path.split('/');
        let name = self.path.rsplit('/').next().unwrap();
        parts.any(|part| part == "tests" || part == "benches")
            || name == "tests.rs"
            || name.ends_with("_tests.rs")
            || name.ends_with("_test.rs")
    }
}

/// Fails with all violations, one a line.
pub(crate) fn none(rule: &str, violations: &[String]) {
    assert!(
        violations.is_empty(),
        "{rule}:\n  {}",
        violations.join("\n  ")
    );
}
