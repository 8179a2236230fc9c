//! The floor: a tonic server with the allocator, build, runtime and HTTP/2 settings of sluice, which answers every call with one
//! constant status. What sluice costs beyond this is sluice.
//!
//! `floor PORT` serves on 127.0.0.1:PORT until SIGTERM.

use std::{env, net::Ipv4Addr};

use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use sluice::grpc::{
    limits,
    proto::envoy::service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse,
        rate_limit_response::{Code, DescriptorStatus},
        rate_limit_service_server::{RateLimitService, RateLimitServiceServer},
    },
};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};
use tonic::{Request, Response, Status, body::Body, service::Routes};
use tower::ServiceExt as _;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

struct Floor;

#[tonic::async_trait]
impl RateLimitService for Floor {
    async fn should_rate_limit(&self, _: Request<RateLimitRequest>) -> Result<Response<RateLimitResponse>, Status> {
        let status = DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
        Ok(Response::new(RateLimitResponse {
            overall_code: Code::Ok.into(),
            statuses: vec![status],
            ..RateLimitResponse::default()
        }))
    }
}

fn main() -> std::io::Result<()> {
    let port = env::args().nth(1).and_then(|port| port.parse().ok()).unwrap_or(0);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        eprintln!("floor: serving on {}", listener.local_addr()?);
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            ended = serve(listener) => ended,
            _ = terminate.recv() => Ok(()),
        }
    })
}

async fn serve(listener: TcpListener) -> std::io::Result<()> {
    let routes = Routes::new(RateLimitServiceServer::new(Floor)).prepare();
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let service = routes.clone().map_request(|request: http::Request<_>| request.map(Body::new));
        tokio::spawn(async move {
            let mut builder = auto::Builder::new(TokioExecutor::new()).http2_only();
            builder
                .http2()
                .timer(TokioTimer::new())
                .max_concurrent_streams(limits::STREAMS_MAX)
                .max_pending_accept_reset_streams(limits::PENDING_RESETS_MAX)
                .initial_connection_window_size(limits::WINDOW_BYTES)
                .initial_stream_window_size(limits::WINDOW_BYTES)
                .max_header_list_size(limits::HEADER_LIST_BYTES_MAX)
                .keep_alive_interval(limits::KEEPALIVE_INTERVAL)
                .keep_alive_timeout(limits::KEEPALIVE_TIMEOUT);
            builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)).await
        });
    }
}
