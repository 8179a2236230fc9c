//! A store that is far away: it is used as long as it answers in time, and left alone when it does not, without going back and
//! forth.

use std::time::{Duration, Instant};

use super::{Bucket, other_than, sluice};
use crate::{
    harness::{
        grpc::request,
        load::{Load, Outcome, Style, count, p99},
    },
    oracle::History,
    servers::{AUTH, Proxy, REDIS, Server},
    sheet::{Sheet, millis, shown},
    watch::{self, Watch},
};

const BUCKET: Bucket = Bucket { capacity: 100.0, per_second: 50.0 };
/// Longer than the shortest timeout, and no outage.
const BREATH: Duration = millis(30);
/// A share of calls that is late all the same.
const LATE: f64 = 0.001;

/// Who asks, by the clock: how long callers wait, how long sluice waits for the store, and how late that is.
struct Haste {
    deadline: Duration,
    timeout: Duration,
    delays_ms: &'static [u64],
}

/// Envoy's own deadline with the default timeout, and callers who have time.
const FULL: [Haste; 2] = [
    Haste { deadline: millis(20), timeout: millis(10), delays_ms: &[2, 8, 15, 50, 200] },
    Haste { deadline: millis(250), timeout: millis(250), delays_ms: &[2, 8, 15, 50, 200] },
];
/// On a machine that has other things to do.
const SHORT: [Haste; 1] = [Haste { deadline: millis(1_000), timeout: millis(100), delays_ms: &[15, 50, 250] }];

pub fn late_replies(sheet: &Sheet) {
    let all: &[Haste] = if sheet.is_full() { &FULL } else { &SHORT };
    all.iter().for_each(|haste| with_haste(sheet, haste));
}

fn with_haste(sheet: &Sheet, haste: &Haste) {
    let Haste { deadline, timeout, delays_ms } = *haste;
    let timeout_ms = timeout.as_millis();
    let server = Server::start(REDIS);
    let proxy = Proxy::start(&server.address());
    let url = format!("redis://{AUTH}@{}", proxy.address());
    let rules = format!(
        "domain: d\ndescriptors:\n  - {{key: bucket, rate_limit: {}}}\n  - {{key: many, rate_limit: {{unit: year, \
         requests_per_unit: 1000000}}}}",
        BUCKET.rule("")
    );
    let sluice = sluice(&rules, &[("REDIS_URL", &url), ("REDIS_TIMEOUT", &format!("{timeout_ms}ms"))]);
    sluice.wait_for_store();
    let watch = Watch::begin([&sluice]);
    let style = Style { callers_of_each: 40, pause: Some(millis(100)), deadline: Some(deadline) };
    let load = Load::start(&[sluice.grpc()], &style, |caller, _| match caller % 2 {
        0 => request("d", &[("bucket", "one")]),
        _ => request("d", &[("many", &caller.to_string())]),
    });
    load.wait_for_calls(100);
    let name = format!("deadline {}", shown(deadline));
    for delay_ms in delays_ms.iter().copied() {
        let fault = format!("{delay_ms} ms late, {name}");
        let trips = sluice.metric("sluice_store_breaker_trips_total");
        proxy.set_delay(millis(delay_ms));
        let since = Instant::now();
        sheet.step(&fault);
        sheet.run(&load, sheet.span(10.0, 0.8));
        let calls = load.calls_since(since);
        let late = count(&calls, Outcome::Late) as f64 / calls.len() as f64;
        let in_time = format!("{:.2} %", (1.0 - late) * 100.0);
        let figure = format!("of {} calls answered before it", calls.len());
        sheet.judge_in_full(&fault, &figure, &in_time, ">= 99.9 %", late <= LATE);
        let by_store = (count(&calls, Outcome::Ok) + count(&calls, Outcome::Over)) as f64 / calls.len() as f64;
        let shown_share = format!("{:.0} %, p99 {}", by_store * 100.0, shown(p99(&calls)));
        let delay = millis(delay_ms);
        if delay * 2 <= timeout {
            sheet.judge_in_full(&fault, "by the store", &shown_share, ">= 50 %", by_store >= 0.5);
        } else if delay > timeout {
            sheet.judge_in_full(&fault, "by the store", &shown_share, "<= 10 %", by_store <= 0.1);
        } else {
            sheet.judge_in_full(&fault, "by the store", &shown_share, "", true);
        }
        let trips = sluice.metric("sluice_store_breaker_trips_total") - trips;
        sheet.judge_in_full(&fault, "breaker tripped", &trips, "<= 1", trips <= 1.0);
    }
    proxy.set_delay(Duration::ZERO);
    let back = load.wait_for(Outcome::Ok, Instant::now());
    sheet.at_most(&name, "the store is used again after", back, millis(1_000));
    let held = sluice.metric("sluice_store_breaker_trips_total");
    for _ in 0..if sheet.is_full() { 10 } else { 2 } {
        proxy.set_delay(BREATH);
        sheet.run(&load, BREATH);
        proxy.set_delay(Duration::ZERO);
        sheet.run(&load, millis(500));
    }
    let trips = sluice.metric("sluice_store_breaker_trips_total") - held;
    let figure = format!("breaker tripped, silent for {} each half second", shown(BREATH));
    sheet.judge_in_full(&name, &figure, &trips, "0", trips == 0.0);
    let part = &format!("{timeout_ms}ms");
    let calls = sheet.record(load, part);
    let wrong = other_than(&calls, &[Outcome::Ok, Outcome::Over, Outcome::DegradedOk, Outcome::Late]);
    sheet.count(&name, &format!("of {} calls failed", calls.len()), wrong, 0);
    let history = History::of_store(&sheet.recorded(part), "bucket=one");
    BUCKET.never_too_many(sheet, &name, "burst", &history, 0.0);
    watch.end(sheet, &name);
    watch::clean(sheet, &name, &[&server]);
}
