//! One file's bytes: what a reader sees, what is on the disk, and what lies between the two.
//!
//! Owns: sparse contents, the sectors written since the last sync, what of them a crash keeps.
//! Not here: names (`world.rs`).
//! Spec: docs/formats/disk.md
//!
//! Costs follow what is written: bytes nobody wrote take no memory, and a chunk that was synced is shared between the two
//! contents until it is written again.

use super::{CHUNK, SECTOR, SECTORS_PER_CHUNK};
use rand::Rng;
use rand::rngs::StdRng;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

static ZEROS: [u8; CHUNK] = [0; CHUNK];

/// Bytes of a file; chunks that are not there are zeros. Bytes past the length are zeros too.
#[derive(Clone, Default)]
pub(super) struct Sparse {
    length: usize,
    chunks: BTreeMap<usize, Arc<[u8; CHUNK]>>,
}

impl Sparse {
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// The stored chunks' numbers: whatever else there is are zeros.
    pub(super) fn stored(&self) -> impl Iterator<Item = usize> + '_ {
        self.chunks.keys().copied()
    }

    /// Fills the buffer; what lies past the end is zeros.
    pub(super) fn read(&self, position: usize, buffer: &mut [u8]) {
        for (at, range, within) in pieces(position, buffer.len()) {
            match self.chunks.get(&at) {
                Some(chunk) => buffer[range].copy_from_slice(&chunk[within]),
                None => buffer[range].fill(0),
            }
        }
    }

    /// Writes, and grows to the end of what is written.
    pub(super) fn write(&mut self, position: usize, bytes: &[u8]) {
        self.length = self.length.max(position + bytes.len());
        for (at, range, within) in pieces(position, bytes.len()) {
            let piece = &bytes[range];
            match self.chunks.get_mut(&at) {
                Some(chunk) => Arc::make_mut(chunk)[within].copy_from_slice(piece),
                None if *piece == ZEROS[..piece.len()] => {}
                None => {
                    let mut chunk = [0; CHUNK];
                    chunk[within].copy_from_slice(piece);
                    self.chunks.insert(at, Arc::new(chunk));
                }
            }
        }
    }

    /// Cuts, or grows with zeros.
    pub(super) fn set_length(&mut self, length: usize) {
        if length < self.length {
            self.chunks.split_off(&length.div_ceil(CHUNK));
            let within = length % CHUNK;
            if within > 0
                && let Some(chunk) = self.chunks.get_mut(&(length / CHUNK))
            {
                Arc::make_mut(chunk)[within..].fill(0);
            }
        }
        self.length = length;
    }

    pub(super) fn flip(&mut self, at: usize, bit: u8) {
        let mut byte = [0];
        self.read(at, &mut byte);
        self.write(at, &[byte[0] ^ (1 << (bit % 8))]);
    }

    fn sector(&self, sector: usize) -> [u8; SECTOR] {
        let mut content = [0; SECTOR];
        self.read(sector * SECTOR, &mut content);
        content
    }

    /// Writes what of the sector lies inside the length.
    fn put_sector(&mut self, sector: usize, content: &[u8; SECTOR]) {
        let from = sector * SECTOR;
        let to = self.length.min(from + SECTOR);
        if from < to {
            self.write(from, &content[..to - from]);
        }
    }
}

/// Cuts `length` bytes at `position` at the bounds of chunks: the chunk, the range of the bytes, the range in the chunk.
fn pieces(
    position: usize,
    length: usize,
) -> impl Iterator<Item = (usize, std::ops::Range<usize>, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        (done < length).then(|| {
            let within = (position + done) % CHUNK;
            let take = (CHUNK - within).min(length - done);
            let piece = (
                (position + done) / CHUNK,
                done..done + take,
                within..within + take,
            );
            done += take;
            piece
        })
    })
}

/// What of a chunk was written since the last sync.
#[derive(Default)]
struct Dirty {
    /// One bit for each sector.
    sectors: u8,
    /// The contents a sector had before its present one, oldest first.
    older: Vec<(usize, [u8; SECTOR])>,
}

const _: () = assert!(SECTORS_PER_CHUNK == 8, "one bit of Dirty::sectors for each");

/// What a crash took from a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Taken {
    /// Something that could be read cannot any more.
    pub(super) lost: bool,
    /// Something that was not synced survived.
    pub(super) kept: bool,
}

/// One file's bytes.
#[derive(Default)]
pub(super) struct Inode {
    pub(super) current: Sparse,
    durable: Sparse,
    dirty: BTreeMap<usize, Dirty>,
    /// Chunks of which a failed sync left sectors that are on no disk: a later sync must not write them.
    parted: BTreeSet<usize>,
}

