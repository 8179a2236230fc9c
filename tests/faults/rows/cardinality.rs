//! More callers than the embedded store has room for: memory stays where the bound puts it, those who were refused stay refused, and the
//! metrics do not grow.

use std::{ops::Range, time::Instant};

use tonic::transport::Channel;

use super::sluice;
use crate::{
    harness::{
        Server as Sluice,
        grpc::{Code, RateLimitServiceClient, Request, connect, descriptor},
    },
    sheet::Sheet,
    watch::Watch,
};

const RULES: &str = "\
domain: d
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 10}}
  - {key: once, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: never, rate_limit: {unit: year, requests_per_unit: 0}}
  - {key: shown, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 10}}
";
/// What the README says that a counter takes, which makes a bound on their number one on memory.
const ENTRY_BYTES: usize = 200;
/// Descriptors of a request, and requests under way.
const BATCH: usize = 100;
const UNDER_WAY: usize = 4;
/// Callers who are refused before the bomb: of each kind, of whom half ask again and again and half only when it is over.
const REFUSED: usize = 100;

pub fn bomb(sheet: &Sheet) {
    let fault = "cardinality bomb";
    let (room, values) = if sheet.is_full() { (1_000_000, 5_000_000) } else { (4_000, 20_000) };
    let sluice = sluice(RULES, &[("MEMORY_STORE_MAX_ENTRIES", &room.to_string())]);
    let idle = sluice.memory();
    let watch = Watch::begin([&sluice]);
    let callers = Callers::of(&sluice);
    // Every series that there can be is there before anything is measured.
    callers.ask("shown", 0..1_500, 1);
    callers.ask("never", 0..1, 1);
    callers.ask("user", REFUSED_ONES, 10);
    callers.ask("once", REFUSED_ONES, 1);
    let mut amnesties = callers.admitted(&["user", "once"], REFUSED_ONES);

    let (mut full, mut most, mut wrong) = (None, 0, 0);
    let began = Instant::now();
    let step = values / 20;
    for turn in 0..20 {
        let numbers = turn * step..(turn + 1) * step;
        // Most have room left; then come some who have none, and some who are refused at once.
        let (key, remaining) = match turn % 5 {
            3 => ("once", Some(0)),
            4 => ("never", None),
            _ => ("user", Some(9)),
        };
        wrong += callers.ask(key, numbers, 1).iter().filter(|left| **left != remaining).count();
        amnesties += callers.admitted(&["user", "once"], REFUSED_ONES.start..REFUSED_ONES.start + REFUSED / 2);
        callers.ask("shown", turn * 100..turn * 100 + 200, 1);
        let memory = sluice.memory();
        most = most.max(memory);
        // Looked at only until then: to write so many series is work.
        if full.is_none() && sluice.metric("sluice_store_entries") >= room as f64 * 0.99 {
            full = Some((memory, sluice.get("/metrics").body));
        }
        sheet.step(&format!("{} values, {} MB", (turn + 1) * step, memory >> 20));
    }
    let took = began.elapsed();
    amnesties += callers.admitted(&["user", "once"], REFUSED_ONES);
    let (full, metrics) = full.expect("the store is full in the end");
    sheet.step(&format!("{values} values in {took:.1?}"));

    sheet.count(fault, &format!("of {values} new values decided as if they were not new"), wrong, 0);
    sheet.count(fault, &format!("of {} who were refused, admitted again", 2 * REFUSED), amnesties, 0);
    let entries = sluice.metric("sluice_store_entries");
    sheet.judge(fault, "counters in the store", &entries, &format!("<= {room}"), entries <= room as f64);
    let megabytes = |bytes: usize| format!("{:.1} MB", bytes as f64 / f64::from(1 << 20));
    let cap = idle + room * ENTRY_BYTES;
    let figure = format!("memory ({} when idle, {room} counters of {ENTRY_BYTES} bytes)", megabytes(idle));
    // With few counters, what it takes to answer at all is more than a tenth.
    let slack = if sheet.is_full() { 0 } else { 40 << 20 };
    let bound = |memory: usize| format!("<= {} + {}", megabytes(memory), if slack == 0 { "10 %" } else { "40 MB" });
    let fits = |memory: usize| most <= memory + (memory / 10).max(slack);
    sheet.judge(fault, &figure, &megabytes(most), &bound(cap), fits(cap));
    sheet.judge(fault, "memory, since the store was full", &megabytes(most), &bound(full), fits(full));
    let (before, after) = (metrics.lines().count(), sluice.get("/metrics").body.lines().count());
    sheet.judge(fault, "lines of /metrics", &after, &format!("= {before}"), after == before);
    drop(callers);
    watch.end(sheet, fault);
}

/// Values of their own.
const REFUSED_ONES: Range<usize> = 1_000_000_000..1_000_000_000 + REFUSED;

struct Callers {
    runtime: tokio::runtime::Runtime,
    client: RateLimitServiceClient<Channel>,
}

impl Callers {
    fn of(sluice: &Sluice) -> Self {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
        let client = RateLimitServiceClient::new(runtime.block_on(connect(sluice.grpc())));
        Self { runtime, client }
    }

    /// What each of these values has left; `None` is for one who is refused.
    fn ask(&self, key: &str, values: Range<usize>, hits: u32) -> Vec<Option<u32>> {
        let batches: Vec<Range<usize>> =
            values.clone().step_by(BATCH).map(|first| first..(first + BATCH).min(values.end)).collect();
        let question = |values: &Range<usize>| Request {
            domain: "d".to_owned(),
            descriptors: values.clone().map(|value| descriptor(&[(key, &value.to_string())])).collect(),
            hits_addend: hits,
        };
        self.runtime.block_on(async {
            let mut left = Vec::new();
            for together in batches.chunks(UNDER_WAY) {
                let asked = together.iter().map(|values| {
                    let mut client = self.client.clone();
                    let question = question(values);
                    async move { client.should_rate_limit(question).await.expect("is answered").into_inner() }
                });
                for response in futures_util::future::join_all(asked).await {
                    let is_ok = |code: i32| code == i32::from(Code::Ok);
                    left.extend(response.statuses.iter().map(|one| is_ok(one.code).then_some(one.limit_remaining)));
                }
            }
            left
        })
    }

    /// How many of these are not refused.
    fn admitted(&self, keys: &[&str], values: Range<usize>) -> usize {
        keys.iter().map(|key| self.ask(key, values.clone(), 1).iter().flatten().count()).sum()
    }
}
