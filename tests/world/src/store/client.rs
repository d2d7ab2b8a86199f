//! The store's client on a host: requests that take time and fail, and what object_store's S3 client makes of them.
//!
//! Owns: latency, outages, the one retry that the client makes by itself, its own timeout, what becomes of a write whose caller
//! has gone.
//! Not here: which fault hits (`faults`), what the store does (`objects`), uploads in parts (`upload`).
//! Spec: docs/simulation.md

use super::faults::{Abandoned, Hit};
use super::objects::Objects;
use super::upload::SimUpload;
use super::{Outage, SimStore, body};
use async_trait::async_trait;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Attributes, CopyMode, CopyOptions, Error, Extensions, GetOptions, GetResult, GetResultPayload,
    ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions,
    PutPayload, PutResult, Result,
};
use rand::Rng;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tidelog_tiering::store::faulty::{Call, Fault, RequestFailed};
use tokio::time::Instant;

/// What the client allows a request, and after what it tries none again (`open_store` in tidelog-tiering).
const TIMEOUT: Duration = Duration::from_secs(120);
const RETRY_UNTIL: Duration = Duration::from_secs(5);
/// What it waits before it tries again, at least and at most.
const BACKOFF_MS: (u64, u64) = (50, 200);

/// One host's client.
#[derive(Clone, Debug)]
pub(super) struct SimClient {
    store: SimStore,
    host: Arc<str>,
}

impl std::fmt::Display for SimClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "simulated store of {}", self.host)
    }
}

/// A request, as the client treats it.
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub(super) call: Call,
    /// Whether the client sends it again when nobody knows whether it was performed.
    pub(super) idempotent: bool,
    /// Whether it changes anything.
    pub(super) writes: bool,
    /// Bytes that go to the store.
    pub(super) bytes: usize,
}

impl Request {
    pub(super) fn of(call: Call) -> Self {
        Self {
            call,
            idempotent: !matches!(call, Call::PutIfAbsent | Call::Delete),
            writes: !matches!(call, Call::Get | Call::Head | Call::List),
            bytes: 0,
        }
    }

    pub(super) fn with_bytes(self, bytes: usize) -> Self {
        Self { bytes, ..self }
    }

    /// Whether the client sends it a second time.
    pub(super) fn again(&self, error: &Error) -> bool {
        let source = match error {
            Error::Generic { source, .. } => source,
            _ => return false,
        };
        match source.downcast_ref::<RequestFailed>() {
            Some(RequestFailed::Status(status)) => *status >= 500 || [408, 429].contains(status),
            Some(
                RequestFailed::ErrorBody | RequestFailed::NotConnected | RequestFailed::Closed,
            ) => true,
            Some(RequestFailed::Reset) => self.idempotent,
            _ => false,
        }
    }
}

/// A write on its way to the store. Dropped before it arrived, it is drawn whether it does.
struct UnderWay<T, F: Fn(&mut Objects) -> Result<T> + Send + 'static> {
    store: SimStore,
    write: Option<F>,
}

impl<T, F: Fn(&mut Objects) -> Result<T> + Send + 'static> Drop for UnderWay<T, F> {
    fn drop(&mut self) {
        let Some(write) = self.write.take() else {
            return;
        };
        let fate = self.store.0.drawing.lock().abandoned();
        match fate {
            Abandoned::Lost => {}
            // Nobody is there for the answer.
            Abandoned::Arrives => drop(self.store.with(|objects| write(objects))),
            Abandoned::ArrivesLate(after_ms) => {
                self.store.0.counts.count("store.late");
                let late = Box::new(move |objects: &mut Objects| drop(write(objects)));
                self.store.arrive_later(after_ms, late);
            }
        }
    }
}

impl SimClient {
    pub(super) fn new(store: SimStore, host: &str) -> Self {
        let host = host.into();
        Self { store, host }
    }

    /// A request with the client's own retry. `act` is what the store does when it arrives; it may do so twice.
    pub(super) async fn request<T, F>(&self, request: Request, act: F) -> Result<(T, Hit)>
    where
        T: Send + 'static,
        F: Fn(&mut Objects, Hit) -> Result<T> + Clone + Send + Sync + 'static,
    {
        let started = Instant::now();
        let once = || async {
            match tokio::time::timeout(TIMEOUT, self.once(request, act.clone())).await {
                Ok(done) => done,
                Err(_) => Err(RequestFailed::TimedOut.error("")),
            }
        };
        match once().await {
            Err(error) if request.again(&error) && started.elapsed() <= RETRY_UNTIL => {
                let (least, most) = BACKOFF_MS;
                let pause = self
                    .store
                    .0
                    .drawing
                    .lock()
                    .random
                    .random_range(least..=most);
                tokio::time::sleep(Duration::from_millis(pause)).await;
                once().await
            }
            done => done,
        }
    }

    async fn once<T, F>(&self, request: Request, act: F) -> Result<(T, Hit)>
    where
        T: Send + 'static,
        F: Fn(&mut Objects, Hit) -> Result<T> + Clone + Send + Sync + 'static,
    {
        let (hit, (before, after)) = {
            let drawing = &mut *self.store.0.drawing.lock();
            (drawing.hit(request.call), drawing.latency(request.bytes))
        };
        if let Some(outage) = self.store.outage(&self.host) {
            self.store.0.counts.count("store.outage");
            tokio::time::sleep(after).await;
            return Err(match outage {
                Outage::Refused => RequestFailed::NotConnected,
                Outage::Unavailable => RequestFailed::Status(503),
            }
            .error(""));
        }
        let fault = match hit {
            Hit::Fault(fault, kind) => {
                self.store.0.counts.count(kind);
                fault
            }
            _ => Fault::None,
        };
        let act = move |objects: &mut Objects| act(objects, hit);
        let mut under_way = UnderWay {
            store: self.store.clone(),
            write: request.writes.then(|| act.clone()),
        };
        tokio::time::sleep(before).await;
        let arrives = fault.before().await;
        under_way.write = None;
        arrives?;
        let done = self.store.with(|objects| act(objects));
        tokio::time::sleep(after).await;
        fault.after(done).await.map(|done| (done, hit))
    }

