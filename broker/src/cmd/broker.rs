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
    #[allow(
        clippy::disallowed_methods,
        reason = "the file is read before there is a world to hand in"
    )]
    let read = std::fs::read_to_string(&args.config);
    let text = match read {
        Ok(text) => text,
        Err(error) => {
            return super::usage(&format!("config file {}: {error}", args.config.display()));
        }
    };
    let sources = Sources {
        file: Some((args.config, text)),
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
