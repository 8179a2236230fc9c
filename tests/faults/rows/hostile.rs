//! Descriptors that are written to be taken for one another: each has a counter of its own, whatever stands in it, and what is no text is
//! refused.

use std::collections::BTreeSet;

use prost::Message as _;
use serde_json::{Value, json};

use super::{sidecar, sluice};
use crate::{
    harness::{
        Server as Sluice,
        grpc::{Code, Descriptor, Override, OverrideUnit, Request, ask_bytes, descriptor, request},
        http,
    },
    servers::{REDIS, Server},
    sheet::Sheet,
    watch::{self, Watch},
};

/// Of every descriptor, by rule or by itself.
const LIMIT: u32 = 2;
/// Descriptors of a request.
const BATCH: usize = 200;

pub fn keys(sheet: &Sheet) {
    let memory = sluice(&rules(), &[]);
    let remembered = || memory.metric("sluice_store_entries");
    on_one_store(sheet, "hostile keys, memory", &memory, &remembered);

    let server = Server::start(REDIS);
    let redis = sidecar(&server, &rules(), &[("REDIS_TIMEOUT", "5s")]);
    let keys = || server.keys().len() as f64;
    on_one_store(sheet, "hostile keys, Redis", &redis, &keys);
    watch::clean(sheet, "hostile keys, Redis", &[&server]);
}

/// Domains that look alike where they are written into a key, one of them in partitions.
const DOMAINS: [&str; 6] = ["d", "d|a", "d%7Ca", "d}a", "{d}a", "d a"];

fn rules() -> String {
    // Not the same window as that of a limit that comes with a request, which would be the same counter.
    let limit = format!("rate_limit: {{unit: year, unit_multiplier: 2, requests_per_unit: {LIMIT}}}");
    let deeper = format!("{{key: b, {limit}, descriptors: [{{key: c, {limit}}}]}}");
    let document = |domain: &&str| {
        let partition = if *domain == "d" { "partition_by: [a]\n" } else { "" };
        format!("domain: '{domain}'\n{partition}descriptors: [{{key: a, {limit}, descriptors: [{deeper}]}}]\n")
    };
    DOMAINS.iter().map(document).collect::<Vec<_>>().join("---\n")
}

