//! A group manifest, as the page describes it.
//!
//! Owns: the reader, and the rules of the page that one manifest alone can break.
//! Not here: what a chain of manifests must be like (`judge`).
//! Spec: docs/formats/group-manifest.md

use super::read::{Cursor, crc};

/// The state of a placement group, as it was published.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// The cluster's id.
    pub cluster: [u8; 16],
    /// The placement group.
    pub group: u32,
    /// Term and index of the last entry in it.
    pub term: u64,
    /// See `term`.
    pub index: u64,
    /// Partitions, by topic id and number.
    pub partitions: Vec<PartitionState>,
}

/// A partition in a manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionState {
    /// The topic's id.
    pub topic: [u8; 16],
    /// Its name.
    pub name: String,
    /// The partition's number.
    pub partition: i32,
    /// The first offset that may be read.
    pub log_start: i64,
    /// The first offset that no segment has.
    pub tiered_until: i64,
    /// The next offset at the cut.
    pub next_offset: i64,
    /// Leader epochs with their first offsets.
    pub epochs: Vec<(i32, i64)>,
    /// Where the records are.
    pub segments: Vec<Segment>,
}

/// A run of records in an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Segment {
    /// The group in the object's name.
    pub group: u32,
    /// The term in the object's name.
    pub term: u64,
    /// The id in the object's name.
    pub object: [u8; 16],
    /// Where the batches are in the object.
    pub position: usize,
    /// How many bytes.
    pub length: usize,
    /// Where its index block is.
    pub index_position: usize,
    /// How many bytes.
    pub index_length: usize,
    /// First offset.
    pub base: i64,
    /// Last offset, inclusive.
    pub last: i64,
    /// Records in it.
    pub records: u64,
    /// CRC-32C of the batches.
    pub crc: u32,
    /// Leader epochs with their first offsets.
    pub epochs: Vec<(i32, i64)>,
}

impl Manifest {
    /// Reads exactly these bytes.
    ///
    /// # Errors
    /// What breaks the page's rules, in words.
    pub fn read(bytes: &[u8]) -> Result<Self, String> {
        let mut input = Cursor::new(bytes);
        if input.take(8)? != b"TLGROUPM" {
            return Err("no manifest".to_owned());
        }
        let version = input.u16()?;
        if !(1..=2).contains(&version) || input.u16()? != 3 {
            return Err(format!("version {version}, or not three sections"));
        }
        let mut identity = Cursor::new(section(&mut input, 1)?);
        let mut partitions = Cursor::new(section(&mut input, 2)?);
        section(&mut input, 3)?;
        input.end()?;
        let mut manifest = Self {
            cluster: identity.array()?,
            group: identity.u32()?,
            term: identity.u64()?,
            index: identity.u64()?,
            partitions: Vec::new(),
        };
        for _ in 0..partitions.u32()? {
            let one = partition(&mut partitions, version)?;
            manifest.partitions.push(one);
        }
        partitions.end()?;
        Ok(manifest)
    }
}

fn section<'a>(input: &mut Cursor<'a>, kind: u32) -> Result<&'a [u8], String> {
    let found = input.u32()?;
    let length = input.length()?;
    let sum = input.u32()?;
    let body = input.take(length)?;
    if found != kind || crc(body) != sum {
        return Err(format!("section {kind} is damaged or another ({found})"));
    }
    Ok(body)
}

fn partition(input: &mut Cursor<'_>, version: u16) -> Result<PartitionState, String> {
    let (topic, number) = (input.array()?, input.i32()?);
    let length = input.u16()?;
    let name = String::from_utf8_lossy(input.take(usize::from(length))?).into_owned();
    let mut state = PartitionState {
        topic,
        name,
        partition: number,
        log_start: input.i64()?,
        tiered_until: input.i64()?,
        next_offset: input.i64()?,
        ..PartitionState::default()
    };
    if version > 1 {
        input.i64()?;
    }
    state.epochs = epochs(input)?;
    for _ in 0..input.u32()? {
        state.segments.push(segment(input)?);
    }
    for _ in 0..input.u32()? {
        input.take(8 + 2 + 8)?;
        let batches = input.u8()?;
        input.take(usize::from(batches) * (4 + 4 + 8 + 8))?;
    }
    Ok(state)
}

fn segment(input: &mut Cursor<'_>) -> Result<Segment, String> {
    let mut segment = Segment {
        group: input.u32()?,
        term: input.u64()?,
        object: input.array()?,
        position: input.length()?,
        length: input.length()?,
        index_position: input.length()?,
        ..Segment::default()
    };
    segment.index_length = usize::try_from(input.u32()?).map_err(|error| error.to_string())?;
    segment.base = input.i64()?;
    segment.last = input.i64()?;
    segment.records = input.u64()?;
    // Timestamps and stamps.
    input.take(4 * 8)?;
    segment.crc = input.u32()?;
    segment.epochs = epochs(input)?;
    Ok(segment)
}

fn epochs(input: &mut Cursor<'_>) -> Result<Vec<(i32, i64)>, String> {
    let count = input.u32()?;
    (0..count)
        .map(|_| Ok((input.i32()?, input.i64()?)))
        .collect()
}
