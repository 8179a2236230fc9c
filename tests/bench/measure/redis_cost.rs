//! What a decision costs Redis: CPU of its main thread beside INCRBY + EXPIRE in the same run, and memory beside a hash.

use std::{fs, thread, time::Instant};

use super::{
    Wishes,
    load::{self, Asked, number},
    servers::{Kind, Redis, Running},
    table::{Rounds, Table},
};

/// Decisions of the plain kind that travel together.
const DEPTH: usize = 8;
const PLAIN_CONNECTIONS: usize = 16;
const KEYS: usize = 1_000_000;
/// How long it goes on before it is looked at whether there are more keys than before.
const WARM_UP_S: u64 = 1;

pub fn measure(wishes: &Wishes) {
    cpu(wishes);
    memory();
}

/// What is measured: how it gets its keys, and how much it decides, in so many seconds.
type Decide<'a> = Box<dyn Fn(u64) -> f64 + 'a>;
type Work<'a> = (&'static str, Decide<'a>, Decide<'a>);

fn cpu(wishes: &Wishes) {
    let redis = &Redis::start();
    let plain = |name, commands| -> Work<'_> {
        let sent = |commands| Box::new(move |seconds| plainly(redis, seconds, commands));
        // Without a key there is nothing to expire.
        (name, sent(Plain { increment: true, ..commands }), sent(commands))
    };
    let rule = |name, rules, asked| -> Work<'_> {
        let server = Running::start(Kind::Sluice { rules, redis: Some(redis.port) }, &[]);
        let ask = move |seconds: u64| {
            let report =
                load::bench(&server.address, asked, &["--duration", &format!("{seconds}s"), "--warmup", "0ms"]);
            number(&report, "/answers")
        };
        (name, Box::new(|_| 0.0), Box::new(ask))
    };
    // Each beside the pair before it, whose keys live as long, and the first beside its halves.
    let hour = Plain { increment: true, life_s: Some(3_600) };
    let beside: [Vec<Work<'_>>; 2] = [
        vec![
            plain("INCRBY + EXPIRE in an hour, 8 deep", hour),
            plain("INCRBY alone, 8 deep", Plain { life_s: None, ..hour }),
            plain("EXPIRE alone, 8 deep", Plain { increment: false, ..hour }),
            rule("fixed window of an hour", "hour.yaml", Asked::OneOfMany),
            rule("the same, one key", "hour.yaml", Asked::One),
            rule("token bucket", "bucket.yaml", Asked::OneOfMany),
            rule("token bucket, 3 rates", "3-rates.yaml", Asked::OneOfMany),
            rule("3 rules, a key each", "3.yaml", Asked::Three),
            rule("refused", "refused.yaml", Asked::One),
        ],
        vec![
            plain("INCRBY + EXPIRE in a second, 8 deep", Plain { life_s: Some(1), ..hour }),
            rule("fixed window of a second", "1.yaml", Asked::OneOfMany),
        ],
    ];
    let work = || beside.iter().flatten();
    let mut rounds: Vec<Vec<(f64, f64)>> = work().map(|_| Vec::new()).collect();
    for _ in 0..wishes.rounds {
        for ((_, warm_up, decide), rounds) in work().zip(&mut rounds) {
            // What one leaves behind would cost the next, and what is measured is not how keys are made.
            redis::cmd("FLUSHALL").query::<()>(&mut redis.connect()).expect("redis forgets everything");
            warm_up(WARM_UP_S);
            until_keys_are_there(redis, || decide(WARM_UP_S));
            rounds.push(spent(redis, || decide(wishes.seconds)));
        }
    }
    let columns = ["what", "CPU us/decision, median", "spread", "least", "x the pair", "commands/decision"];
    let table = Table::new("Redis: main thread, 100,000 keys of about 60 bytes", &columns);
    let mut rounds = rounds.iter();
    for beside in &beside {
        let mut pair_us = None;
        for ((name, ..), rounds) in beside.iter().zip(&mut rounds) {
            let us = Rounds::new(rounds.iter().map(|(us, _)| *us).collect());
            let commands = Rounds::new(rounds.iter().map(|(_, commands)| *commands).collect());
            let pair_us = *pair_us.get_or_insert(us.median());
            table.row(&[
                (*name).to_owned(),
                format!("{:.2}", us.median()),
                us.spread(),
                format!("{:.2}", us.least()),
                format!("{:.2}", us.median() / pair_us),
                format!("{:.3}", commands.median()),
            ]);
        }
    }
}

/// Works until there are hardly more keys than before.
fn until_keys_are_there(redis: &Redis, work: impl Fn() -> f64) {
    let keys = || redis::cmd("DBSIZE").query::<u64>(&mut redis.connect()).expect("redis counts its keys");
    let mut before = 0;
    loop {
        work();
        let keys = keys();
        if keys <= before + before / 100 {
            return;
        }
        before = keys;
    }
}

