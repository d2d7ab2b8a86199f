//! Lines of requests, one for each consumer group: who came first has its turn first.
//!
//! Owns: the order of arrival, its bounds, what a request that goes away leaves.
//! Not here: what is done in a turn (`offsets`).
//! Spec: docs/protocols/consumer-groups.md (offsets)
//!
//! A group without requests has no line. Groups do not wait for each other.

use crate::coordinator::limits::{COMMITS_WAITING_MAX, WAITING_MAX};
use crate::coordinator::{ConsumerGroupError, ConsumerGroupName};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::Notify;

/// All lines of a coordinator.
#[derive(Default)]
pub(super) struct Lines {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// By number, which grows: the first is who has its turn. Each with what wakes it.
    lines: BTreeMap<ConsumerGroupName, BTreeMap<u64, Arc<Notify>>>,
    waiting: usize,
    next: u64,
}

/// A place in the line of a group; given up when dropped, wherever in the line it is.
pub(super) struct Place {
    lines: Arc<Lines>,
    group: ConsumerGroupName,
    number: u64,
    bell: Arc<Notify>,
}

impl Lines {
    /// Takes the last place in the line of `group`.
    ///
    /// # Errors
    /// [`ConsumerGroupError::Overloaded`]: the line, or all of them together, are as long as they may be.
    pub(super) fn join(
        self: &Arc<Self>,
        group: &ConsumerGroupName,
    ) -> Result<Place, ConsumerGroupError> {
        let mut inner = self.inner.lock();
        let length = inner.lines.get(group).map_or(0, BTreeMap::len);
        if length >= COMMITS_WAITING_MAX || inner.waiting >= WAITING_MAX {
            return Err(ConsumerGroupError::Overloaded);
        }
        inner.waiting += 1;
        inner.next += 1;
        let (number, bell) = (inner.next, Arc::new(Notify::new()));
        let line = inner.lines.entry(group.clone()).or_default();
        line.insert(number, Arc::clone(&bell));
        Ok(Place {
            lines: Arc::clone(self),
            group: group.clone(),
            number,
            bell,
        })
    }
}

impl Place {
    /// Returns when all who came before are gone. The turn lasts until the place is dropped.
    pub(super) async fn turn(&self) {
        while !self.is_first() {
            self.bell.notified().await;
        }
    }

    fn is_first(&self) -> bool {
        let inner = self.lines.inner.lock();
        let line = inner.lines.get(&self.group);
        let first = line.and_then(BTreeMap::first_key_value);
        first.is_some_and(|(number, _)| *number == self.number)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut inner = self.lines.inner.lock();
        inner.waiting -= 1;
        let Some(line) = inner.lines.get_mut(&self.group) else {
            return;
        };
        line.remove(&self.number);
        match line.first_key_value() {
            // Kept for who does not wait yet. One that is rung though it is not new in front looks, and waits on.
            Some((_, bell)) => bell.notify_one(),
            None => drop(inner.lines.remove(&self.group)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use futures::FutureExt;

    fn group(name: &str) -> ConsumerGroupName {
        ConsumerGroupName::new(name)
    }

    fn has_turn(place: &Place) -> bool {
        place.turn().now_or_never().is_some()
    }

    /// Proves that turns come in the order of arrival, that who goes away lets nobody past those before, that groups have nothing to do with each other, and
    /// that nothing is left.
    #[tokio::test]
    async fn turns_come_in_order() {
        let lines = Arc::new(Lines::default());
        let [a, b, c, d] = [(); 4].map(|()| lines.join(&group("g")).unwrap());
        let other = lines.join(&group("other")).unwrap();
        assert!(has_turn(&a) && has_turn(&other));
        assert!(!has_turn(&b) && !has_turn(&c) && !has_turn(&d));
        drop(b);
        assert!(!has_turn(&c), "the first is still there");
        let waiting = tokio::spawn(async move {
            c.turn().await;
            c
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(a);
        let c = waiting.await.unwrap();
        assert!(!has_turn(&d));
        drop(c);
        assert!(has_turn(&d) && has_turn(&d));
        drop((d, other));
        let inner = lines.inner.lock();
        assert!(inner.lines.is_empty() && inner.waiting == 0);
    }

    /// Proves both bounds, and that a place that is given up is room for another.
    #[test]
    fn lines_are_bounded() {
        let lines = Arc::new(Lines::default());
        let mut places = Vec::new();
        for _ in 0..COMMITS_WAITING_MAX {
            places.push(lines.join(&group("g")).unwrap());
        }
        let full = Some(ConsumerGroupError::Overloaded);
        assert_eq!(lines.join(&group("g")).err(), full);
        places.pop();
        places.push(lines.join(&group("g")).unwrap());
        for number in places.len()..WAITING_MAX {
            places.push(lines.join(&group(&number.to_string())).unwrap());
        }
        assert_eq!(lines.join(&group("other")).err(), full);
        places.pop();
        assert!(lines.join(&group("other")).is_ok());
    }
}
