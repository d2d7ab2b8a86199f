//! `tidelog dev`: the whole system on a directory.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use tidelog::config::{Config, Sources};
use tidelog::node::Node;

/// Flags of `tidelog dev`.
#[derive(Args, Debug)]
pub(crate) struct DevArgs {
    /// Directory for everything, the object store's folder included.
    #[arg(long, default_value = "./tidelog-data", value_name = "DIR")]
    data_dir: PathBuf,
    /// Object store: `file:///dir` or `s3://bucket/prefix` (AWS_* variables apply). Default: a folder in the data directory.
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Address for Kafka clients.
    #[arg(long, default_value = "127.0.0.1:9092", value_name = "HOST:PORT")]
    kafka: String,
    /// Address for the admin HTTP API, health and metrics.
    #[arg(long, default_value = "127.0.0.1:9640", value_name = "HOST:PORT")]
    admin: String,
    /// Any configuration key, for example `--set tier.cut-bytes=1048576`. May be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// Runs until a signal.
pub(crate) async fn run(args: DevArgs) -> ExitCode {
    let mut set = vec![
        format!("node.data-dir={}", args.data_dir.display()),
        format!("kafka.listen={}", args.kafka),
        format!("admin.listen={}", args.admin),
        "node.zone=dev".to_owned(),
        "cluster.name=dev".to_owned(),
    ];
    set.extend(args.store.map(|store| format!("store.url={store}")));
    set.extend(args.set);
    let sources = Sources {
        file: None,
        environment: super::environment(),
        set,
    };
    super::run_node(&sources, greet).await
}

fn greet(node: &Node, config: &Config) {
    let at = node.addresses();
    let bootstrap = if at.kafka.port() == 9092 {
        String::new()
    } else {
        format!(" --bootstrap {}", at.kafka)
    };
    let admin = if at.admin.port() == 9640 {
        String::new()
    } else {
        format!(" --admin-url http://{}", at.admin)
    };
    super::show(&format!(
        "tidelog {version} is ready.

  Kafka      {kafka}   any Kafka client
  Admin      http://{admin_address}   /readyz  /metrics  /api/v1/...
  Hot tail   {dir}
  Store      {store}
  Archive    Iceberg tables in the store: `tidelog archive status` tells where

Try, in another terminal:

  tidelog topic create greetings{bootstrap}
  echo 'hello' | tidelog produce greetings{bootstrap}
  tidelog consume greetings --from earliest --until-end{bootstrap}
  tidelog tier status{admin}
",
        version = env!("CARGO_PKG_VERSION"),
        kafka = at.kafka,
        admin_address = at.admin,
        dir = config.node.data_dir.display(),
        store = at.store,
    ));
}
