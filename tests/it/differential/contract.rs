//! The contract of the script, one thing at a time.

use super::*;

fn one(key: &str, quota: &Arc<Quota>) -> Asking {
    let check = Check { quota: quota.clone(), slot: 0, hits: Hits::ONE, mode: Mode::Enforce, chained: false };
    Asking { checks: vec![check], keys: [key].into_iter().collect() }
}

fn ten_per_second() -> Arc<Quota> {
    let period = Period::try_new(Unit::Second, 1).unwrap();
    let rate = RateSpec { requests: 10, period, burst: Some(100), name: None };
    Arc::new(Quota::try_new(Algorithm::TokenBucket, vec![rate], OnOverLimit::Spare, false).unwrap())
}

#[test]
fn the_worked_example_of_the_contract_is_true() {
    for binary in [REDIS, VALKEY] {
        let server = Server::start(binary);
        let mut connection = connect(&server);
        let batch = [one("{edge}b1/2:ip7:1.2.3.4", &ten_per_second())];
        let reply: redis::Value = evalsha(START_US, &batch).query(&mut connection).unwrap();
        let time = &START_US.to_le_bytes()[..7];
        assert_eq!(reply, redis::Value::BulkString([time, &[0]].concat()), "{binary}: it was absent");
        let value: Vec<u8> = redis::cmd("GET").arg("{edge}b1/2:ip7:1.2.3.4").query(&mut connection).unwrap();
        assert_eq!(value, [&[16], time, &1_000_000_u32.to_le_bytes()].concat(), "{binary}");
        let reply: redis::Value = evalsha(START_US, &batch).query(&mut connection).unwrap();
        assert_eq!(reply, redis::Value::BulkString([time, &value].concat()), "{binary}: now it is found");
    }
}

#[test]
fn without_a_time_the_clock_of_the_server_counts() {
    for binary in [REDIS, VALKEY] {
        let server = Server::start(binary);
        let mut connection = connect(&server);
        let time_us = |connection: &mut Connection| {
            let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(connection).unwrap();
            seconds * 1_000_000 + micros
        };
        let period = Period::try_new(Unit::Year, 1).unwrap();
        let quota = Arc::new(Quota::fixed_window(10, period).unwrap());
        let before_us = time_us(&mut connection);
        call(&mut connection, 0, &[one("{test}a", &quota)]);
        let after_us = time_us(&mut connection);
        let value: Vec<u8> = redis::cmd("GET").arg("{test}a").query(&mut connection).unwrap();
        assert!((before_us..=after_us).contains(&state::decode(&value).unwrap().at_us), "{binary}");
        let calls: String = redis::cmd("INFO").arg("commandstats").query(&mut connection).unwrap();
        assert!(calls.contains("cmdstat_time:calls=3,"), "{binary}: {calls}");
        let ends_ms: u64 = redis::cmd("PEXPIRETIME").arg("{test}a").query(&mut connection).unwrap();
        let year_ms = quota.rates()[0].period_us() / 1_000;
        assert_eq!(ends_ms, (before_us / 1_000 / year_ms + 1) * year_ms, "{binary}: it lives to the end of its window");
    }
}

#[test]
fn a_key_lives_to_the_millisecond_in_which_it_is_idle_and_not_to_the_one_before() {
    for binary in [REDIS, VALKEY] {
        let server = Server::start(binary);
        let mut connection = connect(&server);
        // In turn as long as each other and not: what is written of one must not be taken for the next.
        let quotas = [Unit::Year, Unit::Hour].map(|unit| {
            let rate = RateSpec { requests: 7, period: Period::try_new(unit, 1).unwrap(), burst: None, name: None };
            Arc::new(Quota::try_new(Algorithm::TokenBucket, vec![rate], OnOverLimit::Spare, false).unwrap())
        });
        let names: Vec<String> = (0..8).map(|number| format!("{{test}}{number}")).collect();
        let asked: Vec<Asking> = names.iter().zip(quotas.iter().cycle()).map(|(key, quota)| one(key, quota)).collect();
        call(&mut connection, 0, &asked);
        for (key, quota) in names.iter().zip(quotas.iter().cycle()) {
            let value: Vec<u8> = redis::cmd("GET").arg(key).query(&mut connection).unwrap();
            let ends_ms: u64 = redis::cmd("PEXPIRETIME").arg(key).query(&mut connection).unwrap();
            let idle_at_us = state::decode(&value).unwrap().idle_at_us(quota);
            assert_eq!(ends_ms, idle_at_us.div_ceil(1_000), "{binary}: {key}");
        }
    }
}

