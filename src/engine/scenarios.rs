//! Scenario tables: what counters answer, written so that a reader can check it by hand. Every store must pass them.
//!
//! A paragraph is a scenario, with counters of its own. It says which limits there are, then what is asked and answered:
//!
//! ```text
//! # token bucket, 2 per second, burst 3
//! rule a: token_bucket 2/second burst 3
//! at 0ms    a hits 3  -> ok    remaining 0
//! at 0ms    a hits 1  -> over  retry 500ms
//! at 500ms  a hits 1  -> ok    remaining 0
//! ```
//!
//! * `rule NAME: ALGORITHM RATE` and then, as needed, `& RATE`, `charge`, `spare`, `shadow`, `quota`, `denials`, `on NAME`
//!   (counts on the counter of that rule). A rate is `2/second`, `3/5 minutes`, with `burst N` where it has one.
//! * `at TIME CHECK, CHECK` where a check is `NAME hits N`, `NAME refund N` or `NAME look`; `a + b hits 1` chains two.
//! * `-> ok` or `-> over` is the verdict. Facts about a single check follow it: `remaining N`, `before N`, `reset TIME`,
//!   `retry TIME`, `retry never`, `retry now`, `rate N`, `denials N`. For several checks, or where a check says otherwise than
//!   the verdict, a colon and one `ok FACTS` or `over FACTS` for each: `-> over: ok remaining 4, over retry 1s`.
//!
//! Times count from an instant at which every window begins, from the second to the year. Only text and numbers in here:
//! whoever runs a scenario brings the store.

use std::{collections::HashMap, sync::Arc};

use super::{
    algorithm::{self, Check, Decision, Mode, Retry},
    quota::{Algorithm, OnOverLimit, Period, Quota, RateSpec, Unit},
    request::Hits,
};

/// A multiple of every unit, in 2011.
pub const START_US: u64 = 1_324_512_000_000_000;

#[derive(Debug)]
pub struct Scenario {
    /// Its first comment.
    pub title: String,
    pub steps: Vec<Step>,
}

/// One request and what it must be answered.
#[derive(Debug)]
pub struct Step {
    /// Its place in the text, from 1.
    pub line: usize,
    pub now_us: u64,
    pub checks: Vec<Check>,
    /// What the counters are called, by slot. Each scenario has names of its own.
    pub counters: Vec<String>,
    refused: bool,
    expected: Vec<Expected>,
}

#[derive(Debug)]
struct Expected {
    fits: bool,
    facts: Vec<Fact>,
}

#[derive(Debug)]
enum Fact {
    Remaining(u64),
    Before(u64),
    Reset(u64),
    Retry(Retry),
    Rate(usize),
    Denials(u64),
}

impl Step {
    /// Says what differs.
    pub fn verify(&self, decisions: &[Decision]) -> Result<(), String> {
        let differs = |what: String| Err(format!("line {}: {what} in {decisions:?}", self.line));
        if decisions.len() != self.checks.len() {
            return differs(format!("{} checks", self.checks.len()));
        }
        if algorithm::refuses(&self.checks, decisions) != self.refused {
            return differs(format!("expected {}", if self.refused { "over" } else { "ok" }));
        }
        for (expected, decision) in self.expected.iter().zip(decisions) {
            if expected.fits != decision.fits {
                return differs(format!("expected fits {}", expected.fits));
            }
            if let Some(fact) = expected.facts.iter().find(|fact| !fact.holds(decision)) {
                return differs(format!("expected {fact:?}"));
            }
        }
        Ok(())
    }
}

impl Fact {
    fn holds(&self, decision: &Decision) -> bool {
        match *self {
            Fact::Remaining(hits) => decision.remaining == hits,
            Fact::Before(hits) => decision.before == hits,
            Fact::Reset(us) => decision.reset_us == us,
            Fact::Retry(retry) => decision.retry == retry,
            Fact::Rate(index) => decision.rate == index,
            Fact::Denials(hits) => decision.denials == hits,
        }
    }
}

