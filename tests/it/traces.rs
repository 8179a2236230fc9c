//! Traces over OTLP, seen by a collector of the test's own: over gRPC and over HTTP, with the caller's trace, flushed at the end.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpListener,
    sync::{Arc, Mutex},
    thread,
};

use flate2::read::GzDecoder;
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{AnyValue, KeyValue, any_value},
    trace::v1::Span,
};
use prost::Message as _;
use tokio::net::TcpListener as AsyncListener;
use tonic::{Request, Response, Status, codec::CompressionEncoding};

use crate::harness::{
    Server,
    grpc::{RateLimitServiceClient, connect, request, wait},
    server::Builder,
};

const RULES: &str = "domain: d\ndescriptors: [{key: ip, rate_limit: {unit: year, requests_per_unit: 1}}]";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// What came in.
#[derive(Clone, Default)]
pub struct Collected(Arc<Mutex<Vec<ExportTraceServiceRequest>>>);

impl Collected {
    fn add(&self, request: ExportTraceServiceRequest) {
        self.0.lock().unwrap().push(request);
    }

    pub fn spans(&self) -> Vec<Span> {
        let requests = self.0.lock().unwrap();
        let resources = requests.iter().flat_map(|request| &request.resource_spans);
        resources.flat_map(|resource| &resource.scope_spans).flat_map(|scope| scope.spans.clone()).collect()
    }

    /// The attributes of the resource, which says who sent it.
    fn resource(&self) -> Vec<KeyValue> {
        let requests = self.0.lock().unwrap();
        requests[0].resource_spans[0].resource.clone().expect("is there").attributes
    }
}

#[tonic::async_trait]
impl TraceService for Collected {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.add(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// A collector over gRPC, with its address.
pub fn grpc_collector() -> (Collected, String) {
    let collected = Collected::default();
    let service = TraceServiceServer::new(collected.clone()).accept_compressed(CompressionEncoding::Gzip);
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    listener.set_nonblocking(true).expect("can be set");
    let address = format!("http://{}", listener.local_addr().expect("is bound"));
    thread::spawn(move || {
        wait(async {
            let listener = AsyncListener::from_std(listener).expect("is a listener");
            let incoming = tonic::transport::server::TcpIncoming::from(listener);
            let _ = tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming).await;
        });
    });
    (collected, address)
}

/// A collector over HTTP, with its address. The paths that were posted to are noted, too.
pub fn http_collector() -> (Collected, String, Arc<Mutex<Vec<String>>>) {
    let (collected, heads) = (Collected::default(), Arc::new(Mutex::new(Vec::new())));
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let address = format!("http://{}", listener.local_addr().expect("is bound"));
    thread::spawn({
        let (collected, heads) = (collected.clone(), heads.clone());
        move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut reader = BufReader::new(stream);
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).is_ok_and(|read| read > 0) {}
                let lower = head.to_ascii_lowercase();
                let length = lower.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
                let mut body = vec![0; length.unwrap_or(0)];
                reader.read_exact(&mut body).expect("the body comes");
                if lower.contains("content-encoding: gzip") {
                    let mut plain = Vec::new();
                    GzDecoder::new(&*body).read_to_end(&mut plain).expect("is gzip");
                    body = plain;
                }
                heads.lock().unwrap().push(lower);
                collected.add(ExportTraceServiceRequest::decode(&*body).expect("is a request"));
                reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").expect("is read");
            }
        }
    });
    (collected, address, heads)
}

fn traced() -> Builder {
    Server::builder().file("rules.yaml", RULES).env("TRACING_ENABLED", "true")
}

