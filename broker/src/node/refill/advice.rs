//! What an operator is told about damage that the broker does nothing about by itself.
//!
//! Owns: [`what_to_do`]: for each way in which a broker may get back what it had, what costs nothing first; the data directory is never to be emptied.
//! Not here: what a broker says that waits to be refilled (`formation::refill`), what `cluster add` answers (`admin::replace`).
//! Spec: docs/protocols/refill.md (the way out by hand)

use crate::log::LogError;
use tidelog_model::NodeId;

/// The Raft node id is the broker's, not the group's: without one group's files the same voter would come back with nothing.
const SINGLE: &str = "Do not remove the directory of a single group: the broker would take part in it without what it acknowledged";

/// What becomes of a damaged broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// It is the only one.
    Alone,
    /// It shall not be refilled: `cluster.refill-damaged` is false.
    Off,
    /// It waits to be refilled from its next start on.
    Marked,
    /// It would be, but no mark can be made.
    Unmarked,
}

/// What to do about `error` of a log of broker `node`. `None`: it is no damage, or the broker says so itself when it waits.
pub(super) fn what_to_do(error: &LogError, node: NodeId, way: Way) -> Option<String> {
    let missing = matches!(error, LogError::Missing { .. });
    if !missing && !matches!(error, LogError::Damaged { .. } | LogError::Lost { .. }) {
        return None;
    }
    Some(match way {
        Way::Alone => format!(
            "No other broker has a copy: keep this data directory, and put back what is damaged or missing, as it was, from a copy of this disk. {SINGLE}"
        ),
        _ if missing => format!(
            "If they are gone for good: keep this data directory, move it aside, start broker {node} with an empty one, and run `tidelog cluster add {node}`: where \
             anything may need what lies here it refuses, and says what, and what to do first. {SINGLE}"
        ),
        Way::Off => format!(
            "If what is damaged or lost can be put back as it was, do, and start it again. Else start it with this data directory and without \
             `cluster.refill-damaged=false`: it serves nothing, is refilled where the others have all that it had, and says what it waits for where they have not. {SINGLE}"
        ),
        Way::Marked => return None,
        Way::Unmarked => format!(
            "It is refilled when damaged.json can be written here: if four directories set-aside-* are here, the disk must be broken. Look at it, move these elsewhere, \
             and start it again with this data directory. {SINGLE}"
        ),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    const WAYS: [Way; 4] = [Way::Alone, Way::Off, Way::Marked, Way::Unmarked];

    fn errors() -> [LogError; 3] {
        let what = || "a bit".to_owned();
        [
            LogError::Damaged {
                path: "groups/1/1.log".into(),
                position: 7,
                what: what(),
            },
            LogError::Lost {
                dir: "groups/1".into(),
                what: what(),
            },
            LogError::Missing {
                path: "groups/1".into(),
                what: what(),
            },
        ]
    }

    /// Proves that no advice, whatever was found, lets anybody throw away what is here before the others were asked whether they have it: the directory is kept,
    /// always; an empty one is named only where files are gone that refill does not concern, and with the command that looks; and no error has advice within.
    #[test]
    fn nothing_is_thrown_away() {
        let node = NodeId::new(3);
        for error in errors() {
            let found = error.to_string();
            assert!(
                !found.contains("cluster add") && !found.contains("empty"),
                "{found}"
            );
            for way in WAYS {
                let Some(text) = what_to_do(&error, node, way) else {
                    assert_eq!(way, Way::Marked);
                    continue;
                };
                assert!(text.contains("this data directory"), "{text}");
                assert!(text.ends_with(SINGLE), "{text}");
                assert!(!text.contains("give-up-data"), "{text}");
                let missing = matches!(error, LogError::Missing { .. }) && way != Way::Alone;
                assert_eq!(text.contains("an empty one"), missing, "{text}");
                assert_eq!(text.contains("`tidelog cluster add 3`"), missing, "{text}");
            }
        }
        assert_eq!(what_to_do(&LogError::Closed, node, Way::Off), None);
    }

    /// Proves that a broker which shall not be refilled is told what costs nothing first, and then that it may be.
    #[test]
    fn who_is_not_refilled_is_told_that_it_may_be() {
        let [damaged, ..] = errors();
        let text = what_to_do(&damaged, NodeId::new(3), Way::Off).unwrap();
        let at = |words: &str| {
            text.find(words)
                .unwrap_or_else(|| panic!("{words}: {text}"))
        };
        assert!(at("put back as it was") < at("without `cluster.refill-damaged=false`"));
    }
}
