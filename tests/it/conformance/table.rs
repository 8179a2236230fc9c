//! Reads the tables and compares answers with them. The format is in `tests/conformance/README.md`.

use serde_json::Value;

use super::answer::{Answer, Limit, Status};
use crate::harness::grpc::{Code, Descriptor, Entry, Override, Request};

pub struct Table {
    pub file: String,
    pub env: Vec<(String, String)>,
    pub rules: Vec<String>,
    pub cases: Vec<Case>,
}

pub struct Case {
    pub name: String,
    pub steps: Vec<Step>,
}

pub struct Step {
    pub line: usize,
    pub text: String,
    pub request: Request,
    pub expected: Expected,
}

#[derive(Default)]
pub struct Expected {
    /// The request is malformed, and the sentence has this in it.
    invalid: Option<String>,
    overall: String,
    statuses: Vec<ExpectedStatus>,
    headers: Vec<(String, ExpectedHeader)>,
    metadata: Option<Value>,
}

enum ExpectedHeader {
    Absent,
    Present,
    Is(String),
}

#[derive(Default)]
struct ExpectedStatus {
    code: String,
    /// No limit, with this remaining.
    free: Option<u64>,
    left: Option<u64>,
    limit: Option<Limit>,
    /// Empty: the limit has no name.
    name: Option<String>,
    wait_s: Option<(u64, u64)>,
}

impl Table {
    pub fn parse(file: &str, text: &str) -> Self {
        let mut table = Self { file: file.to_owned(), env: Vec::new(), rules: Vec::new(), cases: Vec::new() };
        let mut in_rules = false;
        for (index, line) in text.lines().enumerate() {
            let place = || format!("{file}:{}: {line}", index + 1);
            if in_rules && (line.starts_with("  ") || line.trim().is_empty()) {
                let rules = table.rules.last_mut().expect("rules have begun");
                rules.push_str(line.get(2..).unwrap_or_default());
                rules.push('\n');
                continue;
            }
            in_rules = false;
            let trimmed = line.trim();
            let (word, rest) = trimmed.split_once(' ').unwrap_or((trimmed, ""));
            match word {
                "" | "#" => {}
                "env" => {
                    let (name, value) = rest.split_once('=').unwrap_or_else(|| panic!("{}: no `=`", place()));
                    table.env.push((name.to_owned(), value.to_owned()));
                }
                "rules" => {
                    table.rules.push(String::new());
                    in_rules = true;
                }
                "case" => table.cases.push(Case { name: rest.to_owned(), steps: Vec::new() }),
                _ => {
                    let case = table.cases.last_mut().unwrap_or_else(|| panic!("{}: not in a case", place()));
                    case.line(index + 1, word, rest).unwrap_or_else(|why| panic!("{}: {why}", place()));
                }
            }
        }
        table
    }
}

impl Case {
    fn line(&mut self, line: usize, word: &str, rest: &str) -> Result<(), String> {
        if let "ask" | "again" = word {
            let (asked, expected) = rest.split_once("->").ok_or("no `->`")?;
            let request = match (word, self.steps.last()) {
                ("ask", _) => parse_request(&tokens(asked)?)?,
                (_, Some(before)) => before.request.clone(),
                (_, None) => return Err("nothing was asked before".to_owned()),
            };
            let expected = Expected::parse(&tokens(expected)?)?;
            if expected.invalid.is_none() && expected.statuses.len() != request.descriptors.len() {
                return Err("as many statuses as descriptors are needed".to_owned());
            }
            self.steps.push(Step { line, text: format!("{word} {rest}"), request, expected });
            return Ok(());
        }
        let expected = &mut self.steps.last_mut().ok_or("nothing was asked before")?.expected;
        let (name, value) = rest.split_once(' ').unwrap_or((rest, ""));
        match (word, value) {
            ("header", "") => expected.headers.push((name.to_owned(), ExpectedHeader::Present)),
            ("header", value) => expected.headers.push((name.to_owned(), ExpectedHeader::Is(value.to_owned()))),
            ("no-header", _) => expected.headers.push((name.to_owned(), ExpectedHeader::Absent)),
            ("metadata", _) => expected.metadata = Some(serde_json::from_str(rest).map_err(|error| error.to_string())?),
            _ => return Err(format!("`{word}` is not known")),
        }
        Ok(())
    }
}

