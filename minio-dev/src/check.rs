//! `check`: does the server do what Tidelog's store needs?
//!
//! Owns: the list of needs, each tried with its own objects, which are removed again.
//! Not here: the probe the broker itself makes at its start (`tidelog-tiering`).
//! Spec: docs/guides/local-s3.md

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use aws_sdk_s3::Client;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{CompletedMultipartUpload, CompletedPart};

use crate::error::Error;
use crate::s3::{client, explain};
use crate::state::State;

/// The smallest part S3 takes, except for the last.
const PART_BYTES: usize = 5 << 20;

/// One need and whether it is met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckResult {
    /// The need.
    pub name: &'static str,
    /// What went wrong, if anything did.
    pub failure: Option<String>,
}

/// Tries every need against the server started with this data folder.
///
/// # Errors
/// When no server was started or it no longer runs. A need that is not met is no error here.
pub async fn check(data_dir: &Path) -> Result<Vec<CheckResult>, Error> {
    let state = State::load(data_dir)?.ok_or_else(|| Error::NotStarted(data_dir.to_owned()))?;
    if !state.is_running() {
        return Err(Error::NotRunning(State::file(data_dir)));
    }
    let nanos = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |duration| duration.as_nanos());
    let trial = Trial {
        client: client(&state),
        bucket: state.bucket,
        prefix: format!(".minio-dev/check-{nanos}-{}/", std::process::id()),
    };
    let outcomes = [
        ("put if absent", trial.put_if_absent().await),
        ("ranged get", trial.ranged_get().await),
        ("multipart upload", trial.multipart().await),
        ("list after put", trial.list_after_put().await),
        ("delete", trial.delete_all().await),
    ];
    let result = |(name, outcome): (_, Result<(), String>)| CheckResult {
        name,
        failure: outcome.err(),
    };
    Ok(outcomes.into_iter().map(result).collect())
}

struct Trial {
    client: Client,
    bucket: String,
    prefix: String,
}

impl Trial {
    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    async fn put(&self, name: &str, body: Vec<u8>) -> Result<(), String> {
        let put = self
            .client
            .put_object()
            .bucket(&self.bucket)
            .key(self.key(name));
        put.body(ByteStream::from(body))
            .send()
            .await
            .map_err(explain)?;
        Ok(())
    }

    async fn get(&self, name: &str, range: Option<&str>) -> Result<Vec<u8>, String> {
        let get = self
            .client
            .get_object()
            .bucket(&self.bucket)
            .key(self.key(name));
        let answer = get
            .set_range(range.map(str::to_owned))
            .send()
            .await
            .map_err(explain)?;
        Ok(answer.body.collect().await.map_err(explain)?.to_vec())
    }

    /// The first put makes the object, the second is refused and changes nothing.
    async fn put_if_absent(&self) -> Result<(), String> {
        let put = |body: &'static [u8]| {
            let put = self.client.put_object().bucket(&self.bucket);
            put.key(self.key("once"))
                .if_none_match("*")
                .body(ByteStream::from_static(body))
                .send()
        };
        put(b"first").await.map_err(explain)?;
        match put(b"second").await {
            Ok(_) => return Err("a second put was accepted: the condition is ignored".to_owned()),
            Err(error) => {
                let status = error
                    .raw_response()
                    .map(|response| response.status().as_u16());
                if status != Some(412) {
                    return Err(format!("expected status 412: {}", explain(error)));
                }
            }
        }
        same(&self.get("once", None).await?, b"first")
    }

    async fn ranged_get(&self) -> Result<(), String> {
        let body = pattern(100_000, 1);
        self.put("ranged", body.clone()).await?;
        for (range, from, to) in [
            ("bytes=0-0", 0, 1),
            ("bytes=4095-65536", 4095, 65537),
            ("bytes=-10", 99_990, 100_000),
            ("bytes=99999-200000", 99_999, 100_000),
        ] {
            let wanted = body.get(from..to).unwrap_or_default();
            same(&self.get("ranged", Some(range)).await?, wanted)
                .map_err(|e| format!("{range}: {e}"))?;
        }
        Ok(())
    }

    async fn multipart(&self) -> Result<(), String> {
        let create = self.client.create_multipart_upload().bucket(&self.bucket);
        let created = create
            .key(self.key("parts"))
            .send()
            .await
            .map_err(explain)?;
        let id = created.upload_id.ok_or("the server gave no upload id")?;
        let mut parts = Vec::new();
        let mut whole = Vec::new();
        for (number, length) in [(1, PART_BYTES), (2, 1000)] {
            let body = pattern(length, number);
            whole.extend_from_slice(&body);
            let part = self
                .client
                .upload_part()
                .bucket(&self.bucket)
                .key(self.key("parts"));
            let part = part.upload_id(&id).part_number(number);
            let sent = part
                .body(ByteStream::from(body))
                .send()
                .await
                .map_err(explain)?;
            let done = CompletedPart::builder().part_number(number);
            parts.push(done.set_e_tag(sent.e_tag).build());
        }
        let complete = self.client.complete_multipart_upload().bucket(&self.bucket);
        let list = CompletedMultipartUpload::builder()
            .set_parts(Some(parts))
            .build();
        let complete = complete
            .key(self.key("parts"))
            .upload_id(&id)
            .multipart_upload(list);
        complete.send().await.map_err(explain)?;
        same(&self.get("parts", None).await?, &whole)
    }

    async fn list_after_put(&self) -> Result<(), String> {
        let mut wanted = Vec::new();
        for name in ["list/a", "list/b/c", "list/d"] {
            self.put(name, b"x".to_vec()).await?;
            wanted.push(self.key(name));
            let found = self.list(&self.key("list/")).await?;
            if found != wanted {
                return Err(format!("listed {found:?} right after {wanted:?} were put"));
            }
        }
        Ok(())
    }

    async fn list(&self, prefix: &str) -> Result<Vec<String>, String> {
        let list = self
            .client
            .list_objects_v2()
            .bucket(&self.bucket)
            .prefix(prefix);
        let answer = list.send().await.map_err(explain)?;
        Ok(answer
            .contents
            .unwrap_or_default()
            .into_iter()
            .filter_map(|object| object.key)
            .collect())
    }

    async fn delete_all(&self) -> Result<(), String> {
        for key in self.list(&self.prefix).await? {
            let delete = self.client.delete_object().bucket(&self.bucket).key(key);
            delete.send().await.map_err(explain)?;
        }
        match self.list(&self.prefix).await?.as_slice() {
            [] => Ok(()),
            left => Err(format!("still listed after delete: {left:?}")),
        }
    }
}

/// Bytes that differ with the position and the seed, so that a shifted or swapped range shows.
fn pattern(length: usize, seed: i32) -> Vec<u8> {
    let mut state = u64::from(seed.unsigned_abs()).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        state.to_be_bytes()[0]
    };
    std::iter::repeat_with(&mut next).take(length).collect()
}

fn same(found: &[u8], wanted: &[u8]) -> Result<(), String> {
    if found == wanted {
        return Ok(());
    }
    let at = found.iter().zip(wanted).take_while(|(a, b)| a == b).count();
    Err(format!(
        "{} bytes came back, {} wanted; first difference at {at}",
        found.len(),
        wanted.len()
    ))
}
