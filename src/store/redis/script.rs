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
        algorithm::{Check, Decision, Decisions, Mode, Retry},
        plan::Keys,
        quota::{Algorithm, OnOverLimit, Quota},
        request::Hits,
    },
    store::StoreFailure,
};

/// The source, joined from one file per algorithm, the decision of a request, and the call around it.
pub const SCRIPT: &str = concat!(
    include_str!("../../../lua/fixed_window.lua"),
    include_str!("../../../lua/sliding_window.lua"),
    include_str!("../../../lua/bucket.lua"),
    include_str!("../../../lua/request.lua"),
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

const FITS: u64 = 1;
const HAS_WAIT: u64 = 2;
const NEVER: u64 = 4;
const HAS_DENIALS: u64 = 8;
const RATES: u64 = 16;

const BAD_TYPES: u64 = 1;
const BAD_RESPONSE: u64 = 2;

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
    NotIntegers,
    TooShort,
    TooLong,
    OutOfBounds(i64),
}

impl fmt::Display for BadReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotIntegers => f.write_str("the script's reply is not a string of integers"),
            Self::TooShort => f.write_str("the script's reply has too few integers for its checks"),
            Self::TooLong => f.write_str("the script's reply has more integers than its checks ask for"),
            Self::OutOfBounds(number) => write!(f, "the script's reply has {number} where that cannot be"),
        }
    }
}

impl std::error::Error for BadReply {}

/// Appends a batch to an `EVALSHA <sha>` or `EVAL <script>`: the number of keys, the keys and the arguments.
///
/// `now_us` 0 is the server's own time. At most [`INDEX_MAX`] keys and checks in all. Keys are not compared with each
/// other here: the script reads a key that is named twice only once.
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
/// # Errors
///
/// If the reply does not keep the contract; nothing is then known of any request.
pub fn decode(reply: &Value, requests: &[Asked<'_>]) -> Result<Vec<Result<Decisions, ScriptFailure>>, BadReply> {
    let Value::BulkString(bytes) = reply else { return Err(BadReply::NotIntegers) };
    let numbers = bytes.chunks_exact(WIDTH);
    if !numbers.remainder().is_empty() {
        return Err(BadReply::NotIntegers);
    }
    let mut numbers = Numbers(numbers);
    let mut keys_before = 0;
    let mut answers = Vec::with_capacity(requests.len());
    for (checks, keys) in requests {
        answers.push(decode_request(&mut numbers, checks, keys_before, keys.len())?);
        keys_before += keys.len();
    }
    if numbers.0.next().is_some() { Err(BadReply::TooLong) } else { Ok(answers) }
}

fn decode_request(
    numbers: &mut Numbers<'_>,
    checks: &[Check],
    keys_before: usize,
    keys: usize,
) -> Result<Result<Decisions, ScriptFailure>, BadReply> {
    let mut decisions = Decisions::new();
    for (position, check) in checks.iter().enumerate() {
        let code = numbers.next()?;
        if code < 0 && position == 0 {
            return decode_failure(code, keys_before, keys).map(Err);
        }
        decisions.push(decode_decision(code, numbers, check)?);
    }
    Ok(Ok(decisions))
}

fn decode_failure(code: i64, keys_before: usize, keys: usize) -> Result<ScriptFailure, BadReply> {
    let number = code.unsigned_abs();
    let damage = match number % 4 {
        BAD_TYPES => Damage::BadTypes,
        BAD_RESPONSE => Damage::BadResponse,
        _ => return Err(BadReply::OutOfBounds(code)),
    };
    let slot = usize::try_from(number / 4).ok().and_then(|index| index.checked_sub(keys_before + 1));
    match slot {
        Some(slot) if slot < keys => Ok(ScriptFailure { slot, damage }),
        _ => Err(BadReply::OutOfBounds(code)),
    }
}

fn decode_decision(code: i64, numbers: &mut Numbers<'_>, check: &Check) -> Result<Decision, BadReply> {
    let out_of_bounds = BadReply::OutOfBounds(code);
    let marks = u64::try_from(code).map_err(|_| out_of_bounds)?;
    let rate = usize::try_from(marks / RATES).map_err(|_| out_of_bounds)?;
    let is_set = |mark: u64| marks & mark != 0;
    if rate >= check.quota.rates().len() || is_set(HAS_WAIT) && is_set(NEVER) {
        return Err(out_of_bounds);
    }
    let (before, remaining, reset_us) = (numbers.natural()?, numbers.natural()?, numbers.natural()?);
    let retry = match (is_set(HAS_WAIT), is_set(NEVER)) {
        (true, _) => Retry::After(numbers.natural()?),
        (_, true) => Retry::Never,
        _ => Retry::Now,
    };
    let denials = if is_set(HAS_DENIALS) { numbers.natural()? } else { 0 };
    Ok(Decision { fits: is_set(FITS), counted: true, rate, before, remaining, reset_us, retry, denials })
}

/// Bytes of a number in the reply.
const WIDTH: usize = 7;

struct Numbers<'a>(std::slice::ChunksExact<'a, u8>);

