//! A store that dies, stalls, forgets or is late, on a real server. Bounds are those of a busy machine; what was measured is
//! printed.

use std::time::{Duration, Instant};

use super::{Stage, ask_all, sluice};
use crate::{
    harness::{
        Server as Sluice,
        grpc::{Code, request},
        load::{Call, Load, Outcome, Style, assert_never_too_many, count, p99},
        wait_until,
    },
    servers::{AUTH, Proxy, REDIS, Server, VALKEY, alone, free_port},
};

pub const RULES: &str = "
domain: d
descriptors:
  - {key: allow, rate_limit: {unit: year, requests_per_unit: 10}}
  - {key: deny, rate_limit: {unit: year, requests_per_unit: 10, on_store_failure: deny}}
  - {key: error, rate_limit: {unit: year, requests_per_unit: 10, on_store_failure: error}}
  - {key: local, rate_limit: {unit: year, requests_per_unit: 10, on_store_failure: local}}
  - {key: many, rate_limit: {unit: year, requests_per_unit: 1000000}}
  - {key: more, rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: 1000000}}
  - {key: bucket, rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: 100, burst: 200}}
";

/// What a second is to a machine that has other things to do.
pub const SOON: Duration = Duration::from_secs(4);
/// As long as a caller of Envoy's would wait, times a busy machine.
const TIMEOUT: (&str, &str) = ("REDIS_TIMEOUT", "50ms");

pub const SOME: Style = Style { callers_of_each: 8, pause: Some(Duration::from_millis(40)), deadline: None };

pub fn many(caller: usize) -> crate::harness::grpc::Request {
    request("d", &[("many", &caller.to_string())])
}

