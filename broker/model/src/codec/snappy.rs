//! Snappy as Kafka's producers write it: one raw block, or blocks in the framing of snappy-java ("xerial").
//!
//! Owns: telling the two apart, walking the blocks, bounding each before it is allocated.
//! Not here: the block format (crate `snap`).
//!
//! Xerial framing: 16 bytes header (magic `82 53 4e 41 50 50 59 00`, version int32, oldest compatible version int32),
//! then per block an int32 length and a raw block. Some writers put a further header before later blocks, as when
//! streams are concatenated; a block length never looks like one since the first byte 0x82 makes it negative.
//! Versions are not looked at: writers disagree about their byte order, and there has only been version 1.

use crate::limits::SNAPPY_RATIO_MAX;

const MAGIC: [u8; 8] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0];
const HEADER_BYTES: usize = 16;

pub(super) enum Error {
    Corrupt,
    TooLarge,
}

pub(super) struct Reader<'a> {
    rest: &'a [u8],
    framed: bool,
    block: Vec<u8>,
    taken: usize,
    left: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(data: &'a [u8], allowed: usize) -> Self {
        let framed = data.starts_with(&MAGIC);
        Self {
            rest: data,
            framed,
            block: Vec::new(),
            taken: 0,
            left: allowed,
        }
    }

    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Error> {
        while self.taken == self.block.len() {
            let Some(block) = self.next_block()? else {
                return Ok(0);
            };
            self.decompress(block)?;
        }
        let ready = self.block.get(self.taken..).unwrap_or_default();
        let count = ready.len().min(buffer.len());
        buffer[..count].copy_from_slice(&ready[..count]);
        self.taken += count;
        Ok(count)
    }

    fn next_block(&mut self) -> Result<Option<&'a [u8]>, Error> {
        if !self.framed {
            let all = std::mem::take(&mut self.rest);
            return Ok((!all.is_empty()).then_some(all));
        }
        while self.rest.starts_with(&MAGIC) {
            self.rest = self.rest.get(HEADER_BYTES..).ok_or(Error::Corrupt)?;
        }
        if self.rest.is_empty() {
            return Ok(None);
        }
        let (length, rest) = self.rest.split_first_chunk::<4>().ok_or(Error::Corrupt)?;
        let length = usize::try_from(i32::from_be_bytes(*length)).map_err(|_| Error::Corrupt)?;
        let (block, rest) = rest.split_at_checked(length).ok_or(Error::Corrupt)?;
        self.rest = rest;
        Ok(Some(block))
    }

    fn decompress(&mut self, block: &[u8]) -> Result<(), Error> {
        let claimed = snap::raw::decompress_len(block).map_err(|_| Error::Corrupt)?;
        if claimed > block.len().saturating_mul(SNAPPY_RATIO_MAX) {
            return Err(Error::Corrupt);
        }
        self.left = self.left.checked_sub(claimed).ok_or(Error::TooLarge)?;
        self.block.clear();
        self.block.resize(claimed, 0);
        let made = snap::raw::Decoder::new()
            .decompress(block, &mut self.block)
            .map_err(|_| Error::Corrupt)?;
        self.block.truncate(made);
        self.taken = 0;
        Ok(())
    }
}
