//! Traces over OTLP: one span for each call, one below it for the store, the parent from `traceparent`.
//!
//! Off, nothing of this exists: a door without a [`Tracer`] makes no span. On, spans are handed to a queue of bounded length
//! and are sent in the background; what does not fit is dropped, and no call ever waits. Knows no rules.

use std::{borrow::Cow, fmt, time::Duration};

use anyhow::anyhow;
use http::HeaderMap;
use opentelemetry::{
    Context, KeyValue,
    propagation::{Extractor, TextMapPropagator as _},
    trace::{Span as _, SpanKind, Status, TraceContextExt as _, Tracer as _, TracerProvider as _},
};
use opentelemetry_otlp::{SpanExporter, WithHttpConfig as _, WithTonicConfig as _};
use opentelemetry_sdk::{
    Resource,
    propagation::TraceContextPropagator,
    trace::{Sampler, SdkTracer, SdkTracerProvider, Span},
};
use tonic::transport::ClientTlsConfig;

use super::otlp_http::OtlpHttp;

/// How spans are sent, and under which name. Where to is read from `OTEL_EXPORTER_OTLP_*` by the exporter itself.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceSettings {
    pub protocol: Protocol,
    pub service_name: String,
    pub service_namespace: String,
    pub service_instance_id: String,
    /// The share of calls without a parent that are traced. A parent's choice is kept.
    pub sampling_rate: f64,
    /// The most that sending a batch may take.
    pub timeout: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Protobuf over HTTP/1.1.
    Http,
    Grpc,
}

/// Makes spans.
pub struct Tracer {
    provider: SdkTracerProvider,
    spans: SdkTracer,
    propagator: TraceContextPropagator,
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracer").finish_non_exhaustive()
    }
}

impl Tracer {
    /// To be called on the runtime that is to send the spans. Does not wait for the collector.
    pub fn start(settings: &TraceSettings) -> anyhow::Result<Self> {
        let exporter = match settings.protocol {
            Protocol::Http => {
                SpanExporter::builder().with_http().with_http_client(OtlpHttp::new(settings.timeout)).build()
            }
            Protocol::Grpc => {
                let tls = ClientTlsConfig::new().with_webpki_roots();
                SpanExporter::builder().with_tonic().with_tls_config(tls).build()
            }
        };
        // What the exporter says repeats the address, which may hold a password.
        let exporter = exporter.map_err(|_| {
            anyhow!(
                "cannot send traces: OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT, which is not shown, or one of \
                 their kin cannot be used: set it to an address such as http://collector:4318"
            )
        })?;
        let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(settings.sampling_rate)));
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_sampler(sampler)
            .with_resource(resource(settings))
            .build();
        Ok(Self::of(provider))
    }

    fn of(provider: SdkTracerProvider) -> Self {
        let spans = provider.tracer("sluice");
        Self { provider, spans, propagator: TraceContextPropagator::new() }
    }

    /// Begins the span of a call. Its parent is what the headers say.
    #[must_use]
    pub fn call(&self, service: &'static str, method: &'static str, headers: &HeaderMap) -> CallSpan {
        let parent = self.propagator.extract_with_context(&Context::new(), &Headers(headers));
        let attributes = [
            KeyValue::new("rpc.system", "grpc"),
            KeyValue::new("rpc.service", service),
            KeyValue::new("rpc.method", method),
        ];
        let span = self
            .spans
            .span_builder(format!("{service}/{method}"))
            .with_kind(SpanKind::Server)
            .with_attributes(attributes)
            .start_with_context(&self.spans, &parent);
        CallSpan { spans: self.spans.clone(), context: Context::new().with_span(span) }
    }

    /// Sends what is still queued. Blocks for `patience` at most.
    pub fn shutdown(&self, patience: Duration) -> Result<(), String> {
        self.provider.shutdown_with_timeout(patience).map_err(|error| error.to_string())
    }
}

fn resource(settings: &TraceSettings) -> Resource {
    let named = [
        ("service.name", &settings.service_name),
        ("service.namespace", &settings.service_namespace),
        ("service.instance.id", &settings.service_instance_id),
    ];
    let named = named.into_iter().filter(|(_, value)| !value.is_empty());
    let attributes = named.map(|(name, value)| KeyValue::new(name, value.clone()));
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    Resource::builder().with_attributes(attributes.chain([version])).build()
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent", "tracestate"]
    }
}

/// The span of one call. Ends when it is dropped, at the latest.
pub struct CallSpan {
    spans: SdkTracer,
    context: Context,
}

