//! The decision: counters, checks, and [`decide`], which answers all checks of a request at once.
//!
//! This is the law for every store. The memory store calls it; `lua/` is its translation, file by file and name by
//! name, for the stores that decide elsewhere: how counters move. What is read off them is read here, once more, from what such a
//! store has found. So it is written for two languages: integers below 2^53 (see [`super::quota`]), no clock but the argument, no
//! call that Lua could not mirror.
//!
//! # A worked example
//!
//! A request has two descriptors. `ip` has 2 per minute (fixed window, charge), `key` has 5 per second (bucket, spare).
//! The ip has used both of its hits. Both checks are tried: `ip` would go to 3 and does not fit, `key` fits. One does
//! not fit, so the request is refused: `ip` is charged (its count becomes 3, as in the reference service), `key` is left as
//! it was.

mod bucket;
mod fixed_window;
#[cfg(test)]
mod properties;
mod sliding_window;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::{
    quota::{Algorithm, HITS_MAX, OnOverLimit, Quota, Rate},
    request::{Hits, USUAL},
};

/// What is remembered of one rate. What `used` counts is the algorithm's business; `previous` is for sliding windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    pub used: u64,
    pub previous: u64,
}

/// What is remembered of one counter: one time, and one cell per rate. An idle counter is the same as an absent one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// When the cells were last brought up to date.
    pub at_us: u64,
    pub cells: SmallVec<[Cell; 1]>,
    /// Hits refused since the last admitted one, where the quota tracks them.
    pub denials: u64,
}

impl State {
    #[must_use]
    pub fn absent(quota: &Quota) -> Self {
        Self { at_us: 0, cells: smallvec![Cell::default(); quota.rates().len()], denials: 0 }
    }

    /// When this state, brought up to date at its `at_us`, becomes the same as an absent one. What a store keeps longer
    /// than this is waste, what it forgets earlier is a gift to the caller.
    #[must_use]
    pub fn idle_at_us(&self, quota: &Quota) -> u64 {
        let cells = quota.rates().iter().zip(&self.cells);
        let idle_at_us = cells.map(|(rate, cell)| match quota.algorithm() {
            Algorithm::FixedWindow => fixed_window::idle_at_us(rate, self.at_us, cell),
            Algorithm::SlidingWindow => sliding_window::idle_at_us(rate, self.at_us, cell),
            Algorithm::TokenBucket | Algorithm::LeakyBucket => bucket::idle_at_us(rate, self.at_us, cell),
        });
        let denials_until_us = if self.denials > 0 { self.at_us + quota.horizon_us() } else { 0 };
        idle_at_us.max().unwrap_or(0).max(denials_until_us)
    }

    /// Brings the state up to `now_us`. Time does not run backwards for a counter: if its own time is ahead, that one
    /// counts; if it is ahead by more than anything could have put it there, the clock has jumped, and the state is void.
    pub fn settle(&mut self, quota: &Quota, now_us: u64) {
        if self.cells.len() != quota.rates().len() || self.at_us > now_us + quota.horizon_us() {
            *self = Self::absent(quota);
        }
        let now_us = now_us.max(self.at_us);
        if now_us - self.at_us >= quota.horizon_us() {
            self.denials = 0;
        }
        for (rate, cell) in quota.rates().iter().zip(&mut self.cells) {
            match quota.algorithm() {
                Algorithm::FixedWindow => fixed_window::settle(rate, self.at_us, now_us, cell),
                Algorithm::SlidingWindow => sliding_window::settle(rate, self.at_us, now_us, cell),
                Algorithm::TokenBucket | Algorithm::LeakyBucket => bucket::settle(rate, self.at_us, now_us, cell),
            }
        }
        self.at_us = now_us;
    }

    /// The whole hits that a rate has in use.
    #[must_use]
    pub fn used(&self, quota: &Quota, index: usize) -> u64 {
        let (rate, cell) = (&quota.rates()[index], &self.cells[index]);
        match quota.algorithm() {
            Algorithm::FixedWindow => fixed_window::used(cell),
            Algorithm::SlidingWindow => sliding_window::used(rate, self.at_us, cell),
            Algorithm::TokenBucket | Algorithm::LeakyBucket => bucket::used(rate, cell),
        }
    }

    fn fits(&self, quota: &Quota, index: usize, hits: u64) -> bool {
        self.used(quota, index) + hits <= quota.rates()[index].capacity()
    }

