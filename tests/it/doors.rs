//! Every door: gRPC with health and reflection, `/json`, health over HTTP, metrics, the debug port.

use std::net::TcpStream;

use prost::Message as _;
use serde_json::{Value, json};
use tonic_health::pb::health_check_response::ServingStatus;

use crate::harness::{
    Server,
    grpc::{self, Code, Override, request},
    http, wait_until,
};

const RULES: &str = r#"
domain: d
descriptors:
  - {key: ip, rate_limit: {unit: hour, requests_per_unit: 2, name: per_ip}}
  - {key: shadow, value: x, rate_limit: {unit: day, requests_per_unit: 3}, shadow_mode: true}
  - {key: quota, rate_limit: {unit: week, requests_per_unit: 4}, quota_mode: true}
  - {key: boundless, rate_limit: {unlimited: true}}
  - key: outer
    descriptors:
      - {key: inner, value: "a*", rate_limit: {unit: year, requests_per_unit: 5}}
"#;

const ASK: &str = r#"{"domain": "d", "descriptors": [{"entries": [{"key": "ip", "value": "1"}]}]}"#;

#[track_caller]
fn assert_invalid(server: &Server, request: grpc::Request, field: &str) {
    let status = server.ask(request).expect_err("the request is malformed");
    assert_eq!(status.code(), tonic::Code::InvalidArgument, "{status:?}");
    assert!(status.message().contains(field), "{field} is not named in {:?}", status.message());
}

#[test]
fn malformed_grpc_requests_are_turned_away_with_the_field_named() {
    let server = Server::start(RULES);
    assert_invalid(&server, request("", &[("ip", "1")]), "domain");
    let mut nothing = request("d", &[]);
    nothing.descriptors.clear();
    assert_invalid(&server, nothing, "descriptors");
    for unit in [0, 7, 99, -1] {
        let mut asked = request("d", &[("ip", "1")]);
        asked.descriptors[0].limit = Some(Override { requests_per_unit: 1, unit, unit_multiplier: None });
        assert_invalid(&server, asked, "unit");
    }
    // None of them has harmed the server or counted anything.
    let answer = server.ask(request("d", &[("ip", "1")])).expect("is answered");
    assert_eq!(answer.statuses[0].limit_remaining, 1);
}

#[test]
fn a_message_that_cannot_be_read_is_the_callers_fault() {
    let server = Server::start(RULES);
    let utf8 = request("d", &[("ip", "text")]).encode_to_vec();
    let mut not_utf8 = utf8.clone();
    let place = utf8.windows(4).position(|bytes| bytes == b"text").expect("is in there");
    not_utf8[place..place + 4].copy_from_slice(b"\xff\xfe\xc0\xaf");
    let cut_off = &utf8[..utf8.len() - 1];
    for message in [&not_utf8, cut_off, b"\xff\xff\xff\xff", b"not protobuf at all"] {
        let status = grpc::ask_bytes(server.grpc(), message).expect_err("cannot be read");
        assert_eq!(status.code(), tonic::Code::InvalidArgument, "{status:?}");
    }
    grpc::ask_bytes(server.grpc(), &utf8).expect("can be read");
}

#[test]
fn an_answer_over_grpc_has_all_that_envoy_reads() {
    let server = Server::start(RULES);
    let answer = server.ask(request("d", &[("ip", "1")])).expect("is answered");
    assert_eq!(answer.overall_code, i32::from(Code::Ok));
    let limit = answer.statuses[0].current_limit.clone().expect("there is a limit");
    assert_eq!((limit.requests_per_unit, limit.unit().as_str_name(), &*limit.name), (2, "HOUR", "per_ip"));
    assert_eq!(limit.unit_multiplier, None);
    assert_eq!(answer.response_headers_to_add.len(), 0, "headers are off unless asked for");
    assert_eq!(answer.dynamic_metadata, None, "metadata is off unless asked for");
    assert_eq!(answer.quota, None);
}

#[test]
fn grpc_health_does_not_know_other_names() {
    let server = Server::start(RULES);
    let status = grpc::health(server.grpc(), "nobody").expect_err("nobody is no service");
    assert_eq!(status.code(), tonic::Code::NotFound);
}

