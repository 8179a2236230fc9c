//! The store is gone or hangs: what callers get is what the rules and Envoy's failure mode say.

use super::process::Envoy;
use crate::{
    harness::{Server, wait_until},
    servers,
};

const RULES: &str = "\
domain: edge
descriptors:
  - {key: user, value: allow, rate_limit: {unit: hour, requests_per_unit: 2, on_store_failure: allow}}
  - {key: user, value: deny, rate_limit: {unit: hour, requests_per_unit: 100, on_store_failure: deny}}
  - {key: user, value: error, rate_limit: {unit: hour, requests_per_unit: 100, on_store_failure: error}}
  - {key: user, value: local, rate_limit: {unit: hour, requests_per_unit: 2, on_store_failure: local}}
";

fn ask(envoy: &Envoy, policy: &str) -> (u16, bool) {
    let answer = envoy.get("/users", &[("x-user", policy)]);
    (answer.status, answer.header("x-ratelimit-degraded") == Some("true"))
}

#[test]
fn without_its_store_each_policy_holds_whatever_the_failure_mode_of_envoy() {
    let store = servers::Server::start(servers::REDIS);
    let sluice = Server::builder().file("rules.yaml", RULES).env("REDIS_URL", &store.url()).start();
    let open = Envoy::asking(&sluice).start();
    let closed = Envoy::asking(&sluice).replace("failure_mode_deny: false", "failure_mode_deny: true").start();
    wait_until("the store answers", || ask(&closed, "deny") == (200, false));

    drop(store);
    wait_until("the store is missed", || ask(&closed, "error").0 == 500);
    for _ in 0..4 {
        assert_eq!(ask(&open, "allow"), (200, true));
        assert_eq!(ask(&closed, "allow"), (200, true));
        assert_eq!(ask(&open, "deny"), (429, true));
        assert_eq!(ask(&closed, "deny"), (429, true));
        // Only this one is left to Envoy.
        assert_eq!(ask(&open, "error"), (200, false));
        assert_eq!(ask(&closed, "error"), (500, false));
    }
    super::wait_for_room_in_the_hour();
    let local = [&open, &closed, &open, &closed].map(|envoy| ask(envoy, "local"));
    assert_eq!(local, [(200, true), (200, true), (429, true), (429, true)]);
    assert_eq!(open.counter("cluster.app.ratelimit.failure_mode_allowed"), 4);
    let refused = open.get("/users", &[("x-user", "deny")]);
    assert_eq!(refused.header("retry-after"), Some("1"));
}

#[test]
fn without_any_sluice_the_failure_mode_of_envoy_decides() {
    let sluice = Server::start(RULES);
    let open = Envoy::asking(&sluice).start();
    let closed = Envoy::asking(&sluice).replace("failure_mode_deny: false", "failure_mode_deny: true").start();
    assert_eq!((ask(&open, "deny").0, ask(&closed, "deny").0), (200, 200));
    drop(sluice);
    wait_until("it is missed", || ask(&closed, "deny").0 == 500);
    assert_eq!((ask(&open, "deny").0, ask(&closed, "deny").0), (200, 500));
}

#[test]
fn the_default_deadline_of_envoy_is_met_while_the_store_hangs() {
    let store = servers::Server::start(servers::REDIS);
    // Only the caller's deadline can end these calls.
    let sluice =
        Server::builder().file("rules.yaml", RULES).env("REDIS_URL", &store.url()).env("REDIS_TIMEOUT", "1m").start();
    let envoy = Envoy::as_deployed(&sluice).replace("timeout: 0.25s", "timeout: 0.02s").start();
    wait_until("the store answers", || ask(&envoy, "deny") == (200, false));

    store.pause();
    // An answer of ours is 429 and says so. One that comes too late is Envoy's, and 200: a machine that stalls has some of
    // these, but a sluice that waits for its store would have no others.
    let mut in_time = 0;
    wait_until("twenty were answered within 20 ms", || {
        in_time += u32::from(ask(&envoy, "deny") == (429, true));
        in_time == 20
    });
    let ended = sluice.metric(r#"sluice_degraded_decisions_total{reason="timeout",policy="deny"}"#);
    assert!(ended >= 1.0, "no call to the store was ended for the caller's sake:\n{}", sluice.get("/metrics").body);

    store.resume();
    wait_until("the store decides again", || ask(&envoy, "deny") == (200, false));
}
