//! What the embedded store promises beside the decisions themselves, which are the engine's.

use std::{sync::Arc, thread};

use proptest::prelude::*;

use super::*;
use crate::engine::{
    algorithm::Mode,
    quota::{Algorithm, OnOverLimit, Period, Quota, RateSpec, Unit},
    request::Hits,
    scenarios,
};

const NOW_US: u64 = 1_800_000_000_000_000;
const MINUTE_US: u64 = 60_000_000;

fn per_minute(requests: u32) -> Arc<Quota> {
    Arc::new(Quota::fixed_window(requests, Period::try_new(Unit::Minute, 1).unwrap()).unwrap())
}

fn spared_per_minute(requests: u32) -> Arc<Quota> {
    let period = Period::try_new(Unit::Minute, 1).unwrap();
    let spec = RateSpec { requests, period, burst: None, name: None };
    Arc::new(Quota::try_new(Algorithm::FixedWindow, vec![spec], OnOverLimit::Spare, false).unwrap())
}

fn check(quota: &Arc<Quota>, slot: usize, hits: u64) -> Check {
    Check { quota: quota.clone(), slot, hits: Hits::take(hits), mode: Mode::Enforce, chained: false }
}

fn keys(names: &[&str]) -> Keys {
    names.iter().copied().collect()
}

fn ask(store: &MemoryStore, now_us: u64, quota: &Arc<Quota>, key: &str, hits: u64) -> bool {
    store.decide_at(now_us, &[check(quota, 0, hits)], &keys(&[key]))[0].fits
}

#[test]
fn the_scenario_tables_hold_for_the_memory_store() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scenarios");
    let mut steps = 0;
    for file in std::fs::read_dir(directory).unwrap() {
        let path = file.unwrap().path();
        for scenario in scenarios::parse(&std::fs::read_to_string(&path).unwrap()).unwrap() {
            let store = MemoryStore::new(1_000);
            for step in &scenario.steps {
                let names: Vec<&str> = step.counters.iter().map(AsRef::as_ref).collect();
                let decisions = store.decide_at(step.now_us, &step.checks, &keys(&names));
                let place = format!("{} line {}: {}", path.display(), step.line, scenario.title);
                step.verify(&decisions).unwrap_or_else(|wrong| panic!("{place}: {wrong}"));
                steps += 1;
            }
        }
    }
    assert!(steps > 200, "only {steps} steps were found");
}

#[test]
fn a_full_store_forgets_who_has_most_room_and_keeps_who_has_none() {
    let quota = per_minute(10);
    let store = MemoryStore::new(100);
    for debtor in 0..10 {
        ask(&store, NOW_US, &quota, &format!("debtor {debtor}"), 11);
    }
    for stranger in 0..10_000 {
        assert!(ask(&store, NOW_US, &quota, &format!("stranger {stranger}"), 1));
    }
    for debtor in 0..10 {
        assert!(!ask(&store, NOW_US, &quota, &format!("debtor {debtor}"), 1), "a debtor was forgotten");
    }
    assert_eq!(store.entries(), 100);
    assert_eq!(store.evictions(), 10_010 - 100);
}

#[test]
fn a_store_of_many_shards_keeps_the_bound_too() {
    let quota = per_minute(10);
    for bound in [1, 100, 5_000, 10_007] {
        let store = MemoryStore::new(bound);
        for caller in 0..2 * bound + 5_000 {
            ask(&store, NOW_US, &quota, &format!("{caller}"), 1);
        }
        assert!(store.entries() <= bound, "{} of {bound}", store.entries());
    }
}

#[test]
fn who_is_refused_cannot_buy_amnesty_by_making_new_keys() {
    for quota in [per_minute(1), spared_per_minute(1)] {
        let store = MemoryStore::new(8);
        assert!(ask(&store, NOW_US, &quota, "me", 1));
        for round in 0..1_000 {
            assert!(!ask(&store, NOW_US, &quota, "me", 1), "amnesty after {round} new keys");
            // Each of these uses its whole limit and is as full as I am, but was never refused.
            ask(&store, NOW_US, &quota, &format!("alias {round}"), 1);
        }
    }
}

#[test]
fn nor_by_making_new_keys_that_are_refused_at_once() {
    let (quota, none) = (per_minute(1), per_minute(0));
    let store = MemoryStore::new(8);
    assert!(ask(&store, NOW_US, &quota, "me", 1));
    assert!(!ask(&store, NOW_US, &quota, "me", 1));
    for alias in 0..1_000 {
        assert!(!ask(&store, NOW_US, &none, &format!("alias {alias}"), 1));
        assert!(!ask(&store, NOW_US, &quota, &format!("greedy {alias}"), 2));
    }
    assert!(!ask(&store, NOW_US, &quota, "me", 1));
    // Time makes room all the same.
    assert!(ask(&store, NOW_US + MINUTE_US, &quota, "new", 1));
    assert!(!ask(&store, NOW_US + MINUTE_US, &quota, "new", 1), "a newcomer is remembered when others are idle");
}

