//! The HTTP doors: `/json`, health, metrics, and what a debug port shows.
//!
//! Each router takes what it needs as arguments and knows nothing of addresses: [`server::serve`] is given a listener.

pub mod debug;
pub mod health;
mod host;
pub mod json;
pub mod metrics;
pub mod proto_json;
pub mod server;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::{
    Router,
    http::{HeaderValue, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::{any, get, post},
};

use crate::{grpc::convert::Presentation, health::Health, limiter::Limiter};

/// What the doors of the HTTP port need.
#[derive(Clone, Debug)]
pub struct Doors {
    pub limiter: Arc<Limiter>,
    pub presentation: Arc<Presentation>,
    pub health: Arc<Health>,
    pub scrapes: Arc<metrics::Texts>,
}

/// The HTTP port.
pub fn router(doors: Doors) -> Router {
    Router::new()
        .route("/json", post(json::answer))
        .route("/healthcheck", any(health::healthcheck))
        .route("/livez", any(health::livez))
        .route("/readyz", any(health::readyz))
        .route("/metrics", get(metrics::scrape))
        .with_state(doors)
}

/// One sentence, as text.
fn sentence(status: StatusCode, text: impl std::fmt::Display) -> Response {
    plain(status, format!("{text}\n"))
}

fn plain(status: StatusCode, text: String) -> Response {
    typed(status, "text/plain; charset=utf-8", text)
}

fn typed(status: StatusCode, content_type: &'static str, body: String) -> Response {
    let mut response = (status, body).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
