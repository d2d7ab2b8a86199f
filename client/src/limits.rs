//! Every cap of the client, in one place, with its arithmetic.

/// Largest response that is read: a fetch asks for at most [`FETCH_BYTES_MAX`], a broker may exceed it by one batch
/// (the first one is always sent), and the largest batch any Kafka broker is usually set to take is far below 32 MiB.
pub const RESPONSE_BYTES_MAX: usize = FETCH_BYTES_MAX + 32 * 1024 * 1024;
/// Largest request that is written, record batches included.
pub const REQUEST_BYTES_MAX: usize = 64 * 1024 * 1024;
/// What one fetch asks for at most.
pub const FETCH_BYTES_MAX: usize = 16 * 1024 * 1024;
/// What one fetch asks for at most from one partition.
pub const FETCH_PARTITION_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Requests waiting to be written on one connection; a sender waits when they are all taken.
pub const REQUESTS_QUEUED_MAX: usize = 64;
/// Requests of one connection without an answer yet (written or waiting).
pub const REQUESTS_IN_FLIGHT_MAX: usize = 256;
/// Produce requests in flight per broker: a broker remembers the last five batches of a producer and partition, so
/// the same batch sent again is recognised only while at most five are on their way.
pub const PRODUCE_IN_FLIGHT_MAX: usize = 5;
/// A record batch, once decompressed, may not exceed this.
pub const BATCH_DECOMPRESSED_BYTES_MAX: usize = 128 * 1024 * 1024;
/// Names, texts and metadata in responses.
pub const STRING_BYTES_MAX: usize = 1024 * 1024;
/// Elements of one array of a response.
pub const ARRAY_ELEMENTS_MAX: usize = 200_000;
/// Largest answer of the admin address.
pub const ADMIN_RESPONSE_BYTES_MAX: usize = 64 * 1024 * 1024;

const _: () = assert!(FETCH_PARTITION_BYTES_MAX <= FETCH_BYTES_MAX);
const _: () = assert!(RESPONSE_BYTES_MAX < 0x7fff_ffff);
const _: () = assert!(REQUESTS_QUEUED_MAX <= REQUESTS_IN_FLIGHT_MAX);
const _: () = assert!(PRODUCE_IN_FLIGHT_MAX <= 5);
