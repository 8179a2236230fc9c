//! What rules that spare refused requests have to pay where a request needs more than one call: nothing, if it is refused in the end.

use super::{Stage, ask_all};
use crate::{
    harness::{
        Server as Sluice,
        grpc::{Code, request},
    },
    servers::{REDIS, Server},
};

const RULES: &str = "
domain: d
descriptors:
  - {key: spare, rate_limit: {algorithm: token_bucket, unit: year, requests_per_unit: 1, burst: 100}}
  - {key: second, rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: 1, burst: 100000}}
  - {key: quota, rate_limit: {unit: year, requests_per_unit: 1}, quota_mode: true}
  - {key: no_quota, rate_limit: {unit: second, requests_per_unit: 0}, quota_mode: true}
  - {key: deny, rate_limit: {unit: second, requests_per_unit: 0, on_store_failure: deny}}
  - {key: error, rate_limit: {unit: second, requests_per_unit: 0, on_store_failure: error}}
  - {key: local, rate_limit: {unit: second, requests_per_unit: 0, on_store_failure: local}}
  - {key: damaged, rate_limit: {unit: year, requests_per_unit: 10, on_store_failure: deny}}
";

/// Two servers: the second has the rules per second.
fn two(main: &Stage, per_second: &Server, rules: &str) -> Sluice {
    main.sluice(rules, &[("REDIS_PERSECOND", "true"), ("REDIS_PERSECOND_URL", &per_second.url_of_sluice())])
}

#[test]
fn a_quota_rule_of_another_store_that_admits_lets_the_others_be_charged() {
    let (stage, per_second) = (Stage::Single(Server::start(REDIS)), Server::start(REDIS));
    let sluice = two(&stage, &per_second, RULES);
    let ask = || sluice.ask(ask_all("d", &[("no_quota", "1"), ("second", "1"), ("quota", "1")])).unwrap();
    let admitted = ask();
    assert_eq!(admitted.overall_code, i32::from(Code::Ok), "one quota rule has room");
    assert_eq!(admitted.statuses[1].limit_remaining, 99_999, "it is charged like any other");

    let refused = ask();
    assert_eq!(refused.overall_code, i32::from(Code::OverLimit), "no quota rule has room");
    assert!(refused.statuses[1].limit_remaining >= 99_999, "it is spared: {:?}", refused.statuses[1]);
    let alone = sluice.ask(request("d", &[("second", "1")])).unwrap();
    assert!(alone.statuses[0].limit_remaining >= 99_998, "it was given back: {:?}", alone.statuses[0]);
    stage.assert_clean();
}

#[test]
fn what_was_taken_for_a_request_that_policy_refuses_is_given_back() {
    let (stage, mut per_second) = (Stage::Single(Server::start(REDIS)), Server::start(REDIS));
    let sluice = two(&stage, &per_second, RULES);
    per_second.kill();
    for policy in ["deny", "error", "local"] {
        let answer = sluice.ask(ask_all("d", &[("spare", policy), (policy, "1")]));
        match (policy, answer) {
            ("error", answer) => assert_eq!(answer.unwrap_err().code(), tonic::Code::Unavailable),
            (_, answer) => {
                let answer = answer.unwrap();
                assert_eq!(answer.overall_code, i32::from(Code::OverLimit), "{policy}");
                assert_eq!(answer.statuses[0].limit_remaining, 100, "{policy}: it is spared");
            }
        }
        let alone = sluice.ask(request("d", &[("spare", policy)])).unwrap();
        assert_eq!(alone.statuses[0].limit_remaining, 99, "{policy}: it was given back");
    }
    stage.assert_clean();
}

#[test]
fn what_was_taken_beside_a_damaged_key_whose_policy_refuses_is_given_back() {
    let stage = Stage::Single(Server::start(REDIS));
    let sluice = stage.sluice(RULES, &[]);
    sluice.ask(request("d", &[("damaged", "1")])).unwrap();
    let server = &stage.servers()[0];
    let (key, _) = server.keys().into_iter().find(|(key, _)| key.contains("damaged")).unwrap();
    server.run::<()>(&["SET", &key, "nonsense", "PX", "100000"]);
    let refused = sluice.ask(ask_all("d", &[("spare", "1"), ("damaged", "1")])).unwrap();
    assert_eq!(refused.overall_code, i32::from(Code::OverLimit));
    assert_eq!(refused.statuses[0].limit_remaining, 100, "it is spared");
    let alone = sluice.ask(request("d", &[("spare", "1")])).unwrap();
    assert_eq!(alone.statuses[0].limit_remaining, 99, "it was given back");
}
