//! What rules mean once they are compiled.

use super::*;
use crate::engine::{
    quota::{Algorithm, OnOverLimit, Quota, Unit},
    request::Entry,
    rule::{Limit, OnStoreFailure, Rule},
    tree::Options,
};

fn find<'c>(compiled: &'c Compiled, domain: &str, entries: &[(&str, &str)]) -> Option<&'c Rule> {
    let entries: Vec<Entry<'_>> = entries.iter().map(|(key, value)| Entry { key, value }).collect();
    let (rule, _) = compiled.set.domain(domain)?.find(&entries)?;
    Some(rule)
}

fn quotas(rule: &Rule) -> Vec<(&Quota, Option<&str>)> {
    match &rule.limit {
        Limit::Unlimited => Vec::new(),
        Limit::Counted(counted) => counted.iter().map(|counted| (&*counted.quota, counted.plan.as_deref())).collect(),
    }
}

/// `algorithm on_over_limit requests/period+burst ...`, for each quota.
fn limits(rule: &Rule) -> Vec<String> {
    let show = |(quota, plan): (&Quota, Option<&str>)| {
        let over = if quota.on_over_limit() == OnOverLimit::Spare { "spare" } else { "charge" };
        let rates: Vec<String> = quota
            .rates()
            .iter()
            .map(|rate| format!("{}/{}+{}", rate.requests(), rate.period(), rate.capacity()))
            .collect();
        let plan = plan.map(|plan| format!("{plan}: ")).unwrap_or_default();
        let tracks = if quota.track_denials() { " tracks" } else { "" };
        format!("{plan}{} {over} {}{tracks}", quota.algorithm().name(), rates.join(" "))
    };
    quotas(rule).into_iter().map(show).collect()
}

const LAW: &str = r"
domain: edge
partition_by: [tenant]
defaults:
  on_over_limit: spare
  on_store_failure: deny
plans:
  gold:  {algorithm: token_bucket, requests_per_unit: 50, unit: second, burst: 200}
  daily: {requests_per_unit: 100000, unit: day}
descriptors:
  - key: remote_address
    rate_limit: {unit: minute, requests_per_unit: 60}
  - key: api_key
    rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: 10, burst: 100}
  - key: user
    rate_limit:
      algorithm: leaky_bucket
      rates:
        - {name: per_second, requests_per_unit: 10,   unit: second, burst: 100}
        - {name: per_hour,   requests_per_unit: 10000, unit: hour,  burst: 10000}
  - key: tenant
    rate_limit: {plans: [gold, daily]}
  - key: report
    rate_limit: {requests_per_unit: 3, unit: minute, unit_multiplier: 5}
";

#[test]
fn the_example_of_the_law_means_what_the_law_says() {
    let compiled = compiled(LAW);
    let limits = |key: &str| limits(find(&compiled, "edge", &[(key, "x")]).unwrap());
    assert_eq!(limits("remote_address"), ["fixed_window spare 60/minute+60"]);
    assert_eq!(limits("api_key"), ["token_bucket spare 10/second+100"]);
    assert_eq!(limits("user"), ["leaky_bucket spare 10/second+100 10000/hour+10000"]);
    assert_eq!(
        limits("tenant"),
        ["gold: token_bucket spare 50/second+200", "daily: fixed_window spare 100000/day+100000"]
    );
    assert_eq!(limits("report"), ["fixed_window spare 3/5 minutes+3"]);
    assert!(compiled.set.rules().iter().all(|rule| rule.on_store_failure == Some(OnStoreFailure::Deny)));
    assert_eq!(*compiled.set.domain("edge").unwrap().partition_by, [Box::<str>::from("tenant")]);
    let names: Vec<_> =
        quotas(find(&compiled, "edge", &[("user", "x")]).unwrap())[0].0.rates().iter().map(|r| r.name()).collect();
    assert_eq!(names, [Some("per_second"), Some("per_hour")]);
}

