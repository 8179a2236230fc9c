//! `RateLimitResponse` to JSON.

use std::time::{Duration, UNIX_EPOCH};

use prost_types::{Struct, Timestamp, Value as WireValue, value::Kind};
use serde_json::{Map, Number, Value};

use super::camel_case;
use crate::{
    grpc::proto::envoy::{
        config::core::v3::HeaderValue,
        service::ratelimit::v3::{
            RateLimitResponse,
            rate_limit_response::{
                Code, DescriptorStatus, Quota, RateLimit, quota::ExpirationSpecifier, rate_limit::Unit,
            },
        },
    },
    rfc3339::rfc3339,
};

/// Fields come in the order of their numbers.
#[must_use]
pub fn render(response: &RateLimitResponse) -> Value {
    let mut message = Message::default();
    message.number("overall_code", response.overall_code, code);
    message.list("statuses", &response.statuses, status);
    message.list("response_headers_to_add", &response.response_headers_to_add, header);
    message.list("request_headers_to_add", &response.request_headers_to_add, header);
    message.bytes("raw_body", &response.raw_body);
    message.present("dynamic_metadata", response.dynamic_metadata.as_ref().map(structure));
    message.present("quota", response.quota.as_ref().map(quota));
    message.done()
}

fn status(status: &DescriptorStatus) -> Value {
    let mut message = Message::default();
    message.number("code", status.code, code);
    message.present("current_limit", status.current_limit.as_ref().map(limit));
    message.number("limit_remaining", status.limit_remaining, Value::from);
    message.present("duration_until_reset", status.duration_until_reset.as_ref().map(duration));
    message.present("quota", status.quota.as_ref().map(quota));
    message.done()
}

fn limit(limit: &RateLimit) -> Value {
    let mut message = Message::default();
    message.number("requests_per_unit", limit.requests_per_unit, Value::from);
    message.number("unit", limit.unit, unit);
    message.text("name", &limit.name);
    message.present("unit_multiplier", limit.unit_multiplier.map(Value::from));
    message.done()
}

fn header(header: &HeaderValue) -> Value {
    let mut message = Message::default();
    message.text("key", &header.key);
    message.text("value", &header.value);
    message.bytes("raw_value", &header.raw_value);
    message.done()
}

fn quota(quota: &Quota) -> Value {
    let mut message = Message::default();
    message.number("requests", quota.requests, Value::from);
    let expiration = quota.expiration_specifier.as_ref();
    message.present("valid_until", expiration.map(|ExpirationSpecifier::ValidUntil(until)| timestamp(until)));
    message.text("id", &quota.id);
    message.done()
}

/// The fields of one message. What is zero or empty is left out, unless its presence says something.
#[derive(Default)]
struct Message(Map<String, Value>);

impl Message {
    fn present(&mut self, name: &str, value: Option<Value>) {
        if let Some(value) = value {
            self.0.insert(camel_case(name), value);
        }
    }

    fn number<N: Default + PartialEq>(&mut self, name: &str, number: N, render: impl Fn(N) -> Value) {
        self.present(name, (number != N::default()).then(|| render(number)));
    }

    fn text(&mut self, name: &str, text: &str) {
        self.present(name, (!text.is_empty()).then(|| text.into()));
    }

    fn bytes(&mut self, name: &str, bytes: &[u8]) {
        self.present(name, (!bytes.is_empty()).then(|| base64(bytes).into()));
    }

    fn list<T>(&mut self, name: &str, items: &[T], render: impl Fn(&T) -> Value) {
        self.present(name, (!items.is_empty()).then(|| items.iter().map(render).collect()));
    }

    fn done(self) -> Value {
        Value::Object(self.0)
    }
}

/// By name; a number that has none stays a number.
fn code(number: i32) -> Value {
    Code::try_from(number).map_or(number.into(), |code| code.as_str_name().into())
}

fn unit(number: i32) -> Value {
    Unit::try_from(number).map_or(number.into(), |unit| unit.as_str_name().into())
}

/// Seconds with 0, 3, 6 or 9 decimal places.
fn duration(duration: &prost_types::Duration) -> Value {
    let sign = if duration.seconds < 0 || duration.nanos < 0 { "-" } else { "" };
    let (seconds, nanos) = (duration.seconds.unsigned_abs(), duration.nanos.unsigned_abs());
    let text = match nanos {
        0 => format!("{sign}{seconds}s"),
        nanos if nanos % 1_000_000 == 0 => format!("{sign}{seconds}.{:03}s", nanos / 1_000_000),
        nanos if nanos % 1_000 == 0 => format!("{sign}{seconds}.{:06}s", nanos / 1_000),
        nanos => format!("{sign}{seconds}.{nanos:09}s"),
    };
    text.into()
}

/// To the second; what is before 1970 is shown as 1970.
fn timestamp(timestamp: &Timestamp) -> Value {
    let since_1970 = Duration::from_secs(u64::try_from(timestamp.seconds).unwrap_or_default());
    UNIX_EPOCH.checked_add(since_1970).map_or(Value::Null, |time| rfc3339(time).into())
}

fn structure(fields: &Struct) -> Value {
    Value::Object(fields.fields.iter().map(|(name, value)| (name.clone(), natural(value))).collect())
}

fn natural(value: &WireValue) -> Value {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(value)) => (*value).into(),
        Some(Kind::NumberValue(number)) => natural_number(*number),
        Some(Kind::StringValue(text)) => text.as_str().into(),
        Some(Kind::ListValue(list)) => list.values.iter().map(natural).collect(),
        Some(Kind::StructValue(fields)) => structure(fields),
    }
}

