//! The embedded store: counters in this process, decided by the engine itself.
//!
//! # Sharding
//!
//! A counter lives in the shard that its key hashes to. A request locks the shards of all its counters, in ascending
//! order, so that two requests that share counters see each other whole or not at all and never wait for each other in
//! a circle.
//!
//! # Identity
//!
//! Two seeded 64-bit `SipHashes` of the key stand for it. The seeds are random and secret, so that nobody can make two keys
//! meet, nor crowd one shard.
//!
//! # Forgetting
//!
//! An idle counter is worth nothing: whoever touches a shard looks at two more of its entries and drops those that are
//! idle, and a task does the same where nobody comes by. When a shard is full, it forgets who has most room first. Entries
//! are kept in classes by how much of their quota is used, with one above all for those who were refused since; time only
//! lowers that, so that a caller who is refused is always in the highest class, and is never forgotten while a lower one has
//! an entry. Where all were refused, the newcomer is not kept. A caller who is refused and makes a million new keys evicts
//! those, and not the counter that refuses him.

#[cfg(test)]
mod tests;

use std::{
    hash::{BuildHasher, RandomState},
    slice,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use crossbeam_utils::CachePadded;
use hashbrown::HashTable;
use smallvec::SmallVec;

use crate::engine::{
    algorithm::{self, Check, Decisions, State},
    plan::Keys,
    quota::Quota,
};

/// The class of a full counter.
const NO_ROOM: usize = 15;
/// The highest class: in debt, or refused something since it last changed.
const REFUSED: usize = 16;
/// How many entries of a class are looked at for the one to forget.
const SAMPLE: usize = 8;
/// How many entries a request looks at, in each shard that it touches, for idle ones.
const SWEPT_PER_REQUEST: usize = 2;

#[derive(Debug)]
pub struct MemoryStore {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    seeds: [RandomState; 2],
    evictions: AtomicU64,
}

impl MemoryStore {
    #[must_use]
    pub fn new(entries_max: usize) -> Self {
        // Few entries need few shards: the bound is kept by each for itself.
        let shards = (entries_max / 1024).next_power_of_two().clamp(1, 256);
        let shard_max = (entries_max / shards).max(1);
        let shards = (0..shards).map(|_| CachePadded::new(Mutex::new(Shard::new(shard_max))));
        Self { shards: shards.collect(), seeds: [RandomState::new(), RandomState::new()], evictions: AtomicU64::new(0) }
    }

    /// Panics whenever it is asked something.
    #[cfg(test)]
    #[must_use]
    pub fn broken() -> Self {
        Self { shards: Box::default(), ..Self::new(1) }
    }

    #[must_use]
    pub fn decide(&self, checks: &[Check], keys: &Keys) -> Decisions {
        self.decide_at(now_us(), checks, keys)
    }

    #[must_use]
    pub fn decide_at(&self, now_us: u64, checks: &[Check], keys: &Keys) -> Decisions {
        if let ([check], 1) = (checks, keys.len()) {
            return self.decide_one(now_us, check, self.id(keys.get(0)));
        }
        let ids: SmallVec<[Id; 4]> = keys.iter().map(|key| self.id(key)).collect();
        let mut shards = self.lock(&ids);
        // Every slot has a check, so that every state is set.
        let mut states: SmallVec<[State; 4]> = SmallVec::new();
        for (slot, id) in ids.iter().enumerate() {
            let known = shards.of(*id).get(*id);
            let quota = || checks.iter().find(|check| check.slot == slot).map(|check| State::absent(&check.quota));
            states.extend(known.cloned().or_else(quota));
        }
        let (decisions, changed) = algorithm::decide(now_us, checks, &mut states);
        for ((slot, state), changed) in states.into_iter().enumerate().zip(changed) {
            let quota = checks.iter().find(|check| check.slot == slot).map(|check| &check.quota);
            if let (true, Some(quota)) = (changed, quota) {
                let evicted = shards.of(ids[slot]).put(now_us, ids[slot], state, quota);
                self.evictions.fetch_add(evicted, Ordering::Relaxed);
            }
        }
        for check in checks.iter().zip(&decisions).filter_map(|(check, decision)| (!decision.fits).then_some(check)) {
            shards.of(ids[check.slot]).note_refusal(ids[check.slot]);
        }
        for (_, shard) in &mut shards.0 {
            shard.sweep(now_us, SWEPT_PER_REQUEST);
        }
        decisions
    }

    /// The same for one check, which is what most requests have: one shard, and one look for the entry.
    fn decide_one(&self, now_us: u64, check: &Check, id: Id) -> Decisions {
        let mut shard = locked(&self.shards[self.shard_of(id)]);
        let known = shard.find(id);
        let mut state = known.map_or_else(|| State::absent(&check.quota), |at| shard.entries[at].state.clone());
        let (decisions, changed) = algorithm::decide(now_us, slice::from_ref(check), slice::from_mut(&mut state));
        if changed.contains(&true) {
            let evicted = shard.put_at(now_us, known, id, state, &check.quota);
            self.evictions.fetch_add(evicted, Ordering::Relaxed);
        }
        if decisions.iter().any(|decision| !decision.fits) {
            shard.note_refusal(id);
        }
        shard.sweep(now_us, SWEPT_PER_REQUEST);
        decisions
    }

    /// What is remembered of a counter, without touching it.
    #[must_use]
    pub fn peek(&self, key: &str) -> Option<State> {
        let id = self.id(key);
        self.lock(&[id]).of(id).get(id).cloned()
    }

    /// Drops idle counters, at most `per_shard` looks in each shard, one shard at a time.
    pub fn sweep(&self, per_shard: usize) {
        let now_us = now_us();
        for shard in &self.shards {
            locked(shard).sweep(now_us, per_shard);
        }
    }

    /// How many counters are remembered.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.shards.iter().map(|shard| locked(shard).entries.len()).sum()
    }

    /// How many counters were forgotten while they still meant something.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    fn id(&self, key: &str) -> Id {
        Id { shard: self.seeds[0].hash_one(key), entry: self.seeds[1].hash_one(key) }
    }

    fn lock(&self, ids: &[Id]) -> Locked<'_> {
        let mut indexes: SmallVec<[usize; 4]> = ids.iter().map(|id| self.shard_of(*id)).collect();
        indexes.sort_unstable();
        indexes.dedup();
        let guards = indexes.into_iter().map(|index| (index, locked(&self.shards[index])));
        Locked(guards.collect(), self.shards.len())
    }

    fn shard_of(&self, id: Id) -> usize {
        shard_of(id, self.shards.len())
    }
}

