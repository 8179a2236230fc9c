use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::{
    engine::{
        quota::{Algorithm, Period, RateSpec, Unit},
        rule::Counted,
        tree::{Level, Node, RuleTree},
    },
    store::memory::MemoryStore,
};

/// Builds a tree out of paths, in order.
#[derive(Default)]
struct Sketch {
    rules: Vec<Arc<Rule>>,
}

impl Sketch {
    fn rule(&mut self, path: &str, change: impl FnOnce(&mut Rule)) -> Node {
        let quota = Quota::fixed_window(10, Period::try_new(Unit::Year, 1).unwrap()).unwrap();
        let counted = Counted { quota: Arc::new(quota), plan: None };
        let mut rule = Rule {
            id: self.rules.len(),
            domain: "edge".into(),
            path: path.split('.').map(Into::into).collect(),
            name: None,
            replaces: Box::default(),
            limit: Limit::Counted([counted].into()),
            shadow: false,
            quota_mode: false,
            detailed_metric: false,
            on_store_failure: None,
        };
        change(&mut rule);
        let rule = Arc::new(rule);
        self.rules.push(rule.clone());
        Node { rule: Some(rule), ..Node::default() }
    }

    fn plain(&mut self, path: &str) -> Node {
        self.rule(path, |_| {})
    }
}

fn level(nodes: Vec<(&str, &str, Node)>) -> Level {
    let mut level = Level::default();
    for (key, value, node) in nodes {
        level.insert(key, value, node).unwrap();
    }
    level
}

fn plans() -> Limit {
    let rate =
        |requests, burst| RateSpec { requests, period: Period::try_new(Unit::Minute, 5).unwrap(), burst, name: None };
    let counted = |algorithm, rates, plan: &str| {
        let quota = Quota::try_new(algorithm, rates, OnOverLimit::default_of(algorithm), true).unwrap();
        Counted { quota: Arc::new(quota), plan: Some(plan.into()) }
    };
    let gold = counted(Algorithm::TokenBucket, vec![rate(50, Some(200)), rate(60, None)], "gold");
    Limit::Counted([gold, counted(Algorithm::FixedWindow, vec![rate(7, None)], "daily")].into())
}

fn set() -> RuleSet {
    let mut sketch = Sketch::default();
    let exact = sketch.plain("user_alice");
    let mut shared = sketch.plain("user_a*");
    shared.share_threshold = true;
    let nodes = vec![
        ("user", "alice", exact),
        ("user", "b*", sketch.plain("user_b*")),
        ("user", "a*", shared),
        ("user", "al*", sketch.plain("user_al*")),
        ("user", "", sketch.plain("user")),
        (
            "plan",
            "gold",
            sketch.rule("plan_gold", |rule| {
                rule.limit = plans();
                rule.quota_mode = true;
                rule.on_store_failure = Some(OnStoreFailure::Deny);
            }),
        ),
        ("free", "", sketch.rule("free", |rule| rule.limit = Limit::Unlimited)),
        ("friend", "", Node::default()),
        (
            "path",
            "",
            Node { children: level(vec![("method", "GET", sketch.plain("path.method_GET"))]), ..Node::default() },
        ),
        ("small", "", sketch.rule("small", |rule| rule.name = Some("small".into()))),
        ("big", "", sketch.rule("big", |rule| rule.replaces = ["small".into()].into())),
    ];
    let tree = RuleTree { domain: "edge".into(), partition_by: Box::default(), root: level(nodes) };
    RuleSet::new(vec![tree], sketch.rules, Options::default())
}

fn explain_in(domain: &str, descriptors: &[&str]) -> Explanation {
    let descriptors: Vec<_> = descriptors.iter().map(|text| parse_descriptor(text).unwrap()).collect();
    explain(&set(), domain, &descriptors)
}

fn explained(descriptor: &str) -> Value {
    let explanation = explain_in("edge", &[descriptor]);
    serde_json::to_value(&explanation.descriptors[0]).unwrap()
}

fn why(descriptor: &str) -> (Value, Value) {
    let explained = explained(descriptor);
    assert_eq!(explained["result"], "no_limit");
    (explained["why"].clone(), explained["reason"].clone())
}

