//! JSON to `RateLimitRequest`.

use serde_json::{Number, Value};

use super::{camel_case, unique};
use crate::grpc::proto::envoy::{
    extensions::common::ratelimit::v3::{
        RateLimitDescriptor,
        rate_limit_descriptor::{Entry, RateLimitOverride},
    },
    service::ratelimit::v3::RateLimitRequest,
    r#type::v3::RateLimitUnit,
};

/// Why a text is no request: one sentence that names the place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadJson(String);

type Parsed<T> = Result<T, BadJson>;

fn bad<T>(sentence: String) -> Parsed<T> {
    Err(BadJson(sentence))
}

/// # Errors
/// What the first thing wrong is.
pub fn parse(body: &[u8]) -> Parsed<RateLimitRequest> {
    let value =
        unique::parse(body).map_err(|error| BadJson(format!("the body is not the JSON of a request: {error}")))?;
    let fields = Fields::open(&value, String::new(), &["domain", "descriptors", "hits_addend"])?;
    let request = RateLimitRequest {
        domain: fields.get("domain", text)?.unwrap_or_default(),
        descriptors: fields.list("descriptors", descriptor)?,
        hits_addend: fields.get("hits_addend", uint32)?.unwrap_or_default(),
    };
    Ok(request)
}

fn descriptor(value: &Value, path: &str) -> Parsed<RateLimitDescriptor> {
    let known = &["entries", "limit", "hits_addend", "is_negative_hits"];
    let fields = Fields::open(value, path.to_owned(), known)?;
    Ok(RateLimitDescriptor {
        entries: fields.list("entries", entry)?,
        limit: fields.get("limit", limit)?,
        hits_addend: fields.get("hits_addend", uint64)?,
        is_negative_hits: fields.get("is_negative_hits", boolean)?.unwrap_or_default(),
    })
}

fn entry(value: &Value, path: &str) -> Parsed<Entry> {
    let fields = Fields::open(value, path.to_owned(), &["key", "value"])?;
    Ok(Entry {
        key: fields.get("key", text)?.unwrap_or_default(),
        value: fields.get("value", text)?.unwrap_or_default(),
    })
}

fn limit(value: &Value, path: &str) -> Parsed<RateLimitOverride> {
    let known = &["requests_per_unit", "unit", "unit_multiplier"];
    let fields = Fields::open(value, path.to_owned(), known)?;
    Ok(RateLimitOverride {
        requests_per_unit: fields.get("requests_per_unit", uint32)?.unwrap_or_default(),
        unit: fields.get("unit", unit)?.unwrap_or_default(),
        unit_multiplier: fields.get("unit_multiplier", uint32)?,
    })
}

/// The fields of one message, by their `snake_case` names.
struct Fields<'a> {
    path: String,
    values: Vec<(&'static str, &'a Value)>,
}

impl<'a> Fields<'a> {
    /// Refuses what is not known. An absent path is the request itself.
    fn open(value: &'a Value, path: String, known: &[&'static str]) -> Parsed<Self> {
        let here = if path.is_empty() { "the request" } else { &path };
        let Value::Object(given) = value else {
            return bad(format!("{here} is {}, expected an object", what(value)));
        };
        let mut values: Vec<(&'static str, &Value)> = Vec::new();
        for (name, value) in given {
            let Some(field) = known.iter().find(|field| **field == name || camel_case(field) == *name) else {
                let known: Vec<String> = known.iter().map(|field| camel_case(field)).collect();
                return bad(format!("unknown field `{name}` in {here}: known are {}", known.join(", ")));
            };
            if values.iter().any(|(given, _)| given == field) {
                return bad(format!("`{}` is given twice in {here}, the other time as `{field}`", camel_case(field)));
            }
            values.push((field, value));
        }
        Ok(Self { path, values })
    }

    fn path_of(&self, name: &str) -> String {
        let name = camel_case(name);
        if self.path.is_empty() { name } else { format!("{}.{name}", self.path) }
    }

    /// A field that is `null` is absent.
    fn get<T>(&self, name: &str, parse: impl Fn(&Value, &str) -> Parsed<T>) -> Parsed<Option<T>> {
        match self.values.iter().find(|(given, _)| *given == name) {
            None | Some((_, Value::Null)) => Ok(None),
            Some((_, value)) => parse(value, &self.path_of(name)).map(Some),
        }
    }

    fn list<T>(&self, name: &str, parse: impl Fn(&Value, &str) -> Parsed<T>) -> Parsed<Vec<T>> {
        let items = |value: &Value, path: &str| match value {
            Value::Array(items) => {
                let item = |(index, item)| parse(item, &format!("{path}[{index}]"));
                items.iter().enumerate().map(item).collect()
            }
            other => bad(format!("{path} is {}, expected an array", what(other))),
        };
        Ok(self.get(name, items)?.unwrap_or_default())
    }
}

