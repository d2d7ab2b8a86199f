//! What the store holds, and its history.
//!
//! Owns: objects, uploads in parts, conditions, the order of listings, listings of a moment ago, overwrites, deletions.
//! Not here: time passing, faults, errors of the connection.
//! Spec: docs/simulation.md

use bytes::{Bytes, BytesMut};
use object_store::path::Path;
use object_store::{Error, GetOptions, ObjectMeta, PutMode, PutResult, Result};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::{Duration, UNIX_EPOCH};
use tidelog_tiering::store::faulty::RequestFailed;

/// Keys of one page of a listing, as S3 has it.
pub(super) const PAGE_KEYS: usize = 1000;

/// The smallest part but the last, as S3 has it.
const PART_BYTES_MIN: usize = 5 * 1024 * 1024;

/// Changes that a listing can be behind by.
const CHANGES_MAX: usize = 4096;

/// A put that gave a key another content than it had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overwrite {
    /// The key.
    pub key: String,
    /// When, by the store's clock.
    pub at_ms: i64,
    /// Whether the object was still there; otherwise it had been deleted or had vanished.
    pub was_there: bool,
}

/// The deletion of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// The key.
    pub key: String,
    /// When, by the store's clock.
    pub at_ms: i64,
}

struct Object {
    bytes: Bytes,
    listed: Listed,
}

/// What a listing says of an object.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Listed {
    length: u64,
    tag: u64,
    modified_ms: i64,
}

struct Upload {
    key: String,
    parts: BTreeMap<usize, Bytes>,
}

struct Change {
    at_ms: i64,
    key: String,
    before: Option<Listed>,
}

/// An object, and what was asked of it.
pub(super) struct Found {
    pub(super) meta: ObjectMeta,
    pub(super) range: Range<u64>,
    /// The bytes of the range.
    pub(super) bytes: Bytes,
    /// The whole object.
    pub(super) whole: Bytes,
}

/// One page of a listing.
pub(super) struct Page {
    pub(super) objects: Vec<ObjectMeta>,
    /// Whether more come after the last.
    pub(super) more: bool,
    /// Whether it was another one a moment ago.
    pub(super) stale: bool,
}

#[derive(Default)]
pub(super) struct Objects {
    pub(super) now_ms: i64,
    map: BTreeMap<String, Object>,
    tags: u64,
    uploads: BTreeMap<u64, Upload>,
    /// Length and checksum of the content each key had last, also after it was deleted.
    contents: BTreeMap<String, (usize, u32)>,
    changes: VecDeque<Change>,
    pub(super) overwritten: Vec<Overwrite>,
    pub(super) deleted: Vec<Deletion>,
}

fn tag_text(tag: u64) -> String {
    format!("\"{tag:016x}\"")
}

impl Listed {
    fn meta(self, key: &str) -> ObjectMeta {
        let millis = Duration::from_millis(u64::try_from(self.modified_ms).unwrap_or(0));
        ObjectMeta {
            location: Path::from(key),
            last_modified: (UNIX_EPOCH + millis).into(),
            size: self.length,
            e_tag: Some(tag_text(self.tag)),
            version: None,
        }
    }
}

