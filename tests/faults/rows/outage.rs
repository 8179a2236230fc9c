//! The store is away for a while: killed and back with nothing in it, unreachable, or stopped.

use std::time::{Duration, Instant};

use super::{Bucket, is_back, other_than, sidecar, sluice};
use crate::{
    harness::{
        Server as Sluice,
        grpc::{Request, request},
        load::{Call, Load, Outcome, Style, p99},
        wait_until,
    },
    island::Island,
    oracle::History,
    servers::{AUTH, Proxy, REDIS, Server, VALKEY},
    sheet::{Sheet, millis},
    watch::{self, Watch},
};

/// A bucket for each policy, asked for twice what it is given.
const POLICIES: [&str; 4] = ["allow", "deny", "error", "local"];
const BUCKET: Bucket = Bucket { capacity: 32.0, per_second: 40.0 };
const SHARE: Bucket = Bucket { capacity: 8.0, per_second: 10.0 };
const STYLE: Style = Style { callers_of_each: 16, pause: Some(millis(50)), deadline: None };

const REPLICAS: (&str, &str) = ("LOCAL_REPLICAS", "4");
const SECOND: Duration = millis(1_000);
const MORE_MEMORY_MB: f64 = 20.0;

fn rules() -> String {
    let rule = |policy: &str| {
        let limit = BUCKET.rule(&format!(", on_store_failure: {policy}"));
        format!("  - {{key: {policy}, rate_limit: {limit}}}\n")
    };
    format!("domain: d\ndescriptors:\n{}", POLICIES.map(rule).concat())
}

fn ask(caller: usize) -> Request {
    request("d", &[(POLICIES[caller % POLICIES.len()], "one")])
}

pub fn killed(sheet: &Sheet) {
    let binaries: &[&str] = if sheet.is_full() { &[REDIS, VALKEY] } else { &[REDIS] };
    for binary in binaries {
        let store = binary.trim_end_matches("-server");
        let mut server = Server::start(binary);
        let sluice = sidecar(&server, &rules(), &[REPLICAS, sheet.timeout()]);
        let scene = Scene {
            fault: &format!("kill -9 of {store}"),
            part: store,
            lasts: sheet.span(10.0, 1.5),
            forgets: BUCKET.capacity,
        };
        scene.play(sheet, &sluice, &mut server, Server::kill, Server::restart);
        watch::clean(sheet, scene.fault, &[&server]);
    }
}

pub fn black_hole(sheet: &Sheet) {
    let server = Server::start(REDIS);
    let mut proxy = Proxy::start(&server.address());
    let url = format!("redis://{AUTH}@{}", proxy.address());
    let sluice = sluice(&rules(), &[("REDIS_URL", &url), REPLICAS, sheet.timeout()]);
    sluice.wait_for_store();
    let scene = Scene { fault: "black hole", part: "redis", lasts: sheet.span(30.0, 2.0), forgets: 0.0 };
    let began = scene.play(sheet, &sluice, &mut proxy, |proxy| proxy.swallow(true), |proxy| proxy.swallow(false));
    match proxy.ended(began) {
        Some(ended) => sheet.at_most(scene.fault, "connections dropped after", ended - began, SECOND),
        None => sheet.judge(scene.fault, "connections dropped", &"no", "yes", false),
    }
    watch::clean(sheet, scene.fault, &[&server]);
}

/// Not only what is said gets lost, but every packet: those that open a connection, and those that say that something arrived.
pub fn lost_packets(sheet: &Sheet) {
    let fault = "packets lost both ways";
    let Some(mut island) = Island::make() else {
        sheet.step("skipped: network namespaces are not allowed here");
        return;
    };
    let server = island.start(REDIS);
    let url = format!("redis://{AUTH}@{}", island.address(&server));
    let sluice = sluice(&rules(), &[("REDIS_URL", &url), REPLICAS, sheet.timeout()]);
    sluice.wait_for_store();
    let scene = Scene { fault, part: "redis", lasts: sheet.span(30.0, 2.0), forgets: 0.0 };
    scene.play(sheet, &sluice, &mut island, |island| island.set_lossy(true), |island| island.set_lossy(false));
}