/// Microseconds of the main thread, and commands of clients, for each of the decisions that `work` makes.
fn spent(redis: &Redis, work: impl FnOnce() -> f64) -> (f64, f64) {
    let calls = || calls(redis);
    let (cpu_before, calls_before) = (main_thread_us(redis), calls());
    let decisions = work();
    ((main_thread_us(redis) - cpu_before) / decisions, (calls() - calls_before) / decisions)
}

/// From the scheduler, to the nanosecond; INFO has it in the same place, but rounded.
fn main_thread_us(redis: &Redis) -> f64 {
    let path = format!("/proc/{0}/task/{0}/schedstat", redis.id());
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let ns: f64 = text.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or_else(|| panic!("{path}: {text}"));
    ns / 1_000.0
}

/// How often clients asked: what scripts call inside is not counted here.
fn calls(redis: &Redis) -> f64 {
    let text: String = redis::cmd("INFO").arg("commandstats").query(&mut redis.connect()).expect("INFO is answered");
    let calls = text.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(':')?;
        let is_ours = ["evalsha", "eval", "incrby", "expire"].contains(&name);
        is_ours.then_some(rest.strip_prefix("calls=")?.split(',').next()?.parse::<f64>().ok()?)
    });
    calls.sum()
}

/// What is sent for one decision of the plain kind.
#[derive(Clone, Copy)]
struct Plain {
    increment: bool,
    life_s: Option<u32>,
}

/// Plain commands, from several connections, for some seconds.
fn plainly(redis: &Redis, seconds: u64, commands: Plain) -> f64 {
    let began = Instant::now();
    let client = |index: usize| {
        let mut connection = redis.connect();
        thread::spawn(move || {
            let mut random = fastrand::Rng::with_seed(index as u64);
            let mut decisions = 0_u32;
            while began.elapsed().as_secs() < seconds {
                let mut pipeline = redis::pipe();
                for _ in 0..DEPTH {
                    let key = key_of(random.usize(..100_000));
                    if commands.increment {
                        pipeline.cmd("INCRBY").arg(&key).arg(1).ignore();
                    }
                    if let Some(life_s) = commands.life_s {
                        pipeline.cmd("EXPIRE").arg(&key).arg(life_s).ignore();
                    }
                }
                pipeline.query::<()>(&mut connection).expect("redis answers");
                decisions += 8;
            }
            decisions
        })
    };
    let clients: Vec<_> = (0..PLAIN_CONNECTIONS).map(client).collect();
    clients.into_iter().map(|client| f64::from(client.join().expect("clients do not panic"))).sum()
}

/// 60 bytes, about what a counter of a user and a path has.
fn key_of(number: usize) -> String {
    format!("{{bench}}f1/4:user27:user-{number:022}6:region4:eu-1")
}

fn memory() {
    let state = sluice::store::redis::state::encode(&sluice::engine::algorithm::State {
        at_us: 1_794_794_128_000_000,
        cells: [sluice::engine::algorithm::Cell { used: 1_000_000, previous: 0 }].into_iter().collect(),
        denials: 0,
    });
    let string = per_key(|pipeline, key| {
        pipeline.cmd("SET").arg(key).arg(&state[..]).arg("PX").arg(86_400_000).ignore();
    });
    let hash = per_key(|pipeline, key| {
        // As most limiters keep it: what is left and since when, with fractions.
        let (left, since) = ("999999.123456", "1794794128.123456");
        pipeline.cmd("HSET").arg(key).arg("tokens").arg(left).arg("ts").arg(since).ignore();
        pipeline.cmd("PEXPIRE").arg(key).arg(86_400_000).ignore();
    });
    let title = format!("Redis: memory for a key of {} bytes, one rate, 1M keys", key_of(0).len());
    let table = Table::new(&title, &["layout", "used_memory/key", "x hash"]);
    table.row(&["hash".to_owned(), format!("{hash:.1}"), "1.00".to_owned()]);
    table.row(&["sluice".to_owned(), format!("{string:.1}"), format!("{:.2}", string / hash)]);
}

fn per_key(put: impl Fn(&mut redis::Pipeline, &str)) -> f64 {
    let redis = Redis::start();
    let before = redis.info("memory", "used_memory");
    let mut connection = redis.connect();
    for first in (0..KEYS).step_by(1_000) {
        let mut pipeline = redis::pipe();
        (first..first + 1_000).for_each(|number| put(&mut pipeline, &key_of(number)));
        pipeline.query::<()>(&mut connection).expect("redis answers");
    }
    drop(connection);
    #[expect(clippy::cast_precision_loss, reason = "a million")]
    let per_key = (redis.info("memory", "used_memory") - before) / KEYS as f64;
    per_key
}
