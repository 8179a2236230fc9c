//! Everything at once, for long: keys, connections and rules that come and go, and a store that fails at random. Nothing that sluice has
//! may grow: memory, files, threads, connections, metrics, and the keys in the store.

use std::{
    net::TcpStream,
    time::{Duration, Instant},
};

use super::{other_than, sluice};
use crate::{
    attack,
    harness::{
        Server as Sluice,
        grpc::request,
        load::{Load, Outcome, Style},
        scrape::Scrape,
    },
    servers::{AUTH, Proxy, REDIS, Server},
    sheet::{Sheet, millis},
    watch::{self, Watch},
};

const BEAT: Duration = millis(100);
/// A connection for each beat, and as many that stay for a while.
const HELD: usize = 20;
/// Beats between two changes of the rules.
const RELOAD_EVERY: usize = 10;
/// The share of the time after which everything that there can be has been there once.
const WARM: f64 = 0.2;

pub fn everything(sheet: &Sheet) {
    let (fault, span) = ("soak", sheet.span(600.0, 9.0));
    let server = Server::start(REDIS);
    let proxy = Proxy::start(&server.address());
    let url = format!("redis://{AUTH}@{}", proxy.address());
    let sluice = sluice(&rules(0), &[("REDIS_URL", &url), sheet.timeout()]);
    sluice.wait_for_store();
    let watch = Watch::begin([&sluice]);
    let pause = if sheet.is_full() { millis(8) } else { millis(40) };
    let style = Style { callers_of_each: 8, pause: Some(pause), deadline: None };
    // Of those that stay there are some; of the others as many as there are calls.
    let (stay, are_shown) = if sheet.is_full() { (500, usize::MAX) } else { (20, 20) };
    let load = Load::start(&[sluice.grpc()], &style, move |caller, turn| {
        let (key, values) =
            [("second", usize::MAX), ("bucket", usize::MAX), ("hour", stay), ("shown", are_shown)][turn % 4];
        request("d", &[(key, &format!("{caller}-{}", turn % values))])
    });
    let mut weather = Weather::new(server, proxy, sheet.span(5.0, 0.8), sheet.span(1.0, 0.3));
    let told_every = if sheet.is_full() { 150 } else { 30 };
    let (began, mut samples, mut held) = (Instant::now(), Vec::new(), Vec::new());
    for beat in 0.. {
        let now = began + BEAT * u32::try_from(beat).unwrap_or(u32::MAX);
        if now >= began + span {
            break;
        }
        weather.pass();
        churn(&sluice, beat, &mut held);
        if beat % RELOAD_EVERY == 0 {
            sluice.write("rules.yaml", &rules(beat));
        }
        if beat % 5 == 0 {
            samples.push(Sample::of(&sluice, weather.keys(), now.duration_since(began).div_duration_f64(span)));
        }
        if beat % told_every == 0 {
            sheet.step(&format!("{}; {}", samples.last().map(Sample::shown).unwrap_or_default(), weather.shown()));
        }
        load.run_until(now + BEAT);
    }
    weather.clear();
    load.wait_for(Outcome::Ok, Instant::now());
    drop(held);
    let calls = sheet.record(load, "everything");
    sheet.step(&format!("{} calls, {}", calls.len(), weather.shown()));

    let wanted = [Outcome::Ok, Outcome::Over, Outcome::DegradedOk, Outcome::DegradedOver];
    let wrong = other_than(&calls, &wanted);
    let figure = format!("of {} calls by neither store nor policy", calls.len());
    sheet.judge(fault, &figure, &wrong, "0", wrong == 0 && weather.faults() >= 3);
    judge(sheet, fault, &samples);
    watch.end_but_log(sheet, fault);
    watch::clean(sheet, fault, &[&weather.server]);
}

/// Windows and buckets that come and go, some that stay, values in metrics; and a rule that is never the same.
fn rules(version: usize) -> String {
    format!(
        "domain: d\ndefaults: {{on_store_failure: local}}\ndescriptors:\n  - {{key: second, rate_limit: {{unit: second, \
         requests_per_unit: 5}}}}\n  - {{key: bucket, rate_limit: {{algorithm: token_bucket, unit: second, \
         requests_per_unit: 5}}}}\n  - {{key: hour, rate_limit: {{unit: hour, requests_per_unit: 5}}}}\n  - {{key: shown, \
         detailed_metric: true, rate_limit: {{unit: second, requests_per_unit: 5}}}}\n  - {{key: new, value: v{version}, \
         rate_limit: {{unit: day, requests_per_unit: {}}}}}\n",
        version + 1
    )
}

