//! The brokers of one scenario, in a folder of their own.
//!
//! Owns: how many, their files, faults with a note in the history, the folder's end.
//! Not here: one process (`process`), the order of faults (the scenarios).

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Error, Result, ensure};
use tempfile::TempDir;
use tidelog_check::{History, Pauses, Report};

use crate::admin::GroupView;
use crate::config::{self, Addresses};
use crate::doors::Doors;
use crate::links::Links;
use crate::process::Broker;
use crate::record::Recorder;
use crate::tls::Authority;
use crate::wait::{Waiting, until};

/// Several elections, on a busy machine.
const LED: Duration = Duration::from_secs(60);
/// Complaints that a report shows.
const COMPLAINTS_MAX: usize = 10;

/// Notes of faults begin with one of these.
const FAULTS: [&str; 5] = ["kill ", "pause ", "stop ", "cut ", "lose "];

/// Where the time of a fault ends: another fault, or the end of the load.
fn is_other_time(note: &str) -> bool {
    note == crate::load::ENDED || FAULTS.iter().any(|kind| note.starts_with(kind))
}

/// Brokers 1 to N of one cluster. Dropping it kills them and removes their folder, unless the scenario panics.
pub struct Rig {
    // Before the folder: the processes end first.
    brokers: BTreeMap<i32, Broker>,
    links: Links,
    doors: Doors,
    recorder: Recorder,
    excused: Vec<&'static str>,
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
        let fronts: Vec<_> = at
            .iter()
            .map(|(id, at)| (*id, at.kafka.clone(), at.behind.clone()))
            .collect();
        let doors = Doors::open(&fronts).await?;
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
            doors,
            recorder: Recorder::default(),
            excused: Vec::new(),
            folder,
        })
    }

    /// The ids of all brokers.
    #[must_use]
    pub fn ids(&self) -> Vec<i32> {
        self.brokers.keys().copied().collect()
    }

    /// Nothing goes between two brokers, in either direction.
    ///
    /// # Errors
    /// There is no such pair.
    pub fn cut(&self, a: i32, b: i32) -> Result<()> {
        self.cut_one_way(a, b)?;
        self.cut_one_way(b, a)
    }

    /// Nothing goes from one broker to another; the other direction is open.
    ///
    /// # Errors
    /// There is no such pair.
    pub fn cut_one_way(&self, from: i32, to: i32) -> Result<()> {
        self.recorder.note(format!("cut from {from} to {to}"));
        self.links.cut_one_way(from, to)
    }

    /// What two brokers say to each other takes this long.
    ///
    /// # Errors
    /// There is no such pair.
    pub fn delay(&self, a: i32, b: i32, delay: Duration) -> Result<()> {
        self.recorder
            .note(format!("delay {a} and {b} by {delay:?}"));
        self.links.delay(a, b, delay)
    }

    /// No cuts and no delays any more.
    pub fn heal(&self) {
        self.recorder.note("heal the network");
        self.links.heal();
    }

    /// From now on, a broker acts on what its clients ask, and they hear nothing.
    ///
    /// # Errors
    /// There is no such broker.
    pub fn lose_answers(&self, id: i32) -> Result<()> {
        self.recorder.note(format!("lose answers of broker {id}"));
        self.doors.lose_answers(id)
    }

    /// Breaks the connections of a broker's clients; new ones lose nothing.
    ///
    /// # Errors
    /// There is no such broker.
    pub fn break_connections(&self, id: i32) -> Result<()> {
        let what = format!("break connections to broker {id}");
        self.recorder.note(what);
        self.doors.break_all(id)
    }

    /// Where the files of this scenario are.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
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

    /// Waits until a started broker is ready, or has ended by itself. Whether it is ready.
    ///
    /// # Errors
    /// Neither in time.
    pub async fn ready_or_ended(&mut self, id: i32) -> Result<bool> {
        let found = self.brokers.get_mut(&id);
        let broker = found.with_context(|| format!("there is no broker {id}"))?;
        let ready = broker.ready_or_ended().await?;
        let how = if ready { "is ready" } else { "has ended" };
        self.recorder.note(format!("broker {id} {how}"));
        Ok(ready)
    }

    /// Whether a broker has ended by itself.
    ///
    /// # Errors
    /// There is none with this id.
    pub fn has_ended(&mut self, id: i32) -> Result<bool> {
        let found = self.brokers.get_mut(&id);
        found
            .with_context(|| format!("there is no broker {id}"))?
            .has_ended()
    }

    /// Errors in brokers' logs with these words are wanted.
    pub fn excuse(&mut self, words: &'static str) {
        self.excused.push(words);
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

    /// Gives a broker, which may run, a new certificate of `authority` for its connections with others.
    ///
    /// # Errors
    /// There is no such broker, or the disk refuses.
    pub fn certify(&mut self, id: i32, authority: &Authority) -> Result<()> {
        self.change(id, "certify")?.certify(authority)
    }

    /// The same, and from its next start on the broker has `peer.tls-mode`.
    ///
    /// # Errors
    /// There is no such broker, or the disk refuses.
    pub fn secure(&mut self, id: i32, authority: &Authority, mode: &str) -> Result<()> {
        self.certify(id, authority)?;
        self.change(id, "secure")?.secure(mode)
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

    /// Waits until each group is led by a broker that serves: the newest term counts.
    ///
    /// # Errors
    /// It takes too long.
    pub async fn leaders(&self) -> Result<BTreeMap<u64, i32>> {
        until("a leader of every group", LED, async || {
            let groups = match self.groups().await {
                Ok(groups) => groups,
                Err(error) => return Ok(Waiting::NotYet(format!("{error:#}"))),
            };
            let serving = |leader: i64| {
                let id = i32::try_from(leader).ok()?;
                self.broker(id).ok()?.is_serving().then_some(id)
            };
            let led = groups.values().map(|view| {
                let id = view.leader.and_then(serving)?;
                Some((view.group, id))
            });
            Ok(match led.collect::<Option<BTreeMap<_, _>>>() {
                Some(leaders) if !leaders.is_empty() => Waiting::Done(leaders),
                _ => Waiting::NotYet(format!("{groups:?}")),
            })
        })
        .await
    }

    /// Whether the brokers' logs are what brokers in good order write.
    pub(crate) fn in_order(&self) -> Result<()> {
        for (id, broker) in &self.brokers {
            let mut complaints = broker.complaints()?;
            complaints.retain(|line| !self.excused.iter().any(|words| line.contains(words)));
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

    /// Adds how long writes paused around each kind of fault to the file at `path`, and leaves history and logs beside it.
    pub(crate) fn report(&self, name: &str, path: &OsStr) -> Result<()> {
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        self.recorder.history(|history| {
            for kind in FAULTS {
                let pauses = Pauses::of(history, |note| note.starts_with(kind), is_other_time);
                if !pauses.all().is_empty() {
                    writeln!(file, "{name}: {}: {pauses}", kind.trim())?;
                }
            }
            write_history(&beside(path, &format!("{name}.history")), history)
        })?;
        for (id, broker) in &self.brokers {
            std::fs::copy(
                broker.log_path(),
                beside(path, &format!("{name}.broker-{id}")),
            )?;
        }
        Ok(())
    }

    /// Ends a failed scenario: the processes are killed, the folder is kept. The page that says what happened.
    pub(crate) fn failed(mut self, error: &Error) -> String {
        self.folder.disable_cleanup(true);
        let path = self.folder.path().join("history.txt");
        let (report, written) = self.recorder.history(|history| {
            let report = tidelog_check::check(history).err();
            (report, write_history(&path, history))
        });
        let mut page = vec![format!("{error:#}")];
        // Where the scenario failed because of the history, that is its error.
        if let Some(report) = report.filter(|_| !error.is::<Report>()) {
            page.push(format!("== the history says\n{report}"));
        }
        for (id, broker) in &self.brokers {
            let words = broker.last_words();
            page.push(format!("== last lines of broker {id}\n{words}"));
        }
        if let Err(why) = written {
            page.push(format!("== the history could not be written: {why:#}"));
        }
        page.push(format!("== kept: {}", self.folder.path().display()));
        page.join("\n")
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

/// `<path>.<what>.txt`
fn beside(path: &OsStr, what: &str) -> PathBuf {
    let mut beside = path.to_owned();
    beside.push(format!(".{what}.txt"));
    beside.into()
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