#[test]
fn an_exact_value_goes_before_patterns_and_the_key_alone() {
    let explained = explained("user=alice");
    assert_eq!(explained["result"], "limited");
    assert_eq!(explained["rule"]["path"], "edge.user_alice");
    assert_eq!(explained["levels"][0]["met_by"], "exact");
    let expected = json!([
        {"sibling": "pattern `b*`", "why": "does not match"},
        {"sibling": "pattern `a*`", "why": "matches, but the exact value goes first"},
        {"sibling": "pattern `al*`", "why": "matches, but the exact value goes first"},
        {"sibling": "key `user` alone", "why": "takes any value, but the exact value goes first"},
    ]);
    assert_eq!(explained["levels"][0]["passed_over"], expected);
}

#[test]
fn the_first_pattern_that_matches_is_met_and_may_share_its_counter() {
    let explained = explained("user=albert");
    assert_eq!(explained["rule"]["path"], "edge.user_a*");
    let level = &explained["levels"][0];
    assert_eq!(
        (&level["met_by"], &level["pattern"], &level["shares_counter"]),
        (&json!("glob"), &json!("a*"), &json!(true))
    );
    let expected = json!([
        {"sibling": "pattern `b*`", "why": "does not match"},
        {"sibling": "pattern `al*`", "why": "matches, but stands further down in the file"},
        {"sibling": "key `user` alone", "why": "takes any value, but a pattern that matches goes first"},
    ]);
    assert_eq!(level["passed_over"], expected);
    assert_eq!(explained["counters"][0]["key"], "{edge}f31536000/4:user2*a*");
}

#[test]
fn the_key_alone_takes_what_nothing_else_takes() {
    let explained = explained("user=zoe");
    assert_eq!(explained["rule"]["path"], "edge.user");
    assert_eq!(explained["levels"][0]["met_by"], "default");
    assert_eq!(explained["counters"][0]["key"], "{edge}f31536000/4:user3:zoe");
    assert_eq!(explained["counters"][0]["slot"], slot("edge"));
    assert_eq!(explained["counters"][0].get("state"), None);
}

#[test]
fn a_rule_is_shown_with_all_that_it_says() {
    let explained = explained("plan=gold");
    let limit = "plan `gold`: 50 per 5 minutes with a burst of 200 and 60 per 5 minutes with a burst of 60 (token_bucket), \
                 and plan `daily`: 7 per 5 minutes (fixed_window)";
    let rule = json!({
        "path": "edge.plan_gold", "name": null, "limit": limit, "mode": "quota", "on_store_failure": "deny",
        "replaces": [],
    });
    assert_eq!(explained["rule"], rule);
    let counters = explained["counters"].as_array().unwrap();
    assert_eq!(counters.len(), 2);
    assert_eq!((&counters[0]["plan"], &counters[0]["on_over_limit"]), (&json!("gold"), &json!("spare")));
    assert_eq!((&counters[1]["plan"], &counters[1]["on_over_limit"]), (&json!("daily"), &json!("charge")));
    let rate = json!({"name": null, "requests_per_unit": 50, "unit": "minute", "unit_multiplier": 5, "burst": 200});
    assert_eq!(counters[0]["rates"][0], rate);
    assert_eq!(counters[1]["rates"][0]["burst"], Value::Null);
}

#[test]
fn an_unlimited_rule_has_no_counter() {
    let explained = explained("free=x");
    assert_eq!((&explained["result"], &explained["rule"]["limit"]), (&json!("unlimited"), &json!("unlimited")));
    assert_eq!(explained.get("counters"), None);
}

#[test]
fn a_descriptor_without_a_limit_is_told_why() {
    let nothing = explained("plan=silver");
    let reason = "the key `plan` has 1 value and 0 patterns here, but none takes `silver`, and no default";
    assert_eq!((&nothing["why"], &nothing["levels"][0]["reason"]), (&json!("nothing_met"), &json!(reason)));
    let unknown = explained("nobody=x");
    let reason = "no rule has the key `nobody` here; there is `big`, `free`, `friend`, `path`, `plan`, `small`, `user`";
    assert_eq!((&unknown["why"], &unknown["levels"][0]["reason"]), (&json!("nothing_met"), &json!(reason)));
    let (why_deep, reason) = why("user=alice,city=x");
    assert_eq!(why_deep, "deeper_than_rules");
    assert_eq!(reason, "the descriptor is deeper than any rule on its way: nothing stands below entry 1");
    let (why_shallow, reason) = why("path=/x");
    assert_eq!(why_shallow, "shallower_than_rules");
    assert_eq!(reason, "the node met has no limit of its own; rules below it need another entry, of `method`");
    assert_eq!(why("path=/x,method=PUT").0, "nothing_met");
    assert_eq!(why("friend=x").0, "allow_listed");
    assert_eq!(explained("path=/x,method=GET")["rule"]["path"], "edge.path.method_GET");
}

