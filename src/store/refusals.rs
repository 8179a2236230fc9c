//! Remembers refusals that nothing but time can lift, and answers for the store until then.
//!
//! # Why this is sound
//!
//! A store said at some moment that `h` hits do not fit into a counter, and that they fit `w` microseconds later, not earlier. Until
//! then:
//!
//! * Other traffic only takes from the counter, so that there is even less room. Giving back makes room. What this sluice gives
//!   back, for a caller or because a request of several parts was refused, makes the counter forgotten: before the store is asked, in
//!   case the caller goes away, and when it has answered. A refusal that was asked for before that may be older than what was given
//!   back, however late its answer comes, and is not remembered.
//! * More than `h` hits need even more room. Fewer may fit, so that those are asked for.
//! * The limit must be the same one, not just an equal one: a reload makes new quotas, and a limit that comes with a request is
//!   never the same twice.
//! * A rule that spares refused requests is not changed by asking, so that not asking changes nothing either. A rule that
//!   charges them is: its count would be too low. It is remembered only where the reference's local cache is asked for, and
//!   then only for fixed windows of one rate, where the count beyond the limit decides nothing before the window ends. Of several
//!   rates the others go on counting, into windows that end later.
//! * A rule that tracks denials counts each of them, and is always asked.
//! * `w` is counted from when the question was sent, which is before the store looked at its clock.
//!
//! What is not seen from here can make room, too: another sluice gives back, somebody deletes keys, the store comes back empty, its
//! clock jumps. So nothing is remembered for longer than [`REMEMBERED_MAX`], and all of that takes effect within that.
//!
//! A request is answered from here only if every one of its checks is refused from here: then all of them do not fit, and
//! whatever their modes are, none of their counters moves.
//!
//! # A worked example
//!
//! 10 per second, burst 100, one caller who is at its limit and keeps trying. The store refuses one hit and says 87 ms. For 87 ms
//! every try is answered from here: over the limit, nothing remaining, and a wait that shrinks. Then one try is asked for again.

#[cfg(test)]
mod tests;

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

/// The longest that anything is remembered.
pub const REMEMBERED_MAX: Duration = Duration::from_secs(10);
const SHARDS: usize = 16;
/// A full shard looks for what is over at most so often: that is a look at all of it, which is too much for every refusal.
const SWEEP_PAUSE: Duration = Duration::from_millis(100);
/// About what an entry takes, with its key.
const ENTRY_BYTES: usize = 256;

/// What may be remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    pub entries_max: usize,
    /// Also fixed windows of one rate that charge refused requests, as the reference's local cache does.
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
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    scope: Scope,
    /// How many there are. While there are none, nobody looks.
    count: AtomicUsize,
}

#[derive(Debug)]
struct Shard {
    known: HashMap<Box<str>, Refusal, RandomState>,
    /// When something was last given back here. What was asked for until then is not remembered.
    forgotten_at: Option<Instant>,
    swept_at: Option<Instant>,
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
        let shard = || Shard { known: HashMap::with_hasher(hasher.clone()), forgotten_at: None, swept_at: None };
        let shards = std::array::from_fn(|_| Mutex::new(shard()));
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
        let refusal = shard.known.get(key)?;
        let holds =
            now < refusal.until && Arc::ptr_eq(&refusal.quota, &check.quota) && is_at_least(check.hits, refusal.hits);
        holds.then(|| refusal.after(now))
    }

    /// Learns from what the store answered to a question that was sent at `asked_at`.
    pub fn learn(&self, checks: &[Check], keys: &Keys, answers: &Answers, asked_at: Instant) {
        for (check, answer) in checks.iter().zip(answers) {
            let (Hits::Take(hits), Ok(decision)) = (check.hits, answer) else { continue };
            if decision.fits || !self.is_lasting(checks, check) {
                continue;
            }
            if let Retry::After(wait_us) = decision.retry {
                let until = asked_at + Duration::from_micros(wait_us).min(REMEMBERED_MAX);
                let quota = check.quota.clone();
                self.remember(keys.get(check.slot), Refusal { quota, hits, decision: *decision, asked_at, until });
            }
        }
    }

    /// Whether nothing but time lifts a refusal of this check.
    fn is_lasting(&self, checks: &[Check], check: &Check) -> bool {
        let quota = &check.quota;
        let spares = quota.on_over_limit() == OnOverLimit::Spare;
        let is_window = quota.algorithm() == Algorithm::FixedWindow && quota.rates().len() == 1;
        let may_charge = self.scope.charging_windows && is_window;
        // What two checks ask of one counter together says nothing of either alone.
        let is_alone = || checks.iter().filter(|other| other.slot == check.slot).count() == 1;
        !quota.track_denials() && (spares || may_charge) && is_alone()
    }

    fn remember(&self, key: &str, refusal: Refusal) {
        let room = self.scope.entries_max / SHARDS;
        let mut shard = self.shard(key);
        if shard.forgotten_at.is_some_and(|at| refusal.asked_at <= at) {
            return;
        }
        let before = shard.known.len();
        if before >= room && !shard.known.contains_key(key) {
            shard.sweep(refusal.asked_at);
        }
        // A full memory remembers no more: who is not in it is asked for, as if there were none.
        if shard.known.len() < room || shard.known.contains_key(key) {
            shard.known.insert(key.into(), refusal);
        }
        self.count.fetch_add(shard.known.len(), Ordering::Relaxed);
        self.count.fetch_sub(before, Ordering::Relaxed);
    }

    /// Forgets what a request gives back to: before it is asked for, and when it is answered.
    pub fn forget_refunds(&self, checks: &[Check], keys: &Keys) {
        self.forget_refunds_at(checks, keys, Instant::now);
    }

    fn forget_refunds_at(&self, checks: &[Check], keys: &Keys, now: impl Fn() -> Instant) {
        for check in checks {
            if let Hits::Refund(_) = check.hits {
                self.forget(keys.get(check.slot), now());
            }
        }
    }

    fn forget(&self, key: &str, now: Instant) {
        let mut shard = self.shard(key);
        shard.forgotten_at = shard.forgotten_at.max(Some(now));
        if shard.known.remove(key).is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "only some of the bits are wanted")]
    fn shard(&self, key: &str) -> MutexGuard<'_, Shard> {
        let index = self.hasher.hash_one(key) as usize >> 7 & (SHARDS - 1);
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shard {
    fn sweep(&mut self, now: Instant) {
        if self.swept_at.is_none_or(|at| now >= at + SWEEP_PAUSE) {
            self.swept_at = Some(now);
            self.known.retain(|_, known| known.until > now);
        }
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
