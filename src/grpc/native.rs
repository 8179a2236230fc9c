//! `ratelimiter.v1.RateLimiterService`: the same rules and counters for callers without Envoy. Parse, ask, render.

mod configured;
mod parse;
mod render;

use std::{sync::Arc, time::Instant};

use http::HeaderMap;
use tonic::{Request, Response, Status};

use super::{
    proto::ratelimiter::v1::{
        ConsumeAndCheckLimitRequest, ConsumeAndCheckLimitResponse, GetBucketStatusRequest, GetBucketStatusResponse,
        GetCurrentConfigRequest, GetCurrentConfigResponse,
        rate_limiter_service_server::{RateLimiterService, SERVICE_NAME},
    },
    service::{budget, trace_failure},
};
use crate::{
    engine::{quota::Quota, request::Hits, verdict::Code},
    limiter::{Asking, Limiter},
    live::Reader,
    load_report::LoadReport,
    telemetry::{
        metrics::MethodMetrics,
        traces::{CallSpan, Tracer},
    },
};
use parse::BadRequest;

#[derive(Clone, Debug)]
pub struct NativeDoor {
    limiter: Arc<Limiter>,
    report: Reader<LoadReport>,
    /// What a domain or a prefix without rules gets.
    default: Option<Arc<Quota>>,
    tracer: Option<Arc<Tracer>>,
    consume_calls: MethodMetrics,
    config_calls: MethodMetrics,
    status_calls: MethodMetrics,
}

impl NativeDoor {
    #[must_use]
    pub fn new(
        limiter: Arc<Limiter>,
        report: Reader<LoadReport>,
        default: Option<Arc<Quota>>,
        tracer: Option<Arc<Tracer>>,
    ) -> Self {
        let calls = |method| limiter.metrics().method(method);
        let consume_calls = calls("ConsumeAndCheckLimit");
        let config_calls = calls("GetCurrentConfig");
        let status_calls = calls("GetBucketStatus");
        Self { limiter, report, default, tracer, consume_calls, config_calls, status_calls }
    }

    async fn consume(
        &self,
        request: Request<ConsumeAndCheckLimitRequest>,
        span: Option<&CallSpan>,
    ) -> Result<ConsumeAndCheckLimitResponse, Status> {
        let budget = budget(request.metadata().as_ref());
        let wire = request.into_inner();
        let hits = parse::hits(wire.cost).map_err(|bad| self.refuse(&bad))?;
        let question =
            parse::question(&wire.domain, &wire.limit_key, &wire.entries, hits).map_err(|bad| self.refuse(&bad))?;
        if let Some(span) = span {
            span.asked(question.domain, 1);
        }
        let asking = Asking { budget, default: self.default.as_ref(), span, ..Asking::default() };
        let answer = self.limiter.check_as(&question, asking).await;
        let answer = answer.map_err(|error| Status::unavailable(error.to_string()))?;
        if let Some(span) = span {
            span.answered(if answer.verdict().code == Code::Ok { "OK" } else { "OVER_LIMIT" }, answer.degraded);
        }
        Ok(render::consumed(&answer))
    }

    async fn status(&self, request: Request<GetBucketStatusRequest>) -> Result<GetBucketStatusResponse, Status> {
        let budget = budget(request.metadata().as_ref());
        let wire = request.into_inner();
        let question = parse::question(&wire.domain, &wire.limit_key, &wire.entries, Hits::Take(0))
            .map_err(|bad| self.refuse(&bad))?;
        let rules = self.limiter.rules();
        if !rules.loaded {
            return Err(Status::unavailable("no rate limit configuration loaded"));
        }
        let plan = rules.set.plan_or(&question, self.default.as_ref());
        let mut standings = Vec::new();
        for check in &plan.checks {
            let standing = self.limiter.store().peek(plan.keys.get(check.slot), &check.quota, budget).await;
            let unknown = |failure: crate::store::StoreFailure| {
                Status::unavailable(format!("the store does not say how the counter stands: {}", failure.name()))
            };
            standings.push(standing.map_err(unknown)?);
        }
        Ok(render::standing(&plan, &standings))
    }

    fn refuse(&self, bad: &BadRequest) -> Status {
        self.limiter.metrics().service_errors.increment(1);
        Status::invalid_argument(bad.to_string())
    }

    fn span(&self, method: &'static str, headers: &HeaderMap) -> Option<CallSpan> {
        self.tracer.as_ref().map(|tracer| tracer.call(SERVICE_NAME, method, headers))
    }
}

#[tonic::async_trait]
impl RateLimiterService for NativeDoor {
    async fn consume_and_check_limit(
        &self,
        request: Request<ConsumeAndCheckLimitRequest>,
    ) -> Result<Response<ConsumeAndCheckLimitResponse>, Status> {
        let began = Instant::now();
        let span = self.span("ConsumeAndCheckLimit", request.metadata().as_ref());
        let answer = self.consume(request, span.as_ref()).await;
        trace_failure(span.as_ref(), &answer);
        self.consume_calls.record(began.elapsed());
        answer.map(Response::new)
    }

    async fn get_current_config(
        &self,
        request: Request<GetCurrentConfigRequest>,
    ) -> Result<Response<GetCurrentConfigResponse>, Status> {
        let began = Instant::now();
        let (rules, report) = (self.limiter.rules(), self.report.load());
        let only = request.into_inner().domain;
        let answer = configured::configured(&rules.set, &report, &only, self.default.as_deref());
        self.config_calls.record(began.elapsed());
        Ok(Response::new(answer))
    }

    async fn get_bucket_status(
        &self,
        request: Request<GetBucketStatusRequest>,
    ) -> Result<Response<GetBucketStatusResponse>, Status> {
        let began = Instant::now();
        let answer = self.status(request).await;
        self.status_calls.record(began.elapsed());
        answer.map(Response::new)
    }
}
