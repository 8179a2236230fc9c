//! A connection to the server under load, opened anew when it ends.

use std::{
    fmt, io,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use h2::client::{self, ResponseFuture, SendRequest};
use http::{Method, Request, Uri, Version, header};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    sync::Mutex,
    time::{sleep, timeout},
};

use super::{
    answer::{self, Wrong},
    question,
};
use crate::grpc::proto::envoy::service::ratelimit::v3::{RateLimitRequest, rate_limit_service_server::SERVICE_NAME};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A server that restarts is back by then.
const RECONNECT_FOR: Duration = Duration::from_secs(5);
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);
const WINDOW: u32 = 4 << 20;
const UNIMPLEMENTED: i32 = 12;

/// Where the server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Tcp(String),
    Unix(PathBuf),
}

impl Target {
    /// `HOST:PORT` or `unix:PATH`.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            // As gRPC names them: unix:/run/s.sock and unix:///run/s.sock are the same.
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.is_empty() {
                Err("unix: needs a path, as in unix:/run/sluice.sock".to_owned())
            } else {
                Ok(Self::Unix(path.into()))
            };
        }
        let address = text.trim_start_matches("http://").trim_end_matches('/');
        let port = address.rsplit_once(':').and_then(|(host, port)| (!host.is_empty()).then_some(port));
        match port.map(str::parse::<u16>) {
            Some(Ok(_)) => Ok(Self::Tcp(address.to_owned())),
            _ => Err(format!("{text:?} is no address: write HOST:PORT or unix:PATH")),
        }
    }

    fn authority(&self) -> &str {
        match self {
            Self::Tcp(address) => address,
            Self::Unix(_) => "localhost",
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Why a server cannot be put under load at all.
#[derive(Debug, thiserror::Error)]
pub enum Unreachable {
    #[error("cannot connect to {target}: {reason}: is a rate limit service listening there?")]
    Closed { target: Target, reason: String },
    #[error("{target} does not speak gRPC ({reason}): give the gRPC port of a rate limit service")]
    NotGrpc { target: Target, reason: String },
    #[error("{target} speaks gRPC but has no {SERVICE_NAME}: give the address of a rate limit service")]
    NotRateLimit { target: Target },
}

/// One connection and the way to the next one. Calls share it.
#[derive(Debug)]
pub struct Link {
    target: Target,
    uri: Uri,
    open: Mutex<Option<Open>>,
}

/// A connection that calls can go out on, and which one it is.
#[derive(Clone, Debug)]
pub struct Open {
    sender: SendRequest<Bytes>,
    number: u64,
}

impl Link {
    #[must_use]
    pub fn new(target: Target) -> Self {
        let uri = format!("http://{}/{SERVICE_NAME}/ShouldRateLimit", target.authority());
        // Only a host that no resolver would take fails here; connecting then says so.
        let uri = uri.parse().unwrap_or_else(|_| Uri::from_static("http://localhost/"));
        Self { target, uri, open: Mutex::new(None) }
    }

    /// Finds out whether this is a rate limit service, with an empty question, which charges nobody.
    pub async fn greet(&self) -> Result<(), Unreachable> {
        let not_grpc = |reason: String| Unreachable::NotGrpc { target: self.target.clone(), reason };
        let closed =
            |reason: io::Error| Unreachable::Closed { target: self.target.clone(), reason: reason.to_string() };
        let sender = self.dial().await.map_err(|failed| match failed {
            DialError::Io(error) => closed(error),
            DialError::Http2(error) => not_grpc(error.to_string()),
        })?;
        let mut frame = BytesMut::new();
        question::encode(&RateLimitRequest::default(), &mut frame);
        let ask = async {
            let response = self.call(Open { sender, number: 0 }, frame.freeze()).await?;
            answer::read(response, 0).await
        };
        match timeout(CONNECT_TIMEOUT, ask).await {
            Err(_) => Err(not_grpc(format!("no answer within {} s", CONNECT_TIMEOUT.as_secs()))),
            Ok(Err(Wrong::Grpc(UNIMPLEMENTED))) => Err(Unreachable::NotRateLimit { target: self.target.clone() }),
            Ok(Err(wrong @ (Wrong::Connection(_) | Wrong::Reset(_) | Wrong::Http(_) | Wrong::NotGrpc))) => {
                Err(not_grpc(wrong.to_string()))
            }
            Ok(_) => Ok(()),
        }
    }

    /// A connection other than the one that is known to be over. Tries for a while.
    pub async fn open(&self, over: Option<u64>) -> Result<Open, Wrong> {
        let mut open = self.open.lock().await;
        let began = Instant::now();
        loop {
            if let Some(open) = open.as_ref().filter(|open| over.is_none_or(|over| open.number > over)) {
                return Ok(open.clone());
            }
            match self.dial().await {
                Ok(sender) => *open = Some(Open { sender, number: over.map_or(0, |over| over + 1) }),
                Err(_) if began.elapsed() < RECONNECT_FOR => sleep(RECONNECT_PAUSE).await,
                Err(_) => return Err(Wrong::Connection("cannot be opened again".into())),
            }
        }
    }

    /// The connection in use, if nobody is about to open another one.
    pub fn current(&self) -> Option<Open> {
        self.open.try_lock().ok()?.clone()
    }

    /// Sends a call as soon as the server allows one more.
    pub async fn call(&self, open: Open, body: Bytes) -> Result<ResponseFuture, Wrong> {
        let mut sender = open.sender.ready().await?;
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.clone();
        *request.version_mut() = Version::HTTP_2;
        let headers = request.headers_mut();
        headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/grpc"));
        headers.insert(header::TE, header::HeaderValue::from_static("trailers"));
        let (response, mut stream) = sender.send_request(request, false)?;
        stream.send_data(body, true)?;
        Ok(response)
    }

    async fn dial(&self) -> Result<SendRequest<Bytes>, DialError> {
        let late = || io::Error::from(io::ErrorKind::TimedOut);
        match &self.target {
            Target::Tcp(address) => {
                let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await.map_err(|_| late())??;
                stream.set_nodelay(true)?;
                shake_hands(stream).await
            }
            Target::Unix(path) => {
                let stream = timeout(CONNECT_TIMEOUT, UnixStream::connect(path)).await.map_err(|_| late())??;
                shake_hands(stream).await
            }
        }
    }
}

impl Open {
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }
}

#[derive(Debug, thiserror::Error)]
enum DialError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Http2(#[from] h2::Error),
}

async fn shake_hands<S>(stream: S) -> Result<SendRequest<Bytes>, DialError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut builder = client::Builder::new();
    builder.enable_push(false).initial_window_size(WINDOW).initial_connection_window_size(WINDOW);
    // Until the server says how many it takes, as many as one would have it take.
    builder.initial_max_send_streams(1_024);
    let (sender, connection) = builder.handshake(stream).await?;
    tokio::spawn(connection);
    Ok(sender)
}

/// Shared by the calls of one connection.
pub type SharedLink = Arc<Link>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_host_and_port_or_a_path() {
        assert_eq!(Target::parse("127.0.0.1:8081"), Ok(Target::Tcp("127.0.0.1:8081".to_owned())));
        assert_eq!(Target::parse("http://edge:8081/"), Ok(Target::Tcp("edge:8081".to_owned())));
        assert_eq!(Target::parse("[::1]:8081"), Ok(Target::Tcp("[::1]:8081".to_owned())));
        assert_eq!(Target::parse("unix:/run/s.sock"), Ok(Target::Unix("/run/s.sock".into())));
        assert_eq!(Target::parse("unix:///run/s.sock"), Ok(Target::Unix("/run/s.sock".into())));
        for text in ["", "edge", ":8081", "edge:", "edge:99999", "unix:"] {
            assert!(Target::parse(text).is_err(), "{text}");
        }
    }
}
