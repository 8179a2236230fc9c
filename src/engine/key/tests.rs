use std::{collections::HashMap, sync::Arc};

use proptest::{collection::vec, prelude::*, sample::select};

use super::*;
use crate::engine::{
    quota::{OnOverLimit, Period, RateSpec, Unit},
    tree::{How, Node},
};

fn quota(algorithm: Algorithm, requests: u32, period: (Unit, u32), burst: Option<u32>) -> Arc<Quota> {
    let period = Period::try_new(period.0, period.1).unwrap();
    let spec = RateSpec { requests, period, burst, name: None };
    Arc::new(Quota::try_new(algorithm, vec![spec], OnOverLimit::default_of(algorithm), false).unwrap())
}

fn per_minute() -> Counted {
    Counted { quota: quota(Algorithm::FixedWindow, 5, (Unit::Minute, 1), None), plan: None }
}

fn key_of(domain: &str, partition_by: &[&str], entries: &[(&str, &str)], counted: &Counted) -> String {
    let partition_by: Vec<Box<str>> = partition_by.iter().map(|name| Box::from(*name)).collect();
    let entries: Vec<Entry<'_>> = entries.iter().map(|(key, value)| Entry { key, value }).collect();
    let mut key = String::new();
    Place { prefix: "", domain, partition_by: &partition_by, entries: &entries, steps: &[], is_default: false }
        .write_key(counted, &mut key);
    key
}

#[test]
fn keys_are_as_the_documentation_shows_them() {
    let counted = per_minute();
    assert_eq!(key_of("edge", &[], &[("ip", "1.2.3.4")], &counted), "{edge}f60/2:ip7:1.2.3.4");
    let gold =
        Counted { quota: quota(Algorithm::TokenBucket, 50, (Unit::Second, 1), Some(200)), plan: Some("gold".into()) };
    assert_eq!(key_of("edge", &[], &[("tenant", "acme")], &gold), "{edge}b1@4:gold/6:tenant4:acme");

    let shared = Node { share_threshold: true, ..Node::default() };
    let own = Node::default();
    let steps = [Step { node: &own, how: How::Default }, Step { node: &shared, how: How::Glob("/v*") }];
    let entries = [Entry { key: "tenant", value: "acme" }, Entry { key: "api", value: "/v2" }];
    let partition_by = ["tenant".into()];
    let place = Place {
        prefix: "p:",
        domain: "edge",
        partition_by: &partition_by,
        entries: &entries,
        steps: &steps,
        is_default: false,
    };
    let mut key = String::new();
    place.write_key(&counted, &mut key);
    assert_eq!(key, "p:{edge|acme}f60/6:tenant4:acme3:api3*/v*");
}

#[test]
fn counters_that_cannot_share_a_state_have_different_keys() {
    use Algorithm::{FixedWindow, LeakyBucket, SlidingWindow, TokenBucket};
    let plain = |quota| Counted { quota, plan: None };
    let mut counted = vec![
        plain(quota(FixedWindow, 5, (Unit::Second, 1), None)),
        plain(quota(FixedWindow, 5, (Unit::Hour, 1), None)),
        plain(quota(SlidingWindow, 5, (Unit::Hour, 1), None)),
        plain(quota(TokenBucket, 5, (Unit::Hour, 1), None)),
        // So large that its tick, and with it the weight of a hit, is another.
        plain(quota(TokenBucket, u32::MAX, (Unit::Hour, 1), None)),
    ];
    for unit in Unit::ALL {
        counted.push(Counted { quota: quota(LeakyBucket, 5, (unit, 3), None), plan: Some("a".into()) });
        counted.push(Counted { quota: quota(LeakyBucket, 5, (unit, 3), None), plan: Some("b/1:x".into()) });
    }
    let keys: std::collections::HashSet<String> =
        counted.iter().map(|counted| key_of("d", &[], &[("k", "v")], counted)).collect();
    assert_eq!(keys.len(), counted.len());
}

#[test]
fn a_token_bucket_and_a_leaky_bucket_are_one_counter() {
    let [token, leaky] = [Algorithm::TokenBucket, Algorithm::LeakyBucket]
        .map(|algorithm| Counted { quota: quota(algorithm, 5, (Unit::Hour, 1), None), plan: None });
    assert_eq!(key_of("d", &[], &[("k", "v")], &token), key_of("d", &[], &[("k", "v")], &leaky));
}

