//! Asks whoever has a port of ours whether it is a sluice, and how it is.

use std::{io, net::SocketAddr, path::PathBuf, time::Duration};

use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UnixStream},
    time::timeout,
};
use tokio_util::either::Either;
use tonic::{
    Code,
    transport::{Channel, Endpoint, Uri},
};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};

use super::certificates::handshake;
use crate::grpc::{listen::Socket, proto::ratelimiter::v1::rate_limiter_service_server};

const PATIENCE: Duration = Duration::from_secs(2);
/// Metrics of a sluice with many rules are long; what is asked for stands somewhere in them.
const BODY_MAX: u64 = 64 << 20;

/// Where a gRPC listener is.
#[derive(Clone, Debug)]
pub enum Place {
    Tcp(SocketAddr),
    /// One that begins with `@` is a name and no file.
    Unix(PathBuf),
}

impl Place {
    /// Whether somebody listens there, or is too busy to say so.
    pub async fn is_taken(&self) -> bool {
        match timeout(PATIENCE, self.connect()).await {
            Ok(Ok(_)) | Err(_) => true,
            Ok(Err(error)) => error.kind() == io::ErrorKind::WouldBlock,
        }
    }

    async fn connect(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(address) => TcpStream::connect(address).await.map(Socket::Tcp),
            Self::Unix(path) => {
                let name = path.to_str().and_then(|path| path.strip_prefix('@'));
                let path = name.map_or_else(|| path.clone(), |name| PathBuf::from(format!("\0{name}")));
                UnixStream::connect(path).await.map(Socket::Unix)
            }
        }
    }
}

/// Who answers there.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    Serving,
    NotServing,
    /// gRPC, but no sluice.
    Stranger,
    Nothing(String),
}

/// Asks for the health of a service that only sluice has.
pub async fn health(place: &Place, tls: bool) -> Answer {
    match timeout(PATIENCE, ask(place, tls)).await {
        Ok(Ok(ServingStatus::Serving)) => Answer::Serving,
        Ok(Ok(_)) => Answer::NotServing,
        Ok(Err(status)) if matches!(status.code(), Code::NotFound | Code::Unimplemented) => Answer::Stranger,
        Ok(Err(status)) => Answer::Nothing(status.message().to_owned()),
        Err(_) => Answer::Nothing(format!("no answer within {PATIENCE:?}")),
    }
}

async fn ask(place: &Place, tls: bool) -> Result<ServingStatus, tonic::Status> {
    let channel = channel(place.clone(), tls).await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
    let service = rate_limiter_service_server::SERVICE_NAME.to_owned();
    let response = HealthClient::new(channel).check(HealthCheckRequest { service }).await?;
    Ok(response.into_inner().status())
}

async fn channel(place: Place, tls: bool) -> Result<Channel, tonic::transport::Error> {
    let connect = move |_: Uri| {
        let place = place.clone();
        async move {
            let socket = place.connect().await?;
            let stream =
                if tls { Either::Right(handshake(socket, "sluice", &[b"h2"]).await.0?) } else { Either::Left(socket) };
            io::Result::Ok(TokioIo::new(stream))
        }
    };
    // The name is never looked up: the connector knows where to go.
    Endpoint::from_static("http://sluice").connect_with_connector(tower::service_fn(connect)).await
}

/// When the certificates end that are shown there. Empty where nothing speaks TLS.
pub async fn shown_ends_s(place: &Place) -> Vec<u64> {
    let looking = async {
        let Ok(stream) = place.connect().await else { return Vec::new() };
        handshake(stream, "sluice", &[b"h2"]).await.1
    };
    timeout(PATIENCE, looking).await.unwrap_or_default()
}

/// The body of an answer to a GET, if it is a good one.
pub async fn get(address: SocketAddr, path: &str) -> Option<String> {
    let asking = async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(BODY_MAX).read_to_end(&mut answer).await?;
        io::Result::Ok(answer)
    };
    let answer = timeout(PATIENCE, asking).await.ok()?.ok()?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n")?;
    head.starts_with("HTTP/1.1 200").then(|| body.to_owned())
}
