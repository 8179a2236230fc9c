//! Envoy resets every call that it gives up on. However many these are, its connection stays.

use super::{
    RULES,
    wire::{END_HEADERS, HEADERS, PING, RESET, Raw, call, call_headers, frame, question},
};
use crate::harness::{Server, wait::DEADLINE, wait::holds_within, wait_until};

/// Asked in full and given up at once.
fn cancelled(first: u32, count: u32) -> Vec<u8> {
    let question = question("d", &[("user", "envoy")]);
    let one = |number| {
        let stream = 2 * number + 1;
        [call(stream, &question), frame(RESET, 0, stream, &8_u32.to_be_bytes())].concat()
    };
    (first..first + count).flat_map(one).collect()
}

fn hits(server: &Server) -> f64 {
    server.metric("ratelimit_service_rate_limit_total_hits{domain=\"d\",key1=\"user\"}")
}

#[track_caller]
fn is_still_served(server: &Server, mut raw: Raw, next: u32) {
    wait_until("the last call on the connection is answered", || {
        let before = hits(server);
        raw.send(&call(2 * next + 1, &question("d", &[("user", "envoy")]))).expect("the connection is open");
        holds_within(DEADLINE, || hits(server) > before)
    });
    raw.send(&frame(PING, 0, 0, b"are you?")).expect("the connection is open");
    assert!(!raw.is_closed());
    let closed = "sluice_connections_closed_total{door=\"grpc\",reason=\"flood\"}";
    assert_eq!(server.metric(closed), 0.0);
}

#[test]
fn a_connection_survives_any_number_of_calls_that_are_given_up() {
    let server = Server::start(RULES);
    let mut raw = Raw::connect(server.grpc(), &[]).expect("connects");
    for round in 0..100 {
        raw.send(&cancelled(round * 500, 500)).expect("the connection is open");
    }
    is_still_served(&server, raw, 50_000);
}

#[test]
fn a_connection_survives_calls_that_were_given_up_while_the_server_stood_still() {
    let server = Server::start(RULES);
    let mut raw = Raw::connect(server.grpc(), &[]).expect("connects");
    raw.send(&cancelled(0, 1)).expect("the connection is open");
    wait_until("the connection is served", || hits(&server) > 0.0);
    server.pause();
    // As many as the window lets a caller send.
    let pile = cancelled(1, 4_000);
    let sending = std::thread::spawn(move || {
        raw.send(&pile).expect("the connection is open");
        raw
    });
    server.resume();
    is_still_served(&server, sending.join().expect("does not panic"), 4_001);
}

/// Our window is used up by then, so that Envoy opens calls whose messages it may not send, and gives up on them.
#[test]
fn a_connection_survives_calls_without_a_message_that_were_given_up_while_the_server_stood_still() {
    let server = Server::start(RULES);
    let mut raw = Raw::connect(server.grpc(), &[]).expect("connects");
    let question = question("d", &[("user", "envoy")]);
    for first in (0..2_000).step_by(200) {
        let asked = (first..first + 200).flat_map(|number| call(2 * number + 1, &question));
        raw.send(&asked.collect::<Vec<u8>>()).expect("the connection is open");
        assert!(raw.settles());
    }
    server.pause();
    let headers = call_headers(&[]);
    let unasked = |number: u32| {
        let stream = 2 * number + 1;
        [frame(HEADERS, END_HEADERS, stream, &headers), frame(RESET, 0, stream, &8_u32.to_be_bytes())].concat()
    };
    let pile: Vec<u8> = (2_000..6_500).flat_map(unasked).collect();
    let sending = std::thread::spawn(move || {
        raw.send(&pile).expect("the connection is open");
        raw
    });
    server.resume();
    is_still_served(&server, sending.join().expect("does not panic"), 6_500);
}
