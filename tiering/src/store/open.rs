//! Opens a store by its URL.
//!
//! Owns: `file://`, `s3://`, `memory://`; settings; how object_store's own client is tuned.

use super::durable::DurableFiles;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientConfigKey, ObjectStore, RetryConfig};
use std::sync::Arc;
use std::time::Duration;
use url::Url;

/// What a URL does not say. Credentials and whatever is `None` come from the usual `AWS_*` variables.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct StoreSettings {
    /// `http://host:port` of an S3 server that is not AWS.
    pub endpoint: Option<String>,
    /// Bucket in the path (true) or in the host name (false). Default: in the path.
    pub path_style: Option<bool>,
    /// The region.
    pub region: Option<String>,
    /// Access key, for those who do not use the environment.
    pub access_key_id: Option<String>,
    /// Its secret.
    pub secret_access_key: Option<String>,
}

impl std::fmt::Debug for StoreSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // No secret in any output (I16).
        f.debug_struct("StoreSettings")
            .field("endpoint", &self.endpoint)
            .field("path_style", &self.path_style)
            .field("region", &self.region)
            .finish_non_exhaustive()
    }
}

/// A store and the prefix its URL names.
#[derive(Clone, Debug)]
pub struct OpenStore {
    /// The store.
    pub store: Arc<dyn ObjectStore>,
    /// What everything lies below; may be empty.
    pub prefix: Path,
}

/// Why a URL does not open. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Not a URL, or of a kind that is not served.
    #[error("store URL {url:?}: {reason}; use file:///absolute/path or s3://bucket/prefix")]
    Url {
        /// As given.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The directory of a `file://` store cannot be made or opened.
    #[error("store directory {path}: {error}; it must be a directory this user can write")]
    Directory {
        /// The directory.
        path: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// Nothing says who asks.
    #[error(
        "store {url}: no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to those of the server at {endpoint}"
    )]
    Credentials {
        /// The store's URL.
        url: String,
        /// The server.
        endpoint: String,
    },
    /// The client does not accept the settings.
    #[error("store {url}: {reason}; check store.endpoint, store.region and the AWS_* variables")]
    Settings {
        /// The store's URL.
        url: String,
        /// What the client said.
        reason: String,
    },
}

/// Opens a store. For `file://` the directory is made; for `s3://` nothing is sent yet.
///
/// # Errors
/// See [`OpenError`].
pub fn open_store(url: &str, settings: &StoreSettings) -> Result<OpenStore, OpenError> {
    let wrong = |reason: String| OpenError::Url {
        url: url.to_owned(),
        reason,
    };
    let parsed = Url::parse(url).map_err(|error| wrong(error.to_string()))?;
    match parsed.scheme() {
        "file" => {
            let path = parsed
                .to_file_path()
                .map_err(|()| wrong("it names no absolute path".to_owned()))?;
            let store = DurableFiles::open(&path).map_err(|error| OpenError::Directory {
                path: path.display().to_string(),
                error,
            })?;
            Ok(OpenStore {
                store: Arc::new(store),
                prefix: Path::default(),
            })
        }
        "memory" => Ok(OpenStore {
            store: Arc::new(InMemory::new()),
            prefix: Path::default(),
        }),
        "s3" => {
            let bucket = parsed.host_str().filter(|host| !host.is_empty());
            let bucket = bucket.ok_or_else(|| wrong("it names no bucket".to_owned()))?;
            let prefix =
                Path::from_url_path(parsed.path()).map_err(|error| wrong(error.to_string()))?;
            let builder = s3(bucket, settings);
            if let Some(endpoint) = endpoint_without_credentials(&builder) {
                return Err(OpenError::Credentials {
                    url: url.to_owned(),
                    endpoint,
                });
            }
            let store = builder.build().map_err(|error| OpenError::Settings {
                url: url.to_owned(),
                reason: error.to_string(),
            })?;
            Ok(OpenStore {
                store: Arc::new(store),
                prefix,
            })
        }
        other => Err(wrong(format!("stores of kind {other:?} are not served"))),
    }
}

