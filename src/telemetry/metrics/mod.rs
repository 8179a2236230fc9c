//! The handles through which metrics are counted; [`table`] has every family.
//!
//! The names that begin with `ratelimit_` are those of the reference service, so that existing dashboards work. Labels come
//! from rules. Values of requests become labels only where a rule asks for it; [`series`] bounds them, and all label sets.

mod buckets;
mod series;
mod table;

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use buckets::Buckets;
use series::Series;
pub use series::{BoundedSeries, LABEL_BYTES_MAX, LABEL_SETS_MAX, SERIES_PER_RULE};
use table::{
    BREAKER_TRIPS, BUILD_INFO, CALL_ERRORS, CALLS_GIVEN_UP, CALLS_IN_FLIGHT, CALLS_REFUSED, CONNECTIONS,
    CONNECTIONS_CLOSED, DECISION_DURATION, DECISIONS, DEGRADED, DOMAIN_NOT_FOUND, DOMAINS, GENERATION, GLOBAL_SHADOW,
    HITS, LOAD_ERROR, LOAD_SUCCESS, NEAR_LIMIT, NEGATIVE_HITS, OVER_LIMIT, OVER_LIMIT_LOCAL, PANICS, RELOADS,
    RESPONSE_TIME, RULES, SHADOW_MODE, STORE_CALLS, STORE_ENTRIES, STORE_ERRORS, STORE_EVICTIONS, STORE_WELL,
    TLS_EXPIRY, TLS_RELOADS, TOTAL_HITS, TOTAL_REQUESTS, WITHIN_LIMIT,
};
pub use table::{FAMILIES, Family, Kind};

use crate::{
    connections::Closed,
    engine::rule::Rule,
    panics,
    store::{StoreFailure, redis::metrics::StoreMetrics},
};

/// The registry, and the handles of families without rule labels.
pub struct Metrics {
    recorder: PrometheusRecorder,
    rendered: PrometheusHandle,
    histograms: Histograms,
    series: Series,
    pub domain_not_found: Counter,
    pub global_shadow: Counter,
    pub service_errors: Counter,
    pub store_call_errors: Counter,
    pub decision_duration: Histogram,
    pub load_success: Counter,
    pub load_error: Counter,
    pub domains: Gauge,
    pub rules: Gauge,
    pub generation: Gauge,
    pub store_entries: Gauge,
    pub store_evictions: Counter,
    pub store_up: Gauge,
    panics: Counter,
    pub calls_in_flight: Gauge,
    pub calls_refused: Counter,
    pub calls_given_up: Counter,
    store_errors: [Counter; StoreFailure::ALL.len()],
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    #[must_use]
    pub fn new() -> Arc<Self> {
        let recorder = PrometheusBuilder::new().build_recorder();
        for family in FAMILIES {
            let (name, help) = (family.name.into(), family.help.into());
            match family.kind {
                Kind::Counter => recorder.describe_counter(name, None, help),
                Kind::Gauge => recorder.describe_gauge(name, None, help),
                // See `render`.
                Kind::Histogram => {}
            }
        }
        let of = |family, labels: &[(&'static str, &'static str)]| counter(&recorder, family, owned(labels));
        let histograms = Histograms::default();
        let metrics = Self {
            domain_not_found: of(DOMAIN_NOT_FOUND, &[]),
            global_shadow: of(GLOBAL_SHADOW, &[]),
            service_errors: of(CALL_ERRORS, &[("err_type", "service_error")]),
            store_call_errors: of(CALL_ERRORS, &[("err_type", "redis_error")]),
            decision_duration: histograms.get(DECISION_DURATION, &[]),
            load_success: of(LOAD_SUCCESS, &[]),
            load_error: of(LOAD_ERROR, &[]),
            domains: gauge(&recorder, DOMAINS, Vec::new()),
            rules: gauge(&recorder, RULES, Vec::new()),
            generation: gauge(&recorder, GENERATION, Vec::new()),
            store_entries: gauge(&recorder, STORE_ENTRIES, Vec::new()),
            store_evictions: of(STORE_EVICTIONS, &[]),
            store_up: gauge(&recorder, STORE_WELL, Vec::new()),
            panics: of(PANICS, &[]),
            calls_in_flight: gauge(&recorder, CALLS_IN_FLIGHT, Vec::new()),
            calls_refused: of(CALLS_REFUSED, &[]),
            calls_given_up: of(CALLS_GIVEN_UP, &[]),
            store_errors: StoreFailure::ALL.map(|kind| of(STORE_ERRORS, &[("kind", kind.name())])),
            rendered: recorder.handle(),
            recorder,
            histograms,
            series: Series::default(),
        };
        gauge(&metrics.recorder, BUILD_INFO, owned(&[("version", env!("CARGO_PKG_VERSION"))])).set(1.0);
        for result in ["applied", "unchanged", "failed"] {
            metrics.reloads(result).increment(0);
        }
        Arc::new(metrics)
    }

