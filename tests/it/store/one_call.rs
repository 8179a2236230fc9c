//! How often the store is asked, counted by the store itself.

use std::time::{Duration, Instant};

use super::{Stage, ask_all};
use crate::{
    harness::grpc::{Code, request},
    servers::{AUTH, Cluster, Proxy, REDIS, Server, alone},
};

const RULES: &str = "
domain: d
descriptors:
  - {key: a, rate_limit: {unit: year, requests_per_unit: 100}}
  - {key: b, rate_limit: {algorithm: token_bucket, unit: hour, requests_per_unit: 100}}
  - {key: c, rate_limit: {algorithm: sliding_window, unit: day, requests_per_unit: 100}}
  - {key: once, rate_limit: {algorithm: token_bucket, unit: hour, requests_per_unit: 1}}
  - {key: brief, rate_limit: {unit: second, unit_multiplier: 2, requests_per_unit: 100, on_over_limit: spare}}
  - {key: none, rate_limit: {unit: second, requests_per_unit: 0}}
---
domain: spread
partition_by: [tenant]
descriptors:
  - {key: tenant, rate_limit: {algorithm: token_bucket, unit: year, requests_per_unit: 1, burst: 3}}
  - {key: shut, rate_limit: {unit: year, requests_per_unit: 0}}
";

fn calls(stage: &Stage) -> u64 {
    stage.servers().iter().map(|server| server.calls("evalsha") + server.calls("eval")).sum()
}

fn one_call_for_each_request(stage: &Stage) {
    let sluice = stage.sluice(RULES, &[]);
    let probes = calls(stage);
    for turn in 1..=5 {
        let response = sluice.ask(ask_all("d", &[("a", "1"), ("b", "1"), ("c", "1")])).unwrap();
        assert_eq!(response.statuses.len(), 3);
        assert!(response.statuses.iter().all(|status| status.limit_remaining == 100 - turn));
    }
    assert_eq!(calls(stage) - probes, 5, "one call for three rules");

    let probes = calls(stage);
    let response = sluice.ask(ask_all("nowhere", &[("a", "1")])).unwrap();
    assert_eq!(response.overall_code, i32::from(Code::Ok));
    assert_eq!(calls(stage) - probes, 0, "no call for no rule");
    stage.assert_clean();
}

#[test]
fn a_request_is_one_call() {
    one_call_for_each_request(&Stage::Single(Server::start(REDIS)));
}

#[test]
fn a_request_is_one_call_to_a_cluster_and_one_for_each_tag_of_a_partitioned_domain() {
    let _alone = alone();
    let stage = Stage::Cluster(Cluster::start(REDIS));
    one_call_for_each_request(&stage);

    let sluice = stage.sluice(RULES, &[]);
    let before = calls(&stage);
    let response = sluice.ask(ask_all("spread", &[("tenant", "x"), ("tenant", "y"), ("tenant", "z")])).unwrap();
    assert_eq!(response.overall_code, i32::from(Code::Ok));
    assert_eq!(calls(&stage) - before, 3, "one for each tag");
    assert_eq!(stage.servers().iter().map(|server| server.calls("asking")).sum::<u64>(), 0);

    // A refusal by one tag: what the others took is given back, by a call to each of them.
    let before = calls(&stage);
    let response = sluice.ask(ask_all("spread", &[("tenant", "x"), ("shut", "1"), ("tenant", "y")])).unwrap();
    assert_eq!(response.overall_code, i32::from(Code::OverLimit));
    assert_eq!(calls(&stage) - before, 5, "it was given back before the answer");
    for tenant in ["x", "y"] {
        let response = sluice.ask(request("spread", &[("tenant", tenant)])).unwrap();
        assert_eq!(response.statuses[0].limit_remaining, 1, "{tenant} has only paid for what was admitted");
    }
    stage.assert_clean();
}

#[test]
fn a_request_of_a_partitioned_domain_is_one_call_where_there_is_no_cluster() {
    let stage = Stage::Single(Server::start(REDIS));
    let sluice = stage.sluice(RULES, &[]);
    let before = calls(&stage);
    let response = sluice.ask(ask_all("spread", &[("tenant", "x"), ("tenant", "y"), ("tenant", "z")])).unwrap();
    assert!(response.statuses.iter().all(|status| status.limit_remaining == 2));
    assert_eq!(calls(&stage) - before, 1);

    let response = sluice.ask(ask_all("spread", &[("tenant", "x"), ("shut", "1"), ("tenant", "y")])).unwrap();
    assert_eq!(response.overall_code, i32::from(Code::OverLimit));
    assert_eq!(calls(&stage) - before, 2, "all or nothing: there is nothing to give back");
    let response = sluice.ask(request("spread", &[("tenant", "x")])).unwrap();
    assert_eq!(response.statuses[0].limit_remaining, 1);
    stage.assert_clean();
}