#[test]
fn grpc_health_knows_the_names_that_callers_use() {
    let server = Server::start(RULES);
    for service in ["", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService", "ratelimiter.v1.RateLimiterService"]
    {
        assert_eq!(grpc::health(server.grpc(), service).expect("is known"), ServingStatus::Serving, "{service:?}");
    }
}

#[test]
fn reflection_lists_the_services() {
    let server = Server::start(RULES);
    let services = grpc::reflected_services(server.grpc());
    for service in
        ["envoy.service.ratelimit.v3.RateLimitService", "ratelimiter.v1.RateLimiterService", "grpc.health.v1.Health"]
    {
        assert!(services.iter().any(|name| name == service), "{service} is not in {services:?}");
    }
}

#[test]
fn json_answers_in_protobuf_json_with_200_and_then_429() {
    let server = Server::start(RULES);
    let first = server.post_json(ASK);
    assert_eq!((first.status, first.header("content-type")), (200, Some("application/json")));
    let mut body = first.json();
    let reset = body["statuses"][0]["durationUntilReset"].take();
    assert!(reset.as_str().is_some_and(|text| text.ends_with('s')), "{reset}");
    let status = json!({
        "code": "OK",
        "currentLimit": {"requestsPerUnit": 2, "unit": "HOUR", "name": "per_ip"},
        "limitRemaining": 1,
        "durationUntilReset": null,
    });
    assert_eq!(body, json!({"overallCode": "OK", "statuses": [status]}));

    assert_eq!(server.post_json(ASK).status, 200);
    let refused = server.post_json(ASK);
    assert_eq!((refused.status, refused.header("content-type")), (429, Some("application/json")));
    assert_eq!(refused.json()["overallCode"], "OVER_LIMIT");
    assert_eq!(refused.json()["statuses"][0].get("limitRemaining"), None, "zero is left out");
}

#[test]
fn json_takes_camel_case_and_snake_case_numbers_and_names() {
    let server = Server::start(RULES);
    let remaining = |limit: &str, hits: &str| {
        let entries = r#""entries": [{"key": "x", "value": "1"}]"#;
        let body = format!(r#"{{"domain": "d", "descriptors": [{{{entries}, {limit}, {hits}}}]}}"#);
        let response = server.post_json(&body);
        assert_eq!(response.status, 200, "{body}: {}", response.body);
        response.json()["statuses"][0]["limitRemaining"].as_u64()
    };
    let camel = r#""limit": {"requestsPerUnit": 100, "unit": "DAY"}"#;
    let snake = r#""limit": {"requests_per_unit": 100, "unit": 4}"#;
    assert_eq!(remaining(camel, r#""hitsAddend": "10""#), Some(90));
    assert_eq!(remaining(snake, r#""hits_addend": 10"#), Some(80));
    assert_eq!(remaining(camel, r#""hits_addend": "5", "is_negative_hits": true"#), Some(85));
    assert_eq!(remaining(snake, r#""hitsAddend": 5, "isNegativeHits": true"#), Some(90));
    assert_eq!(remaining(snake, r#""hitsAddend": null"#), Some(89));
}

#[test]
fn json_does_not_mind_the_content_type() {
    let server = Server::start(RULES);
    let body = ASK.replace("\"ip\"", "\"quota\"");
    for content_type in ["application/x-www-form-urlencoded", "text/plain", "application/json; charset=utf-8"] {
        let response = http::send(server.http(), "POST", "/json", content_type, &body);
        assert_eq!(response.status, 200, "{content_type}: {}", response.body);
    }
}

#[test]
fn json_turns_away_bad_input_with_a_sentence() {
    let server = Server::start(RULES);
    let bad = [
        ("", ""),
        ("not json", ""),
        ("[]", ""),
        ("{}", "domain"),
        (r#"{"domain": "d"}"#, "descriptors"),
        (r#"{"domain": 5, "descriptors": []}"#, "domain"),
        (r#"{"domain": "d", "descriptors": [{"entries": []}], "surprise": 1}"#, "surprise"),
        (r#"{"domain": "d", "descriptors": [{"entries": [{"key": "a", "vlaue": "b"}]}]}"#, "vlaue"),
        (r#"{"domain": "d", "descriptors": [{"entries": [], "hitsAddend": -1}]}"#, "hitsAddend"),
        (r#"{"domain": "d", "descriptors": [{"entries": [], "limit": {"unit": "FORTNIGHT"}}]}"#, "unit"),
        (r#"{"domain": "d", "descriptors": [{"entries": [], "limit": {"requestsPerUnit": 1}}]}"#, "unit"),
        (r#"{"domain": "d", "descriptors": [{"entries": []}], "hitsAddend": 4294967296}"#, "hitsAddend"),
    ];
    for (body, named) in bad {
        let response = server.post_json(body);
        assert_eq!(response.status, 400, "{body}: {}", response.body);
        assert!(response.header("content-type").is_some_and(|kind| kind.starts_with("text/plain")), "{body}");
        assert!(response.body.contains(named), "{named} is not named for {body}: {}", response.body);
        assert!(response.body.split_whitespace().count() >= 3, "no sentence for {body}: {}", response.body);
    }
    assert_eq!(server.post_json(ASK).status, 200, "it still answers");
}

#[test]
fn the_health_paths_answer_ok() {
    let server = Server::start(RULES);
    let health = server.get("/healthcheck");
    assert_eq!((health.status, health.body.trim()), (200, "OK"));
    assert_eq!(server.get("/livez").status, 200);
    assert_eq!(server.get("/readyz").status, 200);
}

#[test]
fn without_a_domain_it_is_unhealthy_where_the_setting_asks_for_one() {
    let with = |rules: &str| {
        let builder =
            Server::builder().prepare(|dir| std::fs::write(dir.join("README.md"), "no rules").expect("written"));
        let builder = if rules.is_empty() { builder } else { builder.file("rules.yaml", rules) };
        builder.env("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true").start()
    };
    assert_eq!(with("").get("/healthcheck").status, 500);
    assert_eq!(with(RULES).get("/healthcheck").status, 200);
}

#[test]
fn other_paths_are_not_found() {
    let server = Server::start(RULES);
    for path in ["/", "/jso", "/json/x", "/config", "/rlconfig", "/explain"] {
        assert_eq!(server.get(path).status, 404, "{path}");
    }
}

#[test]
fn metrics_are_served_on_the_http_port() {
    let server = Server::start(RULES);
    server.post_json(ASK);
    let response = server.get("/metrics");
    assert_eq!(response.status, 200);
    assert!(response.header("content-type").is_some_and(|kind| kind.starts_with("text/plain")), "{response:?}");
    assert_eq!(server.metric(r#"ratelimit_service_rate_limit_total_hits{domain="d",key1="ip"}"#), 1.0);
}

#[test]
fn metrics_are_served_on_their_own_address_and_path_when_asked_for() {
    let server = Server::builder()
        .file("rules.yaml", RULES)
        .env("USE_PROMETHEUS", "true")
        .env("PROMETHEUS_ADDR", "127.0.0.1:0")
        .env("PROMETHEUS_PATH", "/stats/prometheus")
        .start();
    let response = http::get(server.prometheus(), "/stats/prometheus");
    assert_eq!(response.status, 200);
    assert!(response.body.contains("ratelimit_service_config_load_success"), "{}", response.body);
    assert_eq!(http::get(server.prometheus(), "/metrics").status, 404);
}

#[test]
fn rlconfig_has_the_lines_of_the_reference() {
    let server = Server::start(RULES);
    let response = server.get_debug("/rlconfig");
    let mut lines: Vec<&str> = response.body.lines().filter(|line| !line.is_empty()).collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            "d.boundless: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false",
            "d.ip: unit=HOUR requests_per_unit=2, shadow_mode: false, quota_mode: false",
            "d.outer.inner_a*: unit=YEAR requests_per_unit=5, shadow_mode: false, quota_mode: false",
            "d.quota: unit=WEEK requests_per_unit=4, shadow_mode: false, quota_mode: true",
            "d.shadow_x: unit=DAY requests_per_unit=3, shadow_mode: true, quota_mode: false",
        ]
    );
}

#[test]
fn config_tells_what_is_loaded() {
    let server = Server::start(RULES);
    let config = server.config();
    assert!(config["files"].to_string().contains("rules.yaml"), "{config}");
    assert!(config["hash"].as_str().is_some_and(|hash| hash.len() >= 16), "{config}");
    assert_eq!(config["generation"], 1, "{config}");
    assert!(config["loaded_at"].as_str().is_some_and(|at| at.starts_with("20")), "{config}");
    assert_eq!(config.get("last_error"), Some(&Value::Null), "{config}");
}

#[test]
fn the_debug_port_lists_its_paths() {
    let server = Server::start(RULES);
    let response = server.get_debug("/");
    assert_eq!(response.status, 200);
    for path in ["/rlconfig", "/config", "/explain"] {
        assert!(response.body.contains(path), "{path} is not in {}", response.body);
    }
}

#[test]
fn explain_without_a_question_says_what_it_needs() {
    let server = Server::start(RULES);
    let response = server.get_debug("/explain");
    assert_eq!(response.status, 400, "{response:?}");
    assert!(response.body.contains("domain"), "{}", response.body);
}

#[test]
fn explain_tells_the_rule_and_its_counter_and_never_charges() {
    let server = Server::start(RULES);
    for _ in 0..3 {
        let response = server.get_debug("/explain?domain=d&descriptor=ip=1&descriptor=outer=x,inner=abc");
        assert_eq!(response.status, 200, "{response:?}");
        let told = response.json().to_string();
        for part in ["per_ip", "a*", "{d}"] {
            assert!(told.contains(part), "{part} is not in {told}");
        }
        let text = server.get_debug("/explain?domain=d&descriptor=ip=1&format=text").body;
        assert!(text.contains("per_ip"), "{text}");
    }
    let answer = server.ask(request("d", &[("ip", "1")])).expect("is answered");
    assert_eq!(answer.statuses[0].limit_remaining, 1);
}

#[test]
fn a_header_value_cannot_be_broken_by_a_rule_name() {
    let rules = r#"
domain: d
descriptors:
  - {key: ip, rate_limit: {unit: day, requests_per_unit: 2, name: "a\r\nset-cookie: x=\"1\""}}
"#;
    let server = Server::builder().file("rules.yaml", rules).env("LIMIT_RESPONSE_HEADERS_ENABLED", "true").start();
    let answer = server.ask(request("d", &[("ip", "1\r\nx: y")])).expect("is answered");
    let name = &answer.statuses[0].current_limit.as_ref().expect("there is a limit").name;
    assert!(!name.contains(|c: char| c.is_control() || c == '"'), "{name:?}");
    assert!(!answer.response_headers_to_add.is_empty());
    for header in &answer.response_headers_to_add {
        assert!(!header.value.contains(char::is_control), "{header:?}");
    }
}

#[test]
fn it_stops_when_told_to_and_answers_what_it_has_begun() {
    let server = Server::start(RULES);
    assert_eq!(server.post_json(ASK).status, 200);
    let (status, log) = server.stop();
    assert!(status.success(), "{status}: {log:?}");
}

#[test]
fn idle_connections_do_not_keep_it_from_stopping() {
    let server = Server::start(RULES);
    let idle_grpc = grpc::IdleCaller::connect(server.grpc());
    let idle_http = [server.http(), server.debug()].map(|address| TcpStream::connect(address).expect("is open"));
    let (status, log) = server.stop();
    assert!(status.success(), "{status}: {log:?}");
    assert!(!log.iter().any(|line| line.contains("\"warning\"")), "it had to cut something off: {log:?}");
    drop((idle_grpc, idle_http));
}

#[test]
fn while_it_drains_it_says_so_and_still_answers() {
    let server = Server::builder().file("rules.yaml", RULES).env("DRAIN_DELAY", "1m").start();
    server.terminate();
    wait_until("it is not healthy", || server.get("/healthcheck").status == 500);
    assert_ne!(server.get("/readyz").status, 200);
    assert_eq!(server.get("/livez").status, 200);
    wait_until("gRPC health says so", || {
        matches!(grpc::health(server.grpc(), "ratelimit"), Ok(ServingStatus::NotServing))
    });
    assert_eq!(server.post_json(ASK).status, 200);
    server.ask(request("d", &[("ip", "1")])).expect("is answered");
}

#[test]
fn the_directories_of_the_reference_lead_to_the_rules() {
    let root = tempfile::tempdir().expect("there is room");
    let dir = root.path().join("sub/config");
    std::fs::create_dir_all(&dir).expect("made");
    std::fs::write(dir.join("rules.yaml"), RULES).expect("written");
    let server = Server::builder()
        .env("RATE_LIMIT_CONFIG", "")
        .env("RUNTIME_ROOT", root.path().to_str().expect("is text"))
        .env("RUNTIME_SUBDIRECTORY", "sub")
        .start();
    wait_until("the rules answer", || server.post_json(ASK).json()["statuses"][0].get("currentLimit").is_some());
}
