//! What strangers can send, one function for each way in. Each takes any bytes, and panics if something is wrong with what comes
//! of them. Both the tests here and the coverage-guided run (`guided/`) call them.

use std::{sync::Arc, sync::LazyLock, time::Duration};

use futures_util::FutureExt as _;
use prost::Message as _;
use redis::Value;
use sluice::{
    config::{
        CompileOptions, Source, compile,
        settings::{GROUPS, Settings},
    },
    engine::{
        algorithm::{Check, Decisions},
        key::{self, Place},
        plan::Keys,
        quota::{Period, Quota, Unit},
        request::Entry,
        rule::{Counted, OnStoreFailure},
    },
    explain,
    grpc::{
        convert::{self, HeaderNames, Presentation},
        native::NativeDoor,
        proto::{
            envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse},
            ratelimiter::v1::{
                ConsumeAndCheckLimitRequest, GetBucketStatusRequest,
                rate_limiter_service_server::RateLimiterService as _,
            },
        },
        wire::{self, Question, Unreadable},
    },
    http::proto_json,
    limiter::{Answer, Limiter, Policy, Rules},
    live,
    load_report::LoadReport,
    store::{
        Standing, Store,
        local::LocalShare,
        memory::MemoryStore,
        redis::{script, state},
    },
    telemetry::metrics::Metrics,
};

pub type Target = fn(&[u8]);

/// By the name of their directory in the corpus.
pub const TARGETS: &[(&str, Target)] = &[
    ("request", request),
    ("native", native),
    ("json", json),
    ("rules", rules),
    ("reply", reply),
    ("key", key),
    ("explain", explained),
    ("settings", settings),
];

const RULES: &str = include_str!("rules.yaml");

static LIMITER: LazyLock<Arc<Limiter>> = LazyLock::new(|| {
    let source = Source { name: "rules.yaml".to_owned(), text: RULES.to_owned() };
    let compiled = compile(&[source], &CompileOptions::default()).expect("the rules are good");
    let (_, rules) = live::pair(Rules::new(compiled.set, compiled.metadata));
    let policy = Policy { on_store_failure: OnStoreFailure::Deny, near_limit_ratio: 0.8 };
    let store = Store::Memory(MemoryStore::new(5_000));
    Arc::new(Limiter::new(rules, store, LocalShare::new(100, 3), policy, Metrics::new()))
});

fn presentation() -> Presentation {
    let headers = HeaderNames { limit: "l".to_owned(), remaining: "r".to_owned(), reset: "s".to_owned() };
    Presentation { headers: Some(headers), dynamic_metadata: true }
}

/// Bytes to request to decision to bytes, as gRPC does it.
fn request(bytes: &[u8]) {
    let owned = RateLimitRequest::decode(bytes).ok();
    let wire = wire::read(bytes);
    // What is too large is refused before all of it is read.
    if !matches!(wire, Err(Unreadable::TooMany(_))) {
        assert_eq!(wire.clone().ok(), owned.as_ref().map(Question::from), "it is read as prost reads it");
    }
    if let Ok(wire) = wire {
        let response = decided(&wire);
        let again = response
            .map(|response| RateLimitResponse::decode(&*response.encode_to_vec()).map(|again| again == response));
        assert!(matches!(again, None | Some(Ok(true))), "an answer is read as it was written");
    }
}

/// The answer, if it is a question.
pub fn decided(wire: &Question<'_>) -> Option<RateLimitResponse> {
    let question = match convert::parse(wire) {
        Ok(question) => question,
        Err(bad) => {
            assert!(!bad.to_string().is_empty());
            return None;
        }
    };
    let answer =
        LIMITER.check(&question, None).now_or_never().expect("nobody is waited for").expect("the store decides");
    assert!(!answer.degraded, "the store decides");
    Some(rendered(wire, &answer))
}

fn rendered(wire: &Question<'_>, answer: &Answer) -> RateLimitResponse {
    let response = convert::render(answer, &presentation(), Some(wire));
    assert!([1, 2].contains(&response.overall_code), "OK or OVER_LIMIT");
    assert_eq!(response.statuses.len(), wire.descriptors.len());
    for status in &response.statuses {
        assert!([1, 2].contains(&status.code), "OK or OVER_LIMIT");
        let name = status.current_limit.as_ref().map_or("", |limit| &limit.name);
        assert!(!name.contains(char::is_control));
    }
    for header in &response.response_headers_to_add {
        assert!(!header.value.contains(char::is_control) && !header.key.contains(char::is_control));
    }
    response
}

