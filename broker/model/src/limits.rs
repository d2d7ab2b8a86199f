//! Every cap of the project, with its arithmetic and the relations between caps as const asserts.
//!
//! Owns: upper bounds on what comes from outside (frames, batches, records, queues, buffers).
//! Not here: tunables that are no bound (timeouts, pauses), which live beside their user.
//!
//! A number that a user may change is a *default* (`…_DEFAULT`), and then there is a hard bound above it.

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

// ---- record batches ----------------------------------------------------------------------------------------------

/// Largest accepted record batch, Kafka's default of `max.message.bytes`: 1 MiB of `batch.size` or
/// `max.request.size` worth of records plus the 12 bytes before the part that `batch_length` counts.
pub const BATCH_BYTES_MAX_DEFAULT: usize = MIB + 12;

/// Bound on what `max.message.bytes` may be set to. A batch is one body in one log entry and one block of a Raft
/// message, so this bounds both.
pub const BATCH_BYTES_MAX: usize = 64 * MIB;

/// Most record headers on one record. Kafka has no cap; a header takes at least 2 bytes on the wire and 64 in memory,
/// so that 1 MiB of headers would become 32 MiB. At this cap one record's headers take at most 4 MiB.
pub const RECORD_HEADERS_MAX: usize = 65_536;

/// Least bytes of one encoded record: length, attributes, timestamp delta, offset delta, key length, value length,
/// header count, one byte each.
pub const RECORD_BYTES_MIN: usize = 7;

// ---- decompression -----------------------------------------------------------------------------------------------

/// Most bytes that one batch may expand to, whatever its compressed size. Default batches hold 1 MiB compressed;
/// text compresses 3 to 20 times, so that honest batches stay below 20 MiB.
pub const DECOMPRESSED_BYTES_MAX: usize = 64 * MIB;

/// Most bytes out per byte in. Deflate ends at 1032:1, and only for constant input.
pub const DECOMPRESSED_RATIO_MAX: usize = 1024;

/// What a batch may always expand to, whatever the ratio: a batch of equal records compresses by zstd to a few dozen
/// bytes, and a producer with `batch.size` of 1 MiB must get through. 4 MiB costs 4 ms to check.
pub const DECOMPRESSED_BYTES_FLOOR: usize = 4 * MIB;

/// Snappy's format bounds its own ratio: a 3-byte copy makes at most 64 bytes. A block that claims more is damaged and
/// is refused before its claim is allocated.
pub const SNAPPY_RATIO_MAX: usize = 22;

/// Read buffer while records of a compressed batch are walked.
pub const DECOMPRESS_BUFFER_BYTES: usize = 32 * KIB;

// ---- frames and connections of the Kafka listener ----------------------------------------------------------------

/// Largest accepted frame, Kafka's default of `socket.request.max.bytes`.
pub const FRAME_BYTES_MAX_DEFAULT: usize = 100 * MIB;

/// Largest frame from a peer that has not proven who it is. A SASL exchange takes a few hundred bytes.
pub const FRAME_BYTES_BEFORE_AUTH_MAX: usize = 64 * KIB;

/// Least bytes of a request: api key 2, version 2, correlation id 4.
pub const FRAME_BYTES_MIN: usize = 8;

/// Largest accepted frame of any request but Produce, which alone carries bulk. A Fetch or OffsetCommit of 50,000
/// partitions takes 2 MiB.
pub const FRAME_BYTES_MAX_WITHOUT_RECORDS: usize = 4 * MIB;

/// Memory that decoding may take per byte of a frame without records: the smallest structure is 3 bytes on the wire
/// (an empty name, an empty array, no tagged fields) and 80 in memory, in a vector that grows by doubling. Real
/// requests stay below 8.
pub const DECODE_EXPANSION_MAX: usize = 32;

/// Partitions in one Produce request: each takes 6 bytes on the wire and 64 in memory. With this bound they take at
/// most 2 MiB, whatever the frame's size.
pub const PRODUCE_PARTITIONS_MAX: usize = 20_000;

/// Memory for frames that are being read or processed, over all connections, taken as their bytes come. A connection whose
/// frame does not fit waits before it reads on (TCP then slows its client down). One frame may go over it, so that one
/// always ends: at most this and one frame of the largest size are used.
pub const REQUEST_MEMORY_BYTES_DEFAULT: usize = 160 * MIB;