#[expect(clippy::cast_possible_truncation, reason = "only some of the bits are wanted")]
fn shard_of(id: Id, shards: usize) -> usize {
    id.shard as usize & (shards - 1)
}

/// A panic elsewhere must not close the shard for ever: the engine never leaves a state half done.
fn locked(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The clock of this store.
#[must_use]
pub fn now_us() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_micros()).unwrap_or(u64::MAX)
}

/// The shards of one request, in ascending order, and how many there are in all.
struct Locked<'a>(SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>, usize);

impl Locked<'_> {
    fn of(&mut self, id: Id) -> &mut Shard {
        let index = shard_of(id, self.1);
        let shard = self.0.iter_mut().find(|(locked, _)| *locked == index);
        &mut shard.expect("the shards of all ids are locked").1
    }
}

/// Stands for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Id {
    shard: u64,
    entry: u64,
}

#[derive(Debug)]
struct Entry {
    id: Id,
    state: State,
    idle_at_us: u64,
    class: u8,
    /// Its place in the list of its class.
    place: u32,
}

/// Entries in a row, an index by id, and lists by class, which name entries by their place in the row.
#[derive(Debug)]
struct Shard {
    entries: Vec<Entry>,
    index: HashTable<u32>,
    classes: [Vec<u32>; REFUSED + 1],
    entries_max: usize,
    /// Where the search for idle entries goes on.
    cursor: usize,
}

impl Shard {
    fn new(entries_max: usize) -> Self {
        let classes = std::array::from_fn(|_| Vec::new());
        Self { entries: Vec::new(), index: HashTable::new(), classes, entries_max, cursor: 0 }
    }

    fn find(&self, id: Id) -> Option<usize> {
        self.index.find(id.entry, |at| self.entries[*at as usize].id == id).map(|at| *at as usize)
    }

    fn get(&self, id: Id) -> Option<&State> {
        self.find(id).map(|at| &self.entries[at].state)
    }

    /// Remembers a state; how many others that still meant something had to be forgotten for it: 0 or 1.
    fn put(&mut self, now_us: u64, id: Id, state: State, quota: &Quota) -> u64 {
        self.put_at(now_us, self.find(id), id, state, quota)
    }