/// The native API: the same, and a look.
fn native(bytes: &[u8]) {
    let door = NativeDoor::new(LIMITER.clone(), live::pair(LoadReport::default()).1, None, None);
    if let Ok(wire) = ConsumeAndCheckLimitRequest::decode(bytes) {
        let answer = door.consume_and_check_limit(tonic::Request::new(wire)).now_or_never();
        assert_native(answer.expect("nobody is waited for"));
    }
    if let Ok(wire) = GetBucketStatusRequest::decode(bytes) {
        let answer = door.get_bucket_status(tonic::Request::new(wire)).now_or_never();
        assert_native(answer.expect("nobody is waited for"));
    }
}

fn assert_native<T>(answer: Result<tonic::Response<T>, tonic::Status>) {
    assert!(answer.err().is_none_or(|status| status.code() == tonic::Code::InvalidArgument));
}

/// `/json`.
fn json(bytes: &[u8]) {
    match proto_json::parse(bytes) {
        Ok(wire) => {
            if let Some(response) = decided(&Question::from(&wire)) {
                let text = proto_json::render(&response).to_string();
                assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok());
            }
        }
        Err(bad) => assert!(!bad.to_string().is_empty()),
    }
}

/// The text of rules compiles, or is refused with a place in it. Rules that compile can be met.
fn rules(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes).into_owned();
    // To YAML a lone carriage return ends a line, too. What is missing at the end is missing on the next.
    let lines = u32::try_from(text.matches(['\n', '\r']).count()).expect("is short") + 2;
    let sources = [Source { name: "fuzz.yaml".to_owned(), text }];
    match compile(
        &sources,
        &CompileOptions { merge_domains: bytes.len().is_multiple_of(2), ..CompileOptions::default() },
    ) {
        Ok(compiled) => {
            compiled.warnings.iter().for_each(|warning| assert!(!warning.to_string().is_empty()));
            let rules = compiled.set.rules().to_vec();
            for rule in rules.iter().take(20) {
                let entries = rule.path.iter().map(|part| {
                    let (key, value) = part.split_once('_').unwrap_or((part, "x"));
                    (key.to_owned(), value.to_owned())
                });
                let explanation = explain::explain(&compiled.set, &rule.domain, &[entries.collect()]);
                assert!(!explanation.to_string().is_empty());
            }
        }
        Err(errors) => {
            assert!(!errors.is_empty());
            for error in errors {
                assert!((1..=lines).contains(&error.line) && error.column >= 1, "{error}");
                assert!(!error.message.is_empty() && !error.to_string().is_empty());
            }
        }
    }
}

/// What a store replies: as RESP, as the bytes of a reply of the script, and as the state of a counter. Whatever passes for
/// decisions can be answered with.
fn reply(bytes: &[u8]) {
    let wire = Question::from(&*WIRE);
    let question = convert::parse(&wire).expect("is a question");
    let rules = LIMITER.rules();
    let plan = Arc::new(rules.set.plan(&question));
    let asked = [(&*plan.checks, &plan.keys)];
    let values = [redis::parse_redis_value(bytes).ok(), Some(Value::BulkString(bytes.to_vec()))];
    for value in values.into_iter().flatten() {
        let Ok(answers) = script::decode(&value, &asked) else { continue };
        for decisions in answers.into_iter().flatten() {
            let took = Duration::ZERO;
            let (rules, plan) = (rules.clone(), plan.clone());
            rendered(&wire, &Answer { rules, plan, decisions, degraded: false, from_memory: false, took });
        }
    }
    standing(bytes, &plan.checks, &plan.keys);
}

static WIRE: LazyLock<RateLimitRequest> = LazyLock::new(|| {
    let text = r#"{"domain": "d", "descriptors": [{"entries": [{"key": "b", "value": "1"}]},
        {"entries": [{"key": "c", "value": "1"}]}, {"entries": [{"key": "q", "value": "1"}]}]}"#;
    proto_json::parse(text.as_bytes()).expect("is a request")
});

