//! Between the wire and the engine: the only file that knows both tongues.

use std::sync::Arc;

use prost_types::{ListValue, Struct, Value, value::Kind};
use smallvec::SmallVec;

use super::{
    proto::envoy::{
        config::core::v3::HeaderValue,
        extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride,
        service::ratelimit::v3::{
            RateLimitResponse,
            rate_limit_response::{Code as WireCode, DescriptorStatus, RateLimit, rate_limit::Unit as WireUnit},
        },
        r#type::v3::RateLimitUnit,
    },
    wire::{Asked, Question},
};
use crate::{
    engine::{
        plan::Match,
        quota::{Period, Quota, Unit},
        request::{Descriptor, Excess, Hits, Request},
        verdict::{Code, Status, Verdict},
    },
    limiter::Answer,
};

/// Why a request is no question that can be answered. Each names the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRequest {
    #[error("rate limit domain must not be empty: set `domain`")]
    EmptyDomain,
    #[error("rate limit descriptor list must not be empty: set `descriptors`")]
    NoDescriptors,
    #[error("descriptors[{index}].limit.unit is {unit}, which is no unit: use 1 (SECOND) to 6 (YEAR)")]
    UndefinedUnit { index: usize, unit: i32 },
    #[error("descriptors[{index}].limit: {reason}")]
    BadOverride { index: usize, reason: String },
    #[error("{0}")]
    Excess(Excess),
}

/// Tells that the failure policy decided, and not the store.
pub const DEGRADED: &str = "x-ratelimit-degraded";

/// Wire to question.
pub fn parse<'a>(wire: &Question<'a>) -> Result<Request<'a>, BadRequest> {
    if wire.domain.is_empty() {
        return Err(BadRequest::EmptyDomain);
    }
    if wire.descriptors.is_empty() {
        return Err(BadRequest::NoDescriptors);
    }
    let mut request = Request { domain: wire.domain, descriptors: SmallVec::new() };
    for (index, asked) in wire.descriptors.iter().enumerate() {
        request.descriptors.push(parse_descriptor(index, asked, wire.hits_addend)?);
    }
    request.refuse_excess().map_err(BadRequest::Excess)?;
    Ok(request)
}

fn parse_descriptor<'a>(index: usize, wire: &Asked<'a>, request_hits: u32) -> Result<Descriptor<'a>, BadRequest> {
    let hits = wire.hits_addend.unwrap_or(u64::from(request_hits.max(1)));
    let override_quota = wire.limit.as_ref().map(|limit| parse_override(index, limit)).transpose()?;
    Ok(Descriptor {
        entries: SmallVec::from_slice(&wire.entries),
        hits: if wire.is_negative_hits { Hits::refund(hits) } else { Hits::take(hits) },
        override_quota,
    })
}

fn parse_override(index: usize, wire: &RateLimitOverride) -> Result<Arc<Quota>, BadRequest> {
    let unit = match RateLimitUnit::try_from(wire.unit) {
        Ok(RateLimitUnit::Second) => Unit::Second,
        Ok(RateLimitUnit::Minute) => Unit::Minute,
        Ok(RateLimitUnit::Hour) => Unit::Hour,
        Ok(RateLimitUnit::Day) => Unit::Day,
        Ok(RateLimitUnit::Month) => Unit::Month,
        Ok(RateLimitUnit::Year) => Unit::Year,
        Ok(RateLimitUnit::Unknown) | Err(_) => return Err(BadRequest::UndefinedUnit { index, unit: wire.unit }),
    };
    let quota = Period::try_new(unit, wire.unit_multiplier.unwrap_or(1))
        .and_then(|period| Quota::fixed_window(wire.requests_per_unit, period));
    quota.map(Arc::new).map_err(|reason| BadRequest::BadOverride { index, reason: reason.to_string() })
}

/// What an answer says beside its verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Presentation {
    /// The names of the rate limit headers, if they are wanted.
    pub headers: Option<HeaderNames>,
    pub dynamic_metadata: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderNames {
    pub limit: String,
    pub remaining: String,
    pub reset: String,
}

/// Answer to wire. What was `asked` is told again where it is given.
#[must_use]
pub fn render(answer: &Answer, presentation: &Presentation, asked: Option<&Question<'_>>) -> RateLimitResponse {
    let verdict = answer.verdict();
    RateLimitResponse {
        overall_code: code(verdict.code).into(),
        statuses: verdict.statuses.iter().map(render_status).collect(),
        response_headers_to_add: render_headers(&verdict, answer.degraded, presentation),
        dynamic_metadata: asked.map(|asked| render_metadata(asked, answer, &verdict)),
        ..RateLimitResponse::default()
    }
}

/// The answer to a request of this many descriptors that nothing more is known of.
#[must_use]
pub fn by_policy(verdict: Code, descriptors: usize) -> RateLimitResponse {
    let header =
        |key: &str, value: &str| HeaderValue { key: key.to_owned(), value: value.to_owned(), raw_value: Vec::new() };
    let retry = (verdict == Code::OverLimit).then(|| header("Retry-After", "1"));
    let status = DescriptorStatus { code: code(verdict).into(), ..DescriptorStatus::default() };
    RateLimitResponse {
        overall_code: code(verdict).into(),
        statuses: vec![status; descriptors],
        response_headers_to_add: retry.into_iter().chain([header(DEGRADED, "true")]).collect(),
        ..RateLimitResponse::default()
    }
}

fn code(code: Code) -> WireCode {
    match code {
        Code::Ok => WireCode::Ok,
        Code::OverLimit => WireCode::OverLimit,
    }
}

