//! Requests that cost more than one hit, none, or give some back.

use super::{Edge, then_refused};
use crate::harness::wait_until;

#[test]
fn a_request_costs_what_its_header_says() {
    let edge = Edge::start();
    let upload = |cost| edge.envoy.get("/uploads", &[("x-user", "ann"), ("x-cost", cost)]).status;
    assert_eq!(["7", "4", "3", "1"].map(upload), [200, 429, 200, 429]);
}

#[test]
fn what_was_given_back_can_be_used_again() {
    let edge = Edge::start();
    let ann = [("x-user", "ann"), ("x-cost", "10")];
    let one = [("x-user", "ann"), ("x-cost", "1")];
    assert_eq!(edge.statuses(2, "/uploads", &ann), then_refused(1, 1));
    assert_eq!(edge.statuses(2, "/uploads/undo", &one), then_refused(2, 0));
    assert_eq!(edge.statuses(3, "/uploads", &one), then_refused(2, 1));
}

#[test]
fn a_response_is_charged_when_it_is_there_and_refused_is_who_asks_after_the_limit_was_passed() {
    let edge = Edge::start();
    // Ten for each response, of 21: 0, 10 and 20 are within the limit, 30 is beyond it.
    for asked in 1..=3_u32 {
        assert_eq!(edge.envoy.get("/chat", &[("x-user", "ann")]).status, 200, "request {asked}");
        // The charge is a call of its own, for whose answer nobody waits.
        let charged = f64::from(asked) * 10.0;
        let hits = r#"ratelimit_service_rate_limit_total_hits{domain="edge",key1="tokens"}"#;
        wait_until("the response is charged", || edge.sluice.metric(hits) == charged);
    }
    assert_eq!(edge.envoy.get("/chat", &[("x-user", "ann")]).status, 429);
    assert_eq!(edge.envoy.get("/chat", &[("x-user", "bob")]).status, 200);
}
