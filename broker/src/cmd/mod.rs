//! The verbs of the binary itself.
//!
//! Owns: what they print. stdout carries data, stderr the talk.

pub(crate) mod broker;
pub(crate) mod dev;
pub(crate) mod doctor;
pub(crate) mod logging;

use std::io::Write as _;
use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;
use tidelog::config::{Config, Sources};
use tidelog::node::{Ended, Node, World};

/// Says why a verb failed; exit code 1.
#[allow(clippy::print_stderr, reason = "the CLI's output")]
pub(crate) fn fail(text: &str) -> ExitCode {
    eprintln!("error: {text}");
    ExitCode::from(1)
}

/// Says what is wrong with the command line; exit code 2.
#[allow(clippy::print_stderr, reason = "the CLI's output")]
pub(crate) fn usage(text: &str) -> ExitCode {
    eprintln!("error: {text}");
    ExitCode::from(2)
}

/// Writes a line of talk. Whoever reads it may be gone: that ends no broker.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Writes data; as [`say`].
pub(crate) fn show(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

pub(crate) fn environment() -> std::collections::BTreeMap<String, String> {
    std::env::vars()
        .filter(|(name, _)| name.starts_with("TIDELOG_"))
        .collect()
}

/// A configuration file: its path and its text; or what to say of it.
pub(crate) fn read_config(path: PathBuf) -> Result<(PathBuf, String), String> {
    #[allow(
        clippy::disallowed_methods,
        reason = "the file is read before there is a world to hand in"
    )]
    let read = std::fs::read_to_string(&path);
    match read {
        Ok(text) => Ok((path, text)),
        Err(error) => Err(format!("config file {}: {error}", path.display())),
    }
}

/// Names the variables that look like configuration and are none.
pub(crate) fn warn_of_unknown(environment: &std::collections::BTreeMap<String, String>) {
    for line in tidelog::config::environment::unknown(environment) {
        say(&format!("warning: {line}"));
    }
}

/// Runs a node until a signal, or until it can no longer promise anything.
pub(crate) async fn run_node(sources: &Sources, started: impl FnOnce(&Node, &Config)) -> ExitCode {
    let config = match Config::load(sources) {
        Ok(config) => config,
        Err(error) => return usage(&error.to_string()),
    };
    warn_of_unknown(&sources.environment);
    let mut signal = pin!(stop_signal());
    let node = tokio::select! {
        node = Node::start(config.clone(), World::system()) => match node {
            Ok(node) => node,
            Err(error) => return fail(&error.to_string()),
        },
        // It may wait for other brokers for as long as it takes. Nothing was acknowledged yet.
        signal = &mut signal => return stopped(signal),
    };
    started(&node, &config);
    tokio::select! {
        signal = signal => {
            let code = stopped(signal);
            node.stop().await;
            code
        }
        ended = node.ended() => end(ended, node).await,
    }
}

/// Ends a node that must end by itself.
async fn end(ended: Ended, node: Node) -> ExitCode {
    match ended {
        // No orderly stop: nothing may be acknowledged any more.
        Ended::Failed(reason) => fail(&format!(
            "{reason}; the broker ends so that nothing unsafe is acknowledged"
        )),
        Ended::Replaced(text) | Ended::Refills(text) => {
            let code = fail(&text);
            node.stop().await;
            code
        }
        Ended::Left(text) => {
            say(&text);
            node.stop().await;
            ExitCode::SUCCESS
        }
    }
}

/// Runs several nodes until a signal, or until one of them can no longer promise anything.
pub(crate) async fn run_nodes(
    sources: &[Sources],
    started: impl FnOnce(&[(Node, Config)]),
) -> ExitCode {
    let mut configs = Vec::new();
    for source in sources {
        match Config::load(source) {
            Ok(config) => configs.push(config),
            Err(error) => return usage(&error.to_string()),
        }
    }
    if let Some(first) = sources.first() {
        warn_of_unknown(&first.environment);
    }
    // They wait for each other, so they start together.
    let starting = configs.into_iter().map(|config| async move {
        let node = Node::start(config.clone(), World::system()).await?;
        Ok::<_, tidelog::node::StartError>((node, config))
    });
    let mut signal = pin!(stop_signal());
    let nodes = tokio::select! {
        nodes = futures::future::try_join_all(starting) => match nodes {
            Ok(nodes) => nodes,
            Err(error) => return fail(&error.to_string()),
        },
        signal = &mut signal => return stopped(signal),
    };
    started(&nodes);
    let mut nodes: Vec<Node> = nodes.into_iter().map(|(node, _)| node).collect();
    let mut code = ExitCode::SUCCESS;
    while !nodes.is_empty() {
        let ended = nodes.iter().map(|node| Box::pin(node.ended()));
        let (ended, at) = tokio::select! {
            signal = &mut signal => {
                code = stopped(signal);
                break;
            }
            (ended, at, _) = futures::future::select_all(ended) => (ended, at),
        };
        if let Ended::Failed(reason) = ended {
            return fail(&format!(
                "{reason}; the process ends so that nothing unsafe is acknowledged"
            ));
        }
        // It has left; the others go on.
        end(ended, nodes.remove(at)).await;
    }
    // All at once: nobody is left to hand leadership over to.
    futures::future::join_all(nodes.into_iter().map(Node::stop)).await;
    code
}

/// What follows from a signal to stop, or from not being able to wait for one.
fn stopped(signal: std::io::Result<()>) -> ExitCode {
    match signal {
        Ok(()) => {
            say("stopping");
            ExitCode::SUCCESS
        }
        Err(error) => fail(&format!("cannot wait for signals: {error}")),
    }
}

async fn stop_signal() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted,
        _ = terminate.recv() => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;

    async fn ends_with(ended: Ended) -> ExitCode {
        let dir = tempfile::tempdir().unwrap();
        let set = [
            format!("node.data-dir={}", dir.path().display()),
            "node.zone=z".to_owned(),
            "kafka.listen=127.0.0.1:0".to_owned(),
            "admin.listen=127.0.0.1:0".to_owned(),
            "log.file-bytes=8388608".to_owned(),
            "log.reserve-bytes=0".to_owned(),
            "archive.enable=false".to_owned(),
        ];
        let sources = Sources {
            set: set.to_vec(),
            ..Sources::default()
        };
        let config = Config::load(&sources).unwrap();
        let node = Node::start(config, World::system()).await.unwrap();
        end(ended, node).await
    }

    /// Proves that a decommissioned broker ends as it should, so that no supervisor starts it again, and that one that was replaced, or failed, does not.
    #[tokio::test(flavor = "multi_thread")]
    async fn exit_codes() {
        let text = || "why".to_owned();
        assert_eq!(ends_with(Ended::Left(text())).await, ExitCode::SUCCESS);
        for ended in [Ended::Replaced(text()), Ended::Failed(text())] {
            assert_eq!(ends_with(ended).await, ExitCode::from(1));
        }
    }
}
