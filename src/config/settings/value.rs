//! How settings are written: as the reference writes them, which is as Go does.

use std::time::Duration;

use crate::engine::quota::{Algorithm, OnOverLimit, Period, Quota, RateSpec, Unit};

/// Go's `ParseBool`.
pub fn parse_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("use true or false".to_owned()),
    }
}

/// Go's `ParseDuration`: numbers with units, such as `1m30s`, `150us` or `1.5h`. A lone 0 needs no unit.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    const UNITS: [(&str, f64); 8] =
        [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("μs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let hint = || "use a number with a unit, such as 150us, 20ms, 3s or 1m30s".to_owned();
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(hint)?;
        let (number, after) = rest.split_at(digits);
        let unit_ends = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_ends);
        let number: f64 = number.parse().map_err(|_| hint())?;
        let (_, weight) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(hint)?;
        seconds += number * weight;
        rest = after;
    }
    if text.is_empty() {
        return Err(hint());
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| "too long".to_owned())
}

/// A token bucket: `100/second burst 200`, or without a burst `1000/hour`. `unlimited` is none.
pub fn parse_limit(text: &str) -> Result<Option<Quota>, String> {
    let hint = || "use requests/unit and a burst, such as 100/second burst 200 or 1000/hour; or unlimited".to_owned();
    let words: Vec<&str> = text.split_whitespace().collect();
    let (rate, burst) = match words[..] {
        ["unlimited"] => return Ok(None),
        [rate] => (rate, None),
        [rate, "burst", burst] => (rate, Some(burst.parse().map_err(|_| hint())?)),
        _ => return Err(hint()),
    };
    let (requests, unit) = rate.split_once('/').ok_or_else(hint)?;
    let requests = requests.parse().map_err(|_| hint())?;
    let unit = Unit::from_name(unit).ok_or_else(hint)?;
    let period = Period::try_new(unit, 1).map_err(|reason| reason.to_string())?;
    let spec = RateSpec { requests, period, burst, name: None };
    let quota = Quota::try_new(Algorithm::TokenBucket, vec![spec], OnOverLimit::Spare, true);
    quota.map(Some).map_err(|reason| reason.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn booleans_are_written_as_in_go() {
        assert_eq!(parse_bool("T"), Ok(true));
        assert_eq!(parse_bool("0"), Ok(false));
        assert!(parse_bool("yes").is_err());
    }

    #[test]
    fn a_limit_is_a_rate_with_or_without_a_burst() {
        let numbers = |text: &str| {
            let quota = parse_limit(text).unwrap_or_else(|error| panic!("{text}: {error}"))?;
            let rate = &quota.rates()[0];
            Some((rate.requests(), rate.period().seconds(), rate.capacity()))
        };
        assert_eq!(numbers("100/second burst 200"), Some((100, 1, 200)));
        assert_eq!(numbers(" 1000/Hour "), Some((1000, 3600, 1000)));
        assert_eq!(numbers("unlimited"), None);
        for bad in
            ["", "100", "100/fortnight", "-1/second", "1/second burst", "1/second burst x", "1/second 2", "0/day"]
        {
            assert!(parse_limit(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn durations_are_written_as_in_go() {
        assert_eq!(parse_duration("150us"), Ok(Duration::from_micros(150)));
        assert_eq!(parse_duration("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("1.5h"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse_duration("0"), Ok(Duration::ZERO));
        for bad in ["", "5", "s", "-3s", "3 s", "3x", "1.2.3s"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }
}