#[test]
fn a_rule_wins_over_its_plan_its_plan_over_the_defaults_and_these_over_the_algorithm() {
    let rules = |defaults: &str| {
        compiled(&format!(
            "{defaults}
domain: d
plans:
  own: {{requests_per_unit: 1, unit: second, on_over_limit: charge, track_denials: false}}
  open: {{algorithm: token_bucket, requests_per_unit: 1, unit: second}}
descriptors:
  - {{key: a, rate_limit: {{requests_per_unit: 1, unit: second}}}}
  - {{key: b, rate_limit: {{requests_per_unit: 1, unit: second, on_over_limit: charge, on_store_failure: error}}}}
  - {{key: c, rate_limit: {{plans: [own, open]}}}}
  - {{key: d, rate_limit: {{plans: [own, open], on_over_limit: spare, track_denials: true}}}}
  - {{key: e, rate_limit: {{plan: open, on_over_limit: charge}}}}
"
        ))
    };
    let with = rules(
        "defaults: {on_over_limit: spare, algorithm: sliding_window, track_denials: true, on_store_failure: local}",
    );
    let without = rules("");
    let of = |compiled: &Compiled, key: &str| limits(find(compiled, "d", &[(key, "x")]).unwrap());
    assert_eq!(of(&with, "a"), ["sliding_window spare 1/second+1 tracks"]);
    assert_eq!(of(&without, "a"), ["fixed_window charge 1/second+1"]);
    assert_eq!(of(&with, "b"), ["sliding_window charge 1/second+1 tracks"]);
    assert_eq!(of(&with, "c"), ["own: sliding_window charge 1/second+1", "open: token_bucket spare 1/second+1 tracks"]);
    assert_eq!(of(&without, "c"), ["own: fixed_window charge 1/second+1", "open: token_bucket spare 1/second+1"]);
    assert_eq!(
        of(&without, "d"),
        ["own: fixed_window spare 1/second+1 tracks", "open: token_bucket spare 1/second+1 tracks"]
    );
    assert_eq!(of(&without, "e"), ["open: token_bucket charge 1/second+1"]);
    let failure = |compiled: &Compiled, key: &str| find(compiled, "d", &[(key, "x")]).unwrap().on_store_failure;
    assert_eq!(failure(&with, "a"), Some(OnStoreFailure::Local));
    assert_eq!(failure(&with, "b"), Some(OnStoreFailure::Error));
    assert_eq!(failure(&without, "a"), None);
}

#[test]
fn a_rule_knows_its_path_its_flags_and_its_place() {
    let compiled = compiled(
        "
domain: d
descriptors:
  - key: a
    value: x*
    share_threshold: true
    descriptors:
      - key: b
        shadow_mode: true
        quota_mode: yes
        detailed_metric: true
        rate_limit: {unit: Second, requests_per_unit: 0x10, name: n, replaces: [{name: m}]}
        metadata: {k: [1, 2.5, null, yes], 7: {x: text}}
  - {key: c, value: 007, value_to_metric: true, rate_limit: {unlimited: true, name: m}}
  - {key: c, value: allowed}
",
    );
    let rule = find(&compiled, "d", &[("a", "xyz"), ("b", "any")]).unwrap();
    assert_eq!(*rule.path, ["a_x*", "b"].map(Box::<str>::from));
    assert_eq!((rule.id, rule.name.as_deref(), &*rule.domain), (0, Some("n"), "d"));
    assert_eq!(*rule.replaces, ["m"].map(Box::<str>::from));
    assert!(rule.shadow && rule.quota_mode && rule.detailed_metric);
    let (quota, _) = quotas(rule)[0];
    assert_eq!((quota.algorithm(), quota.rates()[0].requests()), (Algorithm::FixedWindow, 16));
    assert_eq!(quota.rates()[0].period().unit(), Unit::Second);
    let metadata = serde_json::to_value(compiled.metadata[0].as_deref()).unwrap();
    assert_eq!(metadata, serde_json::json!({"k": [1, 2.5, null, true], "7": {"x": "text"}}));

    let unlimited = find(&compiled, "d", &[("c", "007")]).unwrap();
    assert_eq!((unlimited.id, &unlimited.limit), (1, &Limit::Unlimited));
    assert_eq!((compiled.metadata.len(), &compiled.metadata[1]), (2, &None));
    assert!(find(&compiled, "d", &[("c", "allowed")]).is_none());

    let tree = compiled.set.domain("d").unwrap();
    let entry = |key, value| Entry { key, value };
    assert_eq!(tree.walk(&[entry("a", "xyz")])[0].shared_pattern(), Some("x*"));
    assert!(tree.walk(&[entry("c", "007")])[0].node.value_to_metric);
}

