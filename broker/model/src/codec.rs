//! Compression codecs of record batches, always with a bound on what comes out.
//!
//! Owns: codec ids and names, compression, bounded decompression (whole and streamed).
//! Not here: what the bytes mean (`batch`).
//! Spec: docs/formats/record-batch.md

use crate::limits;
use std::fmt;
use std::io::{self, Read, Write};

mod snappy;

/// A codec, as the low three bits of a batch's attributes name it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Codec {
    /// Not compressed.
    #[default]
    None,
    /// RFC 1952, one or several members.
    Gzip,
    /// One raw Snappy block, or blocks in xerial's framing (what snappy-java writes). We write raw.
    Snappy,
    /// LZ4 frames.
    Lz4,
    /// Zstandard frames.
    Zstd,
}

impl Codec {
    /// Every codec, in the order of their ids.
    pub const ALL: [Self; 5] = [Self::None, Self::Gzip, Self::Snappy, Self::Lz4, Self::Zstd];

    /// The codec with Kafka's id `id`; `None` for ids that Kafka has not given out.
    #[must_use]
    pub const fn from_id(id: u8) -> Option<Self> {
        match id {
            0 => Some(Self::None),
            1 => Some(Self::Gzip),
            2 => Some(Self::Snappy),
            3 => Some(Self::Lz4),
            4 => Some(Self::Zstd),
            _ => None,
        }
    }

    /// Kafka's id, 0 to 4.
    #[must_use]
    pub const fn id(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Gzip => 1,
            Self::Snappy => 2,
            Self::Lz4 => 3,
            Self::Zstd => 4,
        }
    }

    /// Kafka's name as in `compression.type` of a producer.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }

    /// The codec called `name` (see [`Codec::name`]).
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|codec| codec.name() == name)
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Bounds on the output of one decompression.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecompressLimits {
    /// Never more than this.
    pub bytes_max: usize,
    /// Never more than this many times the input, unless below `bytes_floor`.
    pub ratio_max: usize,
    /// Allowed whatever the ratio.
    pub bytes_floor: usize,
}

impl DecompressLimits {
    /// What the project uses everywhere ([`limits`]).
    pub const STANDARD: Self = Self {
        bytes_max: limits::DECOMPRESSED_BYTES_MAX,
        ratio_max: limits::DECOMPRESSED_RATIO_MAX,
        bytes_floor: limits::DECOMPRESSED_BYTES_FLOOR,
    };

    /// Most bytes that `input` compressed bytes may become.
    #[must_use]
    pub fn allowed(&self, input: usize) -> usize {
        input
            .saturating_mul(self.ratio_max)
            .max(self.bytes_floor)
            .min(self.bytes_max)
    }
}

impl Default for DecompressLimits {
    fn default() -> Self {
        Self::STANDARD
    }
}

/// Why bytes could not be (de)compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CodecError {
    /// The input is not what its codec calls valid.
    #[error("the {0} data is damaged")]
    Corrupt(Codec),
    /// The output would pass the bound.
    #[error("the {codec} data expands to more than {allowed} bytes")]
    TooLarge {
        /// The codec.
        codec: Codec,
        /// The bound that it met ([`DecompressLimits::allowed`]).
        allowed: usize,
    },
    /// Compression failed, for lack of memory or because the input is larger than the codec can take.
    #[error("the data cannot be compressed with {0}")]
    Compress(Codec),
}

/// Compresses `data`. The output is what every Kafka client can read.
///
/// # Errors
/// [`CodecError::Compress`] if the codec's library refuses.
pub fn compress(codec: Codec, data: &[u8]) -> Result<Vec<u8>, CodecError> {
    let failed = |_| CodecError::Compress(codec);
    match codec {
        Codec::None => Ok(data.to_vec()),
        Codec::Gzip => {
            let mut encoder =
                flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(data).map_err(failed)?;
            encoder.finish().map_err(failed)
        }
        Codec::Snappy => snap::raw::Encoder::new()
            .compress_vec(data)
            .map_err(|_| CodecError::Compress(codec)),
        Codec::Lz4 => {
            // 64 KiB independent blocks: what Kafka's own producers write, and the cheapest to read.
            let info = lz4_flex::frame::FrameInfo::new()
                .block_mode(lz4_flex::frame::BlockMode::Independent)
                .block_size(lz4_flex::frame::BlockSize::Max64KB);
            let mut encoder = lz4_flex::frame::FrameEncoder::with_frame_info(info, Vec::new());
            encoder.write_all(data).map_err(failed)?;
            encoder.finish().map_err(|_| CodecError::Compress(codec))
        }
        Codec::Zstd => zstd::bulk::compress(data, zstd::DEFAULT_COMPRESSION_LEVEL).map_err(failed),
    }
}