pub fn stopped(sheet: &Sheet) {
    let mut server = Server::start(REDIS);
    let sluice = sidecar(&server, &rules(), &[REPLICAS, sheet.timeout()]);
    let scene = Scene { fault: "kill -STOP, 5 s", part: "redis", lasts: sheet.span(5.0, 1.5), forgets: 0.0 };
    scene.play(sheet, &sluice, &mut server, |server| server.pause(), |server| server.resume());
    watch::clean(sheet, scene.fault, &[&server]);
    long_stop(sheet);
}

/// Each caller has a counter of its own, and begins with so much more than the one before it that what is left tells whose it is.
const BAND: u32 = 100_000;
const LIMIT: u32 = 10_000_000;
const THOUSAND_A_SECOND: Style = Style { callers_of_each: 50, pause: Some(millis(50)), deadline: None };

fn own(caller: usize, hits: u32) -> Request {
    Request { hits_addend: hits, ..request("d", &[("many", &caller.to_string())]) }
}

/// By a sidecar that has time, so that none of it is lost.
fn part_the_bands(server: &Server, rules: &str) {
    let sluice = sidecar(server, rules, &[("REDIS_TIMEOUT", "5s")]);
    for (caller, band) in (0..THOUSAND_A_SECOND.callers_of_each).zip((0..).step_by(BAND as usize)) {
        let response = sluice.ask(own(caller, band + 1)).expect("is answered");
        assert_eq!(response.statuses[0].limit_remaining, LIMIT - band - 1, "nobody was here before");
    }
}

/// So long that whatever is kept for each call or reply would show.
fn long_stop(sheet: &Sheet) {
    let fault = if sheet.is_full() { "kill -STOP, 300 s at 1k/s, 256 MB" } else { "kill -STOP at 1k/s, 256 MB" };
    let server = Server::start(REDIS);
    let rules =
        format!("domain: d\ndescriptors: [{{key: many, rate_limit: {{unit: year, requests_per_unit: {LIMIT}}}}}]");
    part_the_bands(&server, &rules);
    let sluice = sidecar(&server, &rules, &[sheet.timeout()]);
    sluice.limit_memory(256 << 20);
    let watch = Watch::begin([&sluice]);
    let load = Load::start(&[sluice.grpc()], &THOUSAND_A_SECOND, |caller, _| own(caller, 1));
    sheet.run(&load, sheet.span(5.0, 1.0));
    // What the load itself takes is not the fault's.
    let loaded = Watch::begin([&sluice]);
    sheet.step(&format!("{fault} begins"));
    server.pause();
    sheet.run(&load, sheet.span(300.0, 2.0));
    loaded.memory(sheet, fault, MORE_MEMORY_MB);
    server.resume();
    let well = Instant::now();
    load.wait_for(Outcome::Ok, well);
    sheet.run(&load, sheet.span(5.0, 1.0));
    let calls = sheet.record(load, "long");
    sheet.count(
        fault,
        &format!("of {} calls failed", calls.len()),
        other_than(&calls, &[Outcome::Ok, Outcome::DegradedOk]),
        0,
    );
    sheet.count(fault, "replies that belong to another call", astray(&calls), 0);
    watch.end(sheet, fault);
    watch::clean(sheet, fault, &[&server]);
}

/// What a caller's counter has left lies in its band, and is less after each call.
fn astray(calls: &[Call]) -> usize {
    let mut used = [0; THOUSAND_A_SECOND.callers_of_each];
    let mut by_answer: Vec<&Call> = calls.iter().filter(|call| call.outcome == Outcome::Ok).collect();
    by_answer.sort_by_key(|call| call.answered);
    let is_astray = |call: &&&Call| {
        let its = LIMIT - call.remaining;
        let before = std::mem::replace(&mut used[call.client], its);
        its / BAND != u32::try_from(call.client).unwrap_or(0) || its <= before
    };
    by_answer.iter().filter(is_astray).count()
}

