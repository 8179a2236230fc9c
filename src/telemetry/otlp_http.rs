//! A client for OTLP over HTTP/1.1: one POST on a connection of its own, every few seconds. The exporter has others to choose
//! from, but each of them brings a second HTTP or TLS stack.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response, Uri, header::HOST};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use opentelemetry_http::{HttpClient, HttpError};
use rustls::{ClientConfig, RootCertStore, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    runtime::Handle,
    time::timeout,
};
use tokio_rustls::TlsConnector;

/// A collector answers with a few bytes.
const ANSWER_MAX: usize = 1 << 20;

pub struct OtlpHttp {
    /// The exporter calls from a thread that has no runtime.
    runtime: Handle,
    /// The exporter counts retries against its timeout, but does not end a call that hangs.
    timeout: Duration,
    tls: TlsConnector,
}

impl fmt::Debug for OtlpHttp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OtlpHttp").finish_non_exhaustive()
    }
}

impl OtlpHttp {
    /// Works on the runtime that it is made on.
    pub fn new(timeout: Duration) -> Self {
        let roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
        let tls = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        Self { runtime: Handle::current(), timeout, tls: TlsConnector::from(Arc::new(tls)) }
    }
}

#[tonic::async_trait]
impl HttpClient for OtlpHttp {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (tls, patience) = (self.tls.clone(), self.timeout);
        let sent = self.runtime.spawn(async move { timeout(patience, send(request, tls)).await });
        sent.await??
    }
}

async fn send(mut request: Request<Bytes>, tls: TlsConnector) -> Result<Response<Bytes>, HttpError> {
    let uri = request.uri().clone();
    let host = uri.host().ok_or("the endpoint has no host")?.trim_matches(['[', ']']).to_owned();
    let is_tls = uri.scheme_str() == Some("https");
    let stream = TcpStream::connect((&*host, uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 }))).await?;
    let authority = uri.authority().ok_or("the endpoint has no host")?.as_str();
    let host_header = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    request.headers_mut().insert(HOST, host_header.parse()?);
    *request.uri_mut() =
        uri.path_and_query().map_or_else(|| Ok(Uri::from_static("/")), |path| path.as_str().parse())?;
    if is_tls {
        let stream = tls.connect(ServerName::try_from(host)?, stream).await?;
        return exchange(stream, request).await;
    }
    exchange(stream, request).await
}

async fn exchange<S>(stream: S, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let (head, body) = sender.send_request(request.map(Full::new)).await?.into_parts();
    let body = Limited::new(body, ANSWER_MAX).collect().await?.to_bytes();
    Ok(Response::from_parts(head, body))
}
