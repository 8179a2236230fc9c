//! Keys that are not ours, or that we cannot read: left alone, told of, and nobody else's trouble.

use std::time::Instant;

use super::{Stage, ask_all};
use crate::{
    harness::{
        Server as Sluice,
        grpc::{Code, Response, request},
    },
    servers::{REDIS, Server},
};

const RULES: &str = "
domain: d
descriptors:
  - {key: deny, rate_limit: {unit: year, requests_per_unit: 100, on_store_failure: deny}}
  - {key: allow, rate_limit: {unit: year, requests_per_unit: 100}}
  - {key: well, rate_limit: {unit: year, requests_per_unit: 100}}
";

/// It is told once in this time, which twenty turns take only where the machine stalls.
const TOLD_EVERY_S: u64 = 10;

fn is_degraded(response: &Response) -> bool {
    response.response_headers_to_add.iter().any(|header| header.key == "x-ratelimit-degraded" && header.value == "true")
}

/// Damages the counters of `allow` and `deny`, and looks at what follows.
fn with_damaged(reason: &str, damage: impl Fn(&Server, &str), look: impl Fn(&Server, &str) -> String) {
    let stage = Stage::Single(Server::start(REDIS));
    let server = &stage.servers()[0];
    let sluice: Sluice = stage.sluice(RULES, &[]);
    for key in ["allow", "deny"] {
        sluice.ask(request("d", &[(key, "1")])).unwrap();
    }
    let damaged: Vec<String> =
        server.keys().into_iter().map(|(key, _)| key).filter(|key| !key.ends_with("canary")).collect();
    assert_eq!(damaged.len(), 2);
    damaged.iter().for_each(|key| damage(server, key));
    let before: Vec<String> = damaged.iter().map(|key| look(server, key)).collect();

    let began = Instant::now();
    for turn in 1..=20 {
        let allowed = sluice.ask(request("d", &[("allow", "1")])).unwrap();
        assert_eq!((allowed.overall_code, is_degraded(&allowed)), (i32::from(Code::Ok), true));
        let denied = sluice.ask(request("d", &[("deny", "1")])).unwrap();
        assert_eq!((denied.overall_code, is_degraded(&denied)), (i32::from(Code::OverLimit), true));
        let both = sluice.ask(ask_all("d", &[("allow", "1"), ("well", "1")])).unwrap();
        assert_eq!(both.statuses[1].limit_remaining, 100 - turn, "the other rule is counted as ever");
    }
    sluice.wait_for_line(&["not ours"]);
    let told: Vec<String> = sluice.log().into_iter().filter(|line| line.contains("not ours")).collect();
    let most = 1 + began.elapsed().as_secs() / TOLD_EVERY_S;
    assert!(told.len() as u64 <= most, "{told:?}");
    assert!(damaged.iter().any(|key| told[0].contains(key.as_str())), "{} names no key of {damaged:?}", told[0]);
    assert!(sluice.metric(&format!("sluice_store_errors_total{{kind=\"{reason}\"}}")) >= 40.0);
    assert_eq!(sluice.metric("sluice_store_breaker_trips_total"), 0.0, "the store itself is well");
    let after: Vec<String> = damaged.iter().map(|key| look(server, key)).collect();
    assert_eq!(before, after, "they are left as they were");
}

#[test]
fn a_key_of_another_type_is_left_alone() {
    let damage = |server: &Server, key: &str| {
        server.run::<()>(&["DEL", key]);
        server.run::<()>(&["RPUSH", key, "a", "b"]);
    };
    with_damaged("bad_types", damage, |server, key| server.run::<Vec<String>>(&["LRANGE", key, "0", "-1"]).join(","));
}

#[test]
fn nonsense_is_left_alone() {
    let damage = |server: &Server, key: &str| server.run::<()>(&["SET", key, "nonsense", "PX", "100000"]);
    with_damaged("bad_response", damage, |server, key| server.run::<String>(&["GET", key]));
}

#[test]
fn a_state_of_a_newer_release_is_left_alone() {
    let damage = |server: &Server, key: &str| {
        let newer = "\u{70}\0\0\0\0\0\0\0\0\0\0\0";
        server.run::<()>(&["SET", key, newer, "PX", "100000"]);
    };
    with_damaged("bad_response", damage, |server, key| server.run::<String>(&["GET", key]));
}
