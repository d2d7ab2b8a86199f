#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::header::field;
use super::*;
use crate::codec::{Codec, compress};
use crate::limits::{BATCH_BYTES_MAX, BATCH_BYTES_MAX_DEFAULT, RECORD_HEADERS_MAX};
use crate::{ProducerEpoch, ProducerId, Sequence};
use proptest::prelude::*;

type Headers = Vec<(Vec<u8>, Option<Vec<u8>>)>;
type Plain = (i64, Option<Vec<u8>>, Option<Vec<u8>>, Headers);

fn append(builder: &mut BatchBuilder, record: &Plain) {
    let headers: Vec<HeaderRef<'_>> = record
        .3
        .iter()
        .map(|(key, value)| (key.as_slice(), value.as_deref()))
        .collect();
    builder
        .append(
            TimestampMs::new(record.0),
            record.1.as_deref(),
            record.2.as_deref(),
            &headers,
        )
        .unwrap();
}

fn build(codec: Codec, records: &[Plain]) -> Bytes {
    let mut builder = BatchBuilder::new(codec);
    records
        .iter()
        .for_each(|record| append(&mut builder, record));
    builder.build().unwrap()
}

fn some_records() -> Vec<Plain> {
    vec![
        (
            1_700_000_000_000,
            Some(b"key".to_vec()),
            Some(b"value".to_vec()),
            vec![],
        ),
        (
            1_699_999_999_000,
            None,
            Some(vec![b'v'; 300]),
            vec![(b"h".to_vec(), Some(b"1".to_vec()))],
        ),
        (
            1_700_000_000_500,
            Some(vec![]),
            None,
            vec![
                (b"h".to_vec(), None),
                (b"h".to_vec(), Some(vec![0xff, 0xfe])),
                (vec![], Some(vec![])),
            ],
        ),
    ]
}

fn read_back(batch: &RecordBatch) -> Vec<Plain> {
    batch
        .records()
        .unwrap()
        .map(|record| {
            let record = record.unwrap();
            let timestamp = record.timestamp(batch.header()).get();
            let headers = record
                .headers
                .into_iter()
                .map(|(key, value)| (key.to_vec(), value.map(|v| v.to_vec())));
            (
                timestamp,
                record.key.map(|k| k.to_vec()),
                record.value.map(|v| v.to_vec()),
                headers.collect(),
            )
        })
        .collect()
}

/// `bytes` with `change` made to it and the length and CRC put right: damage that only looking at the content shows.
fn forged(bytes: &Bytes, change: impl FnOnce(&mut Vec<u8>)) -> Bytes {
    let mut bytes = bytes.to_vec();
    change(&mut bytes);
    let length = i32::try_from(bytes.len() - LENGTH_PREFIX_BYTES).unwrap();
    bytes[field::BATCH_LENGTH..field::LEADER_EPOCH].copy_from_slice(&length.to_be_bytes());
    let crc = crc32c::crc32c(&bytes[field::ATTRIBUTES..]);
    bytes[field::CRC..field::ATTRIBUTES].copy_from_slice(&crc.to_be_bytes());
    Bytes::from(bytes)
}

fn produced(bytes: &Bytes) -> Result<RecordBatch, BatchError> {
    RecordBatch::validate_produced(bytes.clone(), BATCH_BYTES_MAX_DEFAULT)
}

/// A batch around hand-made records, `count` of them.
fn around(codec: Codec, count: i32, records: &[u8]) -> Bytes {
    let payload = compress(codec, records).unwrap();
    forged(&build(Codec::None, &some_records()), |bytes| {
        bytes.truncate(HEADER_BYTES);
        bytes[field::ATTRIBUTES + 1] = codec.id();
        bytes[field::LAST_OFFSET_DELTA..field::BASE_TIMESTAMP]
            .copy_from_slice(&(count - 1).to_be_bytes());
        bytes[field::RECORD_COUNT..HEADER_BYTES].copy_from_slice(&count.to_be_bytes());
        bytes.extend_from_slice(&payload);
    })
}

