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

/// Go's `ParseDuration`: numbers with units, such as `1m30s`, `150us` or `1.5h`. A lone 0 needs no unit. Exact to the nanosecond, and at
/// most what Go can hold: what is longer would be beyond the clocks of this program, too.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let hint = || "use a number with a unit, such as 150us, 20ms, 3s or 1m30s".to_owned();
    let too_long = || "use at most 2562047h, which is about 292 years".to_owned();
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut nanoseconds: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(hint)?;
        let (number, after) = rest.split_at(digits);
        let unit_ends = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_ends);
        let unit_ns = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return Err(hint()),
        };
        let more = amount_ns(number, unit_ns).ok_or_else(hint)?;
        let sum = more.checked_add(nanoseconds.into()).and_then(|sum| i64::try_from(sum).ok());
        nanoseconds = sum.ok_or_else(too_long)?.unsigned_abs();
        rest = after;
    }
    if text.is_empty() { Err(hint()) } else { Ok(Duration::from_nanos(nanoseconds)) }
}

/// So many units. What is too much even for this is the most that it holds; a number with two points, or none at all, is `None`.
fn amount_ns(number: &str, unit_ns: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let more = |sum: u128, digit: u8| sum.saturating_mul(10).saturating_add(u128::from(digit - b'0'));
    let digits = |text: &str| text.bytes().fold(0, more);
    // No unit has more than thirteen digits of nanoseconds: what comes behind the eighteenth does not count.
    let fraction = &fraction[..fraction.len().min(18)];
    let parts = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    Some(digits(whole).saturating_mul(unit_ns).saturating_add(digits(fraction) * unit_ns / parts))
}

/// A time between two things that must not be without a pause.
pub fn parse_interval(text: &str) -> Result<Duration, String> {
    let at_least = Duration::from_millis(1);
    parse_duration(text).and_then(|time| if time < at_least { Err("use at least 1ms".to_owned()) } else { Ok(time) })
}

/// Whether a value is the text of a certificate or key, as it is or in base64, where a path is wanted.
pub fn holds_pem(text: &str) -> bool {
    // "-----BEGIN" in base64, and the beginning of nearly every certificate and key without its first line.
    let is_encoded = ["LS0tLS1", "MII"].iter().any(|begin| text.trim_start().starts_with(begin));
    // Keys of elliptic curves begin otherwise, and are long all the same.
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte);
    let is_long = text.len() >= 60 && !text.starts_with('/') && text.bytes().all(is_base64);
    is_encoded || is_long || text.contains(['\n', '\r']) || text.contains("-----BEGIN")
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
        assert_eq!(parse_duration(".5s"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("1.000000001s"), Ok(Duration::from_nanos(1_000_000_001)));
        for bad in ["", "5", "s", "-3s", "3 s", "3x", "1.2.3s", ".s"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_duration_is_at_most_what_go_can_hold() {
        assert_eq!(parse_duration("9223372036854775807ns"), Ok(Duration::from_nanos(i64::MAX as u64)));
        for absurd in ["9223372036854775808ns", "2562048h", "5000000000000000h", &format!("{}h", "9".repeat(99))] {
            assert!(parse_duration(absurd).unwrap_err().contains("292 years"), "{absurd}");
        }
    }

    #[test]
    fn a_key_is_told_from_a_path() {
        let curve = "MHcCAQEEIJ0bLzm3vX8k1Qe0Yw6n5T2rU4sO7pA9dFgHjKlZxCvBoAoGCCqGSM49";
        for key in ["-----BEGIN PRIVATE KEY-----", "LS0tLS1CRUdJTiBQ", " MIIEvQIBADANBgkq", "a\nb", curve] {
            assert!(holds_pem(key), "{key}");
        }
        let long = format!("/{}", "directory/".repeat(10));
        for path in [
            "/etc/tls/tls.key",
            "tls.key",
            "./MII",
            &long,
            "a-directory-with-a-long-name/and-another-with-a-longer-one/tls.key",
        ] {
            assert!(!holds_pem(path), "{path}");
        }
    }

    #[test]
    fn an_interval_of_less_than_a_millisecond_is_none() {
        assert_eq!(parse_interval("1ms"), Ok(Duration::from_millis(1)));
        for short in ["0", "1ns", "999999ns"] {
            assert_eq!(parse_interval(short), Err("use at least 1ms".to_owned()), "{short}");
        }
    }
}