/// A second server that has the rules per second, so that a request can need two.
fn per_second() -> (Server, Vec<(String, String)>) {
    let server = Server::start(REDIS);
    let env = [("REDIS_PERSECOND", "true".to_owned()), ("REDIS_PERSECOND_URL", server.url_of_sluice())];
    (server, env.map(|(name, value)| (name.to_owned(), value)).to_vec())
}

fn refs(env: &[(String, String)]) -> Vec<(&str, &str)> {
    env.iter().map(|(name, value)| (&**name, &**value)).collect()
}

#[test]
fn what_is_to_be_given_back_is_given_back_before_the_process_ends() {
    let stage = Stage::Single(Server::start(REDIS));
    let (_per_second, env) = per_second();
    let sluice = stage.sluice(RULES, &refs(&env));
    let response = sluice.ask(ask_all("d", &[("b", "1"), ("none", "1")])).unwrap();
    assert_eq!(response.overall_code, i32::from(Code::OverLimit));
    let (status, _) = sluice.stop();
    assert!(status.success());
    let other = stage.sluice(RULES, &refs(&env));
    let response = other.ask(request("d", &[("b", "1")])).unwrap();
    assert_eq!(response.statuses[0].limit_remaining, 99);
    stage.assert_clean();
}

#[test]
fn what_is_given_back_is_waited_for_within_the_budget_of_the_request() {
    let _alone = alone();
    let main = Server::start(REDIS);
    let proxy = Proxy::start(&main.address());
    let (per_second, mut env) = per_second();
    env.push(("REDIS_URL".to_owned(), format!("redis://{AUTH}@{}", proxy.address())));
    env.push(("REDIS_TIMEOUT".to_owned(), "2s".to_owned()));
    let sluice = super::sluice(RULES, &refs(&env));
    sluice.wait_for_store();
    // The part that is admitted takes three quarters of the time that there is. To give it back would take as long again.
    proxy.set_delay(Duration::from_millis(1_500));
    let asked = Instant::now();
    let response = sluice.ask(ask_all("d", &[("b", "1"), ("none", "1")])).unwrap();
    let took = asked.elapsed();
    assert_eq!(response.overall_code, i32::from(Code::OverLimit));
    assert!(took >= Duration::from_millis(1_900), "it was not waited for: {took:?}");
    assert!(took < Duration::from_millis(2_700), "{took:?}");
    per_second.assert_clean();
}

#[test]
fn a_refusal_that_was_asked_for_before_something_was_given_back_is_not_remembered() {
    let _alone = alone();
    let main = Server::start(REDIS);
    let proxy = Proxy::start(&main.address());
    let (_per_second, mut env) = per_second();
    env.push(("REDIS_URL".to_owned(), format!("redis://{AUTH}@{}", proxy.address())));
    env.push(("REDIS_TIMEOUT".to_owned(), "60s".to_owned()));
    let sluice = super::sluice(RULES, &refs(&env));
    sluice.wait_for_store();
    let is_charged = || main.keys().iter().any(|(key, _)| key.contains("once"));
    proxy.hold();
    std::thread::scope(|scope| {
        let both = scope.spawn(|| sluice.ask(ask_all("d", &[("once", "1"), ("none", "1")])).unwrap());
        crate::harness::wait_until("the store has charged it", || is_charged() && proxy.came() == 1);
        let refused = scope.spawn(|| sluice.ask(request("d", &[("once", "1")])).unwrap());
        crate::harness::wait_until("the store has refused it", || proxy.came() == 2);
        // The first is refused by the other rule, the second by what the first took, which is given back before its answer is home.
        proxy.let_go(1);
        crate::harness::wait_until("the store has it back", || !is_charged());
        proxy.let_go(u64::MAX);
        assert_eq!(refused.join().unwrap().overall_code, i32::from(Code::OverLimit));
        assert_eq!(both.join().unwrap().overall_code, i32::from(Code::OverLimit));
    });
    let response = sluice.ask(request("d", &[("once", "1")])).unwrap();
    assert_eq!(response.overall_code, i32::from(Code::Ok), "it was given back");
}

#[test]
fn nothing_is_given_back_to_a_window_that_has_ended() {
    let _alone = alone();
    let main = Server::start(REDIS);
    let proxy = Proxy::start(&main.address());
    let (_per_second, mut env) = per_second();
    env.push(("REDIS_URL".to_owned(), format!("redis://{AUTH}@{}", proxy.address())));
    env.push(("REDIS_TIMEOUT".to_owned(), "5s".to_owned()));
    let sluice = super::sluice(RULES, &refs(&env));
    sluice.wait_for_store();
    let before = main.calls("evalsha");
    // The answer takes longer than any window of two seconds lasts.
    proxy.set_delay(Duration::from_millis(2_500));
    let response = sluice.ask(ask_all("d", &[("brief", "1"), ("none", "1")])).unwrap();
    assert_eq!(response.overall_code, i32::from(Code::OverLimit));
    let (status, _) = sluice.stop();
    assert!(status.success());
    assert_eq!(main.calls("evalsha") - before, 1, "it was taken, and not given back to another window");
}
