//! Batches that kafka-python 3.0.12 built, with the same records under each codec (its Snappy is framed as
//! snappy-java frames it). `testdata/README.md` says how.

use super::*;

fn golden(codec: Codec) -> Bytes {
    Bytes::from_static(match codec {
        Codec::None => include_bytes!("../testdata/kafka-python-3-none.bin"),
        Codec::Gzip => include_bytes!("../testdata/kafka-python-3-gzip.bin"),
        Codec::Snappy => include_bytes!("../testdata/kafka-python-3-snappy.bin"),
        Codec::Lz4 => include_bytes!("../testdata/kafka-python-3-lz4.bin"),
        Codec::Zstd => include_bytes!("../testdata/kafka-python-3-zstd.bin"),
    })
}

fn golden_records() -> Vec<Plain> {
    let bytes = |text: &str| Some(text.as_bytes().to_vec());
    vec![
        (1_700_000_000_000, bytes("key-1"), bytes("value-1"), vec![]),
        (
            1_700_000_000_005,
            None,
            Some(vec![b'v'; 300]),
            vec![
                (b"trace".to_vec(), bytes("abc")),
                (b"trace".to_vec(), None),
                (b"empty".to_vec(), bytes("")),
            ],
        ),
        (
            1_699_999_999_990,
            bytes(""),
            None,
            vec![("k\u{e9}y".into(), Some(vec![0xff, 0xfe]))],
        ),
    ]
}

/// Proves that what another implementation wrote is valid and says the same, for every codec.
#[test]
fn batches_of_another_implementation_are_read() {
    for codec in Codec::ALL {
        let batch = produced(&golden(codec)).unwrap();
        let header = batch.header();
        assert_eq!(header.codec, codec);
        assert_eq!(
            (
                header.producer_id.get(),
                header.producer_epoch.get(),
                header.base_sequence.get()
            ),
            (4711, 3, 42)
        );
        assert_eq!(read_back(&batch), golden_records(), "{codec}");
    }
}

/// Proves that the builder writes the same bytes as another implementation, where no codec has a choice.
#[test]
fn the_builder_writes_the_same_bytes() {
    let golden = golden(Codec::None);
    let mut builder = BatchBuilder::new(Codec::None)
        .producer(
            ProducerId::new(4711),
            ProducerEpoch::new(3),
            Sequence::new(42),
        )
        .base_offset(Offset::ZERO, LeaderEpoch::new(0));
    golden_records()
        .iter()
        .for_each(|record| append(&mut builder, record));
    assert_eq!(builder.build().unwrap(), golden);
}

/// Proves that every flipped bit of every golden batch is refused.
#[test]
fn flipped_bits_of_golden_batches_are_refused() {
    for codec in Codec::ALL {
        let bytes = golden(codec);
        for at in field::MAGIC..bytes.len() {
            let mut flipped = bytes.to_vec();
            flipped[at] ^= 0x10;
            assert!(
                produced(&Bytes::from(flipped)).is_err(),
                "{codec} byte {at}"
            );
        }
    }
}
