//! Kafka's error codes, and the one place where the broker's own errors become such codes.
//!
//! Owns: the codes that Tidelog answers with, whether a client may try again, the mapping of batch errors.
//! Not here: the errors themselves; each module has its own and says what its caller may do.
//! Spec: docs/protocols/kafka-wire.md

use std::fmt;
use tidelog_model::batch::BatchError;

macro_rules! error_codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $kafka:literal, $retriable:literal;)*) => {
        /// A Kafka error code. Names and numbers are Kafka's.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(i16)]
        pub enum ErrorCode {
            $($(#[$doc])* $name = $code,)*
        }

        impl ErrorCode {
            /// Every code, ordered by number.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The number on the wire.
            #[must_use]
            pub const fn code(self) -> i16 {
                match self {
                    $(Self::$name => $code,)*
                }
            }

            /// Kafka's name, as in its documentation.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $kafka,)*
                }
            }

            /// Whether clients try again by themselves.
            #[must_use]
            pub const fn retriable(self) -> bool {
                match self {
                    $(Self::$name => $retriable,)*
                }
            }

            /// The error with this number, if Tidelog knows it.
            #[must_use]
            pub const fn from_code(code: i16) -> Option<Self> {
                match code {
                    $($code => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

error_codes! {
    /// What no other code says. Logged by the broker, always.
    UnknownServerError = -1, "UNKNOWN_SERVER_ERROR", false;
    /// No error.
    None = 0, "NONE", false;
    /// The offset is before the log start or after the high watermark.
    OffsetOutOfRange = 1, "OFFSET_OUT_OF_RANGE", false;
    /// The batch was damaged on its way.
    CorruptMessage = 2, "CORRUPT_MESSAGE", true;
    /// No such topic or partition here.
    UnknownTopicOrPartition = 3, "UNKNOWN_TOPIC_OR_PARTITION", true;
    /// A fetch size that is negative.
    InvalidFetchSize = 4, "INVALID_FETCH_SIZE", false;
    /// The partition has no leader at the moment.
    LeaderNotAvailable = 5, "LEADER_NOT_AVAILABLE", true;
    /// Another broker leads the partition. Nothing was appended.
    NotLeaderOrFollower = 6, "NOT_LEADER_OR_FOLLOWER", true;
    /// It may or may not have happened in time.
    RequestTimedOut = 7, "REQUEST_TIMED_OUT", true;
    /// The broker is not available.
    BrokerNotAvailable = 8, "BROKER_NOT_AVAILABLE", false;
    /// The replica is not available.
    ReplicaNotAvailable = 9, "REPLICA_NOT_AVAILABLE", true;
    /// The batch is larger than the topic allows.
    MessageTooLarge = 10, "MESSAGE_TOO_LARGE", false;
    /// The metadata of a committed offset is too long.
    OffsetMetadataTooLarge = 12, "OFFSET_METADATA_TOO_LARGE", false;
    /// The connection was lost before there was an answer.
    NetworkException = 13, "NETWORK_EXCEPTION", true;
    /// The coordinator is loading.
    CoordinatorLoadInProgress = 14, "COORDINATOR_LOAD_IN_PROGRESS", true;
    /// There is no coordinator at the moment.
    CoordinatorNotAvailable = 15, "COORDINATOR_NOT_AVAILABLE", true;
    /// Another broker coordinates this consumer group.
    NotCoordinator = 16, "NOT_COORDINATOR", true;
    /// The topic's name or the operation on this topic is not allowed.
    InvalidTopic = 17, "INVALID_TOPIC_EXCEPTION", false;
    /// More bytes in one request than a log entry may hold.
    RecordListTooLarge = 18, "RECORD_LIST_TOO_LARGE", false;
    /// Fewer replicas than `min.insync.replicas` are there.
    NotEnoughReplicas = 19, "NOT_ENOUGH_REPLICAS", true;
    /// Appended, but with fewer replicas than asked for.
    NotEnoughReplicasAfterAppend = 20, "NOT_ENOUGH_REPLICAS_AFTER_APPEND", true;
    /// `acks` is not -1, 0 or 1.
    InvalidRequiredAcks = 21, "INVALID_REQUIRED_ACKS", false;
    /// The generation of the consumer group has passed.
    IllegalGeneration = 22, "ILLEGAL_GENERATION", false;
    /// The members of the consumer group have no protocol in common.
    InconsistentGroupProtocol = 23, "INCONSISTENT_GROUP_PROTOCOL", false;
    /// The consumer group's id is empty or malformed.
    InvalidGroupId = 24, "INVALID_GROUP_ID", false;
    /// The consumer group does not know the member.
    UnknownMemberId = 25, "UNKNOWN_MEMBER_ID", false;
    /// The session timeout is out of bounds.
    InvalidSessionTimeout = 26, "INVALID_SESSION_TIMEOUT", false;
    /// The consumer group is rebalancing; join again.
    RebalanceInProgress = 27, "REBALANCE_IN_PROGRESS", false;
    /// The commit is larger than allowed.
    InvalidCommitOffsetSize = 28, "INVALID_COMMIT_OFFSET_SIZE", false;
    /// Not allowed on this topic.
    TopicAuthorizationFailed = 29, "TOPIC_AUTHORIZATION_FAILED", false;
    /// Not allowed on this consumer group.
    GroupAuthorizationFailed = 30, "GROUP_AUTHORIZATION_FAILED", false;
    /// Not allowed on the cluster.
    ClusterAuthorizationFailed = 31, "CLUSTER_AUTHORIZATION_FAILED", false;
    /// The timestamp is not acceptable.
    InvalidTimestamp = 32, "INVALID_TIMESTAMP", false;
    /// The SASL mechanism is not offered.
    UnsupportedSaslMechanism = 33, "UNSUPPORTED_SASL_MECHANISM", false;
    /// The request does not fit the state of the SASL exchange.
    IllegalSaslState = 34, "ILLEGAL_SASL_STATE", false;
    /// The version of the request is not served.
    UnsupportedVersion = 35, "UNSUPPORTED_VERSION", false;
    /// There is a topic of this name.
    TopicAlreadyExists = 36, "TOPIC_ALREADY_EXISTS", false;
    /// The number of partitions is not possible.
    InvalidPartitions = 37, "INVALID_PARTITIONS", false;
    /// The replication factor is not possible.
    InvalidReplicationFactor = 38, "INVALID_REPLICATION_FACTOR", false;
    /// The replica assignment is not possible.
    InvalidReplicaAssignment = 39, "INVALID_REPLICA_ASSIGNMENT", false;
    /// The name or value of a config is wrong.
    InvalidConfig = 40, "INVALID_CONFIG", false;
    /// Another broker is the controller.
    NotController = 41, "NOT_CONTROLLER", true;
    /// The request contradicts itself or the protocol.
    InvalidRequest = 42, "INVALID_REQUEST", false;
    /// The message format does not support this.
    UnsupportedForMessageFormat = 43, "UNSUPPORTED_FOR_MESSAGE_FORMAT", false;
    /// A policy forbids it.
    PolicyViolation = 44, "POLICY_VIOLATION", false;
    /// A gap in a producer's sequences.
    OutOfOrderSequenceNumber = 45, "OUT_OF_ORDER_SEQUENCE_NUMBER", false;
    /// The batch was appended before and is older than what is remembered.
    DuplicateSequenceNumber = 46, "DUPLICATE_SEQUENCE_NUMBER", false;
    /// The producer's epoch has passed.
    InvalidProducerEpoch = 47, "INVALID_PRODUCER_EPOCH", false;
    /// Not possible in the transaction's state.
    InvalidTxnState = 48, "INVALID_TXN_STATE", false;
    /// The producer id does not belong to the transactional id.
    InvalidProducerIdMapping = 49, "INVALID_PRODUCER_ID_MAPPING", false;
    /// The transaction timeout is out of bounds.
    InvalidTransactionTimeout = 50, "INVALID_TRANSACTION_TIMEOUT", false;
    /// Another operation of the same transaction is under way.
    ConcurrentTransactions = 51, "CONCURRENT_TRANSACTIONS", true;
    /// A newer coordinator has taken the transaction.
    TransactionCoordinatorFenced = 52, "TRANSACTION_COORDINATOR_FENCED", false;
    /// Not allowed with this transactional id.
    TransactionalIdAuthorizationFailed = 53, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", false;
    /// Security is not configured.
    SecurityDisabled = 54, "SECURITY_DISABLED", false;
    /// The partition is moving or being repaired.
    OperationNotAttempted = 55, "OPERATION_NOT_ATTEMPTED", false;
    /// The disk failed.
    KafkaStorageError = 56, "KAFKA_STORAGE_ERROR", true;
    /// No such log directory.
    LogDirNotFound = 57, "LOG_DIR_NOT_FOUND", false;
    /// Wrong credentials.
    SaslAuthenticationFailed = 58, "SASL_AUTHENTICATION_FAILED", false;
    /// The producer id is not known; its records may have expired.
    UnknownProducerId = 59, "UNKNOWN_PRODUCER_ID", false;
    /// A reassignment is under way.
    ReassignmentInProgress = 60, "REASSIGNMENT_IN_PROGRESS", false;
    /// The consumer group still has members.
    NonEmptyGroup = 68, "NON_EMPTY_GROUP", false;
    /// The consumer group does not exist.
    GroupIdNotFound = 69, "GROUP_ID_NOT_FOUND", false;
    /// The fetch session is not known.
    FetchSessionIdNotFound = 70, "FETCH_SESSION_ID_NOT_FOUND", true;
    /// The fetch session is at another epoch.
    InvalidFetchSessionEpoch = 71, "INVALID_FETCH_SESSION_EPOCH", true;
    /// There is no listener of that name on the leader.
    ListenerNotFound = 72, "LISTENER_NOT_FOUND", true;
    /// Topics cannot be deleted here.
    TopicDeletionDisabled = 73, "TOPIC_DELETION_DISABLED", false;
    /// The client's leader epoch is older than the broker's.
    FencedLeaderEpoch = 74, "FENCED_LEADER_EPOCH", true;
    /// The client's leader epoch is newer than the broker's.
    UnknownLeaderEpoch = 75, "UNKNOWN_LEADER_EPOCH", true;
    /// The codec is unknown, or needs a newer version of the request.
    UnsupportedCompressionType = 76, "UNSUPPORTED_COMPRESSION_TYPE", false;
    /// The broker epoch has passed.
    StaleBrokerEpoch = 77, "STALE_BROKER_EPOCH", false;
    /// The leader's high watermark is behind its start of leadership; ask again.
    OffsetNotAvailable = 78, "OFFSET_NOT_AVAILABLE", true;
    /// The member must join again with the id it was given.
    MemberIdRequired = 79, "MEMBER_ID_REQUIRED", false;
    /// The preferred leader is not available.
    PreferredLeaderNotAvailable = 80, "PREFERRED_LEADER_NOT_AVAILABLE", true;
    /// The consumer group is full.
    GroupMaxSizeReached = 81, "GROUP_MAX_SIZE_REACHED", false;
    /// A newer member with the same static id has taken its place.
    FencedInstanceId = 82, "FENCED_INSTANCE_ID", false;
    /// No leader could be elected.
    EligibleLeadersNotAvailable = 83, "ELIGIBLE_LEADERS_NOT_AVAILABLE", true;
    /// No election was needed.
    ElectionNotNeeded = 84, "ELECTION_NOT_NEEDED", true;
    /// No reassignment is under way.
    NoReassignmentInProgress = 85, "NO_REASSIGNMENT_IN_PROGRESS", false;
    /// The consumer group reads the topic.
    GroupSubscribedToTopic = 86, "GROUP_SUBSCRIBED_TO_TOPIC", false;
    /// A record broke a rule; the same batch will be refused again.
    InvalidRecord = 87, "INVALID_RECORD", false;
    /// Some offsets cannot be committed yet.
    UnstableOffsetCommit = 88, "UNSTABLE_OFFSET_COMMIT", true;
    /// A quota was passed.
    ThrottlingQuotaExceeded = 89, "THROTTLING_QUOTA_EXCEEDED", true;
    /// A newer producer has the same transactional id.
    ProducerFenced = 90, "PRODUCER_FENCED", false;
    /// No such resource.
    ResourceNotFound = 91, "RESOURCE_NOT_FOUND", false;
    /// The resource is there twice.
    DuplicateResource = 92, "DUPLICATE_RESOURCE", false;
    /// The credential breaks a rule.
    UnacceptableCredential = 93, "UNACCEPTABLE_CREDENTIAL", false;
    /// No topic with this id.
    UnknownTopicId = 100, "UNKNOWN_TOPIC_ID", true;
    /// No broker with this id is registered.
    BrokerIdNotRegistered = 102, "BROKER_ID_NOT_REGISTERED", false;
    /// The topic id is not that of the fetch session.
    InconsistentTopicId = 103, "INCONSISTENT_TOPIC_ID", true;
    /// The cluster id is not ours.
    InconsistentClusterId = 104, "INCONSISTENT_CLUSTER_ID", false;
    /// No such transactional id.
    TransactionalIdNotFound = 105, "TRANSACTIONAL_ID_NOT_FOUND", false;
    /// The topic id changed within the fetch session.
    FetchSessionTopicIdError = 106, "FETCH_SESSION_TOPIC_ID_ERROR", true;
    /// The member's epoch was fenced.
    FencedMemberEpoch = 110, "FENCED_MEMBER_EPOCH", false;
    /// Another member owns the static id.
    UnreleasedInstanceId = 111, "UNRELEASED_INSTANCE_ID", false;
    /// The assignor is not offered.
    UnsupportedAssignor = 112, "UNSUPPORTED_ASSIGNOR", false;
    /// The member's epoch has passed.
    StaleMemberEpoch = 113, "STALE_MEMBER_EPOCH", false;
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl From<BatchError> for ErrorCode {
    fn from(error: BatchError) -> Self {
        match error {
            BatchError::Incomplete { .. } | BatchError::Corrupt(_) => Self::CorruptMessage,
            BatchError::TooLarge { .. } => Self::MessageTooLarge,
            BatchError::UnknownCodec(_) => Self::UnsupportedCompressionType,
            BatchError::InvalidTimestamp(_) => Self::InvalidTimestamp,
            BatchError::InvalidRecord(_) => Self::InvalidRecord,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that every code is found by its number, and that numbers rise, so that none is there twice.
    #[test]
    fn codes_are_distinct_and_found_again() {
        for code in ErrorCode::ALL {
            assert_eq!(ErrorCode::from_code(code.code()), Some(*code));
        }
        assert!(
            ErrorCode::ALL
                .windows(2)
                .all(|pair| pair[0].code() < pair[1].code())
        );
        assert_eq!(ErrorCode::from_code(32_000), None);
    }
}
