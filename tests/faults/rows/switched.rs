//! Another server becomes the primary: by the will of sentinels, or behind one address.

use std::time::Instant;

use super::{Bucket, is_back, other_than, sidecar, sluice};
use crate::{
    harness::{
        grpc::{Request, request},
        load::{Load, Outcome, Style},
        wait::{DEADLINE, holds_within},
        wait_until,
    },
    oracle::History,
    servers::{AUTH, Proxy, REDIS, Sentinels, Server},
    sheet::{Sheet, millis},
    watch::{self, Watch},
};

/// Asked for twice what it is given.
const BUCKET: Bucket = Bucket { capacity: 100.0, per_second: 100.0 };
const STYLE: Style = Style { callers_of_each: 8, pause: Some(millis(40)), deadline: None };

fn rules() -> String {
    format!("domain: d\ndescriptors: [{{key: bucket, rate_limit: {}}}]", BUCKET.rule(""))
}

fn ask(_: usize, _: usize) -> Request {
    request("d", &[("bucket", "one")])
}

pub fn is_primary(server: &Server) -> bool {
    let role: redis::RedisResult<Vec<redis::Value>> = server.try_run(&["ROLE"]);
    role.is_ok_and(|role| matches!(&role[0], redis::Value::BulkString(name) if name == b"master"))
}

pub fn by_sentinels(sheet: &Sheet) {
    let rounds = if sheet.is_full() { 5 } else { 1 };
    for round in 1..=rounds {
        one_failover(sheet, &format!("sentinel, primary killed ({round} of {rounds})"), round);
    }
}

fn one_failover(sheet: &Sheet, fault: &str, round: usize) {
    let mut sentinels = Sentinels::start_with(REDIS, millis(500));
    let url = sentinels.url();
    let env = [
        ("REDIS_TYPE", "SENTINEL"),
        ("REDIS_URL", &url),
        ("REDIS_AUTH", AUTH),
        ("REDIS_SENTINEL_AUTH", AUTH),
        sheet.timeout(),
    ];
    let sluice = sluice(&rules(), &env);
    sluice.wait_for_store();
    let watch = Watch::begin([&sluice]);
    let load = Load::start(&[sluice.grpc()], &STYLE, ask);
    sheet.run(&load, sheet.span(3.0, 1.0));
    sheet.step("the primary is killed");
    let killed = Instant::now();
    sentinels.servers[0].kill();
    // Sentinels who were stalled themselves do nothing for half a minute.
    let promoted = holds_within(3 * DEADLINE, || is_primary(&sentinels.servers[1]));
    assert!(promoted, "there is no other primary after a minute");
    let writes = Instant::now();
    sheet.step(&format!("another is promoted after {:.1?}", writes - killed));
    load.wait_for(Outcome::Ok, writes);
    sheet.run(&load, sheet.span(3.0, 1.0));
    let part = format!("sentinel-{round}");
    let calls = sheet.record(load, &part);
    is_back(sheet, fault, &calls, writes, millis(1_000));
    let wrong = other_than(&calls, &[Outcome::Ok, Outcome::Over, Outcome::DegradedOk]);
    sheet.count(fault, &format!("of {} calls neither by store nor policy", calls.len()), wrong, 0);
    let history = History::of_store(&sheet.recorded(&part), "bucket=one");
    BUCKET.never_too_many(sheet, fault, "burst, with what the lag lost", &history, BUCKET.capacity);
    watch.end(sheet, fault);
    watch::clean(sheet, fault, &[&sentinels.servers[1]]);
}

/// READONLY on sockets that stay open.
pub fn behind_one_address(sheet: &Sheet) {
    demoted(sheet, "FAILOVER TO", |old, new| {
        let port = new.port().to_string();
        old.run::<()>(&["FAILOVER", "TO", "127.0.0.1", &port, "TIMEOUT", "5000"]);
        wait_until("the new one is primary", || is_primary(new) && !is_primary(old));
    });
    demoted(sheet, "REPLICAOF", |old, new| {
        new.run::<()>(&["REPLICAOF", "NO", "ONE"]);
        old.run::<()>(&["REPLICAOF", "127.0.0.1", &new.port().to_string()]);
    });
}