fn varints(values: &[i64]) -> Vec<u8> {
    let mut out = Vec::new();
    values
        .iter()
        .for_each(|value| varint::encode(&mut out, *value));
    out
}

/// Proves that what is built is a valid produced batch and reads back as it was, for every codec: nulls, empties,
/// repeated header keys and their order, timestamps that go back.
#[test]
fn what_is_built_reads_back() {
    for codec in Codec::ALL {
        let bytes = build(codec, &some_records());
        let batch = produced(&bytes).unwrap();
        assert_eq!(batch.bytes(), &bytes, "{codec}: not copied");
        assert_eq!(read_back(&batch), some_records(), "{codec}");
        let header = batch.header();
        assert_eq!(
            (header.codec, header.record_count, header.last_offset_delta),
            (codec, 3, 2)
        );
        assert_eq!(header.max_timestamp, TimestampMs::new(1_700_000_000_500));
        assert_eq!(header.encode(), bytes[..HEADER_BYTES]);
        assert!(!header.has_producer());
    }
}

/// Proves the identity of idempotent producers and the transactional bit, and that they need one another.
#[test]
fn producer_identity_is_kept_and_checked() {
    let builder = || {
        let mut builder = BatchBuilder::new(Codec::None);
        append(&mut builder, &some_records()[0]);
        builder
    };
    let identified = |id, epoch, sequence| {
        builder()
            .producer(
                ProducerId::new(id),
                ProducerEpoch::new(epoch),
                Sequence::new(sequence),
            )
            .transactional()
    };
    let batch = produced(&identified(77, 3, 1000).build().unwrap()).unwrap();
    let header = batch.header();
    assert_eq!(
        (
            header.producer_id.get(),
            header.producer_epoch.get(),
            header.base_sequence.get()
        ),
        (77, 3, 1000)
    );
    assert!(header.attributes.is_transactional() && header.has_producer());
    for wrong in [
        identified(77, 3, -1),
        identified(77, -1, 0),
        builder().transactional(),
    ] {
        assert!(matches!(
            produced(&wrong.build().unwrap()),
            Err(BatchError::InvalidRecord(_))
        ));
    }
}

/// Proves that the prefix patch changes offset and leader epoch and nothing else, and leaves the CRC right.
#[test]
fn the_prefix_patch_keeps_the_crc() {
    let bytes = build(Codec::Lz4, &some_records());
    let batch = produced(&bytes).unwrap();
    let (base, epoch) = (Offset::new(0x0102_0304_0506), LeaderEpoch::new(9));
    let patched = batch.with_offset_and_epoch(base, epoch);
    let reread = RecordBatch::parse_checked(patched.bytes().clone()).unwrap();
    assert_eq!(reread, patched);
    assert_eq!(
        (reread.header().base_offset, reread.header().leader_epoch),
        (base, epoch)
    );
    assert_eq!(reread.header().last_offset(), base.plus(2));
    assert_eq!(reread.header().next_offset(), base.plus(3));
    assert_eq!(
        [batch.prefix(base, epoch).as_slice(), &batch.body()].concat(),
        *patched.bytes()
    );
    assert_eq!(read_back(&reread), some_records());
    assert_eq!(
        reread
            .records()
            .unwrap()
            .nth(1)
            .unwrap()
            .unwrap()
            .offset(reread.header()),
        base.plus(1)
    );
}

/// Proves that every cut of a batch is refused, as a whole and at the end of several.
#[test]
fn every_cut_is_refused() {
    for codec in Codec::ALL {
        let bytes = build(codec, &some_records());
        let two = Bytes::from([bytes.as_ref(), &bytes].concat());
        assert_eq!(split_batches(two.clone()).map(Result::unwrap).count(), 2);
        for cut in 0..bytes.len() {
            assert!(
                RecordBatch::parse(bytes.slice(..cut)).is_err(),
                "{codec} cut at {cut}"
            );
            assert!(
                produced(&bytes.slice(..cut)).is_err(),
                "{codec} cut at {cut}"
            );
            let parts: Vec<_> = split_batches(two.slice(..bytes.len() + cut)).collect();
            assert!(parts[0].is_ok());
            match cut {
                0 => assert_eq!(parts.len(), 1),
                _ => assert!(
                    parts.len() == 2 && matches!(parts[1], Err(BatchError::Incomplete { .. })),
                    "{parts:?}"
                ),
            }
        }
        let longer = Bytes::from([bytes.as_ref(), b"x"].concat());
        assert_eq!(
            RecordBatch::parse(longer),
            Err(BatchError::Corrupt("bytes follow its end"))
        );
    }
}

