//! Instructions of Redis for one decision of the script, counted by callgrind, beside the plain pair of commands that others use.
//! Unlike times they repeat; but what waits for memory costs more time than instructions, so that the plain pair, which does little
//! else, looks better here than by the clock.

use std::sync::Arc;

use redis::Connection;
use sluice::{
    engine::{
        algorithm::{Check, Mode},
        plan::Keys,
        quota::{Algorithm, OnOverLimit, Period, Quota, RateSpec, Unit},
        request::Hits,
    },
    store::redis::script::{self, Asked, SHA1},
};

use super::{instructions::Counts, servers::Redis, table::Table};

/// What a busy lane sends at once.
const BATCH: usize = 24;
/// Decisions of the plain pair that travel together.
const DEPTH: usize = 8;
const KEYS: usize = 4_800;
const FEW: usize = 1_200;
const MANY: usize = 6_000;
/// From a key to the one asked for next, once all are there: no two of a batch were made in the same one. Counters that always meet
/// each other have one value and one life, which the script then makes once for all of them.
const STRIDE: usize = 97;

/// What is asked of Redis, and how many requests at once.
pub struct Case {
    pub name: &'static str,
    batch: usize,
    asked: What,
}

enum What {
    /// INCRBY + EXPIRE.
    Pair,
    /// A check for each of these, each on a key of its own.
    Checks(Vec<Arc<Quota>>),
}

const PAIR: Case = Case { name: "INCRBY + EXPIRE, 8 deep", batch: DEPTH, asked: What::Pair };

fn quota(algorithm: Algorithm, rates: &[(u32, Unit)]) -> Arc<Quota> {
    let rate = |(requests, unit): &(u32, Unit)| {
        let period = Period::try_new(*unit, 1).expect("is a period");
        let burst = (algorithm == Algorithm::TokenBucket).then_some(50_000);
        RateSpec { requests: *requests, period, burst, name: None }
    };
    let quota = Quota::try_new(algorithm, rates.iter().map(rate).collect(), OnOverLimit::Spare, false);
    Arc::new(quota.expect("is a quota"))
}

pub fn cases() -> Vec<Case> {
    let window = |unit| quota(Algorithm::FixedWindow, &[(1_000_000_000, unit)]);
    // They leak slowly, as those of bucket.yaml and 3-rates.yaml, so that counters are found and not made anew.
    let bucket = || quota(Algorithm::TokenBucket, &[(60, Unit::Hour)]);
    let rates = [(1, Unit::Minute), (60, Unit::Hour), (1_440, Unit::Day)];
    let checks = |name, batch, quotas| Case { name, batch, asked: What::Checks(quotas) };
    vec![
        checks("fixed window", BATCH, vec![window(Unit::Hour)]),
        checks("fixed window, one by one", 1, vec![window(Unit::Hour)]),
        checks("sliding window", BATCH, vec![quota(Algorithm::SlidingWindow, &[(1_000_000_000, Unit::Hour)])]),
        checks("token bucket", BATCH, vec![bucket()]),
        checks("token bucket, three rates", BATCH, vec![quota(Algorithm::TokenBucket, &rates)]),
        checks("three rules", BATCH, [Unit::Minute, Unit::Hour, Unit::Day].map(window).to_vec()),
    ]
}

impl Case {
    /// Of the whole life of a server that is asked for so many requests once it has all keys.
    fn count(&self, requests: usize) -> f64 {
        let counts = Counts::new();
        let redis = Redis::start_counted(&counts.0);
        let mut connection = redis.connect();
        let load = redis::cmd("SCRIPT").arg("LOAD").arg(script::SCRIPT).query::<String>(&mut connection);
        load.expect("redis takes a script");
        self.ask(&mut connection, &(0..KEYS).collect::<Vec<_>>());
        self.ask(&mut connection, &(0..requests).map(|request| request * STRIDE % KEYS).collect::<Vec<_>>());
        redis.stop();
        counts.total("counts", &format!("{} {requests}", self.name))
    }

    /// How it starts costs the same each time, so that the difference is what requests cost.
    pub fn per_request(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
        let requests = (MANY - FEW) as f64;
        (self.count(MANY) - self.count(FEW)) / requests
    }

    /// A request for the key, or the keys, of each of these numbers.
    fn ask(&self, connection: &mut Connection, numbers: &[usize]) {
        for numbers in numbers.chunks_exact(self.batch) {
            let numbers = numbers.iter().copied();
            match &self.asked {
                What::Pair => {
                    let mut pipeline = redis::pipe();
                    for key in numbers.map(|number| key_of("incr", number)) {
                        pipeline.cmd("INCRBY").arg(&key).arg(1).ignore().cmd("EXPIRE").arg(&key).arg(3_600).ignore();
                    }
                    pipeline.query::<()>(connection).expect("redis answers");
                }
                What::Checks(quotas) => {
                    let checks = quotas.iter().enumerate().map(|(slot, quota)| Check {
                        quota: quota.clone(),
                        slot,
                        hits: Hits::ONE,
                        mode: Mode::Enforce,
                        chained: false,
                    });
                    let checks: Vec<Check> = checks.collect();
                    let keys: Vec<Keys> = numbers.map(|number| self.keys(quotas.len(), number)).collect();
                    let asked: Vec<Asked<'_>> = keys.iter().map(|keys| (&*checks, keys)).collect();
                    let mut call = redis::cmd("EVALSHA");
                    call.arg(&*SHA1);
                    script::encode(0, &asked, &mut call);
                    let reply = call.query(connection).expect("redis answers");
                    let answers = script::decode(&reply, &asked).expect("keeps the contract");
                    let admitted = |answer: &Result<_, _>| matches!(answer, Ok(decisions) if all_fit(decisions));
                    assert!(answers.iter().all(admitted), "{}: nothing is refused", self.name);
                }
            }
        }
    }

    fn keys(&self, count: usize, number: usize) -> Keys {
        let keys: Vec<String> = (0..count).map(|slot| key_of(&format!("{}{slot}", self.name), number)).collect();
        keys.iter().map(String::as_str).collect()
    }
}

fn all_fit(decisions: &sluice::engine::algorithm::Decisions) -> bool {
    decisions.iter().all(|decision| decision.fits)
}

/// About sixty bytes, as a counter of a user and a path has.
fn key_of(name: &str, number: usize) -> String {
    format!("{{bench}}f1/4:user27:user-{number:016}{:<12.12}6:region", name.replace(' ', ""))
}

pub fn measure() {
    let table = Table::new("Redis: instructions for one decision", &["what", "instructions", "x INCRBY + EXPIRE"]);
    let pair = PAIR.per_request();
    let row =
        |name: &str, count: f64| table.row(&[name.to_owned(), format!("{count:.0}"), format!("{:.2}", count / pair)]);
    row(PAIR.name, pair);
    cases().iter().for_each(|case| row(case.name, case.per_request()));
}
