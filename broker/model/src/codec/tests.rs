#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use proptest::prelude::*;

fn samples() -> Vec<Vec<u8>> {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let noise: Vec<u8> = (0..200_000)
        .map(|_| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed.to_be_bytes()[3]
        })
        .collect();
    let text: Vec<u8> = (0..9_000)
        .flat_map(|n| {
            format!("081109 20{n:04} INFO dfs.DataNode: block {n} received\n").into_bytes()
        })
        .collect();
    vec![
        vec![],
        b"x".to_vec(),
        b"hello hello hello".to_vec(),
        noise,
        text,
        vec![7; 300_000],
    ]
}

fn xerial(blocks: &[&[u8]]) -> Vec<u8> {
    let mut out = vec![
        0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0, 0, 0, 0, 1, 0, 0, 0, 1,
    ];
    for block in blocks {
        let compressed = compress(Codec::Snappy, block).unwrap();
        out.extend_from_slice(&i32::try_from(compressed.len()).unwrap().to_be_bytes());
        out.extend_from_slice(&compressed);
    }
    out
}

fn decompress(codec: Codec, data: &[u8]) -> Result<Vec<u8>, CodecError> {
    decompress_bounded(codec, data, &DecompressLimits::STANDARD)
}

/// Proves that every codec gives back what it took, whole and through buffers of odd sizes.
#[test]
fn every_codec_gives_back_what_it_took() {
    for codec in Codec::ALL {
        for sample in samples() {
            let compressed = compress(codec, &sample).unwrap();
            assert_eq!(decompress(codec, &compressed).unwrap(), sample, "{codec}");

            let mut reader =
                Decompressor::new(codec, &compressed, &DecompressLimits::STANDARD).unwrap();
            let (mut out, mut buffer) = (Vec::new(), [0; 977]);
            loop {
                let read = reader.read(&mut buffer).unwrap();
                if read == 0 {
                    break;
                }
                out.extend_from_slice(&buffer[..read]);
            }
            assert_eq!(out, sample, "{codec}");
        }
    }
}

/// Proves that ids and names are Kafka's and lead back to their codec.
#[test]
fn ids_and_names_are_kafkas() {
    for (id, name) in ["none", "gzip", "snappy", "lz4", "zstd"]
        .into_iter()
        .enumerate()
    {
        let codec = Codec::from_id(u8::try_from(id).unwrap()).unwrap();
        assert_eq!((usize::from(codec.id()), codec.name()), (id, name));
        assert_eq!(Codec::from_name(name), Some(codec));
    }
    assert_eq!(Codec::from_id(5), None);
    assert_eq!(Codec::from_name("brotli"), None);
}

/// Proves that cut data is never taken for other data: an error, or a beginning of the truth (LZ4 and framed Snappy
/// have block borders where nothing tells that more was to come; the batch's CRC and record count do).
#[test]
fn cut_data_is_refused_or_a_beginning() {
    let sample = &samples()[4][..20_000];
    for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
        let compressed = compress(codec, sample).unwrap();
        for cut in 0..compressed.len() {
            match decompress(codec, &compressed[..cut]) {
                Err(CodecError::Corrupt(_)) => {}
                Err(other) => panic!("{codec} cut at {cut}: {other}"),
                Ok(out) => {
                    assert!(sample.starts_with(&out), "{codec} cut at {cut}");
                    let no_end_seen = matches!(codec, Codec::Lz4) || out.is_empty();
                    assert!(
                        no_end_seen,
                        "{codec} cut at {cut} passed with {} bytes",
                        out.len()
                    );
                }
            }
        }
    }
}

/// Proves that expanding data ends at the bound, with no more than the bound ever handed out.
#[test]
fn bombs_end_at_the_bound() {
    let limits = DecompressLimits {
        bytes_max: 1 << 20,
        ratio_max: 50,
        bytes_floor: 10_000,
    };
    let zeros = vec![0; 4 << 20];
    for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
        let compressed = compress(codec, &zeros).unwrap();
        let allowed = limits.allowed(compressed.len());
        assert!(allowed <= 1 << 20);
        let refused = decompress_bounded(codec, &compressed, &limits).unwrap_err();
        assert_eq!(refused, CodecError::TooLarge { codec, allowed });

        let mut reader = Decompressor::new(codec, &compressed, &limits).unwrap();
        let (mut handed_out, mut buffer) = (0, vec![0; 8192]);
        let error = loop {
            match reader.read(&mut buffer) {
                Ok(read) => handed_out += read,
                Err(error) => break error,
            }
        };
        assert_eq!(error, CodecError::TooLarge { codec, allowed });
        assert!(handed_out <= allowed, "{codec}: {handed_out} of {allowed}");
    }
}