/// Words, between which spaces stand; what is in double quotes is one word, with JSON's escapes.
fn tokens(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut rest = text.trim();
    let mut begun = false;
    while let Some(next) = rest.chars().next() {
        if next == '"' {
            let mut quoted = serde_json::Deserializer::from_str(rest).into_iter::<String>();
            word.push_str(&quoted.next().ok_or("an open quote")?.map_err(|error| error.to_string())?);
            rest = &rest[quoted.byte_offset()..];
            begun = true;
            continue;
        }
        if next.is_whitespace() {
            if begun {
                words.push(std::mem::take(&mut word));
            }
            begun = false;
        } else {
            word.push(next);
            begun = true;
        }
        rest = &rest[next.len_utf8()..];
    }
    if begun {
        words.push(word);
    }
    Ok(words)
}

fn parse_request(words: &[String]) -> Result<Request, String> {
    let (domain, mut rest) = words.split_first().ok_or("no domain")?;
    let mut request = Request { domain: domain.clone(), ..Request::default() };
    if let Some(hits) = rest.first().and_then(|word| word.strip_prefix("all-hits:")) {
        request.hits_addend = parse_number(hits)?;
        rest = &rest[1..];
    }
    if !rest.is_empty() {
        let descriptors = rest.split(|word| word == ";").map(parse_descriptor);
        request.descriptors = descriptors.collect::<Result<_, _>>()?;
    }
    Ok(request)
}

fn parse_descriptor(words: &[String]) -> Result<Descriptor, String> {
    let mut descriptor = Descriptor::default();
    for word in words {
        if let Some((key, value)) = word.split_once('=') {
            descriptor.entries.push(Entry { key: key.to_owned(), value: value.to_owned() });
            continue;
        }
        match word.split_once(':') {
            Some(("hits", hits)) => descriptor.hits_addend = Some(parse_number(hits)?),
            Some(("refund", hits)) => {
                descriptor.hits_addend = Some(parse_number(hits)?);
                descriptor.is_negative_hits = true;
            }
            Some(("limit", limit)) => descriptor.limit = Some(parse_override(limit)?),
            None if word == "refund" => descriptor.is_negative_hits = true,
            None if word == "empty" => {}
            _ => return Err(format!("`{word}` is neither an entry nor an option")),
        }
    }
    Ok(descriptor)
}

fn parse_override(text: &str) -> Result<Override, String> {
    use crate::harness::grpc::OverrideUnit;
    let limit = parse_limit(text)?;
    let unit = OverrideUnit::from_str_name(&limit.unit).ok_or_else(|| format!("no override unit {}", limit.unit))?;
    Ok(Override {
        requests_per_unit: u32::try_from(limit.requests).map_err(|error| error.to_string())?,
        unit: unit.into(),
        unit_multiplier: (limit.multiplier != 1).then_some(u32::try_from(limit.multiplier).unwrap_or(u32::MAX)),
    })
}

/// `2/HOUR`, `2/5xMINUTE`.
fn parse_limit(text: &str) -> Result<Limit, String> {
    let (requests, period) = text.split_once('/').ok_or_else(|| format!("no `/` in {text}"))?;
    let (multiplier, unit) = period.split_once('x').unwrap_or(("1", period));
    let (requests, multiplier) = (parse_number(requests)?, parse_number(multiplier)?);
    Ok(Limit { requests, unit: unit.to_owned(), multiplier, name: String::new() })
}

fn parse_number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text} is no number"))
}

impl Expected {
    fn parse(words: &[String]) -> Result<Self, String> {
        let mut expected = Self::default();
        let (first, mut rest) = words.split_first().ok_or("nothing is expected")?;
        if first == "invalid" {
            expected.invalid = Some(rest.join(" "));
            return Ok(expected);
        }
        if let Some(overall) = first.strip_suffix(':') {
            overall.clone_into(&mut expected.overall);
        } else {
            expected.overall.clone_from(first);
            rest = words;
        }
        let statuses = rest.split(|word| word == ";").map(ExpectedStatus::parse);
        expected.statuses = statuses.collect::<Result<_, _>>()?;
        if !first.ends_with(':') && expected.statuses.len() > 1 {
            return Err("several statuses need an overall code before them, with a colon".to_owned());
        }
        Ok(expected)
    }

