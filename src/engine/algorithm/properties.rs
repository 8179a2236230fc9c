//! What holds for every quota, whatever happens.

use std::sync::Arc;

use proptest::{collection::vec, prelude::*, sample::select};

use super::{Check, Decision, Mode, Retry, State, decide};
use crate::engine::{
    quota::{Algorithm, OnOverLimit, Period, Quota, Rate, RateSpec, Unit},
    request::Hits,
    scenarios::START_US,
};

const EXACT_MAX: u64 = 1 << 53;

fn some_number() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 1..20_u32, 2 => 1..5_000_u32, 1 => any::<u32>().prop_map(|n| n.max(1)), 1 => Just(u32::MAX)]
}

fn some_period() -> impl Strategy<Value = Period> {
    (select(&Unit::ALL[..]), prop_oneof![3 => Just(1), 1 => 1..8_u32])
        .prop_map(|(unit, multiplier)| Period::try_new(unit, multiplier).unwrap())
}

/// One to three rates, of every size that can be loaded.
fn quotas(algorithms: &'static [Algorithm], over: &'static [OnOverLimit]) -> impl Strategy<Value = Arc<Quota>> {
    let rate = || (some_number(), some_period(), some_number());
    let rates = prop_oneof![3 => vec(rate(), 1), 1 => vec(rate(), 2..4)];
    (select(algorithms), select(over), rates, any::<bool>()).prop_filter_map("drains too slowly", quota)
}

fn quota(
    (algorithm, over, rates, denials): (Algorithm, OnOverLimit, Vec<(u32, Period, u32)>, bool),
) -> Option<Arc<Quota>> {
    let rates = rates.into_iter().map(|(requests, period, burst)| {
        let burst = algorithm.is_bucket().then_some(burst);
        RateSpec { requests, period, burst, name: None }
    });
    Quota::try_new(algorithm, rates.collect(), over, denials).ok().map(Arc::new)
}

const EVERY: &[Algorithm] = &Algorithm::ALL;
const BUCKETS: &[Algorithm] = &[Algorithm::TokenBucket, Algorithm::LeakyBucket];
const EITHER: &[OnOverLimit] = &[OnOverLimit::Charge, OnOverLimit::Spare];
const SPARE: &[OnOverLimit] = &[OnOverLimit::Spare];

/// A visit: how far the clock moves, in thousandths of the shortest period, and what is asked, in thousandths of the
/// least capacity. Small numbers and zero come often.
#[derive(Clone, Copy, Debug)]
struct Visit {
    after: i64,
    asked: i64,
}

fn visits(backwards: bool) -> impl Strategy<Value = Vec<Visit>> {
    let back = if backwards { -3_000_i64 } else { 0 };
    let after = prop_oneof![2 => Just(0), 4 => back..1_500, 1 => back * 100..200_000];
    let asked = prop_oneof![1 => Just(0), 6 => 1..1_200_i64, 1 => -800..0_i64];
    vec((after, asked).prop_map(|(after, asked)| Visit { after, asked }), 1..25)
}

fn capacity(quota: &Quota) -> u64 {
    quota.rates().iter().map(Rate::capacity).min().unwrap()
}

/// One counter with a clock.
struct Counter {
    quota: Arc<Quota>,
    state: State,
    now_us: u64,
}

impl Counter {
    fn new(quota: &Arc<Quota>) -> Self {
        // Some odd instant, inside a window and inside a tick.
        Self { quota: quota.clone(), state: State::absent(quota), now_us: START_US + 123_456_789_012 }
    }

    fn check(&self, hits: Hits) -> Check {
        Check { quota: self.quota.clone(), slot: 0, hits, mode: Mode::Enforce, chained: false }
    }

    fn ask(&mut self, hits: Hits) -> Decision {
        let check = self.check(hits);
        decide(self.now_us, &[check], std::slice::from_mut(&mut self.state)).0[0]
    }

    /// What the answer would be at another time; nothing is changed.
    fn would_fit(&self, now_us: u64, hits: u64) -> bool {
        let mut state = self.state.clone();
        decide(now_us, &[self.check(Hits::take(hits))], std::slice::from_mut(&mut state)).0[0].fits
    }

    fn visit(&mut self, visit: Visit) -> (Hits, Decision) {
        let period_us = self.quota.rates().iter().map(Rate::period_us).min().unwrap();
        let moved_us = (period_us / 1_000).cast_signed() * visit.after;
        self.now_us = self.now_us.saturating_add_signed(moved_us).clamp(START_US, START_US * 3);
        let amount = (capacity(&self.quota) * visit.asked.unsigned_abs()).div_ceil(1_000);
        let hits = if visit.asked < 0 { Hits::refund(amount) } else { Hits::take(amount) };
        (hits, self.ask(hits))
    }

