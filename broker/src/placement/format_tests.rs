//! The bytes of memberships and images: golden files, identity, every truncation and flip.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use proptest::prelude::*;

const GOLDEN_MEMBERSHIP: &[u8] = include_bytes!("testdata/membership-v1.bin");
const GOLDEN_IMAGE: &[u8] = include_bytes!("testdata/image-v1.bin");

fn log_id(term: u64, index: u64) -> LogId {
    LogId {
        term: Term::new(term),
        index: LogIndex::new(index),
    }
}

fn node(broker: i32, address: &str) -> Member {
    Member {
        broker: NodeId::new(broker),
        address: address.to_owned(),
    }
}

/// Three voters on their way to two of them and a new one, and a learner.
fn joint() -> RaftMembership {
    let nodes = BTreeMap::from([
        (1, node(1, "broker-1.example:9192")),
        (2, node(2, "broker-2.example:9192")),
        (7, node(3, "[::1]:9192")),
        (8, node(-1, "")),
    ]);
    RaftMembership::new(
        vec![BTreeSet::from([1, 2, 7]), BTreeSet::from([1, 2])],
        nodes,
    )
    .expect("valid")
}

fn image() -> Image {
    let membership = StoredMembership::new(Some(to_raft(log_id(2, 5))), joint());
    Image {
        last: log_id(3, 9),
        membership,
        state: Bytes::from_static(b"state of a machine"),
    }
}

/// Proves that what was written by version 1 reads the same for ever, and is still what is written.
#[test]
fn golden_files_hold() {
    assert_eq!(
        decode_membership(GOLDEN_MEMBERSHIP).expect("golden"),
        joint()
    );
    assert_eq!(
        encode_membership(&joint()).expect("encodes"),
        GOLDEN_MEMBERSHIP
    );
    assert_eq!(
        decode_image(&Bytes::from_static(GOLDEN_IMAGE)).expect("golden"),
        image()
    );
    assert_eq!(encode_image(&image()).expect("encodes"), GOLDEN_IMAGE);
}

/// Proves that a group that was never set up has an image too.
#[test]
fn image_without_membership() {
    let bare = Image {
        last: log_id(0, 0),
        membership: StoredMembership::default(),
        state: Bytes::new(),
    };
    assert_eq!(
        decode_image(&encode_image(&bare).expect("encodes")).expect("decodes"),
        bare
    );
}

/// Proves that bytes missing or left over are refused everywhere.
#[test]
fn every_truncation_is_refused() {
    for length in 0..GOLDEN_MEMBERSHIP.len() {
        decode_membership(&GOLDEN_MEMBERSHIP[..length]).expect_err("truncated");
    }
    decode_membership(&[GOLDEN_MEMBERSHIP, &[0]].concat()).expect_err("too long");
    for length in 0..GOLDEN_IMAGE.len() {
        decode_image(&Bytes::from_static(&GOLDEN_IMAGE[..length])).expect_err("truncated");
    }
    decode_image(&[GOLDEN_IMAGE, &[0]].concat().into()).expect_err("too long");
}

/// Proves that no single flipped bit of an image passes.
#[test]
fn every_bit_flip_of_an_image_is_refused() {
    for bit in 0..GOLDEN_IMAGE.len() * 8 {
        let mut bytes = GOLDEN_IMAGE.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        decode_image(&bytes.into()).expect_err("flipped");
    }
}

/// Proves that each rule of the membership page is checked, hostile counts before anything is allocated.
#[test]
fn hostile_memberships_are_refused() {
    let cases: [(usize, &[u8], &str); 8] = [
        (0, &[2], "version"),
        (1, &[1], "flags"),
        (6, &[1], "reserved"),
        (2, &[5, 0], "too many"),
        (2, &[255, 255], "too many"),
        (4, &[129, 0], "too many"),
        (8, &[0, 0], "voter set"),
        (8, &[255, 255], "voter set"),
    ];
    for (at, bytes, why) in cases {
        let mut hostile = GOLDEN_MEMBERSHIP.to_vec();
        hostile[at..at + bytes.len()].copy_from_slice(bytes);
        let error = decode_membership(&hostile).expect_err(why).to_string();
        assert!(error.contains(why), "{error} for {why}");
    }
    // A voter without a row, ids that do not rise, an address that is not UTF-8.
    let mut strange = GOLDEN_MEMBERSHIP.to_vec();
    strange[10] = 0;
    decode_membership(&strange).expect_err("voter 0 has no row");
    let mut falling = GOLDEN_MEMBERSHIP.to_vec();
    falling[10] = 3;
    assert!(
        decode_membership(&falling)
            .expect_err("3 before 2")
            .to_string()
            .contains("rise")
    );
    let mut binary = GOLDEN_MEMBERSHIP.to_vec();
    let address = binary
        .windows(6)
        .position(|window| window == b"broker")
        .expect("an address");
    binary[address] = 0xFF;
    assert!(
        decode_membership(&binary)
            .expect_err("not UTF-8")
            .to_string()
            .contains("UTF-8")
    );
}

/// Proves that an image cannot carry a membership from its future, and that bounds hold when writing.
#[test]
fn impossible_images_are_not_written() {
    let mut future = image();
    future.membership = StoredMembership::new(Some(to_raft(log_id(3, 10))), joint());
    encode_image(&future).expect_err("membership past the last entry");
    let nodes = BTreeMap::from([(1, node(1, &"x".repeat(ADDRESS_BYTES_MAX + 1)))]);
    let long = RaftMembership::new(vec![BTreeSet::from([1])], nodes).expect("valid for openraft");
    encode_membership(&long).expect_err("address too long");
}

proptest! {
    /// Proves that decoding undoes encoding for arbitrary memberships.
    #[test]
    fn membership_round_trips(
        nodes in prop::collection::btree_map(any::<u64>(), (any::<i32>(), "[a-z0-9.:]{0,40}"), 1..12),
        voters in prop::collection::vec(prop::collection::vec(any::<prop::sample::Index>(), 1..6), 1..3),
    ) {
        let ids: Vec<u64> = nodes.keys().copied().collect();
        let sets = voters.iter().map(|set| set.iter().map(|index| *index.get(&ids)).collect()).collect();
        let nodes: BTreeMap<u64, Member> =
            nodes.into_iter().map(|(id, (broker, address))| (id, node(broker, &address))).collect();
        let membership = RaftMembership::new(sets, nodes).expect("valid");
        let bytes = encode_membership(&membership).expect("encodes");
        prop_assert_eq!(decode_membership(&bytes).expect("decodes"), membership);
    }

    /// Proves that arbitrary bytes never panic a decoder.
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode_membership(&bytes);
        let _ = decode_image(&Bytes::from(bytes));
    }
}
