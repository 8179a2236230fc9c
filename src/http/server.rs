//! Serves a router on a listener until told to stop.
//!
//! axum has such a loop of its own, but a caller who opens a connection and says nothing could hold it for ever.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{Request, Response, StatusCode},
};
use futures_util::FutureExt as _;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::Interest,
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt as _;
use tracing::debug;

use super::sentence;
use crate::{
    connections::{AcceptErrors, Closed, Connections, Guest, Leave, Newcomers, Stays},
    drain::{self, Calls, Counted, InFlight, SLICE},
    panics::{self, Panicked},
};

/// Probes, scrapers, and callers who do not speak gRPC.
pub const CONNECTIONS_MAX: usize = 1_024;
/// For people and their tools.
pub const DEBUG_CONNECTIONS_MAX: usize = 32;
/// For the first byte of the first request.
pub const OPENING_MAX: Duration = Duration::from_secs(10);
/// For the headers of a request to arrive, and for an idle connection to ask again.
pub const HEADERS_TIMEOUT: Duration = Duration::from_secs(30);
/// Of the headers of a request, and of what is read or written in one go.
pub const HEADERS_BYTES_MAX: usize = 64 << 10;
/// Headers of a request.
pub const HEADERS_MAX: usize = 100;
/// For answers on the way when told to stop. None takes nearly as long.
const DRAIN_MAX: Duration = Duration::from_secs(15);
/// For a request to arrive on a connection that was there when told to stop.
const OPENING_AFTER_STOP_MAX: Duration = Duration::from_millis(250);

/// What the connections of a listener share.
#[derive(Clone, Debug)]
pub struct Door {
    pub router: Router,
    pub connections: Connections,
    pub in_flight: Arc<InFlight>,
}

/// Serves until `stop`, then until the last request in flight is answered.
pub async fn serve(listener: TcpListener, door: Door, stop: CancellationToken) {
    let tasks = TaskTracker::new();
    panics::again(|| accept(&listener, &door, &tasks, &stop)).await;
    drop(listener);
    tasks.close();
    tasks.wait().await;
}

async fn accept(listener: &TcpListener, door: &Door, tasks: &TaskTracker, stop: &CancellationToken) {
    let (mut newcomers, mut errors) = (Newcomers::new(Stays::WhileAsking), AcceptErrors::default());
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok((stream, _)) => {
                errors.none();
                if !door.connections.has_room(&mut newcomers).await {
                    continue;
                }
                let (guest, calls) = (door.connections.enter(), Calls::new(door.in_flight.clone()));
                let leave = newcomers.add(calls.clone());
                tasks.spawn(door.clone().welcome(stream, guest, calls, leave, stop.clone()));
            }
            Err(error) => errors.wait_after(&error).await,
        }
    }
}

impl Door {
    async fn welcome(self, stream: TcpStream, _guest: Guest, calls: Calls, mut leave: Leave, stop: CancellationToken) {
        // Without it answers only come later.
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%error, "cannot set TCP_NODELAY");
        }
        let after_stop = async {
            // Who is about to ask is still answered.
            stop.cancelled().await;
            sleep(OPENING_AFTER_STOP_MAX).await;
        };
        tokio::select! {
            ready = stream.ready(Interest::READABLE) => if ready.is_err() { return },
            () = sleep(OPENING_MAX) => return self.connections.closed(Closed::Silent),
            () = leave.wanted(&calls) => return debug!("connection closed: others need the room"),
            () = after_stop => return,
        }
        Box::pin(self.serve_connection(stream, calls, leave, stop)).await;
    }

    async fn serve_connection(self, stream: TcpStream, calls: Calls, mut leave: Leave, stop: CancellationToken) {
        let (counted, router) = (calls.clone(), self.router);
        let service = service_fn(move |request| answer(&counted, router.clone(), request));
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEADERS_TIMEOUT);
        builder.max_headers(HEADERS_MAX).max_buf_size(HEADERS_BYTES_MAX);
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = overdue(&calls) => return self.connections.closed(Closed::Overdue),
            () = leave.wanted(&calls) => return debug!("connection closed: others need the room"),
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
}

/// Until a request takes longer than any may: its body is sent, or its answer read, too slowly.
async fn overdue(calls: &Calls) {
    loop {
        sleep(SLICE).await;
        if calls.is_overdue() {
            return;
        }
    }
}

fn answer(
    calls: &Calls,
    router: Router,
    request: Request<Incoming>,
) -> impl Future<Output = Result<Response<Counted<Body>>, Infallible>> + use<> {
    let calls = calls.clone();
    async move {
        let Some(call) = calls.begin() else {
            let reason = "too many calls are under way, this one was not begun";
            return Ok(sentence(StatusCode::SERVICE_UNAVAILABLE, reason).map(Counted::refusal));
        };
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(calls);
        let answering = panics::caught(router.oneshot(request)).map(|answer| match answer {
            Ok(answer) => answer,
            Err(Panicked) => {
                Ok(sentence(StatusCode::INTERNAL_SERVER_ERROR, "sluice has panicked: its log has the place"))
            }
        });
        drain::answer(call, answering).await
    }
}