/// Asks twice, as a caller whose trace is sampled or not, and ends the server, which flushes.
fn ask_and_stop(server: Server, flags: &str) {
    wait(async {
        let mut client = RateLimitServiceClient::new(connect(server.grpc()).await);
        for _ in 0..2 {
            let mut asked = Request::new(request("d", &[("ip", "1")]));
            let traceparent = format!("00-{TRACE}-{PARENT}-{flags}");
            asked.metadata_mut().insert("traceparent", traceparent.parse().expect("is ASCII"));
            client.should_rate_limit(asked).await.expect("is answered");
        }
    });
    let (status, log) = server.stop();
    assert!(status.success(), "{log:?}");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attribute(attributes: &[KeyValue], key: &str) -> String {
    let value = attributes.iter().find(|attribute| attribute.key == key).and_then(|attribute| attribute.value.clone());
    match value {
        Some(AnyValue { value: Some(any_value::Value::StringValue(text)) }) => text,
        Some(AnyValue { value: Some(any_value::Value::IntValue(number)) }) => number.to_string(),
        other => panic!("{key} is {other:?}"),
    }
}

/// Two calls and the store's part of each.
fn spans_are_of_both_calls(spans: &[Span]) {
    let calls: Vec<&Span> = spans.iter().filter(|span| span.name.ends_with("/ShouldRateLimit")).collect();
    let stores: Vec<&Span> = spans.iter().filter(|span| span.name == "store.decide").collect();
    assert_eq!((calls.len(), stores.len()), (2, 2), "{spans:?}");
    assert!(spans.iter().all(|span| hex(&span.trace_id) == TRACE), "{spans:?}");
    assert!(calls.iter().all(|span| hex(&span.parent_span_id) == PARENT), "{spans:?}");
    assert!(stores.iter().all(|store| calls.iter().any(|call| call.span_id == store.parent_span_id)), "{spans:?}");
    let verdicts: Vec<String> = calls.iter().map(|span| attribute(&span.attributes, "ratelimit.verdict")).collect();
    assert_eq!(verdicts, ["OK", "OVER_LIMIT"]);
    assert_eq!(attribute(&calls[0].attributes, "ratelimit.domain"), "d");
    assert_eq!(attribute(&calls[0].attributes, "ratelimit.descriptors"), "1");
}

#[test]
fn a_grpc_collector_sees_the_spans_in_the_trace_of_the_caller_flushed_at_the_end() {
    let (collected, address) = grpc_collector();
    let server = traced()
        .env("TRACING_EXPORTER_PROTOCOL", "grpc")
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &address)
        .env("TRACING_SERVICE_NAMESPACE", "edge")
        .env("TRACING_SERVICE_INSTANCE_ID", "one")
        // The parent is traced, so that this does not matter.
        .env("TRACING_SAMPLING_RATE", "0")
        .start();
    ask_and_stop(server, "01");
    spans_are_of_both_calls(&collected.spans());
    let resource = collected.resource();
    assert_eq!(attribute(&resource, "service.name"), "RateLimit");
    assert_eq!(attribute(&resource, "service.namespace"), "edge");
    assert_eq!(attribute(&resource, "service.instance.id"), "one");
}

#[test]
fn an_http_collector_sees_the_same() {
    let (collected, address, heads) = http_collector();
    let server = traced()
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &address)
        .env("OTEL_EXPORTER_OTLP_HEADERS", "x-token=secret")
        .env("TRACING_SERVICE_NAME", "ours")
        .start();
    ask_and_stop(server, "01");
    spans_are_of_both_calls(&collected.spans());
    assert_eq!(attribute(&collected.resource(), "service.name"), "ours");
    let heads = heads.lock().unwrap();
    assert!(heads[0].starts_with("post /v1/traces http/1.1") && heads[0].contains("x-token: secret"), "{heads:?}");
}

#[test]
fn spans_are_compressed_where_that_is_asked_for() {
    let (collected, address) = grpc_collector();
    let gzip = || traced().env("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip");
    let over_grpc = gzip().env("TRACING_EXPORTER_PROTOCOL", "grpc").env("OTEL_EXPORTER_OTLP_ENDPOINT", &address);
    ask_and_stop(over_grpc.start(), "01");
    spans_are_of_both_calls(&collected.spans());
    let (collected, address, heads) = http_collector();
    ask_and_stop(gzip().env("OTEL_EXPORTER_OTLP_ENDPOINT", &address).start(), "01");
    spans_are_of_both_calls(&collected.spans());
    assert!(heads.lock().unwrap()[0].contains("content-encoding: gzip"));
}

#[test]
fn a_caller_that_does_not_trace_is_not_traced() {
    let (collected, address, _) = http_collector();
    ask_and_stop(traced().env("OTEL_EXPORTER_OTLP_ENDPOINT", &address).start(), "00");
    assert_eq!(collected.spans(), []);
}

#[test]
fn nothing_is_sent_unless_tracing_is_on() {
    let (collected, address, _) = http_collector();
    let server = Server::builder().file("rules.yaml", RULES).env("OTEL_EXPORTER_OTLP_ENDPOINT", &address).start();
    ask_and_stop(server, "01");
    assert_eq!(collected.spans(), []);
}

#[test]
fn a_collector_that_is_not_there_or_never_answers_costs_no_answer_and_does_not_keep_it_from_stopping() {
    // Connections to it are open, but nobody takes them up.
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let silent = format!("http://{}", listener.local_addr().expect("is bound"));
    for (protocol, address) in
        [("http", "http://127.0.0.1:1"), ("grpc", "http://127.0.0.1:1"), ("http", &*silent), ("grpc", &*silent)]
    {
        let server = traced()
            .env("TRACING_EXPORTER_PROTOCOL", protocol)
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", address)
            .env("DRAIN_TIMEOUT", "1s")
            .start();
        ask_and_stop(server, "01");
    }
}

#[test]
fn an_endpoint_that_cannot_be_is_told_at_the_start() {
    let mut server = traced().env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://[nonsense").spawn();
    assert!(!server.wait_for_exit().success());
    server.wait_for_line(&["OTEL_EXPORTER_OTLP_ENDPOINT"]);
}
