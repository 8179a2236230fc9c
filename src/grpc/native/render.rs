//! From what was decided, or how a counter stands, to the wire of the native API.

use prost_types::{Duration, Timestamp};

use crate::{
    engine::{
        algorithm::{Retry, State},
        plan::{Match, Plan},
        quota::{Quota, Rate},
        verdict::Code,
    },
    grpc::proto::ratelimiter::v1::{ConsumeAndCheckLimitResponse, GetBucketStatusResponse, RatePolicy, RateStatus},
    limiter::Answer,
    store::Standing,
};

pub fn consumed(answer: &Answer) -> ConsumeAndCheckLimitResponse {
    let allowed = answer.verdict().code == Code::Ok;
    let (plan, decisions) = (&answer.plan, &answer.decisions);
    let limited = match plan.matches.first() {
        Some(Match::Limited(limited)) => limited,
        Some(Match::Unlimited(rule)) => {
            return ConsumeAndCheckLimitResponse { allowed, rule: rule.shown_name(), ..Default::default() };
        }
        Some(Match::Free) | None => return ConsumeAndCheckLimitResponse { allowed, ..Default::default() },
    };
    let governing = plan.governing(limited, decisions);
    let decision = &decisions[governing];
    let rates_before: usize =
        plan.checks[limited.checks.start..governing].iter().map(|check| check.quota.rates().len()).sum();
    let index = u32::try_from(rates_before + decision.rate).unwrap_or(u32::MAX);
    let denials = limited.checks.clone().map(|check| decisions[check].denials).max();
    ConsumeAndCheckLimitResponse {
        allowed,
        remaining_capacity: decision.counted.then_some(decision.remaining),
        limiting_rate_index: decision.counted.then_some(index),
        deny_count: denials.unwrap_or(0),
        retry_after: match decision.retry {
            Retry::After(wait_us) if !allowed => Some(duration(wait_us)),
            Retry::Now | Retry::After(_) | Retry::Never => None,
        },
        rule: limited.shown_name(),
        degraded: answer.degraded,
    }
}

/// One standing for each check of the plan.
pub fn standing(plan: &Plan, standings: &[Standing]) -> GetBucketStatusResponse {
    let limited = match plan.matches.first() {
        Some(Match::Limited(limited)) => limited,
        Some(Match::Unlimited(rule)) => {
            return GetBucketStatusResponse { rule: rule.shown_name(), rates: Vec::new() };
        }
        Some(Match::Free) | None => return GetBucketStatusResponse::default(),
    };
    let mut rates = Vec::new();
    for check in limited.checks.clone() {
        let standing = &standings[check];
        let quota: &Quota = &plan.checks[check].quota;
        let of_rate = |(at, rate)| rate_status(quota, at, rate, limited.plan_name(check), standing);
        rates.extend(quota.rates().iter().enumerate().map(of_rate));
    }
    GetBucketStatusResponse { rule: limited.shown_name(), rates }
}

fn rate_status(quota: &Quota, index: usize, rate: &Rate, plan: Option<&str>, standing: &Standing) -> RateStatus {
    let state = &standing.state;
    RateStatus {
        name: rate.name().or(plan).unwrap_or_default().to_owned(),
        algorithm: quota.algorithm().name().to_owned(),
        level: level(quota, index, state),
        flow_rate_per_second: flow_per_second(rate),
        capacity: rate.capacity(),
        remaining: rate.capacity().saturating_sub(state.used(quota, index)),
        last_update: standing.changed_us.map(timestamp),
        deny_count: state.denials,
    }
}

#[expect(clippy::cast_precision_loss, reason = "the wire has doubles, and both numbers are below 2^53")]
fn level(quota: &Quota, index: usize, state: &State) -> f64 {
    if quota.algorithm().is_bucket() {
        state.cells[index].used as f64 / quota.rates()[index].weight() as f64
    } else {
        state.used(quota, index) as f64
    }
}

#[expect(clippy::cast_precision_loss, reason = "a period has far fewer than 2^53 seconds")]
pub fn flow_per_second(rate: &Rate) -> f64 {
    f64::from(rate.requests()) / rate.period().seconds() as f64
}

pub fn policy(quota: &Quota, rate: &Rate, plan: Option<&str>) -> RatePolicy {
    RatePolicy {
        name: rate.name().or(plan).unwrap_or_default().to_owned(),
        flow_rate_per_second: flow_per_second(rate),
        burst: rate.capacity(),
        algorithm: quota.algorithm().name().to_owned(),
        requests_per_unit: rate.requests(),
        unit: rate.period().unit().name().to_owned(),
        unit_multiplier: rate.period().multiplier(),
    }
}

fn duration(us: u64) -> Duration {
    Duration { seconds: seconds(us), nanos: nanos(us) }
}

fn timestamp(us: u64) -> Timestamp {
    Timestamp { seconds: seconds(us), nanos: nanos(us) }
}

fn seconds(us: u64) -> i64 {
    i64::try_from(us / 1_000_000).unwrap_or(i64::MAX)
}

fn nanos(us: u64) -> i32 {
    i32::try_from(us % 1_000_000 * 1_000).unwrap_or(0)
}
