//! The metadata image as placement's state machine.
//!
//! Owns: decoding committed entries, the snapshot at the last applied entry.

use super::apply::MetadataOutcome;
use super::format_command::decode_command;
use super::image::MetadataImage;
use crate::placement::{Command, StateMachine};
use bytes::Bytes;
use tidelog_model::LogId;

/// The replicated machine of placement group 0.
#[derive(Debug, Default)]
pub struct MetadataMachine {
    image: MetadataImage,
    applied: bool,
}

impl MetadataMachine {
    /// An empty machine.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The state after the last applied entry.
    #[must_use]
    pub const fn image(&self) -> &MetadataImage {
        &self.image
    }

    fn passed(&mut self, id: LogId) {
        self.image.last = id;
        self.applied = true;
    }
}

impl StateMachine for MetadataMachine {
    type Outcome = MetadataOutcome;

    fn apply(&mut self, id: LogId, command: &Command) -> MetadataOutcome {
        self.passed(id);
        match decode_command(&command.dir) {
            Ok((command, stamp)) => self.image.apply(command, stamp),
            Err(error) => {
                tracing::error!(entry = %id, "a metadata command cannot be read and changes nothing: {error}");
                MetadataImage::apply_unreadable(error)
            }
        }
    }

    fn applied_blank(&mut self, id: LogId) {
        self.passed(id);
    }

    fn snapshot(&self) -> Option<(LogId, Bytes)> {
        self.applied.then(|| (self.image.last, self.image.encode()))
    }

    fn restore(&mut self, last: LogId, image: &Bytes) -> Result<(), String> {
        let image = MetadataImage::decode(image)
            .map_err(|error| format!("metadata snapshot at {last}: {error}"))?;
        if image.last != last {
            return Err(format!(
                "metadata snapshot at {last} holds the state at {}",
                image.last
            ));
        }
        *self = Self {
            image,
            applied: true,
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests;
