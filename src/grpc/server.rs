//! The gRPC listener: accepts connections, limits their number and age, and drains them.
//!
//! tonic has such a loop of its own, but no jitter in it and no working grace, and it spins when the process is out of file
//! descriptors.

use std::{io, sync::Arc, time::Duration};

use hyper::{server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{either::Either, sync::CancellationToken, task::TaskTracker};
use tracing::debug;

use super::{
    frames::{Frames, Turn},
    limits::{
        FIRST_CALL_MAX, HEADER_LIST_BYTES_MAX, KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT, OPENING_MAX, PENDING_RESETS_MAX,
        SEND_BUFFER_BYTES, STREAMS_MAX, WINDOW_BYTES,
    },
    listen::{Listener, Socket},
    opening::{Opened, PREFACE, asked, opened},
    services::Services,
    streams::{Streams, Together},
    tls::Tls,
};
use crate::{
    connections::{AcceptErrors, Closed, Connections, Guest, Leave, Newcomers, Stays},
    drain::{Calls, InFlight, SLICE},
    panics,
};

const OPENING_AFTER_STOP_MAX: Duration = Duration::from_millis(250);
/// How often, and how long each time, it is looked for those who had got through to the system when we stopped. Counted, because a
/// process that stood still would find its time over before it has looked; and so many at the most, because newcomers may never end.
const LAST_LOOKS: u32 = 10;
const LAST_LOOK: Duration = Duration::from_millis(2);
const LAST_NEWCOMERS: u32 = 1024;
/// Slices of time without a call after which a connection is idle.
const IDLE_SLICES: u32 = 2;

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
    pub connections: Connections,
    /// Idle connections that may stay however long they are.
    pub idle_max: usize,
    pub in_flight: Arc<InFlight>,
}

/// Serves until `stop`, then until the last call is answered.
pub async fn serve(listener: Listener, door: Door, stop: CancellationToken) {
    let tasks = TaskTracker::new();
    panics::again(|| accept(&listener, &door, &tasks, &stop)).await;
    // Who has got through to the system has perhaps asked already, and would be cut off with the listener.
    let (mut newcomers, mut looks, mut room) = (Newcomers::new(Stays::OnceAsked), LAST_LOOKS, LAST_NEWCOMERS);
    while looks > 0 && room > 0 {
        if let Ok(Ok(socket)) = timeout(LAST_LOOK, listener.accept()).await {
            door.let_in(socket, &mut newcomers, &tasks, &stop);
            room -= 1;
        } else {
            looks -= 1;
        }
    }
    drop(listener);
    tasks.close();
    tasks.wait().await;
}

async fn accept(listener: &Listener, door: &Door, tasks: &TaskTracker, stop: &CancellationToken) {
    let (mut newcomers, mut errors) = (Newcomers::new(Stays::OnceAsked), AcceptErrors::default());
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok(socket) => {
                errors.none();
                if !door.connections.has_room(&mut newcomers).await {
                    continue;
                }
                door.let_in(socket, &mut newcomers, tasks, stop);
            }
            Err(error) => errors.wait_after(&error).await,
        }
    }
}

impl Door {
    fn let_in(&self, socket: Socket, newcomers: &mut Newcomers, tasks: &TaskTracker, stop: &CancellationToken) {
        let (guest, calls) = (self.connections.enter(), Calls::new(self.in_flight.clone()));
        let leave = newcomers.add(calls.clone());
        tasks.spawn(self.clone().welcome(socket, guest, calls, leave, stop.clone()));
    }

    async fn welcome(self, socket: Socket, _guest: Guest, calls: Calls, mut leave: Leave, stop: CancellationToken) {
        let opening = async {
            let stream = within(OPENING_MAX, open(socket, self.tls.as_deref())).await?;
            within(FIRST_CALL_MAX, asked(stream)).await
        };
        let after_stop = async {
            // Who is about to ask is still let in, and told at once that it should ask elsewhere from then on.
            stop.cancelled().await;
            sleep(OPENING_AFTER_STOP_MAX).await;
        };
        let opened = tokio::select! {
            opened = opening => opened,
            () = leave.wanted(&calls) => return debug!("connection closed: others need the room"),
            () = after_stop => return,
        };
        match opened {
            // The state of a connection that is served is large; that of one that only waits is not.
            Ok(stream) => Box::pin(self.serve_connection(stream, calls, leave, stop)).await,
            Err(error) => {
                if error.kind() == io::ErrorKind::TimedOut {
                    self.connections.closed(Closed::Silent);
                }
                debug!(%error, "connection refused");
            }
        }
    }