#[test]
fn a_key_that_many_requests_of_a_batch_use_is_read_and_written_once() {
    for binary in [REDIS, VALKEY] {
        let server = Server::start(binary);
        let mut connection = connect(&server);
        let quota = ten_per_second();
        let batch: Vec<Asking> = (0..8).map(|_| one("{test}a", &quota)).collect();
        let answers = call(&mut connection, START_US, &batch);
        let remaining: Vec<u64> = answers.iter().map(|answer| answer.as_ref().unwrap()[0].remaining).collect();
        assert_eq!(remaining, [99, 98, 97, 96, 95, 94, 93, 92], "{binary}");
        let calls: String = redis::cmd("INFO").arg("commandstats").query(&mut connection).unwrap();
        assert!(calls.contains("cmdstat_get:calls=1,") && calls.contains("cmdstat_set:calls=1,"), "{binary}: {calls}");
    }
}

#[test]
fn keys_that_are_met_once_are_read_in_one_go_and_those_that_are_no_strings_are_left_as_they_are() {
    for binary in [REDIS, VALKEY] {
        let server = Server::start(binary);
        let mut connection = connect(&server);
        redis::cmd("LPUSH").arg("{test}list").arg("x").exec(&mut connection).unwrap();
        let quota = ten_per_second();
        let both = |first: &str, second: &str| {
            let mut both = one(first, &quota);
            both.keys = [first, second].into_iter().collect();
            both.checks.push(Check { slot: 1, ..both.checks[0].clone() });
            both
        };
        let batch =
            || [one("{test}a", &quota), one("{test}list", &quota), both("{test}b", "{test}c"), one("{test}d", &quota)];
        for turn in 1..=2 {
            let answers = call(&mut connection, START_US, &batch());
            for (index, answer) in answers.iter().enumerate().filter(|(index, _)| *index != 1) {
                let decisions = answer.as_ref().unwrap();
                assert!(decisions.iter().all(|decision| decision.remaining == 100 - turn), "{binary}: request {index}");
            }
            assert_eq!(answers[1], Err(ScriptFailure { slot: 0, damage: Damage::BadTypes }), "{binary}");
        }
        // Two that are not there are asked for by themselves in the first turn, the list in both.
        let calls: String = redis::cmd("INFO").arg("commandstats").query(&mut connection).unwrap();
        assert!(calls.contains("cmdstat_mget:calls=2,") && calls.contains("cmdstat_get:calls=4,"), "{binary}: {calls}");

        // Who only looks is told as well.
        let look = |key: &str| {
            let mut look = one(key, &quota);
            look.checks[0].hits = Hits::take(0);
            look
        };
        let answers = call(&mut connection, START_US, &[look("{test}list"), look("{test}none"), look("{test}a")]);
        assert_eq!(answers[0], Err(ScriptFailure { slot: 0, damage: Damage::BadTypes }), "{binary}");
        let remaining = |index: usize| answers[index].as_ref().map(|decisions| decisions[0].remaining);
        assert_eq!((remaining(1), remaining(2)), (Ok(100), Ok(98)), "{binary}");

        // All or nothing, whichever of them is the list.
        for keys in [["{test}list", "{test}e"], ["{test}e", "{test}list"]] {
            let answers = call(&mut connection, START_US, &[both(keys[0], keys[1])]);
            let slot = usize::from(keys[1] == "{test}list");
            assert_eq!(answers[0], Err(ScriptFailure { slot, damage: Damage::BadTypes }), "{binary}: {keys:?}");
        }
        let (length, exists): (u64, u64) =
            redis::pipe().cmd("LLEN").arg("{test}list").cmd("EXISTS").arg("{test}e").query(&mut connection).unwrap();
        assert_eq!((length, exists), (1, 0), "{binary}");
    }
}

