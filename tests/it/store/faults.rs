//! What callers get while the store cannot decide, in detail. How long they wait for it, and what a store is killed, stopped, moved
//! and slowed to see, is in `tests/faults`.

use std::time::{Duration, Instant};

use super::{Stage, ask_all, sluice};
use crate::{
    harness::{
        Server as Sluice,
        grpc::{Code, request},
        load::{Load, Outcome, Style, count},
    },
    servers::{AUTH, REDIS, Server, alone, free_port},
};

pub const RULES: &str = "
domain: d
descriptors:
  - {key: allow, rate_limit: {unit: year, requests_per_unit: 10}}
  - {key: deny, rate_limit: {unit: year, requests_per_unit: 10, on_store_failure: deny}}
  - {key: error, rate_limit: {unit: year, requests_per_unit: 10, on_store_failure: error}}
  - {key: local, rate_limit: {unit: year, requests_per_unit: 10, on_store_failure: local}}
  - {key: many, rate_limit: {unit: year, requests_per_unit: 1000000}}
";

const SOME: Style = Style { callers_of_each: 8, pause: Some(Duration::from_millis(40)), deadline: None };

fn many(caller: usize) -> crate::harness::grpc::Request {
    request("d", &[("many", &caller.to_string())])
}

/// At most ten lines in a fault of less than a minute.
#[track_caller]
fn assert_few_lines(sluice: &Sluice) {
    let told: Vec<String> = sluice.log().into_iter().filter(|line| line.contains("the store ")).collect();
    assert!((1..=10).contains(&told.len()), "{}", told.join("\n"));
}

#[track_caller]
fn header(response: &crate::harness::grpc::Response, name: &str) -> Option<String> {
    let header = response.response_headers_to_add.iter().find(|header| header.key.eq_ignore_ascii_case(name));
    header.map(|header| header.value.clone())
}

/// What each policy answers while there is no store.
fn assert_policies(sluice: &Sluice) {
    let allow = sluice.ask(request("d", &[("allow", "1")])).unwrap();
    assert_eq!(allow.overall_code, i32::from(Code::Ok));
    assert_eq!(header(&allow, "x-ratelimit-degraded").as_deref(), Some("true"));

    let deny = sluice.ask(request("d", &[("deny", "1")])).unwrap();
    assert_eq!(deny.overall_code, i32::from(Code::OverLimit));
    assert_eq!(header(&deny, "x-ratelimit-degraded").as_deref(), Some("true"));
    assert_eq!(header(&deny, "retry-after").as_deref(), Some("1"));

    let error = sluice.ask(request("d", &[("error", "1")])).unwrap_err();
    assert_eq!(error.code(), tonic::Code::Unavailable);
    let body = r#"{"domain": "d", "descriptors": [{"entries": [{"key": "error", "value": "1"}]}]}"#;
    assert_eq!(sluice.post_json(body).status, 503);

    // Half of ten, as there are two of us, and once more than it takes to tell that it is the embedded store that counts.
    let mut local = Vec::new();
    for _ in 0..7 {
        let response = sluice.ask(request("d", &[("local", "1")])).unwrap();
        assert_eq!(header(&response, "x-ratelimit-degraded").as_deref(), Some("true"));
        local.push(response.overall_code == i32::from(Code::Ok));
    }
    assert_eq!(local, [true, true, true, true, true, false, false]);

    // A refusal goes before a failure, whatever the other rule says.
    let both = sluice.ask(ask_all("d", &[("deny", "1"), ("allow", "1")])).unwrap();
    assert_eq!(both.overall_code, i32::from(Code::OverLimit));
    // What needs no store never notices.
    let free = sluice.ask(request("d", &[("unknown", "1")])).unwrap();
    assert_eq!(header(&free, "x-ratelimit-degraded"), None);
}

#[test]
fn each_policy_has_its_answer_while_there_is_no_store() {
    let port = free_port();
    let url = format!("redis://{AUTH}@127.0.0.1:{port}");
    let sluice = sluice(RULES, &[("REDIS_URL", &url), ("LOCAL_REPLICAS", "2")]);
    assert_policies(&sluice);
    let line = sluice.wait_for_line(&["the store fails", &format!("127.0.0.1:{port}")]);
    assert!(line.contains("refused"), "{line}");
    assert!(!line.contains("open-sesame"));
}

#[test]
fn a_caller_in_a_hurry_has_its_answer_in_time() {
    let _alone = alone();
    let stage = Stage::Single(Server::start(REDIS));
    let sluice = stage.sluice(RULES, &[("REDIS_TIMEOUT", "5s")]);
    stage.servers()[0].pause();
    let deadline = Duration::from_millis(400);
    let style = Style { callers_of_each: 2, pause: None, deadline: Some(deadline) };
    let load = Load::start(&[sluice.grpc()], &style, |caller, _| many(caller));
    load.wait_for_calls(20);
    stage.servers()[0].resume();
    let calls = load.stop();
    let in_time = count(&calls, Outcome::DegradedOk);
    // Where the machine itself is late, nobody can be in time.
    assert!(in_time * 2 >= calls.len(), "{in_time} of {}", calls.len());
}

#[test]
fn no_call_is_lost_when_it_is_told_to_stop() {
    let _alone = alone();
    let stage = Stage::Single(Server::start(REDIS));
    let mut sluice = stage.sluice(RULES, &[]);
    let load = Load::start(&[sluice.grpc()], &SOME, |caller, _| many(caller));
    load.wait_for_calls(50);
    sluice.terminate();
    assert!(sluice.wait_for_exit().success());
    let calls = load.stop();
    assert_eq!(count(&calls, Outcome::DegradedOk) + count(&calls, Outcome::Over), 0);
    let other = stage.sluice(RULES, &[]);
    let counted: usize = (0..SOME.callers_of_each)
        .map(|caller| 999_999 - other.ask(many(caller)).unwrap().statuses[0].limit_remaining as usize)
        .sum();
    assert_eq!(counted, count(&calls, Outcome::Ok), "what was counted was answered");
    stage.assert_clean();
}

#[test]
fn a_primary_becomes_a_replica_and_a_primary_again() {
    let _alone = alone();
    let stage = Stage::Single(Server::start(REDIS));
    let other = Server::start(REDIS);
    let sluice = stage.sluice(RULES, &[("REDIS_TIMEOUT", "100ms")]);
    let load = Load::start(&[sluice.grpc()], &SOME, |caller, _| many(caller));
    load.wait_for_calls(50);
    let server = &stage.servers()[0];
    let demoted = Instant::now();
    server.run::<()>(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
    load.wait_for(Outcome::DegradedOk, demoted);
    load.wait_for_calls(50);
    server.run::<()>(&["REPLICAOF", "NO", "ONE"]);
    load.wait_for(Outcome::Ok, Instant::now());
    let calls = load.stop();
    assert_eq!(count(&calls, Outcome::Ok) + count(&calls, Outcome::DegradedOk), calls.len());
    assert_few_lines(&sluice);
    stage.assert_clean();
}
