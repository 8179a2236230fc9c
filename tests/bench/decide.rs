//! Instructions per operation of the engine and the embedded store, counted by valgrind: `tests/bench/run operations`.
//!
//! Time swings by a third on a shared machine; instructions repeat. Each operation runs N and 3N times in a process of its own
//! under callgrind; the difference over 2N is what one costs.

use std::{env, hint::black_box, process::Command, sync::Arc};

use sluice::{
    engine::{
        algorithm::{Check, Mode, State, decide},
        plan::Plan,
        quota::{Algorithm, OnOverLimit, Period, Quota, RateSpec, Unit},
        request::{Descriptor, Entry, Hits, Request},
        rule::{Counted, Limit, Rule},
        tree::{Level, Node, Options, RuleSet, RuleTree},
    },
    store::memory::MemoryStore,
};

const FEW: u64 = 1_000;
const MANY: u64 = 3_000;
const NOW_US: u64 = 1_794_794_128_000_000;

/// A name, and what is done once for each number.
type Operation = (&'static str, fn() -> Box<dyn FnMut(u64)>);

const OPERATIONS: &[Operation] = &[
    ("match: one level, exact", || planning(&[("user", "alice")])),
    ("match: one level, of 100,000 values", || planning(&[("tenant", "t77777")])),
    ("match: one level, the last of ten globs", || planning(&[("path", "/nine/x")])),
    ("match: three levels", || planning(&[("a", "1"), ("b", "2"), ("c", "3")])),
    ("decide: fixed window", || deciding(Algorithm::FixedWindow, 1, 1)),
    ("decide: sliding window", || deciding(Algorithm::SlidingWindow, 1, 1)),
    ("decide: token bucket", || deciding(Algorithm::TokenBucket, 1, 1)),
    ("decide: leaky bucket, three rates", || deciding(Algorithm::LeakyBucket, 3, 1)),
    ("decide: three token buckets", || deciding(Algorithm::TokenBucket, 1, 3)),
    ("store: match and decide, one rule", || storing(1)),
    ("store: match and decide, three rules", || storing(3)),
];

fn main() {
    let arguments: Vec<String> = env::args().collect();
    if let [_, name, count] = &arguments[..]
        && let (Some((_, make)), Ok(count)) = (OPERATIONS.iter().find(|(known, _)| known == name), count.parse())
    {
        let mut operation = make();
        for number in 0..count {
            operation(number);
        }
        return;
    }
    println!("{:<45} {:>12}", "operation", "instructions");
    for (name, _) in OPERATIONS {
        let per_operation = (instructions(name, MANY) - instructions(name, FEW)) / (MANY - FEW);
        println!("{name:<45} {per_operation:>12}");
    }
}

fn instructions(name: &str, count: u64) -> u64 {
    let program = env::current_exe().expect("this program has a path");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args([name, &count.to_string()])
        .output()
        .expect("valgrind is installed: tests/run does that");
    let text = String::from_utf8_lossy(&output.stderr);
    let total = text.lines().find_map(|line| line.split("Collected :").nth(1)?.trim().parse().ok());
    total.unwrap_or_else(|| panic!("valgrind counted nothing:\n{text}"))
}

fn quota(algorithm: Algorithm, rates: usize) -> Arc<Quota> {
    let units = [Unit::Second, Unit::Minute, Unit::Hour];
    let rate = |unit| RateSpec {
        requests: 1_000_000,
        period: Period::try_new(unit, 1).expect("one unit is a period"),
        burst: None,
        name: None,
    };
    let rates = units.into_iter().take(rates).map(rate).collect();
    let quota = Quota::try_new(algorithm, rates, OnOverLimit::default_of(algorithm), false);
    Arc::new(quota.expect("a million per unit is a quota"))
}

fn deciding(algorithm: Algorithm, rates: usize, checks: usize) -> Box<dyn FnMut(u64)> {
    let quota = quota(algorithm, rates);
    let check = |slot| Check { quota: quota.clone(), slot, hits: Hits::ONE, mode: Mode::Enforce, chained: false };
    let checks: Vec<Check> = (0..checks).map(check).collect();
    let mut states: Vec<State> = checks.iter().map(|check| State::absent(&check.quota)).collect();
    Box::new(move |number| {
        black_box(decide(NOW_US + 10 * number, &checks, &mut states));
    })
}

/// 100,000 values of one key, ten globs, one path of three levels.
fn rules() -> RuleSet {
    let mut all = Vec::new();
    let mut rule = |path: &str| {
        let counted = Counted { quota: quota(Algorithm::TokenBucket, 1), plan: None };
        let rule = Arc::new(Rule {
            id: all.len(),
            domain: "bench".into(),
            path: [path.into()].into(),
            name: None,
            replaces: [].into(),
            limit: Limit::Counted([counted].into()),
            shadow: false,
            quota_mode: false,
            detailed_metric: false,
            on_store_failure: None,
        });
        all.push(rule.clone());
        Node { rule: Some(rule), ..Node::default() }
    };
    let mut root = Level::default();
    let mut put = |key: &str, value: &str, node| root.insert(key, value, node).expect("no duplicates");
    for number in 0..100_000 {
        put("tenant", &format!("t{number}"), rule("tenant"));
    }
    for glob in ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"] {
        put("path", &format!("/{glob}/*"), rule("path"));
    }
    put("user", "alice", rule("user"));
    put("ip", "", rule("ip"));
    put("key", "", rule("key"));
    let mut leaf = Level::default();
    leaf.insert("c", "3", rule("a.b.c")).expect("no duplicates");
    let mut middle = Level::default();
    middle.insert("b", "", Node { children: leaf, ..Node::default() }).expect("no duplicates");
    put("a", "1", Node { children: middle, ..Node::default() });
    RuleSet::new(vec![RuleTree { domain: "bench".into(), partition_by: [].into(), root }], all, Options::default())
}

fn descriptor(entries: &[(&'static str, &'static str)]) -> Descriptor<'static> {
    let entries = entries.iter().map(|(key, value)| Entry { key, value }).collect();
    Descriptor { entries, hits: Hits::ONE, override_quota: None }
}

fn planning(entries: &[(&'static str, &'static str)]) -> Box<dyn FnMut(u64)> {
    let (rules, descriptor) = (rules(), descriptor(entries));
    let request = Request { domain: "bench", descriptors: [descriptor].into_iter().collect() };
    assert_eq!(rules.plan(&request).checks.len(), 1, "the request meets its rule");
    Box::new(move |_| {
        black_box(rules.plan(&request));
    })
}

fn storing(descriptors: usize) -> Box<dyn FnMut(u64)> {
    let rules = rules();
    let all =
        [descriptor(&[("user", "alice")]), descriptor(&[("ip", "192.0.2.1")]), descriptor(&[("key", "k-1234567890")])];
    let request = Request { domain: "bench", descriptors: all.into_iter().take(descriptors).collect() };
    let store = MemoryStore::new(1_000_000);
    Box::new(move |number| {
        let plan: Plan = rules.plan(&request);
        let decisions = store.decide_at(NOW_US + 10 * number, &plan.checks, &plan.keys);
        black_box(plan.conclude(&decisions));
    })
}
