//! Uploads in parts.
//!
//! Owns: the numbering of parts.
//! Not here: what the store does with them (`objects`), requests (`client`).

use super::client::{Request, SimClient};
use super::objects::Objects;
use async_trait::async_trait;
use bytes::Bytes;
use object_store::{MultipartUpload, PutPayload, PutResult, Result, UploadPart};
use tidelog_tiering::store::faulty::Call;

#[derive(Debug)]
pub(super) struct SimUpload {
    client: SimClient,
    upload: u64,
    parts: usize,
}

impl SimUpload {
    pub(super) fn new(client: SimClient, upload: u64) -> Self {
        Self {
            client,
            upload,
            parts: 0,
        }
    }
}

#[async_trait]
impl MultipartUpload for SimUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (client, upload, number) = (self.client.clone(), self.upload, self.parts);
        self.parts += 1;
        let bytes = Bytes::from(data);
        Box::pin(async move {
            let request = Request::of(Call::MultipartPart).with_bytes(bytes.len());
            let put =
                move |objects: &mut Objects, _| objects.put_part(upload, number, bytes.clone());
            client.request(request, put).await.map(drop)
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let (upload, parts) = (self.upload, self.parts);
        let complete = move |objects: &mut Objects, _| objects.complete_upload(upload, parts);
        let request = Request::of(Call::MultipartComplete);
        Ok(self.client.request(request, complete).await?.0)
    }

    async fn abort(&mut self) -> Result<()> {
        let upload = self.upload;
        let abort = move |objects: &mut Objects, _| objects.abort_upload(upload);
        let request = Request::of(Call::MultipartAbort);
        self.client.request(request, abort).await.map(drop)
    }
}
