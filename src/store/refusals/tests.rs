use proptest::prelude::*;
use smallvec::smallvec;

use super::*;
use crate::engine::{
    algorithm::{Mode, State, decide},
    quota::{Period, RateSpec, Unit},
};

const NOW_US: u64 = 1_800_000_000_000_000;

fn quota(algorithm: Algorithm, over: OnOverLimit, track_denials: bool) -> Arc<Quota> {
    let period = Period::try_new(Unit::Second, 1).unwrap();
    let spec = RateSpec { requests: 10, period, burst: None, name: None };
    Arc::new(Quota::try_new(algorithm, vec![spec], over, track_denials).unwrap())
}

fn asked(checks: &[(&Arc<Quota>, Hits)]) -> (Vec<Check>, Keys) {
    let check = |(slot, (quota, hits)): (usize, &(&Arc<Quota>, Hits))| Check {
        quota: (*quota).clone(),
        slot,
        hits: *hits,
        mode: Mode::Enforce,
        chained: false,
    };
    let names = ["a", "b", "c"];
    (checks.iter().enumerate().map(check).collect(), names[..checks.len()].iter().copied().collect())
}

/// Three hits refused for 100 ms.
fn refused() -> Decision {
    let retry = Retry::After(100_000);
    Decision { retry, reset_us: 900_000, before: 9, remaining: 1, counted: true, ..Decision::uncounted(false) }
}

fn memory() -> Refusals {
    Refusals::new(Scope::new(0))
}

fn learned(quota: &Arc<Quota>, scope: Scope) -> (Refusals, Instant) {
    let (memory, now) = (Refusals::new(scope), Instant::now());
    let (checks, keys) = asked(&[(quota, Hits::Take(3))]);
    memory.learn(&checks, &keys, &smallvec![Ok(refused())], now);
    (memory, now)
}

fn is_recalled(memory: &Refusals, quota: &Arc<Quota>, hits: u64, now: Instant) -> bool {
    let (checks, keys) = asked(&[(quota, Hits::Take(hits))]);
    memory.recall(&checks, &keys, now).is_some()
}

#[test]
fn as_many_hits_or_more_are_refused_until_they_fit_and_fewer_are_asked_for() {
    let quota = quota(Algorithm::TokenBucket, OnOverLimit::Spare, false);
    let (memory, now) = learned(&quota, Scope::new(0));
    assert!(is_recalled(&memory, &quota, 3, now));
    assert!(is_recalled(&memory, &quota, u64::MAX, now));
    assert!(!is_recalled(&memory, &quota, 2, now));
    assert!(!is_recalled(&memory, &quota, 0, now));
    assert!(is_recalled(&memory, &quota, 3, now + Duration::from_micros(99_999)));
    assert!(!is_recalled(&memory, &quota, 3, now + Duration::from_micros(100_000)));
}

#[test]
fn the_wait_that_is_told_becomes_shorter() {
    let quota = quota(Algorithm::TokenBucket, OnOverLimit::Spare, false);
    let (memory, now) = learned(&quota, Scope::new(0));
    let (checks, keys) = asked(&[(&quota, Hits::Take(3))]);
    let told = memory.recall(&checks, &keys, now + Duration::from_micros(60_000)).unwrap();
    assert_eq!((told[0].retry, told[0].reset_us), (Retry::After(40_000), 840_000));
}

#[test]
fn an_equal_limit_of_another_load_is_not_the_same_limit() {
    let quota = quota(Algorithm::TokenBucket, OnOverLimit::Spare, false);
    let (memory, now) = learned(&quota, Scope::new(0));
    assert!(!is_recalled(&memory, &Arc::new((*quota).clone()), 3, now));
}

#[test]
fn a_refund_makes_a_counter_forgotten() {
    let quota = quota(Algorithm::TokenBucket, OnOverLimit::Spare, false);
    let (memory, now) = learned(&quota, Scope::new(0));
    let (checks, keys) = asked(&[(&quota, Hits::Refund(1))]);
    memory.forget_refunds(&checks, &keys);
    assert!(!is_recalled(&memory, &quota, 3, now));
}

