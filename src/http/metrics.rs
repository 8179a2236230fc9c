//! What Prometheus scrapes, on the HTTP port and, where asked for, on a listener of its own.

use std::sync::{Arc, Mutex, PoisonError};

use axum::{
    Router,
    extract::State,
    http::{HeaderValue, Method, StatusCode, Uri, header},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;

use super::{Doors, sentence};
use crate::{limiter::Limiter, store::Store};

const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// Texts that may be on their way at once. With many rules one has megabytes, and a reader can be slow.
pub const TEXTS_MAX: usize = 8;

/// The texts that are on their way. Who comes when there are too many gets the last one.
#[derive(Debug, Default)]
pub struct Texts(Mutex<Vec<Bytes>>);

impl Texts {
    fn next(&self, render: impl FnOnce() -> String) -> Bytes {
        let mut texts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        texts.retain(|text| !text.is_unique());
        if texts.len() < TEXTS_MAX {
            texts.push(render().into());
        }
        texts.last().cloned().unwrap_or_default()
    }
}

pub async fn scrape(State(doors): State<Doors>) -> Response {
    rendered(doors.limiter.clone(), doors.scrapes.clone()).await
}

/// A listener with metrics alone, at `path`. Any text is a path here, a wrong one is merely never asked for.
pub fn router(limiter: Arc<Limiter>, path: &str) -> Router {
    let path: Arc<str> = path.into();
    let scrapes = Arc::new(Texts::default());
    Router::new().fallback(async move |method: Method, uri: Uri| {
        let reads = method == Method::GET || method == Method::HEAD;
        match (uri.path() == &*path, reads) {
            (true, true) => rendered(limiter.clone(), scrapes.clone()).await,
            (true, false) => sentence(StatusCode::METHOD_NOT_ALLOWED, "metrics are read with GET"),
            (false, _) => sentence(StatusCode::NOT_FOUND, format_args!("nothing here: metrics are at {path}")),
        }
    })
}

/// On a thread that no call waits for: with many rules it takes long, and those who come meanwhile wait for it, too.
async fn rendered(limiter: Arc<Limiter>, scrapes: Arc<Texts>) -> Response {
    match tokio::task::spawn_blocking(move || render(&limiter, &scrapes)).await {
        Ok(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
        Err(_) => sentence(StatusCode::INTERNAL_SERVER_ERROR, "sluice has panicked: its log has the place"),
    }
}

/// The store counts for itself; its figures are taken over when somebody asks.
fn render(limiter: &Limiter, scrapes: &Texts) -> Bytes {
    let metrics = limiter.metrics();
    match limiter.store() {
        Store::Memory(store) => {
            #[expect(clippy::cast_precision_loss, reason = "no process has 2^53 counters")]
            metrics.store_entries.set(store.entries() as f64);
            metrics.store_evictions.absolute(store.evictions());
        }
        Store::Redis(_) => {}
    }
    scrapes.next(|| metrics.render())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_too_many_slow_readers_the_last_text_is_given_again() {
        let texts = Texts::default();
        let mut number = 0;
        let mut next = || {
            texts.next(|| {
                number += 1;
                number.to_string()
            })
        };
        let mut read: Vec<Bytes> = (0..=TEXTS_MAX).map(|_| next()).collect();
        assert_eq!(read[TEXTS_MAX], read[TEXTS_MAX - 1], "one beyond");
        read.remove(0);
        assert_eq!(next(), Bytes::from((TEXTS_MAX + 1).to_string()));
    }
}