    /// The text that Prometheus scrapes.
    #[must_use]
    pub fn render(&self) -> String {
        self.panics.absolute(panics::seen());
        let mut text = self.rendered.render();
        self.histograms.render(&mut text);
        text
    }

    pub fn reloads(&self, result: &'static str) -> Counter {
        counter(&self.recorder, RELOADS, owned(&[("result", result)]))
    }

    pub fn store_errors(&self, failure: StoreFailure) -> &Counter {
        let index = StoreFailure::ALL.iter().position(|kind| *kind == failure).unwrap_or(0);
        &self.store_errors[index]
    }

    pub fn degraded(&self, reason: StoreFailure, policy: &'static str) -> Counter {
        counter(&self.recorder, DEGRADED, owned(&[("reason", reason.name()), ("policy", policy)]))
    }

    /// The calls to Redis.
    #[must_use]
    pub fn store_calls(&self) -> StoreMetrics {
        StoreMetrics {
            call_duration: self.histograms.get(STORE_CALLS, &[]),
            breaker_trips: counter(&self.recorder, BREAKER_TRIPS, Vec::new()),
        }
    }

    /// Made only where TLS is on: an expiry of 0 would look like a certificate that has ended.
    #[must_use]
    pub fn tls(&self) -> TlsMetrics {
        let reloads = |result| {
            let counter = counter(&self.recorder, TLS_RELOADS, owned(&[("result", result)]));
            counter.increment(0);
            counter
        };
        TlsMetrics {
            expiry: gauge(&self.recorder, TLS_EXPIRY, Vec::new()),
            applied: reloads("applied"),
            failed: reloads("failed"),
        }
    }

    /// The connections of one door.
    #[must_use]
    pub fn door(&self, door: &'static str) -> DoorMetrics {
        let closed =
            |why: Closed| counter(&self.recorder, CONNECTIONS_CLOSED, owned(&[("door", door), ("reason", why.name())]));
        DoorMetrics {
            open: gauge(&self.recorder, CONNECTIONS, owned(&[("door", door)])),
            closed: Closed::ALL.map(closed),
        }
    }

    /// The calls of one gRPC method.
    #[must_use]
    pub fn method(&self, method: &'static str) -> MethodMetrics {
        let labels = || owned(&[("grpc_method", method)]);
        MethodMetrics {
            total_requests: counter(&self.recorder, TOTAL_REQUESTS, labels()),
            response_time: self.histograms.get(RESPONSE_TIME, &labels()),
        }
    }

    /// The series of a rule. The same ones for the same rule, whenever it was loaded.
    #[must_use]
    pub fn rule(&self, rule: &Rule) -> Arc<RuleMetrics> {
        let path: Vec<&str> = rule.path.iter().map(|part| &**part).collect();
        self.label_set(&rule.domain, &path, rule.name.as_deref())
    }

    /// Where the series of a rule are kept whose labels hold values of requests. The same for the same rule, whenever it was
    /// loaded.
    #[must_use]
    pub fn by_value(&self, rule: &Rule) -> Arc<BoundedSeries> {
        self.series.by_value(rule)
    }

    /// The series of a rule whose labels hold values of requests.
    #[must_use]
    pub fn rule_by_value(&self, rule: &Rule, series: &BoundedSeries, labels: &[Box<str>]) -> Arc<RuleMetrics> {
        series.get(labels, |labels| self.label_set(&rule.domain, labels, rule.name.as_deref()))
    }

    /// The series of a limit that is no rule's: it came with a request, or is the built-in default. Any domain can come here,
    /// so that it is one of the values that are bounded.
    #[must_use]
    pub fn override_of(&self, domain: &str, labels: impl IntoIterator<Item = Box<str>>) -> Arc<RuleMetrics> {
        let labels: Vec<Box<str>> = std::iter::once(domain.into()).chain(labels).collect();
        self.series.overrides.get(&labels, |labels| self.label_set(labels[0], &labels[1..], None))
    }

    fn label_set(&self, domain: &str, path: &[&str], name: Option<&str>) -> Arc<RuleMetrics> {
        self.series.label_set(domain, path, name, |domain, path, name| self.make(domain, path, name))
    }