fn demoted(sheet: &Sheet, fault: &str, demote: fn(&Server, &Server)) {
    let old = Server::start(REDIS);
    let new = Server::start_with(REDIS, &["--replicaof", "127.0.0.1", &old.port().to_string()]);
    wait_until("the replica follows", || new.run::<String>(&["INFO", "replication"]).contains("master_link_status:up"));
    let proxy = Proxy::start(&old.address());
    let url = format!("redis://{AUTH}@{}", proxy.address());
    // As long as a caller waits who does not hurry: the one retry is within it.
    let sluice = sluice(&rules(), &[("REDIS_URL", &url), ("REDIS_TIMEOUT", "100ms")]);
    sluice.wait_for_store();
    let watch = Watch::begin([&sluice]);
    let load = Load::start(&[sluice.grpc()], &STYLE, ask);
    sheet.run(&load, sheet.span(3.0, 1.0));
    sheet.step(&format!("{fault}: the primary is one no more"));
    proxy.lead_to(&new.address());
    demote(&old, &new);
    let writes = Instant::now();
    sheet.run(&load, sheet.span(3.0, 1.0));
    let part = fault.split(' ').next().unwrap_or(fault).to_lowercase();
    let calls = sheet.record(load, &part);
    is_back(sheet, fault, &calls, writes, millis(500));
    // The one connection has two calls under way, and on a machine that is busy more.
    let tries = old.errors("READONLY");
    sheet.judge_in_full(
        fault,
        "READONLY on the open connection, one for each call under way",
        &tries,
        "<= 2",
        tries <= 2,
    );
    let wrong = other_than(&calls, &[Outcome::Ok, Outcome::Over, Outcome::DegradedOk]);
    sheet.count(fault, &format!("of {} calls neither by store nor policy", calls.len()), wrong, 0);
    let history = History::of_store(&sheet.recorded(&part), "bucket=one");
    BUCKET.never_too_many(sheet, fault, "burst, with what the lag lost", &history, BUCKET.capacity);
    watch.end(sheet, fault);
    watch::clean(sheet, fault, &[&new]);
}

/// The server forgets the script ten times a second.
pub fn flushed(sheet: &Sheet) {
    let server = Server::start(REDIS);
    let sluice = sidecar(&server, &rules(), &[("REDIS_TIMEOUT", "30s")]);
    let watch = Watch::begin([&sluice]);
    let style = Style { pause: None, ..STYLE };
    // Some that are admitted always, so that the store is asked all the time.
    let make = |caller: usize, turn: usize| match caller % 2 {
        0 => ask(caller, turn),
        _ => request("d", &[("bucket", &format!("{caller}-{turn}"))]),
    };
    let load = Load::start(&[sluice.grpc()], &style, make);
    let flushes = if sheet.is_full() { 100 } else { 10 };
    for _ in 0..flushes {
        sheet.run(&load, millis(100));
        server.run::<()>(&["SCRIPT", "FLUSH"]);
    }
    let calls = sheet.record(load, "redis");
    let fault = "SCRIPT FLUSH every 100 ms";
    let wrong = other_than(&calls, &[Outcome::Ok, Outcome::Over]);
    sheet.count(fault, &format!("of {} calls failed or by policy", calls.len()), wrong, 0);
    let missed = server.calls("eval");
    sheet.judge(fault, &format!("the script was missed, in {flushes} flushes"), &missed, ">= 1", missed > 0);
    BUCKET.never_too_many(sheet, fault, "burst", &History::of_store(&sheet.recorded("redis"), "bucket=one"), 0.0);
    watch.end(sheet, fault);
    watch::clean(sheet, fault, &[&server]);
}
