//! The referee between the engine and its translation: the same random requests, at the same times, to `decide()` over a
//! map, to the script on Redis and to the script on Valkey. Answers and states must be equal to the last unit.
//!
//! A failure prints its seed; `DIFFERENTIAL_SEED=<seed>` runs it again.

mod contract;
mod random;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use fastrand::Rng;
use redis::{Cmd, Connection, Value};
use sluice::{
    engine::{
        algorithm::{Cell, Check, Decision, Decisions, Mode, Retry, State, decide},
        plan::Keys,
        quota::{Algorithm, OnOverLimit, Period, Quota, RateSpec, Unit},
        request::Hits,
    },
    store::{
        memory::MemoryStore,
        redis::{
            script::{self, Asked, Damage, SCRIPT, SHA1, ScriptFailure},
            state,
        },
    },
};

use self::random::{random_batch, random_counters, random_time};
use crate::servers::{REDIS, Server, VALKEY};

const START_US: u64 = 1_767_225_600_000_000;
const YEAR_2100_US: u64 = 4_102_444_800_000_000;
const SESSIONS: u64 = 60;
const BATCHES_PER_SESSION: usize = 170;
/// How far a TTL may be from what it should be: the time from the script to the PTTL after it, on a busy machine.
const TTL_SLACK_MS: i64 = 10_000;

type Answer = Result<Decisions, ScriptFailure>;

/// One request as the test makes it.
struct Asking {
    checks: Vec<Check>,
    keys: Keys,
}

fn asked(batch: &[Asking]) -> Vec<Asked<'_>> {
    batch.iter().map(|asking| (&*asking.checks, &asking.keys)).collect()
}

fn evalsha(now_us: u64, batch: &[Asking]) -> Cmd {
    let mut cmd = redis::cmd("EVALSHA");
    cmd.arg(SHA1.as_str());
    script::encode(now_us, &asked(batch), &mut cmd);
    cmd
}

fn connect(server: &Server) -> Connection {
    let mut connection = server.connection();
    let sha: String = redis::cmd("SCRIPT").arg("LOAD").arg(SCRIPT).query(&mut connection).unwrap();
    assert_eq!(sha, *SHA1);
    connection
}

fn call(connection: &mut Connection, now_us: u64, batch: &[Asking]) -> Vec<Answer> {
    let reply: Value = evalsha(now_us, batch).query(connection).unwrap();
    script::decode(&reply, &asked(batch)).unwrap()
}

// ---- The four who decide

/// What the engine remembers, and when a counter is idle.
#[derive(Default)]
struct Model {
    states: HashMap<String, (State, u64)>,
    /// Counters that the servers were made to forget when they were idle.
    forgotten: BTreeSet<String>,
}

impl Model {
    /// The answers, and the keys that must have been written.
    fn decide(&mut self, now_us: u64, batch: &[Asking]) -> (Vec<Answer>, BTreeSet<String>) {
        let mut written = BTreeSet::new();
        let mut answers = Vec::new();
        for Asking { checks, keys } in batch {
            let quota_of = |slot: usize| &checks.iter().rev().find(|check| check.slot == slot).unwrap().quota;
            let state = |(slot, key): (usize, &str)| {
                self.states.get(key).map_or_else(|| State::absent(quota_of(slot)), |(state, _)| state.clone())
            };
            let mut states: Vec<State> = keys.iter().enumerate().map(state).collect();
            let (decisions, changed) = decide(now_us, checks, &mut states);
            for (slot, state) in states.into_iter().enumerate().filter(|(slot, _)| changed[*slot]) {
                let idle_at_us = state.idle_at_us(quota_of(slot));
                self.states.insert(keys.get(slot).to_owned(), (state, idle_at_us));
                self.forgotten.remove(keys.get(slot));
                written.insert(keys.get(slot).to_owned());
            }
            answers.push(Ok(decisions));
        }
        (answers, written)
    }
}

/// What a server holds for a key after a batch.
type Held = (Option<Vec<u8>>, i64);

