//! The process's clocks: `clock_gettime`, which std takes its time from, is replaced. Libraries that look at a clock by themselves (moka's housekeeping
//! does) find the world's time there, not the machine's.
//!
//! Owns: the symbol, and the time behind it.
//! Not here: hosts' clocks and timers (`hosts`): none of them is a real one.
//! Spec: docs/simulation.md (the same seed, the same steps)

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::hosts::WORLD_EPOCH_MS;

static SIMULATED: AtomicBool = AtomicBool::new(false);
static NOW: AtomicU64 = AtomicU64::new(0);

/// What clocks other than the wall clock show at the start of the world: some time after the machine's start.
const UPTIME: u64 = 1_000_000_000_000;
const NANOS: u64 = 1_000_000_000;

/// From now on this process's clocks show the world's time. There is one world in the process.
pub(crate) fn simulate() {
    SIMULATED.store(true, Ordering::SeqCst);
}

/// The world's time is this, in nanoseconds since its start.
pub(crate) fn set(now: u64) {
    NOW.store(now, Ordering::SeqCst);
}

/// libc's `clock_gettime`, in front of libc's. The real one, where nothing is simulated, is the system call by its number.
#[allow(
    unsafe_code,
    reason = "std and libraries take their time from this symbol; there is no safe way to define it"
)]
#[unsafe(no_mangle)]
extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> libc::c_int {
    if !SIMULATED.load(Ordering::SeqCst) {
        // SAFETY: the arguments are those of clock_gettime(2), handed on as they are.
        let result = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) };
        return libc::c_int::try_from(result).unwrap_or(-1);
    }
    let start = match clock {
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE => {
            u64::try_from(WORLD_EPOCH_MS).unwrap_or(0) * 1_000_000
        }
        _ => UPTIME,
    };
    let now = start + NOW.load(Ordering::SeqCst);
    let told = libc::timespec {
        tv_sec: libc::time_t::try_from(now / NANOS).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::try_from(now % NANOS).unwrap_or(0),
    };
    // SAFETY: the caller of clock_gettime(2) gives a timespec that nobody else uses during the call.
    unsafe { time.write(told) };
    0
}
