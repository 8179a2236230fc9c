//! What Prometheus scrapes, on the HTTP port and, where asked for, on a listener of its own.

use std::sync::Arc;

use axum::{
    Router,
    extract::State,
    http::{Method, StatusCode, Uri},
    response::Response,
};

use super::{Doors, sentence, typed};
use crate::{limiter::Limiter, store::Store};

const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

pub async fn scrape(State(doors): State<Doors>) -> Response {
    rendered(&doors.limiter)
}

/// A listener with metrics alone, at `path`. Any text is a path here, a wrong one is merely never asked for.
pub fn router(limiter: Arc<Limiter>, path: &str) -> Router {
    let path: Arc<str> = path.into();
    Router::new().fallback(async move |method: Method, uri: Uri| {
        let reads = method == Method::GET || method == Method::HEAD;
        match (uri.path() == &*path, reads) {
            (true, true) => rendered(&limiter),
            (true, false) => sentence(StatusCode::METHOD_NOT_ALLOWED, "metrics are read with GET"),
            (false, _) => sentence(StatusCode::NOT_FOUND, format_args!("nothing here: metrics are at {path}")),
        }
    })
}

/// The store counts for itself; its figures are taken over when somebody asks.
fn rendered(limiter: &Limiter) -> Response {
    let metrics = limiter.metrics();
    match limiter.store() {
        Store::Memory(store) => {
            #[expect(clippy::cast_precision_loss, reason = "no process has 2^53 counters")]
            metrics.store_entries.set(store.entries() as f64);
            metrics.store_evictions.absolute(store.evictions());
        }
        Store::Redis(_) => {}
    }
    typed(StatusCode::OK, CONTENT_TYPE, metrics.render())
}