    async fn serve_connection<S>(self, stream: Opened<S>, calls: Calls, mut leave: Leave, stop: CancellationToken)
    where
        S: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let (services, counted) = (self.services.clone(), calls.clone());
        let service = service_fn(move |request| services.answer(&counted, request));
        let (streams, turn) = (Streams::default(), Turn::new(calls.clone(), self.connections.clone()));
        let stream = Frames::new(stream, PREFACE.len(), turn.clone());
        let connection = connection_builder(streams.clone()).serve_connection(TokioIo::new(stream), service);
        let mut connection = Together::new(connection, streams, turn.clone());
        let ended = tokio::select! {
            ended = &mut connection => Some(ended),
            why = self.watch(&calls, &turn) => match why {
                Some(Closed::Idle) => {
                    self.connections.closed(Closed::Idle);
                    None
                }
                Some(why) => return self.connections.closed(why),
                None => None,
            },
            () = leave.wanted(&calls) => return debug!("connection closed: others need the room"),
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
                () = overdue(&calls, &turn) => return self.connections.closed(Closed::Overdue),
                () = grace(self.age.grace) => Ok(()),
            }
        };
        if turn.is_flooded() || ended.as_ref().is_err_and(is_too_much) {
            self.connections.closed(Closed::Flood);
        }
        if let Err(error) = ended {
            debug!(%error, "connection ended");
        }
    }

    /// Looks after a connection for as long as it may live. Says why it has to end, or nothing if it is merely old.
    async fn watch(&self, calls: &Calls, turn: &Turn) -> Option<Closed> {
        let opened = Instant::now();
        let end = self.age.max.map(|max| opened + max.mul_f64(0.9 + 0.2 * fastrand::f64()));
        let (mut seen, mut silent_slices, mut idle) = (0, 0, None);
        loop {
            // From now, and not from the last one: a process that stood still has not seen the slices that it missed.
            let next = Instant::now() + SLICE;
            if let Some(end) = end.filter(|end| *end <= next) {
                sleep_until(end).await;
                return None;
            }
            sleep_until(next).await;
            turn.next_slice();
            if calls.is_overdue() {
                return Some(Closed::Overdue);
            }
            let begun = calls.begun();
            if begun == 0 && opened.elapsed() >= FIRST_CALL_MAX {
                return Some(Closed::Silent);
            }
            if begun != seen || calls.are_open() {
                (seen, silent_slices, idle) = (begun, 0, None);
                continue;
            }
            silent_slices += 1;
            if silent_slices >= IDLE_SLICES {
                if self.connections.idle() >= self.idle_max && idle.is_none() {
                    return Some(Closed::Idle);
                }
                idle.get_or_insert_with(|| self.connections.rest());
            }
        }
    }
}

/// Until a call takes longer than any may, on a connection that was asked to end.
async fn overdue(calls: &Calls, turn: &Turn) {
    loop {
        sleep(SLICE).await;
        turn.next_slice();
        if calls.is_overdue() {
            return;
        }
    }
}

/// Whether h2 itself has had enough of a caller.
fn is_too_much(error: &hyper::Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<h2::Error>());
    source.is_some_and(|error| !error.is_remote() && error.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM))
}

async fn within<T>(max: Duration, opening: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let too_late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("the caller took longer than {max:?}"));
    timeout(max, opening).await.unwrap_or_else(|elapsed| Err(too_late(elapsed)))
}

/// The same stream whatever it is made of, once its caller has shown that it speaks HTTP/2.
async fn open(socket: Socket, tls: Option<&Tls>) -> io::Result<Either<Socket, TlsSocket>> {
    let mut stream = match tls {
        // In a box, so that what only plain connections need stays small.
        Some(tls) => Either::Right(Box::new(Box::pin(TlsAcceptor::from(tls.current()).accept(socket)).await?)),
        None => Either::Left(socket),
    };
    opened(&mut stream).await?;
    Ok(stream)
}

type TlsSocket = Box<tokio_rustls::server::TlsStream<Socket>>;

pub(super) fn connection_builder(streams: Streams) -> http2::Builder<Streams> {
    let mut builder = http2::Builder::new(streams);
    builder
        .timer(TokioTimer::new())
        // Nobody who speaks gRPC reads it.
        .auto_date_header(false)
        .max_concurrent_streams(STREAMS_MAX)
        .max_pending_accept_reset_streams(PENDING_RESETS_MAX)
        // For the life of a connection, which may be a day, h2 counts streams that it had to reset. A caller who makes it do so for
        // no reason spends frames: see frames.rs.
        .max_local_error_reset_streams(None)
        .initial_connection_window_size(WINDOW_BYTES)
        .initial_stream_window_size(WINDOW_BYTES)
        .max_header_list_size(HEADER_LIST_BYTES_MAX)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT);
    builder
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
    };

    use tonic::service::Routes;

    use super::*;
    use crate::telemetry::metrics::Metrics;

    /// What a caller reads who sends these bytes and nothing more, however long it takes.
    async fn read_after(sent: &[u8]) -> Vec<u8> {
        let listener = super::super::listen::bind_tcp(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        let age = ConnectionAge { max: None, grace: None };
        let door = Door {
            services: Routes::default().prepare().into(),
            tls: None,
            age,
            connections: Connections::new(1, Metrics::new().door("grpc")),
            idle_max: 1,
            in_flight: InFlight::new(1),
        };
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

    #[tokio::test]
    async fn a_caller_who_pings_but_never_asks_is_cut_off() {
        let settings_and_ping = b"\0\0\0\x04\0\0\0\0\0\0\0\x08\x06\0\0\0\0\0pingpong";
        let read = read_after(&[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &settings_and_ping[..]].concat()).await;
        assert!(read.windows(8).any(|bytes| bytes == b"pingpong"), "its ping is answered: {read:?}");
    }
}