    /// The same where it is known already where the entry stands.
    fn put_at(&mut self, now_us: u64, known: Option<usize>, id: Id, state: State, quota: &Quota) -> u64 {
        let idle_at_us = state.idle_at_us(quota);
        let class = class(&state, quota);
        match known {
            Some(at) if idle_at_us <= now_us => {
                self.remove(at);
                0
            }
            Some(at) => {
                (self.entries[at].state, self.entries[at].idle_at_us) = (state, idle_at_us);
                self.reclassify(at, class);
                0
            }
            None if idle_at_us <= now_us => 0,
            None => {
                self.insert(Entry { id, state, idle_at_us, class, place: 0 });
                if self.entries.len() > self.entries_max {
                    // Of any class: who was refused long ago does not take the place of one who comes now.
                    self.sweep(now_us, SAMPLE);
                }
                if self.entries.len() > self.entries_max { self.forget_one(now_us) } else { 0 }
            }
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "a class is a small number")]
    fn note_refusal(&mut self, id: Id) {
        if let Some(at) = self.find(id) {
            self.reclassify(at, REFUSED as u8);
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "a shard has far fewer than 2^32 entries")]
    fn insert(&mut self, entry: Entry) {
        let (at, id, class) = (self.entries.len(), entry.id, usize::from(entry.class));
        self.entries.push(entry);
        let entries = &self.entries;
        self.index.insert_unique(id.entry, at as u32, |at| entries[*at as usize].id.entry);
        self.enlist(at, class);
    }

    fn remove(&mut self, at: usize) {
        self.delist(at);
        self.unindex(at);
        let last = self.entries.len() - 1;
        self.entries.swap_remove(at);
        if at != last {
            // The entry that was last stands at `at` now.
            let (id, class, place) = (self.entries[at].id, self.entries[at].class, self.entries[at].place);
            #[expect(clippy::cast_possible_truncation, reason = "a shard has far fewer than 2^32 entries")]
            let (was, is) = (last as u32, at as u32);
            if let Some(indexed) = self.index.find_mut(id.entry, |at| *at == was) {
                *indexed = is;
            }
            self.classes[usize::from(class)][place as usize] = is;
        }
    }

    fn unindex(&mut self, at: usize) {
        let id = self.entries[at].id;
        if let Ok(indexed) = self.index.find_entry(id.entry, |indexed| *indexed as usize == at) {
            indexed.remove();
        }
    }

    fn reclassify(&mut self, at: usize, class: u8) {
        if self.entries[at].class != class {
            self.delist(at);
            self.entries[at].class = class;
            self.enlist(at, usize::from(class));
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "a shard has far fewer than 2^32 entries")]
    fn enlist(&mut self, at: usize, class: usize) {
        self.entries[at].place = self.classes[class].len() as u32;
        self.classes[class].push(at as u32);
    }

    fn delist(&mut self, at: usize) {
        let (class, place) = (usize::from(self.entries[at].class), self.entries[at].place);
        self.classes[class].swap_remove(place as usize);
        if let Some(moved) = self.classes[class].get(place as usize) {
            self.entries[*moved as usize].place = place;
        }
    }

    /// Forgets an idle entry if it meets one, else one of those with most room: the one that is idle soonest of a few, or the
    /// one that came last if all were refused.
    fn forget_one(&mut self, now_us: u64) -> u64 {
        let Some(class) = self.classes.iter().position(|class| !class.is_empty()) else { return 0 };
        let listed = &self.classes[class];
        let sample = (0..SAMPLE).map(|_| listed[fastrand::usize(..listed.len())] as usize);
        let Some(soonest) = sample.min_by_key(|at| self.entries[*at].idle_at_us) else { return 0 };
        let still_meant_something = self.entries[soonest].idle_at_us > now_us;
        let at = if class == REFUSED && still_meant_something { self.entries.len() - 1 } else { soonest };
        self.remove(at);
        u64::from(still_meant_something)
    }

    /// Looks at some entries and drops the idle ones.
    fn sweep(&mut self, now_us: u64, looks: usize) {
        for _ in 0..looks.min(self.entries.len()) {
            if self.cursor >= self.entries.len() {
                self.cursor = 0;
            }
            match self.entries.get(self.cursor) {
                Some(entry) if entry.idle_at_us <= now_us => self.remove(self.cursor),
                _ => self.cursor += 1,
            }
        }
    }
}

/// How much of the quota is used, from 0 to [`NO_ROOM`], at the rate that has the least room; [`REFUSED`] if more than that.
#[expect(clippy::cast_possible_truncation, reason = "a class is a small number")]
fn class(state: &State, quota: &Quota) -> u8 {
    let classes = quota.rates().iter().enumerate().map(|(index, rate)| {
        let used = u128::from(state.used(quota, index));
        match u128::from(rate.capacity()) {
            capacity if used > capacity => REFUSED,
            capacity => (used * NO_ROOM as u128 / capacity.max(1)) as usize,
        }
    });
    classes.max().unwrap_or(NO_ROOM) as u8
}