/// A value in the words of an error. Long text is cut: it comes from the caller.
fn what(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(value) => value.to_string(),
        Value::String(text) if text.chars().count() > 40 => {
            format!("{:?}", text.chars().take(40).chain("...".chars()).collect::<String>())
        }
        Value::String(text) => format!("{text:?}"),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

fn text(value: &Value, path: &str) -> Parsed<String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        other => bad(format!("{path} is {}, expected a string", what(other))),
    }
}

fn boolean(value: &Value, path: &str) -> Parsed<bool> {
    match value {
        Value::Bool(value) => Ok(*value),
        other => bad(format!("{path} is {}, expected true or false", what(other))),
    }
}

/// Whether a number means a unit is for `convert::parse` to say, as it is on the wire.
fn unit(value: &Value, path: &str) -> Parsed<i32> {
    let number = match value {
        Value::String(name) => RateLimitUnit::from_str_name(name).map(i32::from),
        Value::Number(number) => whole(number).and_then(|number| i32::try_from(number).ok()),
        _ => None,
    };
    let no_unit = || BadJson(format!("{path} is {}, which is no unit: use SECOND to YEAR, or 1 to 6", what(value)));
    number.ok_or_else(no_unit)
}

fn uint32(value: &Value, path: &str) -> Parsed<u32> {
    let number = unsigned(value, path, u32::MAX.into())?;
    Ok(u32::try_from(number).unwrap_or(u32::MAX))
}

fn uint64(value: &Value, path: &str) -> Parsed<u64> {
    unsigned(value, path, u64::MAX)
}

fn unsigned(value: &Value, path: &str, max: u64) -> Parsed<u64> {
    let number = match value {
        Value::Number(number) => Some(number.clone()),
        Value::String(text) => number_in(text),
        _ => None,
    };
    let Some(number) = number else {
        return bad(format!("{path} is {}, expected a whole number", what(value)));
    };
    match whole(&number).map(u64::try_from) {
        Some(Ok(number)) if number <= max => Ok(number),
        Some(_) => bad(format!("{path} is {number}, expected 0 to {max}")),
        None => bad(format!("{path} is {number}, expected a whole number from 0 to {max}")),
    }
}

/// A number as JSON writes it, with nothing around it.
fn number_in(text: &str) -> Option<Number> {
    let bare =
        text.starts_with(|c: char| c == '-' || c.is_ascii_digit()) && text.ends_with(|c: char| c.is_ascii_digit());
    if bare { serde_json::from_str(text).ok() } else { None }
}

