//! Blocking gRPC clients. The messages come from `proto/` by the build, and not from the library under test, so that
//! this side is a client like any other.

use std::future::Future;

use bytes::{Buf as _, BufMut as _, Bytes};
use tonic::{
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    transport::{Channel, Endpoint},
};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

#[allow(clippy::all, clippy::pedantic, dead_code, unreachable_pub, missing_docs)]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/protos.rs"));
}

pub use proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
pub use proto::envoy::{
    extensions::common::ratelimit::v3::{
        RateLimitDescriptor as Descriptor,
        rate_limit_descriptor::{Entry, RateLimitOverride as Override},
    },
    service::ratelimit::v3::{
        RateLimitRequest as Request, RateLimitResponse as Response,
        rate_limit_response::{Code, rate_limit::Unit},
    },
    r#type::v3::RateLimitUnit as OverrideUnit,
};
pub use proto::ratelimiter::v1 as native;

/// A descriptor of these entries, with nothing else in it.
pub fn descriptor(entries: &[(&str, &str)]) -> Descriptor {
    let entries = entries.iter().map(|(key, value)| Entry { key: (*key).to_owned(), value: (*value).to_owned() });
    Descriptor { entries: entries.collect(), limit: None, hits_addend: None, is_negative_hits: false }
}

/// A request with one descriptor.
pub fn request(domain: &str, entries: &[(&str, &str)]) -> Request {
    Request { domain: domain.to_owned(), descriptors: vec![descriptor(entries)], hits_addend: 0 }
}

pub fn ask(address: &str, request: Request) -> Result<Response, tonic::Status> {
    wait(async {
        let mut client = RateLimitServiceClient::new(connect(address).await);
        client.should_rate_limit(request).await.map(tonic::Response::into_inner)
    })
}

/// Asks with a message of these bytes, whatever they are.
pub fn ask_bytes(address: &str, message: &[u8]) -> Result<(), tonic::Status> {
    wait(async {
        let mut client = tonic::client::Grpc::new(connect(address).await);
        client.ready().await.expect("is connected");
        let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit".parse().expect("is a path");
        let request = tonic::Request::new(Bytes::copy_from_slice(message));
        client.unary(request, path, RawCodec).await.map(|_: tonic::Response<Bytes>| ())
    })
}

/// Bytes as they are.
struct RawCodec;

impl Codec for RawCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for RawCodec {
    type Item = Bytes;
    type Error = tonic::Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), tonic::Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Bytes;
    type Error = tonic::Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, tonic::Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

pub fn health(address: &str, service: &str) -> Result<ServingStatus, tonic::Status> {
    let request = HealthCheckRequest { service: service.to_owned() };
    wait(async {
        let mut client = HealthClient::new(connect(address).await);
        client.check(request).await.map(|response| response.into_inner().status())
    })
}

/// The services that reflection lists.
pub fn reflected_services(address: &str) -> Vec<String> {
    let message = MessageRequest::ListServices(String::new());
    let request = ServerReflectionRequest { host: String::new(), message_request: Some(message) };
    wait(async {
        let mut client = ServerReflectionClient::new(connect(address).await);
        let one_request = tonic::codegen::tokio_stream::once(request);
        let mut answers = client.server_reflection_info(one_request).await.expect("reflection answers").into_inner();
        let answer = answers.message().await.expect("reflection answers").expect("reflection has an answer");
        match answer.message_response {
            Some(MessageResponse::ListServicesResponse(list)) => {
                list.service.into_iter().map(|service| service.name).collect()
            }
            other => panic!("reflection answered {other:?}"),
        }
    })
}

/// A caller that stays connected and asks nothing more, as Envoy does between requests.
pub struct IdleCaller {
    _channel: Channel,
    _runtime: tokio::runtime::Runtime,
}

impl IdleCaller {
    pub fn connect(address: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime can be made");
        let channel = runtime.block_on(connect(address));
        let mut health = HealthClient::new(channel.clone());
        runtime.block_on(health.check(HealthCheckRequest::default())).expect("is answered");
        Self { _channel: channel, _runtime: runtime }
    }
}

pub async fn connect(address: &str) -> Channel {
    let uri = match address.strip_prefix("unix:") {
        Some(path) => format!("unix://{path}"),
        None => format!("http://{address}"),
    };
    let endpoint = Endpoint::from_shared(uri).expect("an address makes a URI");
    endpoint.connect().await.unwrap_or_else(|error| panic!("{address}: {error}"))
}

pub fn wait<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime can be made").block_on(future)
}
