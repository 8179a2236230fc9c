//! `envoy.service.ratelimit.v3.RateLimitService`: parse, ask, render.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use http::HeaderName;
use tonic::{Request, Response, Status, metadata::MetadataMap};

use super::{
    convert::{self, Presentation},
    proto::envoy::service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse,
        rate_limit_service_server::{RateLimitService, SERVICE_NAME},
    },
};
use crate::{
    engine::verdict::Code,
    limiter::{Asking, CheckError, Limiter},
    telemetry::{
        metrics::MethodMetrics,
        traces::{CallSpan, Tracer},
    },
};

const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

#[derive(Clone, Debug)]
pub struct RateLimitDoor {
    limiter: Arc<Limiter>,
    presentation: Arc<Presentation>,
    tracer: Option<Arc<Tracer>>,
    calls: MethodMetrics,
}

impl RateLimitDoor {
    #[must_use]
    pub fn new(limiter: Arc<Limiter>, presentation: Arc<Presentation>, tracer: Option<Arc<Tracer>>) -> Self {
        let calls = limiter.metrics().method("ShouldRateLimit");
        Self { limiter, presentation, tracer, calls }
    }

    async fn answer(
        &self,
        began: Instant,
        request: Request<RateLimitRequest>,
        span: Option<&CallSpan>,
    ) -> Result<RateLimitResponse, Status> {
        let budget = budget(request.metadata());
        let wire = request.into_inner();
        let question = convert::parse(&wire).map_err(|bad| {
            self.limiter.metrics().service_errors.increment(1);
            Status::invalid_argument(bad.to_string())
        })?;
        if let Some(span) = span {
            span.asked(question.domain, question.descriptors.len());
        }
        let asking = Asking { began: Some(began), budget, default: None, span };
        let answer = self.limiter.check_as(&question, asking).await.map_err(|error| match error {
            CheckError::NoRules | CheckError::Unavailable(_) => Status::unavailable(error.to_string()),
        })?;
        if let Some(span) = span {
            span.answered(if answer.verdict().code == Code::Ok { "OK" } else { "OVER_LIMIT" }, answer.degraded);
        }
        self.calls.record(answer.took);
        Ok(convert::render(&wire, &answer, &self.presentation))
    }
}

#[tonic::async_trait]
impl RateLimitService for RateLimitDoor {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let began = Instant::now();
        let span = self.tracer.as_ref().map(|tracer| tracer.call(SERVICE_NAME, "ShouldRateLimit", request.metadata()));
        let answer = self.answer(began, request, span.as_ref()).await;
        trace_failure(span.as_ref(), &answer);
        if answer.is_err() {
            self.calls.record(began.elapsed());
        }
        answer.map(Response::new)
    }
}

pub(super) fn trace_failure<T>(span: Option<&CallSpan>, answer: &Result<T, Status>) {
    if let (Some(span), Err(status)) = (span, answer) {
        span.failed(status.message().to_owned());
    }
}

/// How long the caller can wait, as its `grpc-timeout` says: up to eight digits and a unit.
pub(super) fn budget(metadata: &MetadataMap) -> Option<Duration> {
    let text = metadata.as_ref().get(GRPC_TIMEOUT)?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 {
        return None;
    }
    let amount: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(amount * 3600),
        "M" => Duration::from_secs(amount * 60),
        "S" => Duration::from_secs(amount),
        "m" => Duration::from_millis(amount),
        "u" => Duration::from_micros(amount),
        "n" => Duration::from_nanos(amount),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget_of(text: &str) -> Option<Duration> {
        let mut metadata = MetadataMap::new();
        metadata.insert("grpc-timeout", text.parse().unwrap());
        budget(&metadata)
    }

    #[test]
    fn the_budget_is_what_grpc_timeout_says() {
        assert_eq!(budget_of("20m"), Some(Duration::from_millis(20)));
        assert_eq!(budget_of("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        assert_eq!(budget_of("7u"), Some(Duration::from_micros(7)));
    }

    #[test]
    fn a_timeout_that_cannot_be_read_is_none() {
        for text in ["", "m", "20", "123456789m", "-1m", "2x", "é"] {
            let mut metadata = MetadataMap::new();
            if let Ok(value) = text.parse() {
                metadata.insert("grpc-timeout", value);
            }
            assert_eq!(budget(&metadata), None, "{text}");
        }
    }
}