fn render_status(status: &Status<'_>) -> DescriptorStatus {
    let limit = status.limit.map(|shown| RateLimit {
        requests_per_unit: shown.requests,
        unit: unit(shown.period.unit()).into(),
        name: shown.name.map(printable).unwrap_or_default(),
        unit_multiplier: (shown.period.multiplier() > 1).then_some(shown.period.multiplier()),
    });
    DescriptorStatus {
        code: code(status.code).into(),
        current_limit: limit,
        limit_remaining: status.remaining,
        duration_until_reset: status
            .reset_s
            .map(|seconds| prost_types::Duration { seconds: i64::from(seconds), nanos: 0 }),
        quota: None,
    }
}

#[must_use]
pub fn unit(unit: Unit) -> WireUnit {
    match unit {
        Unit::Second => WireUnit::Second,
        Unit::Minute => WireUnit::Minute,
        Unit::Hour => WireUnit::Hour,
        Unit::Day => WireUnit::Day,
        Unit::Week => WireUnit::Week,
        Unit::Month => WireUnit::Month,
        Unit::Year => WireUnit::Year,
    }
}

/// Envoy writes what it is given into the client's response as it stands, and the name between quotes.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || c == '"' || c == '\\' { '_' } else { c }).collect()
}

fn render_headers(verdict: &Verdict<'_>, degraded: bool, presentation: &Presentation) -> Vec<HeaderValue> {
    let mut headers = Vec::new();
    let mut add =
        |key: &str, value: String| headers.push(HeaderValue { key: key.to_owned(), value, raw_value: Vec::new() });
    let described = verdict.described.map(|index| &verdict.statuses[index]);
    if let (Some(names), Some(status)) = (&presentation.headers, described) {
        let limit = status.limit.map_or(0, |shown| shown.requests);
        add(&names.limit, limit.to_string());
        add(&names.remaining, status.remaining.min(limit).to_string());
        add(&names.reset, status.reset_s.unwrap_or(0).to_string());
    }
    let refused = verdict.code == Code::OverLimit;
    if let (true, true, Some(seconds)) = (refused, presentation.headers.is_some() || degraded, verdict.retry_after_s) {
        add("Retry-After", seconds.to_string());
    }
    if degraded {
        add(DEGRADED, "true".to_owned());
    }
    headers
}

fn render_metadata(wire: &Question<'_>, answer: &Answer, verdict: &Verdict<'_>) -> Struct {
    let mut fields = vec![
        ("domain", text(wire.domain)),
        ("descriptors", list(wire.descriptors.iter().map(render_descriptor).collect())),
    ];
    if wire.hits_addend != 0 {
        fields.push(("hitsAddend", number(f64::from(wire.hits_addend))));
    }
    let mut merged = Struct::default();
    for (matched, status) in answer.plan.matches.iter().zip(&verdict.statuses) {
        if let (Match::Limited(limited), Code::Ok) = (matched, status.code) {
            let metadata = limited.rule.as_ref().and_then(|rule| answer.rules.metadata.get(rule.id)?.as_ref());
            metadata.into_iter().for_each(|metadata| merge(&mut merged, metadata));
        }
    }
    if !merged.fields.is_empty() {
        fields.push(("metadata", Value { kind: Some(Kind::StructValue(merged)) }));
    }
    Struct { fields: fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect() }
}

fn render_descriptor(descriptor: &Asked<'_>) -> Value {
    let entries = descriptor.entries.iter().map(|entry| text(&format!("{}={}", entry.key, entry.value)));
    let mut fields: SmallVec<[(&str, Value); 3]> = SmallVec::new();
    fields.push(("entries", list(entries.collect())));
    if let Some(limit) = &descriptor.limit {
        let unit = RateLimitUnit::try_from(limit.unit).unwrap_or(RateLimitUnit::Unknown);
        fields.push((
            "limit",
            text(&format!("requests_per_unit:{} unit:{}", limit.requests_per_unit, unit.as_str_name())),
        ));
    }
    if let Some(hits) = descriptor.hits_addend {
        #[expect(clippy::cast_precision_loss, reason = "the wire has no other number")]
        fields.push(("hitsAddend", number(hits as f64)));
    }
    let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    Value { kind: Some(Kind::StructValue(Struct { fields })) }
}

/// Structs merge; of any other two values under one name the first stays.
fn merge(into: &mut Struct, from: &crate::limiter::Metadata) {
    for (name, value) in from {
        match (into.fields.get_mut(name).and_then(|value| value.kind.as_mut()), value) {
            (None, value) => {
                into.fields.insert(name.clone(), from_json(value));
            }
            (Some(Kind::StructValue(known)), serde_json::Value::Object(more)) => merge(known, more),
            (Some(_), _) => {}
        }
    }
}

fn from_json(value: &serde_json::Value) -> Value {
    let kind = match value {
        serde_json::Value::Null => Kind::NullValue(0),
        serde_json::Value::Bool(value) => Kind::BoolValue(*value),
        serde_json::Value::Number(value) => Kind::NumberValue(value.as_f64().unwrap_or(0.0)),
        serde_json::Value::String(value) => Kind::StringValue(value.clone()),
        serde_json::Value::Array(values) => {
            Kind::ListValue(ListValue { values: values.iter().map(from_json).collect() })
        }
        serde_json::Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| (name.clone(), from_json(value))).collect();
            Kind::StructValue(Struct { fields })
        }
    };
    Value { kind: Some(kind) }
}

fn text(text: &str) -> Value {
    Value { kind: Some(Kind::StringValue(text.to_owned())) }
}

fn number(number: f64) -> Value {
    Value { kind: Some(Kind::NumberValue(number)) }
}

fn list(values: Vec<Value>) -> Value {
    Value { kind: Some(Kind::ListValue(ListValue { values })) }
}