/// Proves that every flipped bit is found, except in the prefix that brokers rewrite (whose length is checked).
#[test]
fn every_flipped_bit_is_refused() {
    let bytes = build(Codec::None, &some_records());
    for at in field::BATCH_LENGTH..bytes.len() {
        if (field::LEADER_EPOCH..field::MAGIC).contains(&at) {
            continue;
        }
        for bit in 0..8 {
            let mut flipped = bytes.to_vec();
            flipped[at] ^= 1 << bit;
            let flipped = Bytes::from(flipped);
            assert!(
                RecordBatch::parse_checked(flipped.clone()).is_err(),
                "byte {at} bit {bit}"
            );
            assert!(produced(&flipped).is_err(), "byte {at} bit {bit}");
        }
    }
}

/// Proves which error each kind of bad batch gets.
#[test]
fn each_fault_has_its_error() {
    let bytes = build(Codec::Gzip, &some_records());
    let put = |at: usize, value: &'static [u8]| {
        move |bytes: &mut Vec<u8>| bytes[at..at + value.len()].copy_from_slice(value)
    };
    let error = |change: &dyn Fn(&mut Vec<u8>)| produced(&forged(&bytes, change)).unwrap_err();
    assert!(matches!(
        error(&put(field::MAGIC, &[1])),
        BatchError::InvalidRecord(_)
    ));
    assert!(matches!(
        error(&put(field::MAGIC, &[3])),
        BatchError::Corrupt(_)
    ));
    assert_eq!(
        error(&put(field::ATTRIBUTES + 1, &[6])),
        BatchError::UnknownCodec(6)
    );
    assert!(
        matches!(
            error(&put(field::ATTRIBUTES + 1, &[0b10_0001])),
            BatchError::InvalidRecord(_)
        ),
        "control"
    );
    assert!(matches!(
        error(&put(field::ATTRIBUTES + 1, &[0b1001])),
        BatchError::InvalidTimestamp(_)
    ));
    for count in [
        [0, 0, 0, 0],
        [0, 0, 0, 2],
        [0, 0, 0, 4],
        [0x7f, 0xff, 0xff, 0xff],
        [0xff; 4],
    ] {
        let change = move |bytes: &mut Vec<u8>| {
            bytes[field::RECORD_COUNT..HEADER_BYTES].copy_from_slice(&count)
        };
        assert!(
            matches!(error(&change), BatchError::InvalidRecord(_)),
            "count {count:?}"
        );
    }
    for delta in [
        [0, 0, 0, 0],
        [0, 0, 0, 3],
        [0x7f, 0xff, 0xff, 0xff],
        [0xff; 4],
    ] {
        let change = move |bytes: &mut Vec<u8>| {
            bytes[field::LAST_OFFSET_DELTA..field::BASE_TIMESTAMP].copy_from_slice(&delta)
        };
        assert!(
            matches!(error(&change), BatchError::InvalidRecord(_)),
            "last offset delta {delta:?}"
        );
    }
    let garbage = |bytes: &mut Vec<u8>| {
        bytes
            .iter_mut()
            .skip(HEADER_BYTES)
            .for_each(|byte| *byte = !*byte)
    };
    assert!(
        matches!(error(&garbage), BatchError::InvalidRecord(_)),
        "compressed part is garbage"
    );

    let size = bytes.len();
    let too_large = RecordBatch::validate_produced(bytes.clone(), size - 1);
    assert_eq!(
        too_large,
        Err(BatchError::TooLarge {
            bytes: size,
            bytes_max: size - 1
        })
    );
    assert!(RecordBatch::validate_produced(bytes.clone(), size).is_ok());
}

