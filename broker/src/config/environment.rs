//! Variables of the environment that look like ours and are not: most likely a misspelt key.
//!
//! Owns: which `TIDELOG_*` names are known, and what is said about the others.
//! Not here: reading the known ones (`load`).
//!
//! A warning, not an error: an orchestrator may put variables of its own under our prefix.

use super::keys::{KEYS, environment_name};
use std::collections::BTreeMap;

/// Names besides those of configuration keys: the CLI's, logging's, and those of tests.
const OTHERS: &[&str] = &[
    "TIDELOG_ADMIN_URL",
    "TIDELOG_BIN",
    "TIDELOG_BLESS",
    "TIDELOG_BOOTSTRAP",
    "TIDELOG_LOG",
    "TIDELOG_LOG_FORMAT",
    "TIDELOG_WRITE_GOLDEN",
];

/// One line for each variable that nothing reads, with the key that it may have meant.
#[must_use]
pub fn unknown(environment: &BTreeMap<String, String>) -> Vec<String> {
    let known: Vec<String> = KEYS.iter().map(environment_name).collect();
    environment
        .iter()
        .filter(|(name, _)| name.starts_with("TIDELOG_"))
        .filter(|(name, value)| {
            let ours = OTHERS.contains(&name.as_str()) || known.contains(name);
            !ours && !name.starts_with("TIDELOG_TEST_") && !is_of_a_service(name, value)
        })
        .map(|(name, _)| match nearest(name, &known) {
            Some(near) => format!(
                "environment variable {name} is not known and has no effect; did you mean {near}?"
            ),
            None => format!(
                "environment variable {name} is not known and has no effect; docs/operating/configuration.md lists all keys"
            ),
        })
        .collect()
}

/// Kubernetes gives every container `<SERVICE>_SERVICE_HOST`, `<SERVICE>_PORT=tcp://…` and more for each service of its
/// namespace, and a service may well be called tidelog.
fn is_of_a_service(name: &str, value: &str) -> bool {
    let address = ["tcp://", "udp://", "sctp://"]
        .iter()
        .any(|scheme| value.starts_with(scheme));
    let of_a_port = ["_TCP", "_UDP", "_SCTP"]
        .iter()
        .any(|protocol| name.ends_with(protocol) || name.contains(&format!("{protocol}_")));
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || (name.ends_with("_PORT") && address)
        || (name.contains("_PORT_") && of_a_port)
}

/// The known name that shares the most with `name` at both ends, if that is most of it.
fn nearest<'a>(name: &str, known: &'a [String]) -> Option<&'a str> {
    let shared = |other: &str| {
        let ahead = name
            .bytes()
            .zip(other.bytes())
            .take_while(|(a, b)| a == b)
            .count();
        let behind = name
            .bytes()
            .rev()
            .zip(other.bytes().rev())
            .take_while(|(a, b)| a == b)
            .count();
        (ahead + behind).min(name.len()).min(other.len())
    };
    let own = name.len().saturating_sub("TIDELOG_".len());
    known
        .iter()
        .map(|other| (shared(other).saturating_sub("TIDELOG_".len()), other))
        .filter(|(shared, other)| {
            let longer = own.max(other.len().saturating_sub("TIDELOG_".len()));
            shared * 3 >= longer * 2
        })
        .max_by_key(|(shared, _)| *shared)
        .map(|(_, other)| other.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(pairs: &[(&str, &str)]) -> Vec<String> {
        let owned = pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        unknown(&owned.collect())
    }

    /// Proves that a misspelt key is told with the one that was meant, and something else with where to look.
    #[test]
    fn misspelt_keys_are_told() {
        for (name, meant) in [
            ("TIDELOG_KAFKA_LISTENN", "TIDELOG_KAFKA_LISTEN"),
            ("TIDELOG_STORE_URI", "TIDELOG_STORE_URL"),
            ("TIDELOG_NODE_DATADIR", "TIDELOG_NODE_DATA_DIR"),
            (
                "TIDELOG_KAFKA_MAX_CONECTIONS",
                "TIDELOG_KAFKA_MAX_CONNECTIONS",
            ),
        ] {
            let lines = told(&[(name, "x")]);
            assert_eq!(lines.len(), 1, "{name}");
            assert!(lines[0].contains(name), "{}", lines[0]);
            assert!(
                lines[0].ends_with(&format!("did you mean {meant}?")),
                "{}",
                lines[0]
            );
        }
        let lines = told(&[("TIDELOG_FLUX_CAPACITOR", "1")]);
        assert!(lines[0].contains("configuration.md"), "{}", lines[0]);
    }

    /// Proves that what is read somewhere, and what an orchestrator sets for services, is not told.
    #[test]
    fn known_variables_are_not_told() {
        for key in KEYS {
            assert_eq!(
                told(&[(environment_name(key).as_str(), "1")]),
                Vec::<String>::new()
            );
        }
        let none: Vec<String> = told(&[
            ("TIDELOG_BOOTSTRAP", "a:1"),
            ("TIDELOG_ADMIN_URL", "http://a"),
            ("TIDELOG_TEST_S3_URL", "s3://b"),
            ("TIDELOG_WRITE_GOLDEN", "1"),
            ("TIDELOG_SERVICE_HOST", "10.0.0.1"),
            ("TIDELOG_SERVICE_PORT", "9092"),
            ("TIDELOG_SERVICE_PORT_KAFKA", "9092"),
            ("TIDELOG_PORT", "tcp://10.0.0.1:9092"),
            ("TIDELOG_PORT_9092_TCP", "tcp://10.0.0.1:9092"),
            ("TIDELOG_PORT_9092_TCP_ADDR", "10.0.0.1"),
            ("OTHER_NODE_IDD", "1"),
        ]);
        assert_eq!(none, Vec::<String>::new());
        assert_eq!(told(&[("TIDELOG_ADMIN_PORT", "9640")]).len(), 1);
    }
}
