//! Rules about each file.
//!
//! Owns: heads, sizes, unfinished work, ignored tests, words that do not belong here.
//! Not here: what the files do.
//! Spec: CONTRIBUTING.md

use crate::sources::{all, none, root, walk};

// Proves: a slip of a shell (`touch tests/*.rs` where nothing matches makes a file of that name) does not stay: cargo takes such a
// file for a test of its own and every build fails.
#[test]
fn names_of_files_are_plain() {
    let mut violations = Vec::new();
    walk(&root(), &mut |path| {
        let relative = path.strip_prefix(root()).unwrap().to_str().unwrap();
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-=/".contains(c);
        if !relative.chars().all(plain) {
            violations.push(relative.to_owned());
        }
    });
    none("names of letters, digits, `.`, `_`, `-`, `=`", &violations);
}

/// Production lines of one file; about 400 is the aim.
const LINES_MAX: usize = 700;

// Proves: every file opens with what it is. A module's tests are told by the module's own head.
#[test]
fn every_file_has_a_head() {
    let headless = all("rs")
        .into_iter()
        .filter(|source| !source.text.starts_with("//! ") && !source.is_test());
    let violations: Vec<String> = headless.map(|source| source.path).collect();
    none("a file opens with `//! what it is`", &violations);
}

// Proves: no file grows into a monster.
#[test]
fn no_file_is_too_long() {
    let long = all("rs").into_iter().filter_map(|source| {
        let lines = source.production().count();
        (lines > LINES_MAX).then(|| format!("{}: {lines} lines", source.path))
    });
    none(
        "at most 700 lines of production code",
        &long.collect::<Vec<_>>(),
    );
}

/// Lines of one function, from its name to its last brace.
const FUNCTION_LINES_MAX: usize = 70;

// Proves: functions can be read at once.
#[test]
fn no_function_is_too_long() {
    let mut violations = Vec::new();
    for source in all("rs") {
        let lines: Vec<(usize, &str)> = source.production().collect();
        for (at, (number, line)) in lines.iter().enumerate() {
            let indent = line.len() - line.trim_start().len();
            if !opens_function(line.trim_start()) {
                continue;
            }
            let end = format!("{}}}", " ".repeat(indent));
            let length = lines[at..]
                .iter()
                .position(|(_, l)| *l == end)
                .map_or(1, |end| end + 1);
            if length > FUNCTION_LINES_MAX {
                violations.push(format!("{}:{number}: {length} lines", source.path));
            }
        }
    }
    none("at most 70 lines in a function", &violations);
}

/// True for the first line of a function with a body; formatted code ends it with the same indentation.
fn opens_function(line: &str) -> bool {
    let mut rest = line;
    for word in ["pub(crate) ", "pub(super) ", "pub ", "const ", "async "] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    rest.starts_with("fn ") && !line.ends_with(';') && !line.ends_with('}')
}

// Proves: unfinished work has an issue, and no test is switched off. What needs another program says so and who gives it: the
// run of everything, which takes the ignored tests too.
#[test]
fn nothing_is_left_behind() {
    // Put together here, so that this file does not find itself.
    let unfinished = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X"),
    ];
    let switched_off = concat!("#[ig", "nore");
    let given = concat!("#[ig", "nore = \"needs ");
    let ignored = [concat!("todo", "!("), concat!("unimple", "mented!(")];
    let mut violations = Vec::new();
    for source in all("rs").into_iter().chain(all("py")) {
        for (at, line) in source.text.lines().enumerate() {
            let open = unfinished.iter().any(|word| {
                line.split(|c: char| !c.is_alphanumeric())
                    .any(|w| w == *word)
                    && !line.contains(&format!("{word}(#"))
            });
            let given = line.trim().starts_with(given) && line.contains("`cargo xtask test`");
            let off = line.contains(switched_off) && !given;
            if open || off || ignored.iter().any(|word| line.contains(word)) {
                violations.push(format!("{}:{}: {}", source.path, at + 1, line.trim()));
            }
        }
    }
    none(
        "unfinished work names its issue, as in …(#12); a test is only ignored when it needs what `cargo xtask test` gives",
        &violations,
    );
}

// Proves: no path of somebody's machine is in the sources.
#[test]
fn no_paths_of_one_machine() {
    let homes = [
        concat!("/ro", "ot/"),
        concat!("/wo", "rk/"),
        concat!("/ho", "me/"),
    ];
    let mut violations = Vec::new();
    for extension in ["rs", "py", "md", "toml", "yml"] {
        for source in all(extension) {
            for (at, line) in source.text.lines().enumerate() {
                if homes.iter().any(|home| line.contains(home)) {
                    violations.push(format!("{}:{}: {}", source.path, at + 1, line.trim()));
                }
            }
        }
    }
    none("no paths of one machine", &violations);
}
