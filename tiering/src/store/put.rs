//! Writes: objects with unique names, and put-if-absent.
//!
//! Owns: resolving lost replies.
//! Not here: parts (`multipart.rs`).
//! Spec: docs/protocols/offload.md, steps 2 and 4

use super::error::{Failure, StoreError};
use super::limits::Tries;
use super::tier::{TierStore, within};
use crate::format::codec::wide;
use crate::key::ObjectKey;
use bytes::Bytes;
use object_store::path::Path;
use object_store::{ObjectStore, PutMode, PutOptions, PutPayload};
use tidelog_env::{Mutant, mutant};

/// What became of a put-if-absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// The key holds exactly the bytes of this call.
    Created,
    /// The key holds something else, and held it before this call could.
    Exists,
}

impl TierStore {
    /// Writes an object under a name nobody else writes (a key of `key::data`). When it returns, the object is stored
    /// durably and its length was read back. Large objects go up in parts.
    ///
    /// # Errors
    /// [`StoreError::MayHaveHappened`]: an object of that name may be there or come; the call can be repeated with
    /// the same bytes. [`StoreError::Refused`]; [`StoreError::Corrupt`] when the store keeps another length.
    pub async fn put_object(&self, key: &ObjectKey, chunks: Vec<Bytes>) -> Result<(), StoreError> {
        let path = self.path(key);
        let length: u64 = chunks.iter().map(|chunk| wide(chunk.len())).sum();
        let in_parts = length >= self.limits().multipart_bytes_min;
        let payload: PutPayload = chunks
            .into_iter()
            .filter(|chunk| !chunk.is_empty())
            .collect();
        let mut tries = Tries::new(self);
        loop {
            let put = if in_parts {
                self.put_parts(&path, &payload, length).await
            } else {
                self.put_whole(&path, payload.clone(), PutMode::Overwrite, length)
                    .await
            };
            if mutant(Mutant::UploadNotVerified) && put.is_err() {
                return Ok(());
            }
            // Also after a failure: the reply may be all that was lost.
            let kept = self.head_once(&path).await;
            let failure = match (put, kept) {
                (_, Ok(info)) if info.length == length => return Ok(()),
                (Err(Failure::Refused(reason)), Err(Failure::NotFound)) => {
                    return Err(refused("put", &path, reason));
                }
                (Ok(()), Ok(info)) => {
                    let reason = format!("{length} bytes were put, {} are kept", info.length);
                    if !tries.next().await {
                        return Err(StoreError::Corrupt {
                            key: path.to_string(),
                            reason,
                        });
                    }
                    continue;
                }
                (Ok(()), Err(unverified)) => unverified,
                (Err(failure), _) => failure,
            };
            if !tries.next().await {
                return Err(may_have_happened("put", &path, &tries, failure));
            }
        }
    }

    /// Writes an object unless its key exists. A lost reply is resolved by reading the key back: if it holds these
    /// bytes, they were created, by this call or by an equal one.
    ///
    /// # Errors
    /// [`StoreError::MayHaveHappened`]: repeat the call with the same bytes to learn which. [`StoreError::Refused`].
    pub async fn put_if_absent(
        &self,
        key: &ObjectKey,
        bytes: Bytes,
    ) -> Result<PutOutcome, StoreError> {
        let path = self.path(key);
        let length = wide(bytes.len());
        let mut tries = Tries::new(self);
        let mut unclear = false;
        let mode = if mutant(Mutant::PutIfAbsentOverwrites) {
            PutMode::Overwrite
        } else {
            PutMode::Create
        };
        loop {
            let failure = match self
                .put_whole(&path, bytes.clone().into(), mode.clone(), length)
                .await
            {
                Ok(()) => return Ok(PutOutcome::Created),
                Err(Failure::Refused(reason)) if !unclear => {
                    return Err(refused("put-if-absent", &path, reason));
                }
                Err(failure) => failure,
            };
            unclear = true;
            // "Exists" too: an earlier try, or one that the store's client made by itself, may have been ours.
            let failure = match self.holds(&path, &bytes).await {
                Ok(Some(true)) => return Ok(PutOutcome::Created),
                Ok(Some(false)) if mutant(Mutant::ExistsTakenAsOwn) => {
                    return Ok(PutOutcome::Created);
                }
                Ok(Some(false)) => return Ok(PutOutcome::Exists),
                Ok(None) => failure,
                Err(unread) => unread,
            };
            if !tries.next().await {
                return Err(may_have_happened("put-if-absent", &path, &tries, failure));
            }
        }
    }

    /// Whether the key holds exactly `bytes`; `None` when it holds nothing.
    async fn holds(&self, path: &Path, bytes: &Bytes) -> Result<Option<bool>, Failure> {
        let length = wide(bytes.len());
        match self.head_once(path).await {
            Ok(info) if info.length != length => return Ok(Some(false)),
            Ok(_) if length == 0 => return Ok(Some(true)),
            Ok(_) => {}
            Err(Failure::NotFound) => return Ok(None),
            Err(failure) => return Err(failure),
        }
        let whole = 0..length;
        let ranges = std::slice::from_ref(&whole);
        let read = async { Ok(self.raw().get_ranges(path, ranges).await?) };
        match within(self.limits().deadline(length), read).await {
            Ok(kept) => {
                let kept = kept.into_iter().next().unwrap_or_default();
                if wide(kept.len()) == length {
                    return Ok(Some(kept == *bytes));
                }
                // Cut short on the way: that says nothing of what the key holds.
                let came = format!("{} of {length} bytes came", kept.len());
                Err(Failure::Unclear(came))
            }
            Err(Failure::NotFound) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    async fn put_whole(
        &self,
        path: &Path,
        payload: PutPayload,
        mode: PutMode,
        length: u64,
    ) -> Result<(), Failure> {
        let options = PutOptions {
            mode,
            ..PutOptions::default()
        };
        let put = async { Ok(self.raw().put_opts(path, payload, options).await?) };
        within(self.limits().deadline(length), put).await.map(drop)
    }
}

fn refused(operation: &'static str, path: &Path, reason: String) -> StoreError {
    StoreError::Refused {
        operation,
        key: path.to_string(),
        reason,
    }
}

fn may_have_happened(
    operation: &'static str,
    path: &Path,
    tries: &Tries,
    failure: Failure,
) -> StoreError {
    StoreError::MayHaveHappened {
        operation,
        key: path.to_string(),
        tries: tries.made,
        reason: failure.reason(),
    }
}
