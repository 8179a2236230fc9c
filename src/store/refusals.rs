//! Remembers refusals that nothing but time can lift, and answers for the store until then.
//!
//! # Why this is sound
//!
//! A store said at some moment that `h` hits do not fit into a counter, and that they fit `w` microseconds later, not earlier. Until
//! then:
//!
//! * Other traffic only takes from the counter, so that there is even less room. Giving back makes room: a refund that is seen
//!   here makes the counter forgotten; one that another sluice sends is not seen, and takes effect here at the end of `w`.
//! * More than `h` hits need even more room. Fewer may fit, so that those are asked for.
//! * The limit must be the same one, not just an equal one: a reload makes new quotas, and a limit that comes with a request is
//!   never the same twice.
//! * A rule that spares refused requests is not changed by asking, so that not asking changes nothing either. A rule that
//!   charges them is: its count would be too low. It is remembered only where the reference's local cache is asked for, and
//!   then only for fixed windows, where the count beyond the limit decides nothing before the window ends.
//! * A rule that tracks denials counts each of them, and is always asked.
//! * `w` is counted from when the question was sent, which is before the store looked at its clock.
//!
//! A request is answered from here only if every one of its checks is refused from here: then all of them do not fit, and
//! whatever their modes are, none of their counters moves.
//!
//! # A worked example
//!
//! 10 per second, burst 100, one caller who is at its limit and keeps trying. The store refuses one hit and says 87 ms. For 87 ms
//! every try is answered from here: over the limit, nothing remaining, and a wait that shrinks. Then one try is asked for again.

use std::{
    collections::HashMap,
    hash::BuildHasher as _,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use foldhash::quality::RandomState;

use super::Answers;
use crate::engine::{
    algorithm::{Check, Decision, Decisions, Retry},
    plan::Keys,
    quota::{Algorithm, OnOverLimit, Quota},
    request::Hits,
};

const SHARDS: usize = 16;
/// About what an entry takes, with its key.
const ENTRY_BYTES: usize = 256;

/// What may be remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    pub entries_max: usize,
    /// Also fixed windows that charge refused requests, as the reference's local cache does.
    pub charging_windows: bool,
}

impl Scope {
    /// `local_cache_bytes` is the reference's setting; 0 is off.
    #[must_use]
    pub fn new(local_cache_bytes: usize) -> Self {
        const ENTRIES: usize = 32_768;
        match local_cache_bytes {
            0 => Self { entries_max: ENTRIES, charging_windows: false },
            bytes => Self { entries_max: (bytes / ENTRY_BYTES).max(SHARDS), charging_windows: true },
        }
    }
}

#[derive(Debug)]
pub struct Refusals {
    shards: [Mutex<HashMap<Box<str>, Refusal, RandomState>>; SHARDS],
    hasher: RandomState,
    scope: Scope,
    /// How many there are. While there are none, nobody looks.
    count: AtomicUsize,
}

#[derive(Clone, Debug)]
struct Refusal {
    quota: Arc<Quota>,
    hits: u64,
    decision: Decision,
    asked_at: Instant,
    until: Instant,
}

impl Refusals {
    #[must_use]
    pub fn new(scope: Scope) -> Self {
        let hasher = RandomState::default();
        let shards = std::array::from_fn(|_| Mutex::new(HashMap::with_hasher(hasher.clone())));
        Self { shards, hasher, scope, count: AtomicUsize::new(0) }
    }

