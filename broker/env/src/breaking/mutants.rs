//! The mutants.
//!
//! Owns: their names, what each breaks, and where such a fault was seen.
//! Not here: what they do (the code that asks).
//! Spec: docs/simulation.md (mutants)
//!
//! The words of each: the fault; the invariants that it breaks (docs/INVARIANTS.md); where one like it was seen.

super::named! {
    /// A fault of this system or of one like it, switched on to see whether the simulation finds it.
    Mutant {
        // The group log.
        /// Appends are acknowledged when they are written; they are synced when the file is full.
        /// I7, I1. nats-server#7564, automq#106.
        AckBeforeSync = "ack-before-sync",
        /// A failed sync is taken for a good one.
        /// I7, I1. PostgreSQL's fsync of 2018, raft-engine#131, cockroach#37102.
        SyncErrorIgnored = "sync-error-ignored",
        /// A saved vote waits neither for its own sync nor for that of the appends before it.
        /// I4, I1. A vote in a file of its own, beside the log (consensus.md 1.4); yugabyte-db#32875.
        VoteNotWaitedFor = "vote-not-waited-for",
        /// Names in a group's directory are not synced after a file was created or renamed.
        /// I1. databend#19438; LevelDB and others before 2014.
        DirectoryNotSynced = "directory-not-synced",
        /// What lies behind a torn end of the log is not cleared, and is found again behind what is written there next.
        /// I1, I2. The stale ends of write-ahead logs (consensus.md 3.3).
        TornTailKept = "torn-tail-kept",
        /// Recovery takes a frame whose header is good, whatever its body is.
        /// I8, I1. Torn writes of write-ahead logs whose records have a checksum of their head alone.
        TornBodyAccepted = "torn-body-accepted",
        /// Damage before the highest synced position is cut as a torn end.
        /// I1. nats-server#7549.
        DamageCut = "damage-cut",
        /// Recovery does not write and sync again what it could read, but which is perhaps on no disk.
        /// I7, I1. neon#8140, turso#3077: acknowledged out of the page cache.
        RecoveredEndNotSynced = "recovered-end-not-synced",
        /// A truncation is in effect and never written.
        /// I1. A vote, a truncation, and entries in files of their own, of which one is behind (consensus.md 1.4).
        TruncateNotLogged = "truncate-not-logged",
        /// Checksums of frames depend on their position alone: those of a file's last life are good in its next one.
        /// I1, I2. Recycled files of write-ahead logs: RocksDB's records before they had log numbers.
        StaleFramesValid = "stale-frames-valid",
        /// A checkpoint gets its name before its bytes are synced.
        /// I1, I10. The empty files of ext4's delayed allocation.
        CheckpointNotSynced = "checkpoint-not-synced",
        /// Identity, list of groups, and mark of damage get their names before their bytes are synced.
        /// I1, I4. The same; Kafka's meta.properties and checkpoint files of length 0.
        RecordNotSynced = "record-not-synced",
        /// Bytes read from the local log are served whatever their checksums say.
        /// I8, I2. nats-server#7549.
        LocalCrcIgnored = "local-crc-ignored",

        // Placement.
        /// An append whose answer was lost counts as acknowledged, so a leader commits alone.
        /// I1, I7. openraft#1802 (a commit without a quorum), and its stale acknowledgements of pipelines.
        LostReplyAcknowledges = "lost-reply-acknowledges",
        /// Any answer to a candidate counts as a vote for it.
        /// I4, I1. openraft#1220, databend#16175.
        RefusalCountsAsVote = "refusal-counts-as-vote",
        /// A new leader serves before an entry of its own term is applied.
        /// I5, I3. Raft's dissertation, 6.4; KIP-101.
        BarrierSkipped = "barrier-skipped",
        /// A leader serves reads though no quorum has answered it for long.
        /// I4, I5. etcd#741 and others: stale reads of a deposed leader.
        LeaseIgnored = "lease-ignored",
        /// A follower serves readers though it has not heard its leader, and however far it is behind.
        /// I4, I5. KAFKA-9835 and other reads past what a replica may show (KIP-392).
        FollowerServesUnheard = "follower-serves-unheard",
        /// The leader epoch of a partition stays what it was in its first term.
        /// I4. librdkafka#4804, field report A23.
        LeaderEpochNotBumped = "leader-epoch-not-bumped",
        /// A peer's snapshot is installed in memory, and not saved before the log is purged behind it.
        /// I1. openraft's snapshots over a committed index.
        InstalledSnapshotNotSaved = "installed-snapshot-not-saved",
        /// A replica that installed a snapshot forgets the members that came with it.
        /// I4. openraft#1808.
        SnapshotDropsMembers = "snapshot-drops-members",
        /// A replica that holds nothing, or has lost what it acknowledged, votes.
        /// I1, I4. Ids of Raft nodes used again after a disk was wiped (openraft's FAQ).
        EmptyReplicaVotes = "empty-replica-votes",
        /// A follower that lacks what it had acknowledged is caught up as any other.
        /// I1. nats-server#7549, openraft's log reversion.
        RevertedNotDetected = "reverted-not-detected",
        /// A damaged broker is refilled though other copies lack some of what it has.
        /// I1. Recovery from a copy that is behind, which Raft without the one that is repaired may elect (consensus.md 3.3).
        RefillCountsStale = "refill-counts-stale",
        /// A log that was here and is gone is made anew, empty.
        /// I1, I4. Kafka's log directory that was not mounted (KIP-858).
        HeldIgnored = "held-ignored",

        // Partitions.
        /// Snapshots have no producers: retries after a restart are appended again.
        /// I3. Producer snapshots of Kafka that were lost or came too late.
        ProducersNotInSnapshot = "producers-not-in-snapshot",
        /// A producer that a new partition does not know begins at any sequence: its second batch overtakes the first, which was refused.
        /// I3. Kafka since KIP-360; this system until the simulation found it.
        FirstBatchOvertaken = "first-batch-overtaken",
        /// A retry is known only if it is of the newest batch.
        /// I3. KAFKA-5494: idempotent producers with several requests in flight.
        DuplicateOnlyNewest = "duplicate-only-newest",
        /// A batch that begins at or before the newest sequence is appended.
        /// I3. Field report A26.
        RetryAppended = "retry-appended",
        /// A producer's new epoch begins with the batches of its old one, and what looks like them is not appended.
        /// I3, I1. Sequences of an idempotent producer after its epoch was bumped (KIP-360).
        EpochBumpKeepsBatches = "epoch-bump-keeps-batches",
        /// Apply looks at what this replica has on its own disk: a cut forgets producers of partitions that have nothing local.
        /// I3. KAFKA-20732, field report A01: replicas that decide by local bytes.
        ApplyReadsLocal = "apply-reads-local",
        /// A topic that is deleted stays in the cut that waits for its upload.
        /// I11. redpanda#26052, field report A09: an upload that is stuck for ever.
        DeletedTopicStaysInCut = "deleted-topic-stays-in-cut",
        /// The last record before a cut is not uploaded, and counts as uploaded.
        /// I6, I1. redpanda#3272: the manifest's range is not the object's.
        LastRecordNotUploaded = "last-record-not-uploaded",

        // Tiers.
        /// The local log is forgotten up to a cut before that is uploaded.
        /// I6, I10. redpanda#11121.
        TrimBeforeUpload = "trim-before-upload",
        /// The local log is purged before the manifest of the cut is published.
        /// I10. The order data, commit, publish, trim; Neon's upload queue keeps the like.
        PurgeBeforePublish = "purge-before-publish",
        /// Replicas that do not lead upload and publish.
        /// I4. redpanda#3272, field report A03.
        DeposedLeaderPublishes = "deposed-leader-publishes",
        /// Objects are named after their cut, not uniquely.
        /// I9. redpanda#3272, field report A03.
        ObjectNameReused = "object-name-reused",
        /// An upload that failed counts as done, since it may have happened.
        /// I9, I6. Field reports A02 and A04.
        UploadNotVerified = "upload-not-verified",
        /// A put-if-absent overwrites.
        /// I9. minio#21603: a store that ignores the condition.
        PutIfAbsentOverwrites = "put-if-absent-overwrites",
        /// A key that is taken counts as taken by this writer, whatever it holds.
        /// I9, I4. slatedb#766: answers that were lost and guessed.
        ExistsTakenAsOwn = "exists-taken-as-own",
        /// A manifest is published under the sequence number of the one before.
        /// I9. redpanda#3272.
        ManifestSequenceReused = "manifest-sequence-reused",
        /// Bytes read from the store are served whatever their checksums say.
        /// I8, I2. Proxies and stores that answer with other bytes, or another range.
        RemoteCrcIgnored = "remote-crc-ignored",
        /// A read of the store begins one offset late.
        /// I2. redpanda#9815, field report A10: off by one at the border of tiers.
        RemoteRangeOffByOne = "remote-range-off-by-one",
        /// A segment that cannot be read now is passed over.
        /// I2, I6. redpanda#11121, apache/pinot#12608: silent gaps in replays.
        UnreadableSegmentSkipped = "unreadable-segment-skipped",

        // Consumer groups.
        /// Commits are taken from members that the group does not have, and of any generation.
        /// I5. Members that slept through a rebalance, and commit when they wake; R5 of the requirements.
        GenerationNotChecked = "generation-not-checked",
        /// Committed offsets are lost with each new generation.
        /// I5. KAFKA-13636, field report A27.
        OffsetsLostOnGeneration = "offsets-lost-on-generation",
        /// Committed offsets are read by a coordinator that does not know whether it still leads.
        /// I5, I4. Coordinators of Kafka that answer after they were replaced.
        OffsetsReadWithoutBarrier = "offsets-read-without-barrier",
        /// A snapshot brings partitions, and not the consumer groups that are in it.
        /// I5. redpanda#4900, field report A28.
        SnapshotKeepsConsumerGroups = "snapshot-keeps-consumer-groups",
        /// Offsets behind the end of a partition are committed.
        /// I5. R7 of the requirements; DataDog/integrations-core#24165.
        CommitBoundIgnored = "commit-bound-ignored",

        // Metadata.
        /// A topic's id comes from its name, so a topic that is made again is the old one.
        /// I15. Kafka before topic ids (KIP-516).
        TopicIdFromName = "topic-id-from-name",
        /// The name of a deleted topic is free before its partitions are dropped everywhere: a broker that has not heard of it takes records.
        /// I1. This system until the simulation found it; Kafka, where a deleted topic's leader is cut off from the controller.
        NameFreeAtOnce = "name-free-at-once",
        /// Partitions are compared with metadata as it was once, and a new topic's are dropped as a deleted one's.
        /// I1, I15. KAFKA-14190: topic ids and stale metadata.
        ReconcileWithoutBarrier = "reconcile-without-barrier",
        /// A block of producer ids is given out again and again.
        /// I3, I1. Ids that two producers hold: the second one's records are taken for retries.
        ProducerIdsReused = "producer-ids-reused",
    }
}