#[test]
fn a_refusal_that_was_asked_for_before_a_refund_is_not_remembered_however_late_its_answer_comes() {
    let quota = quota(Algorithm::TokenBucket, OnOverLimit::Spare, false);
    let (memory, now) = (memory(), Instant::now());
    let (refund, keys) = asked(&[(&quota, Hits::Refund(1))]);
    memory.forget_refunds_at(&refund, &keys, || now);
    let (checks, keys) = asked(&[(&quota, Hits::Take(3))]);
    memory.learn(&checks, &keys, &smallvec![Ok(refused())], now);
    assert!(!is_recalled(&memory, &quota, 3, now));
    let later = now + Duration::from_micros(1);
    memory.learn(&checks, &keys, &smallvec![Ok(refused())], later);
    assert!(is_recalled(&memory, &quota, 3, later));
}

#[test]
fn nothing_is_remembered_for_longer_than_ten_seconds_and_the_wait_is_told_as_it_is() {
    let quota = quota(Algorithm::TokenBucket, OnOverLimit::Spare, false);
    let (memory, now) = (memory(), Instant::now());
    let (checks, keys) = asked(&[(&quota, Hits::Take(3))]);
    let hour_us = 3_600_000_000;
    let refused = Decision { retry: Retry::After(hour_us), ..refused() };
    memory.learn(&checks, &keys, &smallvec![Ok(refused)], now);
    let told = memory.recall(&checks, &keys, now + Duration::from_micros(9_999_999)).unwrap();
    assert_eq!(told[0].retry, Retry::After(hour_us - 9_999_999));
    assert!(!is_recalled(&memory, &quota, 3, now + REMEMBERED_MAX));
}

#[test]
fn a_window_of_several_rates_that_charges_is_always_asked_for() {
    let spec = |unit| RateSpec { requests: 10, period: Period::try_new(unit, 1).unwrap(), burst: None, name: None };
    let rates = vec![spec(Unit::Second), spec(Unit::Hour)];
    let quota = Quota::try_new(Algorithm::FixedWindow, rates, OnOverLimit::Charge, false).unwrap();
    let quota = Arc::new(quota);
    let (memory, now) = learned(&quota, Scope::new(1 << 20));
    assert!(!is_recalled(&memory, &quota, 3, now));
}

#[test]
fn a_full_memory_looks_for_room_now_and_then_and_not_for_every_refusal() {
    let quota = quota(Algorithm::TokenBucket, OnOverLimit::Spare, false);
    let memory = Refusals::new(Scope { entries_max: SHARDS, charging_windows: false });
    let learn = |name: u64, now: Instant| {
        let (checks, _) = asked(&[(&quota, Hits::ONE)]);
        let keys: Keys = [&*format!("key {name}")].into_iter().collect();
        memory.learn(&checks, &keys, &smallvec![Ok(refused())], now);
        memory.recall(&checks, &keys, now).is_some()
    };
    let start = Instant::now();
    assert_eq!((0..1_000).filter(|name| learn(*name, start)).count(), SHARDS);
    // Those have swept in vain a moment ago. They are over after 100 ms, which is when it may be looked for again.
    let over = start + Duration::from_millis(100);
    assert_eq!((1_000..2_000).filter(|name| learn(*name, over)).count(), SHARDS);
    assert!((2_000..3_000).all(|name| !learn(name, over + Duration::from_millis(99))), "all are full, and swept");
}

#[test]
fn what_asking_would_change_is_always_asked_for() {
    let local_cache = Scope::new(1 << 20);
    for (algorithm, over, track, scope, remembered) in [
        (Algorithm::TokenBucket, OnOverLimit::Spare, false, Scope::new(0), true),
        (Algorithm::TokenBucket, OnOverLimit::Spare, true, Scope::new(0), false),
        (Algorithm::TokenBucket, OnOverLimit::Charge, false, local_cache, false),
        (Algorithm::FixedWindow, OnOverLimit::Charge, false, Scope::new(0), false),
        (Algorithm::FixedWindow, OnOverLimit::Charge, false, local_cache, true),
        (Algorithm::SlidingWindow, OnOverLimit::Charge, false, local_cache, false),
        (Algorithm::FixedWindow, OnOverLimit::Spare, false, Scope::new(0), true),
    ] {
        let quota = quota(algorithm, over, track);
        let (memory, now) = learned(&quota, scope);
        assert_eq!(is_recalled(&memory, &quota, 3, now), remembered, "{algorithm:?} {over:?} {track} {scope:?}");
    }
}

