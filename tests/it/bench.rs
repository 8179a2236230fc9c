//! `sluice bench`, against a server of ours and against things that are none.

use std::{net::TcpListener, process::Output, thread};

use serde_json::Value;
use sluice::grpc::proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
    rate_limit_response::Code,
    rate_limit_service_server::{RateLimitService, RateLimitServiceServer},
};
use tonic::{Request, Response, Status, transport::server::TcpIncoming};

use crate::harness::{Server, sluice};

const RULES: &str = "
domain: edge
descriptors:
  - {key: free, rate_limit: {unit: hour, requests_per_unit: 1000000}}
  - {key: scarce, rate_limit: {unit: year, requests_per_unit: 3}}
";

fn bench(target: &str, arguments: &[&str]) -> Output {
    let mut command = sluice();
    command.args(["bench", "--target", target, "--domain", "edge"]).args(arguments);
    command.output().expect("sluice starts")
}

#[track_caller]
fn report(target: &str, arguments: &[&str]) -> (Value, Option<i32>) {
    let output = bench(target, &[arguments, &["--format", "json"]].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    (serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in: {text}{errors}")), output.status.code())
}

/// What it says on the error output, which must be one sentence.
#[track_caller]
fn complaint(target: &str, arguments: &[&str]) -> String {
    let output = bench(target, arguments);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

#[test]
fn every_call_is_counted_here_and_there() {
    let server = Server::start(RULES);
    let shape = ["--connections", "3", "--streams", "4", "--requests", "500"];
    let (report, code) = report(server.grpc(), &[&["--descriptor", "free=a"], &shape[..]].concat());
    assert_eq!(code, Some(0));
    assert_eq!((report["requests"].as_u64(), report["answers"].as_u64()), (Some(500), Some(500)));
    assert_eq!((report["codes"]["ok"].as_u64(), report["errors"].as_u64()), (Some(500), Some(0)));
    assert!(report["latency_us"]["p50"].as_f64() <= report["latency_us"]["max"].as_f64());
    assert!(report["latency_us"]["p50"].as_f64() > Some(0.0));
    let counted = server.metric(r#"ratelimit_service_rate_limit_total_hits{domain="edge",key1="free"}"#);
    assert!((counted - 500.0).abs() < 0.5, "the server counted {counted}");
}

#[test]
fn an_open_loop_sends_as_many_as_asked_for() {
    let server = Server::start(RULES);
    let shape = ["--rate", "1000", "--connections", "2", "--requests", "200"];
    let (report, code) = report(server.grpc(), &[&["--descriptor", "free=a"], &shape[..]].concat());
    assert_eq!((code, report["codes"]["ok"].as_u64()), (Some(0), Some(200)));
    assert!(report["duration_s"].as_f64() >= Some(0.15), "200 calls at 1000/s take a fifth of a second: {report:#}");
}

#[test]
fn what_is_over_the_limit_is_told_apart() {
    let server = Server::start(RULES);
    let (report, code) = report(server.grpc(), &["--descriptor", "scarce=a", "--requests", "10", "--connections", "1"]);
    assert_eq!(code, Some(0));
    assert_eq!((report["codes"]["ok"].as_u64(), report["codes"]["over_limit"].as_u64()), (Some(3), Some(7)));
}

#[test]
fn answers_of_a_failure_policy_are_told_apart() {
    // Nobody listens there.
    let server = Server::builder().file("rules.yaml", RULES).env("REDIS_URL", "127.0.0.1:1").start();
    let (report, code) = report(server.grpc(), &["--descriptor", "free=a", "--requests", "20", "--connections", "1"]);
    assert_eq!((code, report["codes"]["ok"].as_u64(), report["degraded"].as_u64()), (Some(0), Some(20), Some(20)));
    let text = bench(server.grpc(), &["--descriptor", "free=a", "--requests", "20", "--connections", "1"]);
    assert!(String::from_utf8_lossy(&text.stdout).contains("20 of them by a failure policy"), "{text:?}");
}

/// A server that answers as limitador's does: the whole, and nothing of the descriptors.
struct Terse;

#[tonic::async_trait]
impl RateLimitService for Terse {
    async fn should_rate_limit(&self, _: Request<RateLimitRequest>) -> Result<Response<RateLimitResponse>, Status> {
        Ok(Response::new(RateLimitResponse { overall_code: Code::OverLimit.into(), ..RateLimitResponse::default() }))
    }
}

#[test]
fn a_server_that_tells_nothing_of_descriptors_is_measured_too() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let incoming = {
        let _entered = runtime.enter();
        TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap()
    };
    let address = incoming.local_addr().unwrap().to_string();
    let service = RateLimitServiceServer::new(Terse);
    runtime.spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
    let arguments = ["--descriptor", "free=a", "--requests", "20", "--connections", "1"];
    let (report, code) = report(&address, &arguments);
    assert_eq!((code, report["codes"]["over_limit"].as_u64(), report["errors"].as_u64()), (Some(0), Some(20), Some(0)));
    assert_eq!(report["without_statuses"].as_u64(), Some(20));
}

#[test]
fn an_unexpected_code_is_an_error() {
    let server = Server::start(RULES);
    let arguments = ["--descriptor", "scarce=a", "--requests", "10", "--expect", "over"];
    let (report, code) = report(server.grpc(), &arguments);
    assert_eq!((code, report["errors"].as_u64()), (Some(1), Some(3)));
    assert_eq!(report["errors_by_kind"]["unexpected code OK"].as_u64(), Some(3));
}

#[test]
fn keys_have_counters_of_their_own() {
    let server = Server::start(RULES);
    let arguments = ["--descriptor", "scarce=u{N}", "--keys", "1000", "--requests", "60", "--connections", "1"];
    let (report, _) = report(server.grpc(), &arguments);
    assert!(report["codes"]["ok"].as_u64() > Some(3), "all keys share one counter: {report:#}");
}

#[test]
fn errors_of_the_server_are_counted_by_kind() {
    // Until there are rules, every call is answered with an error.
    let server = Server::builder()
        .env("RATE_LIMIT_CONFIG", "/nowhere/to/be/found")
        .env("FORCE_START_WITHOUT_INITIAL_CONFIG", "true")
        .start();
    let (report, code) = report(server.grpc(), &["--descriptor", "free=a", "--requests", "5"]);
    assert_eq!((code, report["answers"].as_u64(), report["errors"].as_u64()), (Some(1), Some(0), Some(5)));
    assert_eq!(report["errors_by_kind"]["grpc status 14 UNAVAILABLE"].as_u64(), Some(5), "{report:#}");
}

#[test]
fn a_report_for_people_has_the_same_in_it() {
    let server = Server::start(RULES);
    let output = bench(server.grpc(), &["--descriptor", "free=a", "--requests", "20"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for part in ["answers    20 in", "codes      OK 20, OVER_LIMIT 0", "errors     0", "p99.99"] {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
}

#[test]
fn a_closed_port_is_told_in_one_sentence() {
    let free = format!("127.0.0.1:{}", crate::servers::free_port());
    let complaint = complaint(&free, &["--descriptor", "a=b"]);
    assert!(complaint.starts_with(&format!("sluice: cannot connect to {free}: ")), "{complaint}");
}

#[test]
fn a_server_of_something_else_is_told_in_one_sentence() {
    let server = Server::start(RULES);
    let complaint = complaint(server.http(), &["--descriptor", "a=b"]);
    assert!(complaint.contains("does not speak gRPC"), "{complaint}");
}

#[test]
fn a_server_that_hangs_up_is_told_in_one_sentence() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || listener.incoming().for_each(drop));
    let complaint = complaint(&address, &["--descriptor", "a=b"]);
    assert!(complaint.contains("does not speak gRPC"), "{complaint}");
}

#[test]
fn keys_without_a_place_are_told_in_one_sentence() {
    let complaint = complaint("127.0.0.1:1", &["--descriptor", "a=b", "--keys", "5"]);
    assert!(complaint.contains("write {N} into a value"), "{complaint}");
}
