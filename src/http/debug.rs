//! The debug port: the rules in use, where they came from, and which of them a request would meet. Nothing here charges.
//!
//! What only reads is asked with GET. What changes something needs a POST and a header of ours: a page in a browser, which can
//! send either to any address, cannot send both without asking first, and is not answered if it does.

use std::{fmt::Write as _, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Query, State, rejection::QueryRejection},
    http::{HeaderMap, StatusCode, header::ACCEPT},
    middleware::from_fn,
    response::Response,
    routing::{get, post},
};
use serde::Serialize;
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use super::{host, plain, sentence, typed};
use crate::{
    engine::{
        quota::{Algorithm, Quota, Rate},
        request::DESCRIPTORS_MAX,
        rule::{Counted, Limit, Rule},
        tree::RuleSet,
    },
    explain,
    grpc::convert,
    limiter::Limiter,
    live::Reader,
    load_report::{LoadReport, ReloadAsked},
    printable::Printable,
};

#[derive(Clone, Debug)]
struct Shown {
    limiter: Arc<Limiter>,
    report: Reader<LoadReport>,
    reloads: mpsc::Sender<ReloadAsked>,
}

/// No page in a browser can send it elsewhere than home.
const CONSENT: &str = "x-sluice";
/// A hundred thousand rules are read within seconds.
const RELOAD_MAX: Duration = Duration::from_secs(30);

/// Sorted by path.
const PATHS: [(&str, &str); 4] = [
    ("/config", "where the rules in use came from, when, and what was wrong with the last ones (JSON)"),
    (
        "/explain",
        "which rules a request meets and where its counters stand: ?domain=..&descriptor=key=value,key=value \
         (descriptor may be repeated; format=text for people)",
    ),
    ("/reload", "read the rules now, and tell as /config does: POST with the header `x-sluice: reload`"),
    ("/rlconfig", "print out the currently loaded configuration for debugging"),
];

/// Any path that is not known lists those that are.
pub fn router(limiter: Arc<Limiter>, report: Reader<LoadReport>, reloads: mpsc::Sender<ReloadAsked>) -> Router {
    Router::new()
        .route("/config", get(config))
        .route("/explain", get(explain))
        .route("/reload", post(reload))
        .route("/rlconfig", get(rlconfig))
        .fallback(get(index))
        .layer(from_fn(host::is_ours))
        .with_state(Shown { limiter, report, reloads })
}

async fn index() -> Response {
    let lines = PATHS.iter().map(|(path, help)| format!("{path}: {help}\n"));
    plain(StatusCode::OK, lines.collect())
}

async fn rlconfig(State(shown): State<Shown>) -> Response {
    plain(StatusCode::OK, rule_lines(&shown.limiter.rules().set))
}

async fn config(State(shown): State<Shown>) -> Response {
    json(&*shown.report.load())
}

async fn reload(State(shown): State<Shown>, headers: HeaderMap) -> Response {
    if !headers.contains_key(CONSENT) {
        let reason = "a reload needs the header `x-sluice: reload`, which no page in a browser can send from elsewhere";
        return sentence(StatusCode::FORBIDDEN, reason);
    }
    let (done, is_done) = oneshot::channel();
    let asked = async {
        shown.reloads.send(done).await.ok()?;
        is_done.await.ok()
    };
    if timeout(RELOAD_MAX, asked).await.ok().flatten().is_none() {
        return sentence(StatusCode::SERVICE_UNAVAILABLE, "the rules were not read in time: see the log");
    }
    let report = shown.report.load();
    let mut response = json(&*report);
    if report.last_error.is_some() {
        *response.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
    }
    response
}

/// The reference's line for each rule, in the order of the files. What the reference does not know stands behind its part.
fn rule_lines(set: &RuleSet) -> String {
    let mut lines = String::new();
    for rule in set.rules() {
        match &rule.limit {
            Limit::Unlimited => write_line(&mut lines, rule, "UNKNOWN", 0, ""),
            Limit::Counted(all) => {
                for counted in all {
                    for rate in counted.quota.rates() {
                        let unit = convert::unit(rate.period().unit()).as_str_name();
                        write_line(&mut lines, rule, unit, rate.requests(), &beyond_the_reference(counted, rate));
                    }
                }
            }
        }
    }
    lines
}

