//! Callers that do not mean well: each is closed or refused, and everybody else is served almost as if nothing happened.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::{other_than, sluice};
use crate::{
    attack::{self, Attack, Ended, FLOODS, HOLDS},
    certificates::Authority,
    harness::{
        Server as Sluice,
        grpc::{IdleCaller, request},
        load::{Load, Outcome, Style, p99},
        wait::holds_within,
    },
    sheet::{Sheet, millis, shown},
    watch::Watch,
};

const RULES: &str =
    "domain: d\ndescriptors:\n  - {key: user, rate_limit: {unit: year, requests_per_unit: 4000000000}}\n";
const MORE_MEMORY_MB: f64 = 64.0;
/// How many times as long others may wait, and what cannot be told from nothing.
const SLOWER: u32 = 3;
const NOTHING: Duration = millis(1);
/// What has not ended by then has not been ended.
const PATIENCE: Duration = Duration::from_secs(120);

pub fn strangers(sheet: &Sheet) {
    for attack in FLOODS {
        withstand(sheet, attack);
    }
    if sheet.is_full() {
        HOLDS.iter().for_each(|attack| withstand(sheet, attack));
    }
    idle(sheet, if sheet.is_full() { 10_000 } else { 300 });
    stalled_handshakes(sheet, if sheet.is_full() { 1_000 } else { 100 });
}

/// Callers on connections of their own, who ask all the time.
struct Others<'s> {
    sluice: &'s Sluice,
    load: Load,
    alone: Duration,
    most_memory: usize,
    since: Instant,
}

impl<'s> Others<'s> {
    fn of(sheet: &Sheet, sluice: &'s Sluice) -> Self {
        let style = Style { callers_of_each: 4, pause: Some(millis(4)), deadline: None };
        let load = Load::start(&[sluice.grpc()], &style, |caller, _| request("d", &[("user", &caller.to_string())]));
        load.wait_for_calls(50);
        let began = Instant::now();
        sheet.run(&load, sheet.span(5.0, 0.2));
        let alone = p99(&load.calls_since(began));
        Self { sluice, load, alone, most_memory: 0, since: Instant::now() }
    }

    /// Lets an attack run and looks at the memory of the server meanwhile.
    fn during<T: Send>(&mut self, attack: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let running = scope.spawn(attack);
            let ended = holds_within(PATIENCE, || {
                self.most_memory = self.most_memory.max(self.sluice.memory());
                running.is_finished()
            });
            assert!(ended, "the attack goes on");
            running.join().expect("the attack does not panic")
        })
    }

    fn judge(self, sheet: &Sheet, fault: &str, idle: usize) {
        let during = self.load.calls_since(self.since);
        let all = self.load.stop();
        sheet.count(fault, &format!("of {} calls of others failed", all.len()), other_than(&all, &[Outcome::Ok]), 0);
        let (calm, attacked) = (self.alone, p99(&during));
        let figure = format!("p99 of others ({} without it, {} calls)", shown(calm), during.len());
        sheet.at_most(fault, &figure, attacked, (calm * SLOWER).max(NOTHING));
        judge_memory(sheet, fault, self.most_memory.saturating_sub(idle));
    }
}

/// The same attack again and again, each time as soon as it was ended.
fn withstand(sheet: &Sheet, attack: &Attack) {
    let fault = attack.name;
    sheet.step(fault);
    let sluice = Sluice::start(RULES);
    let watch = Watch::begin([&sluice]);
    let mut others = Others::of(sheet, &sluice);
    let idle = sluice.memory();
    let (span, address) = (sheet.span(5.0, 0.0), sluice.grpc());
    let (rounds, longest, as_wanted) = others.during(|| {
        let began = Instant::now();
        let (mut rounds, mut longest, mut as_wanted) = (0, Duration::ZERO, true);
        while rounds == 0 || began.elapsed() < span {
            let (ended, took) = attack::timed(attack, address);
            (rounds, longest, as_wanted) = (rounds + 1, longest.max(took), as_wanted && ended == attack.ends);
        }
        (rounds, longest, as_wanted)
    });
    let wanted = if attack.ends == Ended::Closed { "closed" } else { "refused" };
    let figure = format!("{rounds} times, at most {}: {wanted}", shown(longest));
    sheet.judge(fault, &figure, &as_wanted, "true", as_wanted);
    others.judge(sheet, fault, idle);
    watch.end(sheet, fault);
}

