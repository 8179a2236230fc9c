//! Clocks that are wrong: the store's jumps an hour ahead and back, and those of the sidecars differ by an hour. By libfaketime.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use super::{Bucket, other_than, sluice};
use crate::{
    harness::{
        Server as Sluice,
        grpc::request,
        load::{Call, Load, Outcome, Style},
        wait::{DEADLINE, holds_within},
    },
    oracle::History,
    servers::{REDIS, Server},
    sheet::Sheet,
    watch::{self, Watch},
};

const AN_HOUR: i64 = 3_600;
/// It takes a second to fill.
const BUCKET: Bucket = Bucket { capacity: 40.0, per_second: 40.0 };
/// Each of them gives more within two seconds of any time: a bucket that was empty, a window, a window that slides.
const KEYS: [(&str, Duration); 3] =
    [("bucket", Duration::from_secs(1)), ("fixed", Duration::from_secs(1)), ("sliding", Duration::from_secs(2))];
/// What callers may notice of it because they ask only now and then.
const GRAIN: Duration = Duration::from_millis(250);

fn rules() -> String {
    // Windows that charged refused requests would refuse who asks all the time, whatever the clock says.
    let window = |algorithm: &str| {
        let rate = "unit: second, requests_per_unit: 40, on_over_limit: spare";
        format!("{{algorithm: {algorithm}, {rate}}}")
    };
    let limits = [BUCKET.rule(""), window("fixed_window"), window("sliding_window")];
    let rule = |((key, _), limit): (&(&str, Duration), &String)| format!("  - {{key: {key}, rate_limit: {limit}}}\n");
    format!("domain: d\ndescriptors:\n{}", KEYS.iter().zip(&limits).map(rule).collect::<String>())
}

/// The clock of one process, which can be set while it runs.
struct Clock {
    dir: TempDir,
}

impl Clock {
    fn new() -> Self {
        let clock = Self { dir: TempDir::new().expect("there is room for a directory") };
        clock.set(0);
        clock
    }

    /// So many seconds off.
    fn set(&self, offset_s: i64) {
        let (new, file) = (self.dir.path().join("new"), self.file());
        fs::write(&new, format!("{offset_s:+}\n")).and_then(|()| fs::rename(new, file)).expect("the clock can be set");
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("offset")
    }

    fn env(&self) -> Vec<(&'static str, String)> {
        let file = self.file().display().to_string();
        let own = [("FAKETIME_TIMESTAMP_FILE", file), ("FAKETIME_NO_CACHE", "1".to_owned())];
        own.into_iter().chain(faked()).collect()
    }

    /// A program that runs another by this clock.
    fn wrapper(&self, binary: &str) -> String {
        let path = self.dir.path().join(binary);
        let env: String = self.env().iter().map(|(name, value)| format!("{name}='{value}' ")).collect();
        fs::write(&path, format!("#!/bin/sh\nexec env {env} {binary} \"$@\"\n")).expect("a script can be written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it can be made to run");
        path.display().to_string()
    }
}