/// A counter of any bytes stands somehow, and can be decided about.
fn standing(bytes: &[u8], checks: &[Check], keys: &Keys) {
    let Ok(state) = state::decode(bytes) else { return };
    assert_eq!(state::decode(&state::encode(&state)), Ok(state.clone()), "a state is read as it was written");
    for check in checks {
        let now_us = 1_800_000_000_000_000;
        let standing = Standing::new(Some(state.clone()), &check.quota, now_us);
        assert!(standing.state.cells.len() == check.quota.rates().len());
        let mut states = vec![state.clone(); keys.len()];
        let (decisions, _): (Decisions, _) = sluice::engine::algorithm::decide(now_us, checks, &mut states);
        assert_eq!(decisions.len(), checks.len());
    }
}

/// Two lists of entries have the same key only if they are the same, and nobody but us opens a hash tag.
fn key(bytes: &[u8]) {
    let mut rest = bytes;
    let (one, other) = (Named::take(&mut rest), Named::take(&mut rest));
    let period = Period::try_new(Unit::Minute, 1).expect("is a period");
    let counted = Counted { quota: Arc::new(Quota::fixed_window(5, period).expect("is a quota")), plan: None };
    let moved = one.with_a_border_moved();
    assert!(moved == one || moved.key(&counted) != one.key(&counted), "{one:?} and {moved:?} have the same key");
    let (key, other_key) = (one.key(&counted), other.key(&counted));
    assert_eq!(one == other, key == other_key, "{one:?} and {other:?} have {key:?} and {other_key:?}");
    for key in [&key, &other_key] {
        let close = key.find('}').expect("there is a tag");
        assert!(key.starts_with("p{") && !key[2..close].contains('{') && close > 2);
        assert_eq!(key::slot(key), key::slot(&key[2..close]));
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Named {
    domain: String,
    entries: Vec<(String, String)>,
}

impl Named {
    fn take(bytes: &mut &[u8]) -> Self {
        let mut text = || {
            let length = bytes.split_off_first().map_or(0, |length| usize::from(*length));
            // Few lengths are long, and those are very long.
            let length = if length > 250 { length * 100 } else { length.min(70) };
            let taken = bytes.split_off(..length.min(bytes.len())).unwrap_or_default();
            String::from_utf8_lossy(taken).into_owned()
        };
        let domain = format!("d{}", text());
        let count = text().len() % 4;
        Self { domain, entries: (0..=count).map(|_| (text(), text())).collect() }
    }

    /// The same text all in all, but where the first key ends.
    fn with_a_border_moved(&self) -> Self {
        let mut entries = self.entries.clone();
        let (key, value) = &mut entries[0];
        if let Some(last) = key.pop() {
            value.insert(0, last);
        }
        Self { domain: self.domain.clone(), entries }
    }

    fn key(&self, counted: &Counted) -> String {
        let entries: Vec<Entry<'_>> = self.entries.iter().map(|(key, value)| Entry { key, value }).collect();
        let partition_by = ["a".into(), "1:".into()];
        let place = Place {
            prefix: "p",
            domain: &self.domain,
            partition_by: &partition_by,
            entries: &entries,
            steps: &[],
            is_default: false,
        };
        let mut key = String::new();
        place.write_key(counted, &mut key);
        key
    }
}

/// Descriptors as people write them, explained.
fn explained(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let parsed: Result<Vec<_>, String> = text.split('\n').map(explain::parse_descriptor).collect();
    let Ok(descriptors) = parsed else { return };
    let rules = LIMITER.rules();
    let explanation =
        explain::look(&rules.set, LIMITER.store(), "d", &descriptors).now_or_never().expect("nobody is waited for");
    assert!(!explanation.to_string().is_empty());
    assert!(serde_json::to_string(&explanation).is_ok());
}

/// Lines of `NUMBER VALUE`: values for settings by their place in the table. Read, or refused with sentences.
fn settings(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let all: Vec<&str> = GROUPS.iter().flat_map(|group| group.settings).map(|setting| setting.env).collect();
    let given = text.lines().filter_map(|line| {
        let (number, value) = line.split_once(' ')?;
        Some((*all.get(number.parse::<usize>().ok()? % all.len())?, value.to_owned()))
    });
    let given: std::collections::HashMap<&str, String> = given.collect();
    // A file of a password would be read.
    let lookup = |name: &str| given.get(name).filter(|_| !name.ends_with("_FILE")).cloned();
    if let Err(bad) = Settings::read(lookup) {
        assert!(!bad.is_empty() && bad.iter().all(|setting| !setting.message.is_empty()));
    }
}
