//! Nodes that answer, but are set up so that they will not always, or not in time, or by the wrong clock.

use std::time::Duration;

use super::{doctor_by_clock, doctor_of};
use crate::servers::{AUTH, Proxy, REDIS, Server};

/// A server on which the doctor may look at everything.
fn open_server(options: &[&str]) -> Server {
    let server = Server::start_with(REDIS, options);
    server.run::<()>(&["ACL", "SETUSER", "sluice", "+info", "+config|get"]);
    server
}

#[test]
fn a_policy_that_evicts_at_random_is_named() {
    let server = open_server(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-random"]);
    doctor_of(&server.address(), &[]).warns("eviction", &[&server.address(), "allkeys-random", "at random"]);
}

#[test]
fn a_server_without_memory_is_named() {
    let server = open_server(&["--maxmemory", "1mb", "--maxmemory-policy", "noeviction"]);
    let seen = doctor_of(&server.address(), &[]);
    seen.fails("script", &[&server.address(), "OOM", "more memory", "maxmemory-policy"]);
    assert!(seen.has("warn", "eviction", &["noeviction", "refuses every write"]), "{seen}");
}

#[test]
fn a_primary_that_lacks_replicas_is_named() {
    let server = open_server(&["--min-replicas-to-write", "1"]);
    doctor_of(&server.address(), &[]).fails("script", &["NOREPLICAS", "min-replicas-to-write"]);
}

#[test]
fn a_disk_that_every_decision_waits_for_is_named() {
    let server = open_server(&["--appendonly", "yes", "--appendfsync", "always"]);
    doctor_of(&server.address(), &[]).warns("persistence", &["appendfsync always", "everysec"]);
}

#[test]
fn a_store_that_is_slower_than_its_budget_is_named_and_so_is_what_envoy_needs() {
    let server = Server::start(REDIS);
    let proxy = Proxy::start(&server.address());
    proxy.set_delay(Duration::from_millis(40));
    let address = proxy.address();
    let seen = doctor_of(&address, &[("REDIS_TIMEOUT", "10ms")]);
    seen.fails("latency", &[&address, "beyond REDIS_TIMEOUT, which is 10ms", "on_store_failure"]);
    let seen = doctor_of(&address, &[("REDIS_TIMEOUT", "2s")]);
    seen.finds("latency", &[&address, "within REDIS_TIMEOUT"]);
    seen.warns("envoy", &["default of 20ms the store gets 17ms", "timeout: 2.223s"]);
}

#[test]
fn a_clock_that_is_minutes_off_is_named() {
    let server = Server::start(REDIS);
    // Servers do not start under libfaketime, because of their allocator; so it is the doctor whose clock is wrong.
    let seen = doctor_by_clock("-10m", &server.address());
    seen.fails("clock", &[&server.address(), "10 minutes ahead of this host", "NTP"]);
    let seen = doctor_by_clock("+10m", &server.address());
    seen.fails("clock", &[&server.address(), "10 minutes behind this host", "NTP"]);
}

#[test]
fn stores_far_apart_are_judged_each_by_its_own_timeout() {
    let (near, far) = (Server::start(REDIS), Server::start(REDIS));
    let proxy = Proxy::start(&far.address());
    proxy.set_delay(Duration::from_millis(40));
    let seen = doctor_of(
        &near.address(),
        &[
            ("REDIS_PERSECOND", "true"),
            ("REDIS_PERSECOND_URL", &proxy.address()),
            ("REDIS_PERSECOND_AUTH", AUTH),
            ("REDIS_PERSECOND_TIMEOUT", "10ms"),
        ],
    );
    seen.finds("latency", &[&near.address()]);
    seen.fails("latency", &["per-second", &proxy.address(), "REDIS_PERSECOND_TIMEOUT, which is 10ms"]);
}
