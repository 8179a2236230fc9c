use super::*;
use crate::engine::rule::Limit;

fn node(name: &str) -> Node {
    let rule = Rule {
        id: 0,
        domain: "d".into(),
        path: [].into(),
        name: Some(name.into()),
        replaces: [].into(),
        limit: Limit::Unlimited,
        shadow: false,
        quota_mode: false,
        detailed_metric: false,
        on_store_failure: None,
    };
    Node { rule: Some(Arc::new(rule)), ..Node::default() }
}

fn tree(root: Level) -> RuleTree {
    RuleTree { domain: "d".into(), partition_by: [].into(), root }
}

/// The name of the rule that the entries meet.
fn met(tree: &RuleTree, entries: &[(&str, &str)]) -> Option<String> {
    let entries: Vec<Entry<'_>> = entries.iter().map(|(key, value)| Entry { key, value }).collect();
    tree.find(&entries).map(|(rule, _)| rule.name.clone().unwrap().into())
}

fn level(nodes: Vec<(&str, &str, Node)>) -> Level {
    let mut level = Level::default();
    for (key, value, node) in nodes {
        level.insert(key, value, node).unwrap();
    }
    level
}

#[test]
fn exact_goes_before_glob_in_file_order_goes_before_the_key_alone() {
    let tree = tree(level(vec![
        ("k", "", node("default")),
        ("k", "ab*", node("first glob")),
        ("k", "a*", node("second glob")),
        ("k", "abc", node("exact")),
    ]));
    assert_eq!(met(&tree, &[("k", "abc")]).as_deref(), Some("exact"));
    assert_eq!(met(&tree, &[("k", "abd")]).as_deref(), Some("first glob"));
    assert_eq!(met(&tree, &[("k", "ax")]).as_deref(), Some("second glob"));
    assert_eq!(met(&tree, &[("k", "x")]).as_deref(), Some("default"));
    assert_eq!(met(&tree, &[("k", "")]).as_deref(), Some("default"));
    assert_eq!(met(&tree, &[("K", "abc")]), None);
}

#[test]
fn an_empty_value_is_met_by_a_star() {
    let tree = tree(level(vec![("k", "*", node("any"))]));
    assert_eq!(met(&tree, &[("k", "")]).as_deref(), Some("any"));
}

#[test]
fn what_is_chosen_is_never_taken_back() {
    let dead_end = Node { children: level(vec![("y", "1", node("deep"))]), ..Node::default() };
    let other = Node { children: level(vec![("y", "2", node("never met"))]), ..node("shallow") };
    let tree = tree(level(vec![("x", "1", dead_end), ("x", "", other)]));
    assert_eq!(met(&tree, &[("x", "1"), ("y", "1")]).as_deref(), Some("deep"));
    assert_eq!(met(&tree, &[("x", "1"), ("y", "2")]), None);
    assert_eq!(met(&tree, &[("x", "2"), ("y", "2")]).as_deref(), Some("never met"));
    assert_eq!(met(&tree, &[("x", "1")]), None);
}

#[test]
fn a_descriptor_is_exactly_as_deep_as_its_rule() {
    let top = Node { children: level(vec![("b", "", node("two"))]), ..node("one") };
    let tree = tree(level(vec![("a", "", top)]));
    assert_eq!(met(&tree, &[("a", "1")]).as_deref(), Some("one"));
    assert_eq!(met(&tree, &[("a", "1"), ("b", "2")]).as_deref(), Some("two"));
    assert_eq!(met(&tree, &[("a", "1"), ("b", "2"), ("c", "3")]), None);
    assert_eq!(met(&tree, &[("b", "2"), ("a", "1")]), None);
    assert_eq!(met(&tree, &[]), None);
}

#[test]
fn pairs_are_compared_as_pairs_and_not_as_joined_text() {
    let tree = tree(level(vec![("a", "b_c", node("one")), ("a_b", "", node("two"))]));
    assert_eq!(met(&tree, &[("a_b", "c")]).as_deref(), Some("two"));
    assert_eq!(met(&tree, &[("a", "b_c")]).as_deref(), Some("one"));
    assert_eq!(met(&tree, &[("a", "b")]), None);
}

#[test]
fn a_node_without_rule_and_children_is_an_allow_list_entry() {
    let tree = tree(level(vec![("ip", "10.0.0.1", Node::default()), ("ip", "", node("limited"))]));
    assert_eq!(met(&tree, &[("ip", "10.0.0.1")]), None);
    assert_eq!(met(&tree, &[("ip", "10.0.0.2")]).as_deref(), Some("limited"));
}

#[test]
fn duplicate_siblings_are_refused_and_the_first_stays() {
    for value in ["", "v", "v*"] {
        let mut level = Level::default();
        level.insert("k", value, node("first")).unwrap();
        assert_eq!(level.insert("k", value, node("second")), Err(DuplicateSibling));
        level.insert("other", value, node("third")).unwrap();
        assert_eq!(met(&tree(level), &[("k", value)]).as_deref(), Some("first"));
    }
}

#[test]
fn a_walk_takes_one_step_for_each_level_however_wide_it_is() {
    let mut deepest = Level::default();
    for value in 0..2_000 {
        deepest.insert("k", &value.to_string(), node("leaf")).unwrap();
    }
    let mut level = deepest;
    for _ in 0..5 {
        let mut above = Level::default();
        above.insert("k", "", Node { children: level, ..Node::default() }).unwrap();
        level = above;
    }
    let tree = tree(level);
    let entries = [Entry { key: "k", value: "1999" }; 6];
    let steps = tree.walk(&entries);
    assert_eq!(steps.len(), 6);
    assert_eq!(steps[5].how, How::Exact);
    assert!(steps[..5].iter().all(|step| step.how == How::Default));
}
