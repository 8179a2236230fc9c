//! No fault at all: several sidecars and many callers share one truth.

use std::time::{Duration, Instant};

use super::{Bucket, SATURATED, ask_all, other_than, sidecar, sluice};
use crate::{
    harness::{
        Server as Sluice,
        grpc::{Request, request},
        load::{Load, Outcome, Style},
    },
    oracle::History,
    servers::{AUTH, Cluster, REDIS, Server, VALKEY},
    sheet::Sheet,
    watch::{self, Watch},
};

const RULES: &str = "
domain: d
descriptors:
  - {key: bucket, rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: 100, burst: 200}}
  - key: three
    rate_limit:
      algorithm: leaky_bucket
      rates:
        - {requests_per_unit: 100, unit: second, burst: 50}
        - {requests_per_unit: 3000, unit: minute, burst: 150}
        - {requests_per_unit: 100000, unit: hour, burst: 100000}
  - {key: slow, rate_limit: {algorithm: token_bucket, unit: year, requests_per_unit: 10, burst: 1000}}
  - {key: wide, rate_limit: {unit: year, requests_per_unit: 1000, on_over_limit: spare}}
  - {key: shut, rate_limit: {unit: year, requests_per_unit: 0}}
";

const BUCKET: Bucket = Bucket { capacity: 200.0, per_second: 100.0 };
/// Of the three rates the first governs a burst and the second all that follows; the third is never met.
const THREE: [Bucket; 2] = [Bucket { capacity: 50.0, per_second: 100.0 }, Bucket { capacity: 150.0, per_second: 50.0 }];
/// The patience of a busy machine: what is judged here is who was admitted.
const PATIENT: (&str, &str) = ("REDIS_TIMEOUT", "30s");
const SIDECARS: usize = 4;

fn several(server: &Server) -> Vec<Sluice> {
    (0..SIDECARS).map(|_| sidecar(server, RULES, &[PATIENT])).collect()
}

pub fn one_bucket(sheet: &Sheet) {
    for binary in [REDIS, VALKEY] {
        let server = Server::start(binary);
        share(sheet, binary.trim_end_matches("-server"), &several(&server));
        watch::clean(sheet, binary.trim_end_matches("-server"), &[&server]);
    }
    let cluster = Cluster::start(REDIS);
    let (seeds, kind) = (cluster.seeds(), ("REDIS_TYPE", "CLUSTER"));
    let env = [kind, ("REDIS_URL", seeds.as_str()), ("REDIS_AUTH", AUTH), PATIENT];
    let sidecars: Vec<Sluice> = (0..SIDECARS).map(|_| sluice(RULES, &env)).collect();
    sidecars.iter().for_each(Sluice::wait_for_store);
    share(sheet, "cluster", &sidecars);
    watch::clean(sheet, "cluster", &cluster.servers.iter().collect::<Vec<_>>());
    share(sheet, "memory", &[sluice(RULES, &[])]);
}

fn share(sheet: &Sheet, store: &str, sidecars: &[Sluice]) {
    let watch = Watch::begin(sidecars);
    sheet.step(&format!("{store}: one bucket, asked all the time"));
    saturate(sheet, store, sidecars, "bucket");
    let history = History::of_store(&sheet.recorded(&format!("{store}-bucket")), "bucket=one");
    BUCKET.never_too_many(sheet, store, "burst", &history, 0.0);
    not_too_few(sheet, store, "bucket", BUCKET);
    if sheet.is_full() || store == "redis" {
        sheet.step(&format!("{store}: three rates, asked all the time"));
        saturate(sheet, store, sidecars, "three");
        let history = History::of_store(&sheet.recorded(&format!("{store}-three")), "three=one");
        for rate in THREE {
            let figure = format!("burst, three rates, that of {}/s", rate.per_second);
            rate.never_too_many(sheet, store, &figure, &history, 0.0);
        }
        not_too_few(sheet, store, "three", THREE[1]);
        sheet.step(&format!("{store}: asked at 0.9 of the rate"));
        pace(sheet, store, sidecars);
    }
    watch.end(sheet, store);
}

fn saturate(sheet: &Sheet, store: &str, sidecars: &[Sluice], key: &'static str) {
    let addresses: Vec<&str> = sidecars.iter().map(Sluice::grpc).collect();
    // A machine that is busy may not get to a hundred calls a second: there each asks for more.
    let hits_addend = if sheet.is_full() { 1 } else { 10 };
    let ask = move |_, _| Request { hits_addend, ..request("d", &[(key, "one")]) };
    let load = Load::start(&addresses, &SATURATED, ask);
    load.wait_for(Outcome::Over, Instant::now());
    sheet.run(&load, sheet.span(10.0, 0.5));
    let calls = sheet.record(load, &format!("{store}-{key}"));
    let wrong = other_than(&calls, &[Outcome::Ok, Outcome::Over]);
    sheet.count(store, &format!("of {} calls neither OK nor OVER_LIMIT", calls.len()), wrong, 0);
}

fn not_too_few(sheet: &Sheet, store: &str, key: &str, bucket: Bucket) {
    let history = History::of_store(&sheet.recorded(&format!("{store}-{key}")), &format!("{key}=one"));
    let share = history.share(bucket.capacity, bucket.per_second);
    // Half a percent of a short run is less than what one caller that has to wait for the machine leaves behind.
    sheet.judge_in_full(store, &format!("{key}: admitted of C + rT"), &percent(share), ">= 99.5 %", share >= 0.995);
}

fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

/// All of them together ask for 0.9 of what comes in.
fn pace(sheet: &Sheet, store: &str, sidecars: &[Sluice]) {
    let addresses: Vec<&str> = sidecars.iter().map(Sluice::grpc).collect();
    let pause = Duration::from_secs_f64(sidecars.len() as f64 / (0.9 * BUCKET.per_second));
    let style = Style { callers_of_each: 1, pause: Some(pause), deadline: None };
    let load = Load::start(&addresses, &style, |_, _| request("d", &[("bucket", "paced")]));
    sheet.run(&load, sheet.span(10.0, 1.0));
    let name = format!("{store}-paced");
    let calls = sheet.record(load, &name);
    let history = History::of_store(&sheet.recorded(&name), "bucket=paced");
    sheet.count(store, &format!("refused of {} at 0.9 r", calls.len()), history.refused(), 0);
    sheet.count(store, "at 0.9 r: failed", other_than(&calls, &[Outcome::Ok, Outcome::Over]), 0);
}

pub fn three_rules(sheet: &Sheet) {
    let server = Server::start(REDIS);
    let sidecars = several(&server);
    let watch = Watch::begin(&sidecars);
    let addresses: Vec<&str> = sidecars.iter().map(Sluice::grpc).collect();
    let all = [("slow", "a"), ("wide", "a"), ("shut", "a")];
    let load = Load::start(&addresses, &SATURATED, move |_, _| ask_all("d", &all));
    sheet.run(&load, sheet.span(10.0, 1.0));
    let calls = sheet.record(load, "all");
    let fault = "one of three exhausted";
    let figure = format!("of {} calls other than OVER_LIMIT", calls.len());
    sheet.count(fault, &figure, other_than(&calls, &[Outcome::Over]), 0);
    for key in ["slow", "wide"] {
        let response = sidecars[0].ask(request("d", &[(key, "a")])).expect("is answered");
        let left = response.statuses[0].limit_remaining;
        sheet.judge(fault, &format!("{key}: left of 1000 after one more"), &left, "999", left == 999);
    }
    watch.end(sheet, fault);
    watch::clean(sheet, fault, &[&server]);
}
