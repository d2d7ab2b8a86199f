//! Opening a log: what the files hold, and what must be done before anything new is written.
//!
//! Owns: the recovery rules. It never cuts what may have been acknowledged.
//! Not here: walking frames (`scan.rs`), their meaning (`ledger.rs`).
//! Spec: docs/formats/group-log.md, "Recovery"

use super::error::LogError;
use super::files::{FileName, LogFile, parse_name};
use super::format::{
    BadHeader, Binding, FILE_HEADER_BYTES, FRAMES_START, FileHeader, Identity, Record, WRITE_ALIGN,
};
use super::index::{Index, Slot};
use super::ledger::Ledger;
use super::order::FileState;
use super::pool::FilePool;
use super::scan::{Found, Scanner};
use super::types::GroupLogConfig;
use super::writer::start_file;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;
use tidelog_env::disk::OpenMode;
use tidelog_env::{CrashPoint, Disk, Mutant, Random, crash_point, mutant};

/// What was found.
pub(super) struct Recovered {
    pub(super) ledger: Ledger,
    pub(super) files: VecDeque<FileState>,
    pub(super) active: Arc<LogFile>,
    /// Where the next frame goes in the active file.
    pub(super) end: u64,
    /// Purged files; their names are still `.log`.
    pub(super) retired: Vec<Arc<LogFile>>,
}

/// The world of one recovery.
pub(super) struct Recovery<'a> {
    pub(super) config: &'a GroupLogConfig,
    pub(super) identity: Identity,
    pub(super) disk: &'a dyn Disk,
    pub(super) random: &'a dyn Random,
    pub(super) pool: &'a FilePool,
}

struct Opened {
    header: FileHeader,
    file: Arc<LogFile>,
}

/// An [`LogError::Io`] about a path.
pub(super) fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LogError {
    let path = path.to_path_buf();
    move |source| LogError::Io {
        what,
        path,
        source: Arc::new(source),
    }
}

fn damaged(file: &LogFile, position: u64, what: impl Into<String>) -> LogError {
    LogError::Damaged {
        path: file.path.clone(),
        position,
        what: what.into(),
    }
}