impl Objects {
    pub(super) fn contains(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    pub(super) fn put(&mut self, key: &str, bytes: Bytes, mode: &PutMode) -> Result<PutResult> {
        let held = self.map.get(key).map(|object| tag_text(object.listed.tag));
        let refused = || RequestFailed::Status(412).error(key);
        match mode {
            PutMode::Overwrite => {}
            // The client makes "already exists" of the 412.
            PutMode::Create if held.is_some() => {
                return Err(Error::AlreadyExists {
                    path: key.to_owned(),
                    source: Box::new(refused()),
                });
            }
            PutMode::Create => {}
            PutMode::Update(version) if held.is_some() && version.e_tag == held => {}
            PutMode::Update(_) => return Err(refused()),
        }
        Ok(self.store(key, bytes))
    }

    fn store(&mut self, key: &str, bytes: Bytes) -> PutResult {
        let content = (bytes.len(), crc32c::crc32c(&bytes));
        let before = self.contents.insert(key.to_owned(), content);
        if before.is_some_and(|before| before != content) {
            self.overwritten.push(Overwrite {
                key: key.to_owned(),
                at_ms: self.now_ms,
                was_there: self.map.contains_key(key),
            });
        }
        self.tags += 1;
        let listed = Listed {
            length: bytes.len() as u64,
            tag: self.tags,
            modified_ms: self.now_ms,
        };
        let before = self.map.insert(key.to_owned(), Object { bytes, listed });
        self.changed(key, before.map(|object| object.listed));
        PutResult {
            e_tag: Some(tag_text(self.tags)),
            version: None,
            extensions: object_store::Extensions::default(),
        }
    }

    fn changed(&mut self, key: &str, before: Option<Listed>) {
        if self.changes.len() == CHANGES_MAX {
            self.changes.pop_front();
        }
        self.changes.push_back(Change {
            at_ms: self.now_ms,
            key: key.to_owned(),
            before,
        });
    }

    /// The object, if the conditions hold. A range past the end is cut, one that begins there is refused.
    pub(super) fn get(&self, key: &str, options: &GetOptions) -> Result<Found> {
        let object = self
            .map
            .get(key)
            .ok_or_else(|| RequestFailed::Status(404).error(key))?;
        let meta = object.listed.meta(key);
        options.check_preconditions(&meta)?;
        let range = match &options.range {
            None => 0..meta.size,
            Some(range) => range
                .as_range(meta.size)
                .map_err(|_| RequestFailed::Status(416).error(key))?,
        };
        let within = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
        Ok(Found {
            bytes: object.bytes.slice(within(range.start)..within(range.end)),
            whole: object.bytes.clone(),
            meta,
            range,
        })
    }

    /// What is not there is deleted already.
    pub(super) fn delete(&mut self, key: &str) {
        if self.vanish(key) {
            self.deleted.push(Deletion {
                key: key.to_owned(),
                at_ms: self.now_ms,
            });
        }
    }

    pub(super) fn vanish(&mut self, key: &str) -> bool {
        let before = self.map.remove(key);
        let was_there = before.is_some();
        if was_there {
            self.changed(key, before.map(|object| object.listed));
        }
        was_there
    }

    pub(super) fn copy(&mut self, from: &str, to: &str) -> Result<PutResult> {
        let found = self.get(from, &GetOptions::default())?;
        Ok(self.store(to, found.whole))
    }

    /// The keys that begin with `prefix` and come after `after`, as they were `age_ms` ago.
    pub(super) fn list(&self, prefix: &str, after: &str, age_ms: i64) -> Page {
        let mut then: BTreeMap<&str, Option<Listed>> = BTreeMap::new();
        let since = self.now_ms.saturating_sub(age_ms);
        let newest_first = self.changes.iter().rev();
        for change in newest_first.take_while(|change| age_ms > 0 && change.at_ms > since) {
            if change.key.starts_with(prefix) && change.key.as_str() > after {
                then.insert(&change.key, change.before);
            }
        }
        then.retain(|key, before| *before != self.map.get(*key).map(|object| object.listed));
        let stale = !then.is_empty();
        let from = if after > prefix { after } else { prefix };
        let now = self
            .map
            .range(from.to_owned()..)
            .take_while(|(key, _)| key.starts_with(prefix))
            .filter(|(key, _)| key.as_str() > after)
            .map(|(key, object)| (key.as_str(), object.listed));
        let mut objects: Vec<ObjectMeta> = if stale {
            let mut all: BTreeMap<&str, Listed> = now.collect();
            for (key, before) in then {
                match before {
                    Some(listed) => all.insert(key, listed),
                    None => all.remove(key),
                };
            }
            let page = all.into_iter().take(PAGE_KEYS + 1);
            page.map(|(key, listed)| listed.meta(key)).collect()
        } else {
            let page = now.take(PAGE_KEYS + 1);
            page.map(|(key, listed)| listed.meta(key)).collect()
        };
        let more = objects.len() > PAGE_KEYS;
        objects.truncate(PAGE_KEYS);
        Page {
            objects,
            more,
            stale,
        }
    }

    pub(super) fn begin_upload(&mut self, key: &str) -> u64 {
        self.tags += 1;
        let upload = Upload {
            key: key.to_owned(),
            parts: BTreeMap::new(),
        };
        self.uploads.insert(self.tags, upload);
        self.tags
    }

    pub(super) fn put_part(&mut self, upload: u64, number: usize, bytes: Bytes) -> Result<()> {
        let upload = self
            .uploads
            .get_mut(&upload)
            .ok_or_else(|| RequestFailed::Status(404).error("NoSuchUpload"))?;
        upload.parts.insert(number, bytes);
        Ok(())
    }

    /// Makes the object of parts 0 to `count`, each of which must have come. The upload ends with it.
    pub(super) fn complete_upload(&mut self, upload: u64, count: usize) -> Result<PutResult> {
        let open = self
            .uploads
            .get(&upload)
            .ok_or_else(|| RequestFailed::Status(404).error("NoSuchUpload"))?;
        let parts: Vec<&Bytes> = (0..count)
            .filter_map(|number| open.parts.get(&number))
            .collect();
        let too_small = parts
            .iter()
            .take(count.saturating_sub(1))
            .any(|part| part.len() < PART_BYTES_MIN);
        if parts.len() < count || too_small {
            return Err(RequestFailed::Status(400).error(&open.key));
        }
        let mut whole = BytesMut::with_capacity(parts.iter().map(|part| part.len()).sum());
        for part in parts {
            whole.extend_from_slice(part);
        }
        let key = open.key.clone();
        self.uploads.remove(&upload);
        Ok(self.store(&key, whole.freeze()))
    }

    pub(super) fn abort_upload(&mut self, upload: u64) -> Result<()> {
        match self.uploads.remove(&upload) {
            Some(_) => Ok(()),
            None => Err(RequestFailed::Status(404).error("NoSuchUpload")),
        }
    }

    pub(super) fn open_uploads(&self) -> usize {
        self.uploads.len()
    }

    pub(super) fn snapshot(&self) -> BTreeMap<String, Bytes> {
        let content = |(key, object): (&String, &Object)| (key.clone(), object.bytes.clone());
        self.map.iter().map(content).collect()
    }
}
