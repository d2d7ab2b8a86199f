//! Caps of the transport between brokers, and the relations between them.
//!
//! Owns: bounds on frames, queues, and memory.
//! Not here: times (`config.rs`).
//! Spec: docs/protocols/peer.md (bounds)

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Largest hello or reply to one: the fixed fields, a name of 255 or a text of 512 bytes, and room for later fields.
pub(super) const HELLO_BYTES_MAX: usize = KIB;
/// Largest cluster name.
pub(super) const NAME_BYTES_MAX: usize = 255;
/// Largest text that says what is wrong.
pub(super) const TEXT_BYTES_MAX: usize = 512;

/// Bytes before a frame's header.
pub(super) const PREFIX_BYTES: usize = 40;
/// Largest header: an append of 256 entries (openraft's batch) takes 6.4 KiB.
pub(super) const HEADER_BYTES_MAX: usize = 64 * KIB;

/// Payload of an append: one entry of 16 MiB (placement's bound, directory included) after up to 1 MiB of others, and
/// room for larger settings.
pub(super) const APPEND_PAYLOAD_BYTES_MAX: usize = 24 * MIB;
/// A whole frame of the lane of signals: the largest message, an append without entries, takes 110 bytes.
pub(super) const SIGNAL_FRAME_BYTES_MAX: usize = 4 * KIB;
/// Largest chunk that is taken.
pub(super) const CHUNK_BYTES_MAX: usize = MIB;
/// Chunks that are sent: four in flight are 2 MiB, which fills 1 Gbit/s at 16 ms of round trip.
pub(super) const CHUNK_BYTES: usize = 512 * KIB;
/// Chunks in flight.
pub(super) const CHUNK_WINDOW: usize = 4;
/// Largest request of a call, and largest answer.
pub const CALL_BYTES_MAX: usize = 4 * MIB;

/// Messages queued and in flight per connection: four appends of 64 groups, four times over.
pub(super) const IN_FLIGHT_COUNT_MAX: usize = 1024;
/// Their bytes. They are shared with the log's cache, so this bounds what a slow peer keeps alive.
pub(super) const IN_FLIGHT_BYTES_MAX: usize = 256 * MIB;
/// Bytes that the transport gathers for one write.
pub(super) const WRITE_GATHER_BYTES: usize = MIB;

/// Connections at the listener: 60 peers with four lanes each.
pub(super) const CONNECTIONS_MAX: usize = 256;
/// Connections in their handshake: all lanes of 16 peers at once. A handshake takes milliseconds, and at most 64 KiB for a chain of certificates.
pub(super) const HANDSHAKES_MAX: usize = 64;
/// Connections of callers without a cluster, at one listener: they may call formation only.
pub(super) const STRANGERS_MAX: usize = 64;
/// Frames in work at the listener, all connections: ten appends of the largest size, or 256 ordinary ones.
pub(super) const FRAME_MEMORY_BYTES: usize = 256 * MIB;
/// Frames in work up to [`SMALL_FRAME_BYTES_MAX`], beside that: calls do not wait behind entries.
pub(super) const SMALL_MEMORY_BYTES: usize = 16 * MIB;
/// A small frame.
pub(super) const SMALL_FRAME_BYTES_MAX: usize = 16 * KIB;
/// Largest frame of a caller without a cluster: formation reads questions of 4 KiB.
pub(super) const STRANGER_FRAME_BYTES_MAX: usize = 16 * KIB;
/// Their frames in work, beside the other budgets: no number of strangers holds memory that members wait for.
pub(super) const STRANGER_MEMORY_BYTES: usize = 2 * MIB;
/// Requests in work on one connection of appends, over its groups.
pub(super) const APPENDS_IN_WORK_MAX: usize = 256;
/// Appends of one group in work on one connection; an honest caller has four.
pub(super) const GROUP_APPENDS_IN_WORK_MAX: usize = 16;
/// Requests in work on one connection of another lane.
pub(super) const REQUESTS_IN_WORK_MAX: usize = 64;
/// All partial snapshots together, as announced. An image ends at 1 GiB; real ones are megabytes.
pub(super) const SNAPSHOT_MEMORY_BYTES: usize = 1024 * MIB;

const _: () =
    assert!(APPEND_PAYLOAD_BYTES_MAX + HEADER_BYTES_MAX + PREFIX_BYTES <= FRAME_MEMORY_BYTES);
const _: () = assert!(APPEND_PAYLOAD_BYTES_MAX <= IN_FLIGHT_BYTES_MAX);
const _: () = assert!(FRAME_MEMORY_BYTES <= u32::MAX as usize);
const _: () = assert!(
    STRANGERS_MAX * STRANGER_FRAME_BYTES_MAX < STRANGER_MEMORY_BYTES,
    "all of them send at once, and one more is read"
);
const _: () = assert!(
    APPEND_PAYLOAD_BYTES_MAX >= 17 * MIB,
    "placement's largest entry after others"
);
const _: () =
    assert!(CHUNK_BYTES <= CHUNK_BYTES_MAX && CHUNK_WINDOW * CHUNK_BYTES <= IN_FLIGHT_BYTES_MAX);
const _: () = assert!(
    62 + NAME_BYTES_MAX + 4 <= HELLO_BYTES_MAX && 50 + TEXT_BYTES_MAX + 4 <= HELLO_BYTES_MAX
);
const _: () = assert!(
    GROUP_APPENDS_IN_WORK_MAX <= APPENDS_IN_WORK_MAX && APPENDS_IN_WORK_MAX <= IN_FLIGHT_COUNT_MAX
);