/// The script, and in the same transaction what it left behind. TTLs are taken off, because the time of the test is not the
/// time of the server.
fn decide_on(
    connection: &mut Connection,
    now_us: u64,
    batch: &[Asking],
    keys: &BTreeSet<&str>,
) -> (Vec<Answer>, Vec<Held>) {
    let mut pipe = redis::pipe();
    pipe.atomic().add_command(evalsha(now_us, batch));
    for key in keys {
        pipe.cmd("GET").arg(key).cmd("PTTL").arg(key).cmd("PERSIST").arg(key);
    }
    let replies: Vec<Value> = pipe.query(connection).unwrap();
    let held = |replies: &[Value]| {
        let value: Option<Vec<u8>> = redis::from_redis_value(replies[0].clone()).unwrap();
        (value, redis::from_redis_value(replies[1].clone()).unwrap())
    };
    (script::decode(&replies[0], &asked(batch)).unwrap(), replies[1..].chunks(3).map(held).collect())
}

fn assert_held(model: &Model, now_us: u64, key: &str, is_written: bool, held: &Held, context: &str) {
    let (value, ttl_ms) = held;
    let Some((expected, idle_at_us)) = model.states.get(key).filter(|_| !model.forgotten.contains(key)) else {
        assert_eq!(*held, (None, -2), "{context}: {key} was written");
        return;
    };
    let value = value.as_ref().unwrap_or_else(|| panic!("{context}: {key} is missing"));
    assert_eq!(state::decode(value).as_ref(), Ok(expected), "{context}: state of {key}");
    assert_eq!(**value, *state::encode(expected), "{context}: bytes of {key}");
    if is_written {
        let expected_ms = i64::try_from(idle_at_us.saturating_sub(now_us).div_ceil(1_000).max(1)).unwrap();
        assert!((expected_ms - TTL_SLACK_MS..=expected_ms).contains(ttl_ms), "{context}: {key} {ttl_ms} {expected_ms}");
        assert!(*ttl_ms >= 0, "{context}: {key} has no TTL");
    } else {
        assert_eq!(*ttl_ms, -1, "{context}: {key} was written without need");
    }
}

/// Proof that the test has seen what it is for.
#[derive(Default)]
struct Mix {
    requests: u64,
    takes: u64,
    admitted: u64,
    seen: BTreeSet<String>,
}

impl Mix {
    fn note(&mut self, check: &Check, decision: &Decision) {
        let hits = match check.hits {
            Hits::Take(0) => "look",
            Hits::Take(_) => "take",
            Hits::Refund(_) => "refund",
        };
        if check.hits.taken() > 0 {
            self.takes += 1;
            self.admitted += u64::from(decision.fits);
        }
        let retry = match decision.retry {
            Retry::Now => "now",
            Retry::After(_) => "after",
            Retry::Never => "never",
        };
        let quota = &check.quota;
        let rates = quota.rates().len();
        self.seen.insert(format!("{} {hits} fits {}", quota.algorithm().name(), decision.fits));
        self.seen.insert(format!("{:?} {:?} {hits} fits {}", check.mode, quota.on_over_limit(), decision.fits));
        self.seen.insert(format!("{} rates {rates} governed by {}", quota.algorithm().name(), decision.rate));
        self.seen.insert(format!("{} retry {retry} fits {}", quota.algorithm().name(), decision.fits));
        self.seen.insert(format!("denials {}", decision.denials > 0));
        self.seen.insert(format!("chained {}", check.chained));
    }

    fn assert_is_rich(&self) {
        assert!(self.requests >= 30_000, "only {} requests", self.requests);
        let share = self.admitted * 100 / self.takes;
        assert!((20..=80).contains(&share), "{share} % of {} takes were admitted", self.takes);
        let mut wanted: Vec<String> = vec!["denials true".into(), "chained true".into()];
        for algorithm in Algorithm::ALL.map(Algorithm::name) {
            wanted.extend([true, false].map(|fits| format!("{algorithm} take fits {fits}")));
            wanted.extend([true, false].map(|fits| format!("{algorithm} look fits {fits}")));
            wanted.push(format!("{algorithm} refund fits true"));
            wanted.extend(["after", "never"].map(|retry| format!("{algorithm} retry {retry} fits false")));
            wanted.extend((0..4).map(|rate| format!("{algorithm} rates 4 governed by {rate}")));
        }
        for mode in ["Enforce", "Shadow", "Quota"] {
            for over in ["Charge", "Spare"] {
                wanted.extend([true, false].map(|fits| format!("{mode} {over} take fits {fits}")));
                wanted.push(format!("{mode} {over} refund fits true"));
            }
        }
        let missing: Vec<&String> = wanted.iter().filter(|what| !self.seen.contains(*what)).collect();
        assert!(missing.is_empty(), "never seen: {missing:?}");
    }
}

