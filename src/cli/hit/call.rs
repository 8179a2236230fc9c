//! One request to a running server, and its answer in a form that can be printed.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

use crate::{
    grpc::proto::{
        envoy::{
            extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor},
            service::ratelimit::v3::{
                RateLimitRequest, RateLimitResponse,
                rate_limit_response::{Code, DescriptorStatus, rate_limit::Unit},
                rate_limit_service_client::RateLimitServiceClient,
            },
        },
        ratelimiter::v1::{
            ConsumeAndCheckLimitRequest, ConsumeAndCheckLimitResponse, Entry,
            rate_limiter_service_client::RateLimiterServiceClient,
        },
    },
    http::proto_json,
};

/// Longer than any server that is well takes.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is asked, again and again.
pub struct Question {
    pub domain: String,
    /// As typed, and its entries.
    pub descriptors: Vec<(String, Vec<(String, String)>)>,
    pub hits: i64,
}

/// What was answered.
pub struct Answered {
    pub allowed: bool,
    pub took: Duration,
    pub descriptors: Vec<Status>,
    pub json: Value,
}

/// How one descriptor stands.
pub struct Status {
    pub descriptor: String,
    pub allowed: bool,
    /// In words.
    pub limit: Option<String>,
    pub remaining: Option<u64>,
    /// In words.
    pub when: Option<String>,
}

pub enum Caller {
    Envoy(RateLimitServiceClient<Channel>),
    Native(RateLimiterServiceClient<Channel>),
}

impl Caller {
    pub async fn connect(target: &str, native: bool) -> anyhow::Result<Self> {
        let channel = channel(target).await.with_context(|| {
            format!(
                "cannot reach {target}: give the gRPC address of a running sluice (GRPC_HOST:GRPC_PORT) as --target"
            )
        })?;
        Ok(if native {
            Self::Native(RateLimiterServiceClient::new(channel))
        } else {
            Self::Envoy(RateLimitServiceClient::new(channel))
        })
    }

    pub async fn ask(&mut self, question: &Question) -> anyhow::Result<Answered> {
        let began = Instant::now();
        match self {
            Self::Envoy(client) => {
                let response = client.should_rate_limit(question.to_envoy()).await.map_err(refused)?.into_inner();
                Ok(from_envoy(question, &response, began.elapsed()))
            }
            Self::Native(client) => {
                let mut responses = Vec::new();
                for (_, entries) in &question.descriptors {
                    let request = question.to_native(entries);
                    responses.push(client.consume_and_check_limit(request).await.map_err(refused)?.into_inner());
                }
                Ok(from_native(question, &responses, began.elapsed()))
            }
        }
    }
}

async fn channel(target: &str) -> anyhow::Result<Channel> {
    let Some(path) = target.strip_prefix("unix:") else {
        let address = target.trim_start_matches("http://").trim_end_matches('/');
        if address.contains("://") || !address.contains(':') {
            bail!("'{target}' is neither HOST:PORT nor unix:PATH");
        }
        return Ok(endpoint(format!("http://{address}"))?.connect().await?);
    };
    let path = path.trim_start_matches("//").to_owned();
    let connect = move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    };
    // The name is never looked up: the connector goes to the socket.
    Ok(endpoint("http://sluice".to_owned())?.connect_with_connector(tower::service_fn(connect)).await?)
}

fn endpoint(uri: String) -> anyhow::Result<Endpoint> {
    Ok(Endpoint::from_shared(uri)?.connect_timeout(PATIENCE).timeout(PATIENCE))
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that map_err calls")]
fn refused(status: tonic::Status) -> anyhow::Error {
    anyhow::anyhow!("the server answers {:?}: {}", status.code(), status.message())
}

impl Question {
    fn to_envoy(&self) -> RateLimitRequest {
        let entry =
            |(key, value): &(String, String)| rate_limit_descriptor::Entry { key: key.clone(), value: value.clone() };
        let descriptor = |(_, entries): &(String, Vec<(String, String)>)| RateLimitDescriptor {
            entries: entries.iter().map(entry).collect(),
            limit: None,
            hits_addend: Some(self.hits.unsigned_abs()),
            is_negative_hits: self.hits < 0,
        };
        let descriptors = self.descriptors.iter().map(descriptor).collect();
        RateLimitRequest { domain: self.domain.clone(), descriptors, hits_addend: 0 }
    }

    fn to_native(&self, entries: &[(String, String)]) -> ConsumeAndCheckLimitRequest {
        let entry = |(key, value): &(String, String)| Entry { key: key.clone(), value: value.clone() };
        ConsumeAndCheckLimitRequest {
            domain: self.domain.clone(),
            limit_key: String::new(),
            cost: Some(self.hits),
            entries: entries.iter().map(entry).collect(),
        }
    }
}

fn from_envoy(question: &Question, response: &RateLimitResponse, took: Duration) -> Answered {
    let statuses = question.descriptors.iter().zip(&response.statuses);
    Answered {
        allowed: response.overall_code() == Code::Ok,
        took,
        descriptors: statuses.map(|((descriptor, _), status)| status_of(descriptor, status)).collect(),
        json: proto_json::render(response),
    }
}

fn status_of(descriptor: &str, status: &DescriptorStatus) -> Status {
    let limit = status.current_limit.as_ref();
    let in_words = limit.map(|limit| {
        let unit = Unit::try_from(limit.unit).unwrap_or(Unit::Unknown).as_str_name().to_ascii_lowercase();
        let period = limit.unit_multiplier.map_or(unit.clone(), |many| format!("{many} {unit}s"));
        let name = if limit.name.is_empty() { String::new() } else { format!(" ({})", limit.name) };
        format!("{} per {period}{name}", limit.requests_per_unit)
    });
    Status {
        descriptor: descriptor.to_owned(),
        allowed: status.code() != Code::OverLimit,
        limit: in_words,
        remaining: limit.map(|_| u64::from(status.limit_remaining)),
        when: status.duration_until_reset.map(|reset| format!("reset in {} s", reset.seconds)),
    }
}

fn from_native(question: &Question, responses: &[ConsumeAndCheckLimitResponse], took: Duration) -> Answered {
    let status = |((descriptor, _), response): (&(String, _), &ConsumeAndCheckLimitResponse)| Status {
        descriptor: descriptor.clone(),
        allowed: response.allowed,
        limit: (!response.rule.is_empty()).then(|| response.rule.clone()),
        remaining: response.remaining_capacity,
        when: response.retry_after.map(|retry| format!("retry after {} s", seconds(&retry))),
    };
    Answered {
        allowed: responses.iter().all(|response| response.allowed),
        took,
        descriptors: question.descriptors.iter().zip(responses).map(status).collect(),
        json: responses.iter().map(native_json).collect(),
    }
}

fn seconds(duration: &prost_types::Duration) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "for people to read")]
    let whole = duration.seconds as f64;
    whole + f64::from(duration.nanos) / 1e9
}

fn native_json(response: &ConsumeAndCheckLimitResponse) -> Value {
    json!({
        "allowed": response.allowed,
        "remaining_capacity": response.remaining_capacity,
        "limiting_rate_index": response.limiting_rate_index,
        "deny_count": response.deny_count,
        "retry_after_s": response.retry_after.as_ref().map(seconds),
        "rule": response.rule,
        "degraded": response.degraded,
    })
}