/// What happens, and what that may cost.
struct Scene<'s> {
    fault: &'s str,
    part: &'s str,
    lasts: Duration,
    /// What each bucket may admit more because the store forgot.
    forgets: f64,
}

impl Scene<'_> {
    /// Says when it began.
    fn play<S>(&self, sheet: &Sheet, sluice: &Sluice, store: &mut S, strike: fn(&mut S), mend: fn(&mut S)) -> Instant {
        let fault = self.fault;
        let watch = Watch::begin([sluice]);
        let load = Load::start(&[sluice.grpc()], &STYLE, |caller, _| ask(caller));
        sheet.run(&load, sheet.span(5.0, 1.0));
        sheet.step(&format!("{fault} begins"));
        let began = Instant::now();
        strike(store);
        wait_until("the breaker trips", || sluice.metric("sluice_store_up") == 0.0);
        let tripped = Instant::now();
        sheet.run(&load, self.lasts.saturating_sub(tripped - began));
        watch.memory(sheet, fault, MORE_MEMORY_MB);
        let mending = Instant::now();
        mend(store);
        let well = Instant::now();
        sheet.step(&format!("{fault} is over"));
        load.wait_for(Outcome::Ok, well);
        sheet.run(&load, sheet.span(5.0, 1.0));
        let calls = sheet.record(load, self.part);

        sheet.at_most(fault, "tripped after", tripped - began, SECOND);
        Outage { tripped, mending, well }.judge(sheet, fault, &calls);
        let lines = sheet.recorded(self.part);
        for policy in POLICIES {
            let history = History::of_store(&lines, &format!("{policy}=one"));
            BUCKET.never_too_many(sheet, fault, &format!("burst, {policy}"), &history, self.forgets);
        }
        let share = History::without_store(&lines, "local=one");
        SHARE.never_too_many(sheet, fault, "burst, local, without the store", &share, 0.0);
        watch.end(sheet, fault);
        began
    }
}

/// A time without a store.
struct Outage {
    /// It is known to be away.
    tripped: Instant,
    /// From here on it may answer again.
    mending: Instant,
    /// From here on it can.
    well: Instant,
}

impl Outage {
    fn judge(&self, sheet: &Sheet, fault: &str, calls: &[Call]) {
        let without: Vec<Call> =
            calls.iter().filter(|call| call.sent > self.tripped && call.answered < self.mending).cloned().collect();
        let wrong: usize = POLICIES.iter().map(|policy| by_another(policy, calls, &without)).sum();
        let figure = format!("{} calls, {} of them without it: not by store or policy", calls.len(), without.len());
        sheet.judge(fault, &figure, &wrong, "0", wrong == 0 && !without.is_empty());
        sheet.at_most(fault, "p99 without it", p99(&without), millis(2));
        is_back(sheet, fault, calls, self.well, SECOND);
    }
}

/// Calls of this policy's bucket that had another answer than the rule says, or, once it had tripped, than the policy.
fn by_another(policy: &str, calls: &[Call], without: &[Call]) -> usize {
    let by_policy: &[Outcome] = match policy {
        "allow" => &[Outcome::DegradedOk],
        "deny" => &[Outcome::DegradedOver],
        "error" => &[Outcome::Unavailable],
        _ => &[Outcome::DegradedOk, Outcome::DegradedOver],
    };
    let its = |calls: &[Call]| -> Vec<Call> {
        calls.iter().filter(|call| call.key.strip_suffix("=one") == Some(policy)).cloned().collect()
    };
    let any = [by_policy, &[Outcome::Ok, Outcome::Over]].concat();
    other_than(&its(without), by_policy) + other_than(&its(calls), &any)
}
