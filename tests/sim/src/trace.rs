//! The trace of a run: every line that a broker or the plan logs, with the simulated time.
//!
//! Owns: the subscriber, the fingerprint of all lines, the last lines for a failure's report.
//! Not here: what is logged.
//! Spec: docs/simulation.md (the same seed, the same steps)

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Write};
use std::sync::Arc;

use parking_lot::Mutex;
use tidelog_world::hosts;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

/// Lines that a failure shows.
const KEPT: usize = 2000;

/// A handle to the trace. Clones share it.
#[derive(Clone)]
pub(crate) struct Trace(Arc<Mutex<Inner>>);

struct Inner {
    hasher: DefaultHasher,
    lines: u64,
    last: VecDeque<String>,
    file: Option<std::fs::File>,
}

impl Trace {
    /// Starts to listen, once in a process; every line goes to `file` too.
    ///
    /// # Errors
    /// Somebody listens already, or the filter is none.
    pub(crate) fn start(filter: &str, file: Option<std::fs::File>) -> anyhow::Result<Self> {
        let trace = Self(Arc::new(Mutex::new(Inner {
            hasher: DefaultHasher::new(),
            lines: 0,
            last: VecDeque::new(),
            file,
        })));
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::try_new(filter)?)
            .with_ansi(false)
            .with_timer(SimulatedTime)
            .with_writer(trace.clone())
            .finish();
        tracing::subscriber::set_global_default(subscriber)?;
        Ok(trace)
    }

    /// A number for everything so far, and how many lines that is.
    pub(crate) fn fingerprint(&self) -> (u64, u64) {
        let inner = self.0.lock();
        (inner.hasher.finish(), inner.lines)
    }

    /// Adds what is no line of the log.
    pub(crate) fn add(&self, text: &str) {
        self.0.lock().line(text.as_bytes());
    }

    /// Counts what is no line of the log, without keeping it.
    pub(crate) fn hash(&self, text: &str) {
        self.0.lock().hasher.write(text.as_bytes());
    }

    /// The last lines.
    pub(crate) fn last(&self) -> String {
        self.0.lock().last.iter().map(String::as_str).collect()
    }
}

impl Inner {
    fn line(&mut self, line: &[u8]) {
        self.hasher.write(line);
        self.lines += 1;
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last
            .push_back(String::from_utf8_lossy(line).into_owned());
        if let Some(file) = &mut self.file {
            // A trace that cannot be kept changes nothing in what it tells.
            let _ = file.write_all(line);
        }
    }
}

impl<'a> MakeWriter<'a> for Trace {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line(self.clone())
    }
}

/// One line on its way.
pub(crate) struct Line(Trace);

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.0.lock().line(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The time and the name of the host that runs.
struct SimulatedTime;

impl FormatTime for SimulatedTime {
    fn format_time(&self, writer: &mut Writer<'_>) -> std::fmt::Result {
        match hosts::running() {
            Some((name, now)) => write!(writer, "{:10.3} {name}", now.as_secs_f64()),
            None => writer.write_str("           world"),
        }
    }
}