    pub fn compare_refusal(&self, sentence: &str) -> Result<(), String> {
        match &self.invalid {
            Some(part) if sentence.contains(part.as_str()) && sentence.trim() != part => Ok(()),
            Some(part) => Err(format!("turned away with a sentence that does not name {part}: {sentence}")),
            None => Err(format!("turned away: {sentence}")),
        }
    }

    pub fn compare(&self, answer: &Answer) -> Result<(), String> {
        let fail = |what: &str| Err(format!("{what}: {answer:?}"));
        if self.invalid.is_some() {
            return fail("should have been turned away");
        }
        if self.overall != answer.overall {
            return fail(&format!("overall is {}, not {}", answer.overall, self.overall));
        }
        if self.statuses.len() != answer.statuses.len() {
            return fail("another number of statuses");
        }
        for (index, (expected, status)) in self.statuses.iter().zip(&answer.statuses).enumerate() {
            expected.compare(status).or_else(|what| fail(&format!("status {index}: {what}")))?;
        }
        for (name, expected) in &self.headers {
            match (expected, answer.header(name)) {
                (ExpectedHeader::Absent, None) | (ExpectedHeader::Present, Some(_)) => {}
                (ExpectedHeader::Is(expected), Some(value)) if expected == value => {}
                (_, value) => return fail(&format!("header {name} is {value:?}")),
            }
        }
        match (&self.metadata, &answer.metadata) {
            (None, _) | (Some(Value::Null), None) => Ok(()),
            (Some(expected), Some(metadata)) if same(expected, metadata) => Ok(()),
            (Some(expected), metadata) => fail(&format!("metadata is {metadata:?}, not {expected}")),
        }
    }
}

impl ExpectedStatus {
    fn parse(words: &[String]) -> Result<Self, String> {
        let (code, rest) = words.split_first().ok_or("a status needs a code")?;
        if Code::from_str_name(code).is_none() && code != "OVER" {
            return Err(format!("{code} is no code"));
        }
        let mut expected = Self { code: code.clone(), ..Self::default() };
        let mut rest = rest.iter();
        while let Some(word) = rest.next() {
            match word.as_str() {
                "free" => expected.free = Some(0),
                "unlimited" => expected.free = Some(u32::MAX.into()),
                "unnamed" => expected.name = Some(String::new()),
                word => {
                    let value = rest.next().ok_or_else(|| format!("`{word}` needs a value"))?;
                    match word {
                        "left" => expected.left = Some(parse_number(value)?),
                        "of" => expected.limit = Some(parse_limit(value)?),
                        "named" => expected.name = Some(value.clone()),
                        "wait" => {
                            let (from, to) = value.split_once("..").ok_or("wait needs `from..to`")?;
                            expected.wait_s = Some((parse_number(from)?, parse_number(to)?));
                        }
                        _ => return Err(format!("`{word}` is not known")),
                    }
                }
            }
        }
        Ok(expected)
    }

    fn compare(&self, status: &Status) -> Result<(), String> {
        let expect = |holds: bool, what: &str| if holds { Ok(()) } else { Err(what.to_owned()) };
        expect(self.code == status.code, "another code")?;
        if let Some(remaining) = self.free {
            expect(status.limit.is_none(), "there is a limit")?;
            expect(status.reset_s.is_none(), "there is a reset")?;
            return expect(status.remaining == remaining, "another remaining");
        }
        let limit = status.limit.as_ref().ok_or("there is no limit")?;
        let reset_s = status.reset_s.ok_or("there is no reset")?;
        expect(reset_s >= 1, "the reset is 0")?;
        expect(self.left.is_none_or(|left| left == status.remaining), "another remaining")?;
        expect(self.name.as_ref().is_none_or(|name| *name == limit.name), "another name")?;
        let unnamed = Limit { name: String::new(), ..limit.clone() };
        expect(self.limit.as_ref().is_none_or(|expected| *expected == unnamed), "another limit")?;
        expect(self.wait_s.is_none_or(|(from, to)| (from..=to).contains(&reset_s)), "another reset")
    }
}

/// Equal, where 1 and 1.0 are the same number: a protobuf Struct knows only doubles.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            let equal = |(key, value): (&String, &Value)| other.get(key).is_some_and(|other| same(value, other));
            one.len() == other.len() && one.iter().all(equal)
        }
        _ => one == other,
    }
}