/// Somebody to be counted: a domain, entries, and whether the limit comes with the request, which frees the keys as well.
type Somebody = (&'static str, Vec<(String, String)>, bool);

fn texts() -> Vec<String> {
    let long = "x".repeat(64);
    // What stands in a key for a text of 65 bytes, written as a text.
    let hash = "32#8b4f5a5a64b4a7b7e7f0f7c0a6c8b2d1";
    let texts = [
        "",
        " ",
        "a",
        "A",
        "b",
        "ab",
        "a ",
        " a",
        "_",
        "a_b",
        ":",
        "1:a",
        "a1:b",
        "1:a1:b",
        "/",
        "f60/1:a",
        "{",
        "}",
        "{}",
        "{d}",
        "}{",
        "|",
        "d|a",
        "%",
        "%7B",
        "%00",
        "*",
        "a*",
        "#",
        hash,
        "\0",
        "a\0",
        "a\0b",
        "\n",
        "a\nb",
        "\r\n",
        "\t",
        "\u{e9}",
        "e\u{301}",
        "\u{feff}a",
        "\u{202e}a",
        "\u{fffd}",
        "\u{10ffff}",
        "null",
        "0",
        "00",
        "1e0",
        "\\u0000",
        "\"",
        "'",
        "\\",
        "$",
        "`id`",
        &long,
        &format!("{long}x"),
        &format!("{long}y"),
        &format!("{long}\0"),
    ];
    texts.map(str::to_owned).to_vec()
}

/// Lists of entries that would be the same text if they were joined, cut at every place.
fn cut_everywhere(text: &str) -> Vec<Vec<(String, String)>> {
    let borders: Vec<usize> = (0..=text.len()).filter(|at| text.is_char_boundary(*at)).collect();
    let mut lists = Vec::new();
    for (first, one) in borders.iter().enumerate() {
        lists.push(vec![(text[..*one].to_owned(), text[*one..].to_owned())]);
        for (second, two) in borders.iter().enumerate().skip(first) {
            for three in &borders[second..] {
                let (key, value) = (text[..*one].to_owned(), text[*one..*two].to_owned());
                lists.push(vec![(key, value), (text[*two..*three].to_owned(), text[*three..].to_owned())]);
            }
        }
    }
    lists
}

fn everybody() -> BTreeSet<Somebody> {
    let texts = texts();
    let mut all = BTreeSet::new();
    for key in &texts {
        for value in &texts {
            all.insert(("d", vec![(key.clone(), value.clone())], true));
            let (a, b) = (("a".to_owned(), key.clone()), ("b".to_owned(), value.clone()));
            all.insert(("d", vec![a, b], false));
        }
    }
    for text in ["1:a1:b1:c", "a_b_c_d", "{d}f1/", "a|b|", "\0\0\0\0", "2:ab2:", "\n1\n1", "ééé"] {
        all.extend(cut_everywhere(text).into_iter().map(|entries| ("d", entries, true)));
    }
    for domain in DOMAINS {
        for value in &texts {
            all.insert((domain, vec![("a".to_owned(), value.clone())], false));
            let far = [("a", value.as_str()), ("b", "1"), ("c", value)]
                .map(|(key, value)| (key.to_owned(), value.to_owned()));
            all.insert((domain, far.to_vec(), false));
        }
    }
    all
}

fn on_one_store(sheet: &Sheet, fault: &str, sluice: &Sluice, counters: &dyn Fn() -> f64) {
    let watch = Watch::begin([sluice]);
    let all: Vec<Somebody> = everybody().into_iter().collect();
    let left = |turn: u32| Some(LIMIT - turn);
    let mut wrong = 0;
    for (turn, door) in [over_grpc, over_json, over_grpc].into_iter().enumerate() {
        let expected = u32::try_from(turn + 1).ok().filter(|turn| *turn <= LIMIT).and_then(left);
        wrong += all
            .chunk_by(|one, other| one.0 == other.0)
            .flat_map(|of_domain| of_domain.chunks(BATCH))
            .map(|batch| {
                let seen = door(sluice, batch);
                let others = batch.iter().zip(&seen).filter(|(_, seen)| **seen != expected);
                others.clone().take(3).for_each(|(who, seen)| eprintln!("    turn {turn}: {who:?} has {seen:?}"));
                others.count() + batch.len().abs_diff(seen.len())
            })
            .sum::<usize>();
    }
    let figure = format!("of {} descriptors that look alike, answers of another counter than their own", all.len());
    sheet.count(fault, &figure, wrong, 0);
    let found = counters();
    sheet.judge(fault, "counters in the store", &found, &format!("= {}", all.len()), found == all.len() as f64);
    refused_or_counted(sheet, fault, sluice);
    no_text(sheet, fault, sluice);
    watch.end(sheet, fault);
}

fn question(batch: &[Somebody]) -> Request {
    let descriptors = batch.iter().map(|(_, entries, brings_limit)| {
        let entries: Vec<(&str, &str)> = entries.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let unit = OverrideUnit::Year.into();
        let limit = brings_limit.then_some(Override { requests_per_unit: LIMIT, unit, ..Override::default() });
        Descriptor { limit, ..descriptor(&entries) }
    });
    Request { domain: batch[0].0.to_owned(), descriptors: descriptors.collect(), hits_addend: 0 }
}

/// What everybody in the batch has left; `None` is for one who is refused.
fn over_grpc(sluice: &Sluice, batch: &[Somebody]) -> Vec<Option<u32>> {
    let response = sluice.ask(question(batch)).unwrap_or_else(|status| panic!("{status}: {batch:?}"));
    let is_ok = |code: i32| code == i32::from(Code::Ok);
    response.statuses.iter().map(|status| is_ok(status.code).then_some(status.limit_remaining)).collect()
}

fn over_json(sluice: &Sluice, batch: &[Somebody]) -> Vec<Option<u32>> {
    let descriptors = batch.iter().map(|(_, entries, brings_limit)| {
        let entries: Vec<Value> = entries.iter().map(|(key, value)| json!({"key": key, "value": value})).collect();
        match brings_limit {
            true => json!({"entries": entries, "limit": {"requestsPerUnit": LIMIT, "unit": "YEAR"}}),
            false => json!({"entries": entries}),
        }
    });
    let body = json!({"domain": batch[0].0, "descriptors": descriptors.collect::<Vec<_>>()});
    let answer = sluice.post_json(&body.to_string()).json();
    let statuses = answer["statuses"].as_array().cloned().unwrap_or_default();
    let left = |status: &Value| {
        let remaining = status["limitRemaining"].as_u64().unwrap_or(0);
        (status["code"] == "OK").then(|| u32::try_from(remaining).unwrap_or(u32::MAX))
    };
    statuses.iter().map(left).collect()
}

/// Texts that are large: two that differ in their last byte are two, or are refused as the caller's fault.
fn refused_or_counted(sheet: &Sheet, fault: &str, sluice: &Sluice) {
    let (mut wrong, mut refused) = (0, 0);
    for length in [60_000, 1_000_000, 1 << 20, 3_000_000] {
        for (key, value) in [(1, length), (length, 1)] {
            for last in ["a", "b"] {
                let who = vec![("k".repeat(key) + last, "v".repeat(value) + last)];
                let batch = [("d", who, true)];
                match sluice.ask(question(&batch)) {
                    Ok(response) => wrong += usize::from(response.statuses[0].limit_remaining != LIMIT - 1),
                    Err(status) if status.code() == tonic::Code::InvalidArgument => refused += 1,
                    Err(status) => {
                        eprintln!("    {length} bytes: {status}");
                        wrong += 1;
                    }
                }
                let (key, value) = &batch[0].1[0];
                let body = json!({"domain": "d", "descriptors": [{"entries": [{"key": key, "value": value}]}]});
                let status = sluice.post_json(&body.to_string()).status;
                wrong += usize::from(!matches!(status, 200 | 400 | 413));
            }
        }
    }
    let figure = format!("keys and values of 60 kB to 3 MB ({refused} of 16 refused): neither counted nor refused");
    sheet.count(fault, &figure, wrong, 0);
}

/// Bytes that are no text are refused, and not read as something else.
fn no_text(sheet: &Sheet, fault: &str, sluice: &Sluice) {
    const NONE: [&[u8]; 6] = [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xe2\x82", b"\xf4\x90\x80\x80", b"a\x80"];
    let mut wrong = 0;
    for bytes in NONE {
        let mark = "X".repeat(bytes.len());
        for asked in [request(&mark, &[("a", "1")]), request("d", &[(&mark, "1")]), request("d", &[("a", &mark)])] {
            let message = replace(&asked.encode_to_vec(), mark.as_bytes(), bytes);
            let code = ask_bytes(sluice.grpc(), &message).map_err(|status| status.code());
            wrong += usize::from(code != Err(tonic::Code::InvalidArgument));
        }
        let body = br#"{"domain": "d", "descriptors": [{"entries": [{"key": "a", "value": "X"}]}]}"#;
        let body = replace(body, b"X", bytes);
        wrong += usize::from(http::send(sluice.http(), "POST", "/json", "application/json", body).status != 400);
    }
    for half in [r"\ud800", r"\udc00", r"\ud800\ud800"] {
        let body = format!(r#"{{"domain": "d", "descriptors": [{{"entries": [{{"key": "a", "value": "{half}"}}]}}]}}"#);
        wrong += usize::from(sluice.post_json(&body).status != 400);
    }
    sheet.count(fault, "of 27 that are not UTF-8, by another answer than INVALID_ARGUMENT or 400", wrong, 0);
}

fn replace(bytes: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    let at = bytes.windows(old.len()).position(|window| window == old).expect("it is in there");
    [&bytes[..at], new, &bytes[at + old.len()..]].concat()
}
