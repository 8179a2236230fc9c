use proptest::{prelude::*, sample::select};

use super::*;

fn period(unit: Unit, multiplier: u32) -> Period {
    Period::try_new(unit, multiplier).unwrap()
}

fn bucket(requests: u32, period: Period, burst: Option<u32>, over: OnOverLimit) -> Result<Quota, InvalidQuota> {
    Quota::try_new(Algorithm::TokenBucket, vec![RateSpec { requests, period, burst, name: None }], over, false)
}

#[test]
fn units_are_as_long_as_the_reference_says() {
    let seconds = Unit::ALL.map(Unit::seconds);
    assert_eq!(seconds, [1, 60, 3_600, 86_400, 604_800, 2_592_000, 31_536_000]);
    for unit in Unit::ALL {
        assert_eq!(Unit::from_name(&unit.name().to_uppercase()), Some(unit));
    }
    assert_eq!(Unit::from_name("fortnight"), None);
}

#[test]
fn what_could_not_be_exact_or_makes_no_sense_is_refused() {
    let minute = period(Unit::Minute, 1);
    let spare = OnOverLimit::Spare;
    let window = |rates| Quota::try_new(Algorithm::FixedWindow, rates, OnOverLimit::Charge, false);
    let spec = RateSpec { requests: 1, period: minute, burst: None, name: None };

    assert_eq!(Period::try_new(Unit::Day, 0), Err(InvalidQuota::ZeroMultiplier));
    assert!(Period::try_new(Unit::Year, 50).is_ok());
    let too_long = InvalidQuota::PeriodTooLong { unit: Unit::Year, multiplier: 51 };
    assert_eq!(Period::try_new(Unit::Year, 51), Err(too_long));
    assert!(Period::try_new(Unit::Year, u32::MAX).is_err());
    assert_eq!(window(vec![]), Err(InvalidQuota::NoRates));
    assert!(window(vec![spec.clone(); RATES_MAX]).is_ok());
    assert_eq!(window(vec![spec.clone(); RATES_MAX + 1]), Err(InvalidQuota::TooManyRates(RATES_MAX + 1)));
    let with_burst = RateSpec { burst: Some(1), ..spec };
    assert_eq!(window(vec![with_burst]), Err(InvalidQuota::BurstOfWindow(Algorithm::FixedWindow)));
    assert_eq!(bucket(0, minute, None, spare), Err(InvalidQuota::BucketThatNeverRefills));
    assert_eq!(bucket(0, minute, Some(5), spare), Err(InvalidQuota::BucketThatNeverRefills));
    assert_eq!(bucket(1, minute, Some(0), spare), Err(InvalidQuota::ZeroBurst));
    let year = period(Unit::Year, 1);
    assert!(bucket(1, year, Some(150), spare).is_ok());
    let too_slow = InvalidQuota::DrainTooSlow { requests: 1, period: year, burst: 151 };
    assert_eq!(bucket(1, year, Some(151), spare), Err(too_slow));
}

#[test]
fn a_window_may_have_a_limit_of_nothing() {
    assert!(Quota::fixed_window(0, period(Unit::Second, 1)).is_ok());
}

#[test]
fn ten_per_second_with_a_burst_of_a_hundred_works_in_the_numbers_of_its_documentation() {
    let quota = bucket(10, period(Unit::Second, 1), Some(100), OnOverLimit::Spare).unwrap();
    let rate = &quota.rates()[0];
    assert_eq!((rate.tick_us(), rate.weight(), rate.leak(), rate.level_max()), (1, 1_000_000, 10, 100_000_000));
    assert_eq!(rate.horizon_us(), 10_000_000);
}

#[test]
fn every_rate_per_second_has_ticks_of_a_microsecond() {
    let quota = bucket(u32::MAX, period(Unit::Second, 1), None, OnOverLimit::Charge).unwrap();
    assert_eq!(quota.rates()[0].tick_us(), 1);
}

proptest! {
    #[test]
    fn the_tick_divides_the_period_and_keeps_every_level_exact(
        requests in 1..=u32::MAX, burst in 1..=u32::MAX, unit in select(&Unit::ALL[..]), multiplier in 1..=50_u32,
    ) {
        let charged = bucket(requests, period(unit, multiplier), Some(burst), OnOverLimit::Charge);
        let Ok(quota) = charged else {
            let too_slow = matches!(charged, Err(InvalidQuota::DrainTooSlow { .. }));
            prop_assert!(too_slow);
            return Ok(());
        };
        let rate = &quota.rates()[0];
        prop_assert_eq!(rate.weight() * rate.tick_us(), rate.period_us());
        prop_assert_eq!(rate.level_max(), 2 * rate.capacity() * rate.weight());
        prop_assert!(u128::from(rate.level_max() + rate.leak()) < EXACT_MAX);
        // What the highest level needs to drain is exact, and no longer than the bound.
        prop_assert!(rate.horizon_us() == HORIZON_MAX_US || rate.horizon_us() / rate.tick_us() * rate.leak() >= rate.level_max());
        prop_assert!(rate.horizon_us() <= HORIZON_MAX_US);
        // No tick is coarser than a millionth of the period, or a second.
        prop_assert!(rate.tick_us() <= SECOND_US || rate.weight() == SECOND_US);
        // The policy does not change the numbers, so that a counter survives its change.
        let spared = bucket(requests, period(unit, multiplier), Some(burst), OnOverLimit::Spare).unwrap();
        prop_assert_eq!(spared.rates()[0].tick_us(), rate.tick_us());
    }
}
