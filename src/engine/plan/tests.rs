mod shown;

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::engine::{
    algorithm::{self, Decision, State},
    quota::{Algorithm, OnOverLimit, Period, RateSpec, Unit},
    scenarios::START_US,
    tree::{Level, Node, Options},
    verdict::{Code, Shown, Status, Verdict},
};

fn period(unit: Unit) -> Period {
    Period::try_new(unit, 1).unwrap()
}

fn window(requests: u32, unit: Unit) -> Counted {
    Counted { quota: Arc::new(Quota::fixed_window(requests, period(unit)).unwrap()), plan: None }
}

fn bucket(requests: u32, unit: Unit, burst: u32) -> Counted {
    let spec = RateSpec { requests, period: period(unit), burst: Some(burst), name: None };
    let quota = Quota::try_new(Algorithm::TokenBucket, vec![spec], OnOverLimit::Spare, false).unwrap();
    Counted { quota: Arc::new(quota), plan: None }
}

/// A rule of one level with whatever a test needs to say about it.
fn rule(key: &str, counted: impl IntoIterator<Item = Counted>) -> Rule {
    Rule {
        id: 0,
        domain: "d".into(),
        path: [key.into()].into(),
        name: Some(key.into()),
        replaces: [].into(),
        limit: Limit::Counted(counted.into_iter().collect()),
        shadow: false,
        quota_mode: false,
        detailed_metric: false,
        on_store_failure: None,
    }
}

fn unlimited(key: &str) -> Rule {
    Rule { limit: Limit::Unlimited, ..rule(key, []) }
}

fn replacing(names: &[&str], rule: Rule) -> Rule {
    Rule { replaces: names.iter().map(|name| Box::from(*name)).collect(), ..rule }
}

fn shadow(rule: Rule) -> Rule {
    Rule { shadow: true, ..rule }
}

fn in_quota_mode(rule: Rule) -> Rule {
    Rule { quota_mode: true, ..rule }
}

/// Each rule stands at the key that its path names.
fn rules(rules: Vec<Rule>) -> RuleSet {
    rules_with(Options::default(), rules)
}

fn rules_with(options: Options, rules: Vec<Rule>) -> RuleSet {
    let mut root = Level::default();
    let rules: Vec<Arc<Rule>> = rules.into_iter().map(Arc::new).collect();
    for rule in &rules {
        root.insert(&rule.path[0], "", Node { rule: Some(rule.clone()), ..Node::default() }).unwrap();
    }
    RuleSet::new(vec![RuleTree { domain: "d".into(), partition_by: [].into(), root }], rules, options)
}

fn descriptor<'a>(entries: &[(&'a str, &'a str)], hits: u64) -> Descriptor<'a> {
    let entries = entries.iter().map(|(key, value)| Entry { key, value }).collect();
    Descriptor { entries, hits: Hits::take(hits), override_quota: None }
}

/// One descriptor for each key.
fn request<'a>(keys: &[&'a str]) -> Request<'a> {
    Request { domain: "d", descriptors: keys.iter().map(|key| descriptor(&[(key, "v")], 1)).collect() }
}

/// Decides on fresh counters.
fn decide(plan: &Plan) -> Vec<Decision> {
    let quota_of = |slot| &plan.checks.iter().find(|check| check.slot == slot).unwrap().quota;
    let mut states: Vec<State> = (0..plan.keys.len()).map(|slot| State::absent(quota_of(slot))).collect();
    algorithm::decide(START_US, &plan.checks, &mut states).0.to_vec()
}

fn codes(verdict: &Verdict<'_>) -> (Code, Vec<Code>) {
    (verdict.code, verdict.statuses.iter().map(|status| status.code).collect())
}

fn is_free(matched: &Match) -> bool {
    matches!(matched, Match::Free)
}

use Code::{Ok as Pass, OverLimit as Over};

#[test]
fn each_status_answers_its_descriptor() {
    let set = rules(vec![rule("a", [window(5, Unit::Minute)]), unlimited("u")]);
    let plan = set.plan(&request(&["a", "u", "nothing"]));
    let decisions = decide(&plan);
    let verdict = plan.conclude(&decisions);
    let shown = Shown { requests: 5, period: period(Unit::Minute), name: Some("a") };
    let counted = Status { code: Pass, limit: Some(shown), remaining: 4, reset_s: Some(60), retry_s: Some(1) };
    assert_eq!(verdict.statuses[..], [counted, Status::free(u32::MAX), Status::free(0)]);
    assert_eq!((verdict.code, verdict.masked, verdict.retry_after_s), (Pass, false, Some(0)));
    assert_eq!(verdict.described, Some(0));
    assert_eq!(plan.checks.len(), 1);
}

