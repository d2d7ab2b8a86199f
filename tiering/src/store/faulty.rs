//! A store that fails on command, for tests of whatever talks to a store. Compiled for tests and under `test-support`.
//!
//! Owns: [`FaultyStore`]: the faults of real stores and networks, each on the call it is asked for.
//! Not here: faults at random (a simulation draws them and injects them here).

pub use super::fault::{Call, Fault, RequestFailed};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
    UploadPart,
};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::watch;

#[derive(Default)]
struct Plan {
    queue: VecDeque<Fault>,
    forever: Option<Fault>,
    calls: u64,
}

/// An object store in front of another one. Clones share faults and counts.
#[derive(Clone)]
pub struct FaultyStore {
    inner: Arc<dyn ObjectStore>,
    plans: Arc<Mutex<HashMap<Call, Plan>>>,
    healed: Arc<watch::Sender<u64>>,
}

impl std::fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

impl std::fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "faulty {}", self.inner)
    }
}

impl FaultyStore {
    /// In front of `inner`, without faults yet.
    #[must_use]
    pub fn new(inner: Arc<dyn ObjectStore>) -> Self {
        Self {
            inner,
            plans: Arc::default(),
            healed: Arc::new(watch::Sender::new(0)),
        }
    }

    /// The next calls of a kind meet these faults, one each.
    pub fn inject(&self, call: Call, faults: impl IntoIterator<Item = Fault>) {
        self.plans
            .lock()
            .entry(call)
            .or_default()
            .queue
            .extend(faults);
    }

    /// All calls of a kind that no queued fault is for meet this one.
    pub fn inject_forever(&self, call: Call, fault: Fault) {
        self.plans.lock().entry(call).or_default().forever = Some(fault);
    }

    /// No more faults; calls that wait for this are performed.
    pub fn heal(&self) {
        for plan in self.plans.lock().values_mut() {
            plan.queue.clear();
            plan.forever = None;
        }
        self.healed.send_modify(|times| *times += 1);
    }

    /// How often a kind was called.
    #[must_use]
    pub fn calls(&self, call: Call) -> u64 {
        self.plans.lock().get(&call).map_or(0, |plan| plan.calls)
    }

    /// Counts the call, draws its fault, and meets those that come before the call is performed.
    async fn before(&self, call: Call) -> Result<Fault> {
        let mut healed = self.healed.subscribe();
        let fault = {
            let mut plans = self.plans.lock();
            let plan = plans.entry(call).or_default();
            plan.calls += 1;
            plan.queue
                .pop_front()
                .or(plan.forever)
                .unwrap_or(Fault::None)
        };
        match fault {
            Fault::UntilHealed => {
                // The sender lives as long as this store does.
                let _ = healed.changed().await;
            }
            _ => fault.before().await?,
        }
        Ok(fault)
    }
}

#[async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let conditional = options.mode == PutMode::Create;
        let fault = self
            .before(if conditional {
                Call::PutIfAbsent
            } else {
                Call::Put
            })
            .await?;
        let options = match fault {
            Fault::Lie if conditional => PutOptions {
                mode: PutMode::Overwrite,
                ..options
            },
            _ => options,
        };
        fault
            .after(self.inner.put_opts(location, payload, options).await)
            .await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let fault = self.before(Call::MultipartBegin).await?;
        let inner = fault
            .after(self.inner.put_multipart_opts(location, options).await)
            .await?;
        Ok(Box::new(FaultyUpload {
            inner,
            store: self.clone(),
        }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let fault = self
            .before(if options.head { Call::Head } else { Call::Get })
            .await?;
        let head = options.head;
        let mut found = fault
            .after(self.inner.get_opts(location, options).await)
            .await?;
        if !head && matches!(fault, Fault::ShortBody(_) | Fault::FlipBit(_)) {
            let (meta, range, attributes) = (
                found.meta.clone(),
                found.range.clone(),
                found.attributes.clone(),
            );
            let extensions = found.extensions.clone();
            let bytes = fault.spoil(found.bytes().await?);
            let payload = GetResultPayload::Stream(stream::once(async { Ok(bytes) }).boxed());
            found = GetResult {
                payload,
                meta,
                range,
                attributes,
                extensions,
            };
        }
        Ok(found)
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let fault = self.before(Call::Get).await?;
        let ranges: Vec<_> = match fault {
            Fault::WrongRange(by) => ranges
                .iter()
                .map(|range| range.start + by..range.end + by)
                .collect(),
            _ => ranges.to_vec(),
        };
        let found = fault
            .after(self.inner.get_ranges(location, &ranges).await)
            .await?;
        Ok(found.into_iter().map(|bytes| fault.spoil(bytes)).collect())
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        locations
            .then(move |location| {
                let this = this.clone();
                async move {
                    let location = location?;
                    let fault = this.before(Call::Delete).await?;
                    let one = stream::once(std::future::ready(Ok(location.clone()))).boxed();
                    let done = this
                        .inner
                        .delete_stream(one)
                        .next()
                        .await
                        .unwrap_or(Ok(location));
                    fault.after(done).await
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listing(self.inner.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listing(self.inner.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let fault = self.before(Call::List).await?;
        fault
            .after(self.inner.list_with_delimiter(prefix).await)
            .await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let fault = self.before(Call::Copy).await?;
        fault
            .after(self.inner.copy_opts(from, to, options).await)
            .await
    }
}

impl FaultyStore {
    fn listing(
        &self,
        inner: BoxStream<'static, Result<ObjectMeta>>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let this = self.clone();
        stream::once(async move {
            match this.before(Call::List).await {
                Ok(Fault::Lie) => stream::empty().boxed(),
                Ok(fault) => match fault.after(Ok(())).await {
                    Ok(()) => inner,
                    Err(error) => stream::once(async { Err(error) }).boxed(),
                },
                Err(error) => stream::once(async { Err(error) }).boxed(),
            }
        })
        .flatten()
        .boxed()
    }
}

#[derive(Debug)]
struct FaultyUpload {
    inner: Box<dyn MultipartUpload>,
    store: FaultyStore,
}

#[async_trait]
impl MultipartUpload for FaultyUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let part = self.inner.put_part(data);
        let store = self.store.clone();
        Box::pin(async move {
            let fault = store.before(Call::MultipartPart).await?;
            fault.after(part.await).await
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let fault = self.store.before(Call::MultipartComplete).await?;
        fault.after(self.inner.complete().await).await
    }

    async fn abort(&mut self) -> Result<()> {
        let fault = self.store.before(Call::MultipartAbort).await?;
        fault.after(self.inner.abort().await).await
    }
}
