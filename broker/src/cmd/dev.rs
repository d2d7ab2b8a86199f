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
    /// Brokers in this process, 1 to 5: each with its own folder in the data directory, ports counted up.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=5))]
    brokers: u16,
    /// Address of the first broker for the others; only with several brokers.
    #[arg(long, default_value = "127.0.0.1:9192", value_name = "HOST:PORT")]
    peer: String,
    /// Any configuration key, for example `--set tier.cut-bytes=1048576`. May be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// Runs until a signal.
pub(crate) async fn run(args: DevArgs) -> ExitCode {
    if args.brokers > 1 {
        return match several(&args) {
            Ok(all) => super::run_nodes(&all, greet_all).await,
            Err(error) => super::usage(&error),
        };
    }
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

/// `host:port` with a port that is `more` higher.
fn counted_up(address: &str, more: u16) -> Result<String, String> {
    let up = address.rsplit_once(':').and_then(|(host, port)| {
        let port = port.parse::<u16>().ok().filter(|port| *port != 0)?;
        Some(format!("{host}:{}", port.checked_add(more)?))
    });
    up.ok_or_else(|| {
        format!("{address} is not host:port with a port that can be counted up by {more}")
    })
}

/// Keys that no two brokers may share, and what says them for all.
const OWN_KEYS: [(&str, &str); 8] = [
    ("admin.listen", "--admin HOST:PORT"),
    ("kafka.listen", "--kafka HOST:PORT"),
    ("peer.listen", "--peer HOST:PORT"),
    ("node.data-dir", "--data-dir DIR"),
    ("node.id", ""),
    ("cluster.seeds", ""),
    ("kafka.advertised", ""),
    ("peer.advertised", ""),
];

/// Refuses what would be one broker's and was said for all.
fn check_set(args: &DevArgs) -> Result<(), String> {
    for set in &args.set {
        let key = set.split_once('=').map_or(set.as_str(), |(key, _)| key);
        let Some((key, flag)) = OWN_KEYS.iter().find(|(own, _)| *own == key.trim()) else {
            continue;
        };
        let brokers = args.brokers;
        return Err(if flag.is_empty() {
            format!(
                "--set {key} would be the same for all of --brokers {brokers}, and each has its own; it is set for them"
            )
        } else {
            format!(
                "--set {key} would be the same for all of --brokers {brokers}: say {flag}, each broker gets its own from there"
            )
        });
    }
    Ok(())
}

/// The configuration of each broker.
fn several(args: &DevArgs) -> Result<Vec<Sources>, String> {
    check_set(args)?;
    let store = match &args.store {
        Some(store) => store.clone(),
        None => {
            let dir = std::path::absolute(args.data_dir.join("store"))
                .map_err(|error| format!("{}: {error}", args.data_dir.display()))?;
            url::Url::from_file_path(&dir)
                .map_err(|()| format!("{} cannot be written as a URL", dir.display()))?
                .to_string()
        }
    };
    let mut seeds = Vec::new();
    for at in 0..args.brokers {
        seeds.push(format!("{}@{}", at + 1, counted_up(&args.peer, at)?));
    }
    let source = |at: u16| -> Result<Sources, String> {
        let id = at + 1;
        let dir = args.data_dir.join(format!("broker-{id}"));
        let mut set = vec![
            format!("node.id={id}"),
            format!("node.zone=dev-{id}"),
            format!("node.data-dir={}", dir.display()),
            format!("kafka.listen={}", counted_up(&args.kafka, at)?),
            format!("admin.listen={}", counted_up(&args.admin, at)?),
            format!("peer.listen={}", counted_up(&args.peer, at)?),
            format!("cluster.seeds={}", seeds.join(",")),
            format!("store.url={store}"),
            "cluster.name=dev".to_owned(),
        ];
        set.extend(args.set.iter().cloned());
        Ok(Sources {
            file: None,
            environment: super::environment(),
            set,
        })
    };
    (0..args.brokers).map(source).collect()
}

fn greet_all(nodes: &[(Node, Config)]) {
    let mut text = format!(
        "tidelog {} is ready: {} brokers in this process.\n\n",
        env!("CARGO_PKG_VERSION"),
        nodes.len()
    );
    let mut bootstrap = Vec::new();
    for (node, config) in nodes {
        let at = node.addresses();
        bootstrap.push(at.kafka.to_string());
        text.push_str(&format!(
            "  Broker {}   Kafka {}   admin http://{}   hot tail {}\n",
            config.node.id,
            at.kafka,
            at.admin,
            config.node.data_dir.display()
        ));
    }
    if let Some((node, _)) = nodes.first() {
        let at = node.addresses();
        text.push_str(&format!(
            "\n  Store      {}\n  Leaders    http://{}/api/v1/cluster\n",
            at.store, at.admin
        ));
    }
    let bootstrap = bootstrap.join(",");
    text.push_str(&format!(
        "\nTry, in another terminal:\n\n  tidelog topic create greetings --bootstrap {bootstrap}\n"
    ));
    super::show(&text);
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

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        dev: DevArgs,
    }

    /// Proves that several brokers get configurations that load, with ports and directories of their own and one store.
    #[test]
    fn several_brokers_have_their_own_ports_and_one_store() {
        let args = Cli::parse_from(["dev", "--brokers", "3", "--data-dir", "d"]).dev;
        let all = several(&args).unwrap();
        let load = |source: &Sources| {
            Config::load(&Sources {
                environment: std::collections::BTreeMap::new(),
                ..source.clone()
            })
        };
        let configs: Vec<_> = all.iter().map(|source| load(source).unwrap()).collect();
        assert_eq!(configs[2].kafka.listen, "127.0.0.1:9094");
        assert_eq!(configs[2].admin.listen, "127.0.0.1:9642");
        assert_eq!(configs[2].peer.listen, configs[0].seeds()[&3]);
        assert!(configs[1].node.data_dir.ends_with("broker-2"));
        assert_eq!(configs[0].store.url, configs[2].store.url);
        for wrong in ["127.0.0.1:0", "127.0.0.1:65535", "9192"] {
            let args = Cli::parse_from(["dev", "--brokers", "3", "--peer", wrong]).dev;
            assert!(several(&args).unwrap_err().contains("counted up"));
        }
    }

    /// Proves that what two brokers cannot share is refused with what to say instead, and that all else may be set for all.
    #[test]
    fn what_brokers_cannot_share_is_refused() {
        let with = |set: &str| {
            let args = Cli::parse_from(["dev", "--brokers", "3", "--set", set]).dev;
            several(&args)
        };
        for (set, says) in [
            ("admin.listen=127.0.0.1:1", "say --admin HOST:PORT"),
            (" kafka.listen =127.0.0.1:1", "say --kafka HOST:PORT"),
            ("peer.listen=127.0.0.1:1", "say --peer HOST:PORT"),
            ("node.data-dir=d", "say --data-dir DIR"),
            ("node.id=4", "each has its own"),
            ("kafka.advertised=h:1", "each has its own"),
        ] {
            let error = with(set).unwrap_err();
            assert!(error.contains(says), "{set}: {error}");
        }
        assert_eq!(with("tier.cut-bytes=1048576").unwrap().len(), 3);
        assert_eq!(with("node.zone=one").unwrap().len(), 3);
    }
}