fn write_line(lines: &mut String, rule: &Rule, unit: &str, requests: u32, rest: &str) {
    let path = rule.path.join(".");
    let (domain, path, rest) = (Printable(&rule.domain), Printable(&path), Printable(rest));
    let (shadow, quota) = (rule.shadow, rule.quota_mode);
    let _ = writeln!(
        lines,
        "{domain}.{path}: unit={unit} requests_per_unit={requests}, shadow_mode: {shadow}, quota_mode: {quota}{rest}"
    );
}

fn beyond_the_reference(counted: &Counted, rate: &Rate) -> String {
    let quota: &Quota = &counted.quota;
    let mut rest = String::new();
    let mut add = |name: &str, value: &dyn std::fmt::Display| {
        let _ = write!(rest, ", {name}: {value}");
    };
    if rate.period().multiplier() > 1 {
        add("unit_multiplier", &rate.period().multiplier());
    }
    if quota.algorithm() != Algorithm::FixedWindow {
        add("algorithm", &quota.algorithm().name());
    }
    if quota.algorithm().is_bucket() {
        add("burst", &rate.capacity());
    }
    if let Some(name) = rate.name() {
        add("rate", &name);
    }
    if let Some(plan) = &counted.plan {
        add("plan", plan);
    }
    rest
}

type Pairs = Vec<(String, String)>;

async fn explain(
    State(shown): State<Shown>,
    headers: HeaderMap,
    query: Result<Query<Pairs>, QueryRejection>,
) -> Response {
    let asked = query.map_err(|bad| bad.to_string()).and_then(|Query(pairs)| Asked::parse(pairs));
    let asked = match asked {
        Ok(asked) => asked,
        Err(reason) => return sentence(StatusCode::BAD_REQUEST, reason),
    };
    let rules = shown.limiter.rules();
    let explanation = explain::look(&rules.set, shown.limiter.store(), &asked.domain, &asked.descriptors).await;
    let wants_text = || headers.get(ACCEPT).is_some_and(|accept| accept.as_bytes().starts_with(b"text/plain"));
    if asked.text.unwrap_or_else(wants_text) {
        plain(StatusCode::OK, explanation.to_string())
    } else {
        json(&explanation)
    }
}

/// How to ask `/explain`, for clients. Descriptors are as people type them: see [`explain::parse_descriptor`].
#[must_use]
pub fn explain_path(domain: &str, descriptors: &[String], format: &str) -> String {
    let mut path = format!("/explain?format={}&domain={}", encoded(format), encoded(domain));
    for descriptor in descriptors {
        path.push_str("&descriptor=");
        path.push_str(&encoded(descriptor));
    }
    path
}

fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(byte.into());
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// What a query to `/explain` asks for.
#[derive(Default)]
struct Asked {
    domain: String,
    descriptors: Vec<Pairs>,
    /// Said in the query, which goes before what the headers say.
    text: Option<bool>,
}

impl Asked {
    fn parse(pairs: Pairs) -> Result<Self, String> {
        let mut asked = Self::default();
        for (name, value) in pairs {
            match (&*name, &*value) {
                ("domain", _) if asked.domain.is_empty() => asked.domain = value,
                ("domain", _) => return Err("domain is given twice".to_owned()),
                ("descriptor", text) => asked.descriptors.push(explain::parse_descriptor(text)?),
                ("format", "text") => asked.text = Some(true),
                ("format", "json") => asked.text = Some(false),
                ("format", _) => return Err(format!("format is {value:?}, expected text or json")),
                _ => return Err(format!("unknown parameter {name:?}: known are domain, descriptor, format")),
            }
        }
        if asked.domain.is_empty() {
            return Err("no domain given: add domain=..".to_owned());
        }
        if asked.descriptors.is_empty() {
            return Err("no descriptor given: add descriptor=key=value,key=value".to_owned());
        }
        if asked.descriptors.len() > DESCRIPTORS_MAX {
            return Err(format!(
                "{} descriptors given, at most {} are possible",
                asked.descriptors.len(),
                DESCRIPTORS_MAX
            ));
        }
        Ok(asked)
    }
}

fn json(value: &impl Serialize) -> Response {
    match serde_json::to_string_pretty(value) {
        Ok(text) => typed(StatusCode::OK, "application/json", text + "\n"),
        Err(error) => sentence(StatusCode::INTERNAL_SERVER_ERROR, error),
    }
}