#[test]
fn a_request_is_answered_from_memory_only_if_all_of_its_checks_are() {
    let quota = quota(Algorithm::TokenBucket, OnOverLimit::Spare, false);
    let (memory, now) = (memory(), Instant::now());
    let (checks, keys) = asked(&[(&quota, Hits::ONE), (&quota, Hits::ONE)]);
    let fits = Decision { counted: true, ..Decision::uncounted(true) };
    memory.learn(&checks, &keys, &smallvec![Ok(refused()), Ok(fits)], now);
    assert!(memory.recall(&checks, &keys, now).is_none());
    memory.learn(&checks, &keys, &smallvec![Ok(refused()), Ok(refused())], now);
    assert_eq!(memory.recall(&checks, &keys, now).unwrap().len(), 2);
}

#[test]
fn the_memory_is_bounded() {
    let quota = quota(Algorithm::TokenBucket, OnOverLimit::Spare, false);
    let memory = Refusals::new(Scope { entries_max: 160, charging_windows: false });
    let now = Instant::now();
    for name in 0..10_000 {
        let (checks, _) = asked(&[(&quota, Hits::ONE)]);
        let keys: Keys = [&*format!("key {name}")].into_iter().collect();
        memory.learn(&checks, &keys, &smallvec![Ok(refused())], now);
    }
    let kept: usize = memory.shards.iter().map(|shard| shard.lock().unwrap().known.len()).sum();
    assert!(kept <= 160, "{kept}");
    assert_eq!(memory.count.load(Ordering::Relaxed), kept);
}

/// A question on its way: asked, decided and answered at different times.
struct UnderWay {
    checks: Vec<Check>,
    keys: Keys,
    asked_at: Instant,
    decided_in: u8,
    answered_in: u8,
    answers: Option<Answers>,
}

impl UnderWay {
    fn is_refund(&self) -> bool {
        matches!(self.checks[0].hits, Hits::Refund(_))
    }

    /// One step later. Whether it has been answered.
    fn goes_on(&mut self, memory: &Refusals, states: &mut [State], now: Instant, now_us: u64) -> bool {
        if self.answers.is_none() && self.decided_in == 0 {
            let (decisions, _) = decide(now_us, &self.checks, states);
            self.answers = Some(decisions.into_iter().map(Ok).collect());
        }
        let answered = self.answered_in == 0;
        if let (Some(answers), true) = (&self.answers, answered) {
            memory.forget_refunds_at(&self.checks, &self.keys, || now);
            memory.learn(&self.checks, &self.keys, answers, self.asked_at);
        }
        self.decided_in = self.decided_in.saturating_sub(1);
        self.answered_in = self.answered_in.saturating_sub(1);
        !answered
    }
}

proptest! {
    /// Two sluices share a counter. Whatever the other one takes, and however late answers come, when this one refuses from
    /// memory the store would have refused too, and would not have moved. While something is being given back, either is right.
    #[test]
    fn what_memory_refuses_the_store_refuses(
        steps in proptest::collection::vec((0..200_000_u64, 0..14_u64, 0..8_u8, 0..4_u8, 0..4_u8), 1..200),
        algorithm in prop_oneof![
            Just(Algorithm::FixedWindow), Just(Algorithm::SlidingWindow), Just(Algorithm::TokenBucket)
        ],
    ) {
        let quota = quota(algorithm, OnOverLimit::Spare, false);
        let (memory, start) = (memory(), Instant::now());
        let mut states = [State::absent(&quota)];
        let mut under_way: Vec<UnderWay> = Vec::new();
        let mut passed_us = 0;
        for (step_us, hits, kind, decided_in, answered_after) in steps {
            passed_us += step_us;
            let (now, now_us) = (start + Duration::from_micros(passed_us), NOW_US + passed_us);
            under_way.retain_mut(|asked| asked.goes_on(&memory, &mut states, now, now_us));
            let hits = if kind == 0 { Hits::Refund(hits) } else { Hits::Take(hits) };
            let (checks, keys) = asked(&[(&quota, hits)]);
            if kind == 1 {
                decide(now_us, &checks, &mut states);
                continue;
            }
            if memory.recall(&checks, &keys, now).is_some() {
                let gives_back = under_way.iter().any(|asked| asked.is_refund() && asked.answers.is_some());
                let (decisions, changed) = decide(now_us, &checks, &mut states.clone());
                prop_assert!(gives_back || !decisions[0].fits && !changed[0]);
                continue;
            }
            memory.forget_refunds_at(&checks, &keys, || now);
            let answered_in = decided_in + answered_after;
            let mut asked = UnderWay { checks, keys, asked_at: now, decided_in, answered_in, answers: None };
            if asked.goes_on(&memory, &mut states, now, now_us) {
                under_way.push(asked);
            }
        }
    }
}
