//! Why a consumer-group request is refused, and Kafka's code for it.

use crate::error::ErrorCode;

/// Why a request of a consumer group is refused. Only [`ConsumerGroupError::Unavailable`] may have happened nevertheless.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ConsumerGroupError {
    /// The generation has passed, or is not the group's.
    #[error("the generation is not the group's current one")]
    IllegalGeneration,
    /// The group does not know the member.
    #[error("the group does not know this member")]
    UnknownMember,
    /// A newer member with the same instance id has taken its place.
    #[error("a newer member with this instance id has taken its place")]
    FencedInstance,
    /// The group is rebalancing: join again.
    #[error("the group is rebalancing")]
    RebalanceInProgress,
    /// No protocol in common with the other members, or another protocol than the group's.
    #[error("no protocol in common with the group")]
    InconsistentProtocol,
    /// The group's name is empty or too long.
    #[error("not a group name")]
    InvalidGroup,
    /// The session timeout is out of bounds.
    #[error("the session timeout is out of bounds")]
    InvalidSessionTimeout,
    /// A field is out of its limits.
    #[error("a field is out of its limits")]
    InvalidRequest,
    /// The group has as many members, or as large ones, as it may have.
    #[error("the group is full")]
    GroupFull,
    /// No such group.
    #[error("no such group")]
    GroupNotFound,
    /// The group still has members.
    #[error("the group still has members")]
    NonEmptyGroup,
    /// The metadata of an offset is too long.
    #[error("the metadata of the offset is too long")]
    MetadataTooLarge,
    /// The commit is too large, or the group has too many offsets.
    #[error("the commit is too large")]
    CommitTooLarge,
    /// The offset lies past the partition's end, or is negative (R7).
    #[error("the offset is not one of the partition")]
    OffsetOutOfRange,
    /// No such partition.
    #[error("no such partition")]
    UnknownPartition,
    /// Another broker coordinates the group. Nothing happened.
    #[error("another broker coordinates the group")]
    NotCoordinator,
    /// Too much is under way, or the placement group holds as many groups as it may. Nothing happened.
    #[error("the coordinator is overloaded")]
    Overloaded,
    /// Who leads the partition does not say where it ends, or nobody leads it. Nothing happened.
    #[error("nobody says where the partition ends")]
    EndUnknown,
    /// No answer from the log in time. It may have happened.
    #[error("the log did not answer in time")]
    Unavailable,
    /// The assignment is too large for the log.
    #[error("the group's assignment is too large")]
    AssignmentTooLarge,
    /// A command in the log cannot be read.
    #[error("the command cannot be read")]
    Unreadable,
}

impl ConsumerGroupError {
    /// Kafka's code.
    #[must_use]
    pub const fn code(self) -> ErrorCode {
        match self {
            Self::IllegalGeneration => ErrorCode::IllegalGeneration,
            Self::UnknownMember => ErrorCode::UnknownMemberId,
            Self::FencedInstance => ErrorCode::FencedInstanceId,
            Self::RebalanceInProgress => ErrorCode::RebalanceInProgress,
            Self::InconsistentProtocol => ErrorCode::InconsistentGroupProtocol,
            Self::InvalidGroup => ErrorCode::InvalidGroupId,
            Self::InvalidSessionTimeout => ErrorCode::InvalidSessionTimeout,
            Self::InvalidRequest => ErrorCode::InvalidRequest,
            Self::GroupFull => ErrorCode::GroupMaxSizeReached,
            Self::GroupNotFound => ErrorCode::GroupIdNotFound,
            Self::NonEmptyGroup => ErrorCode::NonEmptyGroup,
            Self::MetadataTooLarge => ErrorCode::OffsetMetadataTooLarge,
            Self::CommitTooLarge => ErrorCode::InvalidCommitOffsetSize,
            Self::OffsetOutOfRange => ErrorCode::OffsetOutOfRange,
            Self::UnknownPartition => ErrorCode::UnknownTopicOrPartition,
            Self::NotCoordinator => ErrorCode::NotCoordinator,
            Self::Overloaded | Self::Unavailable => ErrorCode::CoordinatorNotAvailable,
            // Of the retriable codes the one after which clients keep their coordinator, which is not to blame.
            Self::EndUnknown => ErrorCode::CoordinatorLoadInProgress,
            Self::AssignmentTooLarge | Self::Unreadable => ErrorCode::UnknownServerError,
        }
    }
}
