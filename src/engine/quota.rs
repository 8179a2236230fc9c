//! How much in how long: rates and quotas, and every bound on their numbers.
//!
//! All arithmetic on counters is done twice, here and in Lua, whose only number is a double. Integers up to 2^53 are
//! exact in both, so that every number, product and sum below must stay under that; what could not is refused when
//! the rules are loaded, with the reason.
//!
//! | number | bound | why |
//! |---|---|---|
//! | instant, in us since 1970 | 2^53 is the year 2255 | |
//! | period | 50 years | an instant before 2100 plus three periods (a clock set back by one, a window and the next) stays one |
//! | time for a bucket to drain | 150 years | the same, with a clock set back by a year at the most |
//! | hits of one check | 2^52 - 1 | a count plus hits stays exact |
//! | count of a fixed window | 2^52 - 1 | the same |
//! | count of a sliding window | 2^32 | count x 1,000,000 parts of a window stays exact |
//! | level of a bucket | 2 x burst x weight < 2^53 | the tick is chosen so that it holds |

#[cfg(test)]
mod tests;

use std::fmt;

pub use super::period::{Period, Unit};
use super::period::{SECOND_US, YEAR_US};

/// The largest number of hits that one check can take.
pub const HITS_MAX: u64 = (1 << 52) - 1;
/// Where the count of a fixed window stops.
pub const FIXED_COUNT_MAX: u64 = (1 << 52) - 1;
/// Where the count of a sliding window stops. Above every limit, so that "beyond the limit" can always be told.
pub const SLIDING_COUNT_MAX: u64 = 1 << 32;
/// A sliding window is divided into this many parts.
pub const SLIDING_PARTS: u64 = 1_000_000;
/// Rates in one rule.
pub const RATES_MAX: usize = 8;

const DRAIN_MAX_US: u64 = 150 * YEAR_US;
const HORIZON_MAX_US: u64 = YEAR_US;
const EXACT_MAX: u128 = 1 << 53;

/// How hits are counted against a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    FixedWindow,
    SlidingWindow,
    TokenBucket,
    LeakyBucket,
}

impl Algorithm {
    pub const ALL: [Algorithm; 4] =
        [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::TokenBucket, Algorithm::LeakyBucket];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::FixedWindow => "fixed_window",
            Algorithm::SlidingWindow => "sliding_window",
            Algorithm::TokenBucket => "token_bucket",
            Algorithm::LeakyBucket => "leaky_bucket",
        }
    }

    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    /// A token bucket and a leaky bucket are the same decision seen from two sides.
    #[must_use]
    pub fn is_bucket(self) -> bool {
        matches!(self, Algorithm::TokenBucket | Algorithm::LeakyBucket)
    }
}

/// What a refused request does to a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnOverLimit {
    /// It counts all the same.
    Charge,
    /// It counts nothing.
    Spare,
}

impl OnOverLimit {
    #[must_use]
    pub fn default_of(algorithm: Algorithm) -> Self {
        if algorithm.is_bucket() { OnOverLimit::Spare } else { OnOverLimit::Charge }
    }
}

/// One rate as written, before its numbers are known to be sound.
#[derive(Clone, Debug)]
pub struct RateSpec {
    pub requests: u32,
    pub period: Period,
    /// Buckets only; `None` is as many as `requests`.
    pub burst: Option<u32>,
    pub name: Option<Box<str>>,
}

/// A rate with the numbers that its algorithm works in.
///
/// A window has a length and a limit. A bucket has a level, in units in which one hit weighs as many units as the
/// period has ticks, and `requests` units leak per tick. Nothing is ever divided, so nothing is ever lost:
///
/// 10 per second with a burst of 100 has ticks of 1 us, a hit weighs 1,000,000, 10 leak per tick, and it is full at
/// 100,000,000. After one hit and 100,000 us it is exactly empty again.
///
/// A tick is 1 us unless the bucket is so large or so slow that a full level would not be an exact integer; then it is
/// the smallest power of ten of us, or the millionth part of the period, that makes it one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rate {
    requests: u32,
    period: Period,
    burst: u32,
    name: Option<Box<str>>,
    tick_us: u64,
    level_max: u64,
    horizon_us: u64,
}

impl Rate {
    fn try_new(algorithm: Algorithm, over: OnOverLimit, spec: RateSpec) -> Result<Self, InvalidQuota> {
        let RateSpec { requests, period, burst, name } = spec;
        if !algorithm.is_bucket() {
            if burst.is_some() {
                return Err(InvalidQuota::BurstOfWindow(algorithm));
            }
            let horizon_us = period.micros().min(HORIZON_MAX_US);
            return Ok(Self { requests, period, burst: requests, name, tick_us: 1, level_max: 0, horizon_us });
        }
        if requests == 0 {
            return Err(InvalidQuota::BucketThatNeverRefills);
        }
        let burst = burst.unwrap_or(requests);
        if burst == 0 {
            return Err(InvalidQuota::ZeroBurst);
        }
        let tick_us = tick_us(period, burst);
        let full = u64::from(burst) * (period.micros() / tick_us);
        // With `charge` a bucket can go into debt, by one burst at the most.
        let level_max = if over == OnOverLimit::Charge { 2 * full } else { full };
        let drain_us = u128::from(level_max.div_ceil(u64::from(requests))) * u128::from(tick_us);
        if drain_us > u128::from(DRAIN_MAX_US) {
            return Err(InvalidQuota::DrainTooSlow { requests, period, burst });
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most a year")]
        let horizon_us = drain_us.min(u128::from(HORIZON_MAX_US)) as u64;
        Ok(Self { requests, period, burst, name, tick_us, level_max, horizon_us })
    }

    #[must_use]
    pub fn requests(&self) -> u32 {
        self.requests
    }

    #[must_use]
    pub fn period(&self) -> Period {
        self.period
    }

    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The most hits that fit into an idle counter: the limit of a window, the burst of a bucket.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        u64::from(self.burst)
    }

