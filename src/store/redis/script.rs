//! The script and its contract: how a batch of requests becomes arguments, and how its reply becomes decisions.
//!
//! The only file that knows the contract, which stands at the head of `lua/decide.lua`. It must not know how arguments
//! travel: connections, retries and topologies are elsewhere.

use std::{
    fmt,
    sync::{Arc, LazyLock},
};

use hashbrown::HashMap;
use redis::{Cmd, Value};
use smallvec::SmallVec;

use crate::{
    engine::{
        algorithm::{self, Check, Decisions, Mode, State},
        plan::Keys,
        quota::{Algorithm, OnOverLimit, Quota},
        request::{Hits, USUAL},
    },
    store::{
        StoreFailure,
        redis::state::{self, EXACT_MAX},
    },
};

/// The source: the short way, the long way, and the call around them. What few requests need is inside a function of its own, because
/// to make all of it on every call costs as much as a decision.
pub const SCRIPT: &str = concat!(
    include_str!("../../../lua/admit.lua"),
    "local function long_way()\n",
    include_str!("../../../lua/fixed_window.lua"),
    include_str!("../../../lua/sliding_window.lua"),
    include_str!("../../../lua/bucket.lua"),
    include_str!("../../../lua/request.lua"),
    include_str!("../../../lua/group.lua"),
    "return any_group\nend\n",
    include_str!("../../../lua/decide.lua"),
);

/// The name by which a server knows the script: the SHA-1 of [`SCRIPT`] in hex.
pub static SHA1: LazyLock<String> = LazyLock::new(|| redis::Script::new(SCRIPT).get_hash().to_owned());

/// The most keys, and the most checks, that one call can name.
pub const INDEX_MAX: usize = u16::MAX as usize;

const SLIDING_WINDOW: u8 = 1;
const BUCKET: u8 = 2;
const CHARGES: u8 = 4;
const TRACKS_DENIALS: u8 = 8;

const SHADOW: u8 = 1;
const QUOTA: u8 = 2;
const CHAINED: u8 = 4;
const GIVES_BACK: u8 = 8;

const ABSENT: u8 = 0;
const BAD_TYPES: u8 = 1;
const BAD_RESPONSE: u8 = 2;

/// One request: its checks, and the keys that their slots name.
pub type Asked<'a> = (&'a [Check], &'a Keys);

/// Why the script decided nothing for one request of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScriptFailure {
    /// The key at fault: a slot of the request's keys.
    pub slot: usize,
    pub damage: Damage,
}

/// What is wrong with a key. It is left as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// It is not a string.
    BadTypes,
    /// It is not a state of ours, or of a newer release.
    BadResponse,
}

impl Damage {
    /// As metrics name it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Damage::BadTypes => "bad_types",
            Damage::BadResponse => "bad_response",
        }
    }

    #[must_use]
    pub fn failure(self) -> StoreFailure {
        match self {
            Damage::BadTypes => StoreFailure::BadTypes,
            Damage::BadResponse => StoreFailure::BadResponse,
        }
    }
}

/// A reply that does not keep the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadReply {
    NotBytes,
    TooShort,
    TooLong,
    /// The time is one that no clock shows.
    Time(u64),
    /// What was found for a key is none of the things that can be.
    Found(u8),
    /// What is wrong is said of a key that the request does not have.
    Key(u16),
}

impl fmt::Display for BadReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBytes => f.write_str("the script's reply is not a string"),
            Self::TooShort => f.write_str("the script's reply is too short for its requests"),
            Self::TooLong => f.write_str("the script's reply is longer than its requests ask for"),
            Self::Time(now_us) => write!(f, "the script's reply has {now_us} for a time"),
            Self::Found(first) => write!(f, "the script's reply has {first} where a state begins"),
            Self::Key(key) => write!(f, "the script's reply speaks of key {key}, which its request does not have"),
        }
    }
}

impl std::error::Error for BadReply {}