fn s3(bucket: &str, settings: &StoreSettings) -> AmazonS3Builder {
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
    if let Some(endpoint) = &settings.endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    let endpoint = builder
        .get_config_value(&AmazonS3ConfigKey::Endpoint)
        .unwrap_or_default();
    if endpoint.starts_with("http://") {
        builder = builder.with_allow_http(true);
    }
    if let Some(region) = &settings.region {
        builder = builder.with_region(region);
    }
    if let Some(path_style) = settings.path_style {
        builder = builder.with_virtual_hosted_style_request(!path_style);
    }
    if let Some(id) = &settings.access_key_id {
        builder = builder.with_access_key_id(id);
    }
    if let Some(secret) = &settings.secret_access_key {
        builder = builder.with_secret_access_key(secret);
    }
    client_timeouts(builder).with_retry(low_retries())
}

/// Without credentials object_store asks the cloud machine's metadata service, and what fails then looks like a network that
/// does not work. Where the server is not AWS nobody can mean that.
fn endpoint_without_credentials(builder: &AmazonS3Builder) -> Option<String> {
    use AmazonS3ConfigKey as Key;
    let endpoint = builder.get_config_value(&Key::Endpoint)?;
    let is_aws = Url::parse(&endpoint).is_ok_and(|url| {
        url.host_str().is_some_and(|host| {
            host.ends_with(".amazonaws.com") || host.ends_with(".amazonaws.com.cn")
        })
    });
    let others = [
        Key::AccessKeyId,
        Key::WebIdentityTokenFile,
        Key::ContainerCredentialsRelativeUri,
        Key::ContainerCredentialsFullUri,
    ];
    let given = others.iter().any(|key| {
        builder
            .get_config_value(key)
            .is_some_and(|value| !value.is_empty())
    }) || builder.get_config_value(&Key::SkipSignature).as_deref() == Some("true");
    (!is_aws && !given).then_some(endpoint)
}

/// Retries are `TierStore`'s. One quick retry stays below it: it hides a connection the server closed while idle.
fn low_retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(50),
            max_backoff: Duration::from_millis(200),
            base: 2.0,
        },
        max_retries: 1,
        retry_timeout: Duration::from_secs(5),
    }
}

/// Deadlines are `TierStore`'s too; the client's own are a backstop for connections whose caller has gone. Set one by
/// one: whole client options would throw away what the environment set.
fn client_timeouts(builder: AmazonS3Builder) -> AmazonS3Builder {
    [
        (ClientConfigKey::ConnectTimeout, "5 seconds"),
        (ClientConfigKey::Timeout, "120 seconds"),
        (ClientConfigKey::PoolIdleTimeout, "30 seconds"),
    ]
    .into_iter()
    .fold(builder, |builder, (key, value)| {
        builder.with_config(AmazonS3ConfigKey::Client(key), value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bare() -> AmazonS3Builder {
        AmazonS3Builder::new().with_bucket_name("b")
    }

    /// Proves that a server which is not AWS needs credentials from somewhere, and that AWS may give them by other ways than keys.
    #[test]
    fn a_server_that_is_not_aws_needs_credentials() {
        let own = || bare().with_endpoint("http://127.0.0.1:9000");
        let missing = endpoint_without_credentials;
        assert_eq!(missing(&own()).as_deref(), Some("http://127.0.0.1:9000"));
        assert_eq!(missing(&own().with_access_key_id("k")), None);
        assert_eq!(missing(&own().with_skip_signature(true)), None);
        let token = AmazonS3ConfigKey::WebIdentityTokenFile;
        assert_eq!(missing(&own().with_config(token, "/token")), None);
        assert_eq!(missing(&bare()), None);
        let aws = "https://s3.eu-west-1.amazonaws.com";
        assert_eq!(missing(&bare().with_endpoint(aws)), None);
    }
}