/// Proves that lengths that are negative, short of a header or huge are refused from the header alone.
#[test]
fn hostile_lengths_are_refused() {
    let bytes = build(Codec::None, &some_records());
    for length in [
        i32::MIN,
        -1,
        0,
        48,
        i32::MAX,
        i32::try_from(BATCH_BYTES_MAX).unwrap(),
    ] {
        let mut hostile = bytes.to_vec();
        hostile[field::BATCH_LENGTH..field::LEADER_EPOCH].copy_from_slice(&length.to_be_bytes());
        let error = split_batches(Bytes::from(hostile))
            .next()
            .unwrap()
            .unwrap_err();
        assert!(
            matches!(error, BatchError::Corrupt(_) | BatchError::TooLarge { .. }),
            "{length}: {error}"
        );
    }
}

/// Proves that faults inside records are found, compressed or not: lengths that lie, numbers that are not, gaps in
/// the numbering, too few and too many bytes, header counts without end.
#[test]
fn faults_inside_records_are_refused() {
    let good = varints(&[6, 0, 0, 0, -1, -1, 0]);
    assert_eq!(good.len(), 7);
    let record = |fields: &[i64]| {
        let body = varints(fields);
        [varints(&[i64::try_from(body.len()).unwrap()]), body].concat()
    };
    let second = record(&[0, 0, 1, -1, -1, 0]);
    let cases: Vec<(&str, i32, Vec<u8>)> = vec![
        (
            "too few",
            2,
            [good.clone(), b"\0\0\0\0\0\0\0".to_vec()].concat(),
        ),
        ("too many", 1, [good.clone(), second.clone()].concat()),
        (
            "a gap",
            2,
            [good.clone(), record(&[0, 0, 2, -1, -1, 0])].concat(),
        ),
        (
            "twice the same number",
            2,
            [good.clone(), good.clone()].concat(),
        ),
        ("starts at one", 1, second),
        ("negative length", 1, varints(&[-7, 0, 0, 0, -1, -1, 0])),
        ("length too short", 1, varints(&[5, 0, 0, 0, -1, -1, 0])),
        ("length too long", 1, varints(&[7, 0, 0, 0, -1, -1, 0])),
        ("key length -2", 1, record(&[0, 0, 0, -2, -1, 0])),
        ("key past the end", 1, record(&[0, 0, 0, 1 << 30, -1, 0])),
        (
            "value length past int32",
            1,
            record(&[0, 0, 0, -1, 1 << 40, 0]),
        ),
        ("negative header count", 1, record(&[0, 0, 0, -1, -1, -1])),
        (
            "header count without headers",
            1,
            record(&[0, 0, 0, -1, -1, 1000]),
        ),
        (
            "header count over the cap",
            1,
            record(&[
                0,
                0,
                0,
                -1,
                -1,
                i64::try_from(RECORD_HEADERS_MAX).unwrap() + 1,
            ]),
        ),
        ("null header key", 1, record(&[0, 0, 0, -1, -1, 1, -1, -1])),
        ("varint without end", 1, vec![0xff; 12]),
    ];
    for codec in Codec::ALL {
        produced(&around(codec, 1, &good)).unwrap();
        for (name, count, records) in &cases {
            let bytes = around(codec, *count, records);
            let refused = produced(&bytes);
            assert!(
                matches!(refused, Err(BatchError::InvalidRecord(_))),
                "{codec} {name}: {refused:?}"
            );
            // Reading does not panic, and ends.
            let batch = RecordBatch::parse_checked(bytes);
            let _ = batch.map(|batch| batch.records().map(|records| records.count()));
        }
    }
}

