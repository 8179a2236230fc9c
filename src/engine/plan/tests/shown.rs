//! What headers and metrics show of a verdict.

use super::*;

#[test]
fn headers_describe_the_least_remaining_unless_one_refuses_then_the_last_that_does() {
    let set = rules(vec![
        rule("nine", [window(9, Unit::Hour)]),
        rule("one", [window(1, Unit::Hour)]),
        rule("also one", [window(1, Unit::Minute)]),
        rule("no", [window(0, Unit::Hour)]),
        rule("no either", [window(0, Unit::Minute)]),
        in_quota_mode(rule("quota", [window(0, Unit::Hour)])),
        unlimited("u"),
    ]);
    for (keys, expected) in [
        (&["u", "nothing"][..], None),
        (&["nine", "u", "one"], Some(2)),
        (&["one", "also one"], Some(0)),
        (&["no", "one"], Some(0)),
        (&["one", "no"], Some(1)),
        (&["no", "one", "no either"], Some(2)),
        // A quota rule over its limit competes only with what remains.
        (&["one", "quota"], Some(0)),
        (&["nine", "quota"], Some(1)),
    ] {
        let plan = set.plan(&request(keys));
        let decisions = decide(&plan);
        assert_eq!(plan.conclude(&decisions).described, expected, "{keys:?}");
    }
}

/// `(a, default) -> (b, glob x*)`, with what a test says about its levels.
fn labels_of(change: impl FnOnce(&mut Rule, &mut Node, &mut Node), value: &str) -> Option<Vec<String>> {
    let mut rule = Rule { path: ["a".into(), "b_x*".into()].into(), ..rule("r", [window(5, Unit::Minute)]) };
    let (mut upper, mut lower) = (Node::default(), Node::default());
    change(&mut rule, &mut upper, &mut lower);
    lower.rule = Some(Arc::new(rule));
    upper.children.insert("b", "x*", lower).unwrap();
    let mut root = Level::default();
    root.insert("a", "", upper).unwrap();
    let set =
        RuleSet::new(vec![RuleTree { domain: "d".into(), partition_by: [].into(), root }], vec![], Options::default());
    let descriptors = [descriptor(&[("a", value), ("b", "x1")], 1)].into_iter().collect();
    let plan = set.plan(&Request { domain: "d", descriptors });
    let Match::Limited(limited) = &plan.matches[0] else { panic!("no match") };
    limited.labels.as_ref().map(|labels| labels.iter().map(ToString::to_string).collect())
}

#[test]
fn metrics_show_values_of_the_request_only_where_a_rule_asks_for_it() {
    let labels = |labels: [&str; 2]| Some(labels.map(String::from).to_vec());
    assert_eq!(labels_of(|_, _, _| {}, "1"), None);
    assert_eq!(labels_of(|_, upper, _| upper.value_to_metric = true, "1"), labels(["a_1", "b_x*"]));
    assert_eq!(labels_of(|_, upper, _| upper.value_to_metric = true, ""), labels(["a", "b_x*"]));
    assert_eq!(labels_of(|_, _, lower| lower.value_to_metric = true, "1"), labels(["a", "b_x1"]));
    assert_eq!(labels_of(|rule, _, _| rule.detailed_metric = true, "1"), labels(["a_1", "b_x1"]));
    assert_eq!(labels_of(|rule, _, _| rule.detailed_metric = true, ""), labels(["a_", "b_x1"]));
    let shared = |rule: &mut Rule, _: &mut Node, lower: &mut Node| {
        rule.detailed_metric = true;
        lower.value_to_metric = true;
        lower.share_threshold = true;
    };
    assert_eq!(labels_of(shared, "1"), labels(["a_1", "b_x*"]));
    assert_eq!(labels_of(shared, ""), labels(["a", "b_x*"]));
}

#[test]
fn metrics_show_all_values_of_a_limit_that_came_with_the_request() {
    let entries = [("a", "1"), ("b", "")];
    let overridden = Descriptor { override_quota: Some(window(9, Unit::Hour).quota), ..descriptor(&entries, 1) };
    let plan = rules(vec![]).plan(&Request { domain: "d", descriptors: [overridden].into_iter().collect() });
    let Match::Limited(limited) = &plan.matches[0] else { panic!("no match") };
    assert_eq!(limited.labels.as_deref().unwrap(), ["a_1", "b"].map(Box::<str>::from));
}
