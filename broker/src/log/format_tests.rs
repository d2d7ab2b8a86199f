#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;

fn id(term: u64, index: u64) -> LogId {
    LogId {
        term: Term::new(term),
        index: LogIndex::new(index),
    }
}

fn header() -> FileHeader {
    FileHeader {
        identity: Identity {
            cluster: ClusterId::new(uuid::Uuid::from_u128(
                0x1234_5678_9abc_def0_1122_3344_5566_7788,
            )),
            group: PlacementGroupId::new(3),
            node: RaftNodeId::new(17),
        },
        sequence: 5,
        salt: 0xdead_beef_0bad_cafe,
        last: Some(id(2, 41)),
        purged: None,
        committed: Some(id(2, 40)),
        vote: Some(Vote {
            term: Term::new(2),
            node: RaftNodeId::new(17),
            committed: true,
        }),
        previous_end: 12_344,
        file_bytes: 16_384,
    }
}

fn records() -> Vec<Record> {
    let vote = Vote {
        term: Term::new(9),
        node: RaftNodeId::new(4),
        committed: false,
    };
    vec![
        Record::Entry {
            id: id(1, 7),
            kind: EntryKind::Blank,
        },
        Record::Entry {
            id: id(1, 8),
            kind: EntryKind::Command,
        },
        Record::Entry {
            id: id(3, u64::MAX),
            kind: EntryKind::Membership,
        },
        Record::Vote(vote),
        Record::Vote(Vote {
            committed: true,
            ..vote
        }),
        Record::Committed(None),
        Record::Committed(Some(id(1, 2))),
        Record::Truncate(None),
        Record::Truncate(Some(id(1, 2))),
        Record::Purge(id(1, 2)),
    ]
}

/// Proves that a file header survives encode and decode, and that every flipped bit is refused.
#[test]
fn file_header_refuses_every_bit_flip() {
    let bytes = header().encode();
    assert_eq!(FileHeader::decode(&bytes), Ok(header()));
    for at in (0..bytes.len() * 8).step_by(if cfg!(debug_assertions) { 3 } else { 1 }) {
        let mut flipped = bytes.clone();
        flipped[at / 8] ^= 1 << (at % 8);
        assert!(FileHeader::decode(&flipped).is_err(), "bit {at}");
    }
    assert!(FileHeader::decode(&bytes[..4095]).is_err());
}

/// Proves that another version is told from damage, and reserved bytes must be zero even under a right CRC.
#[test]
fn file_header_tells_versions_and_reserved_bytes() {
    let mut bytes = header().encode();
    bytes[8] = 2;
    let crc = crc32c::crc32c(&bytes[..4092]).to_le_bytes();
    bytes[4092..].copy_from_slice(&crc);
    assert_eq!(FileHeader::decode(&bytes), Err(BadHeader::Version(2)));
    let mut bytes = header().encode();
    bytes[300] = 1;
    let crc = crc32c::crc32c(&bytes[..4092]).to_le_bytes();
    bytes[4092..].copy_from_slice(&crc);
    assert!(matches!(
        FileHeader::decode(&bytes),
        Err(BadHeader::Damaged(_))
    ));
}

/// Proves that every kind of frame survives encode and decode, and that a flipped bit in header or dir, another place,
/// another file, or another use of the file are refused.
#[test]
fn frames_are_bound_to_their_place() {
    let binding = Binding {
        salt: 1,
        sequence: 2,
    };
    for record in records() {
        let entry = matches!(record, Record::Entry { .. });
        let (dir, body): (&[u8], &[u8]) = if entry {
            (b"directory", b"body")
        } else {
            (b"", b"")
        };
        let frame = FrameHeader {
            record,
            dir_len: u32::try_from(dir.len()).unwrap(),
            body_len: u32::try_from(body.len()).unwrap(),
            durable_upto: 4096,
        };
        let seed = binding.seed(8192);
        let bytes = frame.encode(seed, dir, 77);
        let decoded = DecodedFrame::parse(&bytes, 1000).unwrap();
        assert_eq!(decoded.header, frame);
        assert_eq!(decoded.body_crc, 77);
        assert!(decoded.check(&bytes, seed, dir));
        for other in [
            binding.seed(8200),
            Binding {
                salt: 3,
                sequence: 2,
            }
            .seed(8192),
            Binding {
                salt: 1,
                sequence: 3,
            }
            .seed(8192),
        ] {
            assert!(
                !decoded.check(&bytes, other, dir),
                "the seed is part of the CRC"
            );
        }
        assert!(
            DecodedFrame::parse(&bytes, frame.frame_bytes() - 1).is_none(),
            "no room"
        );
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            let accepted = DecodedFrame::parse(&flipped, 1000)
                .is_some_and(|frame| frame.check(&flipped, seed, dir));
            assert!(!accepted, "bit {bit} of {record:?}");
        }
        if entry {
            assert!(!decoded.check(&bytes, seed, b"directorz"));
        }
    }
}

/// Proves that a length that a hostile or torn header claims is checked before anything is allocated.
#[test]
fn oversized_lengths_are_refused_before_use() {
    let record = Record::Entry {
        id: id(1, 1),
        kind: EntryKind::Command,
    };
    let frame = FrameHeader {
        record,
        dir_len: u32::MAX,
        body_len: u32::MAX,
        durable_upto: 0,
    };
    let bytes = frame.encode(0, &[], 0);
    assert!(DecodedFrame::parse(&bytes, 128 << 20).is_none());
    let frame = FrameHeader {
        record,
        dir_len: 5 << 20,
        body_len: 0,
        durable_upto: 0,
    };
    assert!(
        DecodedFrame::parse(&frame.encode(0, &[], 0), 128 << 20).is_none(),
        "dir above its limit"
    );
}