/// Connections of every kind: one that asks over gRPC and goes, one over HTTP, some that say nothing and stay.
fn churn(sluice: &Sluice, beat: usize, held: &mut Vec<TcpStream>) {
    let _ = sluice.ask(request("d", &[("second", &beat.to_string())])).expect("is answered");
    assert_eq!(sluice.get("/healthcheck").status, 200);
    let first = if beat.is_multiple_of(2) { attack::opening() } else { Vec::new() };
    held.extend(attack::idle(sluice.grpc(), 1, &first));
    if held.len() > HELD {
        held.remove(0);
    }
}

/// What goes wrong with the store, one thing at a time, at random and always in the same order.
struct Weather {
    server: Server,
    proxy: Proxy,
    random: fastrand::Rng,
    every: Duration,
    lasts: Duration,
    /// What is wrong, and when it changes.
    now: Option<usize>,
    changes: Instant,
    seen: [usize; 5],
}

const KINDS: [&str; 5] = ["killed", "stopped", "scripts flushed", "slow", "swallowed"];

impl Weather {
    fn new(server: Server, proxy: Proxy, every: Duration, lasts: Duration) -> Self {
        let random = fastrand::Rng::with_seed(7);
        Self { server, proxy, random, every, lasts, now: None, changes: Instant::now() + every, seen: [0; 5] }
    }

    fn pass(&mut self) {
        if Instant::now() < self.changes {
            return;
        }
        if self.now.is_some() {
            return self.clear();
        }
        let kind = self.random.usize(..KINDS.len());
        match kind {
            0 => self.server.kill(),
            1 => self.server.pause(),
            2 => self.server.run::<()>(&["SCRIPT", "FLUSH"]),
            3 => self.proxy.set_delay(millis(50)),
            _ => self.proxy.swallow(true),
        }
        self.seen[kind] += 1;
        (self.now, self.changes) = (Some(kind), Instant::now() + self.lasts);
    }

    fn clear(&mut self) {
        match self.now.take() {
            Some(0) => self.server.restart(),
            Some(1) => self.server.resume(),
            Some(3) => self.proxy.set_delay(Duration::ZERO),
            Some(4) => self.proxy.swallow(false),
            _ => {}
        }
        self.changes = Instant::now() + self.every.mul_f64(0.5 + self.random.f64());
    }

    /// In the store, if it can say so.
    fn keys(&self) -> usize {
        if matches!(self.now, Some(0 | 1)) { 0 } else { self.server.run(&["DBSIZE"]) }
    }

    fn faults(&self) -> usize {
        self.seen.iter().sum()
    }

    fn shown(&self) -> String {
        let kinds = KINDS.iter().zip(self.seen).map(|(kind, times)| format!("{kind} {times}"));
        kinds.collect::<Vec<_>>().join(", ")
    }
}

/// What there is at a moment.
struct Sample {
    /// Of the whole time.
    share: f64,
    figures: [f64; FIGURES.len()],
}

/// What is looked at, and by how much more than a tenth the second half may have more.
const FIGURES: [(&str, f64); 6] = [
    ("memory, MB", 8.0),
    ("open files", 8.0),
    ("threads", 1.0),
    ("connections", 8.0),
    ("lines of /metrics", 30.0),
    ("keys in the store", 500.0),
];

impl Sample {
    fn of(sluice: &Sluice, keys: usize, share: f64) -> Self {
        let footprint = sluice.footprint();
        let metrics = sluice.get("/metrics").body;
        let scrape = Scrape::parse(&metrics);
        let connections = scrape.value(r#"sluice_connections{door="grpc"}"#).unwrap_or(0.0);
        let [files, threads, lines, keys] =
            [footprint.files, footprint.threads, metrics.lines().count(), keys].map(|count| count as f64);
        let memory = footprint.memory as f64 / f64::from(1 << 20);
        let figures = [memory, files, threads, connections, lines, keys];
        Self { share, figures }
    }

    fn shown(&self) -> String {
        let figures = FIGURES.iter().zip(self.figures).map(|((name, _), figure)| format!("{name} {figure:.0}"));
        figures.collect::<Vec<_>>().join(", ")
    }
}

/// The most of each figure in the second half beside the most in the first, once it was warm.
fn judge(sheet: &Sheet, fault: &str, samples: &[Sample]) {
    let half = (1.0 + WARM) / 2.0;
    for (index, (name, slack)) in FIGURES.iter().enumerate() {
        let most = |from: f64, to: f64| {
            let during = samples.iter().filter(|sample| (from..to).contains(&sample.share));
            during.map(|sample| sample.figures[index]).fold(0.0, f64::max)
        };
        let (first, second) = (most(WARM, half), most(half, 1.0));
        let bound = first * 1.1 + slack;
        let figure = format!("{name}, most in the second half ({first:.0} in the first)");
        let holds = second <= bound && second > 0.0;
        sheet.judge(fault, &figure, &format!("{second:.0}"), &format!("<= {bound:.0}"), holds);
    }
}
