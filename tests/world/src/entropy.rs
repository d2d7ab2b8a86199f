//! The process's randomness, from the seed: `getrandom`, which std and the libraries take theirs from, is replaced.
//!
//! Owns: the symbol and the generator behind it.
//! Not here: the world's own randomness (each part has a generator of its own), `Random` as handed to the broker.
//! Spec: docs/simulation.md, docs/adr/2026-11-30-own-simulation.md

use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static SEEDED: AtomicBool = AtomicBool::new(false);
static STATE: AtomicU64 = AtomicU64::new(0);
static REAL_DRAWS: AtomicU64 = AtomicU64::new(0);

/// The step of SplitMix64.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// From now on the process's randomness is that of the seed, and its clocks show the time of the world in it. What a thread drew before stays: std keeps the keys of its hash maps, and
/// `rand` its generator, per thread. So either this is the first thing a program does, or [`run_seeded`] gives it a fresh thread.
pub fn seed(seed: u64) {
    STATE.store(seed, Ordering::SeqCst);
    SEEDED.store(true, Ordering::SeqCst);
    crate::clocks::simulate();
    fastrand::seed(mixed(seed.wrapping_sub(STEP)));
}

/// Seeds the process and runs `act` on a fresh thread, whose generators have drawn nothing yet. Still one seed per process: libraries
/// keep some of what they drew in statics.
///
/// # Errors
/// When there is no thread, or `act` panicked.
pub fn run_seeded<T, F>(number: u64, act: F) -> std::io::Result<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let thread = std::thread::Builder::new()
        .name(format!("seed {number}"))
        .stack_size(16 * 1024 * 1024)
        .spawn(move || {
            seed(number);
            act()
        })?;
    thread
        .join()
        .map_err(|_| std::io::Error::other("the seeded thread panicked"))
}

/// How often the process took randomness from the system, before it was seeded.
#[must_use]
pub fn real_draws() -> u64 {
    REAL_DRAWS.load(Ordering::Relaxed)
}

/// SplitMix64 (Steele, Lea, Flood 2014): the output for a state. Good enough to seed generators with; no secret.
fn mixed(state: u64) -> u64 {
    let mut z = state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Fills the buffer from the seed. No lock and no allocation: std calls this from everywhere.
fn fill(buffer: &mut [u8]) {
    for part in buffer.chunks_mut(8) {
        let state = STATE.fetch_add(STEP, Ordering::SeqCst).wrapping_add(STEP);
        let bytes = mixed(state).to_le_bytes();
        part.copy_from_slice(&bytes[..part.len()]);
    }
}

/// libc's `getrandom`, in front of libc's: std's hash maps, tokio's `select!`, and the `getrandom` crate (`rand`, `uuid`) find this one.
/// The real one, where nothing was seeded, is the system call by its number, so that nothing comes back here.
#[allow(
    unsafe_code,
    reason = "libraries take their randomness from this symbol; there is no safe way to define it"
)]
#[unsafe(no_mangle)]
extern "C" fn getrandom(buffer: *mut c_void, length: usize, flags: c_uint) -> isize {
    if length == 0 {
        return 0;
    }
    // SAFETY: the caller of getrandom(2) gives a buffer of at least `length` bytes that nobody else uses during the call. They may be
    // uninitialised: they are only written below.
    let buffer = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
    if SEEDED.load(Ordering::SeqCst) {
        fill(buffer);
        return isize::try_from(length).unwrap_or(isize::MAX);
    }
    REAL_DRAWS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the arguments are those of getrandom(2), checked above as far as they can be. The kernel's answer is the function's.
    let filled = unsafe { libc::syscall(libc::SYS_getrandom, buffer.as_mut_ptr(), length, flags) };
    isize::try_from(filled).unwrap_or(-1)
}
