//! Which version of each request a broker serves.
//!
//! Owns: the ApiVersions exchange and the choice of a version.

use super::{Inner, call};
use crate::error::{Error, ErrorCode};
use kafka_wire::{ApiVersionsRequest, KafkaRequest};
use kafka_wire_core::StrBytes;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use tokio::time::Instant;

/// The version ranges a broker advertised, by API key.
#[derive(Debug, Clone, Default)]
pub struct Versions(BTreeMap<i16, (i16, i16)>);

impl Versions {
    pub(super) fn pick<R: KafkaRequest>(
        &self,
        ours: RangeInclusive<i16>,
        address: &str,
    ) -> Result<i16, Error> {
        let supported = R::SUPPORTED_VERSIONS;
        let (low, high) = (
            *ours.start().max(&supported.min().value()),
            *ours.end().min(&supported.max().value()),
        );
        let unsupported = |cause: String| Error::Unsupported {
            address: address.to_owned(),
            api: R::NAME.to_owned(),
            cause,
        };
        let Some(&(theirs_low, theirs_high)) = self.0.get(&R::API_KEY.value()) else {
            return Err(unsupported("it does not serve it at all".to_owned()));
        };
        let best = high.min(theirs_high);
        if best < low || best < theirs_low {
            return Err(unsupported(format!(
                "it serves {theirs_low}-{theirs_high}, this client {low}-{high}"
            )));
        }
        Ok(best)
    }
}

/// Asks with version 3, which carries our name; a broker that does not know it answers in version 0 and is asked again.
pub(super) async fn negotiate(inner: &Inner, deadline: Instant) -> Result<Versions, Error> {
    let mut request = ApiVersionsRequest::default();
    request.client_software_name = StrBytes::from("tidelog-client");
    request.client_software_version = StrBytes::from(env!("CARGO_PKG_VERSION"));
    let response = match call(inner, 3, &request, deadline).await {
        Ok(response) if response.error_code != ErrorCode::UNSUPPORTED_VERSION.get() => response,
        // An answer in version 0 does not decode as version 3 and closes the connection: a broker that old (before
        // Kafka 2.4) is not served.
        other => other?,
    };
    ErrorCode::new(response.error_code).check("agree on versions", None)?;
    Ok(Versions(
        response
            .api_keys
            .iter()
            .map(|api| (api.api_key, (api.min_version, api.max_version)))
            .collect(),
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use kafka_wire::{FetchRequest, MetadataRequest};

    /// Proves that the highest common version is chosen and that disjoint ranges are an error that names both.
    #[test]
    fn highest_common_version() {
        let versions = Versions(BTreeMap::from([(1, (4, 11)), (3, (12, 13))]));
        assert_eq!(versions.pick::<FetchRequest>(4..=12, "a").unwrap(), 11);
        assert_eq!(versions.pick::<FetchRequest>(4..=9, "a").unwrap(), 9);
        let error = versions.pick::<MetadataRequest>(4..=9, "a").unwrap_err();
        assert!(
            error.to_string().contains("12-13") && error.to_string().contains("4-9"),
            "{error}"
        );
        assert!(
            Versions::default()
                .pick::<FetchRequest>(4..=12, "a")
                .is_err()
        );
    }
}