/// Appends a batch to an `EVALSHA <sha>` or `EVAL <script>`: the number of keys, the keys and the arguments.
///
/// `now_us` 0 is the server's own time. At most [`INDEX_MAX`] keys and checks in all. A key may be named by
/// several requests: the script reads it once.
pub fn encode(now_us: u64, requests: &[Asked<'_>], cmd: &mut Cmd) {
    let keys = || requests.iter().flat_map(|(_, keys)| keys.iter());
    cmd.arg(keys().count());
    for key in keys() {
        cmd.arg(key);
    }
    cmd.arg(encode_args(now_us, requests));
}

fn encode_args(now_us: u64, requests: &[Asked<'_>]) -> Vec<u8> {
    let checks = || requests.iter().flat_map(|(checks, _)| *checks);
    // Rules are few and requests are many, so each quota is sent once.
    let mut quotas = Quotas::default();
    let mut args = Vec::with_capacity(64 + 18 * requests.len());
    push7(&mut args, now_us);
    args.push(u8::from(names_a_key_twice(requests)));
    let count_at = args.len();
    push2(&mut args, 0);
    for check in checks() {
        if quotas.place(&check.quota).is_none() {
            quotas.add(&check.quota);
            push_quota(&mut args, &check.quota);
        }
    }
    args[count_at..count_at + 2].copy_from_slice(&index(quotas.all.len()).to_le_bytes());

    let quota_of = |check: &Check| quotas.place(&check.quota).unwrap_or(0);
    let mut rest = requests;
    while let [first, later @ ..] = rest {
        let alike = later.iter().take_while(|later| is_alike(first, later)).count();
        let (checks, keys) = first;
        push2(&mut args, 1 + alike);
        push2(&mut args, keys.len());
        push2(&mut args, checks.len());
        for check in *checks {
            push2(&mut args, check.slot + 1);
            push2(&mut args, quota_of(check) + 1);
            push_check(&mut args, check);
        }
        rest = &later[alike..];
    }
    args
}

/// The distinct quotas of a batch, in order.
#[derive(Default)]
struct Quotas<'a> {
    all: SmallVec<[&'a Arc<Quota>; SEARCHED_MAX]>,
    /// Their places, where there are more than are searched through.
    places: HashMap<*const Quota, usize, foldhash::fast::RandomState>,
}

/// Looking through a few costs less than a map would; more than these are rare, and would cost the square of their number.
const SEARCHED_MAX: usize = 16;

impl<'a> Quotas<'a> {
    fn place(&self, quota: &Arc<Quota>) -> Option<usize> {
        if self.all.len() > SEARCHED_MAX {
            return self.places.get(&Arc::as_ptr(quota)).copied();
        }
        self.all.iter().position(|known| Arc::ptr_eq(known, quota))
    }

    /// One that has no place yet.
    fn add(&mut self, quota: &'a Arc<Quota>) {
        self.all.push(quota);
        if self.all.len() > SEARCHED_MAX {
            let unknown = self.all.iter().enumerate().skip(self.places.len());
            self.places.extend(unknown.map(|(place, quota)| (Arc::as_ptr(quota), place)));
        }
    }
}

/// The keys of one request are distinct, so this asks only about different ones.
fn names_a_key_twice(requests: &[Asked<'_>]) -> bool {
    if requests.len() < 2 {
        return false;
    }
    let mut seen = hashbrown::HashSet::<&str, foldhash::fast::RandomState>::default();
    !requests.iter().flat_map(|(_, keys)| keys.iter()).all(|key| seen.insert(key))
}

/// Whether two requests differ only in their keys, so that they can be sent as one. Most requests of a busy moment ask the
/// same of the same rules.
fn is_alike((checks, keys): &Asked<'_>, (later, later_keys): &Asked<'_>) -> bool {
    let is_same = |(check, later): (&Check, &Check)| {
        Arc::ptr_eq(&check.quota, &later.quota)
            && (check.slot, check.hits, check.mode, check.chained)
                == (later.slot, later.hits, later.mode, later.chained)
    };
    keys.len() == later_keys.len() && checks.len() == later.len() && checks.iter().zip(*later).all(is_same)
}

fn push_quota(args: &mut Vec<u8>, quota: &Quota) {
    let algorithm = match quota.algorithm() {
        Algorithm::FixedWindow => 0,
        Algorithm::SlidingWindow => SLIDING_WINDOW,
        Algorithm::TokenBucket | Algorithm::LeakyBucket => BUCKET,
    };
    let charges = if quota.on_over_limit() == OnOverLimit::Charge { CHARGES } else { 0 };
    let tracks_denials = if quota.track_denials() { TRACKS_DENIALS } else { 0 };
    args.push(algorithm | charges | tracks_denials);
    args.push(u8::try_from(quota.rates().len()).unwrap_or(u8::MAX));
    push7(args, quota.horizon_us());
    for rate in quota.rates() {
        if algorithm == BUCKET {
            push4(args, rate.capacity());
            push7(args, rate.tick_us());
            push7(args, rate.weight());
            push4(args, rate.leak());
            push7(args, rate.level_max());
        } else {
            push7(args, rate.period_us());
            push4(args, rate.capacity());
        }
    }
}

fn push_check(args: &mut Vec<u8>, check: &Check) {
    let mode = match check.mode {
        Mode::Enforce => 0,
        Mode::Shadow => SHADOW,
        Mode::Quota => QUOTA,
    };
    let (hits, gives_back) = match check.hits {
        Hits::Take(hits) => (hits, 0),
        Hits::Refund(hits) => (hits, GIVES_BACK),
    };
    args.push(mode | if check.chained { CHAINED } else { 0 } | gives_back);
    push7(args, hits);
}

fn push7(args: &mut Vec<u8>, number: u64) {
    args.extend_from_slice(&number.to_le_bytes()[..7]);
}

fn push4(args: &mut Vec<u8>, number: u64) {
    args.extend_from_slice(&number.to_le_bytes()[..4]);
}

fn push2(args: &mut Vec<u8>, number: usize) {
    args.extend_from_slice(&index(number).to_le_bytes());
}

fn index(number: usize) -> u16 {
    debug_assert!(number <= INDEX_MAX, "a batch is far smaller");
    u16::try_from(number).unwrap_or(u16::MAX)
}

/// What each request of the batch was answered, in order.
///
/// The reply says what was found. What follows from that is decided once more by the engine, so that every answer is its own, and
/// the script tells nothing that can be worked out here.
///
/// # Errors
///
/// If the reply does not keep the contract; nothing is then known of any request.
pub fn decode(reply: &Value, requests: &[Asked<'_>]) -> Result<Vec<Result<Decisions, ScriptFailure>>, BadReply> {
    let Value::BulkString(bytes) = reply else { return Err(BadReply::NotBytes) };
    let (now, mut found) = bytes.split_at_checked(TIME).ok_or(BadReply::TooShort)?;
    let now_us = now.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
    if now_us >= EXACT_MAX {
        return Err(BadReply::Time(now_us));
    }
    let mut answers = Vec::with_capacity(requests.len());
    for request in requests {
        answers.push(decode_request(now_us, &mut found, request)?);
    }
    if found.is_empty() { Ok(answers) } else { Err(BadReply::TooLong) }
}

/// Bytes of the time in the reply.
const TIME: usize = 7;

fn decode_request(
    now_us: u64,
    found: &mut &[u8],
    (checks, keys): &Asked<'_>,
) -> Result<Result<Decisions, ScriptFailure>, BadReply> {
    if let [damage @ (BAD_TYPES | BAD_RESPONSE), key @ ..] = *found {
        let (key, rest) = key.split_first_chunk().ok_or(BadReply::TooShort)?;
        *found = rest;
        return decode_failure(*damage, u16::from_le_bytes(*key), keys.len()).map(Err);
    }
    let mut states = SmallVec::<[State; USUAL]>::new();
    for slot in 0..keys.len() {
        let rates = checks.iter().find(|check| check.slot == slot).map_or(1, |check| check.quota.rates().len());
        states.push(take_state(found, rates)?);
    }
    Ok(Ok(algorithm::decide(now_us, checks, &mut states).0))
}

fn decode_failure(damage: u8, key: u16, keys: usize) -> Result<ScriptFailure, BadReply> {
    let damage = if damage == BAD_TYPES { Damage::BadTypes } else { Damage::BadResponse };
    match usize::from(key).checked_sub(1) {
        Some(slot) if slot < keys => Ok(ScriptFailure { slot, damage }),
        _ => Err(BadReply::Key(key)),
    }
}

fn take_state(found: &mut &[u8], rates: usize) -> Result<State, BadReply> {
    match *found {
        [] => Err(BadReply::TooShort),
        [ABSENT, rest @ ..] => {
            *found = rest;
            // Without cells it counts for nobody, which is as good as absent.
            Ok(State { at_us: 0, cells: SmallVec::new(), denials: 0 })
        }
        [first, ..] => state::take(found, rates).map_err(|_| BadReply::Found(*first)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{
        algorithm::{Cell, Decision, Retry},
        quota::{Period, Unit},
    };

    fn one_check() -> (Vec<Check>, Keys) {
        let quota = Arc::new(Quota::fixed_window(3, Period::try_new(Unit::Minute, 1).unwrap()).unwrap());
        let check = Check { quota, slot: 0, hits: Hits::ONE, mode: Mode::Enforce, chained: false };
        (vec![check], ["{test}a"].into_iter().collect())
    }

    const NOW_US: u64 = 1_767_225_600_000_000;

    fn decoded(found: &[u8]) -> Result<Vec<Result<Decisions, ScriptFailure>>, BadReply> {
        let (checks, keys) = one_check();
        let reply = [&NOW_US.to_le_bytes()[..TIME], found].concat();
        decode(&Value::BulkString(reply), &[(&checks, &keys)])
    }

    #[test]
    fn a_reply_becomes_decisions() {
        let decision = Decision {
            counted: true,
            fits: true,
            rate: 0,
            before: 0,
            remaining: 2,
            reset_us: 60_000_000,
            retry: Retry::Now,
            denials: 0,
        };
        assert_eq!(decoded(&[ABSENT]).unwrap()[0].as_deref(), Ok(&[decision][..]));
        let full =
            state::encode(&State { at_us: NOW_US, cells: [Cell { used: 3, previous: 0 }][..].into(), denials: 0 });
        let retry = Retry::After(60_000_000);
        let refused = Decision { fits: false, before: 3, remaining: 0, retry, ..decision };
        assert_eq!(decoded(&full).unwrap()[0].as_deref(), Ok(&[refused][..]));
        for (code, damage) in [(BAD_TYPES, Damage::BadTypes), (BAD_RESPONSE, Damage::BadResponse)] {
            assert_eq!(decoded(&[code, 1, 0]), Ok(vec![Err(ScriptFailure { slot: 0, damage })]));
        }
    }

    #[test]
    fn a_reply_of_another_shape_is_refused() {
        assert_eq!(decoded(&[]), Err(BadReply::TooShort));
        assert_eq!(decoded(&[BAD_TYPES, 1]), Err(BadReply::TooShort));
        assert_eq!(decoded(&[ABSENT, ABSENT]), Err(BadReply::TooLong));
        assert_eq!(decoded(&[BAD_TYPES, 1, 0, 7]), Err(BadReply::TooLong));
        assert_eq!(decoded(&[BAD_TYPES, 0, 0]), Err(BadReply::Key(0)));
        assert_eq!(decoded(&[BAD_RESPONSE, 2, 0]), Err(BadReply::Key(2)));
        assert_eq!(decoded(&[3; 12]), Err(BadReply::Found(3)));
        assert_eq!(decoded(&[16; 11]), Err(BadReply::Found(16)));
        let (checks, keys) = one_check();
        for reply in [Value::Nil, Value::Okay, Value::Int(1), Value::Array(vec![])] {
            assert_eq!(decode(&reply, &[(&checks, &keys)]), Err(BadReply::NotBytes));
        }
        let ends_of_time = Value::BulkString(vec![0xff; TIME + 1]);
        assert_eq!(decode(&ends_of_time, &[(&checks, &keys)]), Err(BadReply::Time((1 << 56) - 1)));
        assert_eq!(decode(&Value::BulkString(vec![1]), &[(&checks, &keys)]), Err(BadReply::TooShort));
    }

    #[test]
    fn each_quota_has_one_place_however_many_there_are() {
        let checks: Vec<Check> = (0..100).map(|_| one_check().0.remove(0)).collect();
        let mut quotas = Quotas::default();
        for check in checks.iter().chain(&checks) {
            if quotas.place(&check.quota).is_none() {
                quotas.add(&check.quota);
            }
        }
        assert_eq!(quotas.all.len(), 100);
        assert!(checks.iter().enumerate().all(|(place, check)| quotas.place(&check.quota) == Some(place)));
    }

    #[test]
    fn requests_that_differ_only_in_their_key_are_sent_as_one() {
        let (checks, keys) = one_check();
        let other: Keys = ["{test}b"].into_iter().collect();
        let one = encode_args(0, &[(&checks, &keys)]);
        let two = encode_args(0, &[(&checks, &keys), (&checks, &other)]);
        assert_eq!(one.len(), two.len());
        assert_eq!((one[7], two[7]), (0, 0));
        assert_eq!(encode_args(0, &[(&checks, &keys), (&checks, &keys)])[7], 1);
    }
}
