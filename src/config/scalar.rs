//! What a plain scalar means, by the rules of YAML 1.1 as Go's yaml.v2 has them: `yes` is true, `1_000` is a number.
//!
//! Knows single scalars. Knows nothing of rules.

use super::yaml::{Kind, Node};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Plain {
    Null,
    Bool(bool),
    Int(i64),
    /// Too large for an `i64`.
    Big(u64),
    Float(f64),
    /// None of these: a string.
    Text,
}

impl Plain {
    /// What a scalar node means. A quoted one is a string whatever it looks like.
    #[must_use]
    pub fn of(node: &Node<'_>) -> Option<Self> {
        match &node.kind {
            Kind::Scalar { quoted: true, .. } => Some(Plain::Text),
            Kind::Scalar { text, .. } => Some(resolve(text)),
            Kind::Seq(_) | Kind::Map(_) => None,
        }
    }

    /// With its article, for messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Plain::Null => "null",
            Plain::Bool(_) => "a boolean",
            Plain::Int(_) | Plain::Big(_) => "a whole number",
            Plain::Float(_) => "a number with a fraction",
            Plain::Text => "a string",
        }
    }
}

#[must_use]
pub fn resolve(text: &str) -> Plain {
    match text.as_bytes().first() {
        None => Plain::Null,
        Some(b'0'..=b'9' | b'+' | b'-' | b'.') => number(text).unwrap_or(Plain::Text),
        Some(_) => word(text),
    }
}

fn word(text: &str) -> Plain {
    match text {
        "~" | "null" | "Null" | "NULL" => Plain::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => Plain::Bool(true),
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => Plain::Bool(false),
        _ => Plain::Text,
    }
}

fn number(text: &str) -> Option<Plain> {
    match text {
        ".nan" | ".NaN" | ".NAN" => return Some(Plain::Float(f64::NAN)),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => return Some(Plain::Float(f64::INFINITY)),
        "-.inf" | "-.Inf" | "-.INF" => return Some(Plain::Float(f64::NEG_INFINITY)),
        _ => {}
    }
    let bare = text.replace('_', "");
    let (negative, digits) = match bare.as_bytes().first()? {
        b'-' => (true, &bare[1..]),
        b'+' => (false, &bare[1..]),
        _ => (false, bare.as_str()),
    };
    integer(negative, digits).or_else(|| float(&bare, digits))
}

fn integer(negative: bool, digits: &str) -> Option<Plain> {
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, &lower[2..]),
        [b'0', b'o', ..] => (8, &lower[2..]),
        [b'0', b'b', ..] => (2, &lower[2..]),
        [b'0', _, ..] => (8, &lower[1..]),
        _ => (10, lower.as_str()),
    };
    // A second sign would be taken as one.
    if !digits.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return None;
    }
    let size = u64::from_str_radix(digits, radix).ok()?;
    if negative {
        return 0_i64.checked_sub_unsigned(size).map(Plain::Int);
    }
    Some(i64::try_from(size).map_or(Plain::Big(size), Plain::Int))
}

fn float(signed: &str, digits: &str) -> Option<Plain> {
    // Rust also reads words such as `inf`; YAML's own are above.
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit() || b".eE+-".contains(&byte));
    let begins = digits.bytes().find(|byte| *byte != b'.').is_some_and(|byte| byte.is_ascii_digit());
    (plain && begins).then(|| signed.parse().ok().map(Plain::Float)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_words_mean_what_yaml_1_1_says() {
        for (text, expected) in [
            ("", Plain::Null),
            ("~", Plain::Null),
            ("null", Plain::Null),
            ("yes", Plain::Bool(true)),
            ("On", Plain::Bool(true)),
            ("y", Plain::Bool(true)),
            ("OFF", Plain::Bool(false)),
            ("False", Plain::Bool(false)),
            ("yEs", Plain::Text),
            ("second", Plain::Text),
            ("1_000", Plain::Int(1000)),
            ("0x10", Plain::Int(16)),
            ("010", Plain::Int(8)),
            ("0o10", Plain::Int(8)),
            ("0b11", Plain::Int(3)),
            ("-5", Plain::Int(-5)),
            ("+5", Plain::Int(5)),
            ("0", Plain::Int(0)),
            ("-9223372036854775808", Plain::Int(i64::MIN)),
            ("18446744073709551615", Plain::Big(u64::MAX)),
            ("99999999999999999999", Plain::Float(1e20)),
            ("1.5", Plain::Float(1.5)),
            ("1e3", Plain::Float(1000.0)),
            (".5", Plain::Float(0.5)),
            ("1.2.3.4", Plain::Text),
            ("2001-01-01", Plain::Text),
            ("10.0.0.0/8", Plain::Text),
            ("-", Plain::Text),
            ("--5", Plain::Text),
            ("+-5", Plain::Text),
            (".", Plain::Text),
            ("...", Plain::Text),
            ("1infinity", Plain::Text),
            ("-inf", Plain::Text),
            ("08", Plain::Float(8.0)),
        ] {
            assert_eq!(resolve(text), expected, "{text}");
        }
        assert!(matches!(resolve(".nan"), Plain::Float(number) if number.is_nan()));
    }
}
