//! One answer, whichever door it came through. Each door's own shape is checked on the way in.

use serde_json::{Map, Value, json};

use crate::harness::{
    Server,
    grpc::{Code, Request, Response, Unit},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    Grpc,
    Json,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// `OK` or `OVER`.
    pub overall: String,
    pub statuses: Vec<Status>,
    pub headers: Vec<(String, String)>,
    pub metadata: Option<Value>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    pub code: String,
    pub limit: Option<Limit>,
    pub remaining: u64,
    pub reset_s: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limit {
    pub requests: u64,
    pub unit: String,
    /// 1 if it is not said.
    pub multiplier: u64,
    pub name: String,
}

impl Answer {
    /// Asks through a door. `Err` is the sentence with which a malformed request is turned away.
    pub fn ask(server: &Server, request: &Request, door: Door) -> Result<Self, String> {
        match door {
            Door::Grpc => match server.ask(request.clone()) {
                Ok(response) => Ok(Self::of_grpc(response)),
                Err(status) => {
                    assert_eq!(status.code(), tonic::Code::InvalidArgument, "{status:?}");
                    Err(status.message().to_owned())
                }
            },
            Door::Json => {
                let response = server.post_json(&render(request).to_string());
                if response.status == 400 {
                    return Err(response.body);
                }
                assert_eq!(response.header("content-type"), Some("application/json"));
                let answer = Self::of_json(&response.json());
                let status = if answer.overall == "OVER" { 429 } else { 200 };
                assert_eq!(response.status, status, "{}", response.body);
                Ok(answer)
            }
        }
    }

    fn of_grpc(response: Response) -> Self {
        assert!(response.raw_body.is_empty(), "raw_body is never set");
        assert!(response.request_headers_to_add.is_empty(), "request_headers_to_add is never set");
        let statuses = response.statuses.iter().map(|status| Status {
            code: code(status.code().as_str_name()),
            limit: status.current_limit.as_ref().map(|limit| Limit {
                requests: limit.requests_per_unit.into(),
                unit: Unit::try_from(limit.unit).expect("a unit of the proto").as_str_name().to_owned(),
                multiplier: limit.unit_multiplier.unwrap_or(1).into(),
                name: limit.name.clone(),
            }),
            remaining: status.limit_remaining.into(),
            reset_s: status.duration_until_reset.as_ref().map(|duration| {
                assert_eq!(duration.nanos, 0, "whole seconds");
                duration.seconds.try_into().expect("not negative")
            }),
        });
        Self {
            overall: code(Code::try_from(response.overall_code).expect("a code of the proto").as_str_name()),
            statuses: statuses.collect(),
            headers: response.response_headers_to_add.into_iter().map(|header| (header.key, header.value)).collect(),
            metadata: response.dynamic_metadata.map(of_struct),
        }
    }

    fn of_json(response: &Value) -> Self {
        let known = ["overallCode", "statuses", "responseHeadersToAdd", "dynamicMetadata"];
        let response = object(response, &known);
        let headers = list(response, "responseHeadersToAdd").iter().map(|header| {
            let header = object(header, &["key", "value"]);
            (text(header, "key"), text(header, "value"))
        });
        Self {
            overall: code(&text(response, "overallCode")),
            statuses: list(response, "statuses").iter().map(Status::of_json).collect(),
            headers: headers.collect(),
            metadata: response.get("dynamicMetadata").cloned(),
        }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| &**value)
    }
}

impl Status {
    fn of_json(status: &Value) -> Self {
        let status = object(status, &["code", "currentLimit", "limitRemaining", "durationUntilReset"]);
        let limit = status.get("currentLimit").map(|limit| {
            let limit = object(limit, &["requestsPerUnit", "unit", "name", "unitMultiplier"]);
            Limit {
                requests: number(limit, "requestsPerUnit").unwrap_or(0),
                unit: text(limit, "unit"),
                multiplier: number(limit, "unitMultiplier").unwrap_or(1),
                name: text(limit, "name"),
            }
        });
        let reset_s = status.get("durationUntilReset").map(|duration| {
            let seconds = duration.as_str().and_then(|text| text.strip_suffix('s')).and_then(|text| text.parse().ok());
            seconds.unwrap_or_else(|| panic!("{duration} is not like \"42s\""))
        });
        Self {
            code: code(&text(status, "code")),
            limit,
            remaining: number(status, "limitRemaining").unwrap_or(0),
            reset_s,
        }
    }
}

fn code(name: &str) -> String {
    match name {
        "OVER_LIMIT" => "OVER".to_owned(),
        name => name.to_owned(),
    }
}

/// The object, after making sure that it has no keys but these: what is zero or empty is left out.
fn object<'v>(value: &'v Value, known: &[&str]) -> &'v Map<String, Value> {
    let object = value.as_object().unwrap_or_else(|| panic!("{value} is not an object"));
    let unknown: Vec<_> = object.keys().filter(|key| !known.contains(&key.as_str())).collect();
    assert!(unknown.is_empty(), "{unknown:?} in {value}");
    object
}

fn text(object: &Map<String, Value>, key: &str) -> String {
    let text = object.get(key).map(|value| value.as_str().unwrap_or_else(|| panic!("{key}: {value} is no string")));
    text.unwrap_or_default().to_owned()
}

/// Numbers of 32 bits are JSON numbers; zero is left out.
fn number(object: &Map<String, Value>, key: &str) -> Option<u64> {
    let number = object.get(key)?.as_u64();
    let number = number.unwrap_or_else(|| panic!("{key}: {} is no number", object[key]));
    assert_ne!(number, 0, "{key} is 0 and should be left out");
    Some(number)
}

fn list<'o>(object: &'o Map<String, Value>, key: &str) -> &'o [Value] {
    object.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Protobuf's JSON of a request: camelCase, 64-bit numbers as strings, enums by name.
fn render(request: &Request) -> Value {
    let descriptors = request.descriptors.iter().map(|descriptor| {
        let entries = descriptor.entries.iter().map(|entry| json!({"key": entry.key, "value": entry.value}));
        let mut fields = Map::new();
        fields.insert("entries".to_owned(), entries.collect());
        if let Some(limit) = &descriptor.limit {
            let unit = limit.unit().as_str_name();
            let mut limit_fields = json!({"requestsPerUnit": limit.requests_per_unit, "unit": unit});
            if let Some(multiplier) = limit.unit_multiplier {
                limit_fields["unitMultiplier"] = multiplier.into();
            }
            fields.insert("limit".to_owned(), limit_fields);
        }
        if let Some(hits) = descriptor.hits_addend {
            fields.insert("hitsAddend".to_owned(), hits.to_string().into());
        }
        if descriptor.is_negative_hits {
            fields.insert("isNegativeHits".to_owned(), true.into());
        }
        Value::Object(fields)
    });
    let mut body = json!({"domain": request.domain, "descriptors": descriptors.collect::<Vec<_>>()});
    if request.hits_addend > 0 {
        body["hitsAddend"] = request.hits_addend.into();
    }
    body
}

fn of_struct(fields: prost_types::Struct) -> Value {
    Value::Object(fields.fields.into_iter().map(|(key, value)| (key, of_value(value))).collect())
}

fn of_value(value: prost_types::Value) -> Value {
    use prost_types::value::Kind;
    match value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::NumberValue(number)) => number.into(),
        Some(Kind::StringValue(text)) => text.into(),
        Some(Kind::BoolValue(truth)) => truth.into(),
        Some(Kind::StructValue(fields)) => of_struct(fields),
        Some(Kind::ListValue(list)) => list.values.into_iter().map(of_value).collect(),
    }
}