impl fmt::Debug for CallSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallSpan").finish_non_exhaustive()
    }
}

impl CallSpan {
    /// What was asked.
    pub fn asked(&self, domain: &str, descriptors: usize) {
        let descriptors = i64::try_from(descriptors).unwrap_or(i64::MAX);
        self.put(KeyValue::new("ratelimit.domain", domain.to_owned()));
        self.put(KeyValue::new("ratelimit.descriptors", descriptors));
    }

    /// What was answered.
    pub fn answered(&self, verdict: &'static str, degraded: bool) {
        self.put(KeyValue::new("ratelimit.verdict", verdict));
        if degraded {
            self.put(KeyValue::new("ratelimit.degraded", true));
        }
    }

    /// There is no answer.
    pub fn failed(&self, reason: impl Into<Cow<'static, str>>) {
        self.context.span().set_status(Status::error(reason));
    }

    /// Begins the span of the store's part.
    #[must_use]
    pub fn store(&self, store: &'static str, checks: usize) -> StoreSpan {
        let checks = i64::try_from(checks).unwrap_or(i64::MAX);
        let attributes = [KeyValue::new("db.system", store), KeyValue::new("ratelimit.checks", checks)];
        let span = self.spans.span_builder("store.decide").with_kind(SpanKind::Client).with_attributes(attributes);
        StoreSpan(span.start_with_context(&self.spans, &self.context))
    }

    fn put(&self, attribute: KeyValue) {
        self.context.span().set_attribute(attribute);
    }
}

/// The span of one question to the store.
pub struct StoreSpan(Span);

impl StoreSpan {
    /// `failure` is why some check has no decision.
    pub fn end(mut self, failure: Option<&'static str>) {
        if let Some(failure) = failure {
            self.0.set_status(Status::error(failure));
        }
        self.0.end();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use opentelemetry::trace::{SpanId, TraceId};
    use opentelemetry_sdk::{error::OTelSdkResult, trace::SpanData};

    use super::*;

    /// Keeps what it is given.
    #[derive(Clone, Debug, Default)]
    struct Kept(Arc<Mutex<Vec<SpanData>>>);

    impl opentelemetry_sdk::trace::SpanExporter for Kept {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            self.0.lock().unwrap().extend(batch);
            Ok(())
        }
    }

    fn traced(sampling_rate: f64, traceparent: Option<&str>) -> Vec<SpanData> {
        let kept = Kept::default();
        let provider = SdkTracerProvider::builder()
            .with_simple_exporter(kept.clone())
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(sampling_rate))))
            .build();
        let tracer = Tracer::of(provider);
        let mut headers = HeaderMap::new();
        if let Some(traceparent) = traceparent {
            headers.insert("traceparent", traceparent.parse().unwrap());
        }
        let call = tracer.call("service", "method", &headers);
        call.asked("edge", 2);
        call.store("memory", 3).end(Some("timeout"));
        call.answered("OK", true);
        drop(call);
        std::mem::take(&mut *kept.0.lock().unwrap())
    }

    #[test]
    fn a_call_is_a_child_of_its_caller_and_the_store_is_a_child_of_the_call() {
        let spans = traced(0.0, Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"));
        let [store, call] = &spans[..] else { panic!("{spans:?}") };
        let trace = TraceId::from_hex("0af7651916cd43dd8448eb211c80319c").unwrap();
        assert_eq!((call.span_context.trace_id(), store.span_context.trace_id()), (trace, trace));
        assert_eq!(call.parent_span_id, SpanId::from_hex("b7ad6b7169203331").unwrap());
        assert_eq!(store.parent_span_id, call.span_context.span_id());
        assert_eq!(call.name, "service/method");
        assert_eq!(store.status, Status::error("timeout"));
        let attributes: Vec<String> = call.attributes.iter().map(|a| format!("{}={}", a.key, a.value)).collect();
        for attribute in
            ["ratelimit.domain=edge", "ratelimit.descriptors=2", "ratelimit.verdict=OK", "ratelimit.degraded=true"]
        {
            assert!(attributes.iter().any(|known| known == attribute), "{attribute} is not in {attributes:?}");
        }
    }

    #[test]
    fn a_caller_that_does_not_trace_is_not_traced_and_one_without_a_trace_is_by_the_rate() {
        let unsampled = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00");
        assert_eq!(traced(1.0, unsampled).len(), 0);
        assert_eq!(traced(1.0, None).len(), 2);
        assert_eq!(traced(0.0, None).len(), 0);
        assert_eq!(traced(1.0, Some("nonsense")).len(), 2);
    }
}