    fn listing(
        &self,
        prefix: Option<&Path>,
        after: Option<&Path>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let prefix = match prefix.map(Path::as_ref) {
            None | Some("") => String::new(),
            Some(prefix) => format!("{prefix}/"),
        };
        let first = (
            self.clone(),
            after.map(ToString::to_string).unwrap_or_default(),
        );
        stream::try_unfold(Some(first), move |from| {
            let prefix = prefix.clone();
            async move {
                let Some((client, after)) = from else {
                    return Ok::<_, Error>(None);
                };
                let page = client.page(prefix, after).await?;
                let next = page
                    .objects
                    .last()
                    .filter(|_| page.more)
                    .map(|last| (client, last.location.to_string()));
                let objects = stream::iter(page.objects.into_iter().map(Ok));
                Ok(Some((objects, next)))
            }
        })
        .try_flatten()
        .boxed()
    }

    async fn page(&self, prefix: String, after: String) -> Result<super::objects::Page> {
        let list = move |objects: &mut Objects, hit| {
            let age_ms = if let Hit::Stale(age_ms) = hit {
                age_ms
            } else {
                0
            };
            Ok(objects.list(&prefix, &after, age_ms))
        };
        let (page, _) = self.request(Request::of(Call::List), list).await?;
        if page.stale {
            self.store.0.counts.count("store.stale-list");
        }
        Ok(page)
    }

    async fn delete(&self, location: Path) -> Result<Path> {
        let key = location.to_string();
        let delete = move |objects: &mut Objects, _| {
            objects.delete(&key);
            Ok(())
        };
        self.request(Request::of(Call::Delete), delete).await?;
        Ok(location)
    }
}

#[async_trait]
impl ObjectStore for SimClient {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let (key, bytes) = (location.to_string(), bytes::Bytes::from(payload));
        let mode = options.mode;
        let overwrites = mode == PutMode::Overwrite;
        let call = if mode == PutMode::Create {
            Call::PutIfAbsent
        } else {
            Call::Put
        };
        let request = Request {
            // An update by tag is as little repeatable as a put if absent.
            idempotent: overwrites,
            ..Request::of(call).with_bytes(bytes.len())
        };
        let counts = self.store.0.counts.clone();
        let put = move |objects: &mut Objects, hit| {
            if hit == Hit::IgnoredCondition && objects.contains(&key) {
                counts.count("store.ignored-condition");
                return objects.put(&key, bytes.clone(), &PutMode::Overwrite);
            }
            objects.put(&key, bytes.clone(), &mode)
        };
        Ok(self.request(request, put).await?.0)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        _options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let key = location.to_string();
        let begin = move |objects: &mut Objects, _| Ok(objects.begin_upload(&key));
        let request = Request::of(Call::MultipartBegin);
        let (upload, _) = self.request(request, begin).await?;
        Ok(Box::new(SimUpload::new(self.clone(), upload)))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let key = location.to_string();
        let call = if options.head { Call::Head } else { Call::Get };
        let head = options.head;
        let get = move |objects: &mut Objects, _| objects.get(&key, &options);
        let (found, hit) = self.request(Request::of(call), get).await?;
        let (payload, transfer) = {
            let drawing = &mut *self.store.0.drawing.lock();
            let fault = match hit {
                Hit::Body(fault) if !head => Some(fault),
                _ => None,
            };
            let (payload, happened) = body::body(&found, fault, drawing);
            if let Some(kind) = happened {
                self.store.0.counts.count(kind);
            }
            let length = if head { 0 } else { found.bytes.len() };
            (payload, drawing.transfer(length))
        };
        // The first byte is here; the rest takes its time.
        let arrived = async move {
            tokio::time::sleep(transfer).await;
            payload
        };
        let payload = if head {
            stream::empty().boxed()
        } else {
            stream::once(arrived).flatten().boxed()
        };
        Ok(GetResult {
            payload: GetResultPayload::Stream(payload),
            meta: found.meta,
            range: found.range,
            attributes: Attributes::default(),
            extensions: Extensions::default(),
        })
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let client = self.clone();
        locations
            .then(move |location| {
                let client = client.clone();
                async move { client.delete(location?).await }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listing(prefix, None)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listing(prefix, Some(offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let all: Vec<ObjectMeta> = self.listing(prefix, None).try_collect().await?;
        let root = Path::default();
        let prefix = prefix.unwrap_or(&root);
        let (mut objects, mut common_prefixes) = (Vec::new(), BTreeSet::new());
        for meta in all {
            let mut below = meta.location.prefix_match(prefix).into_iter().flatten();
            let first = below.next();
            match (first, below.next().is_some()) {
                (Some(first), true) => drop(common_prefixes.insert(prefix.clone().join(first))),
                (Some(_), false) => {
                    drop(below);
                    objects.push(meta);
                }
                (None, _) => {}
            }
        }
        Ok(ListResult {
            common_prefixes: common_prefixes.into_iter().collect(),
            objects,
            extensions: Extensions::default(),
        })
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        if options.mode == CopyMode::Create {
            return Err(Error::NotSupported {
                source: "S3 copies only over what is there".into(),
            });
        }
        let (from, to) = (from.to_string(), to.to_string());
        let copy = move |objects: &mut Objects, _| objects.copy(&from, &to);
        self.request(Request::of(Call::Copy), copy).await?;
        Ok(())
    }
}
