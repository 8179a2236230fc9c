//! One beyond each limit of a connection and of the process.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use super::{
    RULES,
    wire::{
        DATA, END_HEADERS, END_STREAM, HEADERS, PING, Raw, SHOULD_RATE_LIMIT, call, call_headers, frame, headers_to,
        message, question,
    },
};
use crate::harness::{
    Server,
    grpc::{Request, descriptor, request, wait},
    wait::{DEADLINE, holds_within},
    wait_until,
};

/// The HTTP status of a call with a header of so many bytes.
fn status_with_header(server: &Server, bytes: usize) -> u16 {
    wait(async {
        let stream = tokio::net::TcpStream::connect(server.grpc()).await.expect("connects");
        let (client, connection) = h2::client::handshake(stream).await.expect("shakes hands");
        tokio::spawn(connection);
        let uri = "http://sluice/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        let asked = http_of(uri).header("x-long", "x".repeat(bytes)).body(()).expect("is a request");
        let mut client = client.ready().await.expect("is ready");
        let (answer, mut body) = client.send_request(asked, false).expect("is sent");
        body.send_data(question("d", &[("user", "a")]).into(), true).expect("is sent");
        answer.await.expect("is answered").status().as_u16()
    })
}

fn http_of(uri: &str) -> tonic::codegen::http::request::Builder {
    tonic::codegen::http::Request::post(uri).header("content-type", "application/grpc")
}

#[test]
fn headers_beyond_their_limit_are_answered_431() {
    let server = Server::start(RULES);
    assert_eq!(status_with_header(&server, 15 << 10), 200);
    assert_eq!(status_with_header(&server, 16 << 10), 431);
}

#[test]
fn one_call_more_than_a_connection_may_have_under_way_is_refused_and_the_others_go_on() {
    let server = Server::start(RULES);
    let mut raw = Raw::connect(server.grpc(), &[]).expect("connects");
    let unfinished = |number: u32| {
        let stream = 2 * number + 1;
        [frame(HEADERS, END_HEADERS, stream, &call_headers(&[])), frame(DATA, 0, stream, &[0])].concat()
    };
    let most: Vec<u8> = (0..1_024).flat_map(unfinished).collect();
    raw.send(&most).expect("is open");
    assert!(raw.settles());
    assert_eq!(raw.refused(), 0);
    raw.send(&unfinished(1_024)).expect("is open");
    wait_until("one more is refused", || raw.refused() == 1);
    assert!(raw.settles(), "the connection stays");
    server.ask(request("d", &[("user", "other")])).expect("others are answered");
}

#[test]
fn idle_connections_beyond_their_number_are_asked_to_leave_and_busy_ones_stay() {
    let server = Server::builder().file("rules.yaml", RULES).env("GRPC_MAX_IDLE_CONNECTIONS", "1").start();
    let ask = |raw: &mut Raw, number: u32| raw.send(&call(2 * number + 1, &question("d", &[("user", "a")])));
    let mut connections: Vec<Raw> = (0..4).map(|_| Raw::connect(server.grpc(), &[]).expect("connects")).collect();
    for raw in &mut connections {
        ask(raw, 0).expect("is open");
    }
    let mut calls = 0;
    let left = holds_within(2 * DEADLINE, || {
        calls += 1;
        ask(&mut connections[0], calls).expect("the busy one is open");
        connections[1..].iter().filter(|raw| raw.is_closed()).count() == 2
    });
    assert!(left, "all but one have left");
    assert!(!connections[0].is_closed());
    wait_until("they are counted", || {
        server.metric("sluice_connections_closed_total{door=\"grpc\",reason=\"idle\"}") == 2.0
    });
}

/// One message of so many bytes is announced, and not sent.
fn announced(stream: u32, path: &str, bytes: u32) -> Vec<u8> {
    let prefix = [&[0][..], &bytes.to_be_bytes()].concat();
    [frame(HEADERS, END_HEADERS, stream, &headers_to(path, &[])), frame(DATA, 0, stream, &prefix)].concat()
}

#[test]
fn who_announces_much_and_sends_nothing_takes_no_room_from_others_and_loses_only_that_call() {
    let server = Server::start(RULES);
    let mut held: Vec<Raw> = (0..9).map(|_| Raw::connect(server.grpc(), &[]).expect("connects")).collect();
    for raw in &mut held {
        let watches = (0..16).flat_map(|number| announced(2 * number + 1, "/grpc.health.v1.Health/Watch", 4 << 20));
        raw.send(&watches.collect::<Vec<_>>()).expect("is open");
        raw.send(&announced(33, SHOULD_RATE_LIMIT, 1 << 20)).expect("is open");
        assert!(raw.settles());
    }
    let long = "v".repeat(60_000);
    server.ask(request("d", &[("user", &long)])).expect("one with a long value is answered");
    wait_until("those calls are ended", || held.iter().all(|raw| raw.failed() == 17));
    let raw = &mut held[0];
    raw.send(&call(35, &question("d", &[("user", "a")]))).expect("the connection stays");
    wait_until("the next call on the connection is answered", || raw.answers() == 1);
}