/// Memory for small requests, beside that budget: heartbeats, fetches and commits go on while large frames that arrive
/// slowly hold all of it. All connections may have begun one (8 KiB), and half of them may have the largest in work.
pub const REQUEST_MEMORY_SMALL_BYTES: usize = 32 * MIB;

/// Largest frame that is small.
pub const REQUEST_SMALL_BYTES_MAX: usize = 16 * KIB;

/// Memory for decoding, beside these: one frame of the largest size without records at a time. It is held for as long as decoding runs, which waits for nothing.
pub const DECODE_MEMORY_BYTES: usize = FRAME_BYTES_MAX_WITHOUT_RECORDS * DECODE_EXPANSION_MAX;

/// Bytes of larger frames that one connection may have in work; a frame above this is alone. A producer that keeps 1 GB/s
/// under way for 10 ms has 10 MB. Four connections are needed to use the budget up.
pub const CONNECTION_REQUEST_BYTES_MAX: usize = 40 * MIB;

/// Open client connections. One idle connection takes about 12 KiB: 4096 take 48 MiB.
pub const CONNECTIONS_MAX_DEFAULT: usize = 4096;

/// Requests of one connection that may be in work at once. Java and librdkafka send 5 (`max.in.flight` of idempotent
/// producers), librdkafka without idempotence up to a million: what is over the cap waits in the socket.
pub const CONNECTION_REQUESTS_IN_FLIGHT_MAX: usize = 16;

// ---- decoding of requests ----------------------------------------------------------------------------------------

/// Elements of any one array in a request. A Metadata or Fetch request names each partition once: 100,000 partitions
/// of one client fit.
pub const ARRAY_ELEMENTS_MAX: usize = 100_000;

/// Tagged fields of one structure. Kafka defines at most a handful.
pub const TAGGED_FIELDS_MAX: usize = 64;

/// Bytes of one string in a request. Kafka's longest (a SCRAM or OAuth token) has a few thousand; int16 lengths end at
/// 32767 anyway.
pub const STRING_BYTES_MAX: usize = 32_767;

/// Kafka's bound on topic names.
pub const TOPIC_NAME_BYTES_MAX: usize = 249;

// ---- relations ---------------------------------------------------------------------------------------------------

const _: () = assert!(
    CONNECTIONS_MAX_DEFAULT / 2 * REQUEST_SMALL_BYTES_MAX <= REQUEST_MEMORY_SMALL_BYTES,
    "half of the connections may have a small request in work"
);
const _: () = assert!(
    BATCH_BYTES_MAX_DEFAULT <= BATCH_BYTES_MAX,
    "the default is inside the bound"
);
const _: () = assert!(
    BATCH_BYTES_MAX < FRAME_BYTES_MAX_DEFAULT,
    "a batch fits into a frame with room for its header"
);
const _: () = assert!(
    BATCH_BYTES_MAX_DEFAULT < DECOMPRESSED_BYTES_MAX,
    "a batch that does not compress is in bounds"
);
const _: () = assert!(
    BATCH_BYTES_MAX <= DECOMPRESSED_BYTES_MAX,
    "the largest batch is in bounds uncompressed too"
);
const _: () = assert!(
    DECOMPRESSED_BYTES_FLOOR >= 2 * BATCH_BYTES_MAX_DEFAULT,
    "a full batch of equal records passes"
);
const _: () = assert!(
    FRAME_BYTES_MAX_DEFAULT <= REQUEST_MEMORY_BYTES_DEFAULT,
    "the largest frame fits"
);
const _: () = assert!(
    4 * CONNECTION_REQUEST_BYTES_MAX <= REQUEST_MEMORY_BYTES_DEFAULT,
    "a connection holds no more than a quarter"
);
const _: () = assert!(
    FRAME_BYTES_BEFORE_AUTH_MAX <= FRAME_BYTES_MAX_WITHOUT_RECORDS,
    "authentication only widens"
);
const _: () = assert!(
    DECODE_MEMORY_BYTES <= u32::MAX as usize,
    "its unit is a byte in a u32"
);
const _: () = assert!(
    FRAME_BYTES_MAX_DEFAULT <= i32::MAX as usize,
    "frame lengths are int32"
);