impl Recovery<'_> {
    /// Runs the rules. The directory is locked by the caller.
    pub(super) fn run(&self) -> Result<Recovered, LogError> {
        let (sequences, has_checkpoints) = self.tidy()?;
        if sequences.is_empty() {
            if has_checkpoints {
                return Err(LogError::Missing {
                    path: self.config.dir.clone(),
                    what: "there are checkpoints but no log file".to_owned(),
                });
            }
            return self.create();
        }
        let mut opened = Vec::with_capacity(sequences.len());
        for sequence in sequences {
            opened.push(self.open_file(sequence)?);
        }
        let gap = (1..opened.len()).rev().find(|at| {
            let before = opened.get(at - 1).map(|file| file.header.sequence + 1);
            opened.get(*at).map(|file| file.header.sequence) != before
        });
        let run = opened.split_off(gap.unwrap_or(0));
        self.replay(&opened, &run)
    }

    /// Rule 1: removes what was being made, hands spares to the pool, lists log files.
    fn tidy(&self) -> Result<(Vec<u64>, bool), LogError> {
        let dir = &self.config.dir;
        // What an earlier run renamed may be in the cache only; from here on the names are what is on disk.
        self.disk.sync_dir(dir).map_err(io_error("syncing", dir))?;
        let mut sequences = Vec::new();
        let mut has_checkpoints = false;
        for entry in self.disk.list(dir).map_err(io_error("listing", dir))? {
            let path = dir.join(&entry.name);
            match parse_name(&entry.name) {
                FileName::Log(sequence) => sequences.push(sequence),
                FileName::Spare(number) => {
                    self.pool
                        .adopt(number, entry.length)
                        .map_err(io_error("removing", &path))?;
                }
                FileName::Tmp => self
                    .disk
                    .remove(&path)
                    .map_err(io_error("removing", &path))?,
                FileName::Checkpoint(_) => has_checkpoints = true,
                FileName::Other => {}
            }
        }
        sequences.sort_unstable();
        Ok((sequences, has_checkpoints))
    }

    fn create(&self) -> Result<Recovered, LogError> {
        let dir = &self.config.dir;
        let spare = self
            .pool
            .take_now()
            .map_err(io_error("preparing a log file in", dir))?;
        let header = FileHeader {
            identity: self.identity,
            sequence: 1,
            salt: self.random.next_u64(),
            last: None,
            purged: None,
            committed: None,
            vote: None,
            previous_end: 0,
            file_bytes: self.config.file_bytes,
        };
        let active = start_file(self.disk, dir, &spare, &header)
            .map_err(io_error("creating a log file in", dir))?;
        let state = state_of(&active, FRAMES_START);
        Ok(Recovered {
            ledger: Ledger::default(),
            files: VecDeque::from([state]),
            active,
            end: FRAMES_START,
            retired: Vec::new(),
        })
    }

    fn open_file(&self, sequence: u64) -> Result<Opened, LogError> {
        let path = self.config.dir.join(super::files::log_name(sequence));
        let file = self
            .disk
            .open(&path, OpenMode::ReadWrite)
            .map_err(io_error("opening", &path))?;
        let length = file.length().map_err(io_error("reading", &path))?;
        let damage = |what: String| LogError::Damaged {
            path: path.clone(),
            position: 0,
            what,
        };
        let mut bytes = vec![0; FILE_HEADER_BYTES];
        if length < FRAMES_START {
            return Err(damage(format!("the file has only {length} bytes")));
        }
        file.read_exact_at(&mut bytes, 0)
            .map_err(io_error("reading", &path))?;
        let header = match FileHeader::decode(&bytes) {
            Ok(header) => header,
            Err(BadHeader::Version(version)) => return Err(LogError::Version { path, version }),
            Err(BadHeader::Damaged(what)) => return Err(damage(what.to_owned())),
        };
        if header.identity != self.identity {
            let (expected, found) = (self.identity.to_string(), header.identity.to_string());
            return Err(LogError::Identity {
                path,
                expected,
                found,
            });
        }
        if header.sequence != sequence {
            return Err(damage(format!(
                "the header says sequence {}",
                header.sequence
            )));
        }
        if header.file_bytes > length || header.file_bytes > GroupLogConfig::FILE_BYTES_MAX {
            return Err(damage(format!(
                "the header says {} bytes, the file has {length}",
                header.file_bytes
            )));
        }
        let binding = Binding {
            salt: header.salt,
            sequence,
        };
        let file = LogFile {
            path,
            file,
            binding,
            file_bytes: header.file_bytes,
        };
        Ok(Opened {
            header,
            file: Arc::new(file),
        })
    }

    /// Rules 2 to 9.
    fn replay(&self, before_gap: &[Opened], run: &[Opened]) -> Result<Recovered, LogError> {
        let (Some(first), Some(last)) = (run.first(), run.last()) else {
            return self.create();
        };
        let mut ledger = Ledger {
            index: Index::with_base(first.header.last),
            vote: first.header.vote,
            committed: first.header.committed,
            purged: first.header.purged,
        };
        let mut files = VecDeque::new();
        for pair in run.windows(2) {
            if let [file, next] = pair {
                replay_sealed(&mut ledger, &file.file, next.header.previous_end)?;
                agree(&mut ledger, next)?;
                files.push_back(state_of(&file.file, next.header.previous_end));
            }
        }
        let end = self.replay_active(&mut ledger, &last.file)?;
        files.push_back(state_of(&last.file, end));
        if let Some(id) = ledger.missing() {
            return Err(LogError::Missing {
                path: first.file.path.clone(),
                what: format!("entries up to {id} should lie in files before this one"),
            });
        }
        ledger.clamp_committed();
        // Nothing is missing, so everything before the run, and so before the gap, is purged.
        let keep_from = ledger
            .index
            .front()
            .map_or(last.header.sequence, |slot| slot.file);
        let mut retired: Vec<_> = before_gap
            .iter()
            .map(|opened| Arc::clone(&opened.file))
            .collect();
        while files.front().is_some_and(|file| file.sequence < keep_from) {
            retired.extend(files.pop_front().and_then(|file| file.file));
        }
        Ok(Recovered {
            ledger,
            files,
            active: Arc::clone(&last.file),
            end,
            retired,
        })
    }

    /// Rules 5 to 7: finds the end of the active file, refuses damage, clears and rewrites the tail, syncs.
    fn replay_active(&self, ledger: &mut Ledger, file: &LogFile) -> Result<u64, LogError> {
        let read = || io_error("reading", &file.path);
        let mut scanner = Scanner::new(file, file.file_bytes);
        let mut end = FRAMES_START;
        let mut durable = FRAMES_START;
        while let Some(found) = scanner.header_at(end).map_err(read())? {
            durable = durable.max(found.frame.header.durable_upto);
            let good = scanner.body_is_good(&found).map_err(read())?;
            if !good && !mutant(Mutant::TornBodyAccepted) {
                break;
            }
            take(ledger, file, &found)?;
            end = found.end();
        }
        let beyond = scanner.search(end).map_err(read())?;
        durable = durable.max(beyond.map_or(0, |(durable, _)| durable));
        if durable > end && !mutant(Mutant::DamageCut) {
            let what =
                format!("no good frame, but everything up to byte {durable} had been synced");
            return Err(damaged(file, end, what));
        }
        settle(file, durable, end, beyond.map(|(_, last)| last))
            .map_err(io_error("repairing the end of", &file.path))?;
        Ok(end)
    }
}

