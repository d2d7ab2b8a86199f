//! The HTTP server of the admin routes.

use std::net::SocketAddr;

use axum::Router as Routes;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use std::sync::{Arc, OnceLock};
use tidelog_env::{Accepted, Listener, Tasks};
use tower_service::Service as _;

use super::AdminState;
use super::error::Failure;
use super::health::Health;
use super::{archive, cluster, health, members, scrape, tier};

/// Largest request body: the requests are a few fields of JSON.
const BODY_BYTES_MAX: usize = 64 << 10;

/// A running admin listener. Until [`AdminServer::open`] it answers health alone.
#[derive(Clone)]
pub struct AdminServer {
    /// Its address, with the port that was chosen where 0 was configured.
    pub address: SocketAddr,
    gate: Gate,
}

/// What is served: nothing but health while the broker starts, then all routes.
#[derive(Clone)]
struct Gate {
    health: Health,
    routes: Arc<OnceLock<Routes>>,
}

impl AdminServer {
    /// Serves all routes from now on.
    pub fn open(&self, state: AdminState) {
        // Opened twice: the first routes stay.
        let _ = self.gate.routes.set(routes(state));
    }
}

/// Serves `listener` until `tasks` stop: that the process lives, and what it waits for according to `health`.
///
/// # Errors
/// The listener has no address.
pub fn serve(
    listener: Box<dyn Listener>,
    health: Health,
    tasks: &Tasks,
) -> std::io::Result<AdminServer> {
    let address = listener.local_addr()?;
    let gate = Gate {
        health,
        routes: Arc::default(),
    };
    let routes = Routes::new().fallback(pass).with_state(gate.clone());
    tasks.spawn("admin", async move {
        if let Err(error) = axum::serve(HandedIn(listener), routes).await {
            tracing::error!("the admin listener ended: {error}");
        }
    });
    Ok(AdminServer { address, gate })
}

/// To the routes, or what can be said without them.
async fn pass(State(gate): State<Gate>, request: Request) -> Response {
    if let Some(routes) = gate.routes.get() {
        return match routes.clone().call(request).await {
            Ok(answer) => answer,
            Err(never) => match never {},
        };
    }
    match request.uri().path() {
        "/livez" => health::livez().await.into_response(),
        "/readyz" => health::starting(&gate.health).into_response(),
        _ => Failure::starting(&gate.health.reasons()).into_response(),
    }
}

fn routes(state: AdminState) -> Routes {
    Routes::new()
        .route("/livez", get(health::livez))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(scrape::metrics))
        .route("/api/v1/cluster", get(cluster::cluster))
        .route("/api/v1/members", get(members::members))
        .route("/api/v1/members/add", post(members::add))
        .route("/api/v1/members/decommission", post(members::decommission))
        .route("/api/v1/leaders/transfer", post(members::transfer))
        .route("/api/v1/leaders/balance", post(members::balance))
        .route("/api/v1/topics", get(cluster::topics))
        .route("/api/v1/tier", get(tier::status))
        .route("/api/v1/tier/flush", post(tier::flush))
        .route("/api/v1/archive", get(archive::status))
        .route("/api/v1/archive/flush", post(archive::flush))
        .fallback(unknown)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(state)
}

async fn unknown() -> impl IntoResponse {
    let body = r#"{"error":{"code":"unknown_route","message":"docs/protocols/admin-http.md lists the routes"}}"#;
    (
        StatusCode::NOT_FOUND,
        [(header::CONTENT_TYPE, "application/json")],
        body,
    )
}

/// The handed-in listener, as axum wants it.
struct HandedIn(Box<dyn Listener>);

impl axum::serve::Listener for HandedIn {
    type Io = tidelog_env::BoxStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            match self.0.accept().await {
                Ok(Accepted { stream, peer, .. }) => return (stream, peer),
                Err(error) => {
                    tracing::warn!("the admin listener could not accept a connection: {error}");
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.0.local_addr()
    }
}