impl Inode {
    pub(super) fn write(&mut self, position: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            self.current.set_length(self.current.length().max(position));
            return;
        }
        for (at, _, within) in pieces(position, bytes.len()) {
            let (first, last) = (within.start / SECTOR, (within.end - 1) / SECTOR);
            let sectors = (u8::MAX << first) & (u8::MAX >> (SECTORS_PER_CHUNK - 1 - last));
            let dirty = self.dirty.entry(at).or_default();
            for sector in sectors_of(at, dirty.sectors & sectors) {
                let content = self.current.sector(sector);
                dirty.older.push((sector % SECTORS_PER_CHUNK, content));
            }
            dirty.sectors |= sectors;
        }
        self.current.write(position, bytes);
    }

    /// Grows with zeros; never cuts.
    pub(super) fn reserve(&mut self, length: usize) {
        self.current.set_length(self.current.length().max(length));
    }

    pub(super) fn sync(&mut self) {
        self.durable.set_length(self.current.length());
        for (at, dirty) in std::mem::take(&mut self.dirty) {
            if self.parted.contains(&at) {
                for sector in sectors_of(at, dirty.sectors) {
                    self.durable
                        .put_sector(sector, &self.current.sector(sector));
                }
            } else if let Some(chunk) = self.current.chunks.get(&at) {
                self.durable.chunks.insert(at, Arc::clone(chunk));
            }
        }
    }

    /// As Linux does: the pages count as clean from now on, though they never reached the disk.
    pub(super) fn lose_sync(&mut self) {
        self.parted
            .extend(std::mem::take(&mut self.dirty).into_keys());
    }

    /// The chunks that a bit may rot in: those that were written, and every one there is.
    pub(super) fn durable(&self) -> &Sparse {
        &self.durable
    }

    /// Turns a bit on the disk and in the cache. False where the sector is to be written anyway, or past the end.
    pub(super) fn rot(&mut self, at: usize, bit: u8) -> bool {
        let sector = at / SECTOR;
        let dirty = self
            .dirty
            .get(&(sector / SECTORS_PER_CHUNK))
            .is_some_and(|dirty| dirty.sectors & (1 << (sector % SECTORS_PER_CHUNK)) != 0);
        if dirty || at >= self.durable.length() {
            return false;
        }
        self.flip(at, bit);
        true
    }

    pub(super) fn flip(&mut self, at: usize, bit: u8) {
        self.current.flip(at, bit);
        if at < self.durable.length() {
            self.durable.flip(at, bit);
        }
    }

    pub(super) fn crash(&mut self, random: &mut StdRng, keep_percent: u32) -> Taken {
        let mut taken = Taken::default();
        let (synced, full) = (self.durable.length(), self.current.length());
        let keeps = |random: &mut StdRng| random.random_range(0..100) < keep_percent;
        let mut length = if keeps(random) {
            full
        } else if keep_percent == 0 {
            synced
        } else {
            // Growth reaches the disk as a whole, not at all, or up to any sector.
            (synced + random.random_range(0..=(full - synced) / SECTOR) * SECTOR).min(full)
        };
        let mut bytes = std::mem::take(&mut self.durable);
        bytes.set_length(full);
        for (at, dirty) in std::mem::take(&mut self.dirty) {
            for sector in sectors_of(at, dirty.sectors) {
                let now = self.current.sector(sector);
                if !keeps(random) {
                    taken.lost |= bytes.sector(sector) != now;
                    continue;
                }
                let mut versions: Vec<&[u8; SECTOR]> = dirty
                    .older
                    .iter()
                    .filter(|(number, _)| *number == sector % SECTORS_PER_CHUNK)
                    .map(|(_, content)| content)
                    .collect();
                versions.push(&now);
                let pick = if keep_percent == 100 {
                    versions.len() - 1
                } else {
                    random.random_range(0..versions.len())
                };
                taken.kept = true;
                taken.lost |= *versions[pick] != now;
                bytes.put_sector(sector, versions[pick]);
                length = length.max(full.min((sector + 1) * SECTOR));
            }
        }
        taken.lost |= length < full;
        taken.kept |= length > synced;
        bytes.set_length(length);
        self.durable = bytes.clone();
        self.current = bytes;
        self.parted.clear();
        taken
    }
}

fn sectors_of(chunk: usize, sectors: u8) -> impl Iterator<Item = usize> {
    (0..SECTORS_PER_CHUNK)
        .filter(move |number| sectors & (1 << number) != 0)
        .map(move |number| chunk * SECTORS_PER_CHUNK + number)
}
