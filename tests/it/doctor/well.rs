//! A deployment that is well, and what the doctor leaves behind.

use std::collections::HashMap;

use redis::Value;

use super::{doctor, doctor_of};
use crate::{
    harness::{Server as Sluice, grpc::request, sluice},
    servers::{AUTH, REDIS, Server, VALKEY},
};

#[test]
fn all_is_well_with_no_more_permissions_than_the_documented_ones() {
    for binary in [REDIS, VALKEY] {
        let server = Server::start(binary);
        let seen = doctor_of(&server.address(), &[]);
        assert_eq!(seen.code, Some(0), "{seen}");
        for check in ["settings", "rules", "reach", "version", "role", "acl", "script", "clock"] {
            seen.finds(check, &[]);
        }
        // Whether Envoy's default is enough depends on how busy this machine is; what is enough does not.
        seen.says("envoy", &["timeout: 2.223s", "here allow"]);
        seen.finds("setup", &[&server.address(), "not looked at", "+info +config|get"]);
        assert!(!seen.has("warn", "setup", &[]), "the documented permissions are enough for --deny-warnings: {seen}");
    }
}

#[test]
fn it_looks_at_the_setup_where_it_may() {
    let server = Server::start(REDIS);
    server.run::<()>(&["ACL", "SETUSER", "sluice", "+info", "+config|get"]);
    let seen = doctor_of(&server.address(), &[]);
    assert_eq!(seen.code, Some(0), "{seen}");
    for check in ["eviction", "persistence", "replication"] {
        seen.finds(check, &[&server.address()]);
    }
    assert!(!seen.stdout.contains("not looked at"), "{seen}");
    server.assert_clean();
}

#[test]
fn it_leaves_nothing_that_lasts_and_tries_nothing_forbidden_but_to_look_at_the_setup() {
    let server = Server::start(REDIS);
    doctor_of(&server.address(), &[("CACHE_KEY_PREFIX", "app:")]);
    let keys = server.keys();
    assert!(keys.iter().all(|(key, _)| key.starts_with("app:{sluice-") && key.contains("}doctor")), "{keys:?}");
    assert!(keys.iter().all(|(_, left)| *left != -1), "{keys:?}");
    let log: Vec<HashMap<String, Value>> = server.run(&["ACL", "LOG"]);
    let object = |entry: &HashMap<String, Value>| redis::from_redis_value::<String>(entry["object"].clone()).unwrap();
    let mut forbidden: Vec<String> = log.iter().map(object).collect();
    forbidden.sort_unstable();
    assert_eq!(forbidden, ["config|get", "info"]);
}

#[test]
fn it_charges_no_counter_of_a_caller() {
    let server = Server::start(REDIS);
    let sluice = Sluice::builder()
        .file("rules.yaml", super::RULES)
        .env("REDIS_URL", &server.url_of_sluice())
        .env("REDIS_TIMEOUT", "2s")
        .start();
    sluice.wait_for_store();
    let left = || sluice.ask(request("d", &[("a", "1")])).unwrap().statuses[0].limit_remaining;
    assert_eq!(left(), 9);
    let seen = doctor_of(&server.address(), &[]);
    assert_eq!(seen.code, Some(0), "{seen}");
    assert_eq!(left(), 8);
}

#[test]
fn both_stores_are_looked_at() {
    let (main, per_second) = (Server::start(REDIS), Server::start(VALKEY));
    let address = per_second.address();
    let own = [
        ("REDIS_PERSECOND", "true"),
        ("REDIS_PERSECOND_URL", &*address),
        ("REDIS_PERSECOND_AUTH", AUTH),
        ("REDIS_PERSECOND_TIMEOUT", "2s"),
    ];
    let seen = doctor_of(&main.address(), &own);
    assert_eq!(seen.code, Some(0), "{seen}");
    seen.finds("version", &[&main.address(), "Redis"]);
    seen.finds("version", &["per-second", &address, "Valkey"]);

    let wrong = [own[0], own[1], ("REDIS_PERSECOND_AUTH", "sluice:wrong"), own[3]];
    doctor_of(&main.address(), &wrong).fails("reach", &["per-second", &address, "REDIS_PERSECOND_AUTH"]);
}

#[test]
fn without_a_store_the_rest_is_looked_at() {
    let seen = doctor(&[]);
    assert_eq!(seen.code, Some(0), "{seen}");
    seen.finds("rules", &["1 rules of 1 domains"]);
    seen.finds("memory", &["1000000 counters"]);
    assert!(!seen.stdout.contains("\"reach\""), "{seen}");
}

#[test]
fn as_text_it_is_a_line_for_each_check_and_a_summary() {
    let ran = sluice()
        .args([
            "doctor",
            "--rate-limit-config",
            "/nowhere/rules",
            "--port",
            "0",
            "--grpc-port",
            "0",
            "--debug-port",
            "0",
        ])
        .output()
        .unwrap();
    let text = String::from_utf8(ran.stdout).unwrap();
    assert_eq!(ran.status.code(), Some(1), "{text}");
    let failed: Vec<&str> = text.lines().filter(|line| line.starts_with("FAIL  ")).collect();
    assert!(failed.len() == 1 && failed[0].contains("/nowhere/rules"), "{text}");
    let known = ["ok    ", "warn  ", "FAIL  ", "broken: "];
    assert!(text.lines().all(|line| known.iter().any(|begin| line.starts_with(begin))), "{text}");
    assert!(text.trim_end().ends_with("1 failed"), "{text}");
}