#[test]
fn a_level_below_the_first_that_met_nothing_is_not_looked_at() {
    let levels = explained("nobody=x,user=alice")["levels"].as_array().map(Vec::len);
    assert_eq!(levels, Some(1));
}

#[test]
fn an_unknown_domain_is_told_with_those_that_are_known() {
    let explanation = explain_in("egde", &["user=alice"]);
    let Outcome::NoLimit { reason, .. } = &explanation.descriptors[0].outcome else {
        panic!("{explanation:?}");
    };
    assert_eq!(reason, "the domain `egde` has no rules; there are rules for `edge`");
    assert!(explanation.descriptors[0].levels.is_empty());
}

#[test]
fn a_sentence_names_some_of_many_domains_and_counts_the_rest() {
    let tree = |index: usize| RuleTree {
        domain: format!("d{index:02}").into(),
        partition_by: Box::default(),
        root: Level::default(),
    };
    let set = RuleSet::new((0..25).map(tree).collect(), Vec::new(), Options::default());
    let explanation = explain(&set, "edge", &[parse_descriptor("user=alice").unwrap()]);
    let Outcome::NoLimit { reason, .. } = &explanation.descriptors[0].outcome else {
        panic!("{explanation:?}");
    };
    assert!(reason.contains("rules for `d00`, `d01`,"), "{reason}");
    assert!(reason.ends_with("`d19` and 5 more"), "{reason}");
}

#[test]
fn a_replaced_rule_names_the_one_that_replaces_it() {
    let explanation = explain_in("edge", &["small=x", "big=y"]);
    let Outcome::NoLimit { reason, .. } = &explanation.descriptors[0].outcome else {
        panic!("{explanation:?}");
    };
    assert_eq!(reason, "the rule edge.small (`small`) is replaced by edge.big");
    assert!(matches!(explanation.descriptors[1].outcome, Outcome::Limited { .. }));
    assert!(matches!(explain_in("edge", &["small=x"]).descriptors[0].outcome, Outcome::Limited { .. }));
}

#[tokio::test]
async fn a_look_tells_where_a_counter_stands_and_leaves_it_there() {
    let set = set();
    let store = Store::Memory(MemoryStore::new(100));
    let descriptors = vec![parse_descriptor("user=zoe").unwrap()];
    let mut request = look_request("edge", &descriptors);
    request.descriptors[0].hits = Hits::Take(3);
    let plan = set.plan(&request);
    store.decide(&Arc::new(plan), None).await;
    for _ in 0..3 {
        let explanation = look(&set, &store, "edge", &descriptors).await;
        let Outcome::Limited { counters, .. } = &explanation.descriptors[0].outcome else {
            panic!("{explanation:?}");
        };
        let Some(StateShown::Known { used, remaining, .. }) = counters[0].state else {
            panic!("{counters:?}");
        };
        assert_eq!((used, remaining), (3, 7));
    }
}

#[tokio::test]
async fn a_look_at_a_counter_that_is_not_there_makes_none() {
    let memory = MemoryStore::new(100);
    let store = Store::Memory(memory);
    look(&set(), &store, "edge", &[parse_descriptor("plan=gold").unwrap()]).await;
    let Store::Memory(memory) = &store else { panic!("it is a memory store") };
    assert_eq!(memory.entries(), 0);
}

#[test]
fn the_text_reads_from_top_to_bottom() {
    let expected = "\
domain edge

descriptor 1: user=albert
  user=albert: met by the pattern `a*`, all values of which share one counter
    not pattern `b*`: does not match
    not pattern `al*`: matches, but stands further down in the file
    not key `user` alone: takes any value, but a pattern that matches goes first
  rule edge.user_a*
    limit: 10 per year (fixed_window)
    mode: enforce; when the store fails: as the process is set
    counter {edge}f31536000/4:user2*a* (slot SLOT)
      refused hits count all the same (charge)

descriptor 2: friend=x
  friend=x: met by the key alone, which takes any value
  no limit: the node met has neither a limit nor rules below it: an entry of an allow list
";
    let expected = expected.replace("SLOT", &slot("edge").to_string());
    assert_eq!(explain_in("edge", &["user=albert", "friend=x"]).to_string(), expected);
}
