//! Checks whether a store keeps the promises Tidelog builds on, before anything is trusted to it.
//!
//! Owns: the checks of broker start and of `tidelog doctor --store`, and what to do about each that fails.
//! Not here: bucket administration (versioning, lifecycle).
//! Spec: docs/formats/object-keys.md (`probe/…`)

use crate::key::{self, ObjectKey};
use crate::store::{PutOutcome, StoreError, StoreLimits, TierStore};
use bytes::Bytes;
use std::fmt;
use std::time::Duration;
use tidelog_env::Clock;

/// Largest difference between the store's clock and ours that is ok. S3 refuses requests signed 15 minutes off, and
/// ages of objects decide what the collector deletes, with a window of hours.
const SKEW_MS_MAX: i64 = 60_000;
/// The least size of a part that S3 takes.
const PART_BYTES: usize = 5 * 1024 * 1024;

/// How one check ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// The store does it.
    Ok,
    /// It does not.
    Failed {
        /// What happened.
        reason: String,
        /// What to do about it.
        advice: &'static str,
    },
    /// Not tried, because a check it builds on failed.
    Skipped,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeCheck {
    /// Its name.
    pub name: &'static str,
    /// Its outcome.
    pub outcome: ProbeOutcome,
}

/// All checks, in the order they ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeReport {
    /// The checks.
    pub checks: Vec<ProbeCheck>,
}

/// Name of the check of credentials and reachability.
pub const WRITE: &str = "write and credentials";
/// Name of the check of ranged reads.
pub const RANGE: &str = "ranged read";
/// Name of the check that decides whether more than one broker may share the store.
pub const PUT_IF_ABSENT: &str = "put-if-absent";
/// Name of the check of uploads in parts.
pub const MULTIPART: &str = "multipart upload";
/// Name of the check of listings.
pub const LIST: &str = "list after put";
/// Name of the check of the clocks.
pub const CLOCK: &str = "clock";
/// Name of the check of deletions.
pub const DELETE: &str = "delete";

impl ProbeReport {
    /// Every check is ok.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.checks
            .iter()
            .all(|check| check.outcome == ProbeOutcome::Ok)
    }

    /// One broker may use the store: it keeps what it is given and gives it back.
    #[must_use]
    pub fn fit_for_one_broker(&self) -> bool {
        [WRITE, RANGE, MULTIPART, LIST]
            .iter()
            .all(|name| self.passed(name))
    }

    /// Several brokers may: it also honours put-if-absent, without which two of them could publish under one number.
    #[must_use]
    pub fn fit_for_many_brokers(&self) -> bool {
        self.fit_for_one_broker() && self.passed(PUT_IF_ABSENT)
    }

    /// The first check that failed, and what to do about it, in one line.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.checks.iter().find_map(|check| match &check.outcome {
            ProbeOutcome::Failed { reason, advice } => {
                Some(format!("{}: {reason}. {advice}", check.name))
            }
            ProbeOutcome::Ok | ProbeOutcome::Skipped => None,
        })
    }

    fn passed(&self, name: &str) -> bool {
        self.checks
            .iter()
            .any(|check| check.name == name && check.outcome == ProbeOutcome::Ok)
    }
}

impl fmt::Display for ProbeReport {
    /// One line per check.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for check in &self.checks {
            match &check.outcome {
                ProbeOutcome::Ok => writeln!(f, "ok       {}", check.name)?,
                ProbeOutcome::Skipped => writeln!(f, "skipped  {}", check.name)?,
                ProbeOutcome::Failed { reason, advice } => {
                    writeln!(f, "FAILED   {}: {reason}. {advice}", check.name)?;
                }
            }
        }
        Ok(())
    }
}

