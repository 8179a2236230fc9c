//! limitador's library behind tonic, with what its own server does for a request and nothing besides: no metrics, no spans, no log. That
//! server is in no registry; this one can only be faster than it is. Like that one it has one thread and the system's allocator.
//!
//! `limitador-peer PORT [REDIS_URL]` serves the limits of tests/bench/rules/3.yaml on 127.0.0.1:PORT, from memory or from Redis.

use std::{collections::HashMap, env, error::Error, net::Ipv4Addr};

use limitador::{
    AsyncRateLimiter, CheckResult, RateLimiter,
    errors::LimitadorError,
    limit::{Context, Limit, Namespace},
    storage::redis::AsyncRedisStorage,
};
use sluice::grpc::proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
    rate_limit_response::Code,
    rate_limit_service_server::{RateLimitService, RateLimitServiceServer},
};
use tonic::{Request, Response, Status, transport::Server};

const HITS_PER_WINDOW: u64 = 1_000_000_000;
/// What tells the callers of a limit apart, and the length of its window.
const LIMITS: [(&str, u64); 3] = [("descriptors[0].user", 1), ("descriptors[1].ip", 60), ("descriptors[2].key", 3_600)];
/// More than any part of the bench asks for.
const COUNTERS_IN_MEMORY: u64 = 1_000_000;

/// Limits that wait for a descriptor of their own would have to test whether it was sent. So as not to burden limitador with that, a
/// request of so many descriptors has a namespace whose limits are as many.
fn namespace(descriptors: usize) -> Namespace {
    format!("bench-{descriptors}").into()
}

fn limits() -> Result<Vec<Limit>, Box<dyn Error>> {
    let mut limits = Vec::new();
    for descriptors in 1..=LIMITS.len() {
        for (variable, window_s) in &LIMITS[..descriptors] {
            let variables = [(*variable).try_into()?];
            limits.push(Limit::new(namespace(descriptors), HITS_PER_WINDOW, *window_s, [], variables));
        }
    }
    Ok(limits)
}

enum Limiter {
    Memory(RateLimiter),
    Redis(AsyncRateLimiter),
}

impl Limiter {
    async fn new(redis_url: Option<&str>) -> Result<Self, Box<dyn Error>> {
        Ok(match redis_url {
            None => {
                let limiter = RateLimiter::new(COUNTERS_IN_MEMORY);
                for limit in limits()? {
                    limiter.add_limit(limit);
                }
                Self::Memory(limiter)
            }
            Some(url) => {
                let limiter = AsyncRateLimiter::new_with_storage(Box::new(AsyncRedisStorage::new(url).await?));
                for limit in limits()? {
                    limiter.add_limit(limit);
                }
                Self::Redis(limiter)
            }
        })
    }

    async fn check(&self, asked_of: &Namespace, asked: &Context<'_>, hits: u64) -> Result<CheckResult, LimitadorError> {
        match self {
            Self::Memory(limiter) => limiter.check_rate_limited_and_update(asked_of, asked, hits),
            Self::Redis(limiter) => limiter.check_rate_limited_and_update(asked_of, asked, hits).await,
        }
    }
}

#[tonic::async_trait]
impl RateLimitService for Limiter {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let request = request.into_inner();
        let asked_of = namespace(request.descriptors.len());
        let descriptors = request.descriptors.into_iter();
        let values = descriptors.map(|descriptor| {
            descriptor.entries.into_iter().map(|entry| (entry.key, entry.value)).collect::<HashMap<_, _>>()
        });
        let mut asked = Context::default();
        asked.list_binding("descriptors".to_owned(), values.collect());
        let checked = self.check(&asked_of, &asked, u64::from(request.hits_addend.max(1))).await;
        let checked = checked.map_err(|error| Status::unavailable(error.to_string()))?;
        let code = if checked.limited { Code::OverLimit } else { Code::Ok };
        Ok(Response::new(RateLimitResponse { overall_code: code.into(), ..RateLimitResponse::default() }))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let port = arguments.first().and_then(|port| port.parse().ok()).ok_or("usage: limitador-peer PORT [REDIS_URL]")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let limiter = Limiter::new(arguments.get(1).map(String::as_str)).await?;
        let service = RateLimitServiceServer::new(limiter);
        eprintln!("limitador-peer: serving on port {port}");
        Ok(Server::builder().add_service(service).serve((Ipv4Addr::LOCALHOST, port).into()).await?)
    })
}