/// Decompresses all of `data`, or refuses.
///
/// # Errors
/// [`CodecError::TooLarge`] before more than the allowed bytes are held; [`CodecError::Corrupt`].
pub fn decompress_bounded(
    codec: Codec,
    data: &[u8],
    limits: &DecompressLimits,
) -> Result<Vec<u8>, CodecError> {
    let mut reader = Decompressor::new(codec, data, limits)?;
    let mut out = Vec::new();
    let mut filled = 0;
    loop {
        if filled == out.len() {
            // Grows with what really came out, never by a claim of the input.
            let step = out.len().max(limits::DECOMPRESS_BUFFER_BYTES);
            out.resize(
                out.len()
                    .saturating_add(step)
                    .min(reader.allowed.saturating_add(1)),
                0,
            );
        }
        let Some(free) = out.get_mut(filled..) else {
            break;
        };
        let read = reader.read(free)?;
        if read == 0 {
            break;
        }
        filled += read;
    }
    out.truncate(filled);
    Ok(out)
}

/// A stream of decompressed bytes that ends with an error rather than pass its bound.
pub struct Decompressor<'a> {
    codec: Codec,
    inner: Inner<'a>,
    allowed: usize,
    left: usize,
}

enum Inner<'a> {
    Plain(&'a [u8]),
    Gzip(Box<flate2::bufread::MultiGzDecoder<&'a [u8]>>),
    Snappy(snappy::Reader<'a>),
    Lz4(Box<lz4_flex::frame::FrameDecoder<&'a [u8]>>),
    Zstd(Box<zstd::stream::read::Decoder<'static, &'a [u8]>>),
}

impl<'a> Decompressor<'a> {
    /// A stream over `data`. Memory: one block of the codec (LZ4 at most 8 MiB, Snappy its block, zstd its window, of
    /// which only what was written is resident).
    ///
    /// # Errors
    /// [`CodecError::Corrupt`] if the codec refuses at once.
    pub fn new(
        codec: Codec,
        data: &'a [u8],
        limits: &DecompressLimits,
    ) -> Result<Self, CodecError> {
        let allowed = match codec {
            Codec::None => data.len(),
            _ => limits.allowed(data.len()),
        };
        let inner = match codec {
            Codec::None => Inner::Plain(data),
            Codec::Gzip => Inner::Gzip(Box::new(flate2::bufread::MultiGzDecoder::new(data))),
            Codec::Snappy => Inner::Snappy(snappy::Reader::new(data, allowed)),
            Codec::Lz4 => Inner::Lz4(Box::new(lz4_flex::frame::FrameDecoder::new(data))),
            Codec::Zstd => {
                let decoder = zstd::stream::read::Decoder::with_buffer(data)
                    .map_err(|_| CodecError::Corrupt(codec))?;
                Inner::Zstd(Box::new(decoder))
            }
        };
        Ok(Self {
            codec,
            inner,
            allowed,
            left: allowed,
        })
    }

    /// Reads some bytes into `buffer`; 0 at the end of the data (or if `buffer` is empty).
    ///
    /// # Errors
    /// [`CodecError::TooLarge`] when there is more than allowed; [`CodecError::Corrupt`].
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize, CodecError> {
        let too_large = CodecError::TooLarge {
            codec: self.codec,
            allowed: self.allowed,
        };
        let read = match &mut self.inner {
            Inner::Plain(data) => read_some(data, buffer),
            Inner::Gzip(decoder) => read_some(decoder, buffer),
            Inner::Snappy(reader) => match reader.read(buffer) {
                Ok(read) => Ok(read),
                Err(snappy::Error::Corrupt) => Err(io::ErrorKind::InvalidData.into()),
                Err(snappy::Error::TooLarge) => return Err(too_large),
            },
            Inner::Lz4(decoder) => read_some(decoder, buffer),
            Inner::Zstd(decoder) => read_some(decoder, buffer),
        };
        let read = read.map_err(|_| CodecError::Corrupt(self.codec))?;
        self.left = self.left.checked_sub(read).ok_or(too_large)?;
        Ok(read)
    }
}

fn read_some(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match reader.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests;
