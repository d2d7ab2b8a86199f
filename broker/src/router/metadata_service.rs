//! The answering side of metadata forwarding, and its bytes.
//!
//! Owns: [`MetadataService`]; requests and answers of the service.
//! Not here: the asking side (`metadata_client.rs`), bytes of commands and outcomes (`metadata`).
//! Spec: docs/protocols/metadata-forwarding.md

use super::heartbeats::{BrokerSessions, HeartbeatError};
use crate::format::{FormatError, Reader, Writer};
use crate::metadata::{MetadataMachine, MetadataOutcome, Standing, decode_command};
use crate::peer::{CallService, Caller};
use crate::placement::{Group, ProposeError};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use std::sync::Arc;
use tidelog_env::Clock;
use tidelog_model::{LogId, LogIndex, NodeId, Term, TimestampMs};

const VERSION: u8 = 1;

const PROPOSE: u8 = 1;
const BARRIER: u8 = 2;
const HEARTBEAT: u8 = 3;

const DONE: u8 = 0;
const NOT_LEADER: u8 = 1;
const DID_NOT_HAPPEN: u8 = 2;
const MAY_HAVE_HAPPENED: u8 = 3;
const NOT_MEMBER: u8 = 4;

/// What is asked of the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Propose this command.
    Propose(Bytes),
    /// Say up to where an image must be applied to be current.
    Barrier,
    /// The caller lives.
    Heartbeat {
        /// It is about to stop.
        leaving: bool,
    },
}

/// What the leader says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Applied at this log id; the outcome of a proposal.
    Done(LogId, Option<MetadataOutcome>),
    /// Another broker leads.
    NotLeader(Option<NodeId>),
    /// Nothing was done.
    DidNotHappen(String),
    /// Nobody knows.
    MayHaveHappened(String),
    /// The caller is no member any more; whether another data directory has its broker id now.
    NotMember { replaced: bool },
}

impl Request {
    pub(super) fn encode(&self) -> Bytes {
        let mut to = Writer::new();
        to.u8(VERSION);
        match self {
            Self::Propose(command) => {
                to.u8(PROPOSE);
                to.raw(command);
            }
            Self::Barrier => to.u8(BARRIER),
            Self::Heartbeat { leaving } => {
                to.u8(HEARTBEAT);
                to.u8(u8::from(*leaving));
            }
        }
        to.finish()
    }

    fn decode(bytes: &Bytes) -> Result<Self, FormatError> {
        let mut from = Reader::new(bytes);
        version(&mut from)?;
        match from.u8("the kind")? {
            PROPOSE => Ok(Self::Propose(bytes.slice(2..))),
            BARRIER => from.finish().map(|()| Self::Barrier),
            HEARTBEAT => {
                let leaving = from.flag("whether the caller stops")?;
                from.finish().map(|()| Self::Heartbeat { leaving })
            }
            _ => Err(FormatError::Invalid("the kind")),
        }
    }
}

fn version(from: &mut Reader<'_>) -> Result<(), FormatError> {
    match from.u8("the version")? {
        VERSION => Ok(()),
        other => Err(FormatError::Version(u16::from(other))),
    }
}

impl Answer {
    pub(super) fn encode(&self) -> Bytes {
        let mut to = Writer::new();
        to.u8(VERSION);
        match self {
            Self::Done(id, outcome) => {
                to.u8(DONE);
                to.u64(id.term.get());
                to.u64(id.index.get());
                if let Some(outcome) = outcome {
                    outcome.encode(&mut to);
                }
            }
            Self::NotLeader(leader) => {
                to.u8(NOT_LEADER);
                to.i32(leader.map_or(-1, NodeId::get));
            }
            Self::DidNotHappen(why) => {
                to.u8(DID_NOT_HAPPEN);
                to.text(why);
            }
            Self::MayHaveHappened(why) => {
                to.u8(MAY_HAVE_HAPPENED);
                to.text(why);
            }
            Self::NotMember { replaced } => {
                to.u8(NOT_MEMBER);
                to.u8(u8::from(*replaced));
            }
        }
        to.finish()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        const DONE_BYTES: usize = 18;
        let mut from = Reader::new(bytes);
        version(&mut from)?;
        let answer = match from.u8("the kind")? {
            DONE => {
                let term = Term::new(from.u64("the term")?);
                let index = LogIndex::new(from.u64("the index")?);
                let outcome = (bytes.len() > DONE_BYTES)
                    .then(|| MetadataOutcome::decode(&mut from))
                    .transpose()?;
                Self::Done(LogId { term, index }, outcome)
            }
            NOT_LEADER => {
                let leader = from.i32("the leader")?;
                Self::NotLeader((leader >= 0).then(|| NodeId::new(leader)))
            }
            DID_NOT_HAPPEN => Self::DidNotHappen(from.text("the reason")?),
            MAY_HAVE_HAPPENED => Self::MayHaveHappened(from.text("the reason")?),
            NOT_MEMBER => Self::NotMember {
                replaced: from.flag("whether it was replaced")?,
            },
            _ => return Err(FormatError::Invalid("the kind")),
        };
        from.finish()?;
        Ok(answer)
    }
}

impl From<ProposeError> for Answer {
    fn from(error: ProposeError) -> Self {
        match error {
            ProposeError::NotLeader { leader } => Self::NotLeader(leader),
            error if error.may_have_happened() => Self::MayHaveHappened(error.to_string()),
            error => Self::DidNotHappen(error.to_string()),
        }
    }
}

