//! `tidelog doctor`: what an object store can and cannot do, and of a broker's configuration whether its data directory can be made and its files of TLS are good.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use tidelog::config::{Config, Sources};
use tidelog::node::{StartError, StoreMarkers, World, check_peer_tls, probe_store, store_markers};
use tidelog::peer::PeerTlsCheck;
use tidelog_client::cli::{Global, Output};
use tidelog_model::ClusterId;
use tidelog_tiering::marker::Found;
use tidelog_tiering::probe::{ProbeOutcome, ProbeReport};

/// Flags of `tidelog doctor`.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// The store: `file:///dir` or `s3://bucket/prefix`. Credentials from the AWS_* variables. Without it, the one of the configuration.
    #[arg(long, value_name = "URL", required_unless_present = "config")]
    store: Option<String>,
    /// The TOML file of a broker: its store is checked, its data directory, and its files for TLS between brokers.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A configuration key, for example `--set store.endpoint=http://127.0.0.1:8333`. May be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// Checks the files of TLS, if there are any, and probes the store; exit code 1 if anything that Tidelog needs is missing.
pub(crate) async fn run(args: DoctorArgs, global: &Global) -> ExitCode {
    let names_broker = args.config.is_some();
    let file = match args.config.map(super::read_config).transpose() {
        Ok(file) => file,
        Err(error) => return super::usage(&error),
    };
    let mut set: Vec<String> = Vec::new();
    set.extend(args.store.map(|store| format!("store.url={store}")));
    set.extend(args.set);
    let environment = super::environment();
    super::warn_of_unknown(&environment);
    let config = match Config::load(&Sources {
        file,
        environment,
        set,
    }) {
        Ok(config) => config,
        Err(error) => return super::usage(&error.to_string()),
    };
    let world = World::system();
    let tls = check_peer_tls(&config, &world);
    let dir = names_broker.then(|| check_data_dir(&config.node.data_dir));
    let report = match probe_store(&config, &world).await {
        Ok(report) => report,
        Err(error) => return super::fail(&error.to_string()),
    };
    let markers = match report.fit_for_one_broker() {
        true => Some(store_markers(&config, &world, names_broker).await),
        false => None,
    };
    match global.output {
        Output::Json => super::show(&to_json(&report, &tls, dir.as_ref(), markers.as_ref())),
        Output::Table => {
            super::show(report.to_string().trim_end());
            marker_lines(markers.as_ref())
                .iter()
                .for_each(|line| super::show(line));
            tls_lines(&tls).iter().for_each(|line| super::show(line));
            match &dir {
                Some(Ok(())) => super::show("ok       node.data-dir is there or can be made"),
                Some(Err(error)) => super::show(&format!("FAILED   {error}")),
                None => {}
            }
        }
    }
    if tls.is_err() {
        return super::fail("TLS between brokers would not work with these files");
    }
    if let Some(Err(_)) = dir {
        return super::fail("a broker could not keep its data there");
    }
    if markers.is_some_and(|found| found.map_or(true, |found| found.is_wrong())) {
        return super::fail("the store is another cluster's, or cannot be asked whose it is");
    }
    if report.is_ok() {
        return ExitCode::SUCCESS;
    }
    super::fail(if report.fit_for_one_broker() {
        "the store serves a cluster of one broker, but not more"
    } else {
        "the store does not do what Tidelog needs of it"
    })
}

/// Whether a broker could write to its data directory, or make it. Tried in what is there of its path, with a directory that is removed again.
fn check_data_dir(dir: &Path) -> Result<(), String> {
    let there = dir.ancestors().find(|path| path.exists());
    let there = there.filter(|path| !path.as_os_str().is_empty());
    let there = there.unwrap_or(Path::new("."));
    let tried = there.join(format!(".tidelog-doctor-{}", std::process::id()));
    #[allow(
        clippy::disallowed_methods,
        reason = "the directory is made and removed in one go: there is nothing to keep"
    )]
    let made = std::fs::create_dir(&tried).and_then(|()| std::fs::remove_dir(&tried));
    made.map_err(|error| {
        format!(
            "node.data-dir = {}: nothing can be written in {}: {error}",
            dir.display(),
            there.display()
        )
    })
}

type Markers = Result<StoreMarkers, StartError>;

fn marker_lines(markers: Option<&Markers>) -> Vec<String> {
    match markers {
        None => Vec::new(),
        Some(Ok(found)) => found.lines(),
        Some(Err(error)) => vec![format!("FAILED   whose store it is: {error}")],
    }
}