#[test]
fn a_key_that_is_not_ours_fails_only_the_requests_that_use_it_and_is_left_as_it_is() {
    let hostile: [(&str, &[u8]); 7] = [
        ("nonsense", b"hello, world"),
        ("short", b"1"),
        ("newer", b"\x20\0\0\0\0\0\0\0\0\0\0\0"),
        ("torn", b"\x10\0\0\0\0\0\0\0\0\0\0\0\0"),
        ("count beyond", b"\x14\0\0\0\0\0\0\0\0\0\0\0\0\0\x20"),
        ("second count beyond", b"\x14\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x20"),
        ("beyond", b"\x10\xff\xff\xff\xff\xff\xff\xff\0\0\0\0"),
    ];
    for binary in [REDIS, VALKEY] {
        let server = Server::start(binary);
        let mut connection = connect(&server);
        redis::cmd("LPUSH").arg("{test}list").arg("x").exec(&mut connection).unwrap();
        for (name, value) in hostile {
            redis::cmd("SET").arg(format!("{{test}}{name}")).arg(value).exec(&mut connection).unwrap();
        }
        let [_, two_buckets, _] = quotas(Algorithm::TokenBucket);
        let quotas = [ten_per_second(), two_buckets];
        let damaged =
            hostile.map(|(name, _)| (name, Damage::BadResponse)).into_iter().chain([("list", Damage::BadTypes)]);
        for ((name, damage), quota) in damaged.flat_map(|damaged| quotas.each_ref().map(|quota| (damaged, quota))) {
            let capacity = quota.rates()[0].capacity();
            let key = format!("{{test}}{name}");
            let mut pair = one("{test}good", quota);
            pair.keys = ["{test}good", key.as_str()].into_iter().collect();
            pair.checks.push(Check { slot: 1, ..pair.checks[0].clone() });
            redis::cmd("DEL").arg("{test}good").exec(&mut connection).unwrap();
            let dumped =
                |connection: &mut Connection| -> Vec<u8> { redis::cmd("DUMP").arg(&key).query(connection).unwrap() };
            let before = dumped(&mut connection);
            let batch = [one("{test}good", quota), pair, one(&key, quota), one("{test}good", quota)];
            let answers = call(&mut connection, START_US, &batch);
            let remaining = |index: usize| answers[index].as_ref().map(|decisions| decisions[0].remaining);
            assert_eq!(remaining(0), Ok(capacity - 1), "{binary} {name}");
            assert_eq!(remaining(1), Err(&ScriptFailure { slot: 1, damage }), "{binary} {name}");
            assert_eq!(remaining(2), Err(&ScriptFailure { slot: 0, damage }), "{binary} {name}");
            assert_eq!(remaining(3), Ok(capacity - 2), "{binary} {name}");
            assert_eq!(dumped(&mut connection), before, "{binary} {name}");
        }
    }
}

/// One rate, two and three.
fn quotas(algorithm: Algorithm) -> [Arc<Quota>; 3] {
    let spec = |unit| RateSpec { requests: 10, period: Period::try_new(unit, 1).unwrap(), burst: None, name: None };
    let quota = |rates| Arc::new(Quota::try_new(algorithm, rates, OnOverLimit::Charge, false).unwrap());
    let units = [Unit::Minute, Unit::Hour, Unit::Day];
    [1, 2, 3].map(|count| quota(units[..count].iter().map(|unit| spec(*unit)).collect()))
}

/// What is ours by its shape may still hold counts that we never write.
#[test]
fn counts_that_nobody_could_have_reached_are_read_alike() {
    let minute_us = 60_000_000;
    let twice = [2, 120, 2_880].map(|minutes| minutes * minute_us);
    // Of each bucket also a little more than it can owe, which leaks in two periods, but for that little.
    let owed = twice.map(|us| 10 * us + 1);
    let counts = [0, 1, owed[0], u64::from(u32::MAX), 1 << 32, owed[1], owed[2], 1 << 52, (1 << 53) - 1];
    let passed = [0, minute_us / 2, minute_us, twice[0], twice[1], twice[2]];
    let asks = [Hits::take(0), Hits::ONE, Hits::take(u64::MAX), Hits::refund(1), Hits::refund(u64::MAX)];
    for binary in [REDIS, VALKEY] {
        let server = Server::start(binary);
        let mut connection = connect(&server);
        let quotas = [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::TokenBucket].map(quotas);
        for quota in quotas.iter().flatten() {
            let previous = if quota.algorithm() == Algorithm::SlidingWindow { &counts[..] } else { &[0] };
            for (used, previous) in counts.iter().flat_map(|used| previous.iter().map(|previous| (*used, *previous))) {
                let cell = Cell { used, previous };
                let damaged =
                    State { at_us: START_US, cells: quota.rates().iter().map(|_| cell).collect(), denials: 0 };
                for (passed_us, hits) in passed.into_iter().flat_map(|us| asks.map(|hits| (us, hits))) {
                    let now_us = START_US + passed_us;
                    let mut asking = one("{test}a", quota);
                    asking.checks[0].hits = hits;
                    let bytes = state::encode(&damaged);
                    redis::cmd("SET").arg("{test}a").arg(&*bytes).exec(&mut connection).unwrap();
                    let mut states = [damaged.clone()];
                    let (decisions, changed) = decide(now_us, &asking.checks, &mut states);
                    let context = format!("{binary} {:?} {cell:?} {passed_us} {hits:?}", quota.algorithm());
                    assert_eq!(call(&mut connection, now_us, &[asking]), [Ok(decisions)], "{context}");
                    let held: Option<Vec<u8>> = redis::cmd("GET").arg("{test}a").query(&mut connection).unwrap();
                    let expected = if changed[0] { state::encode(&states[0]) } else { bytes };
                    assert!(held.is_none_or(|held| *held == *expected), "{context}");
                }
            }
        }
    }
}
