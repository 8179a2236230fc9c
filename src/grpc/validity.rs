//! When a certificate ends: just as much of X.509 as that takes (RFC 5280, 4.1).

const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;

/// Seconds from 1970 to the end of its validity.
#[must_use]
pub fn not_after_s(certificate: &[u8]) -> Option<u64> {
    let (certificate, _) = element(certificate, SEQUENCE)?;
    let (mut rest, _) = element(certificate, SEQUENCE)?;
    if let Some((_, after)) = element(rest, VERSION) {
        rest = after;
    }
    let (_, rest) = element(rest, INTEGER)?; // serial number
    let (_, rest) = element(rest, SEQUENCE)?; // algorithm of the signature
    let (_, rest) = element(rest, SEQUENCE)?; // issuer
    let (validity, _) = element(rest, SEQUENCE)?;
    let (_, rest) = time(validity)?;
    let (not_after, _) = time(rest)?;
    Some(not_after)
}

/// The content of the element that the bytes begin with, and what follows it.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&found, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    if found != tag {
        return None;
    }
    let (length, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
        if digits.is_empty() || digits.len() > 4 {
            return None;
        }
        (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
    };
    rest.split_at_checked(length)
}

/// `YYMMDDHHMMSSZ`, where years from 50 on are of the last century, or `YYYYMMDDHHMMSSZ`.
fn time(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (text, rest, year_digits) = match element(bytes, UTC_TIME) {
        Some((text, rest)) => (text, rest, 2),
        None => element(bytes, GENERALIZED_TIME).map(|(text, rest)| (text, rest, 4))?,
    };
    let (year, text) = text.split_at_checked(year_digits)?;
    let (fields, zone) = text.split_at_checked(10)?;
    let fields: Vec<u64> = fields.chunks(2).map(number).collect::<Option<_>>()?;
    let [month, day, hour, minute, second] = fields[..] else { return None };
    let year = match (number(year)?, year_digits) {
        (year, 2) if year >= 50 => 1900 + year,
        (year, 2) => 2000 + year,
        (year, _) => year,
    };
    let in_range = (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60 && second < 61;
    if zone != b"Z" || year < 1970 || !in_range {
        return None;
    }
    Some((days_since_1970(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second, rest))
}

fn number(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0, |number, digit| digit.is_ascii_digit().then(|| number * 10 + u64::from(digit - b'0')))
}

/// Years are counted from March, so that the leap day is the last of its year.
fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    year * 365 + year / 4 - year / 100 + year / 400 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time_of(tag: u8, text: &str) -> Option<u64> {
        let length = u8::try_from(text.len()).unwrap();
        time(&[&[tag, length], text.as_bytes()].concat()).map(|(seconds, _)| seconds)
    }

    #[test]
    fn both_ways_to_write_a_time_are_read() {
        assert_eq!(time_of(UTC_TIME, "700101000000Z"), Some(0));
        assert_eq!(time_of(UTC_TIME, "240229235959Z"), Some(1_709_251_199));
        assert_eq!(time_of(GENERALIZED_TIME, "20500101000000Z"), Some(2_524_608_000));
        assert_eq!(time_of(GENERALIZED_TIME, "99991231235959Z"), Some(253_402_300_799));
    }

    #[test]
    fn what_is_no_time_is_none() {
        for (tag, text) in [
            (UTC_TIME, "240229235959"),
            (UTC_TIME, "241329235959Z"),
            (UTC_TIME, "500101000000Z"),
            (GENERALIZED_TIME, "2050010100000aZ"),
            (INTEGER, "700101000000Z"),
        ] {
            assert_eq!(time_of(tag, text), None, "{text}");
        }
    }

    #[test]
    fn bytes_that_are_no_certificate_are_none() {
        for bytes in [&b""[..], b"0", b"0\x84\xff\xff\xff\xff", b"0\x80", b"hello, world", &[0x30, 2, 0x30, 0]] {
            assert_eq!(not_after_s(bytes), None);
        }
    }
}