    fn make(&self, domain: &str, path: &[&str], name: Option<&str>) -> RuleMetrics {
        let mut labels = vec![Label::new("domain", domain.to_owned())];
        labels
            .extend(path.iter().enumerate().map(|(at, part)| Label::new(format!("key{}", at + 1), (*part).to_owned())));
        let name = name.map_or_else(|| path.join("."), str::to_owned);
        let by_rule = vec![Label::new("domain", domain.to_owned()), Label::new("rule", name)];
        let of = |family| counter(&self.recorder, family, labels.clone());
        let decisions = |result| {
            let labels = by_rule.iter().cloned().chain([Label::new("result", result)]);
            counter(&self.recorder, DECISIONS, labels.collect())
        };
        RuleMetrics {
            total_hits: of(TOTAL_HITS),
            over_limit: of(OVER_LIMIT),
            near_limit: of(NEAR_LIMIT),
            within_limit: of(WITHIN_LIMIT),
            shadow_mode: of(SHADOW_MODE),
            over_limit_local: of(OVER_LIMIT_LOCAL),
            negative_hits: of(NEGATIVE_HITS),
            allowed: decisions("allowed"),
            refused: decisions("refused"),
            hits: counter(&self.recorder, HITS, by_rule.clone()),
        }
    }
}

fn owned(labels: &[(&'static str, &'static str)]) -> Vec<Label> {
    labels.iter().map(|(name, value)| Label::from_static_parts(name, value)).collect()
}

const ABOUT: Metadata<'static> = Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

fn counter(recorder: &PrometheusRecorder, family: Family, labels: Vec<Label>) -> Counter {
    recorder.register_counter(&Key::from_parts(family.name, labels), &ABOUT)
}

fn gauge(recorder: &PrometheusRecorder, family: Family, labels: Vec<Label>) -> Gauge {
    recorder.register_gauge(&Key::from_parts(family.name, labels), &ABOUT)
}

/// All histograms, in the order of their making.
#[derive(Debug, Default)]
struct Histograms(Mutex<Vec<(Family, Arc<Buckets>)>>);

impl Histograms {
    /// The same one for the same labels.
    fn get(&self, family: Family, labels: &[Label]) -> Histogram {
        let made = Buckets::new(labels);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.iter().find(|(its, buckets)| its.name == family.name && buckets.labels == made.labels);
        let buckets = known.map_or_else(|| Arc::new(made), |(_, buckets)| buckets.clone());
        if !all.iter().any(|(_, other)| Arc::ptr_eq(other, &buckets)) {
            all.push((family, buckets.clone()));
        }
        Histogram::from_arc(buckets)
    }

    fn render(&self, out: &mut String) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for family in FAMILIES.iter().filter(|family| family.kind == Kind::Histogram) {
            let mut series = all.iter().filter(|(its, _)| its.name == family.name).peekable();
            if series.peek().is_some() {
                *out += &format!("# HELP {0} {1}\n# TYPE {0} histogram\n", family.name, family.help);
                series.for_each(|(_, buckets)| buckets.render(*family, out));
                out.push('\n');
            }
        }
    }
}

#[derive(Clone, Debug)]
pub struct MethodMetrics {
    pub total_requests: Counter,
    pub response_time: Histogram,
}

impl MethodMetrics {
    pub fn record(&self, took: Duration) {
        self.total_requests.increment(1);
        self.response_time.record(took);
    }
}

/// The connections of a door.
#[derive(Clone, Debug)]
pub struct DoorMetrics {
    open: Gauge,
    closed: [Counter; Closed::ALL.len()],
}

impl DoorMetrics {
    pub fn entered(&self) {
        self.open.increment(1.0);
    }

    pub fn left(&self) {
        self.open.decrement(1.0);
    }

    /// By its place in [`Closed::ALL`].
    pub fn closed(&self, why: usize) {
        self.closed[why].increment(1);
    }
}

/// The certificate of the gRPC door.
#[derive(Clone, Debug)]
pub struct TlsMetrics {
    expiry: Gauge,
    pub applied: Counter,
    pub failed: Counter,
}

impl TlsMetrics {
    #[expect(clippy::cast_precision_loss, reason = "gauges are floats")]
    pub fn set_expiry(&self, not_after_s: u64) {
        self.expiry.set(not_after_s as f64);
    }
}

#[derive(Clone, Debug)]
pub struct RuleMetrics {
    pub total_hits: Counter,
    pub over_limit: Counter,
    pub near_limit: Counter,
    pub within_limit: Counter,
    pub shadow_mode: Counter,
    pub over_limit_local: Counter,
    pub negative_hits: Counter,
    pub allowed: Counter,
    pub refused: Counter,
    pub hits: Counter,
}
