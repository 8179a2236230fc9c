//! What is allowed and told.

use super::*;
use crate::config::Severity;

/// `line:column message`, for each warning about `descriptors` written after `domain: d` on lines 2 and on.
fn warned(rules: &str) -> Vec<String> {
    let show =
        |found: Diagnostic| format!("{} {}:{} {}", found.severity.name(), found.line, found.column, found.message);
    compiled(rules).warnings.into_iter().map(show).collect()
}

#[track_caller]
fn check(rules: &str, expected: &[&str]) {
    let found = warned(rules);
    let matches = found.len() == expected.len() && found.iter().zip(expected).all(|(found, part)| found.contains(part));
    assert!(matches, "{rules}\n{found:#?}");
}

const LIMIT: &str = "rate_limit: {unit: second, requests_per_unit: 1}";

fn globs(values: &[&str]) -> String {
    let lines: String = values.iter().map(|value| format!("  - {{key: k, value: '{value}', {LIMIT}}}\n")).collect();
    format!("domain: d\ndescriptors:\n{lines}")
}

#[test]
fn a_pattern_behind_one_that_covers_it_never_applies() {
    check(&globs(&["foo*", "foobar*"]), &["warning 4:21 'foo*' (3:21) matches everything that this would"]);
    check(&globs(&["foobar*", "foo*", "*"]), &[]);
    check(&globs(&["*", "foo", ""]), &["5:11 '*' (3:21) matches everything"]);
}

#[test]
fn rules_below_an_unreachable_pattern_are_counted() {
    let rules = format!(
        "domain: d\ndescriptors:\n  - {{key: k, value: '*'}}\n  - key: k\n    value: 'a*'\n    {LIMIT}\n    descriptors: [{{key: x, {LIMIT}}}]\n"
    );
    check(&rules, &["5:12 '*' (3:21) matches everything that this would, so that its 2 rules can never apply"]);
}

#[test]
fn patterns_that_can_both_match_are_told() {
    check(&globs(&["a*", "*b"]), &["warning 4:21 '*b' and 'a*' (3:21) can both match a value; 'a*' wins"]);
    check(&globs(&["a*", "b*"]), &[]);
    check(&globs(&["*a", "*b"]), &[]);
    check(&globs(&["x*a*y", "x*b*y"]), &["can both match"]);
}

#[test]
fn very_many_patterns_are_told_instead_of_compared() {
    let values: Vec<String> = (0..600).map(|n| format!("{n}-*-{n}")).collect();
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    check(&globs(&values), &["'k' has 600 patterns, and each request may try all of them"]);
}

#[test]
fn a_limit_of_zero_blocks_everything() {
    check(
        "domain: d\ndescriptors:\n  - {key: a, rate_limit: {unit: second, requests_per_unit: 0}}\n",
        &["warning 3:60 a limit of 0 blocks everything"],
    );
}

#[test]
fn a_star_in_a_key_is_no_pattern() {
    check(
        &format!("domain: d\ndescriptors:\n  - {{key: 'a*', {LIMIT}}}\n"),
        &["3:11 a `*` in a key is an ordinary character"],
    );
}

#[test]
fn replacing_nothing_is_told_and_names_are_sought_in_all_files_of_the_domain() {
    let rule = "domain: d\ndescriptors:\n  - {key: a, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: gone}]}}\n";
    check(rule, &["3:78 no rule of this domain is named 'gone'"]);
    let other = "domain: d\ndescriptors:\n  - {key: b, rate_limit: {unit: day, requests_per_unit: 1, name: gone}}\n";
    let options = CompileOptions { merge_domains: true, ..CompileOptions::default() };
    assert!(compile(&[source("1", rule), source("2", other)], &options).unwrap().warnings.is_empty());
}

#[test]
fn a_plan_that_no_rule_uses_is_told() {
    check(
        "domain: d\nplans:\n  used: {unit: day, requests_per_unit: 1}\n  idle: {unit: day, requests_per_unit: 1}\ndescriptors:\n  - {key: a, rate_limit: {plan: used}}\n",
        &["warning 4:3 no rule uses the plan 'idle'"],
    );
}

#[test]
fn a_mode_without_a_limit_has_no_effect() {
    check(
        "domain: d\ndescriptors:\n  - {key: a, shadow_mode: true, quota_mode: true}\n  - {key: b, shadow_mode: false}\n",
        &["3:27 shadow_mode has no effect", "3:45 quota_mode has no effect"],
    );
}

#[test]
fn what_has_no_effect_beside_unlimited_is_told() {
    check(
        "domain: d\ndescriptors:\n  - {key: a, rate_limit: {unlimited: true, requests_per_unit: 5, unit: banana}}\n",
        &["requests_per_unit has no effect when unlimited", "the unit 'banana' has no effect when unlimited"],
    );
}

#[test]
fn a_coarse_clock_is_told() {
    check(
        "domain: d\ndescriptors:\n  - {key: a, rate_limit: {algorithm: token_bucket, unit: year, requests_per_unit: 4000000, burst: 4000000}}\n",
        &["warning 3:99 the bucket is so large or so slow that its clock ticks every 100 ms"],
    );
}

#[test]
fn a_rate_that_another_one_makes_idle_is_told() {
    let rates = |algorithm: &str, first: &str, second: &str| {
        format!(
            "domain: d\ndescriptors:\n  - key: a\n    rate_limit:\n      algorithm: {algorithm}\n      on_over_limit: spare\n      rates:\n        - {first}\n        - {second}\n"
        )
    };
    let slow = "{unit: hour, requests_per_unit: 36000, burst: 200}";
    let fast = "{unit: second, requests_per_unit: 10, burst: 100}";
    check(&rates("token_bucket", fast, slow), &["9:11 this rate can never refuse, because rates[0] is narrower"]);
    check(&rates("token_bucket", slow, fast), &["8:11 this rate can never refuse, because rates[1] is narrower"]);
    check(&rates("token_bucket", fast, fast), &["9:11 this rate can never refuse, because rates[0]"]);
    check(&rates("token_bucket", fast, "{unit: hour, requests_per_unit: 35999, burst: 200}"), &[]);
    let (second, hour) = ("{unit: second, requests_per_unit: 10}", "{unit: hour, requests_per_unit: 36000}");
    check(&rates("fixed_window", second, hour), &["9:11 this rate can never refuse"]);
    check(&rates("fixed_window", second, "{unit: hour, requests_per_unit: 35999}"), &[]);
    // A refused request would count for the hour too.
    check(&rates("fixed_window", second, hour).replace("spare", "charge"), &[]);
}

#[test]
fn a_partition_tells_which_rules_share_a_call() {
    let rules = format!(
        "domain: d\npartition_by: [tenant, nowhere]\ndescriptors:\n  - {{key: ip, {LIMIT}}}\n  - key: tenant\n    {LIMIT}\n    descriptors: [{{key: user, value: x, {LIMIT}}}]\n"
    );
    let mut found = warned(&rules);
    found.sort();
    assert_eq!(
        found,
        [
            "info 2:15 1 of 3 rules share the domain's own call in a cluster, because none of the entries is in their paths: ip",
            "info 2:15 2 of 3 rules share one call per value of tenant in a cluster: tenant, tenant > user_x",
            "warning 2:24 no rule of this document has an entry 'nowhere' in its path",
        ]
    );
}

#[test]
fn refused_rules_give_errors_only() {
    let errors = errors("domain: d\nplans: {idle: {unit: day, requests_per_unit: 0}}\nfoo: 1\n");
    assert!(errors.iter().all(|error| error.severity == Severity::Error));
    assert_eq!(errors.len(), 1);
}