pub(crate) type Failed = (String, &'static str);

/// Runs all checks below `probe/` of the cluster and removes what they wrote. Never fails itself; a store that does
/// not answer takes at most about half a minute.
pub async fn probe(store: &TierStore, clock: &dyn Clock) -> ProbeReport {
    let limits = StoreLimits {
        tries_max: 2,
        try_timeout: Duration::from_secs(10).min(store.limits().try_timeout),
        call_timeout: Duration::from_secs(15),
        multipart_bytes_min: 1024 * 1024,
        part_bytes: PART_BYTES,
        ..*store.limits()
    };
    let run = Run {
        store: store.with_limits(limits),
        root: key::probe_root(store.random().uuid()),
    };
    let mut checks = vec![line(WRITE, run.write().await)];
    let writes = checks.iter().all(|check| check.outcome == ProbeOutcome::Ok);
    if writes {
        checks.push(line(RANGE, run.range().await));
        checks.push(line(PUT_IF_ABSENT, run.put_if_absent().await));
        checks.push(line(MULTIPART, run.multipart().await));
        checks.push(line(LIST, run.list().await));
        checks.push(line(CLOCK, run.clock(clock).await));
        checks.push(line(DELETE, run.delete().await));
    } else {
        let skipped = |name| ProbeCheck {
            name,
            outcome: ProbeOutcome::Skipped,
        };
        checks.extend([RANGE, PUT_IF_ABSENT, MULTIPART, LIST, CLOCK, DELETE].map(skipped));
    }
    ProbeReport { checks }
}

fn line(name: &'static str, outcome: Result<(), Failed>) -> ProbeCheck {
    let outcome = match outcome {
        Ok(()) => ProbeOutcome::Ok,
        Err((reason, advice)) => ProbeOutcome::Failed { reason, advice },
    };
    ProbeCheck { name, outcome }
}

/// What to do about an error that is not about the check itself.
pub(crate) fn general(error: &StoreError, denied: &'static str) -> Failed {
    let advice = match error {
        StoreError::Refused { .. } => denied,
        StoreError::NotFound { .. } => "Does the bucket exist? Create it, or correct store.url",
        StoreError::Corrupt { .. } => {
            "The store (or a proxy before it) changes what it is given: do not use it"
        }
        StoreError::Unavailable { .. } | StoreError::MayHaveHappened { .. }
            if error.to_string().contains(METADATA_SERVICE) =>
        {
            NO_CREDENTIALS
        }
        StoreError::Unavailable { .. } | StoreError::MayHaveHappened { .. } => {
            "Is store.endpoint right and reachable from here, and does the bucket exist?"
        }
    };
    (error.to_string(), advice)
}

/// Where a machine in the cloud asks for the credentials of its role. Asked only when nothing else gives credentials.
const METADATA_SERVICE: &str = "169.254.169.254";
const NO_CREDENTIALS: &str = "No credentials: neither AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are set, nor has this \
                              machine a role that could give them";
pub(crate) const MAY_WRITE: &str = "Check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or the instance's role), that the bucket \
                         exists, and that they allow GetObject and PutObject in it";
const CONTENT: &[u8] = b"Tidelog start-up probe: this object may be deleted";

struct Run {
    store: TierStore,
    root: ObjectKey,
}

impl Run {
    async fn write(&self) -> Result<(), Failed> {
        let put = self
            .store
            .put_object(
                &self.root.below("object"),
                vec![Bytes::from_static(CONTENT)],
            )
            .await;
        put.map_err(|error| general(&error, MAY_WRITE))
    }

    async fn range(&self) -> Result<(), Failed> {
        let found = self
            .store
            .get_range(&self.root.below("object"), 8..16)
            .await;
        let found = found.map_err(|error| general(&error, MAY_WRITE))?;
        if Some(found.as_ref()) == CONTENT.get(8..16) {
            return Ok(());
        }
        Err((
            "other bytes than those asked for".to_owned(),
            "The store ignores the Range header: it cannot be used",
        ))
    }

    /// One after the other, then at the same time: some stores check the condition but not atomically.
    async fn put_if_absent(&self) -> Result<(), Failed> {
        const IGNORED: &str = "The store ignores If-None-Match on PUT. One broker can use it; a cluster of several is \
                               refused, because two of them could overwrite each other. Update the store, or use another";
        let put = |name: &'static str, bytes: &'static str| {
            let key = self.root.below(name);
            async move {
                let put = self
                    .store
                    .put_if_absent(&key, Bytes::from_static(bytes.as_bytes()))
                    .await;
                put.map_err(|error| general(&error, MAY_WRITE))
            }
        };
        let first = put("condition", "first").await?;
        let second = put("condition", "second").await?;
        if (first, second) != (PutOutcome::Created, PutOutcome::Exists) {
            return Err((
                "a second put of the same key was accepted".to_owned(),
                IGNORED,
            ));
        }
        let raced = tokio::join!(put("race", "one"), put("race", "two"), put("race", "three"));
        let created = [raced.0?, raced.1?, raced.2?]
            .iter()
            .filter(|one| **one == PutOutcome::Created)
            .count();
        if created == 1 {
            Ok(())
        } else {
            Err((format!("{created} of 3 racing puts were accepted"), IGNORED))
        }
    }

    async fn multipart(&self) -> Result<(), Failed> {
        const DENIED: &str =
            "Allow multipart uploads (PutObject, AbortMultipartUpload) on the bucket";
        let key = self.root.below("parts");
        let first = Bytes::from(vec![b'a'; PART_BYTES]);
        let put = self
            .store
            .put_object(&key, vec![first, Bytes::from_static(b"bcd")])
            .await;
        put.map_err(|error| general(&error, DENIED))?;
        let border = u64::try_from(PART_BYTES).unwrap_or(0);
        let found = self.store.get_range(&key, border - 1..border + 3).await;
        match found.map_err(|error| general(&error, DENIED))?.as_ref() {
            b"abcd" => Ok(()),
            _ => Err((
                "the parts came back in another order".to_owned(),
                "The store cannot be used",
            )),
        }
    }

    async fn list(&self) -> Result<(), Failed> {
        let listed = self.store.list(&self.root).await;
        let listed = listed.map_err(|error| general(&error, "Allow ListBucket on the bucket"))?;
        let key = self.root.below("object");
        if listed.iter().any(|one| one.key == key) {
            return Ok(());
        }
        let advice = "The store lists objects late: restore and collection would miss data. Use a consistent store";
        Err(("an object just written is not listed".to_owned(), advice))
    }

    async fn clock(&self, clock: &dyn Clock) -> Result<(), Failed> {
        let before = clock.now_ms();
        let key = self.root.below("clock");
        let put = self
            .store
            .put_object(&key, vec![Bytes::from_static(CONTENT)])
            .await;
        put.map_err(|error| general(&error, MAY_WRITE))?;
        let info = self
            .store
            .head(&key)
            .await
            .map_err(|error| general(&error, MAY_WRITE))?;
        let written = info.last_modified.get();
        // Stores round to seconds.
        let skew = if written < before - 1000 {
            written - before
        } else {
            (written - clock.now_ms()).max(0)
        };
        if skew.abs() <= SKEW_MS_MAX {
            return Ok(());
        }
        let direction = if skew > 0 { "ahead of" } else { "behind" };
        let reason = format!(
            "the store's clock is {} s {direction} this machine's",
            skew.abs() / 1000
        );
        Err((reason, "Synchronise both clocks (NTP)"))
    }

    async fn delete(&self) -> Result<(), Failed> {
        const DENIED: &str =
            "Allow DeleteObject on the bucket, or retention can never free anything";
        let listed = self
            .store
            .list(&self.root)
            .await
            .map_err(|error| general(&error, DENIED))?;
        for one in &listed {
            self.store
                .delete(&one.key)
                .await
                .map_err(|error| general(&error, DENIED))?;
        }
        match self.store.head(&self.root.below("object")).await {
            Err(StoreError::NotFound { .. }) => Ok(()),
            Ok(_) => Err((
                "a deleted object is still there".to_owned(),
                "Use a store that deletes",
            )),
            Err(error) => Err(general(&error, DENIED)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::store::contract::Subject;
    use crate::store::faulty::{Call, Fault};
    use crate::store::{StoreSettings, open_store};
    use tidelog_env::{SystemClock, SystemRandom};

    fn subject() -> Subject {
        Subject::new(
            &open_store("memory:///", &StoreSettings::default()).unwrap(),
            SystemRandom::seeded(1),
        )
    }

    fn failed(report: &ProbeReport) -> Vec<&'static str> {
        report
            .checks
            .iter()
            .filter(|check| check.outcome != ProbeOutcome::Ok)
            .map(|check| check.name)
            .collect()
    }

    /// Proves that a good store passes every check and that nothing is left behind.
    #[tokio::test]
    async fn a_good_store_passes_and_is_left_clean() {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("file://{}", directory.path().display());
        for url in ["memory:///", url.as_str()] {
            let open = open_store(url, &StoreSettings::default()).unwrap();
            let subject = Subject::new(&open, SystemRandom::seeded(1));
            let report = probe(&subject.store, &SystemClock).await;
            assert!(
                report.is_ok() && report.fit_for_many_brokers(),
                "{url}:\n{report}"
            );
            assert_eq!(
                subject
                    .store
                    .list(&key::probe_root(uuid::Uuid::nil()))
                    .await
                    .unwrap(),
                []
            );
            let left: Vec<_> =
                futures::StreamExt::collect::<Vec<_>>(subject.store.raw().list(None)).await;
            assert!(left.is_empty(), "{left:?}");
        }
    }

    /// Proves that a store that ignores conditions is refused for clusters but fit for one broker, and says why.
    #[tokio::test]
    async fn a_store_that_ignores_conditions_is_refused_for_clusters() {
        let subject = subject();
        subject.faulty.inject_forever(Call::PutIfAbsent, Fault::Lie);
        let report = probe(&subject.store, &SystemClock).await;
        assert_eq!(failed(&report), [PUT_IF_ABSENT]);
        assert!(report.fit_for_one_broker() && !report.fit_for_many_brokers());
        assert!(
            report
                .to_string()
                .contains("FAILED   put-if-absent: a second put"),
            "{report}"
        );
    }

    /// Proves that wrong credentials end the probe at once with what to check.
    #[tokio::test]
    async fn wrong_credentials_are_named() {
        let subject = subject();
        subject.faulty.inject_forever(Call::Put, Fault::Refuse);
        let report = probe(&subject.store, &SystemClock).await;
        assert!(!report.fit_for_one_broker());
        assert!(
            report.failure().unwrap().contains("AWS_ACCESS_KEY_ID"),
            "{report}"
        );
        assert_eq!(
            report
                .checks
                .iter()
                .filter(|check| check.outcome == ProbeOutcome::Skipped)
                .count(),
            6
        );
    }

    /// Proves that a machine without keys and without a role is told so, instead of blaming the endpoint.
    #[test]
    fn missing_credentials_are_named() {
        let error = |reason: &str| StoreError::Unavailable {
            operation: "put",
            key: "k".to_owned(),
            tries: 2,
            reason: reason.to_owned(),
        };
        let (_, advice) = general(
            &error("PUT http://169.254.169.254/latest/api/token: timed out"),
            MAY_WRITE,
        );
        assert!(advice.starts_with("No credentials") && advice.contains("AWS_ACCESS_KEY_ID"));
        let (_, advice) = general(&error("connection refused"), MAY_WRITE);
        assert!(advice.contains("store.endpoint"));
    }

    /// Proves that each broken promise fails its own check and no other.
    #[tokio::test]
    async fn each_broken_promise_has_its_check() {
        for (call, fault, expected) in [
            (Call::Get, Fault::WrongRange(1), RANGE),
            (Call::MultipartBegin, Fault::Refuse, MULTIPART),
            (Call::List, Fault::Lie, LIST),
            (Call::Delete, Fault::Refuse, DELETE),
        ] {
            let subject = subject();
            subject.faulty.inject(call, [fault]);
            let report = probe(&subject.store, &SystemClock).await;
            assert_eq!(failed(&report), [expected], "{report}");
        }
    }

    struct Ahead(i64);

    impl Clock for Ahead {
        fn now_ms(&self) -> i64 {
            SystemClock.now_ms() + self.0
        }
    }

    /// Proves that clocks more than a minute apart are seen, in both directions, and small differences are not.
    #[tokio::test]
    async fn skewed_clocks_are_seen() {
        for (ahead, expected) in [
            (120_000, vec![CLOCK]),
            (-120_000, vec![CLOCK]),
            (5_000, vec![]),
            (-5_000, vec![]),
        ] {
            let report = probe(&subject().store, &Ahead(ahead)).await;
            assert_eq!(failed(&report), expected, "{ahead}: {report}");
        }
    }
}