    #[must_use]
    pub fn period_us(&self) -> u64 {
        self.period.micros()
    }

    /// Bucket: the length of a tick.
    #[must_use]
    pub fn tick_us(&self) -> u64 {
        self.tick_us
    }

    /// Bucket: what one hit weighs.
    #[must_use]
    pub fn weight(&self) -> u64 {
        self.period_us() / self.tick_us
    }

    /// Bucket: what leaks in one tick.
    #[must_use]
    pub fn leak(&self) -> u64 {
        u64::from(self.requests)
    }

    /// Bucket: the highest level there can be. Full, or with `charge` full twice over.
    #[must_use]
    pub fn level_max(&self) -> u64 {
        self.level_max
    }

    /// How far ahead of the clock a stored time can be and still be believed: one window, or the time in which the
    /// highest level drains, and a year at the most.
    #[must_use]
    pub fn horizon_us(&self) -> u64 {
        self.horizon_us
    }
}

/// The smallest tick at which twice the full level is exact: see [`Rate`].
fn tick_us(period: Period, burst: u32) -> u64 {
    let exact = |tick_us: u64| {
        let weight = u128::from(period.micros() / tick_us);
        2 * u128::from(burst) * weight + u128::from(u32::MAX) < EXACT_MAX
    };
    let powers_of_ten = (0..=6).map(|power| 10_u64.pow(power));
    // A period is a whole number of seconds, so each candidate divides it.
    powers_of_ten.into_iter().find(|tick_us| exact(*tick_us)).unwrap_or(period.micros() / SECOND_US)
}

/// Everything that decides how one counter moves: an algorithm, and rates that must all allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    algorithm: Algorithm,
    rates: Box<[Rate]>,
    on_over_limit: OnOverLimit,
    track_denials: bool,
}

impl Quota {
    pub fn try_new(
        algorithm: Algorithm,
        rates: Vec<RateSpec>,
        on_over_limit: OnOverLimit,
        track_denials: bool,
    ) -> Result<Self, InvalidQuota> {
        if rates.is_empty() {
            return Err(InvalidQuota::NoRates);
        }
        if rates.len() > RATES_MAX {
            return Err(InvalidQuota::TooManyRates(rates.len()));
        }
        let rates = rates.into_iter().map(|spec| Rate::try_new(algorithm, on_over_limit, spec));
        Ok(Self { algorithm, rates: rates.collect::<Result<_, _>>()?, on_over_limit, track_denials })
    }

    /// A plain fixed window, which is what a limit that comes with a request means.
    pub fn fixed_window(requests: u32, period: Period) -> Result<Self, InvalidQuota> {
        let spec = RateSpec { requests, period, burst: None, name: None };
        Self::try_new(Algorithm::FixedWindow, vec![spec], OnOverLimit::Charge, false)
    }

    /// What is one's own where this many share the quota: at least one hit, unless there is none to share.
    #[must_use]
    pub fn shared_by(&self, sharers: u32) -> Self {
        let share = |number: u32| if number == 0 { 0 } else { (number / sharers.max(1)).max(1) };
        let spec = |rate: &Rate| RateSpec {
            requests: share(rate.requests),
            period: rate.period,
            burst: self.algorithm.is_bucket().then(|| share(rate.burst)),
            name: rate.name.clone(),
        };
        let rates = self.rates.iter().map(spec).collect();
        // A share of a slow bucket may be slower than any bucket can be; the whole of it is then the best there is.
        Self::try_new(self.algorithm, rates, self.on_over_limit, self.track_denials).unwrap_or_else(|_| self.clone())
    }

    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Never empty.
    #[must_use]
    pub fn rates(&self) -> &[Rate] {
        &self.rates
    }

    #[must_use]
    pub fn on_over_limit(&self) -> OnOverLimit {
        self.on_over_limit
    }

    #[must_use]
    pub fn track_denials(&self) -> bool {
        self.track_denials
    }

    /// The longest horizon of its rates.
    #[must_use]
    pub fn horizon_us(&self) -> u64 {
        self.rates.iter().map(Rate::horizon_us).max().unwrap_or(0)
    }
}

/// Why a quota is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvalidQuota {
    NoRates,
    TooManyRates(usize),
    ZeroMultiplier,
    PeriodTooLong { unit: Unit, multiplier: u32 },
    ZeroBurst,
    BurstOfWindow(Algorithm),
    BucketThatNeverRefills,
    DrainTooSlow { requests: u32, period: Period, burst: u32 },
}

impl fmt::Display for InvalidQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRates => f.write_str("no rates given"),
            Self::TooManyRates(count) => write!(f, "{count} rates in one rule, at most {RATES_MAX} are possible"),
            Self::ZeroMultiplier => f.write_str("unit_multiplier must be at least 1"),
            Self::PeriodTooLong { unit, multiplier } => {
                write!(f, "a period of {multiplier} {}s is longer than 50 years", unit.name())
            }
            Self::ZeroBurst => f.write_str("burst must be at least 1"),
            Self::BurstOfWindow(algorithm) => write!(f, "burst has no meaning for {}", algorithm.name()),
            Self::BucketThatNeverRefills => f.write_str("a bucket with requests_per_unit 0 never refills"),
            Self::DrainTooSlow { requests, period, burst } => {
                write!(f, "a burst of {burst} takes more than 150 years to refill at {requests} per {period}")
            }
        }
    }
}

impl std::error::Error for InvalidQuota {}
