//! Finding the primary behind sentinels on bad days. What a failover looks like under load is in `tests/faults`.

use std::{net::TcpListener, time::Duration};

use super::sluice;
use crate::{
    harness::grpc::{Code, request},
    servers::{AUTH, Proxy, REDIS, Server, alone, fake::Fake},
};

const RULES: &str = "
domain: d
descriptors:
  - {key: a, rate_limit: {unit: year, requests_per_unit: 3, on_store_failure: deny}}
";

#[test]
fn a_slow_primary_beside_a_replica_that_never_answers_is_connected_all_the_same() {
    let _alone = alone();
    let primary = Server::start_as(REDIS, "behind sentinels also: ", &[]);
    let proxy = Proxy::start(&primary.address());
    // Accepts, and that is all.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let sentinel = Fake::start();
    sentinel.watch(&proxy.address(), &silent.local_addr().unwrap().to_string());
    // A dial may take 2.5 s. The primary has a quarter of it for itself, which is less than the two replies until it is known.
    proxy.set_delay(Duration::from_millis(400));
    let url = format!("mymaster,{}", sentinel.address());
    let env = [
        ("REDIS_TYPE", "SENTINEL"),
        ("REDIS_URL", &*url),
        ("REDIS_AUTH", AUTH),
        ("REDIS_TIMEOUT", "500ms"),
        ("REDIS_POOL_SIZE", "1"),
    ];
    let sluice = sluice(RULES, &env);
    sluice.wait_for_store();
    proxy.set_delay(Duration::ZERO);
    let response = sluice.ask(request("d", &[("a", "1")])).unwrap();
    assert_eq!((response.overall_code, response.statuses[0].limit_remaining), (i32::from(Code::Ok), 2));
}
