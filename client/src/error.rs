//! What can go wrong, and what the caller may do about it.
//!
//! Owns: the error type of the library, Kafka's error codes with their meaning, did-not-happen and may-have-happened.
//! Not here: how often something is tried again (`retry`).

use std::fmt;
use std::time::Duration;

/// A Kafka error code as it stands on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ErrorCode(i16);

/// What a code lets the caller do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// The leader or coordinator is elsewhere: refresh the metadata, then again. Did not happen.
    Moved,
    /// Wait, then again. Did not happen.
    Wait,
    /// Wait, then again, with the same identity and sequence: it may have happened.
    Unknown,
    /// Again will not help. Did not happen.
    Final,
}

macro_rules! codes {
    ($($code:literal $constant:ident $class:ident),+ $(,)?) => {
        impl ErrorCode {
            $(
                #[allow(missing_docs, reason = "Kafka's own name")]
                pub const $constant: Self = Self($code);
            )+

            /// Kafka's name of the code.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self.0 {
                    $($code => stringify!($constant),)+
                    _ => "UNKNOWN_CODE",
                }
            }

            /// What the code lets the caller do. A code this client does not know is final.
            #[must_use]
            pub fn class(self) -> Class {
                match self.0 {
                    $($code => Class::$class,)+
                    _ => Class::Final,
                }
            }
        }
    };
}

codes! {
    -1 UNKNOWN_SERVER_ERROR Unknown,
    0 NONE Final,
    1 OFFSET_OUT_OF_RANGE Final,
    2 CORRUPT_MESSAGE Wait,
    3 UNKNOWN_TOPIC_OR_PARTITION Moved,
    4 INVALID_FETCH_SIZE Final,
    5 LEADER_NOT_AVAILABLE Moved,
    6 NOT_LEADER_OR_FOLLOWER Moved,
    7 REQUEST_TIMED_OUT Unknown,
    8 BROKER_NOT_AVAILABLE Moved,
    9 REPLICA_NOT_AVAILABLE Moved,
    10 MESSAGE_TOO_LARGE Final,
    12 OFFSET_METADATA_TOO_LARGE Final,
    13 NETWORK_EXCEPTION Unknown,
    14 COORDINATOR_LOAD_IN_PROGRESS Wait,
    15 COORDINATOR_NOT_AVAILABLE Moved,
    16 NOT_COORDINATOR Moved,
    17 INVALID_TOPIC_EXCEPTION Final,
    18 RECORD_LIST_TOO_LARGE Final,
    19 NOT_ENOUGH_REPLICAS Wait,
    20 NOT_ENOUGH_REPLICAS_AFTER_APPEND Unknown,
    21 INVALID_REQUIRED_ACKS Final,
    22 ILLEGAL_GENERATION Final,
    23 INCONSISTENT_GROUP_PROTOCOL Final,
    24 INVALID_GROUP_ID Final,
    25 UNKNOWN_MEMBER_ID Final,
    26 INVALID_SESSION_TIMEOUT Final,
    27 REBALANCE_IN_PROGRESS Wait,
    28 INVALID_COMMIT_OFFSET_SIZE Final,
    29 TOPIC_AUTHORIZATION_FAILED Final,
    30 GROUP_AUTHORIZATION_FAILED Final,
    31 CLUSTER_AUTHORIZATION_FAILED Final,
    32 INVALID_TIMESTAMP Final,
    33 UNSUPPORTED_SASL_MECHANISM Final,
    34 ILLEGAL_SASL_STATE Final,
    35 UNSUPPORTED_VERSION Final,
    36 TOPIC_ALREADY_EXISTS Final,
    37 INVALID_PARTITIONS Final,
    38 INVALID_REPLICATION_FACTOR Final,
    39 INVALID_REPLICA_ASSIGNMENT Final,
    40 INVALID_CONFIG Final,
    41 NOT_CONTROLLER Moved,
    42 INVALID_REQUEST Final,
    43 UNSUPPORTED_FOR_MESSAGE_FORMAT Final,
    44 POLICY_VIOLATION Final,
    45 OUT_OF_ORDER_SEQUENCE_NUMBER Final,
    46 DUPLICATE_SEQUENCE_NUMBER Final,
    47 INVALID_PRODUCER_EPOCH Final,
    51 CONCURRENT_TRANSACTIONS Wait,
    53 TRANSACTIONAL_ID_AUTHORIZATION_FAILED Final,
    56 KAFKA_STORAGE_ERROR Moved,
    58 SASL_AUTHENTICATION_FAILED Final,
    59 UNKNOWN_PRODUCER_ID Final,
    69 GROUP_ID_NOT_FOUND Final,
    74 FENCED_LEADER_EPOCH Moved,
    75 UNKNOWN_LEADER_EPOCH Wait,
    76 UNSUPPORTED_COMPRESSION_TYPE Final,
    78 OFFSET_NOT_AVAILABLE Wait,
    79 MEMBER_ID_REQUIRED Final,
    82 FENCED_INSTANCE_ID Final,
    87 INVALID_RECORD Final,
    89 THROTTLING_QUOTA_EXCEEDED Wait,
    100 UNKNOWN_TOPIC_ID Moved,
}

impl ErrorCode {
    /// Wraps a code of a response.
    #[must_use]
    pub const fn new(code: i16) -> Self {
        Self(code)
    }

    /// The raw code.
    #[must_use]
    pub const fn get(self) -> i16 {
        self.0
    }

