//! A store that does what stores do when it matters: fails, loses replies, holds requests back and lets them land late.

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// What happens to a request.
pub(crate) enum Fault {
    /// Nothing special.
    Pass,
    /// It fails and has no effect.
    Fail,
    /// It takes effect and the reply is lost.
    LoseReply,
    /// The same, and the store answers nothing any more.
    LoseReplyAndGoDown,
    /// Its sender gets an error now; it takes effect when [`FaultStore::land`] is called.
    Late,
    /// It waits for a sign.
    Hold(Arc<Hold>),
}

/// Two signs: the request has come, it may go on.
#[derive(Default)]
pub(crate) struct Hold {
    pub(crate) arrived: Notify,
    pub(crate) go: Notify,
}

/// Decides by operation (`put`, `get`) and key.
pub(crate) type Plan = Box<dyn FnMut(&str, &str) -> Fault + Send>;

pub(crate) struct FaultStore {
    inner: Arc<dyn ObjectStore>,
    plan: Mutex<Plan>,
    down: AtomicBool,
    late: Mutex<Vec<(Path, PutPayload, PutOptions)>>,
}

impl FaultStore {
    pub(crate) fn new(
        inner: &Arc<dyn ObjectStore>,
        plan: impl FnMut(&str, &str) -> Fault + Send + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            inner: Arc::clone(inner),
            plan: Mutex::new(Box::new(plan)),
            down: AtomicBool::new(false),
            late: Mutex::new(Vec::new()),
        })
    }

    pub(crate) fn raw(self: &Arc<Self>) -> Arc<dyn ObjectStore> {
        Arc::clone(self) as Arc<dyn ObjectStore>
    }

    pub(crate) fn come_up(&self) {
        self.down.store(false, Ordering::SeqCst);
    }

    /// Lets the late requests take effect; returns how many did.
    pub(crate) async fn land(&self) -> usize {
        let late = std::mem::take(&mut *self.late.lock());
        let mut landed = 0;
        for (path, payload, options) in late {
            landed += usize::from(self.inner.put_opts(&path, payload, options).await.is_ok());
        }
        landed
    }

    async fn before(&self, operation: &str, path: &Path) -> Result<Fault> {
        if self.down.load(Ordering::SeqCst) {
            return Err(lost());
        }
        let fault = (self.plan.lock())(operation, path.as_ref());
        match fault {
            Fault::Fail => Err(lost()),
            Fault::Hold(hold) => {
                hold.arrived.notify_one();
                hold.go.notified().await;
                Ok(Fault::Pass)
            }
            other => Ok(other),
        }
    }
}

fn lost() -> Error {
    Error::Generic {
        store: "faults",
        source: "the connection broke".into(),
    }
}

impl fmt::Debug for FaultStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FaultStore")
    }
}

impl fmt::Display for FaultStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FaultStore")
    }
}

#[async_trait]
impl ObjectStore for FaultStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        match self.before("put", location).await? {
            Fault::LoseReply => {
                let _ = self.inner.put_opts(location, payload, options).await;
                Err(lost())
            }
            Fault::LoseReplyAndGoDown => {
                let _ = self.inner.put_opts(location, payload, options).await;
                self.down.store(true, Ordering::SeqCst);
                Err(lost())
            }
            Fault::Late => {
                self.late.lock().push((location.clone(), payload, options));
                self.down.store(true, Ordering::SeqCst);
                Err(lost())
            }
            _ => self.inner.put_opts(location, payload, options).await,
        }
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.before("put", location).await?;
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.before("get", location).await?;
        self.inner.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.before("get", location).await?;
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