fn idle(sheet: &Sheet, connections: usize) {
    let fault = format!("{connections} idle connections");
    sheet.step(&fault);
    let sluice = sluice(RULES, &[]);
    let watch = Watch::begin([&sluice]);
    let mut others = Others::of(sheet, &sluice);
    let before = sluice.memory();
    let opening = attack::opening();
    let held = others.during(|| {
        let mut held = attack::idle(sluice.grpc(), connections / 2, b"");
        held.extend(attack::idle(sluice.grpc(), connections - held.len(), &opening));
        held
    });
    let opened = Instant::now();
    // One who comes late is let in.
    drop(IdleCaller::connect(sluice.grpc()));
    sheet.run(&others.load, sheet.span(5.0, 0.2));
    if sheet.is_full() {
        // Those who never ask anything have a minute.
        let closed = others.during(|| holds_within(PATIENCE / 2, || attack::are_closed(&held)));
        sheet.judge(&fault, &format!("all closed, after {}", shown(opened.elapsed())), &closed, "true", closed);
    }
    others.judge(sheet, &fault, before);
    drop(held);
    watch.end(sheet, &fault);
}

fn stalled_handshakes(sheet: &Sheet, connections: usize) {
    let fault = format!("{connections} stalled TLS handshakes");
    sheet.step(&fault);
    let authority = Authority::new();
    authority.sign("server", "DNS:localhost", 30);
    let file = |name| authority.path(name).to_str().expect("is text").to_owned();
    let (certificate, key) = (file("server.crt"), file("server.key"));
    let tls: [(&str, &str); 3] =
        [("GRPC_SERVER_USE_TLS", "true"), ("GRPC_SERVER_TLS_CERT", &certificate), ("GRPC_SERVER_TLS_KEY", &key)];
    let sluice = sluice(RULES, &tls);
    let watch = Watch::begin([&sluice]);
    let span = sheet.span(5.0, 0.3);
    let began = Instant::now();
    let alone = p99_over_json(&sluice, || began.elapsed() >= span);
    let before = sluice.memory();
    // The beginning of a record that says it is a ClientHello of 512 bytes.
    let began = Instant::now();
    let stalled = attack::idle(sluice.grpc(), connections, &[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3]);
    let mut most = 0;
    let attacked = p99_over_json(&sluice, || {
        most = most.max(sluice.memory());
        attack::are_closed(&stalled) || began.elapsed() > PATIENCE
    });
    let closed = attack::are_closed(&stalled);
    sheet.judge(&fault, &format!("all closed, after {}", shown(began.elapsed())), &closed, "true", closed);
    let figure = format!("p99 of others, on /json ({} without it)", shown(alone));
    sheet.at_most(&fault, &figure, attacked, (alone * SLOWER).max(NOTHING));
    judge_memory(sheet, &fault, most.saturating_sub(before));
    watch.end(sheet, &fault);
}

/// Of one who asks until something is so, and is always answered.
fn p99_over_json(sluice: &Sluice, mut is_over: impl FnMut() -> bool) -> Duration {
    let question = r#"{"domain": "d", "descriptors": [{"entries": [{"key": "user", "value": "v"}]}]}"#;
    let mut took = Vec::new();
    holds_within(2 * PATIENCE, || {
        let sent = Instant::now();
        assert_eq!(sluice.post_json(question).status, 200);
        took.push(sent.elapsed());
        is_over()
    });
    took.sort_unstable();
    took[took.len() * 99 / 100]
}

fn judge_memory(sheet: &Sheet, fault: &str, grown: usize) {
    let grown = grown as f64 / f64::from(1 << 20);
    let bound = format!("<= {MORE_MEMORY_MB} MB");
    sheet.judge(fault, "more memory", &format!("{grown:.1} MB"), &bound, grown <= MORE_MEMORY_MB);
}
