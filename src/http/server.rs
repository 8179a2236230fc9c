//! Serves a router on a listener until told to stop.
//!
//! axum has such a loop of its own, but a caller who opens a connection and says nothing could hold it for ever.

use std::time::Duration;

use axum::{Router, body::Body, http::Request};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt as _;
use tracing::{debug, warn};

use crate::drain::{self, Calls};

const CONNECTIONS_MAX: usize = 10_000;
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// For the headers of a request to arrive, and for an idle connection to ask again.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(30);
/// For answers on the way when told to stop. None takes nearly as long.
const DRAIN_MAX: Duration = Duration::from_secs(15);

/// Serves until `stop`, then until the last request in flight is answered.
pub async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) {
    let connections = TaskTracker::new();
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok((stream, _)) if connections.len() < CONNECTIONS_MAX => {
                connections.spawn(serve_connection(stream, router.clone(), stop.clone()));
            }
            Ok((_, peer)) => warn!(%peer, max = CONNECTIONS_MAX, "too many connections, closing this one"),
            Err(error) => {
                warn!(%error, "cannot accept a connection, trying again");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

async fn serve_connection(stream: TcpStream, router: Router, stop: CancellationToken) {
    // Without it answers only come later.
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%error, "cannot set TCP_NODELAY");
    }
    let calls = Calls::default();
    let counted = calls.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        drain::answer(Some(counted.begin()), router.clone().oneshot(request.map(Body::new)))
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADERS_TIMEOUT);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            // Who stopped in the middle of asking has no answer to wait for.
            tokio::select! {
                ended = timeout(DRAIN_MAX, connection) => ended.unwrap_or(Ok(())),
                () = calls.quiet() => Ok(()),
            }
        }
    };
    if let Err(error) = ended {
        debug!(%error, "connection ended");
    }
}