/// Reads all scenarios of a text, or says which line it does not understand.
pub fn parse(text: &str) -> Result<Vec<Scenario>, String> {
    let mut scenarios = Vec::new();
    let mut reader = Reader::new(0);
    for (index, line) in text.lines().chain([""]).enumerate() {
        let wrong = |what| format!("line {}: {what}: {line}", index + 1);
        let line = line.trim();
        if let Some(comment) = line.strip_prefix('#') {
            if reader.scenario.title.is_empty() {
                comment.trim().clone_into(&mut reader.scenario.title);
            }
        } else if let Some(rule) = line.strip_prefix("rule ") {
            reader.rule(rule).map_err(wrong)?;
        } else if let Some(step) = line.strip_prefix("at ") {
            let step = reader.step(index + 1, step).map_err(wrong)?;
            reader.scenario.steps.push(step);
        } else if line.is_empty() {
            let done = std::mem::replace(&mut reader, Reader::new(index + 1));
            if !done.scenario.steps.is_empty() {
                scenarios.push(done.scenario);
            }
        } else {
            return Err(wrong("neither `rule` nor `at` nor a comment".into()));
        }
    }
    Ok(scenarios)
}

/// A limit of a scenario.
struct Limit {
    quota: Arc<Quota>,
    mode: Mode,
    counter: String,
}

struct Reader {
    first_line: usize,
    limits: HashMap<String, Limit>,
    scenario: Scenario,
}

type Words<'t> = std::iter::Peekable<std::str::SplitWhitespace<'t>>;

impl Reader {
    fn new(first_line: usize) -> Self {
        let scenario = Scenario { title: String::new(), steps: Vec::new() };
        Self { first_line, limits: HashMap::new(), scenario }
    }

    fn rule(&mut self, text: &str) -> Result<(), String> {
        let (name, text) = text.split_once(':').ok_or("no colon")?;
        let words: &mut Words<'_> = &mut text.split_whitespace().peekable();
        let algorithm = word(words)?;
        let algorithm = Algorithm::from_name(algorithm).ok_or_else(|| format!("no algorithm {algorithm}"))?;
        let mut rates = vec![rate(words)?];
        let (mut over, mut mode, mut denials) = (OnOverLimit::default_of(algorithm), Mode::Enforce, false);
        let mut counter = format!("{}/{name}", self.first_line);
        while let Some(next) = words.next() {
            match next {
                "&" => rates.push(rate(words)?),
                "charge" => over = OnOverLimit::Charge,
                "spare" => over = OnOverLimit::Spare,
                "shadow" => mode = Mode::Shadow,
                "quota" => mode = Mode::Quota,
                "denials" => denials = true,
                "on" => counter = format!("{}/{}", self.first_line, word(words)?),
                other => return Err(format!("what is {other}")),
            }
        }
        let quota = Quota::try_new(algorithm, rates, over, denials).map_err(|invalid| invalid.to_string())?;
        self.limits.insert(name.to_owned(), Limit { quota: Arc::new(quota), mode, counter });
        Ok(())
    }

    fn step(&self, line: usize, text: &str) -> Result<Step, String> {
        let (asked, answered) = text.split_once("->").ok_or("no ->")?;
        let (at, asked) = asked.split_once(' ').ok_or("no check")?;
        let now_us = START_US + micros(at)?;
        let (mut checks, mut counters) = (Vec::new(), Vec::new());
        for check in asked.split(',') {
            let place = hits_place(check);
            let hits = hits(check[place..].trim())?;
            for (index, name) in check[..place].split('+').map(str::trim).enumerate() {
                let limit = self.limits.get(name).ok_or_else(|| format!("no rule {name}"))?;
                let known = counters.iter().position(|counter| *counter == limit.counter);
                let slot = known.unwrap_or_else(|| {
                    counters.push(limit.counter.clone());
                    counters.len() - 1
                });
                let quota = limit.quota.clone();
                checks.push(Check { quota, slot, hits, mode: limit.mode, chained: index > 0 });
            }
        }
        let (refused, mut expected) = answer(answered)?;
        if let [only] = &expected[..]
            && only.facts.is_empty()
            && checks.len() > 1
        {
            // The verdict alone.
            expected.clear();
        } else if expected.len() != checks.len() {
            return Err(format!("{} checks, {} answers", checks.len(), expected.len()));
        }
        Ok(Step { line, now_us, checks, counters, refused, expected })
    }
}