#[test]
fn ids_follow_the_order_of_the_files() {
    let rule = |key: &str| format!("{{key: {key}, rate_limit: {{unit: second, requests_per_unit: 1}}");
    let first =
        format!("domain: one\ndescriptors:\n  - {}, descriptors: [{}}}]}}\n  - {}}}", rule("a"), rule("b"), rule("c"));
    let second = format!("domain: two\ndescriptors: [{}}}]\n", rule("d"));
    let compiled = compile(&[source("1", &first), source("2", &second)], &CompileOptions::default()).unwrap();
    let paths: Vec<String> = compiled.set.rules().iter().map(|rule| rule.path.join(".")).collect();
    assert_eq!(paths, ["a", "a.b", "c", "d"]);
    assert!(compiled.set.rules().iter().enumerate().all(|(index, rule)| rule.id == index));
}

#[test]
fn no_sources_and_no_rules_are_legal() {
    let empty = compile(&[], &CompileOptions::default()).unwrap();
    assert_eq!(empty.set.domains().count(), 0);
    assert!(compiled("domain: d").set.domain("d").is_some());
}

#[test]
fn options_reach_the_set() {
    let engine = Options { key_prefix: "p:".into(), shadow: true, quota_mode: true };
    let options = CompileOptions { engine: engine.clone(), merge_domains: false };
    assert_eq!(*compile(&[source("r", "domain: d")], &options).unwrap().set.options(), engine);
}

fn merged() -> CompileOptions {
    CompileOptions { merge_domains: true, ..CompileOptions::default() }
}

#[test]
fn one_domain_in_two_files_is_refused_unless_domains_are_merged() {
    let first = source(
        "1.yaml",
        "domain: d\ndescriptors: [{key: a, value: x*, rate_limit: {unit: second, requests_per_unit: 1}}]",
    );
    let second = source(
        "2.yaml",
        "domain: d\ndescriptors: [{key: a, value: '*', rate_limit: {unit: hour, requests_per_unit: 2}}]",
    );
    let sources = [first, second];
    let errors = compile(&sources, &CompileOptions::default()).unwrap_err();
    assert_eq!(errors.len(), 1);
    assert_eq!(errors[0].message, "duplicate domain 'd' in config file, first in 1.yaml:1:9");
    assert_eq!((&*errors[0].file, errors[0].line, errors[0].column), ("2.yaml", 1, 9));

    let compiled = compile(&sources, &merged()).unwrap();
    assert_eq!(find(&compiled, "d", &[("a", "xy")]).unwrap().id, 0);
    assert_eq!(find(&compiled, "d", &[("a", "other")]).unwrap().id, 1);
}

#[test]
fn merged_domains_share_no_descriptor_and_one_partition() {
    let first = source("1.yaml", "domain: d\npartition_by: t\ndescriptors: [{key: a}]");
    let second = source("2.yaml", "domain: d\ndescriptors: [{key: a, descriptors: [{key: b}]}]");
    let errors = compile(&[first.clone(), second], &merged()).unwrap_err();
    assert_eq!(errors[0].message, "duplicate descriptor composite key 'd.a', first in 1.yaml:3:21");
    let other = source("2.yaml", "domain: d\npartition_by: u\n");
    let errors = compile(&[first.clone(), other], &merged()).unwrap_err();
    assert_eq!(errors[0].message, "partition_by differs from the one in 1.yaml:1:9");
    let same = source("2.yaml", "domain: d\npartition_by: [t]\n");
    assert!(compile(&[first, same], &merged()).is_ok());
}