fn faked() -> [(&'static str, String); 2] {
    [
        // With the allocator of the C library, because that of Redis asks for the time before there is a clock, and waits for ever.
        ("LD_PRELOAD", format!("{}:libc.so.6", library())),
        // Only what the clock on the wall says: waiting takes as long as ever.
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
    ]
}

fn library() -> String {
    let places = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let found = places.map(|place| place.path().join("faketime/libfaketimeMT.so.1")).find(|path| path.exists());
    found.expect("libfaketime is not here: tests/run installs what tests need").display().to_string()
}

pub fn jumps(sheet: &Sheet) {
    let clock = Clock::new();
    let server = Server::start(&clock.wrapper(REDIS));
    let sidecars = [0, AN_HOUR, -AN_HOUR].map(|offset_s| by_clock(&server, offset_s));
    let watch = Watch::begin(&sidecars);
    for (turn, (fault, from, to)) in [
        ("sidecars an hour apart", 0, 0),
        ("the store's clock an hour ahead", 0, AN_HOUR),
        ("the store's clock an hour back", AN_HOUR, 0),
    ]
    .into_iter()
    .enumerate()
    {
        clock.set(from);
        let told: i64 = server.run::<(i64, i64)>(&["TIME"]).0;
        jump(sheet, fault, turn, &sidecars, || clock.set(to));
        let moved = server.run::<(i64, i64)>(&["TIME"]).0 - told;
        let wanted = to - from;
        sheet.judge(
            fault,
            "the clock moved",
            &format!("{moved} s"),
            &format!("{wanted} s and the run"),
            (wanted..wanted + 120).contains(&moved),
        );
    }
    watch.end(sheet, "clocks");
    watch::clean(sheet, "clocks", &[&server]);
}

/// A sidecar whose clock is so many seconds off.
fn by_clock(server: &Server, offset_s: i64) -> Sluice {
    let (url, offset, faked) = (server.url_of_sluice(), format!("{offset_s:+}"), faked());
    let mut env = vec![("REDIS_URL", url.as_str()), ("REDIS_TIMEOUT", "30s"), ("FAKETIME", offset.as_str())];
    env.extend(faked.iter().map(|(name, value)| (*name, value.as_str())));
    let sluice = sluice(&rules(), &env);
    sluice.wait_for_store();
    sluice
}

fn jump(sheet: &Sheet, fault: &str, turn: usize, sidecars: &[Sluice], set: impl FnOnce()) {
    let addresses: Vec<&str> = sidecars.iter().map(Sluice::grpc).collect();
    let style = Style { callers_of_each: 6, pause: Some(Duration::from_millis(20)), deadline: None };
    let load = Load::start(&addresses, &style, move |caller, _| {
        request("d", &[(KEYS[caller % KEYS.len()].0, &turn.to_string())])
    });
    sheet.run(&load, sheet.span(4.0, 1.5));
    sheet.step(fault);
    let jumped = Instant::now();
    set();
    sheet.run(&load, sheet.span(6.0, 3.0));
    // Where the machine is busy, callers may not have come to ask so soon after it. Whether they were admitted is judged below.
    let admits =
        |(key, fills): &(&str, Duration)| load.calls_since(jumped + *fills).iter().any(|call| is_open(call, key));
    holds_within(DEADLINE, || KEYS.iter().all(admits));
    let part = turn.to_string();
    let calls = sheet.record(load, &part);
    sheet.count(
        fault,
        &format!("of {} calls not by the store", calls.len()),
        other_than(&calls, &[Outcome::Ok, Outcome::Over]),
        0,
    );
    for (key, fills) in KEYS {
        let gap = longest_without(&calls, &format!("{key}={turn}"), jumped);
        sheet.at_most(fault, &format!("{key}: longest time without one that is admitted"), gap, fills + GRAIN);
        // An hour would be longer than the run.
        let is_open = calls.iter().any(|call| call.sent > jumped + fills && is_open(call, key));
        sheet.judge(fault, &format!("{key}: admits again"), &is_open, "true", is_open);
    }
    let history = History::of_store(&sheet.recorded(&part), &format!("bucket={turn}"));
    let once = if turn == 0 { 0.0 } else { BUCKET.capacity.min(BUCKET.per_second * AN_HOUR as f64) };
    BUCKET.never_too_many(sheet, fault, "burst", &history, once);
}

fn is_open(call: &Call, key: &str) -> bool {
    call.outcome == Outcome::Ok && call.key.starts_with(key)
}

/// Between two admitted calls of a key, from an instant on.
fn longest_without(calls: &[Call], key: &str, since: Instant) -> Duration {
    let admitted =
        calls.iter().filter(|call| *call.key == *key && call.outcome == Outcome::Ok && call.answered > since);
    let mut times: Vec<Instant> = admitted.map(|call| call.answered).collect();
    let end = calls.iter().map(|call| call.sent).max().unwrap_or(since);
    times.extend([since, end]);
    times.sort_unstable();
    times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
}
