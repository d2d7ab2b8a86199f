//! How much may be proposed and not yet answered.
//!
//! Owns: [`InFlight`], a budget of entries and bytes, and [`Slot`], a share of it.
//! Not here: what happens to a proposal (`propose.rs`).

use parking_lot::Mutex;
use std::sync::Arc;

/// A budget of entries and bytes. Clones share it.
#[derive(Clone)]
pub(super) struct InFlight {
    used: Arc<Mutex<Used>>,
    count_max: usize,
    bytes_max: usize,
}

#[derive(Default, Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Used {
    pub(super) count: usize,
    pub(super) bytes: usize,
}

impl InFlight {
    pub(super) fn new(count_max: usize, bytes_max: usize) -> Self {
        Self {
            used: Arc::default(),
            count_max,
            bytes_max,
        }
    }

    /// A slot for `bytes`, unless that would go over the budget.
    pub(super) fn try_acquire(&self, bytes: usize) -> Option<Slot> {
        let mut used = self.used.lock();
        let total = used.bytes.checked_add(bytes)?;
        if used.count >= self.count_max || total > self.bytes_max {
            return None;
        }
        used.count += 1;
        used.bytes = total;
        Some(Slot {
            used: Arc::clone(&self.used),
            bytes,
        })
    }

    pub(super) fn used(&self) -> Used {
        *self.used.lock()
    }
}

/// A share of the budget; given back when dropped.
pub(super) struct Slot {
    used: Arc<Mutex<Used>>,
    bytes: usize,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut used = self.used.lock();
        used.count -= 1;
        used.bytes -= self.bytes;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;

    /// Proves that neither the count nor the bytes go over the budget, and that a dropped slot is room again.
    #[test]
    fn budget_holds_and_comes_back() {
        let budget = InFlight::new(2, 10);
        let first = budget.try_acquire(6).expect("room");
        assert!(budget.try_acquire(5).is_none(), "bytes");
        let second = budget.try_acquire(4).expect("room");
        assert!(budget.try_acquire(0).is_none(), "count");
        assert_eq!(
            budget.used(),
            Used {
                count: 2,
                bytes: 10
            }
        );
        drop(first);
        let third = budget.try_acquire(6).expect("room again");
        drop((second, third));
        assert_eq!(budget.used(), Used::default());
        assert!(budget.try_acquire(usize::MAX).is_none(), "overflow");
    }
}