/// Where `hits`, `refund` or `look` begins.
fn hits_place(check: &str) -> usize {
    [" hits ", " refund ", " look"].iter().filter_map(|word| check.find(word)).min().unwrap_or(check.len())
}

fn hits(text: &str) -> Result<Hits, String> {
    match text.split_once(' ') {
        Some(("hits", hits)) => Ok(Hits::take(number(hits)?)),
        Some(("refund", hits)) => Ok(Hits::refund(number(hits)?)),
        _ if text == "look" => Ok(Hits::Take(0)),
        _ => Err(format!("expected hits, refund or look, not `{text}`")),
    }
}

fn rate(words: &mut Words<'_>) -> Result<RateSpec, String> {
    let (requests, unit) = word(words)?.split_once('/').ok_or("a rate is 2/second")?;
    let (multiplier, unit) = match number(unit) {
        Ok(multiplier) => (multiplier, word(words)?.trim_end_matches('s')),
        Err(_) => (1, unit),
    };
    let unit = Unit::from_name(unit).ok_or_else(|| format!("no unit {unit}"))?;
    let multiplier = u32::try_from(multiplier).map_err(|error| error.to_string())?;
    let burst = match words.next_if_eq(&"burst") {
        Some(_) => Some(u32::try_from(number(word(words)?)?).map_err(|error| error.to_string())?),
        None => None,
    };
    Ok(RateSpec {
        requests: u32::try_from(number(requests)?).map_err(|error| error.to_string())?,
        period: Period::try_new(unit, multiplier).map_err(|invalid| invalid.to_string())?,
        burst,
        name: None,
    })
}

/// The verdict, and what is expected of the checks.
fn answer(text: &str) -> Result<(bool, Vec<Expected>), String> {
    if let Some((verdict, checks)) = text.split_once(':') {
        let refused = !fits(verdict.trim())?;
        return Ok((refused, checks.split(',').map(expected).collect::<Result<_, _>>()?));
    }
    let expected = expected(text)?;
    Ok((!expected.fits, vec![expected]))
}

fn expected(text: &str) -> Result<Expected, String> {
    let words: &mut Words<'_> = &mut text.split_whitespace().peekable();
    let mut expected = Expected { fits: fits(word(words)?)?, facts: Vec::new() };
    while let Some(name) = words.next() {
        let value = word(words)?;
        expected.facts.push(match name {
            "remaining" => Fact::Remaining(number(value)?),
            "before" => Fact::Before(number(value)?),
            "reset" => Fact::Reset(micros(value)?),
            "retry" if value == "never" => Fact::Retry(Retry::Never),
            "retry" if value == "now" => Fact::Retry(Retry::Now),
            "retry" => Fact::Retry(Retry::After(micros(value)?)),
            "rate" => Fact::Rate(usize::try_from(number(value)?).map_err(|error| error.to_string())?),
            "denials" => Fact::Denials(number(value)?),
            other => return Err(format!("no fact {other}")),
        });
    }
    Ok(expected)
}

fn fits(text: &str) -> Result<bool, String> {
    match text {
        "ok" => Ok(true),
        "over" => Ok(false),
        other => Err(format!("expected ok or over, not `{other}`")),
    }
}

fn word<'t>(words: &mut Words<'t>) -> Result<&'t str, String> {
    words.next().ok_or_else(|| "a word is missing at the end".into())
}

fn number(text: &str) -> Result<u64, String> {
    text.replace('_', "").parse().map_err(|_| format!("`{text}` is no number"))
}

/// `1m30s`, `500ms`, `1us`, `30d`.
fn micros(text: &str) -> Result<u64, String> {
    let mut total_us = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits =
            rest.find(|c: char| !c.is_ascii_digit() && c != '_').ok_or_else(|| format!("`{text}` has no unit"))?;
        let end = rest[digits..].find(|c: char| c.is_ascii_digit()).map_or(rest.len(), |length| digits + length);
        let unit_us = match &rest[digits..end] {
            "us" => 1,
            "ms" => 1_000,
            "s" => 1_000_000,
            "m" => 60_000_000,
            "h" => 3_600_000_000,
            "d" => 86_400_000_000,
            other => return Err(format!("no unit of time `{other}`")),
        };
        total_us += number(&rest[..digits])? * unit_us;
        rest = &rest[end..];
    }
    Ok(total_us)
}