#[test]
fn a_long_value_and_a_long_pattern_of_the_same_text_stay_apart() {
    let text = format!("{}*", "x".repeat(100));
    let shared = Node { share_threshold: true, ..Node::default() };
    let entries = [Entry { key: "k", value: &text }];
    let keys = [vec![], vec![Step { node: &shared, how: How::Glob(&text) }]].map(|steps| {
        let mut key = String::new();
        Place { prefix: "", domain: "d", partition_by: &[], entries: &entries, steps: &steps, is_default: false }
            .write_key(&per_minute(), &mut key);
        key
    });
    assert_ne!(keys[0], keys[1]);
    assert!(keys[0].len() < text.len());
}

#[test]
fn slots_are_those_of_the_cluster_specification() {
    assert_eq!(slot("123456789"), 0x31C3);
    assert_eq!(slot("foo"), 12_182);
    assert_eq!(slot("user1000"), 3_443);
    assert_eq!(slot("{user1000}.following"), 3_443);
    assert_eq!(slot("foo{bar}{zap}"), slot("bar"));
    assert_eq!(slot("foo{{bar}}zap"), slot("{bar"));
    // An empty tag is no tag.
    assert_ne!(slot("foo{}{bar}"), slot("bar"));
    assert_ne!(slot("foo{}{bar}"), slot(""));
}

#[test]
fn a_partition_puts_a_tenant_into_a_slot_of_its_own() {
    let key = |tenant| key_of("edge", &["tenant"], &[("tenant", tenant), ("path", "/")], &per_minute());
    assert_eq!(slot(&key("acme")), slot("edge|acme"));
    assert_eq!(slot(&key_of("edge", &["tenant"], &[("path", "/")], &per_minute())), slot("edge"));
    assert_eq!(slot(&key("a}b{|%")), slot("edge|a%7Db%7B%7C%25"));
}

/// Text that looks like parts of keys.
fn hostile() -> impl Strategy<Value = String> {
    let piece = select(
        &[
            "", "a", "b", ":", "1:", "1:a", "*", "#", "32#", "{", "}", "{}", "|", "/", "f60/", "@", "%7D", "\0", "\n",
            "\r", "0", "11", "ü", "_",
        ][..],
    );
    prop_oneof![
        8 => vec(piece, 0..4).prop_map(|pieces| pieces.concat()),
        1 => any::<String>(),
        1 => (60..70_usize, "[ab]").prop_map(|(length, end)| "x".repeat(length) + &end),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn different_counters_have_different_keys_whatever_the_text(
        lists in vec((hostile(), vec((hostile(), hostile()), 1..4)), 2..60),
    ) {
        let mut seen: HashMap<String, (String, Vec<(String, String)>)> = HashMap::new();
        for (domain, pairs) in lists {
            let entries: Vec<(&str, &str)> = pairs.iter().map(|(key, value)| (&**key, &**value)).collect();
            let key = key_of(&domain, &["a", "b"], &entries, &per_minute());
            if let Some(same) = seen.insert(key, (domain.clone(), pairs.clone())) {
                prop_assert_eq!(same, (domain, pairs));
            }
        }
    }

    #[test]
    fn only_our_own_hash_tag_counts(domain in hostile(), pairs in vec((hostile(), hostile()), 1..4)) {
        let entries: Vec<(&str, &str)> = pairs.iter().map(|(key, value)| (&**key, &**value)).collect();
        let key = key_of(&format!("d{domain}"), &["a", "1:"], &entries, &per_minute());
        let tag = &key[1..key.find('}').unwrap()];
        let (opens, holds_another) = (key.starts_with('{'), tag.contains('{'));
        prop_assert!(opens && !tag.is_empty() && !holds_another);
        prop_assert_eq!(slot(&key), slot(tag));
        prop_assert!(key[tag.len() + 2..].starts_with("f60/"));
    }
}

#[test]
fn the_built_in_default_has_a_key_that_no_rule_has() {
    let counted = per_minute();
    let entries = [Entry { key: "user", value: "alice" }];
    let key = |is_default| {
        let place = Place { prefix: "", domain: "edge", partition_by: &[], entries: &entries, steps: &[], is_default };
        let mut key = String::new();
        place.write_key(&counted, &mut key);
        key
    };
    assert_eq!((&*key(true), &*key(false)), ("{edge}f60!/4:user5:alice", "{edge}f60/4:user5:alice"));
}