#[test]
fn mistakes_of_all_files_come_together_with_path_and_tree_path() {
    let first = source(
        "1.yaml",
        "domain: d\ndescriptors:\n  - key: a\n    descriptors:\n      - {key: b, value: c, rate_limit: {unit: x, requests_per_unit: 1}}",
    );
    let second = source("2.yaml", "domain: e\nplans: {gold: {rates: [{unit: second, requests_per_unit: -1}]}}\nfoo: 1");
    let third = source("3.yaml", "domain: [");
    let errors = compile(&[first, second, third], &CompileOptions::default()).unwrap_err();
    let shown: Vec<String> =
        errors.iter().map(|error| format!("{} {} ({})", error.file, error.path, error.tree_path)).collect();
    assert_eq!(
        shown,
        [
            "1.yaml descriptors[0].descriptors[0].rate_limit.unit (d > a > b_c)",
            "2.yaml plans.gold.rates[0].requests_per_unit (e)",
            "2.yaml  (e)",
            "3.yaml  ()",
        ]
    );
}

#[test]
fn mistakes_come_with_hints() {
    for (rules, hint) in [
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: {unit: minutes, requests_per_unit: 1}}]",
            "did you mean 'minute'?",
        ),
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: {unit: second, requests_per_unit: '5'}}]",
            "remove the quotes: 5",
        ),
        ("domain: d\ndescriptors: [{key: a, shadow_mode: 'yes'}]", "remove the quotes: yes"),
        ("domain: d\ndescriptors: [{key: a, value: 1.10}]", "quote it: \"1.10\""),
        ("domain: d\ndescriptors: [{key: a, unlimited: true}]", "it belongs inside rate_limit"),
        (
            "domain: d\nplans: {gold: {unit: day, requests_per_unit: 1}}\ndescriptors: [{key: a, rate_limit: {plan: glod}}]",
            "did you mean 'gold'?",
        ),
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: {algorithm: token_buckt, unit: day, requests_per_unit: 1}}]",
            "did you mean 'token_bucket'?",
        ),
    ] {
        let errors = errors(rules);
        assert_eq!(errors.len(), 1, "{}", shown(&errors));
        assert_eq!(errors[0].hint.as_deref(), Some(hint));
    }
}

#[test]
fn a_mistake_behind_very_many_aliases_does_not_flood() {
    let aliases = "  - *x\n".repeat(5_000);
    let errors = errors(&format!("domain: d\ndescriptors:\n  - &x {{key: a, foo: 1}}\n{aliases}"));
    assert_eq!(errors.len(), crate::config::diagnostic::SHOWN_MAX);
    assert!(errors.last().unwrap().hint.as_deref().unwrap().contains("more are not shown"));
}

#[test]
fn a_hundred_thousand_rules_compile_and_are_found() {
    use std::fmt::Write as _;
    let mut text = "domain: big\ndescriptors:\n".to_owned();
    for n in 0..100_000 {
        let _ = write!(
            text,
            "  - key: user\n    value: user-{n}\n    rate_limit:\n      unit: minute\n      requests_per_unit: {n}\n"
        );
    }
    let compiled = compiled(&text);
    assert_eq!(compiled.set.rules().len(), 100_000);
    for n in [0_u32, 1, 777, 99_999] {
        let rule = find(&compiled, "big", &[("user", &format!("user-{n}"))]).unwrap();
        assert_eq!(quotas(rule)[0].0.rates()[0].requests(), n);
    }
    assert!(find(&compiled, "big", &[("user", "user-100000")]).is_none());
}