/// `None` if the number has a fraction. `5.0` and `5e0` have none.
fn whole(number: &Number) -> Option<i128> {
    if let Some(number) = number.as_u64() {
        return Some(number.into());
    }
    if let Some(number) = number.as_i64() {
        return Some(number.into());
    }
    let number = number.as_f64()?;
    #[expect(clippy::cast_possible_truncation, reason = "a cast that saturates stays out of every range asked for")]
    (number.fract() == 0.0).then_some(number as i128)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(json: &str) -> RateLimitRequest {
        parse(json.as_bytes()).unwrap_or_else(|error| panic!("{json}: {error}"))
    }

    fn refused(json: &str) -> String {
        match parse(json.as_bytes()) {
            Ok(request) => panic!("{json} was read as {request:?}"),
            Err(error) => error.to_string(),
        }
    }

    fn with_hits(hits: &str) -> String {
        format!(r#"{{"descriptors": [{{"hitsAddend": {hits}}}]}}"#)
    }

    fn hits(hits: &str) -> Option<u64> {
        parsed(&with_hits(hits)).descriptors[0].hits_addend
    }

    fn with_unit(unit: &str) -> String {
        format!(r#"{{"descriptors": [{{"limit": {{"unit": {unit}}}}}]}}"#)
    }

    #[test]
    fn a_whole_request_is_read() {
        let request = parsed(
            r#"{"domain": "edge", "hitsAddend": 3, "descriptors": [
                {"entries": [{"key": "user", "value": "ä"}, {"key": "plan"}], "isNegativeHits": true, "hitsAddend": "7",
                 "limit": {"requestsPerUnit": 10, "unit": "HOUR", "unitMultiplier": 2}}, {}]}"#,
        );
        let entry = |key: &str, value: &str| Entry { key: key.to_owned(), value: value.to_owned() };
        let first = RateLimitDescriptor {
            entries: vec![entry("user", "ä"), entry("plan", "")],
            limit: Some(RateLimitOverride {
                requests_per_unit: 10,
                unit: RateLimitUnit::Hour.into(),
                unit_multiplier: Some(2),
            }),
            hits_addend: Some(7),
            is_negative_hits: true,
        };
        let descriptors = vec![first, RateLimitDescriptor::default()];
        assert_eq!(request, RateLimitRequest { domain: "edge".to_owned(), descriptors, hits_addend: 3 });
    }

    #[test]
    fn snake_case_means_the_same_as_camel_case() {
        let camel = r#"{"hitsAddend": 2, "descriptors": [{"isNegativeHits": true, "hitsAddend": 1,
            "limit": {"requestsPerUnit": 5, "unitMultiplier": 3}}]}"#;
        let snake = r#"{"hits_addend": 2, "descriptors": [{"is_negative_hits": true, "hits_addend": 1,
            "limit": {"requests_per_unit": 5, "unit_multiplier": 3}}]}"#;
        assert_eq!(parsed(camel), parsed(snake));
        assert_ne!(parsed(camel), RateLimitRequest::default());
    }

    #[test]
    fn an_empty_object_is_an_empty_request() {
        assert_eq!(parsed("{}"), RateLimitRequest::default());
    }

    #[test]
    fn null_is_absent_everywhere_but_in_a_list() {
        let nulls = r#"{"domain": null, "descriptors": null, "hitsAddend": null}"#;
        assert_eq!(parsed(nulls), RateLimitRequest::default());
        assert_eq!(hits("null"), None);
        assert_eq!(parsed(r#"{"descriptors": [{"limit": null}]}"#).descriptors[0].limit, None);
        assert_eq!(refused(r#"{"descriptors": [null]}"#), "descriptors[0] is null, expected an object");
    }

    #[test]
    fn a_whole_number_may_be_written_in_any_way_that_json_has() {
        for (written, expected) in [
            ("0", 0),
            ("5", 5),
            (r#""5""#, 5),
            ("5.0", 5),
            ("5e2", 500),
            (r#""5e2""#, 500),
            ("18446744073709551615", u64::MAX),
            (r#""18446744073709551615""#, u64::MAX),
        ] {
            assert_eq!(hits(written), Some(expected), "{written}");
        }
    }

    #[test]
    fn a_number_out_of_range_is_refused_with_the_range() {
        assert_eq!(refused(r#"{"hitsAddend": 4294967296}"#), "hitsAddend is 4294967296, expected 0 to 4294967295");
        assert_eq!(refused(r#"{"hits_addend": "-1"}"#), "hitsAddend is -1, expected 0 to 4294967295");
        let expected = "descriptors[0].hitsAddend is 1.8446744073709552e+19, expected 0 to 18446744073709551615";
        assert_eq!(refused(&with_hits("18446744073709551616")), expected);
    }

    #[test]
    fn what_is_no_whole_number_is_refused() {
        for wrong in ["1.5", r#""1.5""#, r#""""#, r#"" 5""#, r#""5 ""#, r#""05""#, r#""five""#, "true", "[5]", "{}"] {
            let error = refused(&with_hits(wrong));
            assert!(error.starts_with("descriptors[0].hitsAddend is "), "{error}");
            assert!(error.contains("whole number"), "{error}");
        }
    }

    #[test]
    fn a_unit_is_a_name_or_a_number() {
        let unit = |written: &str| parsed(&with_unit(written)).descriptors[0].limit.map(|limit| limit.unit);
        assert_eq!(unit(r#""MINUTE""#), Some(2));
        assert_eq!(unit("6"), Some(6));
        assert_eq!(unit("99"), Some(99));
        let error = refused(&with_unit(r#""FORTNIGHT""#));
        assert_eq!(
            error,
            r#"descriptors[0].limit.unit is "FORTNIGHT", which is no unit: use SECOND to YEAR, or 1 to 6"#
        );
        assert!(refused(&with_unit("1.5")).starts_with("descriptors[0].limit.unit is 1.5,"));
        assert!(refused(&with_unit("4294967296")).starts_with("descriptors[0].limit.unit is 4294967296,"));
        assert!(refused(&with_unit("true")).starts_with("descriptors[0].limit.unit is true,"));
    }

    #[test]
    fn an_unknown_field_is_named_with_its_place() {
        assert_eq!(
            refused(r#"{"domian": "edge"}"#),
            "unknown field `domian` in the request: known are domain, descriptors, hitsAddend"
        );
        assert_eq!(
            refused(r#"{"descriptors": [{}, {"entries": [{"key": "a", "valeu": "b"}]}]}"#),
            "unknown field `valeu` in descriptors[1].entries[0]: known are key, value"
        );
        let error = refused(r#"{"descriptors": [{"limit": {"Unit": 1}}]}"#);
        assert!(error.starts_with("unknown field `Unit` in descriptors[0].limit:"), "{error}");
    }

    #[test]
    fn a_field_given_twice_is_refused_however_it_is_spelt() {
        assert_eq!(
            refused(r#"{"hitsAddend": 1, "hits_addend": 1}"#),
            "`hitsAddend` is given twice in the request, the other time as `hits_addend`"
        );
        assert!(refused(r#"{"domain": "a", "domain": "b"}"#).contains("field `domain` is given twice"));
        assert!(
            refused(r#"{"descriptors": [{"entries": [{"key": "a", "key": "b"}]}]}"#).contains("`key` is given twice")
        );
    }

    #[test]
    fn a_wrong_type_is_named_with_its_place() {
        for (json, expected) in [
            (r#"{"domain": 5}"#, "domain is 5, expected a string"),
            (r#"{"descriptors": {}}"#, "descriptors is an object, expected an array"),
            (r#"{"descriptors": ["x"]}"#, r#"descriptors[0] is "x", expected an object"#),
            (r#"{"descriptors": [{"entries": 1}]}"#, "descriptors[0].entries is 1, expected an array"),
            (r#"{"descriptors": [{"entries": [[]]}]}"#, "descriptors[0].entries[0] is an array, expected an object"),
            (
                r#"{"descriptors": [{"entries": [{"value": true}]}]}"#,
                "descriptors[0].entries[0].value is true, expected a string",
            ),
            (
                r#"{"descriptors": [{"isNegativeHits": "true"}]}"#,
                r#"descriptors[0].isNegativeHits is "true", expected true or false"#,
            ),
            ("[]", "the request is an array, expected an object"),
            ("null", "the request is null, expected an object"),
        ] {
            assert_eq!(refused(json), expected, "{json}");
        }
    }

    #[test]
    fn what_is_no_json_is_refused_with_its_place() {
        for json in
            ["", "{", r#"{"domain": "edge"} x"#, "{'domain': 1}", r#"{"domain": "\ud800"}"#, &"[".repeat(100_000)]
        {
            let error = refused(json);
            assert!(error.starts_with("the body is not the JSON of a request: "), "{error}");
            assert!(error.contains("line 1 column"), "{error}");
        }
        assert!(parse(b"{\"domain\": \"\xff\"}").is_err());
    }

    #[test]
    fn a_long_text_is_cut_in_an_error() {
        let error = refused(&format!(r#"{{"hitsAddend": "{}"}}"#, "x".repeat(10_000)));
        assert!(error.len() < 120, "{error}");
    }
}
