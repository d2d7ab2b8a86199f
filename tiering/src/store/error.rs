//! What a store call can end with, by what the caller may do.

use object_store::Error;

/// Why a store call failed. Reads have no effects: for them only the first four occur.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// There is no such object.
    #[error("there is no object at {key}")]
    NotFound {
        /// Its full key.
        key: String,
    },
    /// It **did not happen**, and trying again may help: the store is down, slow or overloaded.
    #[error("{operation} {key} failed after {tries} tries: {reason}")]
    Unavailable {
        /// What was asked.
        operation: &'static str,
        /// The full key.
        key: String,
        /// Tries made.
        tries: u32,
        /// What the last one said.
        reason: String,
    },
    /// It **did not happen**, and trying again does not help before somebody acts: credentials, permissions, a store
    /// that cannot do it.
    #[error("the store refused to {operation} {key}: {reason}")]
    Refused {
        /// What was asked.
        operation: &'static str,
        /// The full key.
        key: String,
        /// What the store said.
        reason: String,
    },
    /// The store answered, but not with what was written: an object of another length, or larger than allowed.
    #[error("the object at {key} is not what was written: {reason}")]
    Corrupt {
        /// The full key.
        key: String,
        /// What differs.
        reason: String,
    },
    /// It **may have happened**, now or later: no try was answered. The same call with the same bytes is safe.
    #[error("{operation} {key} may or may not have happened after {tries} tries: {reason}")]
    MayHaveHappened {
        /// What was asked.
        operation: &'static str,
        /// The full key.
        key: String,
        /// Tries made.
        tries: u32,
        /// What the last one said.
        reason: String,
    },
}

impl StoreError {
    /// Whether the caller may rely on nothing having been written.
    #[must_use]
    pub const fn did_not_happen(&self) -> bool {
        !matches!(self, Self::MayHaveHappened { .. })
    }

    /// Whether the same call can succeed later without anybody acting.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Unavailable { .. } | Self::MayHaveHappened { .. }
        )
    }
}

/// What one try ended with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    NotFound,
    Exists,
    Refused(String),
    /// Nobody knows whether it happened.
    Unclear(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::NotFound { .. } => Self::NotFound,
            Error::AlreadyExists { .. } | Error::Precondition { .. } => Self::Exists,
            Error::PermissionDenied { .. }
            | Error::Unauthenticated { .. }
            | Error::NotSupported { .. }
            | Error::NotImplemented { .. }
            | Error::InvalidPath { .. }
            | Error::UnknownConfigurationKey { .. } => Self::Refused(describe(&error)),
            _ => Self::Unclear(describe(&error)),
        }
    }
}

impl Failure {
    pub(crate) fn reason(self) -> String {
        match self {
            Self::NotFound => "not found".to_owned(),
            Self::Exists => "exists".to_owned(),
            Self::Refused(reason) | Self::Unclear(reason) => reason,
        }
    }
}

/// The error with its causes, in one line of bounded length: stores put whole XML pages into theirs.
fn describe(error: &Error) -> String {
    const CHARS_MAX: usize = 400;
    let mut text: String = error
        .to_string()
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    if let Some((at, _)) = text.char_indices().nth(CHARS_MAX) {
        text.truncate(at);
        text.push('…');
    }
    text
}
