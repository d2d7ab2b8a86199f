//! `tidelog doctor`: what an object store can and cannot do.

use std::process::ExitCode;

use clap::Args;
use tidelog::config::{Config, Sources};
use tidelog::node::{World, probe_store};
use tidelog_client::cli::{Global, Output};
use tidelog_tiering::probe::{ProbeOutcome, ProbeReport};

/// Flags of `tidelog doctor`.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// The store: `file:///dir` or `s3://bucket/prefix`. Credentials from the AWS_* variables.
    #[arg(long, value_name = "URL")]
    store: String,
    /// A configuration key, for example `--set store.endpoint=http://127.0.0.1:8333`. May be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// Probes the store; exit code 1 if anything that Tidelog needs is missing.
pub(crate) async fn run(args: DoctorArgs, global: &Global) -> ExitCode {
    let mut set = vec![format!("store.url={}", args.store)];
    set.extend(args.set);
    let environment = super::environment();
    super::warn_of_unknown(&environment);
    let config = match Config::load(&Sources {
        file: None,
        environment,
        set,
    }) {
        Ok(config) => config,
        Err(error) => return super::usage(&error.to_string()),
    };
    let report = match probe_store(&config, &World::system()).await {
        Ok(report) => report,
        Err(error) => return super::fail(&error.to_string()),
    };
    match global.output {
        Output::Json => super::show(&to_json(&report)),
        Output::Table => super::show(report.to_string().trim_end()),
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

fn to_json(report: &ProbeReport) -> String {
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
    serde_json::json!({"checks": checks, "fit_for_one_broker": one, "fit_for_many_brokers": many})
        .to_string()
}
