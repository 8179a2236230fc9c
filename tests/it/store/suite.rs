//! What every store must pass: the scenario tables, the conformance tables that count, and keys that hide nothing.

use std::{fs, path::Path};

use redis::Value;
use sluice::{
    engine::{algorithm::Decisions, key, plan::Keys, scenarios},
    store::{
        memory::MemoryStore,
        redis::script::{self, SCRIPT, SHA1},
    },
};

use super::Stage;
use crate::{
    conformance,
    servers::{Cluster, REDIS, Sentinels, Server, VALKEY, alone},
};

/// Runs every scenario against something that decides at a time.
fn run_scenarios(mut decide_at: impl FnMut(u64, &[sluice::engine::algorithm::Check], &Keys) -> Decisions) {
    let directory = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scenarios"));
    let mut steps = 0;
    for file in fs::read_dir(directory).unwrap().map(|file| file.unwrap().path()) {
        let text = fs::read_to_string(&file).unwrap();
        for (number, scenario) in scenarios::parse(&text).unwrap().iter().enumerate() {
            let place = format!("{}-{number}", file.file_stem().unwrap().to_string_lossy());
            for step in &scenario.steps {
                let names: Vec<String> = step.counters.iter().map(|name| format!("{{{place}}}{name}")).collect();
                let keys: Keys = names.iter().map(String::as_str).collect();
                let decisions = decide_at(step.now_us, &step.checks, &keys);
                step.verify(&decisions).unwrap_or_else(|wrong| panic!("{place} ({}): {wrong}", scenario.title));
                steps += 1;
            }
        }
    }
    assert!(steps > 100, "only {steps} steps");
}

#[test]
fn the_embedded_store_passes_the_scenarios() {
    let store = MemoryStore::new(100_000);
    run_scenarios(|now_us, checks, keys| store.decide_at(now_us, checks, keys));
}

fn run_scenarios_on(binary: &str) {
    let server = Server::start(binary);
    let mut connection = server.connection();
    redis::cmd("SCRIPT").arg("LOAD").arg(SCRIPT).exec(&mut connection).unwrap();
    run_scenarios(|now_us, checks, keys| {
        let mut call = redis::cmd("EVALSHA");
        call.arg(SHA1.as_str());
        script::encode(now_us, &[(checks, keys)], &mut call);
        // TTLs are taken off in the same transaction, because the time of the scenario is not the time of the server.
        let mut pipe = redis::pipe();
        pipe.atomic().add_command(call);
        for key in keys.iter() {
            pipe.cmd("PERSIST").arg(key).ignore();
        }
        let (reply,): (Value,) = pipe.query(&mut connection).unwrap();
        script::decode(&reply, &[(checks, keys)]).unwrap().remove(0).unwrap()
    });
}

#[test]
fn redis_passes_the_scenarios() {
    run_scenarios_on(REDIS);
}

#[test]
fn valkey_passes_the_scenarios() {
    run_scenarios_on(VALKEY);
}

/// The tables in which counters matter.
const TABLES: &[&str] = &[
    "charge_and_spare",
    "duplicates",
    "hits",
    "leaky_bucket",
    "looks",
    "modes_together",
    "overrides",
    "partitions",
    "plans",
    "quota",
    "refunds",
    "several_descriptors",
    "shadow",
    "sliding_window",
    "token_bucket",
    "units",
];

fn run_tables(stage: &Stage, tables: &[&str]) {
    for (number, table) in tables.iter().enumerate() {
        conformance::run_on_store(table, &format!("{number}."), &stage.env());
    }
    let keys: usize = stage.servers().iter().map(|server| server.keys().len()).sum();
    assert!(keys > 0, "nothing was counted there");
    stage.assert_clean();
}

#[test]
fn redis_passes_the_conformance_tables() {
    run_tables(&Stage::Single(Server::start(REDIS)), TABLES);
}

#[test]
fn valkey_passes_the_conformance_tables() {
    run_tables(&Stage::Single(Server::start(VALKEY)), TABLES);
}

#[test]
fn sentinel_passes_the_conformance_tables() {
    let _alone = alone();
    run_tables(&Stage::Sentinel(Sentinels::start(REDIS)), TABLES);
}

#[test]
fn a_cluster_passes_the_conformance_tables() {
    let _alone = alone();
    run_tables(&Stage::Cluster(Cluster::start(REDIS)), TABLES);
}

#[test]
fn a_valkey_cluster_and_valkey_sentinels_pass_some_of_them() {
    let _alone = alone();
    let some = &["charge_and_spare", "partitions", "token_bucket"];
    run_tables(&Stage::Cluster(Cluster::start(VALKEY)), some);
    run_tables(&Stage::Sentinel(Sentinels::start(VALKEY)), some);
}

#[test]
fn our_slots_are_those_of_the_cluster_whatever_is_in_a_key() {
    let server = Server::start_with(REDIS, &["--cluster-enabled", "yes"]);
    let hostile =
        ["", "{", "}", "{}", "{}{a}", "{a}b", "a{b}c{d}", "{{a}}", "\0{x}\n", "x{é}", "{a", "a}", "}{a}", "plain"];
    let mut keys: Vec<String> = hostile.iter().map(|key| (*key).to_owned()).collect();
    let mut rng = fastrand::Rng::with_seed(3);
    keys.extend((0..500).map(|_| {
        (0..rng.usize(..12)).map(|_| rng.choice(['{', '}', 'a', 'b', '|', '%', '\0', 'é']).unwrap()).collect()
    }));
    let mut connection = server.connection();
    for key in keys {
        let slot: u16 = redis::cmd("CLUSTER").arg("KEYSLOT").arg(&key).query(&mut connection).unwrap();
        assert_eq!(key::slot(&key), slot, "{key:?}");
    }
}
