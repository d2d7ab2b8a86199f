//! `tidelog doctor`: what an object store can and cannot do, and whether the files of TLS between brokers are good.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use tidelog::config::{Config, Sources};
use tidelog::node::{StartError, World, check_peer_tls, probe_store};
use tidelog::peer::PeerTlsCheck;
use tidelog_client::cli::{Global, Output};
use tidelog_tiering::probe::{ProbeOutcome, ProbeReport};

/// Flags of `tidelog doctor`.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// The store: `file:///dir` or `s3://bucket/prefix`. Credentials from the AWS_* variables. Without it, the one of the configuration.
    #[arg(long, value_name = "URL", required_unless_present = "config")]
    store: Option<String>,
    /// The TOML file of a broker: its store is checked, and its files for TLS between brokers.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A configuration key, for example `--set store.endpoint=http://127.0.0.1:8333`. May be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// Checks the files of TLS, if there are any, and probes the store; exit code 1 if anything that Tidelog needs is missing.
pub(crate) async fn run(args: DoctorArgs, global: &Global) -> ExitCode {
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
    let report = match probe_store(&config, &world).await {
        Ok(report) => report,
        Err(error) => return super::fail(&error.to_string()),
    };
    match global.output {
        Output::Json => super::show(&to_json(&report, &tls)),
        Output::Table => {
            super::show(report.to_string().trim_end());
            tls_lines(&tls).iter().for_each(|line| super::show(line));
        }
    }
    if tls.is_err() {
        return super::fail("TLS between brokers would not work with these files");
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

fn to_json(report: &ProbeReport, tls: &Checked) -> String {
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
    serde_json::json!({
        "checks": checks,
        "fit_for_one_broker": one,
        "fit_for_many_brokers": many,
        "peer_tls": tls,
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
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
