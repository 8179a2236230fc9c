//! The doors, asked as a client asks them, over rules built by hand.

mod debug_port;
mod doors;
mod listener;

use std::sync::Arc;

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{HeaderMap, Method, Request, StatusCode},
};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tower::ServiceExt as _;

use super::*;
use crate::{
    engine::{
        quota::{Algorithm, OnOverLimit, Period, Quota, RateSpec, Unit},
        rule::{Counted, Limit, OnStoreFailure, Rule},
        tree::{Level, Node, Options, RuleSet, RuleTree},
    },
    grpc::convert::HeaderNames,
    limiter::{Policy, Rules},
    live::{self, Publisher},
    load_report::{LoadReport, ReloadAsked},
    store::{Store, local::LocalShare, memory::MemoryStore},
    telemetry::metrics::Metrics,
};

struct House {
    router: Router,
    metrics: Router,
    debug: Router,
    health: Arc<Health>,
    report: Publisher<LoadReport>,
    asked: mpsc::Receiver<ReloadAsked>,
}

struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    text: String,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{}: {error}", self.text))
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

fn rate(requests: u32, unit: Unit, burst: Option<u32>, name: Option<&str>) -> RateSpec {
    RateSpec { requests, period: Period::try_new(unit, 1).unwrap(), burst, name: name.map(Into::into) }
}

fn counted(algorithm: Algorithm, rates: Vec<RateSpec>, plan: Option<&str>) -> Counted {
    let quota = Quota::try_new(algorithm, rates, OnOverLimit::default_of(algorithm), false).unwrap();
    Counted { quota: Arc::new(quota), plan: plan.map(Into::into) }
}

fn rule(id: usize, key: &str, limit: Limit) -> Arc<Rule> {
    Arc::new(Rule {
        id,
        domain: "edge".into(),
        path: [key.into()].into(),
        name: None,
        replaces: Box::default(),
        limit,
        shadow: key == "shadow",
        quota_mode: key == "quota",
        detailed_metric: false,
        on_store_failure: None,
    })
}

/// `user`: 2 per year. `shadow`: 5 per minute. `quota`: unlimited. `many`: two rates. `plans`: two plans.
fn rules() -> Rules {
    let fixed = |requests, unit| counted(Algorithm::FixedWindow, vec![rate(requests, unit, None, None)], None);
    let one = |counted| Limit::Counted([counted].into());
    let many = vec![
        rate(10, Unit::Second, Some(100), Some("per_second")),
        rate(10_000, Unit::Hour, Some(10_000), Some("per_hour")),
    ];
    let plans = [
        counted(Algorithm::TokenBucket, vec![rate(50, Unit::Second, Some(200), None)], Some("gold")),
        counted(Algorithm::FixedWindow, vec![rate(7, Unit::Day, None, None)], Some("daily")),
    ];
    let rules = vec![
        rule(0, "user", one(fixed(2, Unit::Year))),
        rule(1, "shadow", one(fixed(5, Unit::Minute))),
        rule(2, "quota", Limit::Unlimited),
        rule(3, "many", one(counted(Algorithm::LeakyBucket, many, None))),
        rule(4, "plans", Limit::Counted(plans.into())),
    ];
    let mut root = Level::default();
    for rule in &rules {
        root.insert(&rule.path[0], "", Node { rule: Some(rule.clone()), ..Node::default() }).unwrap();
    }
    let tree = RuleTree { domain: "edge".into(), partition_by: Box::default(), root };
    Rules::new(RuleSet::new(vec![tree], rules, Options::default()), vec![None; 5])
}

fn house_with(limit_header: &str) -> House {
    let policy = Policy { on_store_failure: OnStoreFailure::Allow, near_limit_ratio: 0.8 };
    let (_, reader) = live::pair(rules());
    let store = Store::Memory(MemoryStore::new(1_000));
    let limiter = Arc::new(Limiter::new(reader, store, LocalShare::new(100, 1), policy, Metrics::new()));
    let headers = HeaderNames {
        limit: limit_header.to_owned(),
        remaining: "RateLimit-Remaining".to_owned(),
        reset: "RateLimit-Reset".to_owned(),
    };
    let presentation = Arc::new(Presentation { headers: Some(headers), dynamic_metadata: true });
    let health = Arc::new(Health::new(true));
    let (report, reported) = live::pair(LoadReport::default());
    let (reloads, asked) = mpsc::channel(1);
    House {
        router: router(Doors {
            limiter: limiter.clone(),
            presentation,
            health: health.clone(),
            scrapes: Arc::default(),
        }),
        metrics: metrics::router(limiter.clone(), "/scrape"),
        debug: debug::router(limiter, reported, reloads),
        health,
        report,
        asked,
    }
}

fn house() -> House {
    house_with("RateLimit-Limit")
}

async fn ask(router: &Router, method: Method, uri: &str, body: impl Into<Body>, accept: Option<&str>) -> Reply {
    let mut request = Request::builder().method(method).uri(uri);
    if let Some(accept) = accept {
        request = request.header("accept", accept);
    }
    reply(router.clone().oneshot(request.body(body.into()).unwrap()).await.unwrap()).await
}

async fn reply(response: Response) -> Reply {
    let (status, headers) = (response.status(), response.headers().clone());
    let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    Reply { status, headers, text: String::from_utf8(body.to_vec()).unwrap() }
}

async fn get(router: &Router, uri: &str) -> Reply {
    ask(router, Method::GET, uri, Body::empty(), None).await
}

async fn post(router: &Router, body: impl Into<Body>) -> Reply {
    ask(router, Method::POST, "/json", body, None).await
}

fn question(key: &str) -> String {
    json!({"domain": "edge", "descriptors": [{"entries": [{"key": key, "value": "alice"}]}]}).to_string()
}
