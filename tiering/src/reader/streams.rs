//! Recognises sequential readers: a read that begins where another ended.
//!
//! Owns: how much a reader may load at once, so that many readers share the memory instead of evicting each other.

use super::config::ReaderConfig;
use super::plan::SegmentKey;
use moka::future::Cache;
use std::time::Duration;
use tidelog_model::Offset;

type Place = (SegmentKey, Offset);

/// Places where reads ended. A reader that has not come back after this is gone.
const IDLE: Duration = Duration::from_secs(60);
const PLACES_MAX: u64 = 16 * 1024;

pub(super) struct Streams {
    places: Cache<Place, u8>,
    chunk_bytes: u64,
    memory_bytes: u64,
    level_max: u8,
}

impl Streams {
    pub(super) fn new(config: &ReaderConfig) -> Self {
        Self {
            places: Cache::builder()
                .max_capacity(PLACES_MAX)
                .time_to_idle(IDLE)
                .build(),
            chunk_bytes: config.chunk_bytes,
            memory_bytes: config.memory_bytes,
            level_max: config.chunk_doublings_max,
        }
    }

    /// The level a reader that continues at (segment, offset) has reached; 0 for one that comes from nowhere.
    pub(super) async fn level(&self, segment: SegmentKey, at: Offset) -> u8 {
        self.places
            .get(&(segment, at))
            .await
            .unwrap_or(0)
            .min(self.allowed())
    }

    /// The level after a span was read to its end.
    pub(super) fn grow(&self, level: u8) -> u8 {
        level.saturating_add(1).min(self.allowed())
    }

    pub(super) async fn arrived(&self, from: Place, to: Place, level: u8) {
        if from != to {
            self.places.invalidate(&from).await;
        }
        self.places.insert(to, level).await;
    }

    pub(super) async fn left(&self, from: Place) {
        self.places.invalidate(&from).await;
    }

    /// Each reader has a span it reads and one that is loaded ahead; all of them together get half of the memory.
    fn allowed(&self) -> u8 {
        let readers = self.places.entry_count().max(1);
        let each = self.memory_bytes / 2 / readers.saturating_mul(2);
        (0..=self.level_max)
            .rev()
            .find(|level| {
                self.chunk_bytes
                    .checked_shl(u32::from(*level))
                    .is_some_and(|bytes| bytes <= each)
            })
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::ObjectId;
    use tidelog_model::{PlacementGroupId, Term};
    use uuid::Uuid;

    fn place(offset: i64) -> Place {
        let object = ObjectId {
            group: PlacementGroupId::new(1),
            term: Term::new(1),
            id: Uuid::nil(),
        };
        (
            SegmentKey {
                object,
                position: 0,
            },
            Offset::new(offset),
        )
    }

    /// Proves that a reader grows as it goes on, that one from nowhere starts small, and that many readers stay small.
    #[tokio::test]
    async fn readers_grow_alone_and_shrink_in_company() {
        let config = ReaderConfig {
            memory_bytes: 64 << 20,
            ..ReaderConfig::default()
        };
        let streams = Streams::new(&config);
        assert_eq!(streams.level(place(0).0, Offset::new(0)).await, 0);
        streams.arrived(place(0), place(1), streams.grow(0)).await;
        assert_eq!(streams.level(place(1).0, Offset::new(1)).await, 1);
        assert_eq!(streams.grow(streams.grow(streams.grow(1))), 3);
        for reader in 0..100 {
            streams
                .arrived(place(1000 + reader), place(2000 + reader), 3)
                .await;
        }
        streams.places.run_pending_tasks().await;
        assert_eq!(
            streams.level(place(0).0, Offset::new(2000)).await,
            0,
            "100 readers of 64 MiB get a chunk each"
        );
    }
}