/// At most ten lines in a fault of less than a minute.
#[track_caller]
pub fn assert_few_lines(sluice: &Sluice) {
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

fn kill_and_restart(binary: &str) {
    let _alone = alone();
    let mut stage = Stage::Single(Server::start(binary));
    let sluice = stage.sluice(RULES, &[TIMEOUT, ("LOCAL_REPLICAS", "2")]);
    for key in ["allow", "deny", "error", "local"] {
        let response = sluice.ask(request("d", &[(key, "1")])).unwrap();
        assert_eq!(response.statuses[0].limit_remaining, 9);
    }
    let (files, _) = sluice.footprint();
    let load = Load::start(&[sluice.grpc()], &SOME, |caller, _| many(caller));
    load.wait_for(Outcome::Ok, Instant::now());

    let Stage::Single(server) = &mut stage else { unreachable!("it was made so") };
    let killed = Instant::now();
    server.kill();
    let degraded = load.wait_for(Outcome::DegradedOk, killed);
    wait_until("the breaker trips", || sluice.metric("sluice_store_up") == 0.0);
    let tripped = killed.elapsed();
    assert_policies(&sluice);
    let since = Instant::now();
    load.wait_for_calls(200);
    let without = p99(&load.calls_since(since));

    server.restart();
    let back = load.wait_for(Outcome::Ok, Instant::now());
    let calls = load.stop();
    println!(
        "{binary} killed: policy after {degraded:?}, tripped after {tripped:?}, p99 {without:?} without it, back after {back:?}"
    );
    assert!(tripped < SOON && back < SOON && without < SOON / 10, "one of these took too long");
    assert_eq!(count(&calls, Outcome::Error) + count(&calls, Outcome::Unavailable), 0);
    let response = sluice.ask(request("d", &[("allow", "1")])).unwrap();
    assert_eq!(response.statuses[0].limit_remaining, 9, "one capacity more, and no other trace");
    let left = sluice.footprint().0;
    assert!(left <= files + 12, "{files} files were open before, {left} are now");
    assert_few_lines(&sluice);
    stage.assert_clean();
}

#[test]
fn a_redis_that_is_killed_and_comes_back_empty() {
    kill_and_restart(REDIS);
}

#[test]
fn a_valkey_that_is_killed_and_comes_back_empty() {
    kill_and_restart(VALKEY);
}

#[test]
fn a_store_that_stalls() {
    let _alone = alone();
    let stage = Stage::Single(Server::start(REDIS));
    let sluice = stage.sluice(RULES, &[TIMEOUT]);
    // Requests of different shapes, so that a reply that went to the wrong one would be found out.
    let make = |caller: usize, number: usize| match number % 3 {
        0 => many(caller),
        1 => ask_all("d", &[("many", "x"), ("more", "x")]),
        _ => ask_all("d", &[("more", "y"), ("many", "y"), ("many", "z")]),
    };
    let load = Load::start(&[sluice.grpc()], &SOME, make);
    load.wait_for_calls(100);
    let (_, memory) = sluice.footprint();

    let stopped = Instant::now();
    stage.servers()[0].pause();
    wait_until("the breaker trips", || sluice.metric("sluice_store_up") == 0.0);
    let tripped = stopped.elapsed();
    load.run_until(stopped + Duration::from_secs(5));
    let grown = sluice.footprint().1.saturating_sub(memory);
    stage.servers()[0].resume();
    let resumed = Instant::now();
    let back = load.wait_for(Outcome::Ok, resumed);
    load.wait_for_calls(100);
    let calls = load.stop();
    let during: Vec<Call> =
        calls.iter().filter(|call| call.sent > stopped && call.answered < resumed).copied().collect();
    let longest = during.iter().map(Call::took).max().unwrap_or_default();
    println!(
        "stalled for 5 s: {} calls, p99 {:?}, longest {longest:?}, tripped after {tripped:?}, {grown} bytes more, back after {back:?}",
        during.len(),
        p99(&during)
    );
    assert!(tripped < SOON && back < SOON && longest < SOON, "one of these took too long");
    assert!(grown < 20 << 20, "memory grew by {grown} bytes");
    assert!(count(&during, Outcome::DegradedOk) > 100);
    assert_eq!(count(&calls, Outcome::Error) + count(&calls, Outcome::Unavailable) + count(&calls, Outcome::Over), 0);
    assert_eq!(sluice.metric("sluice_store_errors_total{kind=\"bad_response\"}"), 0.0, "no reply went astray");
    assert_few_lines(&sluice);
    stage.assert_clean();
}

#[test]
fn a_store_that_forgets_the_script_again_and_again() {
    let _alone = alone();
    let stage = Stage::Single(Server::start(REDIS));
    let sluice = stage.sluice(RULES, &[]);
    let style = Style { pause: None, ..SOME };
    let load = Load::start(&[sluice.grpc()], &style, |_, _| request("d", &[("bucket", "1")]));
    let began = Instant::now();
    for turn in 1..=25 {
        load.run_until(began + turn * Duration::from_millis(100));
        stage.servers()[0].run::<()>(&["SCRIPT", "FLUSH"]);
    }
    let calls = load.stop();
    assert_eq!(count(&calls, Outcome::Ok) + count(&calls, Outcome::Over), calls.len(), "nobody noticed");
    assert_never_too_many(&calls, 200.0, 100.0);
    let healed = stage.servers()[0].calls("eval");
    println!("25 times without the script: {} calls, none failed, {healed} with the text", calls.len());
    assert!(healed > 0, "the script was never missed");
    stage.assert_clean();
}

#[test]
fn a_store_that_is_not_there_at_the_start() {
    let _alone = alone();
    let port = free_port();
    let url = format!("redis://{AUTH}@127.0.0.1:{port}");
    let sluice = sluice(RULES, &[("REDIS_URL", &url), TIMEOUT, ("LOCAL_REPLICAS", "2")]);
    assert_policies(&sluice);
    let line = sluice.wait_for_line(&["the store fails", &format!("127.0.0.1:{port}")]);
    assert!(line.contains("refused"), "{line}");
    assert!(!line.contains("open-sesame"));
    let load = Load::start(&[sluice.grpc()], &SOME, |caller, _| many(caller));
    load.wait_for_calls(50);
    let server = Server::start_on(REDIS, port);
    let back = load.wait_for(Outcome::Ok, Instant::now());
    println!("absent at the start: used {back:?} after it came");
    assert!(back < SOON);
    load.stop();
    server.assert_clean();
}

#[test]
fn a_name_that_nobody_knows() {
    let sluice = sluice(RULES, &[("REDIS_URL", "no-such-host.invalid:6379")]);
    let response = sluice.ask(request("d", &[("allow", "1")])).unwrap();
    assert_eq!(header(&response, "x-ratelimit-degraded").as_deref(), Some("true"));
    sluice.wait_for_line(&["the store fails", "no-such-host.invalid:6379"]);
    let (status, _) = sluice.stop();
    assert!(status.success());
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
    println!("{in_time} of {} had their answer within {deadline:?}, p99 {:?}", calls.len(), p99(&calls));
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
fn a_store_that_swallows_everything() {
    let _alone = alone();
    let server = Server::start(REDIS);
    let proxy = Proxy::start(&server.address());
    let url = format!("redis://{AUTH}@{}", proxy.address());
    let sluice = sluice(RULES, &[("REDIS_URL", &url), TIMEOUT]);
    sluice.wait_for_store();
    let load = Load::start(&[sluice.grpc()], &SOME, |caller, _| many(caller));
    load.wait_for_calls(50);
    let gone = Instant::now();
    proxy.set_delay(Duration::from_secs(3600));
    wait_until("the breaker trips", || sluice.metric("sluice_store_up") == 0.0);
    let tripped = gone.elapsed();
    load.run_until(gone + Duration::from_secs(3));
    proxy.set_delay(Duration::ZERO);
    let back = load.wait_for(Outcome::Ok, Instant::now());
    let calls = load.stop();
    println!("swallowed: tripped after {tripped:?}, back after {back:?}, p99 {:?}", p99(&calls));
    assert!(tripped < SOON && back < SOON);
    assert_eq!(count(&calls, Outcome::Ok) + count(&calls, Outcome::DegradedOk), calls.len());
    assert_few_lines(&sluice);
    server.assert_clean();
}
