//! Rules that change all the time while callers ask, in every way in which files change: nobody waits, good rules are soon in force, bad
//! ones never, and what did not change has kept its counters.

use std::{
    fs,
    io::{Seek as _, Write as _},
    os::unix::fs::symlink,
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::other_than;
use crate::{
    harness::{
        Server as Sluice,
        grpc::request,
        load::{Call, Load, Outcome, Style, p99},
        wait::holds_within,
        wait_until,
    },
    sheet::{Sheet, millis, shown},
    watch::Watch,
};

const KEPT: u32 = 4_000_000_000;
/// The limit of the rule that changes is this and the version.
const FIRST: u64 = 1_000;
/// Nobody waits longer.
const PAUSE: Duration = millis(20);
const HOUR: Duration = Duration::from_secs(3_600);
const APPLIED: Duration = millis(2_000);
/// Ten swaps a second.
const BEAT: Duration = millis(100);
/// Longer than a change must rest before it is read.
const RESTS: Duration = millis(400);
const OTHER: &str = "rate_limit: {unit: day, requests_per_unit: 5}";
/// With a rule that there cannot be.
const WRONG: &str = "rate_limit: {unit: fortnight, requests_per_unit: 5}";
/// The version of rules that must never be in force.
const NEVER: u64 = 500_000;

/// Good rules that were written: their version, and when.
type Change = (u64, Instant);
/// The limit that was in force, and when.
type Look = (Option<u64>, Instant);

pub fn under_load(sheet: &Sheet) {
    let others = &Others::of(sheet);
    let in_place = |sluice: &Sluice, text: &str| sluice.write("rules.yaml", text);
    one_way(
        sheet,
        others,
        &Way { fault: "rules written in place", part: "in-place", put: &in_place, is_in_place: true },
        |_| {},
    );

    let swaps = AtomicUsize::new(0);
    let publish = |dir: &Path, text: &str| publish(dir, text, swaps.fetch_add(1, Ordering::Relaxed));
    let by_link = |sluice: &Sluice, text: &str| publish(sluice.dir(), text);
    let way = Way { fault: "rules swapped by symlink", part: "symlink", put: &by_link, is_in_place: false };
    one_way(sheet, others, &way, |dir| {
        publish(dir, &rules(&others.good, 0));
        fs::remove_file(dir.join("rules.yaml")).expect("is there");
        symlink("..data/rules.yaml", dir.join("rules.yaml")).expect("linked");
    });
}

/// Rules beside the two that are asked for, so many that reading them is work. Made once: this is not what is measured.
struct Others {
    good: String,
    wrong: String,
}

impl Others {
    fn of(sheet: &Sheet) -> Self {
        let count = if sheet.is_full() { 5_000 } else { 100 };
        let all = |limit: &str| {
            (0..count).map(|number| format!("      - {{key: other, value: v{number}, {limit}}}\n")).collect()
        };
        Self { good: all(OTHER), wrong: all(WRONG) }
    }
}

fn rules(others: &str, version: u64) -> String {
    format!(
        "domain: d\ndescriptors:\n  - {{key: kept, rate_limit: {{unit: year, requests_per_unit: {KEPT}}}}}\n  - {{key: \
         moved, rate_limit: {{unit: year, requests_per_unit: {}}}}}\n  - key: others\n    descriptors:\n{others}",
        FIRST + version
    )
}

/// As Kubernetes does it: the files are links into `..data`, which is a link to a directory that is made anew.
fn publish(dir: &Path, text: &str, number: usize) {
    let version = format!("..version_{number}");
    fs::create_dir(dir.join(&version)).expect("made");
    fs::write(dir.join(&version).join("rules.yaml"), text).expect("written");
    symlink(&version, dir.join("..data_tmp")).expect("linked");
    let old = fs::read_link(dir.join("..data"));
    fs::rename(dir.join("..data_tmp"), dir.join("..data")).expect("renamed");
    if let Ok(old) = old {
        fs::remove_dir_all(dir.join(old)).expect("removed");
    }
}

/// How rules come to where they are read.
struct Way<'w> {
    fault: &'static str,
    part: &'static str,
    put: &'w dyn Fn(&Sluice, &str),
    /// Whether a writer can be seen in the midst of it.
    is_in_place: bool,
}