impl Numbers<'_> {
    fn next(&mut self) -> Result<i64, BadReply> {
        let number = self.0.next().ok_or(BadReply::TooShort)?;
        let mut wide = [0; 8];
        wide[1..].copy_from_slice(number);
        // The sign stands in the highest byte.
        Ok(i64::from_le_bytes(wide) >> 8)
    }

    fn natural(&mut self) -> Result<u64, BadReply> {
        let number = self.next()?;
        u64::try_from(number).map_err(|_| BadReply::OutOfBounds(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::quota::{Period, Unit};

    fn one_check() -> (Vec<Check>, Keys) {
        let quota = Arc::new(Quota::fixed_window(3, Period::try_new(Unit::Minute, 1).unwrap()).unwrap());
        let check = Check { quota, slot: 0, hits: Hits::ONE, mode: Mode::Enforce, chained: false };
        (vec![check], ["{test}a"].into_iter().collect())
    }

    fn decoded(numbers: &[i64]) -> Result<Vec<Result<Decisions, ScriptFailure>>, BadReply> {
        let (checks, keys) = one_check();
        let bytes = numbers.iter().flat_map(|number| number.to_le_bytes().into_iter().take(WIDTH));
        decode(&Value::BulkString(bytes.collect()), &[(&checks, &keys)])
    }

    #[test]
    fn a_reply_becomes_decisions() {
        let decision = Decision {
            counted: true,
            fits: false,
            rate: 0,
            before: 3,
            remaining: 0,
            reset_us: 20,
            retry: Retry::After(20),
            denials: 5,
        };
        assert_eq!(decoded(&[10, 3, 0, 20, 20, 5]).unwrap()[0].as_deref(), Ok(&[decision][..]));
        let failure = ScriptFailure { slot: 0, damage: Damage::BadResponse };
        assert_eq!(decoded(&[-6]), Ok(vec![Err(failure)]));
    }

    #[test]
    fn a_reply_of_another_shape_is_refused() {
        assert_eq!(decoded(&[]), Err(BadReply::TooShort));
        assert_eq!(decoded(&[1, 0, 2]), Err(BadReply::TooShort));
        assert_eq!(decoded(&[1, 0, 2, 20, 7]), Err(BadReply::TooLong));
        assert_eq!(decoded(&[1, 0, -2, 20]), Err(BadReply::OutOfBounds(-2)));
        assert_eq!(decoded(&[16, 0, 2, 20]), Err(BadReply::OutOfBounds(16)));
        assert_eq!(decoded(&[6, 0, 2, 20, 1]), Err(BadReply::OutOfBounds(6)));
        for code in [-1, -4, -9, -(1 << 54)] {
            assert_eq!(decoded(&[code]), Err(BadReply::OutOfBounds(code)));
        }
        let (checks, keys) = one_check();
        for reply in [Value::Nil, Value::Okay, Value::Int(1), Value::Array(vec![]), Value::BulkString(vec![1])] {
            assert_eq!(decode(&reply, &[(&checks, &keys)]), Err(BadReply::NotIntegers));
        }
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