/// Rule 4.
fn replay_sealed(ledger: &mut Ledger, file: &LogFile, end: u64) -> Result<(), LogError> {
    let mut scanner = Scanner::new(file, end);
    let mut position = FRAMES_START;
    while position < end {
        let found = scanner
            .header_at(position)
            .map_err(io_error("reading", &file.path))?;
        let Some(found) = found else {
            return Err(damaged(
                file,
                position,
                format!("no good frame, but the file was full up to byte {end}"),
            ));
        };
        take(ledger, file, &found)?;
        position = found.end();
    }
    if position == end {
        Ok(())
    } else {
        Err(damaged(file, position, "the next file begins elsewhere"))
    }
}

fn take(ledger: &mut Ledger, file: &LogFile, found: &Found) -> Result<(), LogError> {
    let header = found.frame.header;
    let slot = match header.record {
        Record::Entry { id, kind } => Some(Slot {
            term: id.term,
            file: file.binding.sequence,
            position: found.position,
            dir_len: header.dir_len,
            body_len: header.body_len,
            kind,
        }),
        _ => None,
    };
    ledger
        .replay(header.record, slot)
        .map_err(|what| damaged(file, found.position, what))
}

/// The header of a file repeats what the frames before it say (and may know a newer commit index).
fn agree(ledger: &mut Ledger, next: &Opened) -> Result<(), LogError> {
    let state = ledger.state();
    let same = state.last == next.header.last
        && state.purged == next.header.purged
        && state.vote == next.header.vote;
    if !same {
        return Err(damaged(
            &next.file,
            0,
            "the header contradicts the frames of the files before",
        ));
    }
    ledger.committed = next.header.committed;
    Ok(())
}

fn state_of(file: &Arc<LogFile>, end: u64) -> FileState {
    FileState {
        sequence: file.binding.sequence,
        file_bytes: file.file_bytes,
        end,
        file: Some(Arc::clone(file)),
    }
}

/// Rules 6 and 7. `stale_end`: where the last header after `end` ends.
fn settle(file: &LogFile, durable: u64, end: u64, stale_end: Option<u64>) -> io::Result<()> {
    if let Some(stale_end) = stale_end
        && !mutant(Mutant::TornTailKept)
    {
        let zeros = vec![0; 64 * 1024];
        let clear_end = stale_end.next_multiple_of(WRITE_ALIGN).min(file.file_bytes);
        let mut at = end;
        while at < clear_end {
            let length = (clear_end - at).min(zeros.len() as u64);
            let chunk = zeros
                .get(..usize::try_from(length).unwrap_or(0))
                .unwrap_or_default();
            file.file.write_all_at(&[IoSlice::new(chunk)], at)?;
            at += length;
        }
        crash_point(CrashPoint::RecoveryCleared);
    }
    if mutant(Mutant::RecoveredEndNotSynced) {
        return Ok(());
    }
    let mut at = durable;
    let mut chunk = Vec::new();
    while at < end {
        let length = (end - at).min(1 << 20);
        chunk.resize(usize::try_from(length).map_err(io::Error::other)?, 0);
        file.file.read_exact_at(&mut chunk, at)?;
        file.file.write_all_at(&[IoSlice::new(&chunk)], at)?;
        at += length;
    }
    file.file.sync_data()?;
    crash_point(CrashPoint::RecoverySettled);
    Ok(())
}