/// The wire has only doubles, but `5` reads better than `5.0`.
fn natural_number(number: f64) -> Value {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if number.fract() == 0.0 && number.abs() <= EXACT {
        #[expect(clippy::cast_possible_truncation, reason = "a whole number of at most 2^53")]
        return Value::from(number as i64);
    }
    Number::from_f64(number).map_or_else(|| Value::from(number.to_string()), Value::Number)
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |index: usize| u32::from(chunk.get(index).copied().unwrap_or_default());
        let group = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let letter = LETTERS[(group >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= chunk.len() { letter.into() } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use prost_types::ListValue;
    use serde_json::json;

    use super::*;

    fn status_with(status: DescriptorStatus) -> Value {
        let response = RateLimitResponse { statuses: vec![status], ..RateLimitResponse::default() };
        render(&response)["statuses"][0].clone()
    }

    #[test]
    fn a_whole_answer_is_written_in_the_order_of_its_fields() {
        let response = RateLimitResponse {
            overall_code: Code::OverLimit.into(),
            statuses: vec![DescriptorStatus {
                code: Code::OverLimit.into(),
                current_limit: Some(RateLimit {
                    requests_per_unit: 10,
                    unit: Unit::Minute.into(),
                    name: "tight".to_owned(),
                    unit_multiplier: Some(5),
                }),
                limit_remaining: 3,
                duration_until_reset: Some(prost_types::Duration { seconds: 42, nanos: 0 }),
                quota: None,
            }],
            response_headers_to_add: vec![HeaderValue {
                key: "Retry-After".to_owned(),
                value: "42".to_owned(),
                raw_value: b"raw".to_vec(),
            }],
            raw_body: b"body!".to_vec(),
            ..RateLimitResponse::default()
        };
        let expected = concat!(
            r#"{"overallCode":"OVER_LIMIT","statuses":[{"code":"OVER_LIMIT","currentLimit":{"requestsPerUnit":10,"#,
            r#""unit":"MINUTE","name":"tight","unitMultiplier":5},"limitRemaining":3,"durationUntilReset":"42s"}],"#,
            r#""responseHeadersToAdd":[{"key":"Retry-After","value":"42","rawValue":"cmF3"}],"rawBody":"Ym9keSE="}"#
        );
        assert_eq!(render(&response).to_string(), expected);
    }

    #[test]
    fn what_is_zero_is_left_out() {
        assert_eq!(render(&RateLimitResponse::default()), json!({}));
        let limit = RateLimit { unit_multiplier: Some(0), ..RateLimit::default() };
        let status = DescriptorStatus { current_limit: Some(limit), ..DescriptorStatus::default() };
        assert_eq!(status_with(status), json!({"currentLimit": {"unitMultiplier": 0}}));
    }

    #[test]
    fn an_enum_number_without_a_name_stays_a_number() {
        let limit = RateLimit { unit: 99, ..RateLimit::default() };
        let status = DescriptorStatus { code: 7, current_limit: Some(limit), ..DescriptorStatus::default() };
        assert_eq!(status_with(status), json!({"code": 7, "currentLimit": {"unit": 99}}));
    }

    #[test]
    fn a_duration_has_as_many_decimals_as_it_needs() {
        for (seconds, nanos, expected) in [
            (0, 0, "0s"),
            (1, 500_000_000, "1.500s"),
            (1, 1_000, "1.000001s"),
            (0, 1, "0.000000001s"),
            (-1, -500_000_000, "-1.500s"),
        ] {
            assert_eq!(duration(&prost_types::Duration { seconds, nanos }), json!(expected));
        }
    }

    #[test]
    fn a_struct_is_written_as_plain_json() {
        let value = |kind| WireValue { kind: Some(kind) };
        let list = ListValue {
            values: vec![
                value(Kind::NumberValue(5.0)),
                value(Kind::NumberValue(0.5)),
                value(Kind::NumberValue(1e300)),
                value(Kind::NumberValue(f64::NAN)),
                value(Kind::NullValue(0)),
                value(Kind::BoolValue(true)),
                value(Kind::StringValue("text".to_owned())),
            ],
        };
        let inner = Struct { fields: [("list".to_owned(), value(Kind::ListValue(list)))].into() };
        let fields = [("inner".to_owned(), value(Kind::StructValue(inner)))].into();
        let response = RateLimitResponse { dynamic_metadata: Some(Struct { fields }), ..RateLimitResponse::default() };
        let expected = json!({"inner": {"list": [5, 0.5, 1e300, "NaN", null, true, "text"]}});
        assert_eq!(render(&response), json!({"dynamicMetadata": expected}));
        assert!(render(&response).to_string().contains("[5,0.5,"));
    }

    #[test]
    fn an_empty_struct_is_still_there() {
        let response = RateLimitResponse { dynamic_metadata: Some(Struct::default()), ..RateLimitResponse::default() };
        assert_eq!(render(&response), json!({"dynamicMetadata": {}}));
    }

    #[test]
    fn a_quota_ends_at_a_time() {
        let until = ExpirationSpecifier::ValidUntil(Timestamp { seconds: 1_000_000_000, nanos: 0 });
        let quota = Quota { requests: 5, id: "q".to_owned(), expiration_specifier: Some(until) };
        let response = RateLimitResponse { quota: Some(quota), ..RateLimitResponse::default() };
        let expected = json!({"quota": {"requests": 5, "validUntil": "2001-09-09T01:46:40Z", "id": "q"}});
        assert_eq!(render(&response), expected);
    }

    #[test]
    fn bytes_are_padded_to_groups_of_four() {
        for (bytes, expected) in
            [(&b""[..], ""), (b"f", "Zg=="), (b"fo", "Zm8="), (b"foo", "Zm9v"), (b"\xff\xfe\xfd\xfc", "//79/A==")]
        {
            assert_eq!(base64(bytes), expected);
        }
    }
}
