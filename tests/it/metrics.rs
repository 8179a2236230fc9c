//! What Prometheus sees: the reference's names and labels, and its arithmetic of hits within, near and over a limit.

use crate::harness::{
    Server,
    grpc::{self, Request, descriptor, request},
};

const RULES: &str = r#"
domain: d
descriptors:
  - {key: ip, rate_limit: {unit: day, requests_per_unit: 10}}
  - {key: crossing, rate_limit: {unit: day, requests_per_unit: 10}}
  - {key: shadow, rate_limit: {unit: day, requests_per_unit: 10}, shadow_mode: true}
  - {key: plan, value: free, rate_limit: {unit: day, requests_per_unit: 10}}
  - {key: path, value: "/api/*", rate_limit: {unit: day, requests_per_unit: 10}}
  - {key: boundless, rate_limit: {unlimited: true, replaces: [{name: replaced}]}}
  - {key: replaced, rate_limit: {unit: day, requests_per_unit: 10, name: replaced}}
  - key: a
    descriptors:
      - key: b
        value: two
        descriptors:
          - {key: c, rate_limit: {unit: day, requests_per_unit: 10}}
          - {key: e, rate_limit: {unit: day, requests_per_unit: 10}}
"#;

/// The hits of a rule, by the end of the name of the metric.
struct Hits<'s> {
    server: &'s Server,
    labels: &'static str,
}

impl Hits<'_> {
    /// Total, within, near, over.
    #[track_caller]
    fn are(&self, total: u32, within: u32, near: u32, over: u32) {
        let scrape = self.server.scrape();
        let found = ["total_hits", "within_limit", "near_limit", "over_limit"].map(|name| {
            scrape.value(&format!("ratelimit_service_rate_limit_{name}{{{}}}", self.labels)).unwrap_or(0.0)
        });
        assert_eq!(found, [total, within, near, over].map(f64::from), "total, within, near, over of {}", self.labels);
    }
}

fn take(server: &Server, entries: &[(&str, &str)], hits: u64) {
    let mut asked = request("d", entries);
    asked.descriptors[0].hits_addend = Some(hits);
    server.ask(asked).expect("the request is well formed");
}