/// Takes idle counters from the servers, as their TTL would. Only where time runs forwards: TTLs are by the server's clock.
fn forget_idle(model: &mut Model, now_us: u64, connections: &mut [Connection]) {
    for (key, (_, idle_at_us)) in &model.states {
        if *idle_at_us <= now_us && model.forgotten.insert(key.clone()) {
            for connection in &mut *connections {
                let deleted: u64 = redis::cmd("DEL").arg(key).query(connection).unwrap();
                assert_eq!(deleted, 1);
            }
        }
    }
}

fn assert_memory(
    memory: &MemoryStore,
    model: &Model,
    now_us: u64,
    batch: &[Asking],
    expected: &[Answer],
    context: &str,
) {
    for (asking, expected) in batch.iter().zip(expected) {
        let decisions = memory.decide_at(now_us, &asking.checks, &asking.keys);
        assert_eq!(Ok(decisions), *expected, "{context}: the memory store to {:#?}", asking.checks);
    }
    for key in batch.iter().flat_map(|asking| asking.keys.iter()) {
        let (held, known) = (memory.peek(key), model.states.get(key));
        // An idle counter is as good as none: when it is dropped depends on who comes by.
        let is_idle = known.is_none_or(|(_, idle_at_us)| *idle_at_us <= now_us);
        if held.is_some() || !is_idle {
            assert_eq!(held.as_ref(), known.map(|(state, _)| state), "{context}: the memory store's {key}");
        }
    }
}

fn run_session(seed: u64, session: u64, connections: &mut [Connection], mix: &mut Mix) {
    let mut rng = Rng::with_seed(seed.wrapping_mul(1_000).wrapping_add(session));
    let only_forwards = session.is_multiple_of(3);
    let mut counters = random_counters(&mut rng, session);
    if only_forwards {
        // What is idle under one rule need not be idle under the next.
        counters.iter_mut().for_each(|counter| counter.quotas.truncate(1));
    }
    let mut model = Model::default();
    let memory = MemoryStore::new(1_000_000);
    let mut now_us = START_US + rng.u64(..1_000_000_000);
    for step in 0..BATCHES_PER_SESSION {
        let context = format!("DIFFERENTIAL_SEED={seed} session {session} batch {step} at {now_us}");
        if only_forwards {
            forget_idle(&mut model, now_us, connections);
        }
        let batch = random_batch(&mut rng, &counters);
        let keys: BTreeSet<&str> = batch.iter().flat_map(|asking| asking.keys.iter()).collect();
        let (expected, written) = model.decide(now_us, &batch);
        for connection in &mut *connections {
            let (answers, held) = decide_on(connection, now_us, &batch, &keys);
            for (index, (answer, expected)) in answers.iter().zip(&expected).enumerate() {
                assert_eq!(answer, expected, "{context}: answer {index} to {:#?}", batch[index].checks);
            }
            for (key, held) in keys.iter().zip(&held) {
                assert_held(&model, now_us, key, written.contains(*key), held, &context);
            }
        }
        // The embedded store drops what is idle by its own clock, which does not run backwards as these do.
        if only_forwards {
            assert_memory(&memory, &model, now_us, &batch, &expected, &context);
        }
        for (asking, answer) in batch.iter().zip(&expected) {
            mix.requests += 1;
            for (check, decision) in asking.checks.iter().zip(answer.as_ref().unwrap()) {
                mix.note(check, decision);
            }
        }
        now_us = random_time(&mut rng, now_us, &counters, only_forwards).min(YEAR_2100_US);
    }
}

#[test]
fn the_engine_the_memory_store_and_the_script_on_redis_and_on_valkey_decide_the_same() {
    let seed =
        std::env::var("DIFFERENTIAL_SEED").map_or_else(|_| fastrand::u64(..1 << 40), |seed| seed.parse().unwrap());
    println!("DIFFERENTIAL_SEED={seed}");
    let servers = [Server::start(REDIS), Server::start(VALKEY)];
    let mut connections: Vec<Connection> = servers.iter().map(connect).collect();
    let mut mix = Mix::default();
    for session in 0..SESSIONS {
        run_session(seed, session, &mut connections, &mut mix);
    }
    mix.assert_is_rich();
}
