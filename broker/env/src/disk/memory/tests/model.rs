//! The sparse file against the simplest one that can be thought of: two vectors and every content each sector had.

use super::super::content::Inode;
use super::super::{CHUNK, SECTOR};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;

#[derive(Default)]
struct Plain {
    current: Vec<u8>,
    durable: Vec<u8>,
    /// Every content a sector had since the last sync, oldest first.
    versions: BTreeMap<usize, Vec<[u8; SECTOR]>>,
}

fn sector_of(bytes: &[u8], sector: usize) -> [u8; SECTOR] {
    let mut content = [0; SECTOR];
    let from = bytes.len().min(sector * SECTOR);
    let to = bytes.len().min(from + SECTOR);
    content[..to - from].copy_from_slice(&bytes[from..to]);
    content
}

fn put_sector(bytes: &mut [u8], sector: usize, content: &[u8; SECTOR]) {
    let from = bytes.len().min(sector * SECTOR);
    let to = bytes.len().min(from + SECTOR);
    bytes[from..to].copy_from_slice(&content[..to - from]);
}

impl Plain {
    fn write(&mut self, position: usize, bytes: &[u8]) {
        let end = position + bytes.len();
        self.reserve(end);
        self.current[position..end].copy_from_slice(bytes);
        for sector in position / SECTOR..end.div_ceil(SECTOR) {
            let content = sector_of(&self.current, sector);
            self.versions.entry(sector).or_default().push(content);
        }
    }

    fn reserve(&mut self, length: usize) {
        self.current.resize(self.current.len().max(length), 0);
    }

    fn sync(&mut self) {
        self.durable.resize(self.current.len(), 0);
        for sector in std::mem::take(&mut self.versions).into_keys() {
            let content = sector_of(&self.current, sector);
            put_sector(&mut self.durable, sector, &content);
        }
    }

    /// What a crash may leave that keeps everything it can, or nothing.
    fn after(&self, keep_all: bool) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        if keep_all {
            bytes.resize(self.current.len(), 0);
            for (sector, versions) in &self.versions {
                put_sector(&mut bytes, *sector, versions.last().unwrap());
            }
        }
        bytes
    }

    /// Whether a crash may leave this.
    fn allows(&self, bytes: &[u8]) -> bool {
        let mut durable = self.durable.clone();
        durable.resize(self.current.len(), 0);
        let lengths = self.durable.len()..=self.current.len();
        lengths.contains(&bytes.len())
            && (0..bytes.len().div_ceil(SECTOR)).all(|sector| {
                let here = sector_of(bytes, sector);
                let within = SECTOR.min(bytes.len() - sector * SECTOR);
                let same = |content: &[u8; SECTOR]| content[..within] == here[..within];
                same(&sector_of(&durable, sector))
                    || self
                        .versions
                        .get(&sector)
                        .is_some_and(|versions| versions.iter().any(same))
            })
    }
}

fn whole(inode: &Inode) -> Vec<u8> {
    let mut bytes = vec![0; inode.current.length()];
    inode.current.read(0, &mut bytes);
    bytes
}

fn step(random: &mut StdRng, inode: &mut Inode, plain: &mut Plain) {
    match random.random_range(0..20) {
        0..14 => {
            let position = random.random_range(0..4 * CHUNK);
            let length = match random.random_range(0..3) {
                0 => random.random_range(0..40),
                1 => SECTOR,
                _ => random.random_range(0..2 * CHUNK),
            };
            // Zeros are stored in another way than the rest.
            let byte = random.random_range(0..4);
            let position = position.min(plain.current.len());
            inode.write(position, &vec![byte; length]);
            if length > 0 {
                plain.write(position, &vec![byte; length]);
            }
        }
        14 => {
            let length = random.random_range(0..8 * CHUNK);
            inode.reserve(length);
            plain.reserve(length);
        }
        15 => {
            inode.lose_sync();
            plain.versions.clear();
        }
        16 if !plain.current.is_empty() => {
            let at = random.random_range(0..plain.current.len());
            let dirty = plain.versions.contains_key(&(at / SECTOR));
            let synced = at < plain.durable.len();
            assert_eq!(inode.rot(at, 3), synced && !dirty);
            if synced && !dirty {
                plain.durable[at] ^= 8;
                plain.current[at] ^= 8;
            }
        }
        _ => {
            inode.sync();
            plain.sync();
        }
    }
}

/// Proves for any order of calls that reads are exact, that a crash which keeps all or nothing leaves exactly that, and that any other
/// leaves for each sector one of the contents it had.
#[test]
fn sparse_files_equal_plain_ones() {
    for seed in 0..600 {
        let mut random = StdRng::seed_from_u64(seed);
        let (mut inode, mut plain) = (Inode::default(), Plain::default());
        for life in 0..4 {
            for _ in 0..random.random_range(0..25) {
                step(&mut random, &mut inode, &mut plain);
                assert!(whole(&inode) == plain.current, "seed {seed}, life {life}");
            }
            let keep_percent = [0, 100, 30, 80][random.random_range(0..4)];
            let before = plain.current.clone();
            let taken = inode.crash(&mut random, keep_percent);
            let left = whole(&inode);
            match keep_percent {
                0 => assert!(left == plain.after(false), "seed {seed}, life {life}"),
                100 => assert!(left == plain.after(true), "seed {seed}, life {life}"),
                _ => assert!(plain.allows(&left), "seed {seed}, life {life}"),
            }
            if keep_percent == 0 {
                assert!(!taken.kept);
            }
            if !taken.lost && plain.after(true) == before {
                assert!(left == before, "nothing was lost");
            }
            plain = Plain {
                current: left.clone(),
                durable: left,
                versions: BTreeMap::new(),
            };
        }
    }
}