/// Proves that a batch that expands without end is refused with bounded work, and a full batch of equal records is not.
#[test]
fn bombs_are_refused() {
    let zeros = vec![0; 70 << 20];
    let body = varints(&[0, 0, 0, -1, i64::try_from(zeros.len()).unwrap()]);
    let length = i64::try_from(body.len() + zeros.len() + 1).unwrap();
    let records = [varints(&[length]), body, zeros, vec![0]].concat();
    for codec in [Codec::Gzip, Codec::Lz4, Codec::Zstd] {
        let refused = RecordBatch::validate_produced(around(codec, 1, &records), BATCH_BYTES_MAX);
        assert!(
            matches!(refused, Err(BatchError::TooLarge { .. })),
            "{codec}: {refused:?}"
        );
    }
    let mut builder = BatchBuilder::new(Codec::Zstd);
    while builder.bytes() < 1 << 20 {
        builder
            .append(TimestampMs::new(1), Some(b"k"), Some(&[0; 1000]), &[])
            .unwrap();
    }
    assert!(produced(&builder.build().unwrap()).is_ok());
}

/// Proves that a producer's wrong maximum timestamp is put right with the CRC, and nothing else changes.
#[test]
fn a_wrong_maximum_timestamp_is_put_right() {
    for codec in Codec::ALL {
        let bytes = build(codec, &some_records());
        let wrong = forged(&bytes, |bytes| {
            bytes[field::MAX_TIMESTAMP..field::PRODUCER_ID].fill(0xff)
        });
        let batch = produced(&wrong).unwrap();
        assert_eq!(batch.bytes(), &bytes);
        assert_eq!(RecordBatch::parse_checked(bytes).unwrap(), batch);
    }
}

/// Proves that batches with the broker's time give that time to every record, and that what compaction elsewhere left
/// (gaps, no records at all) can be read but not produced.
#[test]
fn other_brokers_batches_can_be_read() {
    let bytes = build(Codec::None, &some_records());
    let stamped = forged(&bytes, |bytes| {
        bytes[field::ATTRIBUTES + 1] |= 0b1000;
        bytes[field::MAX_TIMESTAMP..field::PRODUCER_ID].copy_from_slice(&42i64.to_be_bytes());
    });
    let batch = RecordBatch::parse_checked(stamped).unwrap();
    assert_eq!(
        batch.header().attributes.timestamp_type(),
        TimestampType::LogAppend
    );
    assert!(read_back(&batch).iter().all(|record| record.0 == 42));
    assert_eq!(
        batch.check_records().unwrap().timestamp_max,
        TimestampMs::new(42)
    );

    let sparse = forged(
        &around(Codec::None, 2, &{
            let gap = varints(&[6, 0, 0, 5, -1, -1, 0]);
            [varints(&[6, 0, 0, 1, -1, -1, 0]), gap].concat()
        }),
        |bytes| bytes[field::LAST_OFFSET_DELTA + 3] = 9,
    );
    let batch = RecordBatch::parse_checked(sparse.clone()).unwrap();
    batch.check_records().unwrap();
    assert_eq!(
        batch
            .records()
            .unwrap()
            .map(|record| record.unwrap().offset_delta)
            .collect::<Vec<_>>(),
        [1, 5]
    );
    assert!(produced(&sparse).is_err());

    let empty = around(Codec::None, 0, b"");
    let empty = forged(&empty, |bytes| {
        bytes[field::LAST_OFFSET_DELTA..field::BASE_TIMESTAMP].fill(0)
    });
    let batch = RecordBatch::parse_checked(empty).unwrap();
    batch.check_records().unwrap();
    assert_eq!(batch.records().unwrap().count(), 0);
}

/// Proves that control records are told apart by their key.
#[test]
fn control_records_are_read() {
    assert_eq!(
        ControlKind::from_key(&[0, 0, 0, 0]),
        Some(ControlKind::Abort)
    );
    assert_eq!(
        ControlKind::from_key(&[0, 0, 0, 1]),
        Some(ControlKind::Commit)
    );
    assert_eq!(
        ControlKind::from_key(&[0, 0, 0, 7, 9]),
        Some(ControlKind::Other(7))
    );
    assert_eq!(ControlKind::from_key(&[0, 0, 0]), None);
    let control = forged(&build(Codec::None, &some_records()), |bytes| {
        bytes[field::ATTRIBUTES + 1] = 0b11_0000
    });
    let batch = RecordBatch::parse_checked(control).unwrap();
    assert!(batch.header().attributes.is_control() && batch.header().attributes.is_transactional());
}

