//! `tidelog broker`: one broker from a configuration file.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use tidelog::config::Sources;

/// Flags of `tidelog broker`.
#[derive(Args, Debug)]
pub(crate) struct BrokerArgs {
    /// The TOML file; docs/operating/configuration.md lists the keys.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// A configuration key over the file's. May be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// Runs until a signal.
pub(crate) async fn run(args: BrokerArgs) -> ExitCode {
    let file = match super::read_config(args.config) {
        Ok(file) => file,
        Err(error) => return super::usage(&error),
    };
    let sources = Sources {
        file: Some(file),
        environment: super::environment(),
        set: args.set,
    };
    super::run_node(&sources, |node, config| {
        let at = node.addresses();
        tracing::info!(
            node = config.node.id,
            cluster = %at.identity.cluster,
            kafka = %at.kafka,
            admin = %at.admin,
            store = %at.store,
            "ready"
        );
    })
    .await
}