#[test]
fn an_unknown_domain_and_an_empty_descriptor_are_free() {
    let set = rules(vec![rule("a", [window(5, Unit::Minute)])]);
    let elsewhere = set.plan(&Request { domain: "other", ..request(&["a"]) });
    assert!(elsewhere.unknown_domain && elsewhere.matches.iter().all(is_free) && elsewhere.checks.is_empty());
    assert_eq!(elsewhere.conclude(&[]).code, Pass);

    let overridden = Descriptor { override_quota: Some(window(1, Unit::Hour).quota), ..descriptor(&[], 1) };
    let empty = set.plan(&Request { domain: "d", descriptors: [overridden].into_iter().collect() });
    assert!(!empty.unknown_domain && is_free(&empty.matches[0]));
    assert_eq!(empty.conclude(&[]).described, None);
}

#[test]
fn a_replaced_rule_is_free_even_if_the_one_that_replaces_it_is_replaced() {
    let five = || [window(5, Unit::Minute)];
    let set =
        rules(vec![replacing(&["b"], rule("a", five())), replacing(&["c"], rule("b", five())), rule("c", five())]);
    let plan = set.plan(&request(&["c", "b", "a"]));
    assert_eq!(plan.matches.iter().map(is_free).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(plan.checks.len(), 1);
    // One that is not there replaces nothing.
    assert_eq!(set.plan(&request(&["c", "a"])).checks.len(), 2);
}

#[test]
fn rules_that_replace_each_other_both_go() {
    let five = || [window(5, Unit::Minute)];
    let set = rules(vec![replacing(&["b"], rule("a", five())), replacing(&["a"], rule("b", five()))]);
    assert!(set.plan(&request(&["a", "b"])).matches.iter().all(is_free));
}

#[test]
fn an_unlimited_rule_replaces_and_is_not_replaced() {
    let set = rules(vec![replacing(&["b"], unlimited("a")), replacing(&["a"], rule("b", [window(0, Unit::Second)]))]);
    let plan = set.plan(&request(&["a", "b"]));
    assert!(matches!(plan.matches[0], Match::Unlimited(_)));
    assert!(is_free(&plan.matches[1]));
}

#[test]
fn a_rule_without_a_name_is_not_replaced() {
    let nameless = Rule { name: None, ..rule("a", [window(5, Unit::Minute)]) };
    let set = rules(vec![nameless, replacing(&[""], rule("b", [window(5, Unit::Minute)]))]);
    assert_eq!(set.plan(&request(&["a", "b"])).checks.len(), 2);
}

#[test]
fn a_limit_of_the_request_takes_the_place_of_the_rule_and_shares_its_counter_only_in_the_same_unit() {
    let set = rules(vec![rule("a", [window(5, Unit::Minute)])]);
    let with = |unit| Descriptor { override_quota: Some(window(9, unit).quota), ..descriptor(&[("a", "v")], 1) };
    let descriptors = [descriptor(&[("a", "v")], 1), with(Unit::Minute), with(Unit::Hour)];
    let plan = set.plan(&Request { domain: "d", descriptors: descriptors.into_iter().collect() });
    let slots: Vec<usize> = plan.checks.iter().map(|check| check.slot).collect();
    assert_eq!(slots, [0, 0, 1]);
    assert_eq!(plan.keys.iter().collect::<Vec<_>>(), ["{d}f60/1:a1:v", "{d}f3600/1:a1:v"]);
    let decisions = decide(&plan);
    let verdict = plan.conclude(&decisions);
    assert_eq!(verdict.statuses.iter().map(|status| status.remaining).collect::<Vec<_>>(), [4, 7, 8]);
    assert_eq!(verdict.statuses[1].limit.unwrap().name, None);
}

#[test]
fn no_two_units_share_the_counter_of_a_request_limit() {
    let set = rules(vec![]);
    let descriptors = Unit::ALL
        .map(|unit| Descriptor { override_quota: Some(window(9, unit).quota), ..descriptor(&[("x", "v")], 1) });
    let plan = set.plan(&Request { domain: "d", descriptors: descriptors.into_iter().collect() });
    assert_eq!(plan.keys.len(), Unit::ALL.len());
}

#[test]
fn equal_counters_are_one_and_see_each_other() {
    let set = rules(vec![rule("a", [window(1, Unit::Minute)])]);
    let plan = set.plan(&request(&["a", "a"]));
    assert_eq!((plan.keys.len(), plan.checks.len()), (1, 2));
    let decisions = decide(&plan);
    let verdict = plan.conclude(&decisions);
    assert_eq!(codes(&verdict), (Over, vec![Pass, Over]));
    // Two hits never fit into one.
    assert_eq!(verdict.retry_after_s, None);
}

#[test]
fn a_shadow_rule_counts_but_never_refuses() {
    let set = rules(vec![shadow(rule("s", [window(0, Unit::Hour)])), rule("e", [window(5, Unit::Hour)])]);
    let plan = set.plan(&request(&["s", "e"]));
    let decisions = decide(&plan);
    let verdict = plan.conclude(&decisions);
    assert_eq!(codes(&verdict), (Pass, vec![Pass, Pass]));
    assert!(!decisions[0].fits);
    assert_eq!((verdict.statuses[0].remaining, verdict.masked, verdict.retry_after_s), (0, false, Some(0)));
}

#[test]
fn in_global_shadow_mode_statuses_tell_and_the_verdict_passes() {
    let options = Options { shadow: true, ..Options::default() };
    let set = rules_with(options, vec![rule("a", [window(0, Unit::Hour)]), rule("b", [bucket(1, Unit::Hour, 2)])]);
    let plan = set.plan(&request(&["a", "b"]));
    let decisions = decide(&plan);
    let verdict = plan.conclude(&decisions);
    assert_eq!(codes(&verdict), (Pass, vec![Over, Pass]));
    assert_eq!((verdict.masked, verdict.retry_after_s), (true, Some(0)));
    // The request is not refused, so that a spared counter is charged too.
    assert_eq!(verdict.statuses[1].remaining, 1);
}

#[test]
fn quota_rules_refuse_only_together_and_beside_an_enforcing_one() {
    let none = || [window(0, Unit::Hour)];
    let some = || [window(5, Unit::Hour)];
    let quota = |key, counted| in_quota_mode(rule(key, counted));
    let set = rules(vec![
        quota("q0", none()),
        quota("q1", none()),
        quota("q5", some()),
        shadow(quota("qs", none())),
        rule("e0", none()),
        rule("e5", some()),
        unlimited("u"),
    ]);
    for (keys, expected) in [
        (&["q0"][..], Over),
        (&["q0", "q1"], Over),
        (&["q0", "q5"], Pass),
        (&["q0", "e5"], Over),
        (&["q5", "e0"], Over),
        (&["q0", "q5", "e5"], Pass),
        // A shadow rule counts as passing, an unlimited one and one without a match take no part.
        (&["q0", "qs"], Pass),
        (&["q0", "u"], Over),
        (&["q0", "nothing"], Over),
    ] {
        let plan = set.plan(&request(keys));
        let decisions = decide(&plan);
        assert_eq!(plan.conclude(&decisions).code, expected, "{keys:?}");
    }
}

#[test]
fn in_global_quota_mode_every_rule_is_a_quota_rule_and_what_is_unmatched_passes() {
    let options = Options { quota_mode: true, ..Options::default() };
    let set = rules_with(
        options,
        vec![
            rule("a", [window(0, Unit::Hour)]),
            rule("b", [window(1, Unit::Hour)]),
            unlimited("u"),
            shadow(rule("s", [window(0, Unit::Hour)])),
        ],
    );
    for (keys, expected) in
        [(&["a"][..], Over), (&["a", "b"], Pass), (&["a", "nothing"], Pass), (&["a", "u"], Over), (&["a", "s"], Pass)]
    {
        let plan = set.plan(&request(keys));
        let decisions = decide(&plan);
        assert_eq!(plan.conclude(&decisions).code, expected, "{keys:?}");
    }
}

#[test]
fn a_refused_request_waits_for_all_that_enforce_and_for_one_of_the_quotas() {
    let set = rules(vec![
        rule("second", [bucket(1, Unit::Second, 1)]),
        rule("minute", [bucket(1, Unit::Minute, 1)]),
        in_quota_mode(rule("hour", [bucket(1, Unit::Hour, 1)])),
        in_quota_mode(rule("day", [bucket(1, Unit::Day, 1)])),
        in_quota_mode(rule("never", [window(0, Unit::Second)])),
    ]);
    let retry_after_s = |keys: &[&str]| {
        let plan = set.plan(&request(keys));
        let mut states: Vec<State> = plan.checks.iter().map(|check| State::absent(&check.quota)).collect();
        algorithm::decide(START_US, &plan.checks, &mut states);
        // The buckets are empty now, whichever of them the first request was allowed to take from.
        for (check, state) in
            plan.checks.iter().zip(&mut states).filter(|(check, _)| check.quota.algorithm().is_bucket())
        {
            state.cells[0].used = check.quota.rates()[0].level_max();
        }
        let decisions = algorithm::decide(START_US, &plan.checks, &mut states).0;
        let verdict = plan.conclude(&decisions);
        assert_eq!(verdict.code, Over);
        verdict.retry_after_s
    };
    assert_eq!(retry_after_s(&["second", "minute"]), Some(60));
    assert_eq!(retry_after_s(&["hour", "day"]), Some(3_600));
    assert_eq!(retry_after_s(&["day", "hour", "minute"]), Some(3_600));
    assert_eq!(retry_after_s(&["never", "day"]), Some(86_400));
    assert_eq!(retry_after_s(&["never"]), None);
    assert_eq!(retry_after_s(&["never", "second"]), None);
}

#[test]
fn chained_plans_speak_with_the_voice_of_the_one_that_governs() {
    let named = |name: &str, counted: Counted| Counted { plan: Some(name.into()), ..counted };
    let chain = [named("gold", bucket(50, Unit::Second, 200)), named("daily", window(3, Unit::Day))];
    let set = rules(vec![Rule { name: None, ..rule("t", chain) }]);
    let ask = |hits| {
        let plan =
            set.plan(&Request { domain: "d", descriptors: [descriptor(&[("t", "v")], hits)].into_iter().collect() });
        assert_eq!(plan.checks.iter().map(|check| check.chained).collect::<Vec<_>>(), [false, true]);
        let decisions = decide(&plan);
        let verdict = plan.conclude(&decisions);
        let status = &verdict.statuses[0];
        (verdict.code, status.limit.unwrap().name.unwrap().to_owned(), status.remaining, verdict.retry_after_s)
    };
    assert_eq!(ask(1), (Pass, "daily".into(), 2, Some(0)));
    assert_eq!(ask(4), (Over, "daily".into(), 0, None));
}

#[test]
fn chained_plans_in_quota_mode_pass_only_together() {
    let chain = |key, limits: [u32; 2]| in_quota_mode(rule(key, limits.map(|limit| bucket(1, Unit::Hour, limit))));
    // Both of a chain are on counters of their own, because their plans differ.
    let with_plans = |mut rule: Rule| {
        if let Limit::Counted(counted) = &mut rule.limit {
            for (index, counted) in counted.iter_mut().enumerate() {
                counted.plan = Some(index.to_string().into());
            }
        }
        rule
    };
    let set = rules(vec![with_plans(chain("c", [9, 1])), with_plans(chain("d", [9, 9]))]);
    for (keys, hits, expected) in [(&["c"][..], 1, Pass), (&["c"], 2, Over), (&["c", "d"], 2, Pass)] {
        let descriptors = keys.iter().map(|key| descriptor(&[(key, "v")], hits)).collect();
        let plan = set.plan(&Request { domain: "d", descriptors });
        let decisions = decide(&plan);
        assert_eq!(plan.conclude(&decisions).code, expected, "{keys:?} {hits}");
        assert_eq!(algorithm::refuses(&plan.checks, &decisions), expected == Over);
    }
}

#[test]
fn a_bucket_that_refuses_resets_when_it_is_worth_trying_again() {
    let set = rules(vec![rule("b", [bucket(1, Unit::Minute, 4)]), rule("w", [window(1, Unit::Minute)])]);
    let ask = |key: &str, hits| {
        let plan =
            set.plan(&Request { domain: "d", descriptors: [descriptor(&[(key, "v")], hits)].into_iter().collect() });
        let mut states = [State::absent(&plan.checks[0].quota)];
        algorithm::decide(START_US, &plan.checks, &mut states);
        let decisions = algorithm::decide(START_US + 1, &plan.checks, &mut states).0;
        let verdict = plan.conclude(&decisions);
        (verdict.code, verdict.statuses[0].reset_s, verdict.retry_after_s)
    };
    assert_eq!(ask("b", 1), (Pass, Some(120), Some(0)));
    assert_eq!(ask("b", 3), (Over, Some(120), Some(120)));
    assert_eq!(ask("w", 1), (Over, Some(60), Some(60)));
    // Never: there is no time to promise, so that the time to a full bucket is told.
    assert_eq!(ask("b", 5), (Over, Some(1), None));
}

#[test]
fn a_shared_glob_is_one_counter_for_all_its_values() {
    for (share_threshold, expected) in [(true, 1), (false, 2)] {
        let rule = Arc::new(rule("path", [window(5, Unit::Minute)]));
        let mut root = Level::default();
        root.insert("path", "/v*", Node { rule: Some(rule), share_threshold, ..Node::default() }).unwrap();
        let tree = RuleTree { domain: "d".into(), partition_by: [].into(), root };
        let set = RuleSet::new(vec![tree], vec![], Options::default());
        let descriptors = ["/v1", "/v2"].map(|value| descriptor(&[("path", value)], 1));
        let plan = set.plan(&Request { domain: "d", descriptors: descriptors.into_iter().collect() });
        assert_eq!(plan.keys.len(), expected);
    }
}

proptest! {
    #[test]
    fn what_the_store_refuses_is_what_the_verdict_refuses(
        limits in vec((0..4_u32, any::<bool>(), any::<bool>(), any::<bool>()), 6),
        asked in vec((0..7_usize, 0..3_u64), 1..7),
        (global_shadow, global_quota) in (any::<bool>(), any::<bool>()),
    ) {
        let keys = ["k0", "k1", "k2", "k3", "k4", "k5", "nothing"];
        let made = limits.into_iter().enumerate().map(|(index, (limit, is_shadow, quota_mode, spare))| {
            let counted = if spare { bucket(1, Unit::Hour, limit + 1) } else { window(limit, Unit::Hour) };
            Rule { shadow: is_shadow, quota_mode, ..rule(keys[index], [counted]) }
        });
        let options = Options { shadow: global_shadow, quota_mode: global_quota, ..Options::default() };
        let set = rules_with(options, made.collect());
        let descriptors = asked.iter().map(|(index, hits)| descriptor(&[(keys[*index], "v")], *hits)).collect();
        let plan = set.plan(&Request { domain: "d", descriptors });
        let decisions = decide(&plan);
        let verdict = plan.conclude(&decisions);
        prop_assert_eq!(verdict.code == Over, algorithm::refuses(&plan.checks, &decisions));
        prop_assert_eq!(verdict.statuses.len(), asked.len());
        prop_assert!(verdict.code == Over || verdict.retry_after_s == Some(0));
        prop_assert!(verdict.code == Pass || verdict.statuses.iter().any(|status| status.code == Over));
    }
}

#[test]
fn the_built_in_default_counts_where_a_domain_or_a_first_key_has_no_rules_at_all() {
    let set = rules(vec![rule("known", [window(5, Unit::Minute)])]);
    let default = bucket(1, Unit::Second, 2).quota;
    let of_domain = |domain, entries: &[(&'static str, &'static str)]| {
        let descriptors = [descriptor(entries, 1)].into_iter().collect();
        set.plan_or(&Request { domain, descriptors }, Some(&default))
    };
    for (domain, key, text) in [("d", "other", "{d}b1!/5:other1:v"), ("nowhere", "known", "{nowhere}b1!/5:known1:v")] {
        let plan = of_domain(domain, &[(key, "v")]);
        assert!(matches!(&plan.matches[0], Match::Limited(limited) if limited.is_default), "{plan:?}");
        assert_eq!((plan.keys.get(0), plan.unknown_domain), (text, false));
    }
    let by_rule = of_domain("d", &[("known", "v")]);
    assert!(matches!(&by_rule.matches[0], Match::Limited(limited) if !limited.is_default));
    // A path that the rules know in part, and one that is empty, stay free.
    assert!(matches!(of_domain("d", &[("known", "v"), ("deeper", "v")]).matches[0], Match::Free));
    assert!(matches!(of_domain("nowhere", &[]).matches[0], Match::Free));
    assert!(set.plan(&Request { domain: "nowhere", ..request(&["known"]) }).unknown_domain);
}

#[test]
fn quota_checks_are_judged_by_a_part_only_if_it_has_all_of_them() {
    let made = ["a", "b"].map(|key| in_quota_mode(rule(key, [window(5, Unit::Minute)])));
    let set = rules(made.into_iter().chain([rule("hard", [window(5, Unit::Minute)])]).collect());
    let plan = set.plan(&request(&["a", "hard", "b"]));
    let modes = |checks: &[usize]| plan.part(checks).0.iter().map(|check| check.mode).collect::<Vec<_>>();
    assert_eq!(modes(&[0, 2]), [Mode::Quota, Mode::Quota]);
    assert_eq!(modes(&[0, 1]), [Mode::Shadow, Mode::Enforce]);
    assert_eq!(modes(&[1]), [Mode::Enforce]);
}