    /// `Ok` for code 0, else an error that names `what` was asked and the broker's own text.
    pub fn check(self, what: impl Into<String>, message: Option<&str>) -> Result<(), Error> {
        if self == Self::NONE {
            return Ok(());
        }
        Err(Error::Broker {
            code: self,
            what: what.into(),
            message: message.filter(|text| !text.is_empty()).map(str::to_owned),
        })
    }
}

impl fmt::Debug for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

/// Whether the thing that was asked for can have been done all the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It was certainly not done.
    DidNotHappen,
    /// It may have been done; only a look at the result, or the same sequence again, can tell.
    MayHaveHappened,
}

/// An error of this library.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// No connection. Did not happen.
    #[error("cannot reach {address}{known_by}: {cause}. {advice}")]
    Unreachable {
        /// `host:port` that was dialled.
        address: String,
        /// Where the address comes from, as text: empty, or who advertised it.
        known_by: String,
        /// The system's words.
        cause: String,
        /// What to do next.
        advice: String,
    },
    /// The connection ended before the first byte of the request was written. Did not happen.
    #[error("the connection to {address} closed before the request was sent: {cause}")]
    NotSent {
        /// The broker.
        address: String,
        /// Why.
        cause: String,
    },
    /// The connection ended, or the deadline passed, after the request was (partly) sent. May have happened.
    #[error("no answer from {address}: {cause}")]
    NoAnswer {
        /// The broker.
        address: String,
        /// Why.
        cause: String,
    },
    /// The answer cannot be understood. May have happened.
    #[error("{address} does not speak the Kafka protocol as expected: {cause}")]
    Protocol {
        /// The broker.
        address: String,
        /// What is wrong.
        cause: String,
    },
    /// The broker and this client have no version of the request in common. Did not happen.
    #[error("{address} does not serve {api} in a version this client speaks ({cause})")]
    Unsupported {
        /// The broker.
        address: String,
        /// The request.
        api: String,
        /// The two ranges.
        cause: String,
    },
    /// The broker answered with an error code.
    #[error("{what}: {code}{}", message.as_deref().map(|text| format!(": {text}")).unwrap_or_default())]
    Broker {
        /// The code.
        code: ErrorCode,
        /// What was asked.
        what: String,
        /// The broker's text.
        message: Option<String>,
    },
    /// The deadline passed while trying again; `last` is the newest reason.
    #[error("gave up after {:.1} s: {last}", after.as_secs_f64())]
    Deadline {
        /// How long was tried.
        after: Duration,
        /// Whether any of the attempts may have happened.
        outcome: Outcome,
        /// The newest reason.
        last: Box<Error>,
    },
    /// The caller asks for something impossible. Did not happen.
    #[error("{0}")]
    Invalid(String),
    /// What a broker served is damaged.
    #[error("{what} is damaged: {cause}")]
    Corrupt {
        /// Where.
        what: String,
        /// How.
        cause: String,
    },
    /// The component was stopped. Did not happen.
    #[error("stopped")]
    Stopped,
}

impl Error {
    /// Whether what was asked for can have been done all the same.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::NoAnswer { .. } | Self::Protocol { .. } => Outcome::MayHaveHappened,
            Self::Broker { code, .. } if code.class() == Class::Unknown => Outcome::MayHaveHappened,
            Self::Deadline { outcome, .. } => *outcome,
            Self::Unreachable { .. }
            | Self::NotSent { .. }
            | Self::Unsupported { .. }
            | Self::Broker { .. }
            | Self::Invalid(_)
            | Self::Corrupt { .. }
            | Self::Stopped => Outcome::DidNotHappen,
        }
    }

    /// Whether the same thing may work when tried again. (Whether it is safe to try again is [`Error::outcome`].)
    #[must_use]
    pub fn is_retriable(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::NotSent { .. } | Self::NoAnswer { .. } => true,
            Self::Broker { code, .. } => code.class() != Class::Final,
            Self::Protocol { .. }
            | Self::Unsupported { .. }
            | Self::Deadline { .. }
            | Self::Invalid(_)
            | Self::Corrupt { .. }
            | Self::Stopped => false,
        }
    }

    /// Whether the metadata must be refreshed before another attempt.
    #[must_use]
    pub fn wants_metadata(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::NotSent { .. } | Self::NoAnswer { .. } => true,
            Self::Broker { code, .. } => code.class() == Class::Moved,
            _ => false,
        }
    }

    /// The broker's code, if a broker answered.
    #[must_use]
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Broker { code, .. } => Some(*code),
            Self::Deadline { last, .. } => last.code(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    /// Proves which codes leave the outcome open: only those a broker gives when it may have appended.
    #[test]
    fn outcome_of_codes() {
        for code in i16::MIN..=i16::MAX {
            let open = matches!(code, -1 | 7 | 13 | 20);
            let Err(error) = ErrorCode::new(code).check("produce", None) else {
                assert_eq!(code, 0);
                continue;
            };
            assert_eq!(error.outcome() == Outcome::MayHaveHappened, open, "{code}");
            assert!(!open || error.is_retriable());
        }
    }

    /// Proves the text: what, which code, the broker's words.
    #[test]
    fn broker_error_text() {
        let error = ErrorCode::TOPIC_ALREADY_EXISTS
            .check("create topic a", Some("it is there"))
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "create topic a: TOPIC_ALREADY_EXISTS (36): it is there"
        );
        let error = ErrorCode::new(9999).check("x", Some("")).unwrap_err();
        assert_eq!(error.to_string(), "x: UNKNOWN_CODE (9999)");
        assert!(!error.is_retriable());
    }
}