    fn charge(&mut self, quota: &Quota, hits: u64) {
        for (rate, cell) in quota.rates().iter().zip(&mut self.cells) {
            match quota.algorithm() {
                Algorithm::FixedWindow => fixed_window::charge(cell, hits),
                Algorithm::SlidingWindow => sliding_window::charge(cell, hits),
                Algorithm::TokenBucket | Algorithm::LeakyBucket => bucket::charge(rate, cell, hits),
            }
        }
    }

    fn refund(&mut self, quota: &Quota, hits: u64) {
        for (rate, cell) in quota.rates().iter().zip(&mut self.cells) {
            match quota.algorithm() {
                Algorithm::FixedWindow => fixed_window::refund(cell, hits),
                Algorithm::SlidingWindow => sliding_window::refund(cell, hits),
                Algorithm::TokenBucket | Algorithm::LeakyBucket => bucket::refund(rate, cell, hits),
            }
        }
    }

    fn reset_us(&self, quota: &Quota, index: usize) -> u64 {
        let (rate, cell) = (&quota.rates()[index], &self.cells[index]);
        match quota.algorithm() {
            Algorithm::FixedWindow => fixed_window::reset_us(rate, self.at_us),
            Algorithm::SlidingWindow => sliding_window::reset_us(rate, self.at_us),
            Algorithm::TokenBucket | Algorithm::LeakyBucket => bucket::reset_us(rate, self.at_us, cell),
        }
    }

    fn retry(&self, quota: &Quota, index: usize, hits: u64) -> Retry {
        let (rate, cell): (&Rate, &Cell) = (&quota.rates()[index], &self.cells[index]);
        if self.fits(quota, index, hits) {
            return Retry::Now;
        }
        if hits > rate.capacity() {
            return Retry::Never;
        }
        Retry::After(match quota.algorithm() {
            Algorithm::FixedWindow => fixed_window::wait_us(rate, self.at_us),
            Algorithm::SlidingWindow => sliding_window::wait_us(rate, self.at_us, cell, hits),
            Algorithm::TokenBucket | Algorithm::LeakyBucket => bucket::wait_us(rate, self.at_us, cell, hits),
        })
    }
}

/// What a check may do to the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Refuses the request when it does not fit.
    Enforce,
    /// Never refuses.
    Shadow,
    /// Refuses only if no other check in this mode fits.
    Quota,
}

/// One limit on one counter, to be tried with some hits.
#[derive(Clone, Debug)]
pub struct Check {
    pub quota: Arc<Quota>,
    /// Which counter: an index into the states of the request. Two checks may name the same one.
    pub slot: usize,
    pub hits: Hits,
    pub mode: Mode,
    /// Fits only together with the check before it: they are the plans of one rule.
    pub chained: bool,
}

/// When the same hits would fit, together with those that earlier checks of the request ask of the same counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Retry {
    Now,
    /// In this many microseconds, and not one tick earlier.
    After(u64),
    /// They are more than the counter can ever hold.
    Never,
}

/// The answer to one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    pub fits: bool,
    /// Read off a counter. If not, no counter could be asked, and `fits` is all that is known.
    pub counted: bool,
    /// Which rate governs: the one with the longest wait when refused, with the least room when admitted.
    pub rate: usize,
    /// Whole hits in use at that rate before this check.
    pub before: u64,
    /// Whole hits that still fit at that rate after this check.
    pub remaining: u64,
    /// To the end of the window, or until the bucket is full of tokens.
    pub reset_us: u64,
    pub retry: Retry,
    /// Hits refused since the last admitted one, where the quota tracks them.
    pub denials: u64,
}

impl Decision {
    /// An answer without a counter. A refusal asks to come back in a second.
    #[must_use]
    pub fn uncounted(fits: bool) -> Self {
        let retry = if fits { Retry::Now } else { Retry::After(1_000_000) };
        Self { fits, counted: false, rate: 0, before: 0, remaining: 0, reset_us: 1_000_000, retry, denials: 0 }
    }
}

/// Most requests have one check or two; more inline room would be copied for nothing.
pub type Decisions = SmallVec<[Decision; USUAL]>;

