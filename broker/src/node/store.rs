//! The object store of a node: opened at start, watched in the background (`store_watch`).
//!
//! A store that cannot be reached does not keep a broker from starting (field report A15): appends and tail reads work
//! without it. Health and the log say what is wrong until it works.

use std::path::Path;
use std::sync::Arc;

use super::World;
use super::error::StartError;
use super::identity::Identity;
use super::store_watch::{self, Watched};
use crate::admin::Health;
use crate::config::{self, Config};
use tidelog_env::Tasks;
use tidelog_model::ClusterId;
use tidelog_tiering::probe::{ProbeReport, probe};
use tidelog_tiering::reader::{ReaderConfig, RemoteReader};
use tidelog_tiering::store::{OpenStore, StoreLimits, StoreSettings, TierStore, open_store};

/// The store and what reads it.
pub(super) struct NodeStore {
    pub(super) url: String,
    /// What the store's paths are relative to, as readers of the archive write it.
    pub(super) root_uri: String,
    pub(super) tier: TierStore,
    pub(super) reader: Arc<RemoteReader>,
    pub(super) health: Health,
}

/// Uploads to a directory, which may be on the log's own disk, go at this rate: about a tenth of what such a disk gives.
const FILE_UPLOAD_BYTES_PER_SECOND: u64 = 64 << 20;

impl NodeStore {
    /// The rate that uploads keep to; see `OffloadConfig`.
    pub(super) fn upload_bytes_per_second(&self, tier: &config::Tier) -> Option<u64> {
        match tier.upload_bytes_per_second {
            0 => self
                .url
                .starts_with("file:")
                .then_some(FILE_UPLOAD_BYTES_PER_SECOND),
            rate => Some(rate),
        }
    }
}

/// The URL of the configuration, or the directory inside the data directory.
pub(super) fn url(config: &Config) -> Result<String, StartError> {
    if !config.store.url.is_empty() {
        return Ok(config.store.url.clone());
    }
    let dir = config.node.data_dir.join("store");
    let failed = |error| StartError::DataDirectory {
        dir: dir.clone(),
        error,
    };
    let absolute = std::path::absolute(Path::new(&dir)).map_err(failed)?;
    match url::Url::from_directory_path(&absolute) {
        Ok(url) => Ok(url.to_string()),
        Err(()) => Err(failed(std::io::Error::other(
            "the path cannot be written as a URL",
        ))),
    }
}

fn non_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// Settings of the configuration over the usual AWS_* variables.
fn settings(config: &Config) -> StoreSettings {
    let mut settings = StoreSettings {
        endpoint: std::env::var("AWS_ENDPOINT_URL").ok(),
        ..StoreSettings::default()
    };
    if let Some(endpoint) = non_empty(&config.store.endpoint) {
        settings.endpoint = Some(endpoint);
    }
    if let Some(region) = non_empty(&config.store.region) {
        settings.region = Some(region);
    }
    if config.store.path_style {
        settings.path_style = Some(true);
    }
    settings
}

pub(super) fn open(
    config: &Config,
    world: &World,
    identity: Identity,
    health: Health,
    tasks: &Tasks,
) -> Result<NodeStore, StartError> {
    let url = url(config)?;
    let tier = tier_store(&url, config, world, identity.cluster)?;
    let reader_config = ReaderConfig {
        memory_bytes: config.tier.cache_bytes,
        ..ReaderConfig::default()
    };
    let reader = Arc::new(RemoteReader::new(
        tier.clone(),
        reader_config,
        tasks.clone(),
    ));
    let watched = Watched {
        store: tier.clone(),
        url: url.clone(),
        node: identity.node,
        health: health.clone(),
        clock: Arc::clone(&world.clock),
        random: Arc::clone(&world.random),
    };
    store_watch::start(watched, tasks);
    let root_uri = root_uri(&url);
    Ok(NodeStore {
        url,
        root_uri,
        tier,
        reader,
        health,
    })
}

pub(super) fn tier_store(
    url: &str,
    config: &Config,
    world: &World,
    cluster: ClusterId,
) -> Result<TierStore, StartError> {
    let OpenStore { store, prefix } = match &world.store {
        Some(store) => OpenStore {
            store: Arc::clone(store),
            prefix: object_store::path::Path::default(),
        },
        None => open_store(url, &settings(config))?,
    };
    Ok(TierStore::new(
        store,
        &prefix,
        cluster,
        Arc::clone(&world.random),
        StoreLimits::default(),
    ))
}

/// `file:///directory` without URL escapes, or `s3://bucket` without the prefix.
fn root_uri(url: &str) -> String {
    match url::Url::parse(url) {
        Ok(parsed) if parsed.scheme() == "file" => match parsed.to_file_path() {
            Ok(path) => format!("file://{}", path.display()),
            Err(()) => url.to_owned(),
        },
        Ok(parsed) => format!(
            "{}://{}",
            parsed.scheme(),
            parsed.host_str().unwrap_or_default()
        ),
        Err(_) => url.to_owned(),
    }
}

/// Checks what the configured store can do (`tidelog doctor`). Leaves nothing behind.
///
/// # Errors
/// [`StartError`] if the store cannot even be opened.
pub async fn probe_store(config: &Config, world: &World) -> Result<ProbeReport, StartError> {
    let tier = tier_store(
        &url(config)?,
        config,
        world,
        ClusterId::new(world.random.uuid()),
    )?;
    Ok(probe(&tier, world.clock.as_ref()).await)
}