#[test]
fn hits_are_within_then_near_then_over_the_limit() {
    let server = Server::start(RULES);
    let hits = Hits { server: &server, labels: r#"domain="d",key1="ip""# };
    take(&server, &[("ip", "1")], 5);
    hits.are(5, 5, 0, 0);
    take(&server, &[("ip", "1")], 4);
    hits.are(9, 9, 1, 0);
    take(&server, &[("ip", "1")], 1);
    hits.are(10, 10, 2, 0);
    take(&server, &[("ip", "1")], 3);
    hits.are(13, 10, 2, 3);
}

#[test]
fn hits_that_cross_the_limit_are_partly_near_and_partly_over_and_not_within() {
    let server = Server::start(RULES);
    let hits = Hits { server: &server, labels: r#"domain="d",key1="crossing""# };
    take(&server, &[("crossing", "1")], 7);
    take(&server, &[("crossing", "1")], 5);
    hits.are(12, 7, 2, 2);
    // Another value counts in the same series, and starts from nothing.
    take(&server, &[("crossing", "2")], 12);
    hits.are(24, 7, 4, 4);
}

#[test]
fn a_look_counts_no_hits() {
    let server = Server::start(RULES);
    take(&server, &[("ip", "1")], 9);
    take(&server, &[("ip", "1")], 0);
    Hits { server: &server, labels: r#"domain="d",key1="ip""# }.are(9, 9, 1, 0);
}

#[test]
fn near_begins_where_the_setting_says() {
    let server = Server::builder().file("rules.yaml", RULES).env("NEAR_LIMIT_RATIO", "0.5").start();
    take(&server, &[("ip", "1")], 6);
    Hits { server: &server, labels: r#"domain="d",key1="ip""# }.are(6, 6, 1, 0);
}

#[test]
fn labels_are_the_path_of_the_rule_level_by_level() {
    let server = Server::start(RULES);
    take(&server, &[("plan", "free")], 1);
    take(&server, &[("path", "/api/users")], 2);
    take(&server, &[("a", "one"), ("b", "two"), ("c", "three")], 3);
    take(&server, &[("a", "one"), ("b", "two"), ("e", "three")], 4);
    Hits { server: &server, labels: r#"domain="d",key1="plan_free""# }.are(1, 1, 0, 0);
    Hits { server: &server, labels: r#"domain="d",key1="path_/api/*""# }.are(2, 2, 0, 0);
    // The reference drops the third level and adds both rules up.
    Hits { server: &server, labels: r#"domain="d",key1="a",key2="b_two",key3="c""# }.are(3, 3, 0, 0);
    Hits { server: &server, labels: r#"domain="d",key1="a",key2="b_two",key3="e""# }.are(4, 4, 0, 0);
}

#[test]
fn shadow_hits_over_the_limit_are_counted_as_such() {
    let server = Server::start(RULES);
    take(&server, &[("shadow", "1")], 8);
    take(&server, &[("shadow", "1")], 5);
    Hits { server: &server, labels: r#"domain="d",key1="shadow""# }.are(13, 8, 2, 3);
    assert_eq!(server.metric(r#"ratelimit_service_rate_limit_shadow_mode{domain="d",key1="shadow"}"#), 3.0);
    take(&server, &[("ip", "1")], 11);
    assert_eq!(server.metric(r#"ratelimit_service_rate_limit_shadow_mode{domain="d",key1="ip"}"#), 0.0);
}

#[test]
fn unlimited_replaced_and_unmatched_descriptors_have_no_hits() {
    let server = Server::start(RULES);
    let descriptors =
        [("boundless", "1"), ("replaced", "1"), ("none", "1"), ("ip", "1")].map(|pair| descriptor(&[pair]));
    server
        .ask(Request { domain: "d".to_owned(), descriptors: descriptors.into(), hits_addend: 0 })
        .expect("is answered");
    let scrape = server.scrape();
    let counted = scrape.of("ratelimit_service_rate_limit_total_hits");
    let counted: Vec<_> =
        counted.iter().filter(|(_, value)| *value > 0.0).map(|(labels, _)| &*labels["key1"]).collect();
    assert_eq!(counted, ["ip"]);
}

#[test]
fn an_override_is_counted_with_its_values() {
    let server = Server::start(RULES);
    let mut asked = request("d", &[("a", "1"), ("b", "")]);
    asked.descriptors[0].limit =
        Some(grpc::Override { requests_per_unit: 5, unit: grpc::OverrideUnit::Day.into(), unit_multiplier: None });
    server.ask(asked).expect("is answered");
    Hits { server: &server, labels: r#"domain="d",key1="a_1",key2="b""# }.are(1, 1, 0, 0);
}

#[test]
fn hits_that_are_given_back_are_counted_apart() {
    let server = Server::start(RULES);
    take(&server, &[("ip", "1")], 5);
    let mut asked = request("d", &[("ip", "1")]);
    asked.descriptors[0].hits_addend = Some(2);
    asked.descriptors[0].is_negative_hits = true;
    server.ask(asked).expect("is answered");
    Hits { server: &server, labels: r#"domain="d",key1="ip""# }.are(5, 5, 0, 0);
    assert_eq!(server.metric(r#"ratelimit_service_rate_limit_total_negative_hits{domain="d",key1="ip"}"#), 2.0);
}

const VALUES: &str = r#"
domain: d
descriptors:
  - {key: valued, rate_limit: {unit: day, requests_per_unit: 10}, value_to_metric: true}
  - {key: globbed, value: "a*", rate_limit: {unit: day, requests_per_unit: 10}, value_to_metric: true}
  - key: shared
    value: "a*"
    rate_limit: {unit: day, requests_per_unit: 10}
    value_to_metric: true
    share_threshold: true
  - key: outer
    descriptors:
      - {key: plain, rate_limit: {unit: day, requests_per_unit: 10}}
      - {key: detailed, rate_limit: {unit: day, requests_per_unit: 10}, detailed_metric: true}
      - {key: mixed, rate_limit: {unit: day, requests_per_unit: 10}, value_to_metric: true}
"#;

#[test]
fn values_of_requests_are_labels_only_where_a_rule_asks_for_it() {
    let server = Server::start(VALUES);
    take(&server, &[("valued", "x")], 1);
    take(&server, &[("valued", "")], 2);
    take(&server, &[("globbed", "abc")], 3);
    take(&server, &[("shared", "abc")], 4);
    take(&server, &[("outer", "o"), ("plain", "p")], 5);
    take(&server, &[("outer", "o"), ("detailed", "p")], 6);
    take(&server, &[("outer", "o"), ("mixed", "p")], 7);
    let hits = |labels| Hits { server: &server, labels };
    hits(r#"domain="d",key1="valued_x""#).are(1, 1, 0, 0);
    hits(r#"domain="d",key1="valued""#).are(2, 2, 0, 0);
    hits(r#"domain="d",key1="globbed_abc""#).are(3, 3, 0, 0);
    hits(r#"domain="d",key1="shared_a*""#).are(4, 4, 0, 0);
    hits(r#"domain="d",key1="outer",key2="plain""#).are(5, 5, 0, 0);
    hits(r#"domain="d",key1="outer_o",key2="detailed_p""#).are(6, 6, 0, 0);
    hits(r#"domain="d",key1="outer",key2="mixed_p""#).are(7, 7, 0, 0);
}

#[test]
fn series_by_value_are_bounded_and_the_rest_is_counted_in_one() {
    const ASKED: u32 = 1_250;
    const SERIES_MAX: u32 = 1_000;
    let server = Server::start(VALUES);
    let values: Vec<String> = (0..ASKED).map(|value| value.to_string()).collect();
    for some in values.chunks(250) {
        let descriptors = some.iter().map(|value| descriptor(&[("valued", value)])).collect();
        server.ask(Request { domain: "d".to_owned(), descriptors, hits_addend: 0 }).expect("is answered");
    }
    let scrape = server.scrape();
    let series = scrape.of("ratelimit_service_rate_limit_total_hits");
    let total: f64 = series.iter().map(|(_, value)| value).sum();
    assert_eq!(total, f64::from(ASKED), "no hit is lost");
    let overflow: Vec<_> = series.iter().filter(|(labels, _)| labels["key1"].contains("overflow")).collect();
    let [(_, overflown)] = overflow[..] else { panic!("one overflow series, not {overflow:?}") };
    assert_eq!(*overflown, f64::from(ASKED - SERIES_MAX));
    assert_eq!(series.len(), 1_001);
}

#[test]
fn an_unknown_domain_is_counted_for_each_descriptor() {
    let server = Server::start(RULES);
    let descriptors = vec![descriptor(&[("ip", "1")]), descriptor(&[("ip", "2")])];
    server.ask(Request { domain: "elsewhere".to_owned(), descriptors, hits_addend: 0 }).expect("is answered");
    let scrape = server.scrape();
    let series = scrape.of("ratelimit_service_rate_limit_domain_not_found");
    assert_eq!(series.iter().map(|(_, value)| value).sum::<f64>(), 2.0);
    let names_callers_domain = series.iter().any(|(labels, _)| labels.values().any(|value| value == "elsewhere"));
    assert!(!names_callers_domain, "a caller cannot make series: {series:?}");
}

#[test]
fn global_shadow_mode_counts_the_requests_that_it_let_through() {
    let server = Server::builder().file("rules.yaml", RULES).env("SHADOW_MODE", "true").start();
    take(&server, &[("ip", "1")], 10);
    assert_eq!(server.metric("ratelimit_service_global_shadow_mode"), 0.0);
    take(&server, &[("ip", "1")], 1);
    take(&server, &[("ip", "1")], 1);
    assert_eq!(server.metric("ratelimit_service_global_shadow_mode"), 2.0);
}

#[test]
fn calls_are_counted_by_method_and_errors_by_kind() {
    let server = Server::start(RULES);
    take(&server, &[("ip", "1")], 1);
    server.ask(request("", &[("ip", "1")])).expect_err("the domain is empty");
    let scrape = server.scrape();
    assert_eq!(scrape.value(r#"ratelimit_service_total_requests{grpc_method="ShouldRateLimit"}"#), Some(2.0));
    assert_eq!(scrape.value(r#"ratelimit_service_should_rate_limit_error{err_type="service_error"}"#), Some(1.0));
    assert_eq!(scrape.kind("ratelimit_service_response_time_seconds"), Some("histogram"));
    let count = r#"ratelimit_service_response_time_seconds_count{grpc_method="ShouldRateLimit"}"#;
    assert_eq!(scrape.value(count), Some(2.0));
}

#[test]
fn a_load_of_rules_is_counted_and_the_rules_in_use_are_told() {
    let server = Server::start(RULES);
    let scrape = server.scrape();
    assert_eq!(scrape.value("ratelimit_service_config_load_success"), Some(1.0));
    assert_eq!(scrape.value("ratelimit_service_config_load_error"), Some(0.0));
    assert_eq!(scrape.value("sluice_domains"), Some(1.0));
    assert_eq!(scrape.value("sluice_rules"), Some(9.0));
}

#[test]
fn decisions_are_counted_by_rule_and_result() {
    let server = Server::start(RULES);
    take(&server, &[("ip", "1")], 10);
    take(&server, &[("ip", "1")], 1);
    take(&server, &[("ip", "1")], 1);
    assert_eq!(server.metric(r#"sluice_decisions_total{domain="d",rule="ip",result="allowed"}"#), 1.0);
    assert_eq!(server.metric(r#"sluice_decisions_total{domain="d",rule="ip",result="refused"}"#), 2.0);
    assert_eq!(server.metric(r#"sluice_hits_total{domain="d",rule="ip"}"#), 12.0);
    assert_eq!(server.metric("sluice_decision_duration_seconds_count"), 3.0);
}

#[test]
fn the_counters_of_the_reference_are_counters_without_a_suffix() {
    let server = Server::start(RULES);
    take(&server, &[("ip", "1")], 11);
    let scrape = server.scrape();
    for name in ["total_hits", "over_limit", "near_limit", "within_limit", "shadow_mode"] {
        assert_eq!(scrape.kind(&format!("ratelimit_service_rate_limit_{name}")), Some("counter"), "{name}");
    }
}

#[test]
fn limits_that_come_with_requests_are_counted_by_domain() {
    let rules = "{key: a, rate_limit: {unit: day, requests_per_unit: 10}}";
    let server =
        Server::start(&format!("domain: one\ndescriptors: [{rules}]\n---\ndomain: two\ndescriptors: [{rules}]\n"));
    for domain in ["one", "two", "two"] {
        let mut asked = request(domain, &[("ip", "1")]);
        let unit = grpc::OverrideUnit::Day.into();
        asked.descriptors[0].limit = Some(grpc::Override { requests_per_unit: 10, unit, unit_multiplier: None });
        server.ask(asked).expect("is answered");
    }
    let hits = |domain| {
        server.metric(&format!("ratelimit_service_rate_limit_total_hits{{domain=\"{domain}\",key1=\"ip_1\"}}"))
    };
    assert_eq!((hits("one"), hits("two")), (1.0, 2.0));
}