    /// The same as absent, apart from its time.
    fn is_idle_at(&self, now_us: u64) -> bool {
        let mut state = self.state.clone();
        state.settle(&self.quota, now_us);
        state.cells == State::absent(&self.quota).cells && state.denials == 0
    }

    /// The step in which time passes for one of the rates.
    fn tick_us(&self, rate: usize) -> u64 {
        let rate = &self.quota.rates()[rate];
        match self.quota.algorithm() {
            Algorithm::FixedWindow => 1,
            Algorithm::SlidingWindow => rate.period_us() / 1_000_000,
            Algorithm::TokenBucket | Algorithm::LeakyBucket => rate.tick_us(),
        }
    }
}

proptest! {
    #[test]
    fn hits_are_never_allowed_before_the_retry_time_and_always_at_it(
        quota in quotas(EVERY, EITHER), visits in visits(true),
    ) {
        let mut counter = Counter::new(&quota);
        for visit in visits {
            let (hits, decision) = counter.visit(visit);
            match decision.retry {
                Retry::Now => prop_assert!(decision.fits),
                Retry::Never => prop_assert!(hits.taken() > capacity(&quota)),
                Retry::After(wait_us) => {
                    prop_assert!(!decision.fits);
                    let retry_us = counter.now_us + wait_us;
                    prop_assert!(counter.would_fit(retry_us, hits.taken()));
                    prop_assert!(!counter.would_fit(retry_us - 1, hits.taken()));
                    let tick_us = counter.tick_us(decision.rate);
                    prop_assert!(tick_us > wait_us || !counter.would_fit(retry_us - tick_us, hits.taken()));
                }
            }
        }
    }

    #[test]
    fn every_number_stays_exact_and_what_remains_stays_in_range(
        quota in quotas(EVERY, EITHER), visits in visits(true),
    ) {
        let mut counter = Counter::new(&quota);
        for visit in visits {
            let (_, decision) = counter.visit(visit);
            let rate = &quota.rates()[decision.rate];
            prop_assert!(decision.remaining <= rate.capacity());
            prop_assert!(decision.reset_us < EXACT_MAX);
            prop_assert!(counter.state.at_us < EXACT_MAX && counter.state.idle_at_us(&quota) < EXACT_MAX);
            if quota.algorithm().is_bucket() {
                prop_assert!(quota.rates().iter().zip(&counter.state.cells).all(|(rate, cell)| cell.used <= rate.level_max()
                    && rate.level_max() + rate.leak() < EXACT_MAX && cell.previous == 0));
            } else {
                prop_assert!(counter.state.cells.iter().all(|cell| cell.used < EXACT_MAX && cell.previous < EXACT_MAX));
            }
            if quota.algorithm() == Algorithm::SlidingWindow {
                prop_assert!(counter.state.cells.iter().all(|cell| cell.used.max(cell.previous) * 1_000_000 < EXACT_MAX));
            }
        }
    }

    #[test]
    fn a_state_is_idle_exactly_when_it_says(quota in quotas(EVERY, EITHER), visits in visits(true)) {
        let mut counter = Counter::new(&quota);
        for visit in visits {
            counter.visit(visit);
            let idle_at_us = counter.state.idle_at_us(&quota);
            prop_assert!(counter.is_idle_at(idle_at_us));
            prop_assert!(counter.state.at_us == idle_at_us || !counter.is_idle_at(idle_at_us - 1));
        }
    }

    #[test]
    fn forgetting_an_idle_state_changes_nothing(quota in quotas(EVERY, EITHER), visits in visits(false)) {
        let (mut keeps, mut forgets) = (Counter::new(&quota), Counter::new(&quota));
        for visit in visits {
            let kept = keeps.visit(visit).1;
            // The clock moves inside the visit, so move it here to know whether the state is idle by then.
            let mut peek = Counter::new(&quota);
            peek.now_us = forgets.now_us;
            peek.visit(visit);
            if forgets.state.idle_at_us(&quota) <= peek.now_us {
                forgets.state = State::absent(&quota);
            }
            prop_assert_eq!(kept, forgets.visit(visit).1);
        }
    }

    #[test]
    fn visits_that_change_nothing_need_not_be_written(quota in quotas(BUCKETS, SPARE), visits in visits(false)) {
        // A store that writes only what `decide` says has changed agrees with one that writes always.
        let (mut always, mut seldom) = (Counter::new(&quota), Counter::new(&quota));
        for visit in visits.into_iter().filter(|visit| visit.asked >= 0) {
            let expected = always.visit(visit).1;
            let before = seldom.state.clone();
            let decision = seldom.visit(visit).1;
            prop_assert_eq!((expected.fits, expected.retry, expected.remaining, expected.reset_us),
                (decision.fits, decision.retry, decision.remaining, decision.reset_us));
            if !decision.fits && !quota.track_denials() {
                seldom.state = before;
            }
        }
    }

    #[test]
    fn idle_then_burst_is_exactly_the_capacity(quota in quotas(EVERY, EITHER), visits in visits(true)) {
        let mut counter = Counter::new(&quota);
        for visit in visits {
            counter.visit(visit);
        }
        counter.now_us = counter.state.idle_at_us(&quota);
        prop_assert!(!counter.would_fit(counter.now_us, capacity(&quota) + 1));
        let decision = counter.ask(Hits::take(capacity(&quota)));
        prop_assert!(decision.fits);
        prop_assert_eq!(decision.remaining, 0);
        prop_assert!(!counter.would_fit(counter.now_us, 1));
    }

    #[test]
    fn a_look_never_changes_anything(quota in quotas(EVERY, EITHER), visits in visits(true)) {
        let mut counter = Counter::new(&quota);
        for visit in visits {
            counter.visit(visit);
            let looked = counter.check(Hits::Take(0));
            let mut states = [counter.state.clone()];
            let (_, changed) = decide(counter.now_us, &[looked], &mut states);
            prop_assert_eq!(&states[0], &counter.state);
            prop_assert!(!changed[0]);
        }
    }

    #[test]
    fn a_refund_always_fits_and_never_goes_below_empty(
        quota in quotas(EVERY, EITHER), visits in visits(true), refund in any::<u64>(),
    ) {
        let mut counter = Counter::new(&quota);
        for visit in visits {
            counter.visit(visit);
        }
        prop_assert!(counter.ask(Hits::refund(refund)).fits);
        counter.ask(Hits::refund(u64::MAX));
        prop_assert_eq!(&counter.state.cells, &State::absent(&quota).cells);
        prop_assert!(!counter.would_fit(counter.now_us, capacity(&quota) + 1));
    }

    #[test]
    fn what_is_taken_and_given_back_at_once_was_never_there(quota in quotas(EVERY, EITHER), visits in visits(true), hits in 0..5_000_u64) {
        let mut counter = Counter::new(&quota);
        for visit in visits {
            counter.visit(visit);
        }
        let before = counter.state.cells.clone();
        if counter.ask(Hits::take(hits)).fits {
            counter.ask(Hits::refund(hits));
            prop_assert_eq!(before, counter.state.cells);
        }
    }

    #[test]
    fn a_jump_of_the_clock_locks_nobody_out(quota in quotas(EVERY, EITHER), visits in visits(true), back_us in 0..START_US) {
        let mut counter = Counter::new(&quota);
        for visit in visits {
            counter.visit(visit);
        }
        counter.now_us -= back_us.min(counter.now_us - 1);
        // Time stands still for at most one horizon; then the counter drains as it always does.
        let windows = if quota.algorithm() == Algorithm::SlidingWindow { 2 } else { 1 };
        let drains_in_us = |rate: &Rate| {
            if quota.algorithm().is_bucket() {
                rate.level_max().div_ceil(rate.leak()) * rate.tick_us()
            } else {
                windows * rate.period_us()
            }
        };
        let longest_us = quota.rates().iter().map(drains_in_us).max().unwrap();
        match counter.ask(Hits::take(capacity(&quota))).retry {
            Retry::Now => {}
            Retry::After(wait_us) => prop_assert!(wait_us <= quota.horizon_us() + longest_us),
            Retry::Never => prop_assert!(false, "the capacity fits into an idle counter"),
        }
    }

    #[test]
    fn time_that_does_not_move_on_gives_no_more_than_the_capacity(
        quota in quotas(EVERY, EITHER), steps in vec((0..1_000_u64, 1..400_u64), 1..40),
    ) {
        let mut counter = Counter::new(&quota);
        let start_us = counter.now_us;
        let mut admitted = 0;
        for (back, share) in steps {
            // Only as far back as the counter believes: beyond the horizon it begins anew.
            counter.now_us = start_us.saturating_sub(quota.horizon_us() / 1_000 * back);
            let hits = (capacity(&quota) * share).div_ceil(1_000);
            // The first visit is at the start, so that all others are before it or at it.
            if admitted == 0 { counter.now_us = start_us; }
            if counter.ask(Hits::take(hits)).fits { admitted += hits; }
        }
        prop_assert!(admitted <= capacity(&quota));
    }

    #[test]
    fn a_bucket_never_gives_more_than_its_burst_and_its_rate(quota in quotas(BUCKETS, SPARE), visits in visits(false)) {
        let mut counter = Counter::new(&quota);
        let start_us = counter.now_us;
        let mut admitted = 0_u128;
        for visit in visits.into_iter().filter(|visit| visit.asked >= 0) {
            let (hits, decision) = counter.visit(visit);
            if decision.fits { admitted += u128::from(hits.taken()); }
            for rate in quota.rates() {
                let ticks = u128::from(counter.now_us / rate.tick_us() - start_us / rate.tick_us());
                let units = u128::from(rate.capacity()) * u128::from(rate.weight()) + ticks * u128::from(rate.leak());
                prop_assert!(admitted * u128::from(rate.weight()) <= units);
            }
        }
    }

    #[test]
    fn a_caller_that_hammers_while_refused_gets_its_rate_all_the_same(
        requests in 1..50_u32, burst in 2..50_u32, every in 20..2_000_u64, seconds in 1..10_u64,
    ) {
        let period = Period::try_new(Unit::Second, 1).unwrap();
        let spare = OnOverLimit::Spare;
        let quota = quota((Algorithm::TokenBucket, spare, vec![(requests, period, burst)], false)).unwrap();
        let mut counter = Counter::new(&quota);
        counter.now_us = START_US;
        // Never longer between two tries than a hit takes to leak, so that the bucket is never empty and nothing wasted.
        let every_us = (every * 50).min(1_000_000 / u64::from(requests));
        let mut admitted = 0;
        while counter.now_us <= START_US + seconds * 1_000_000 {
            while counter.ask(Hits::ONE).fits { admitted += 1; }
            counter.now_us += every_us;
        }
        let last_us = counter.now_us - every_us - START_US;
        prop_assert_eq!(admitted, u64::from(burst) + last_us * u64::from(requests) / 1_000_000);
    }

    #[test]
    fn the_same_counter_twice_is_the_sum(
        quota in quotas(EVERY, EITHER), visits in visits(true), first in 1..700_u64, second in 1..700_u64,
    ) {
        let mut counter = Counter::new(&quota);
        for visit in visits {
            counter.visit(visit);
        }
        let [first, second] = [first, second].map(|share| (capacity(&quota) * share).div_ceil(1_000));
        let (mut twice, mut once) = ([counter.state.clone()], [counter.state.clone()]);
        let two = [counter.check(Hits::take(first)), counter.check(Hits::take(second))];
        let (of_two, _) = decide(counter.now_us, &two, &mut twice);
        let (of_sum, _) = decide(counter.now_us, &[counter.check(Hits::take(first + second))], &mut once);
        prop_assert_eq!(of_two.iter().all(|decision| decision.fits), of_sum[0].fits);
        prop_assert_eq!(&twice[0].cells, &once[0].cells);
        if of_two[0].fits {
            prop_assert_eq!(of_two[1].remaining, of_sum[0].remaining);
            prop_assert_eq!(of_two[1].retry, of_sum[0].retry);
        }
    }

    #[test]
    fn a_refused_request_leaves_spared_counters_alone_and_an_admitted_one_charges_all(
        quotas in vec(quotas(EVERY, EITHER), 1..4),
        requests in vec(vec((0..4_usize, 0..1_100_i64, select(&[Mode::Enforce, Mode::Shadow, Mode::Quota][..])), 1..5), 1..12),
    ) {
        let mut states: Vec<State> = quotas.iter().map(|quota| State::absent(quota)).collect();
        for (index, request) in requests.into_iter().enumerate() {
            let checks: Vec<Check> = request.into_iter().map(|(slot, share, mode)| {
                let slot = slot % quotas.len();
                let hits = Hits::take((capacity(&quotas[slot]) * share.unsigned_abs()).div_ceil(1_000));
                Check { quota: quotas[slot].clone(), slot, hits, mode, chained: false }
            }).collect();
            let now_us = START_US + index as u64 * 250_000;
            let mut settled = states.clone();
            for (state, quota) in settled.iter_mut().zip(&quotas) {
                state.settle(quota, now_us);
            }
            let (decisions, changed) = decide(now_us, &checks, &mut states);
            let refused = super::refuses(&checks, &decisions);
            for (slot, quota) in quotas.iter().enumerate() {
                let touched = checks.iter().any(|check| check.slot == slot);
                if !touched || (refused && quota.on_over_limit() == OnOverLimit::Spare) {
                    states[slot].settle(quota, now_us);
                    prop_assert_eq!(&states[slot].cells, &settled[slot].cells);
                }
                if touched && !changed[slot] {
                    prop_assert_eq!(&states[slot], &settled[slot]);
                }
            }
            // Whatever it was: taking the same checks one by one by hand gives the same counters.
            let mut by_hand = settled;
            for (check, decision) in checks.iter().zip(&decisions) {
                let charges = check.quota.on_over_limit() == OnOverLimit::Charge || (decision.fits && !refused);
                if charges {
                    super::take(&mut by_hand[check.slot], check);
                }
            }
            for (state, by_hand) in states.iter().zip(&by_hand) {
                prop_assert_eq!(&state.cells, &by_hand.cells);
            }
        }
    }
}
