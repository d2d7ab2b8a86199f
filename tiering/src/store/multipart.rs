//! Large objects in parts.
//!
//! Owns: cutting a payload into parts without copying, bounding parts in flight, leaving no open upload behind.

use super::error::Failure;
use super::tier::{TierStore, within};
use crate::format::codec::wide;
use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt};
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStore, PutMultipartOptions, PutPayload};
use std::time::Duration;

impl TierStore {
    /// One try to put an object in parts. An upload that fails, or whose future is dropped, is aborted; one whose
    /// abort fails too is left to the collector (field report A08).
    pub(super) async fn put_parts(
        &self,
        path: &Path,
        payload: &PutPayload,
        length: u64,
    ) -> Result<(), Failure> {
        let limits = *self.limits();
        let begin = async {
            Ok(self
                .raw()
                .put_multipart_opts(path, PutMultipartOptions::default())
                .await?)
        };
        let upload = within(limits.try_timeout, begin).await?;
        let mut open = OpenUpload {
            upload: Some(upload),
            path: path.clone(),
            abort_timeout: limits.try_timeout,
        };
        let put = open.put(payload, limits.part_bytes, limits.parts_in_flight_max);
        within(limits.deadline(length), put).await
    }
}

/// An upload that is aborted unless it completes.
struct OpenUpload {
    upload: Option<Box<dyn MultipartUpload>>,
    path: Path,
    abort_timeout: Duration,
}

impl OpenUpload {
    async fn put(
        &mut self,
        payload: &PutPayload,
        part_bytes: usize,
        in_flight_max: usize,
    ) -> Result<(), Failure> {
        let Some(upload) = self.upload.as_mut() else {
            return Err(Failure::Unclear("the upload has ended".to_owned()));
        };
        let mut in_flight = FuturesUnordered::new();
        for part in parts(payload, part_bytes) {
            if in_flight.len() >= in_flight_max.max(1)
                && let Some(done) = in_flight.next().await
            {
                done?;
            }
            in_flight.push(upload.put_part(part));
        }
        while let Some(done) = in_flight.next().await {
            done?;
        }
        drop(in_flight);
        upload.complete().await?;
        self.upload = None;
        Ok(())
    }
}

impl Drop for OpenUpload {
    fn drop(&mut self) {
        let Some(mut upload) = self.upload.take() else {
            return;
        };
        let (path, limit) = (self.path.clone(), self.abort_timeout);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        // Bounded by its deadline; there is nobody left to hand it to when the caller was cancelled.
        runtime.spawn(async move {
            match tokio::time::timeout(limit, upload.abort()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::warn!(%path, "an unfinished upload could not be aborted: {error}")
                }
                Err(_) => {
                    tracing::warn!(%path, "an unfinished upload could not be aborted: no answer")
                }
            }
        });
    }
}

/// Cuts a payload into parts of exactly `part_bytes` (but the last); slices, not copies.
fn parts(payload: &PutPayload, part_bytes: usize) -> Vec<PutPayload> {
    let part_bytes = part_bytes.max(1);
    let mut parts = Vec::new();
    let mut part: Vec<Bytes> = Vec::new();
    let mut room = part_bytes;
    for chunk in payload {
        let mut rest = chunk.clone();
        while !rest.is_empty() {
            let piece = rest.split_to(rest.len().min(room));
            room -= piece.len();
            part.push(piece);
            if room == 0 {
                parts.push(std::mem::take(&mut part).into_iter().collect());
                room = part_bytes;
            }
        }
    }
    if !part.is_empty() {
        parts.push(part.into_iter().collect());
    }
    debug_assert_eq!(
        parts
            .iter()
            .map(|part: &PutPayload| wide(part.content_length()))
            .sum::<u64>(),
        wide(payload.content_length())
    );
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that parts are exactly as long as asked, in order, and lose nothing, for any chunking.
    #[test]
    fn parts_keep_every_byte_in_order() {
        let bytes: Vec<u8> = (0..=255).cycle().take(1000).collect();
        for chunk in [1, 7, 64, 999, 1000] {
            for part in [1, 10, 64, 500, 1000, 2000] {
                let payload: PutPayload = bytes.chunks(chunk).map(Bytes::copy_from_slice).collect();
                let cut = parts(&payload, part);
                let (last, full) = cut
                    .split_last()
                    .map_or((0, &[][..]), |(l, f)| (l.content_length(), f));
                assert!(full.iter().all(|one| one.content_length() == part) && last <= part);
                let joined: Vec<u8> = cut
                    .into_iter()
                    .flat_map(|one| Bytes::from(one).to_vec())
                    .collect();
                assert_eq!(joined, bytes);
            }
        }
    }
}
