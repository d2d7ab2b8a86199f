//! Limits of consumer groups, with the arithmetic between them.
//!
//! Those that `apply` uses are part of the replicated behaviour: changing one needs a new command version.

use crate::config::LOG_FILE_BYTES_MIN;
use crate::log::DIR_BYTES_MAX;

/// Longest consumer group name, member id, instance id, protocol name in bytes.
pub const NAME_BYTES_MAX: usize = 1_024;
/// Longest client id or host that is kept with a member; longer ones are shortened.
pub const CLIENT_TEXT_BYTES_MAX: usize = 256;
/// Most members of one group.
pub const MEMBERS_MAX: usize = 1_000;
/// Most protocols (assignors) one member may offer.
pub const PROTOCOLS_MAX: usize = 32;
/// Most bytes of all protocols that one member offers.
pub const MEMBER_BYTES_MAX: usize = 512 * 1_024;
/// Most bytes of one generation as its `StoreGeneration` command: an entry of the smallest log takes that much. 1,000 members
/// have 2 KiB each for names, subscription and assignment.
pub const GENERATION_BYTES_MAX: usize = 2 * 1_024 * 1_024;
/// Bytes of that command besides its members: kind, version, stamp, generation, count, and four names.
pub const GENERATION_HEAD_BYTES_MAX: usize = 1 + 1 + 8 + 4 + 4 + 4 * (4 + NAME_BYTES_MAX);
/// Bytes of one member in it besides its texts: five lengths, two timeouts, and whether it is static.
pub const MEMBER_FIXED_BYTES: usize = 7 * 4 + 1;
/// Longest metadata of a committed offset (Kafka's `offset.metadata.max.bytes`). Used by apply.
pub const OFFSET_METADATA_BYTES_MAX: usize = 4_096;
/// Most bytes of one commit: one command of the log.
pub const COMMIT_BYTES_MAX: usize = 1_024 * 1_024;
/// What an offset counts for in a commit besides its metadata: more than its bytes.
pub const COMMIT_OFFSET_BYTES: usize = 64;
/// Most offsets of one commit.
pub const COMMIT_OFFSETS_MAX: usize = COMMIT_BYTES_MAX / COMMIT_OFFSET_BYTES;
/// Most committed offsets of one group. Used by apply.
pub const GROUP_OFFSETS_MAX: usize = 100_000;
/// Most consumer groups of one placement group. Used by apply.
pub const GROUPS_MAX: usize = 20_000;
/// Most join and sync requests that wait in one coordinator, each of which holds a connection; and, counted by themselves, most commits.
pub const WAITING_MAX: usize = 100_000;
/// Most commits of one group that are under way: every member has some.
pub const COMMITS_WAITING_MAX: usize = 4 * MEMBERS_MAX;
/// Most groups in one `ExpireOffsets` command.
pub const EXPIRE_GROUPS_MAX: usize = 256;

const _: () = assert!(COMMITS_WAITING_MAX < WAITING_MAX);
const _: () = assert!(OFFSET_METADATA_BYTES_MAX < COMMIT_BYTES_MAX);
const _: () = assert!(
    GENERATION_HEAD_BYTES_MAX
        + MEMBER_FIXED_BYTES
        + 2 * NAME_BYTES_MAX
        + 2 * CLIENT_TEXT_BYTES_MAX
        + MEMBER_BYTES_MAX
        < GENERATION_BYTES_MAX
);
const _: () = assert!(GENERATION_BYTES_MAX as u64 <= LOG_FILE_BYTES_MIN / 4);
const _: () = assert!(GENERATION_BYTES_MAX <= DIR_BYTES_MAX);
const _: () = assert!(EXPIRE_GROUPS_MAX * NAME_BYTES_MAX < COMMIT_BYTES_MAX);
