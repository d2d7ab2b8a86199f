//! Frames in the group logs of a broker that does not run: finding them, flipping a bit of one.
//!
//! Owns: where frames are, by their kind.
//! Not here: which one is damaged when (the scenarios).
//! Spec: docs/formats/group-log.md

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const FILE_HEADER: usize = 4096;
const FRAME_HEADER: usize = 56;
const MAGIC: &[u8] = b"TLF1";
/// Where in a frame's header its kind and the lengths of dir and body are.
const KIND_AT: usize = 8;
const LENGTHS_AT: [usize; 2] = [12, 16];

/// A frame on disk.
#[derive(Clone, Debug)]
pub struct FramePlace {
    file: PathBuf,
    at: usize,
    bytes: usize,
}

/// A bit that was flipped, and the header around it, to put it back.
#[derive(Debug)]
pub struct Flip {
    place: FramePlace,
    flipped: u64,
    bit: u8,
    header: Vec<u8>,
}

/// The frames of all groups below a data directory, by kind. Frames of an earlier use of a file are among them.
///
/// # Errors
/// A file cannot be read.
pub fn frames(data: &Path) -> Result<BTreeMap<u8, Vec<FramePlace>>> {
    let mut found: BTreeMap<u8, Vec<FramePlace>> = BTreeMap::new();
    for group in std::fs::read_dir(data.join("groups"))? {
        for entry in std::fs::read_dir(group?.path())? {
            let file = entry?.path();
            if file.extension().is_some_and(|ending| ending == "log") {
                walk(&file, &mut found)?;
            }
        }
    }
    Ok(found)
}

fn walk(file: &Path, found: &mut BTreeMap<u8, Vec<FramePlace>>) -> Result<()> {
    let bytes = std::fs::read(file)?;
    let mut at = FILE_HEADER;
    while let Some(header) = bytes.get(at..at + FRAME_HEADER) {
        if !header.starts_with(MAGIC) {
            return Ok(());
        }
        let mut length = FRAME_HEADER;
        for from in LENGTHS_AT {
            let field = header.get(from..from + 4).context("a length")?;
            length += usize::try_from(u32::from_le_bytes(field.try_into()?))?;
        }
        let kind = header.get(KIND_AT).copied().context("a kind")?;
        found.entry(kind).or_default().push(FramePlace {
            file: file.to_owned(),
            at,
            bytes: length,
        });
        at += length.next_multiple_of(8);
    }
    Ok(())
}

impl FramePlace {
    /// Bytes of the frame.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Flips one bit of byte `byte` of the frame.
    ///
    /// # Errors
    /// The file cannot be changed.
    pub fn flip(&self, byte: usize, bit: u8) -> Result<Flip> {
        let file = OpenOptions::new().read(true).write(true).open(&self.file)?;
        let flipped = u64::try_from(self.at + byte)?;
        toggle(&file, flipped, bit)?;
        Ok(Flip {
            place: self.clone(),
            flipped,
            bit,
            header: self.header(&file)?,
        })
    }

    /// The frame's header, and the file's: another use of the file has another salt.
    fn header(&self, file: &File) -> Result<Vec<u8>> {
        let mut header = vec![0; FRAME_HEADER * 2];
        let (of_file, of_frame) = header.split_at_mut(FRAME_HEADER);
        // The salt is at 56 of the file's header.
        file.read_exact_at(of_file, 56)?;
        file.read_exact_at(of_frame, u64::try_from(self.at)?)?;
        Ok(header)
    }
}

impl Flip {
    /// Puts the bit back, unless the place is no longer what it was: the broker has cut it off, or used it anew.
    ///
    /// # Errors
    /// The file cannot be changed.
    pub fn undo(self) -> Result<()> {
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&self.place.file);
        let Ok(file) = opened else {
            return Ok(());
        };
        if self.place.header(&file)? == self.header {
            toggle(&file, self.flipped, self.bit)?;
        }
        Ok(())
    }
}

fn toggle(file: &File, at: u64, bit: u8) -> Result<()> {
    let mut byte = [0];
    file.read_exact_at(&mut byte, at)?;
    let [value] = byte;
    file.write_all_at(&[value ^ (1 << bit)], at)?;
    Ok(file.sync_all()?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn frame(kind: u8, dir: u32, body: u32) -> Vec<u8> {
        let mut frame = vec![7; FRAME_HEADER];
        frame[..4].copy_from_slice(MAGIC);
        frame[KIND_AT] = kind;
        frame[12..16].copy_from_slice(&dir.to_le_bytes());
        frame[16..20].copy_from_slice(&body.to_le_bytes());
        frame.resize(FRAME_HEADER + usize::try_from(dir + body).unwrap(), 9);
        frame.resize(frame.len().next_multiple_of(8), 0);
        frame
    }

    // Proves: frames are found up to the first place without one; a flip is undone, unless the place was used anew.
    #[test]
    fn frames_are_found_and_flipped() {
        let data = tempfile::tempdir().unwrap();
        let group = data.path().join("groups/3");
        std::fs::create_dir_all(&group).unwrap();
        let mut bytes = vec![0; FILE_HEADER];
        bytes.extend(frame(4, 0, 0));
        bytes.extend(frame(2, 5, 20));
        bytes.extend([0; 200]);
        let path = group.join("1.log");
        std::fs::write(&path, &bytes).unwrap();
        std::fs::write(group.join("2.spare"), frame(1, 0, 0)).unwrap();
        let found = frames(data.path()).unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), [&2, &4]);
        let place = &found[&2][0];
        assert_eq!((place.at, place.bytes()), (FILE_HEADER + 56, 81));
        let flip = place.flip(80, 3).unwrap();
        assert_ne!(std::fs::read(&path).unwrap(), bytes);
        flip.undo().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
        let flip = place.flip(0, 0).unwrap();
        bytes[56] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        flip.undo().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
    }
}
