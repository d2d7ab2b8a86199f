//! The crash points.
//!
//! Owns: their names and places.
//! Not here: what they do (`breaking`).
//! Spec: docs/simulation.md (crash points)

super::named! {
    /// A point of the code at which a process may die, between two effects that a crash must not tear apart.
    CrashPoint {
        /// Frames are written to the group log, and not yet synced.
        LogWritten = "log.written",
        /// They are synced, and nobody was told.
        LogSynced = "log.synced",
        /// A vote is in effect and in the writer's queue, and no byte of it is written.
        VoteQueued = "vote.queued",
        /// A vote is durable, and Raft does not know it yet.
        VoteSaved = "vote.saved",
        /// The log is cut in memory, and its truncation is not written.
        TruncateQueued = "truncate.queued",
        /// The log is purged in memory, and the purge is not written.
        PurgeQueued = "purge.queued",
        /// The purge is durable, and the files that it frees still have their names.
        PurgeSynced = "purge.synced",
        /// A purged file was renamed or removed, and the directory is not synced.
        PurgeFileGone = "purge.file-gone",
        /// The names of purged files are durably gone, and nobody may use the files yet.
        PurgeNamesSynced = "purge.names-synced",
        /// The full file is synced, and the next one is not begun.
        FileOldSynced = "file.old-synced",
        /// The header is written into a spare file, and not synced.
        FileHeaderWritten = "file.header-written",
        /// The header is synced, and the file is still a spare.
        FileHeaderSynced = "file.header-synced",
        /// The spare has the name of a log file, and the directory is not synced.
        FileRenamed = "file.renamed",
        /// The next file and its name are durable, and no frame is in it.
        FileBegun = "file.begun",
        /// A file is full of zeros under its temporary name.
        SpareZeroed = "spare.zeroed",
        /// It has the name of a spare, and the directory is not synced.
        SpareRenamed = "spare.renamed",
        /// Recovery has cleared what lies behind the end of the log, and not synced that.
        RecoveryCleared = "recovery.cleared",
        /// The end of the log is found and durable, and nothing runs over it yet.
        RecoverySettled = "recovery.settled",
        /// A checkpoint is written under its temporary name, and not synced.
        CheckpointWritten = "checkpoint.written",
        /// It is synced, and has no name of its own.
        CheckpointSynced = "checkpoint.synced",
        /// It has its name, and the directory is not synced.
        CheckpointRenamed = "checkpoint.renamed",
        /// It is durable, and older ones than are kept are still there.
        CheckpointSaved = "checkpoint.saved",
        /// The mark of a replica that is being dropped is there, and its name not synced.
        DropMarked = "drop.marked",
        /// One file of a dropped replica is gone, and others may be there.
        DropFileGone = "drop.file-gone",
        /// All its files are gone, and the mark says that they are being deleted.
        DropFilesGone = "drop.files-gone",
        /// The mark says that they are gone, and its name is not synced.
        DropRenamed = "drop.renamed",
        /// The broker's list of groups does not name the replica any more, and its files are there.
        DropForgotten = "drop.forgotten",
        /// The log of a group is created, and the broker's list of groups does not name it.
        HeldLogCreated = "held.log-created",
        /// The list names it, and no replica runs over it.
        HeldNoted = "held.noted",
        /// An empty log has its first members, and nobody leads the group.
        GroupSetUp = "group.set-up",
        /// An entry is applied, and its proposer has no answer.
        ApplyDone = "apply.done",
        /// An image of a group is made, and not saved.
        SnapshotMade = "snapshot.made",
        /// It is saved as a checkpoint, and Raft does not know it.
        SnapshotSaved = "snapshot.saved",
        /// Raft knows it, and nothing was purged behind it.
        SnapshotNoted = "snapshot.noted",
        /// A peer's snapshot is in the state machine, and not on disk.
        InstallRestored = "install.restored",
        /// It is on disk, and Raft does not know it.
        InstallSaved = "install.saved",
        /// A new replica has the leader's checkpoint, and is not in the group.
        MembersSeeded = "members.seeded",
        /// It is a learner, and was not asked to vote.
        MembersLearnerAdded = "members.learner-added",
        /// The voters are changed, and those that go are still in the group.
        MembersVotersChanged = "members.voters-changed",
        /// The replicas are the wanted ones, and metadata still says that they move.
        MembersSettled = "members.settled",
        /// A cut is committed, and nothing of it is uploaded.
        CutCommitted = "cut.committed",
        /// One object is in the store, and nothing names it.
        UploadObjectPut = "upload.object-put",
        /// All objects of a cut are in the store, and Raft names none.
        UploadAllPut = "upload.all-put",
        /// Raft names a part of them.
        UploadCommitted = "upload.committed",
        /// The manifest is in the store, and Raft does not know it.
        PublishPut = "publish.put",
        /// Raft knows it, and the local log has all that it holds.
        PublishCommitted = "publish.committed",
        /// The checkpoint of a published cut is saved, and the log behind it is not purged.
        TrimSaved = "trim.saved",
        /// Readers are sent to the store for what is still in the log, which was not asked to be purged.
        TrimForgotten = "trim.forgotten",
        /// The state of metadata is in the store, and the keeper does not remember that.
        MetadataPublished = "metadata.published",
        /// The store has the cluster's marker, and metadata does not name it.
        StoreMarked = "store.marked",
        /// A topic is in metadata, and its partitions are in no data group.
        TopicCreated = "topic.created",
        /// A topic is gone from metadata, and its partitions are in their data groups.
        TopicDeleted = "topic.deleted",
        /// A small file (identity, list of groups, mark of damage) is written under its temporary name, and not synced.
        RecordWritten = "record.written",
        /// It is synced, and the old one has the name.
        RecordSynced = "record.synced",
        /// It has the name, and the directory is not synced.
        RecordRenamed = "record.renamed",
        /// A broker that founds or joins a cluster has its record on disk, and told nobody.
        FormationStored = "formation.stored",
        /// Metadata knows the cluster, and this broker is perhaps no member.
        FormationBootstrapped = "formation.bootstrapped",
        /// This broker is a member, and others do not know where it is.
        FormationAdmitted = "formation.admitted",
        /// Damage is marked, and the broker still runs.
        RefillMarked = "refill.marked",
        /// A damaged broker that runs in part has heard that nothing needs it, and runs.
        RefillMayStop = "refill.may-stop",
        /// The leader of metadata has taken a damaged broker in anew, which does not know it.
        RefillAdmitted = "refill.admitted",
        /// That broker knows it, and its directory is still the damaged one's.
        RefillLearned = "refill.learned",
        /// The damaged files have their identity beside them, and the directory is still theirs.
        RefillOldNamed = "refill.old-named",
        /// The directory is the new Raft node's, and the damaged files are in it.
        RefillSwitched = "refill.switched",
        /// The damaged files are renamed, and the directory is not synced.
        RefillRenamed = "refill.renamed",
        /// They are set aside, and the mark is there.
        RefillSetAside = "refill.set-aside",
    }
}
