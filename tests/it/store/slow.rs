//! A store that is far away: it is used as long as it answers in time, and left alone when it does not, without going back and forth.

use std::time::{Duration, Instant};

use super::sluice;
use crate::{
    harness::load::{Load, Outcome, Style, count, p99},
    servers::{AUTH, Proxy, REDIS, Server, alone},
    store::faults::{RULES, assert_few_lines, many},
};

/// How late replies come, and whether that is within the store timeout.
const DELAYS: [(u64, bool); 4] = [(5, true), (20, true), (120, false), (300, false)];

#[test]
fn a_slow_store_is_used_while_it_is_in_time_and_does_not_flap() {
    let _alone = alone();
    let server = Server::start(REDIS);
    let proxy = Proxy::start(&server.address());
    let url = format!("redis://{AUTH}@{}", proxy.address());
    let sluice = sluice(RULES, &[("REDIS_URL", &url), ("REDIS_TIMEOUT", "60ms")]);
    sluice.wait_for_store();
    let style =
        Style { callers_of_each: 20, pause: Some(Duration::from_millis(50)), deadline: Some(Duration::from_secs(1)) };
    let load = Load::start(&[sluice.grpc()], &style, |caller, _| many(caller));
    load.wait_for_calls(100);
    for (delay_ms, in_time) in DELAYS {
        let trips = sluice.metric("sluice_store_breaker_trips_total");
        proxy.set_delay(Duration::from_millis(delay_ms));
        let since = Instant::now();
        load.run_until(since + Duration::from_secs(2));
        let calls = load.calls_since(since);
        let trips = sluice.metric("sluice_store_breaker_trips_total") - trips;
        let decided = count(&calls, Outcome::Ok);
        println!(
            "{delay_ms} ms late: {decided} of {} decided, p99 {:?}, tripped {trips} times",
            calls.len(),
            p99(&calls)
        );
        assert_eq!(count(&calls, Outcome::Error), 0, "all had an answer before their deadline");
        assert!(trips <= 3.0, "it flaps at {delay_ms} ms");
        if in_time {
            assert!(decided * 2 > calls.len(), "at {delay_ms} ms the store can be used");
        } else {
            assert!(decided * 10 < calls.len(), "at {delay_ms} ms the store cannot be used");
        }
    }
    proxy.set_delay(Duration::ZERO);
    let back = load.wait_for(Outcome::Ok, Instant::now());
    println!("in time again: used after {back:?}");
    load.stop();
    assert_few_lines(&sluice);
    server.assert_clean();
}
