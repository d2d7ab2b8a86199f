//! The brokers of one scenario, in a folder of their own.
//!
//! Owns: how many, their files, faults with a note in the history, the folder's end.
//! Not here: one process (`process`), the order of faults (the scenarios).

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Error, Result, ensure};
use tempfile::TempDir;
use tidelog_check::History;

use crate::admin::GroupView;
use crate::config::{self, Addresses};
use crate::links::Links;
use crate::process::Broker;
use crate::record::Recorder;

/// Complaints that a report shows.
const COMPLAINTS_MAX: usize = 10;

/// Brokers 1 to N of one cluster. Dropping it kills them and removes their folder, unless the scenario panics.
pub struct Rig {
    // Before the folder: the processes end first.
    brokers: BTreeMap<i32, Broker>,
    links: Links,
    recorder: Recorder,
    folder: TempDir,
}

impl Rig {
    /// Makes folders, ports and configurations; starts the proxies, and no broker yet.
    pub(crate) async fn new(name: &str, count: i32) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix(&format!("tidelog-{name}-"))
            .tempdir()?;
        let mut at = BTreeMap::new();
        for id in 1..=count {
            at.insert(id, Addresses::free()?);
        }
        let seeds = config::seeds(at.iter().map(|(id, at)| (*id, at)));
        let fronts: Vec<_> = at
            .iter()
            .map(|(id, at)| (*id, at.front.clone(), at.peer.clone()))
            .collect();
        let links = Links::open(&fronts).await?;
        let store = folder.path().join("store");
        let mut brokers = BTreeMap::new();
        for (id, at) in at {
            let broker = Broker::new(id, at, folder.path().join(format!("broker-{id}")));
            broker.configure(&config::text(
                id,
                &broker.at,
                &seeds,
                &broker.data(),
                &store,
            ))?;
            brokers.insert(id, broker);
        }
        Ok(Self {
            brokers,
            links,
            recorder: Recorder::default(),
            folder,
        })
    }

    /// The ids of all brokers.
    #[must_use]
    pub fn ids(&self) -> Vec<i32> {
        self.brokers.keys().copied().collect()
    }

    /// The network between the brokers.
    #[must_use]
    pub fn links(&self) -> &Links {
        &self.links
    }

    /// The history of this scenario.
    #[must_use]
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Kafka addresses of all brokers, as clients want them.
    #[must_use]
    pub fn bootstrap(&self) -> String {
        let all: Vec<&str> = self.brokers.values().map(|b| b.at.kafka.as_str()).collect();
        all.join(",")
    }

    /// A broker, to look at.
    ///
    /// # Errors
    /// There is none with this id.
    pub fn broker(&self, id: i32) -> Result<&Broker> {
        let found = self.brokers.get(&id);
        found.with_context(|| format!("there is no broker {id}"))
    }

    fn change(&mut self, id: i32, what: &str) -> Result<&mut Broker> {
        self.recorder.note(format!("{what} broker {id}"));
        let found = self.brokers.get_mut(&id);
        found.with_context(|| format!("there is no broker {id}"))
    }

    /// Starts a broker; it is not ready yet.
    ///
    /// # Errors
    /// It runs, or the program cannot be started.
    pub fn start(&mut self, id: i32) -> Result<()> {
        self.change(id, "start")?.start()
    }

    /// Starts all that do not run, and waits until all are ready.
    ///
    /// # Errors
    /// One ended, or is not ready in time.
    pub async fn start_all(&mut self) -> Result<()> {
        for id in self.ids() {
            if !self.broker(id)?.is_running() {
                self.start(id)?;
            }
        }
        for id in self.ids() {
            self.ready(id).await?;
        }
        Ok(())
    }

    /// Waits until a started broker is ready.
    ///
    /// # Errors
    /// It ended, or is not ready in time.
    pub async fn ready(&mut self, id: i32) -> Result<()> {
        let found = self.brokers.get_mut(&id);
        found
            .with_context(|| format!("there is no broker {id}"))?
            .ready()
            .await?;
        self.recorder.note(format!("broker {id} is ready"));
        Ok(())
    }

    /// kill -9.
    ///
    /// # Errors
    /// It does not run.
    pub fn kill(&mut self, id: i32) -> Result<()> {
        self.change(id, "kill")?.kill()
    }

    /// SIGSTOP.
    ///
    /// # Errors
    /// It does not run.
    pub fn pause(&mut self, id: i32) -> Result<()> {
        self.change(id, "pause")?.pause()
    }

    /// SIGCONT.
    ///
    /// # Errors
    /// It does not run.
    pub fn resume(&mut self, id: i32) -> Result<()> {
        self.change(id, "resume")?.resume()
    }

    /// SIGTERM, and waits for its end.
    ///
    /// # Errors
    /// It does not end in time, or not with exit code 0.
    pub async fn stop(&mut self, id: i32) -> Result<()> {
        self.change(id, "stop")?.stop().await?;
        self.recorder.note(format!("broker {id} has stopped"));
        Ok(())
    }

    /// Removes the data of a broker that does not run, as a lost disk does.
    ///
    /// # Errors
    /// It runs, or the disk refuses.
    pub fn wipe(&mut self, id: i32) -> Result<()> {
        self.change(id, "wipe")?.wipe()
    }

    /// What the brokers that serve know of each group: the newest term counts.
    ///
    /// # Errors
    /// One of them does not answer.
    pub async fn groups(&self) -> Result<BTreeMap<u64, GroupView>> {
        let mut newest: BTreeMap<u64, GroupView> = BTreeMap::new();
        for broker in self.brokers.values().filter(|b| b.is_serving()) {
            for view in broker.cluster().await?.groups {
                let known = newest.entry(view.group).or_insert(view);
                if (view.term, view.leader) > (known.term, known.leader) {
                    *known = view;
                }
            }
        }
        Ok(newest)
    }

    /// Whether the brokers' logs are what brokers in good order write.
    pub(crate) fn in_order(&self) -> Result<()> {
        for (id, broker) in &self.brokers {
            let complaints = broker.complaints()?;
            let shown = complaints.get(..COMPLAINTS_MAX).unwrap_or(&complaints);
            ensure!(
                complaints.is_empty(),
                "broker {id} complained {} times:\n{}",
                complaints.len(),
                shown.join("\n")
            );
        }
        Ok(())
    }

    /// Ends a failed scenario: the processes are killed, the folder is kept, and what happened is in the error.
    pub(crate) fn failed(mut self, error: Error) -> Error {
        let verdict = self.recorder.history(|history| {
            let written = write_history(&self.folder.path().join("history.txt"), history);
            (tidelog_check::check(history).err(), written)
        });
        let mut text = String::new();
        for (id, broker) in &self.brokers {
            // Writing into a string does not fail.
            let _ = writeln!(
                text,
                "== last lines of broker {id}\n{}",
                broker.last_words()
            );
        }
        if let (Some(report), _) = &verdict {
            let _ = writeln!(text, "== the history says\n{report}");
        }
        if let (_, Err(why)) = &verdict {
            let _ = writeln!(text, "== the history could not be written: {why:#}");
        }
        self.folder.disable_cleanup(true);
        let _ = write!(text, "== kept: {}", self.folder.path().display());
        error.context(text)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.folder.disable_cleanup(true);
        }
        // The brokers end with their handles, before the folder goes.
        self.brokers.clear();
    }
}

fn write_history(path: &Path, history: &History) -> Result<()> {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    for (number, (at, event)) in history.events().iter().enumerate() {
        let seconds = at.as_secs_f64();
        std::io::Write::write_fmt(
            &mut file,
            format_args!("#{number} {seconds:.3} s  {event}\n"),
        )?;
    }
    Ok(std::io::Write::flush(&mut file)?)
}