impl From<HeartbeatError> for Answer {
    fn from(error: HeartbeatError) -> Self {
        match error {
            HeartbeatError::Unheard(error) => error.into(),
            HeartbeatError::NotMember(standing) => Self::NotMember {
                replaced: standing == Standing::Replaced,
            },
        }
    }
}

/// Proposes what other brokers send, on the broker that leads the metadata group.
pub struct MetadataService {
    group: Group<MetadataMachine>,
    sessions: BrokerSessions,
    clock: Arc<dyn Clock>,
}

impl MetadataService {
    /// A service over this broker's replica.
    #[must_use]
    pub fn new(
        group: Group<MetadataMachine>,
        sessions: BrokerSessions,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            group,
            sessions,
            clock,
        }
    }
}

async fn answer(
    group: Group<MetadataMachine>,
    sessions: BrokerSessions,
    stamp: TimestampMs,
    caller: &Caller,
    request: Bytes,
) -> Answer {
    match Request::decode(&request) {
        Ok(Request::Propose(command)) => match decode_command(&command) {
            // The leader's stamp, whatever the caller's clock says (D7).
            Ok((command, _)) => match group.propose(command.encode(stamp)).await {
                Ok((id, outcome)) => Answer::Done(id, Some(outcome)),
                Err(error) => error.into(),
            },
            Err(error) => Answer::DidNotHappen(format!("the command cannot be read: {error}")),
        },
        Ok(Request::Barrier) => match group.read_barrier().await {
            Ok(()) => {
                let applied = *group.applied().borrow();
                Answer::Done(applied.unwrap_or_default(), None)
            }
            Err(error) => error.into(),
        },
        Ok(Request::Heartbeat { leaving }) => {
            let caller = (caller.broker, caller.node);
            match sessions.hear(&group, caller, leaving, stamp).await {
                Ok(id) => Answer::Done(id, None),
                Err(error) => error.into(),
            }
        }
        Err(error) => Answer::DidNotHappen(format!("the request cannot be read: {error}")),
    }
}

impl CallService for MetadataService {
    fn call(&self, caller: Caller, request: Bytes) -> BoxFuture<'static, Bytes> {
        let stamp = TimestampMs::new(self.clock.now_ms());
        let (group, sessions) = (self.group.clone(), self.sessions.clone());
        async move {
            let answered = answer(group, sessions, stamp, &caller, request).await;
            answered.encode()
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn answers() -> Vec<(Answer, &'static str)> {
        let id = LogId {
            term: Term::new(3),
            index: LogIndex::new(258),
        };
        let outcome = Some(MetadataOutcome::BrokerRegistered);
        vec![
            (
                Answer::Done(id, outcome),
                "010003000000000000000201000000000000 02",
            ),
            (
                Answer::Done(id, None),
                "010003000000000000000201000000000000",
            ),
            (Answer::NotLeader(Some(NodeId::new(2))), "010102000000"),
            (Answer::NotLeader(None), "0101ffffffff"),
            (Answer::NotMember { replaced: true }, "010401"),
            (Answer::NotMember { replaced: false }, "010400"),
        ]
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Proves that requests and answers are the bytes of the page, and come back as they went.
    #[test]
    fn bytes_of_version_1() {
        for (answer, bytes) in answers() {
            assert_eq!(hex(&answer.encode()), bytes.replace(' ', ""));
            assert_eq!(Answer::decode(&answer.encode()).unwrap(), answer);
        }
        for answer in [
            Answer::DidNotHappen("a".to_owned()),
            Answer::MayHaveHappened("b".to_owned()),
        ] {
            let bytes = answer.encode();
            assert_eq!(Answer::decode(&bytes).unwrap(), answer);
            for length in 0..bytes.len() {
                assert!(Answer::decode(&bytes[..length]).is_err());
            }
        }
        let propose = Request::Propose(Bytes::from_static(b"xy"));
        assert_eq!(&propose.encode()[..], b"\x01\x01xy");
        let heartbeat = Request::Heartbeat { leaving: true };
        assert_eq!(&heartbeat.encode()[..], b"\x01\x03\x01");
        for request in [propose, Request::Barrier, heartbeat] {
            assert_eq!(Request::decode(&request.encode()).unwrap(), request);
        }
        assert!(Request::decode(&Bytes::from_static(&[2, 1])).is_err());
        assert!(Request::decode(&Bytes::from_static(&[1, 2, 0])).is_err());
        assert!(Request::decode(&Bytes::from_static(&[1, 3])).is_err());
        assert!(Request::decode(&Bytes::from_static(&[1, 3, 2])).is_err());
    }

    /// Proves that what may have happened is never answered as if it had not.
    #[test]
    fn errors_keep_what_they_leave_open() {
        for error in [
            ProposeError::NotLeader { leader: None },
            ProposeError::TooLarge {
                bytes: 2,
                bytes_max: 1,
            },
            ProposeError::Overloaded,
            ProposeError::Timeout,
            ProposeError::Unknown,
            ProposeError::Fatal(String::new()),
        ] {
            let open = error.may_have_happened();
            let answer = Answer::from(error);
            assert_eq!(matches!(answer, Answer::MayHaveHappened(_)), open);
        }
    }
}