/// Proves the builder's own bounds: nothing empty, nothing past the project's largest batch, size told in advance.
#[test]
fn the_builder_is_bounded() {
    assert!(BatchBuilder::new(Codec::None).build().is_err());
    let mut builder = BatchBuilder::new(Codec::None);
    let large = vec![0; BATCH_BYTES_MAX];
    let refused = builder.append(TimestampMs::new(0), None, Some(&large), &[]);
    assert!(matches!(refused, Err(BatchError::TooLarge { .. })));
    assert!(builder.is_empty());
    for record in some_records() {
        let before = builder.bytes();
        append(&mut builder, &record);
        let headers: Vec<HeaderRef<'_>> = record
            .3
            .iter()
            .map(|(key, value)| (key.as_slice(), value.as_deref()))
            .collect();
        let bound =
            BatchBuilder::record_bytes_max(record.1.as_deref(), record.2.as_deref(), &headers);
        assert!(builder.bytes() - before <= bound);
    }
    let told = builder.bytes();
    assert_eq!(builder.build().unwrap().len(), told);
}

/// Proves varints at their borders, and that more than 64 bits are refused.
#[test]
fn varints_at_their_borders() {
    for value in [
        0,
        -1,
        1,
        63,
        64,
        -64,
        -65,
        8191,
        8192,
        i64::from(i32::MAX),
        i64::from(i32::MIN),
        i64::MAX,
        i64::MIN,
    ] {
        let bytes = varints(&[value]);
        let mut rest = bytes.iter();
        let decoded = varint::decode_i64(|| rest.next().copied().ok_or(varint::CUT));
        assert_eq!(decoded, Ok(value));
        assert_eq!(rest.len(), 0);
    }
    let overlong = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2];
    let mut rest = overlong.iter();
    assert!(varint::decode_i64(|| rest.next().copied().ok_or(varint::CUT)).is_err());
}

fn any_bytes(max: usize) -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..max)
}

fn any_record() -> impl Strategy<Value = Plain> {
    let headers =
        proptest::collection::vec((any_bytes(9), proptest::option::of(any_bytes(9))), 0..4);
    let timestamp = prop_oneof![0..2_000_000_000_000i64, -1..1i64];
    (
        timestamp,
        proptest::option::of(any_bytes(40)),
        proptest::option::of(any_bytes(300)),
        headers,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Proves that any records come back from any codec, through the check that produced batches pass.
    #[test]
    fn any_records_come_back(records in proptest::collection::vec(any_record(), 1..30)) {
        for codec in Codec::ALL {
            let batch = produced(&build(codec, &records)).unwrap();
            prop_assert_eq!(&read_back(&batch), &records);
        }
    }

    /// Proves that garbage in place of records is refused or read, and never panics, for every codec.
    #[test]
    fn garbage_records_do_not_panic(count in 1..50i32, records in any_bytes(400)) {
        for codec in Codec::ALL {
            if let Ok(batch) = RecordBatch::parse_checked(around(codec, count, &records)) {
                let checked = batch.check_records();
                let read: Result<Vec<_>, _> = batch.records().unwrap().collect();
                prop_assert!(checked.is_err() || read.is_ok());
            }
        }
    }

    /// Proves that garbage in place of a batch is refused or parsed, and never panics.
    #[test]
    fn garbage_batches_do_not_panic(bytes in any_bytes(200), magic in any::<bool>()) {
        let mut bytes = bytes;
        if magic && bytes.len() > field::MAGIC {
            bytes[field::MAGIC] = 2;
        }
        let bytes = Bytes::from(bytes);
        let _ = produced(&bytes);
        prop_assert!(split_batches(bytes).count() <= 200 / HEADER_BYTES + 1);
    }
}

mod golden;