    /// The decisions of a request of which every check is refused from memory.
    #[must_use]
    pub fn recall(&self, checks: &[Check], keys: &Keys, now: Instant) -> Option<Decisions> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        checks.iter().map(|check| self.recall_one(keys.get(check.slot), check, now)).collect()
    }

    fn recall_one(&self, key: &str, check: &Check, now: Instant) -> Option<Decision> {
        let shard = self.shard(key);
        let refusal = shard.get(key)?;
        let holds =
            now < refusal.until && Arc::ptr_eq(&refusal.quota, &check.quota) && is_at_least(check.hits, refusal.hits);
        holds.then(|| refusal.after(now))
    }

    /// Learns from what the store answered to a question that was sent at `asked_at`.
    pub fn learn(&self, checks: &[Check], keys: &Keys, answers: &Answers, asked_at: Instant) {
        for (check, answer) in checks.iter().zip(answers) {
            let key = || keys.get(check.slot);
            match (check.hits, answer) {
                (Hits::Refund(_), _) => self.forget(key()),
                (Hits::Take(hits), Ok(decision)) if self.is_lasting(checks, check, decision) => {
                    if let Retry::After(wait_us) = decision.retry {
                        let until = asked_at + Duration::from_micros(wait_us);
                        let quota = check.quota.clone();
                        self.remember(key(), Refusal { quota, hits, decision: *decision, asked_at, until });
                    }
                }
                _ => {}
            }
        }
    }

    fn is_lasting(&self, checks: &[Check], check: &Check, decision: &Decision) -> bool {
        let quota = &check.quota;
        let spares = quota.on_over_limit() == OnOverLimit::Spare;
        let may_charge = self.scope.charging_windows && quota.algorithm() == Algorithm::FixedWindow;
        // What two checks ask of one counter together says nothing of either alone.
        let is_alone = checks.iter().filter(|other| other.slot == check.slot).count() == 1;
        !decision.fits && !quota.track_denials() && (spares || may_charge) && is_alone
    }

    fn remember(&self, key: &str, refusal: Refusal) {
        let room = self.scope.entries_max / SHARDS;
        let mut shard = self.shard(key);
        let before = shard.len();
        if before >= room && !shard.contains_key(key) {
            let now = refusal.asked_at;
            shard.retain(|_, known| known.until > now);
        }
        // A full memory remembers no more: who is not in it is asked for, as if there were none.
        if shard.len() < room || shard.contains_key(key) {
            shard.insert(key.into(), refusal);
        }
        self.count.fetch_add(shard.len(), Ordering::Relaxed);
        self.count.fetch_sub(before, Ordering::Relaxed);
    }

    fn forget(&self, key: &str) {
        if self.count.load(Ordering::Relaxed) > 0 && self.shard(key).remove(key).is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "only some of the bits are wanted")]
    fn shard(&self, key: &str) -> MutexGuard<'_, HashMap<Box<str>, Refusal, RandomState>> {
        let index = self.hasher.hash_one(key) as usize >> 7 & (SHARDS - 1);
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Refusal {
    /// The same answer, told later: what was to wait for has come closer.
    fn after(&self, now: Instant) -> Decision {
        let passed_us = u64::try_from(now.saturating_duration_since(self.asked_at).as_micros()).unwrap_or(u64::MAX);
        let retry = match self.decision.retry {
            Retry::After(wait_us) => Retry::After(wait_us.saturating_sub(passed_us).max(1)),
            retry => retry,
        };
        Decision { retry, reset_us: self.decision.reset_us.saturating_sub(passed_us), ..self.decision }
    }
}

fn is_at_least(hits: Hits, refused: u64) -> bool {
    matches!(hits, Hits::Take(hits) if hits >= refused)
}

#[cfg(test)]
mod tests {
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
        memory.learn(&checks, &keys, &smallvec![Ok(refused())], now);
        assert!(!is_recalled(&memory, &quota, 3, now));
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
        let kept: usize = memory.shards.iter().map(|shard| shard.lock().unwrap().len()).sum();
        assert!(kept <= 160, "{kept}");
        assert_eq!(memory.count.load(Ordering::Relaxed), kept);
    }

    proptest! {
        /// Two sluices share a counter. Whatever the other one takes, when this one refuses from memory the store would have
        /// refused too, and would not have moved.
        #[test]
        fn what_memory_refuses_the_store_refuses(
            steps in proptest::collection::vec((0..200_000_u64, 0..14_u64, any::<bool>()), 1..200),
            algorithm in prop_oneof![
                Just(Algorithm::FixedWindow), Just(Algorithm::SlidingWindow), Just(Algorithm::TokenBucket)
            ],
        ) {
            let quota = quota(algorithm, OnOverLimit::Spare, false);
            let (memory, start) = (memory(), Instant::now());
            let mut states = [State::absent(&quota)];
            let mut passed_us = 0;
            for (step_us, hits, is_other) in steps {
                passed_us += step_us;
                let now = start + Duration::from_micros(passed_us);
                let (checks, keys) = asked(&[(&quota, Hits::Take(hits))]);
                let remembered = if is_other { None } else { memory.recall(&checks, &keys, now) };
                let (decisions, changed) = decide(NOW_US + passed_us, &checks, &mut states);
                if remembered.is_some() {
                    prop_assert!(!decisions[0].fits);
                    prop_assert!(!changed[0]);
                } else if !is_other {
                    memory.learn(&checks, &keys, &decisions.into_iter().map(Ok).collect(), now);
                }
            }
        }
    }
}