#[test]
fn an_idle_counter_makes_room_without_being_counted_as_evicted() {
    let quota = per_minute(10);
    let store = MemoryStore::new(100);
    for caller in 0..100 {
        ask(&store, NOW_US, &quota, &format!("early {caller}"), 1);
    }
    for caller in 0..100 {
        ask(&store, NOW_US + MINUTE_US, &quota, &format!("late {caller}"), 1);
    }
    assert_eq!(store.evictions(), 0);
    assert!(store.entries() <= 100, "{}", store.entries());
}

#[test]
fn a_sweep_drops_what_is_idle_and_nothing_else() {
    let store = MemoryStore::new(10_000);
    let (short, long) =
        (per_minute(10), Arc::new(Quota::fixed_window(10, Period::try_new(Unit::Hour, 1).unwrap()).unwrap()));
    for caller in 0..1_000 {
        ask(&store, NOW_US, &short, &format!("short {caller}"), 1);
        ask(&store, NOW_US, &long, &format!("long {caller}"), 1);
    }
    assert_eq!(store.entries(), 2_000);
    // One round may look twice at an entry that took the place of a dropped one.
    for _ in 0..10 {
        store.shards.iter().for_each(|shard| locked(shard).sweep(NOW_US + MINUTE_US, 4_000));
    }
    assert_eq!(store.entries(), 1_000);
    assert_eq!(store.evictions(), 0);
}

#[test]
fn a_refund_that_empties_a_counter_forgets_it() {
    let quota = per_minute(10);
    let store = MemoryStore::new(100);
    ask(&store, NOW_US, &quota, "a", 3);
    assert_eq!(store.entries(), 1);
    let refund = Check { hits: Hits::refund(3), ..check(&quota, 0, 0) };
    assert!(store.decide_at(NOW_US, &[refund], &keys(&["a"]))[0].fits);
    assert_eq!(store.entries(), 0);
    assert_eq!(store.peek("a"), None);
}

#[test]
fn a_look_leaves_no_trace() {
    let store = MemoryStore::new(100);
    assert!(ask(&store, NOW_US, &per_minute(10), "a", 0));
    assert_eq!(store.entries(), 0);
}

#[test]
fn requests_that_share_several_counters_see_each_other_whole_or_not_at_all() {
    // Each request takes one from two of four counters, in either order, all or nothing. Whatever the interleaving, what
    // was admitted is what was charged, and nobody waits for ever.
    let quota = spared_per_minute(5_000);
    let store = MemoryStore::new(1_000_000);
    let names = ["a", "b", "c", "d"];
    let admitted: Vec<[u64; 4]> = thread::scope(|scope| {
        let worker = |seed: u64| {
            let (store, quota) = (&store, &quota);
            move || {
                let mut random = fastrand::Rng::with_seed(seed);
                let mut taken = [0; 4];
                for _ in 0..5_000 {
                    let first = random.usize(..4);
                    let second = (first + 1 + random.usize(..3)) % 4;
                    let checks = [check(quota, 0, 1), check(quota, 1, 1)];
                    let decisions = store.decide_at(NOW_US, &checks, &keys(&[names[first], names[second]]));
                    if decisions.iter().all(|decision| decision.fits) {
                        taken[first] += 1;
                        taken[second] += 1;
                    }
                }
                taken
            }
        };
        let workers: Vec<_> = (0..4).map(|seed| scope.spawn(worker(seed))).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    for (index, name) in names.iter().enumerate() {
        let taken: u64 = admitted.iter().map(|taken| taken[index]).sum();
        let used = store.peek(name).unwrap().cells[0].used;
        assert_eq!(used, taken, "{name}");
        assert!(used <= 5_000, "{name}");
    }
    let full = names.iter().filter(|name| store.peek(name).unwrap().cells[0].used == 5_000).count();
    assert!(full >= 3, "the limit was reached: at most one counter is left with room that no partner has");
}

proptest! {
    /// The row, the index and the lists of classes name each other rightly, whatever is done to them.
    #[test]
    fn a_shard_stays_in_order(steps in proptest::collection::vec((0..40_u64, 0..12_u64, 0..4_u64), 1..400)) {
        let quota = per_minute(10);
        let mut shard = Shard::new(16);
        let mut now_us = NOW_US;
        for (name, hits, step) in steps {
            let id = Id { shard: name, entry: name % 7 };
            if step == 3 {
                now_us += MINUTE_US / 3;
            }
            let mut states = [shard.get(id).cloned().unwrap_or_else(|| State::absent(&quota))];
            algorithm::decide(now_us, &[check(&quota, 0, hits)], &mut states);
            let [state] = states;
            shard.put(now_us, id, state, &quota);
            shard.sweep(now_us, 2);
            prop_assert!(shard.entries.len() <= 16);
            prop_assert_eq!(shard.index.len(), shard.entries.len());
            let listed: usize = shard.classes.iter().map(Vec::len).sum();
            prop_assert_eq!(listed, shard.entries.len());
            for (at, entry) in shard.entries.iter().enumerate() {
                prop_assert_eq!(shard.find(entry.id), Some(at));
                prop_assert_eq!(shard.classes[usize::from(entry.class)][entry.place as usize] as usize, at);
            }
        }
    }
}