/// Proves the arithmetic of the bound: the ratio above the floor, never over the absolute maximum.
#[test]
fn the_bound_is_ratio_floor_and_maximum() {
    let limits = DecompressLimits {
        bytes_max: 1000,
        ratio_max: 10,
        bytes_floor: 50,
    };
    assert_eq!(
        [0, 1, 5, 6, 99, 100, 101, usize::MAX].map(|n| limits.allowed(n)),
        [50, 50, 50, 60, 990, 1000, 1000, 1000]
    );
}

/// Proves that snappy-java's framing is read: one block, several, empty ones, and streams put behind one another with
/// their headers, whatever the version fields say.
#[test]
fn xerial_framing_is_read() {
    assert_eq!(
        decompress(Codec::Snappy, &xerial(&[b"one"])).unwrap(),
        b"one"
    );
    assert_eq!(
        decompress(Codec::Snappy, &xerial(&[b"one", b"", b"two"])).unwrap(),
        b"onetwo"
    );
    assert_eq!(decompress(Codec::Snappy, &xerial(&[])).unwrap(), b"");
    let joined = [xerial(&[b"one"]), xerial(&[b"two", b"three"])].concat();
    assert_eq!(decompress(Codec::Snappy, &joined).unwrap(), b"onetwothree");
    let mut other_version = xerial(&[b"one"]);
    other_version[8..16].copy_from_slice(&[1, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(decompress(Codec::Snappy, &other_version).unwrap(), b"one");
}

/// Proves that hostile Snappy lengths are refused before anything of their size is allocated.
#[test]
fn hostile_snappy_lengths_are_refused() {
    let corrupt = Err(CodecError::Corrupt(Codec::Snappy));
    // A raw block that says it holds 4 GiB, and one that says 60 MiB, in a few bytes.
    assert_eq!(
        decompress(Codec::Snappy, &[0xff, 0xff, 0xff, 0xff, 0x0f, 0]),
        corrupt
    );
    assert_eq!(
        decompress(Codec::Snappy, &[0x80, 0x80, 0x80, 0x1e, 0, 0]),
        corrupt
    );
    for length in [i32::MAX, -1, i32::MIN, 1 << 20] {
        let mut framed = xerial(&[]);
        framed.extend_from_slice(&length.to_be_bytes());
        framed.extend_from_slice(b"abc");
        assert_eq!(decompress(Codec::Snappy, &framed), corrupt, "{length}");
    }
    assert_eq!(decompress(Codec::Snappy, &xerial(&[])[..12]), corrupt);
}

/// Proves that a gzip file of several members is read to its end, as Java reads it.
#[test]
fn gzip_members_follow_one_another() {
    let joined = [
        compress(Codec::Gzip, b"one").unwrap(),
        compress(Codec::Gzip, b"two").unwrap(),
    ]
    .concat();
    assert_eq!(decompress(Codec::Gzip, &joined).unwrap(), b"onetwo");
}

/// Proves that LZ4 frames with linked blocks and checksums are read.
#[test]
fn linked_lz4_blocks_are_read() {
    let sample = samples().swap_remove(4);
    let info = lz4_flex::frame::FrameInfo::new()
        .block_mode(lz4_flex::frame::BlockMode::Linked)
        .block_checksums(true)
        .content_checksum(true);
    let mut encoder = lz4_flex::frame::FrameEncoder::with_frame_info(info, Vec::new());
    encoder.write_all(&sample).unwrap();
    assert_eq!(
        decompress(Codec::Lz4, &encoder.finish().unwrap()).unwrap(),
        sample
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Proves that any bytes in give any bytes back, for every codec.
    #[test]
    fn any_bytes_come_back(data in proptest::collection::vec(any::<u8>(), 0..5000)) {
        for codec in Codec::ALL {
            let compressed = compress(codec, &data).unwrap();
            prop_assert_eq!(&decompress(codec, &compressed).unwrap(), &data);
        }
    }

    /// Proves that garbage never panics and never passes the bound.
    #[test]
    fn garbage_is_bounded(data in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let limits = DecompressLimits { bytes_max: 100_000, ratio_max: 20, bytes_floor: 1000 };
        for codec in Codec::ALL {
            if let Ok(out) = decompress_bounded(codec, &data, &limits) {
                prop_assert!(out.len() <= limits.allowed(data.len()).max(data.len()));
            }
        }
    }

    /// Proves that a flipped bit never panics and never passes the bound.
    #[test]
    fn flipped_bits_are_bounded(at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let sample = &samples()[4][..5000];
        let limits = DecompressLimits { bytes_max: 100_000, ratio_max: 20, bytes_floor: 10_000 };
        for codec in Codec::ALL {
            let mut data = compress(codec, sample).unwrap();
            let index = at.index(data.len());
            data[index] ^= 1 << bit;
            if let Ok(out) = decompress_bounded(codec, &data, &limits) {
                prop_assert!(out.len() <= limits.allowed(data.len()).max(data.len()));
            }
        }
    }
}
