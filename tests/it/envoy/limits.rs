//! Exact numbers: who shares a limit with whom, and how many get through.

use std::{net::Ipv4Addr, time::Instant};

use super::{Edge, process::Envoy, then_refused};
use crate::harness::wait_until;

#[test]
fn the_bootstrap_works_as_it_is_deployed() {
    let sluice = crate::harness::Server::start(&super::deployed("rules.yaml"));
    let envoy = Envoy::as_deployed(&sluice).start();
    assert_eq!(envoy.get("/", &[]).status, 200);
    // An Envoy that waits as briefly as deployed lets some through on a machine that stalls.
    wait_until("the limit is reached", || envoy.get("/login", &[]).status == 429);
}

#[test]
fn each_address_has_a_limit_of_its_own() {
    let edge = Edge::start();
    for address in [Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::new(127, 3, 0, 2)] {
        let statuses: Vec<u16> = (0..8).map(|_| edge.envoy.get_from(address, "/login", &[]).status).collect();
        assert_eq!(statuses, then_refused(5, 3), "{address}");
    }
    assert_eq!(edge.envoy.counter("cluster.app.ratelimit.ok"), 15);
    assert_eq!(edge.envoy.counter("cluster.app.ratelimit.over_limit"), 9);
    assert_eq!(edge.envoy.errors(), 0);
}

#[test]
fn each_value_of_a_header_has_a_limit_of_its_own_and_its_absence_none() {
    let edge = Edge::start();
    assert_eq!(edge.statuses(5, "/users", &[("x-user", "ann")]), then_refused(3, 2));
    assert_eq!(edge.statuses(5, "/users", &[("x-user", "bob")]), then_refused(3, 2));
    assert_eq!(edge.statuses(5, "/users", &[]), then_refused(5, 0));
    assert_eq!(edge.statuses(10, "/", &[("x-user", "ann")]), then_refused(10, 0));
}

#[test]
fn callers_at_once_get_no_more_and_no_less_than_the_limit() {
    let rules = super::deployed("rules.yaml")
        .replace("unit: hour, requests_per_unit: 3}", "unit: hour, requests_per_unit: 100}");
    let edge = Edge::with(crate::harness::Server::builder().file("rules.yaml", &rules));
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let ask = || scope.spawn(|| edge.statuses(40, "/users", &[("x-user", "ann")]));
        let callers: Vec<_> = (0..6).map(|_| ask()).collect();
        callers.into_iter().flat_map(|caller| caller.join().expect("asks")).collect()
    });
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 100);
    assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 140);
}

#[test]
fn an_api_key_has_a_limit_and_callers_without_one_share_that_of_their_address() {
    let edge = Edge::start();
    assert_eq!(edge.statuses(6, "/api", &[("x-api-key", "k1")]), then_refused(4, 2));
    assert_eq!(edge.statuses(4, "/api", &[]), then_refused(2, 2));
    // What a key has used is not taken from the address, nor the other way round.
    assert_eq!(edge.statuses(6, "/api", &[("x-api-key", "k2")]), then_refused(4, 2));
    let elsewhere = Ipv4Addr::new(127, 0, 0, 9);
    assert_eq!(edge.envoy.get_from(elsewhere, "/api", &[]).status, 200);
}

#[test]
fn of_two_limits_the_smaller_one_decides_and_both_count() {
    let edge = Edge::start();
    // Four for each address and path, six for all: the four and one refused are counted, which leaves one.
    assert_eq!(edge.statuses(5, "/search", &[]), then_refused(4, 1));
    let elsewhere = Ipv4Addr::new(127, 0, 0, 9);
    let statuses: Vec<u16> = (0..3).map(|_| edge.envoy.get_from(elsewhere, "/search", &[]).status).collect();
    assert_eq!(statuses, then_refused(1, 2));
}

#[test]
fn a_token_bucket_gives_its_burst_at_once_and_then_what_has_come_back() {
    let edge = Edge::start();
    let headers = [("x-user", "ann")];
    let began = Instant::now();
    let mut burst = 0;
    wait_until("the burst is used up", || {
        let allowed = edge.envoy.get("/events", &headers).status == 200;
        burst += i32::from(allowed);
        !allowed
    });
    let come_back = began.elapsed().as_secs_f64() / 2.0;
    assert!((3.0..=4.0 + come_back).contains(&f64::from(burst)), "{burst} in {:?}", began.elapsed());
    wait_until("one has come back", || edge.envoy.get("/events", &headers).status == 200);
}

#[test]
fn a_limit_that_envoy_brings_along_takes_the_place_of_the_rules() {
    let edge = Edge::start();
    assert_eq!(edge.statuses(4, "/partner", &[("x-user", "ann")]), then_refused(2, 2));
    let answer = edge.envoy.get("/partner", &[("x-user", "bob")]);
    assert_eq!(answer.header("x-ratelimit-limit"), Some("2, 2;w=3600"));
}

#[test]
fn a_rule_in_shadow_mode_counts_and_refuses_nobody() {
    let edge = Edge::start();
    assert_eq!(edge.statuses(5, "/beta", &[]), then_refused(5, 0));
    let shadowed = edge.sluice.metric(r#"ratelimit_service_rate_limit_shadow_mode{domain="edge",key1="beta"}"#);
    assert_eq!(shadowed, 4.0);
}

#[test]
fn a_plan_takes_the_place_of_the_limit_that_everybody_has() {
    let edge = Edge::start();
    assert_eq!(edge.statuses(2, "/vip", &[("x-user", "ann")]), then_refused(1, 1));
    assert_eq!(edge.statuses(6, "/vip", &[("x-user", "bob"), ("x-plan", "gold")]), then_refused(4, 2));
}