/// Answers all checks of a request, and moves their counters.
///
/// `states` has one state per slot: what the store remembers, or [`State::absent`]. Afterwards each is brought up to
/// date; `true` in the second list means that it must be written.
pub fn decide(now_us: u64, checks: &[Check], states: &mut [State]) -> (Decisions, SmallVec<[bool; 8]>) {
    for check in checks {
        states[check.slot].settle(&check.quota, now_us);
    }
    let settled: SmallVec<[State; USUAL]> = SmallVec::from(&*states);

    // Try: what fits is taken, and what does not is counted where refused hits count. If nothing refuses, that is it.
    let tries = |state: &mut State, check: &Check| {
        let fits = fits(state, check);
        if fits || check.quota.on_over_limit() == OnOverLimit::Charge {
            take(state, check);
        }
        note_denials(state, check, fits, true);
        fits
    };
    let mut decisions = run(now_us, checks, states, tries);

    if refuses(checks, &decisions) {
        states.clone_from_slice(&settled);
        let mut index = 0;
        let refused = |state: &mut State, check: &Check| {
            let fits = decisions[index].fits;
            index += 1;
            if check.quota.on_over_limit() == OnOverLimit::Charge || matches!(check.hits, Hits::Refund(_)) {
                take(state, check);
            }
            note_denials(state, check, fits, false);
            fits
        };
        decisions = run(now_us, checks, states, refused);
    }

    let changed = states.iter().zip(&settled).map(|(state, settled)| state != settled).collect();
    (decisions, changed)
}

/// Moves the counters check by check and reads the answers off them.
fn run(
    now_us: u64,
    checks: &[Check],
    states: &mut [State],
    mut step: impl FnMut(&mut State, &Check) -> bool,
) -> Decisions {
    // What the checks so far ask of each counter, because they will ask for it together again.
    let mut asked: SmallVec<[u64; USUAL]> = smallvec![0; states.len()];
    let decided = checks.iter().map(|check| {
        let state = &mut states[check.slot];
        let asked = &mut asked[check.slot];
        *asked = match check.hits {
            Hits::Take(hits) => (*asked + hits).min(HITS_MAX),
            Hits::Refund(hits) => *asked - hits.min(*asked),
        };
        let before: SmallVec<[u64; 1]> =
            (0..check.quota.rates().len()).map(|index| state.used(&check.quota, index)).collect();
        let fits = step(state, check);
        read(now_us, check, state, *asked, &before, fits)
    });
    decided.collect()
}

fn fits(state: &State, check: &Check) -> bool {
    match check.hits {
        Hits::Take(hits) => (0..state.cells.len()).all(|index| state.fits(&check.quota, index, hits)),
        Hits::Refund(_) => true,
    }
}

fn take(state: &mut State, check: &Check) {
    match check.hits {
        Hits::Take(hits) => state.charge(&check.quota, hits),
        Hits::Refund(hits) => state.refund(&check.quota, hits),
    }
}

fn note_denials(state: &mut State, check: &Check, fits: bool, admitted: bool) {
    if !check.quota.track_denials() || check.hits.taken() == 0 {
        return;
    }
    if !fits {
        state.denials = (state.denials + check.hits.taken()).min(HITS_MAX);
    } else if admitted {
        state.denials = 0;
    }
}

/// A request is refused if an enforcing check does not fit, or if there are quota checks and none of them fits.
#[must_use]
pub fn refuses(checks: &[Check], decisions: &[Decision]) -> bool {
    let mut quota_seen = false;
    let mut quota_fits = false;
    let mut index = 0;
    while index < checks.len() {
        // The checks of one rule fit together or not at all.
        let (mode, mut all_fit) = (checks[index].mode, decisions[index].fits);
        index += 1;
        while index < checks.len() && checks[index].chained {
            all_fit = all_fit && decisions[index].fits;
            index += 1;
        }
        match mode {
            Mode::Enforce if !all_fit => return true,
            Mode::Quota => {
                quota_seen = true;
                quota_fits = quota_fits || all_fit;
            }
            Mode::Enforce | Mode::Shadow => {}
        }
    }
    quota_seen && !quota_fits
}

fn read(now_us: u64, check: &Check, state: &State, asked: u64, before: &[u64], fits: bool) -> Decision {
    let quota = &check.quota;
    // Waits are told from the caller's clock, which may be behind the counter's.
    let behind_us = state.at_us - now_us;
    let reading = |index: usize| {
        let remaining = quota.rates()[index].capacity().saturating_sub(state.used(quota, index));
        let retry = if fits { Retry::Now } else { state.retry(quota, index, asked) };
        (retry, remaining)
    };
    let mut rate = 0;
    let (mut retry, mut remaining) = reading(0);
    for index in 1..quota.rates().len() {
        let (its_retry, its_remaining) = reading(index);
        let governs = if fits { its_remaining < remaining } else { its_retry > retry };
        if governs {
            (rate, retry, remaining) = (index, its_retry, its_remaining);
        }
    }
    let retry = match retry {
        Retry::After(wait_us) => Retry::After(wait_us + behind_us),
        Retry::Now | Retry::Never => retry,
    };
    let reset_us = state.reset_us(quota, rate) + behind_us;
    Decision { fits, counted: true, rate, before: before[rate], remaining, reset_us, retry, denials: state.denials }
}