fn one_way(sheet: &Sheet, others: &Others, way: &Way<'_>, prepare: impl FnOnce(&Path)) {
    let Way { fault, part, put, is_in_place } = *way;
    let sluice = Sluice::builder().file("rules.yaml", &rules(&others.good, 0)).prepare(prepare).start();
    let watch = Watch::begin([&sluice]);
    let pause = if sheet.is_full() { millis(8) } else { millis(40) };
    let style = Style { callers_of_each: 8, pause: Some(pause), deadline: None };
    let load = Load::start(&[sluice.grpc()], &style, |_, _| request("d", &[("kept", "one")]));
    load.wait_for_calls(100);
    sheet.run(&load, sheet.span(5.0, 0.2));
    let began = Instant::now();
    let (looks, done) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let put = |text: &str| put(&sluice, text);
    let changes = thread::scope(|scope| {
        scope.spawn(|| {
            holds_within(HOUR, || {
                looks.lock().expect("nobody panics").push((limit(&sluice), Instant::now()));
                done.load(Ordering::Relaxed)
            })
        });
        let torn = is_in_place.then(|| sluice.path("rules.yaml"));
        let changes = change(sheet, fault, others, &load, &put, torn.as_deref());
        let last = changes.last().map(|(version, _)| FIRST + version);
        wait_until("the last rules are in force", || limit(&sluice) == last);
        done.store(true, Ordering::Relaxed);
        changes
    });
    let calls = sheet.record(load, part);
    judge_waits(sheet, fault, &calls, began);
    judge(sheet, fault, &calls, &changes, &looks.into_inner().expect("nobody panics"));
    let counted = u64::from(KEPT) - look(&sluice, "kept")["limitRemaining"].as_u64().unwrap_or(0);
    let lost = counted.abs_diff(calls.len() as u64);
    sheet.judge(fault, "hits that the unchanged rule's counter has lost", &lost, "0", lost == 0);
    let applied = sluice.metric(r#"sluice_reloads_total{result="applied"}"#);
    let failed = sluice.metric(r#"sluice_reloads_total{result="failed"}"#);
    let figure = format!("{} changes: times applied and refused", changes.len());
    sheet.judge(fault, &figure, &format!("{applied} and {failed}"), ">= 3 and 2", applied >= 3.0 && failed >= 2.0);
    watch.end_but_log(sheet, fault);
}

/// What a look says of a rule.
fn look(sluice: &Sluice, key: &str) -> Value {
    let entries = format!(r#"[{{"key": "{key}", "value": "one"}}]"#);
    let question = format!(r#"{{"domain": "d", "descriptors": [{{"entries": {entries}, "hitsAddend": "0"}}]}}"#);
    sluice.post_json(&question).json()["statuses"][0].take()
}

/// The limit in force, which names the version; none without rules.
fn limit(sluice: &Sluice) -> Option<u64> {
    look(sluice, "moved")["currentLimit"]["requestsPerUnit"].as_u64()
}

/// Good rules ten times a second, halves of files, and rules that are wrong ten times a second.
fn change(
    sheet: &Sheet,
    fault: &str,
    others: &Others,
    load: &Load,
    put: &dyn Fn(&str),
    torn: Option<&Path>,
) -> Vec<Change> {
    let mut changes: Vec<Change> = Vec::new();
    let good = |changes: &mut Vec<Change>| {
        let version = changes.len() as u64 + 1;
        let text = rules(&others.good, version);
        changes.push((version, Instant::now()));
        put(&text);
    };
    let beats = if sheet.is_full() { 100 } else { 12 };
    sheet.step(&format!("{fault}: ten times a second"));
    for _ in 0..beats {
        good(&mut changes);
        sheet.run(load, BEAT);
    }
    sheet.step(&format!("{fault}: half of a file, then all of it"));
    for _ in 0..if sheet.is_full() { 10 } else { 2 } {
        let text = rules(&others.good, NEVER);
        put(&text[..text.len() / 2]);
        sheet.run(load, RESTS);
        good(&mut changes);
        sheet.run(load, RESTS);
    }
    if let Some(file) = torn {
        sheet.step(&format!("{fault}: a writer who rests between two lines"));
        for _ in 0..if sheet.is_full() { 10 } else { 2 } {
            write_torn(file, &rules(&others.good, NEVER), &|| sheet.run(load, RESTS), || {
                let version = changes.len() as u64 + 1;
                changes.push((version, Instant::now()));
                rules(&others.good, version)
            });
            sheet.run(load, RESTS);
        }
    }
    sheet.step(&format!("{fault}: wrong rules ten times a second"));
    for turn in 0..beats {
        put(&rules(&others.wrong, NEVER + turn));
        sheet.run(load, BEAT);
    }
    sheet.run(load, RESTS);
    good(&mut changes);
    changes
}

/// Writes half of the first text, up to the end of a line, so that it is good YAML; rests, with the file open; and then writes the
/// second in its place.
fn write_torn(file: &Path, first: &str, rest: &dyn Fn(), second: impl FnOnce() -> String) {
    let cut = first[..first.len() / 2].rfind('\n').expect("there are many lines") + 1;
    let mut file = fs::File::create(file).expect("can be written");
    file.write_all(&first.as_bytes()[..cut]).expect("can be written");
    rest();
    let second = second();
    file.set_len(0).expect("can be cut");
    file.rewind().expect("can be rewound");
    file.write_all(second.as_bytes()).expect("can be written");
}

/// Beside those of the time before, which a busy machine makes long by itself.
fn judge_waits(sheet: &Sheet, fault: &str, calls: &[Call], began: Instant) {
    let (calm, changing): (Vec<&Call>, Vec<&Call>) = calls.iter().partition(|call| call.answered < began);
    let longest = |calls: &[&Call]| calls.iter().map(|call| call.took()).max().unwrap_or_default();
    let p99 = |calls: &[&Call]| shown(p99(calls.iter().copied()));
    sheet.step(&format!("{fault}: p99 {}, {} before", p99(&changing), p99(&calm)));
    let figure = format!("longest wait of a caller ({} before)", shown(longest(&calm)));
    sheet.at_most(fault, &figure, longest(&changing), PAUSE);
}

fn judge(sheet: &Sheet, fault: &str, calls: &[Call], changes: &[Change], looks: &[Look]) {
    let wrong = other_than(calls, &[Outcome::Ok]);
    sheet.count(fault, &format!("of {} calls failed", calls.len()), wrong, 0);
    let last = changes.last().map_or(0, |(version, _)| *version);
    let mut before = FIRST;
    let bad = looks.iter().filter(|(limit, _)| {
        let is_bad = limit.is_none_or(|limit| limit < before || limit > FIRST + last);
        before = limit.unwrap_or(before);
        is_bad
    });
    sheet.count(fault, &format!("of {} looks at rules that are bad, old or gone", looks.len()), bad.count(), 0);
    let applied = changes.iter().map(|(version, written)| {
        let seen = looks.iter().find(|(limit, _)| limit.is_some_and(|limit| limit >= FIRST + version));
        seen.map_or(Duration::MAX, |(_, seen)| seen.saturating_duration_since(*written))
    });
    sheet.at_most(fault, "good rules in force after", applied.max().unwrap_or_default(), APPLIED);
}
