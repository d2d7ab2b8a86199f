//! Logging of the process: to stderr, one line an event, JSON on request, colours on a terminal only.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Starts logging at `level`, or as TIDELOG_LOG says (`info`, `tidelog=debug`, ...). TIDELOG_LOG_FORMAT=json for JSON.
pub(crate) fn start(level: &str) {
    let filter = EnvFilter::try_from_env("TIDELOG_LOG")
        .unwrap_or_else(|_| EnvFilter::new(format!("{level},openraft=error,object_store=error")));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    if std::env::var("TIDELOG_LOG_FORMAT").is_ok_and(|format| format == "json") {
        builder.json().init();
    } else {
        builder.init();
    }
}
