//! What goes wrong with a call to a store, and how it looks to the caller. Compiled for tests and under `test-support`.
//!
//! Owns: the kinds of calls and faults, what comes before and after a call that meets one, the errors as object_store's S3 client
//! makes them (its source is a [`RequestFailed`] here, the client's own types cannot be made).
//! Not here: which call meets which fault (`faulty.rs`; a simulation draws them).

use bytes::Bytes;
use object_store::{Error, Result};
use std::time::Duration;

/// Which calls a fault is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// A plain put.
    Put,
    /// A put-if-absent.
    PutIfAbsent,
    /// The beginning of a multipart upload.
    MultipartBegin,
    /// One part.
    MultipartPart,
    /// The end of a multipart upload.
    MultipartComplete,
    /// Giving a multipart upload up.
    MultipartAbort,
    /// A read of an object or of a range.
    Get,
    /// A read of an object's length and time.
    Head,
    /// A listing.
    List,
    /// A deletion.
    Delete,
    /// A copy inside the store.
    Copy,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: this call goes well.
    None,
    /// The call is performed, the connection is reset before the reply.
    LoseReply,
    /// The call is performed, the connection is closed before the reply, as by a server that goes down.
    CloseReply,
    /// The call is performed, no reply ever comes.
    LoseReplyAndHang,
    /// The call is not performed: 503.
    Unavailable,
    /// The call is not performed: this status.
    Status(u16),
    /// The call is performed, the reply is this status nevertheless.
    StatusAfter(u16),
    /// The reply is 200 with an error as its body; whether the call was performed is in the flag.
    ErrorBody(bool),
    /// Nobody accepts the connection.
    NotConnected,
    /// The call is not performed, no reply ever comes.
    BlackHole,
    /// The call is not performed: 403.
    Refuse,
    /// The call is performed after this long.
    Slow(Duration),
    /// The call is performed once [`FaultyStore::heal`] is called.
    UntilHealed,
    /// A get brings this many bytes too few.
    ShortBody(usize),
    /// A get brings as many bytes as asked, from this many bytes further on.
    WrongRange(u64),
    /// A get brings this byte (modulo the length) with its lowest bit flipped.
    FlipBit(usize),
    /// A put-if-absent overwrites; a listing shows nothing.
    Lie,
}

/// Why a request failed, as the client's error says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestFailed {
    /// Any other status than a success.
    #[error("Server returned non-2xx status code: {0}")]
    Status(u16),
    /// A success whose body says otherwise.
    #[error("Server returned error response: <Error><Code>InternalError</Code></Error>")]
    ErrorBody,
    /// The request was not sent.
    #[error("HTTP error: error sending request: connection refused")]
    NotConnected,
    /// The client takes this as "not sent", though the server may have acted.
    #[error("HTTP error: error sending request: connection closed before message completed")]
    Closed,
    /// No reply came any more.
    #[error("HTTP error: error sending request: connection reset by peer")]
    Reset,
    /// No reply came within the client's own timeout.
    #[error("HTTP error: operation timed out")]
    TimedOut,
    /// The body ended early.
    #[error("HTTP error: error decoding response body: end of file before message length reached")]
    BrokenBody,
}

impl RequestFailed {
    /// The error that object_store's S3 client makes of it, for a call on `path`.
    #[must_use]
    pub fn error(self, path: &str) -> Error {
        let (path, source) = (path.to_owned(), Box::new(self));
        match self {
            Self::Status(404) => Error::NotFound { path, source },
            Self::Status(304) => Error::NotModified { path, source },
            Self::Status(412) => Error::Precondition { path, source },
            Self::Status(409) => Error::AlreadyExists { path, source },
            Self::Status(403) => Error::PermissionDenied { path, source },
            Self::Status(401) => Error::Unauthenticated { path, source },
            _ => Error::Generic {
                store: "S3",
                source,
            },
        }
    }
}

impl Fault {
    /// Meets the faults that come before the call is performed: after an error it was not.
    ///
    /// # Errors
    /// The fault's.
    pub async fn before(self) -> Result<()> {
        let failed = match self {
            Self::Unavailable => RequestFailed::Status(503),
            Self::Status(status) => RequestFailed::Status(status),
            Self::ErrorBody(false) => RequestFailed::ErrorBody,
            Self::NotConnected => RequestFailed::NotConnected,
            Self::Refuse => RequestFailed::Status(403),
            Self::BlackHole => return std::future::pending().await,
            Self::Slow(delay) => {
                tokio::time::sleep(delay).await;
                return Ok(());
            }
            _ => return Ok(()),
        };
        Err(failed.error(""))
    }

    /// Meets the faults that come after the call was performed.
    ///
    /// # Errors
    /// The call's own, or the fault's.
    pub async fn after<T>(self, done: Result<T>) -> Result<T> {
        let failed = match self {
            Self::LoseReply => RequestFailed::Reset,
            Self::CloseReply => RequestFailed::Closed,
            Self::StatusAfter(status) => RequestFailed::Status(status),
            Self::ErrorBody(true) => RequestFailed::ErrorBody,
            Self::LoseReplyAndHang => return std::future::pending().await,
            _ => return done,
        };
        Err(failed.error(""))
    }

    /// What comes of a body.
    #[must_use]
    pub fn spoil(self, bytes: Bytes) -> Bytes {
        match self {
            Self::ShortBody(missing) => bytes.slice(..bytes.len().saturating_sub(missing)),
            Self::FlipBit(at) if !bytes.is_empty() => {
                let mut copy = bytes.to_vec();
                let at = at % copy.len();
                copy[at] ^= 1;
                Bytes::from(copy)
            }
            _ => bytes,
        }
    }
}
