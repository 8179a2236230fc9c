//! `envoy.service.ratelimit.v3.RateLimitService`: parse, ask, render.

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Response};
use tonic::Status;

use super::{
    convert::{self, Presentation},
    intake::Intake,
    limits::MESSAGE_BYTES_MAX,
    proto::envoy::service::ratelimit::v3::{RateLimitResponse, rate_limit_service_server::SERVICE_NAME},
    unary, wire,
};
use crate::{
    engine::verdict::Code,
    limiter::{Asking, CheckError, Limiter, Planned},
    panics::{self, Panicked},
    telemetry::{
        metrics::MethodMetrics,
        traces::{CallSpan, Tracer},
    },
};

const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

#[derive(Debug)]
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

    /// One call, from its stream to its stream.
    pub fn should_rate_limit(
        self: Arc<Self>,
        headers: &HeaderMap,
        body: Intake,
    ) -> impl Future<Output = Response<unary::Answer>> + use<> {
        // Headers are large, and nobody has to keep them while the call goes on.
        let welcome = unary::welcome(headers);
        let budget = budget(headers);
        let span = self.tracer.as_ref().map(|tracer| tracer.call(SERVICE_NAME, "ShouldRateLimit", headers));
        async move {
            let answered = self.receive_and_answer(body, welcome, budget, span.as_ref()).await;
            trace_failure(span.as_ref(), &answered);
            unary::answer(answered)
        }
    }

    async fn receive_and_answer(
        &self,
        body: Intake,
        welcome: Result<(), Status>,
        budget: Option<Duration>,
        span: Option<&CallSpan>,
    ) -> Result<RateLimitResponse, Status> {
        // Also one that cannot be read: it is a call all the same, and no flood.
        let received = unary::receive(body, MESSAGE_BYTES_MAX).await;
        let message = welcome.and(received).map_err(|status| self.unread(status))?;
        let began = Instant::now();
        let answered = panics::caught(self.answer(began, &message, budget, span)).await;
        let answered = answered.unwrap_or_else(|Panicked| self.answer_by_policy(began, &message, span));
        if answered.is_err() {
            self.calls.record(began.elapsed());
        }
        answered
    }

    async fn answer(
        &self,
        began: Instant,
        message: &Bytes,
        budget: Option<Duration>,
        span: Option<&CallSpan>,
    ) -> Result<RateLimitResponse, Status> {
        let (domain, planned) = self.plan(message, span)?;
        let asking = Asking { began: Some(began), budget, default: None, span };
        let answer = self.limiter.check_planned(domain, planned, asking).await.map_err(unanswered)?;
        if let Some(span) = span {
            span.answered(name(answer.verdict().code), answer.degraded);
        }
        self.calls.record(answer.took);
        // Read once more where it is told as it was asked, because that is rare.
        let asked = self.presentation.dynamic_metadata.then(|| wire::read(message).ok()).flatten();
        Ok(convert::render(&answer, &self.presentation, asked.as_ref()))
    }

    /// A call without a message that can be read counts as one, and as an error unless its caller has gone.
    fn unread(&self, status: Status) -> Status {
        self.calls.total_requests.increment(1);
        if status.code() != tonic::Code::Cancelled {
            self.limiter.metrics().service_errors.increment(1);
        }
        status
    }

    /// All that needs the question itself. It is large, and nobody has to keep it while the store is asked.
    fn plan<'m>(&self, message: &'m Bytes, span: Option<&CallSpan>) -> Result<(&'m str, Planned), Status> {
        let refuse = |reason: String| {
            self.limiter.metrics().service_errors.increment(1);
            Status::invalid_argument(reason)
        };
        let wire = wire::read(message).map_err(|unreadable| refuse(unreadable.to_string()))?;
        let question = convert::parse(&wire).map_err(|bad| refuse(bad.to_string()))?;
        if let Some(span) = span {
            span.asked(question.domain, question.descriptors.len());
        }
        let planned = self.limiter.plan(&question, None).map_err(unanswered)?;
        Ok((question.domain, planned))
    }

    /// A panic that the limiter could not settle by the rules.
    fn answer_by_policy(
        &self,
        began: Instant,
        message: &Bytes,
        span: Option<&CallSpan>,
    ) -> Result<RateLimitResponse, Status> {
        let code = self.limiter.without_a_plan().map_err(unanswered)?;
        if let Some(span) = span {
            span.answered(name(code), true);
        }
        self.calls.record(began.elapsed());
        let descriptors = wire::read(message).map_or(0, |wire| wire.descriptors.len());
        Ok(convert::by_policy(code, descriptors))
    }
}

fn unanswered(error: CheckError) -> Status {
    match error {
        CheckError::NoRules | CheckError::Unavailable(_) => Status::unavailable(error.to_string()),
    }
}

fn name(code: Code) -> &'static str {
    if code == Code::Ok { "OK" } else { "OVER_LIMIT" }
}

pub(super) fn trace_failure<T>(span: Option<&CallSpan>, answer: &Result<T, Status>) {
    if let (Some(span), Err(status)) = (span, answer) {
        span.failed(status.message().to_owned());
    }
}

/// How long the caller can wait, as its `grpc-timeout` says: up to eight digits and a unit.
pub(super) fn budget(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(GRPC_TIMEOUT)?.to_str().ok()?;
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
        let mut headers = HeaderMap::new();
        headers.insert(GRPC_TIMEOUT, text.parse().unwrap());
        budget(&headers)
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
            let mut headers = HeaderMap::new();
            if let Ok(value) = text.parse() {
                headers.insert(GRPC_TIMEOUT, value);
            }
            assert_eq!(budget(&headers), None, "{text}");
        }
    }
}
