//! The gRPC listener: accepts connections, limits their number and age, and drains them.
//!
//! tonic has such a loop of its own, but no jitter in it and no working grace, and it spins when the process is out of file
//! descriptors.

use std::{io, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::sleep,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{either::Either, sync::CancellationToken, task::TaskTracker};
use tracing::{debug, warn};

use super::{
    listen::{Listener, Socket},
    opening::{Opened, opened},
    services::Services,
    streams::{Streams, Together},
    tls::Tls,
};
use crate::drain::Calls;

/// Envoy resets every call that it gives up on. Each of those may be waiting to be accepted, and h2 closes a connection
/// with more than this many of them; its own default is 20.
const PENDING_RESETS_MAX: usize = 8_192;
const STREAMS_MAX: u32 = 4_096;
const CONNECTIONS_MAX: usize = 20_000;
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// For the TLS handshake and the first bytes of HTTP/2 to arrive.
const OPENING_MAX: Duration = Duration::from_secs(10);
const OPENING_AFTER_STOP_MAX: Duration = Duration::from_millis(250);

/// How long a connection may live.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionAge {
    /// Then the caller is asked to open another one. Up to a tenth more or less, so that connections that were opened
    /// together do not end together. `None` is for ever.
    pub max: Option<Duration>,
    /// Then the connection is cut.
    pub grace: Option<Duration>,
}

/// What every connection of a listener shares.
#[derive(Clone, Debug)]
pub struct Door {
    pub services: Services,
    pub tls: Option<Arc<Tls>>,
    pub age: ConnectionAge,
}

/// Serves until `stop`, then until the last call is answered.
pub async fn serve(listener: Listener, door: Door, stop: CancellationToken) {
    let connections = TaskTracker::new();
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok(socket) if connections.len() < CONNECTIONS_MAX => {
                connections.spawn(door.clone().welcome(socket, stop.clone()));
            }
            Ok(_) => warn!(max = CONNECTIONS_MAX, "too many connections, closing this one"),
            Err(error) => {
                warn!(%error, "cannot accept a connection, trying again");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    // Who has got through to the system has perhaps asked already, and would be cut off with the listener.
    while let Some(Ok(socket)) = listener.accept().now_or_never() {
        connections.spawn(door.clone().welcome(socket, stop.clone()));
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

impl Door {
    async fn welcome(self, socket: Socket, stop: CancellationToken) {
        let in_time = async {
            tokio::select! {
                () = sleep(OPENING_MAX) => {}
                // Who is about to ask is still let in, and told at once that it should ask elsewhere from then on.
                () = stop.cancelled() => sleep(OPENING_AFTER_STOP_MAX).await,
            }
        };
        tokio::select! {
            opened = open(socket, self.tls.as_deref()) => match opened {
                Ok(stream) => self.serve_connection(stream, stop).await,
                Err(error) => debug!(%error, "connection refused"),
            },
            () = in_time => debug!("connection refused: the caller did not open it in time"),
        }
    }

    async fn serve_connection<S>(self, stream: S, stop: CancellationToken)
    where
        S: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let calls = Calls::default();
        let (services, counted) = (self.services, calls.clone());
        let service = service_fn(move |request| services.answer(&counted, request));
        let streams = Streams::default();
        let builder = connection_builder(streams.clone());
        let mut connection = Together::new(builder.serve_connection(TokioIo::new(stream), service), streams);
        let ended = tokio::select! {
            ended = &mut connection => Some(ended),
            () = end_of_life(self.age.max) => None,
            () = stop.cancelled() => None,
        };
        let ended = if let Some(ended) = ended {
            ended
        } else {
            // A GOAWAY, after which the caller sends nothing more here, and ends the connection with its last call.
            connection.connection().graceful_shutdown();
            tokio::select! {
                ended = connection => ended,
                () = calls.quiet() => Ok(()),
                () = grace(self.age.grace) => Ok(()),
            }
        };
        if let Err(error) = ended {
            debug!(%error, "connection ended");
        }
    }
}

/// The same stream whatever it is made of.
async fn open(socket: Socket, tls: Option<&Tls>) -> io::Result<Opened<Either<Socket, TlsSocket>>> {
    let stream = match tls {
        Some(tls) => Either::Right(Box::new(TlsAcceptor::from(tls.current()).accept(socket).await?)),
        None => Either::Left(socket),
    };
    opened(stream).await
}

type TlsSocket = Box<tokio_rustls::server::TlsStream<Socket>>;

fn connection_builder(streams: Streams) -> auto::Builder<Streams> {
    let mut builder = auto::Builder::new(streams).http2_only();
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_pending_accept_reset_streams(PENDING_RESETS_MAX)
        .keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT);
    builder
}

async fn end_of_life(max: Option<Duration>) {
    match max {
        Some(max) => sleep(max.mul_f64(0.9 + 0.2 * fastrand::f64())).await,
        None => std::future::pending().await,
    }
}

async fn grace(grace: Option<Duration>) {
    match grace {
        Some(grace) => sleep(grace).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpStream,
        time::timeout,
    };

    use tonic::service::Routes;

    use super::*;

    /// What a caller reads who sends these bytes and nothing more, however long it takes.
    async fn read_after(sent: &[u8]) -> Vec<u8> {
        let listener = super::super::listen::bind_tcp(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        let age = ConnectionAge { max: None, grace: None };
        let door = Door { services: Routes::default().prepare().into(), tls: None, age };
        let stop = CancellationToken::new();
        let serving = tokio::spawn(serve(Listener::Tcp(listener), door, stop.clone()));
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(sent).await.unwrap();
        // From here on time runs only while everybody waits.
        tokio::time::pause();
        let mut read = Vec::new();
        let ended = timeout(Duration::from_mins(10), stream.read_to_end(&mut read)).await;
        assert!(ended.is_ok(), "the connection is still open");
        stop.cancel();
        serving.await.unwrap();
        read
    }

    #[tokio::test]
    async fn a_caller_who_says_nothing_is_cut_off() {
        assert_eq!(read_after(b"").await, b"");
    }

    #[tokio::test]
    async fn a_caller_who_opens_half_a_connection_is_cut_off() {
        assert_eq!(read_after(b"PRI * HTT").await, b"");
    }

    #[tokio::test]
    async fn a_caller_who_opens_its_connection_and_falls_silent_is_cut_off() {
        let settings = b"\0\0\0\x04\0\0\0\0\0";
        let read = read_after(&[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &settings[..]].concat()).await;
        assert!(!read.is_empty(), "its settings are answered");
    }
}