fn markers_json(markers: Option<&Markers>) -> serde_json::Value {
    let found = match markers {
        None => return serde_json::Value::Null,
        Some(Err(error)) => {
            return serde_json::json!({"outcome": "failed", "reason": error.to_string()});
        }
        Some(Ok(found)) => found,
    };
    let outcome = if found.is_wrong() { "failed" } else { "ok" };
    let id = |at: &Found| match at {
        Found::Marked(store) => Some(store.to_string()),
        _ => None,
    };
    let shown = |(cluster, at): &(ClusterId, Found)| serde_json::json!({"cluster_id": cluster.to_string(), "store_id": id(at)});
    let others: Vec<_> = found.others.iter().map(shown).collect();
    serde_json::json!({"outcome": outcome, "own": found.own.as_ref().map(shown), "others": others})
}

type Checked = Result<Option<PeerTlsCheck>, StartError>;

/// What is said of the files of TLS, as of the store's checks.
fn tls_lines(tls: &Checked) -> Vec<String> {
    match tls {
        Ok(None) => Vec::new(),
        Ok(Some(good)) => {
            let first = format!(
                "ok       the files of peer.tls-*, the certificate is valid until {}",
                good.valid_until
            );
            let warnings = good.warnings.iter().map(|text| format!("WARNING  {text}"));
            std::iter::once(first).chain(warnings).collect()
        }
        Err(error) => vec![format!("FAILED   {error}")],
    }
}

fn to_json(
    report: &ProbeReport,
    tls: &Checked,
    dir: Option<&Result<(), String>>,
    markers: Option<&Markers>,
) -> String {
    let checks: Vec<serde_json::Value> = report
        .checks
        .iter()
        .map(|check| match &check.outcome {
            ProbeOutcome::Ok => serde_json::json!({"check": check.name, "outcome": "ok"}),
            ProbeOutcome::Skipped => serde_json::json!({"check": check.name, "outcome": "skipped"}),
            ProbeOutcome::Failed { reason, advice } => {
                serde_json::json!({"check": check.name, "outcome": "failed", "reason": reason, "advice": advice})
            }
        })
        .collect();
    let (one, many) = (report.fit_for_one_broker(), report.fit_for_many_brokers());
    let tls = match tls {
        Ok(None) => serde_json::Value::Null,
        Ok(Some(good)) => serde_json::json!({
            "outcome": "ok",
            "valid_until": good.valid_until,
            "warnings": good.warnings,
        }),
        Err(error) => serde_json::json!({"outcome": "failed", "reason": error.to_string()}),
    };
    let dir = dir.map(|dir| match dir {
        Ok(()) => serde_json::json!({"outcome": "ok"}),
        Err(reason) => serde_json::json!({"outcome": "failed", "reason": reason}),
    });
    serde_json::json!({
        "checks": checks,
        "fit_for_one_broker": one,
        "fit_for_many_brokers": many,
        "peer_tls": tls,
        "data_dir": dir,
        "markers": markers_json(markers),
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    #![allow(clippy::disallowed_methods, reason = "tests may touch the real world")]
    use super::*;
    use clap::Parser;

    #[derive(Parser, Debug)]
    struct Cli {
        #[command(flatten)]
        doctor: DoctorArgs,
    }

    /// Proves that a store or a configuration must be named.
    #[test]
    fn something_must_be_named() {
        let parse = |args: &[&str]| Cli::try_parse_from([&["doctor"], args].concat());
        assert!(parse(&[]).is_err());
        assert!(parse(&["--store", "file:///d"]).is_ok());
        assert!(parse(&["--config", "b.toml"]).is_ok());
    }

    /// Proves that a data directory that cannot be made is found, that one that can be, or is there, is not, and that nothing is left behind.
    #[test]
    fn data_directories_are_tried() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, b"").unwrap();
        assert_eq!(check_data_dir(dir.path()), Ok(()));
        assert_eq!(check_data_dir(&dir.path().join("a/b")), Ok(()));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        let error = check_data_dir(&file.join("data")).unwrap_err();
        assert!(error.contains("nothing can be written"), "{error}");
        assert!(check_data_dir(Path::new("/proc/nope")).is_err());
    }

    /// Proves what is said of good files, of files to see to, and of bad ones.
    #[test]
    fn tls_is_told() {
        assert!(tls_lines(&Ok(None)).is_empty());
        let good = PeerTlsCheck {
            valid_until: "2100-01-01T00:00:00Z".to_owned(),
            warnings: vec!["chmod 600 it".to_owned()],
        };
        let lines = tls_lines(&Ok(Some(good)));
        assert!(lines[0].starts_with("ok ") && lines[0].contains("until 2100"));
        assert_eq!(lines[1], "WARNING  chmod 600 it");
        let bad = StartError::Refused("no such file".to_owned());
        assert_eq!(tls_lines(&Err(bad)), ["FAILED   no such file"]);
    }
}