#[test]
fn large_requests_that_are_not_complete_are_exhausted_beyond_the_share_of_a_connection() {
    let server = Server::start(RULES);
    let status = wait(async {
        let stream = tokio::net::TcpStream::connect(server.grpc()).await.expect("connects");
        let (mut client, connection) = h2::client::handshake(stream).await.expect("shakes hands");
        tokio::spawn(connection);
        let mut begun = Vec::new();
        for _ in 0..2 {
            client = client.ready().await.expect("is ready");
            let asked = http_of(&format!("http://sluice{SHOULD_RATE_LIMIT}")).body(()).expect("is a request");
            let (answer, mut body) = client.send_request(asked, false).expect("is sent");
            let most = [&[0][..], &(4_u32 << 20).to_be_bytes(), &vec![0; 3 << 20]].concat();
            body.send_data(most.into(), false).expect("is sent");
            begun.push((answer, body));
        }
        let (answers, _bodies): (Vec<_>, Vec<_>) = begun.into_iter().unzip();
        let (answer, ..) = futures_util::future::select_all(answers).await;
        answer.expect("is answered").headers()["grpc-status"].clone()
    });
    assert_eq!(status, "8", "RESOURCE_EXHAUSTED");
    server.ask(request("d", &[("user", "other")])).expect("others are answered");
}

#[test]
fn one_watch_too_many_is_refused_and_the_others_go_on() {
    let server = Server::start(RULES);
    let mut raw = Raw::connect(server.grpc(), &[]).expect("connects");
    let watch = |number: u32| {
        let head = frame(HEADERS, END_HEADERS, 2 * number + 1, &headers_to("/grpc.health.v1.Health/Watch", &[]));
        [head, frame(DATA, END_STREAM, 2 * number + 1, &message(false, &[]))].concat()
    };
    raw.send(&(0..16).flat_map(watch).collect::<Vec<_>>()).expect("is open");
    wait_until("all are told how things are", || raw.answers() == 16);
    raw.send(&watch(16)).expect("is open");
    wait_until("one more is refused", || raw.failed() == 1);
    assert_eq!(raw.answers(), 16);
}

#[test]
fn connections_that_have_not_asked_make_room_whatever_they_have_said() {
    let server = Server::builder().file("rules.yaml", RULES).env("GRPC_MAX_CONNECTIONS", "50").start();
    let pinged = [super::attack::opening(), frame(PING, 0, 0, b"pingping")].concat();
    let held = super::attack::idle(server.grpc(), 60, &pinged);
    server.ask(request("d", &[("user", "new")])).expect("one who comes late is let in and answered");
    wait_until("the oldest have made room", || super::attack::closed(&held) >= 11);
    drop(held);
    let begun = super::attack::idle(server.http(), 1_100, b"G");
    assert_eq!(server.get("/livez").status, 200, "a probe is answered");
    assert!(super::attack::closed(&begun) >= 77);
}

#[test]
fn a_body_that_stalls_and_a_caller_who_says_nothing_are_cut_off_while_others_are_served() {
    let server = Server::start(RULES);
    let mut slow = TcpStream::connect(server.http()).expect("connects");
    slow.write_all(b"POST /json HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{").expect("is sent");
    let mut silent = TcpStream::connect(server.http()).expect("connects");
    let is_closed = |stream: &mut TcpStream| {
        stream.set_nonblocking(true).expect("is a socket");
        matches!(stream.read(&mut [0; 1 << 10]), Ok(0))
    };
    let ended = holds_within(2 * DEADLINE, || {
        assert_eq!(server.get("/livez").status, 200);
        is_closed(&mut silent)
    });
    assert!(ended, "who says nothing is closed");
    let mut answer = String::new();
    slow.set_nonblocking(false).expect("is a socket");
    slow.set_read_timeout(Some(DEADLINE)).expect("is a socket");
    let _ = slow.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer:?}");
}

const BY_VALUE: &str = "\
domain: d
descriptors:
  - {key: user, value_to_metric: true, rate_limit: {unit: year, requests_per_unit: LIMIT}}
  - {key: plain, rate_limit: {unit: year, requests_per_unit: LIMIT}}
";

#[test]
fn a_bomb_of_values_leaves_the_metrics_as_long_as_they_were_across_reloads() {
    let rules = |limit: u32| BY_VALUE.replace("LIMIT", &limit.to_string());
    let server = Server::start(&rules(1_000_000));
    let mut asked = 0_u32;
    let mut bomb = |rounds: u32| {
        for _ in 0..rounds {
            let value = |number: u32| format!("{number}-{}", "x".repeat(number as usize % 400));
            let descriptors = (asked..asked + 128).flat_map(|number| {
                let value = value(number);
                [descriptor(&[("user", &value)]), descriptor(&[("plain", &value)])]
            });
            let descriptors = descriptors.collect();
            server.ask(Request { domain: "d".to_owned(), descriptors, hits_addend: 0 }).expect("is answered");
            asked += 128;
        }
        let text = server.get("/metrics").body;
        (text.lines().count(), text.len())
    };
    let (lines, bytes) = bomb(20);
    assert!(lines > 10_000, "there are 1000 label sets: {lines} lines");
    let (again, _) = bomb(20);
    assert_eq!(again, lines);
    for limit in [2_000_000, 3_000_000] {
        server.write("rules.yaml", &rules(limit));
        wait_until("the rules are applied", || server.get_debug("/rlconfig").body.contains(&limit.to_string()));
        let (again, longer) = bomb(20);
        assert_eq!(again, lines, "a reload gives no new room");
        assert!(longer < bytes + bytes / 20, "{longer} bytes, after {bytes}");
    }
}
