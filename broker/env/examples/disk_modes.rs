//! Measures ways to make sequential writes durable on a directory's disk: growing or pre-written files, `fdatasync`,
//! `O_DSYNC`, `RWF_DSYNC`, `O_DIRECT`. Ways alternate; prints the median of the rounds. The result that decided the group
//! log's writes is docs/adr/2026-11-29-group-log-writes.md.
//!
//! `cargo run -p tidelog-env --example disk_modes -- DIR [ROUNDS 5]`

#![allow(clippy::print_stdout, reason = "a program of the command line")]
#![allow(clippy::disallowed_methods, reason = "it measures the real world")]

use rustix::fs::{Mode, OFlags};
use rustix::io::ReadWriteFlags;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

const FILE_BYTES: usize = 64 << 20;
const SIZES: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];
/// Operations per round at most: enough of the small ones.
const OPERATIONS: usize = 300;

#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    prewritten: bool,
    flags: OFlags,
    per_write: ReadWriteFlags,
    sync: bool,
}

fn ways() -> [Way; 5] {
    let (none, plain) = (OFlags::empty(), ReadWriteFlags::empty());
    [
        Way {
            name: "growing, fdatasync",
            prewritten: false,
            flags: none,
            per_write: plain,
            sync: true,
        },
        Way {
            name: "pre-written, fdatasync",
            prewritten: true,
            flags: none,
            per_write: plain,
            sync: true,
        },
        Way {
            name: "pre-written, O_DSYNC",
            prewritten: true,
            flags: OFlags::DSYNC,
            per_write: plain,
            sync: false,
        },
        Way {
            name: "pre-written, RWF_DSYNC",
            prewritten: true,
            flags: none,
            per_write: ReadWriteFlags::DSYNC,
            sync: false,
        },
        Way {
            name: "pre-written, O_DIRECT|O_DSYNC",
            prewritten: true,
            flags: OFlags::DIRECT.union(OFlags::DSYNC),
            per_write: plain,
            sync: false,
        },
    ]
}

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let dir = PathBuf::from(arguments.next().ok_or(io::ErrorKind::InvalidInput)?);
    let rounds = arguments
        .next()
        .and_then(|text| text.parse().ok())
        .unwrap_or(5);
    let prewritten = dir.join("prewritten");
    fill(&prewritten)?;
    for size in SIZES {
        let mut rates = vec![Vec::new(); ways().len()];
        for _ in 0..rounds {
            for (way, rates) in ways().into_iter().zip(&mut rates) {
                rates.push(round(&dir, &prewritten, way, size)?);
            }
        }
        for (way, rates) in ways().into_iter().zip(&mut rates) {
            rates.sort_by(f64::total_cmp);
            let middle = rates.get(rates.len() / 2).copied().unwrap_or_default();
            let (low, high) = (
                rates.first().copied().unwrap_or_default(),
                rates.last().copied().unwrap_or_default(),
            );
            println!(
                "{:5} KiB  {:30} {middle:7.0} us per write ({low:.0} to {high:.0})",
                size >> 10,
                way.name
            );
        }
    }
    std::fs::remove_file(prewritten)
}

fn fill(path: &Path) -> io::Result<()> {
    std::fs::write(path, vec![0; FILE_BYTES])?;
    std::fs::File::open(path)?.sync_all()
}

/// Mean microseconds per durable write.
fn round(dir: &Path, prewritten: &Path, way: Way, size: usize) -> io::Result<f64> {
    let growing = dir.join("growing");
    let path = if way.prewritten { prewritten } else { &growing };
    let flags = OFlags::RDWR | OFlags::CREATE | way.flags;
    let file: OwnedFd = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
    // O_DIRECT wants aligned memory: take the aligned part of a larger buffer.
    let buffer = vec![0x5a; size + 4096];
    let start = buffer.as_ptr().align_offset(4096);
    let bytes = buffer
        .get(start..start + size)
        .ok_or(io::ErrorKind::InvalidData)?;
    let operations = OPERATIONS.min(FILE_BYTES / size);
    let begin = Instant::now();
    for at in 0..operations {
        let position = u64::try_from(at * size).map_err(io::Error::other)?;
        let slices = [IoSlice::new(bytes)];
        let written = rustix::io::pwritev2(&file, &slices, position, way.per_write)?;
        if written != size {
            return Err(io::ErrorKind::WriteZero.into());
        }
        if way.sync {
            rustix::fs::fdatasync(&file)?;
        }
    }
    let mean = begin.elapsed().as_secs_f64() * 1e6
        / f64::from(u32::try_from(operations).map_err(io::Error::other)?);
    if !way.prewritten {
        std::fs::remove_file(&growing)?;
    }
    Ok(mean)
}
