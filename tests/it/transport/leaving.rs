//! Connections that grow old and processes that stop: calls in flight are answered, silent callers are not waited for.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use bytes::Bytes;
use h2::{Ping, SendStream, client::ResponseFuture};
use prost::Message as _;
use tokio::{runtime::Runtime, task::JoinHandle};

use super::RULES;
use crate::harness::{
    Server,
    grpc::{Request, Response, request},
    wait::DEADLINE,
    wait_until,
};

/// HTTP/2's opening and an empty SETTINGS frame.
const OPENING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// A caller in the middle of a call: the server has its headers, and waits for the rest.
struct HalfACall {
    runtime: Runtime,
    sender: h2::client::SendRequest<Bytes>,
    connection: JoinHandle<Result<(), h2::Error>>,
    answer: ResponseFuture,
    rest: SendStream<Bytes>,
}

impl HalfACall {
    fn begin(server: &Server, path: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime can be made");
        let (sender, connection, answer, rest) = runtime.block_on(async {
            let stream = tokio::net::TcpStream::connect(server.grpc()).await.expect("is open");
            let (sender, mut connection) = h2::client::handshake(stream).await.expect("speaks HTTP/2");
            let mut ping = connection.ping_pong().expect("is the first to ask for it");
            let connection = tokio::spawn(connection);
            let call = http::Request::post(format!("http://sluice{path}"))
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .body(())
                .expect("is a request");
            let mut sender = sender.ready().await.expect("is ready");
            let (answer, rest) = sender.send_request(call, false).expect("can be sent");
            // Frames are read in order: who has answered the ping has seen the call.
            ping.ping(Ping::opaque()).await.expect("is answered");
            (sender, connection, answer, rest)
        });
        Self { runtime, sender, connection, answer, rest }
    }

    /// Waits for the GOAWAY, after which no other call can be begun.
    fn wait_until_asked_to_leave(&self) {
        wait_until("the caller is asked to leave", || self.runtime.block_on(self.sender.clone().ready()).is_err());
    }

    fn end(mut self, request: &Request) -> Response {
        let message = request.encode_to_vec();
        let length = u32::try_from(message.len()).expect("is small").to_be_bytes();
        self.rest.send_data([&[0], &length[..], &message].concat().into(), true).expect("can be sent");
        let bytes = self.runtime.block_on(async {
            let mut body = (&mut self.answer).await.expect("is answered").into_body();
            let mut bytes = Vec::new();
            while let Some(more) = body.data().await {
                bytes.extend_from_slice(&more.expect("comes whole"));
            }
            assert_eq!(body.trailers().await.expect("come").expect("are there")["grpc-status"], "0");
            bytes
        });
        self.wait_for_the_end();
        Response::decode(&bytes[5..]).expect("is an answer")
    }

    fn wait_for_the_end(self) {
        let Self { runtime, connection, sender, .. } = self;
        drop(sender);
        let ended = runtime.block_on(async { tokio::time::timeout(DEADLINE, connection).await });
        assert!(ended.is_ok(), "the connection is still open");
    }
}

fn served(server: &Server) -> bool {
    server.ask(request("d", &[("ip", "1")])).is_ok()
}

#[test]
fn an_old_connection_is_asked_to_leave_and_its_call_is_answered() {
    let server = Server::builder().file("rules.yaml", RULES).env("GRPC_MAX_CONNECTION_AGE", "1s").start();
    let call = HalfACall::begin(&server, SHOULD_RATE_LIMIT);
    call.wait_until_asked_to_leave();
    let answer = call.end(&request("d", &[("ip", "1")]));
    assert_eq!(answer.statuses[0].limit_remaining, 99);
    assert!(served(&server));
}

#[test]
fn a_connection_that_outlives_its_grace_is_cut() {
    let server = Server::builder()
        .file("rules.yaml", RULES)
        .env("GRPC_MAX_CONNECTION_AGE", "300ms")
        .env("GRPC_MAX_CONNECTION_AGE_GRACE", "300ms")
        .start();
    HalfACall::begin(&server, SHOULD_RATE_LIMIT).wait_for_the_end();
    assert!(served(&server));
}

#[test]
fn a_call_in_flight_is_answered_before_the_process_ends() {
    let mut server = Server::start(RULES);
    let call = HalfACall::begin(&server, SHOULD_RATE_LIMIT);
    server.terminate();
    call.wait_until_asked_to_leave();
    wait_until("nobody new is let in", || TcpStream::connect(server.grpc()).is_err());
    assert_eq!(call.end(&request("d", &[("ip", "1")])).statuses[0].limit_remaining, 99);
    assert!(server.wait_for_exit().success());
    assert!(!cut_something_off(&server));
}

#[test]
fn a_call_that_never_ends_holds_the_process_no_longer_than_the_drain_timeout() {
    let mut server = Server::builder().file("rules.yaml", RULES).env("DRAIN_TIMEOUT", "500ms").start();
    let call = HalfACall::begin(&server, SHOULD_RATE_LIMIT);
    server.terminate();
    assert!(server.wait_for_exit().success());
    assert!(cut_something_off(&server));
    call.wait_for_the_end();
}

#[test]
fn a_health_watch_does_not_keep_the_process_from_ending() {
    let mut server = Server::builder().file("rules.yaml", RULES).env("DRAIN_TIMEOUT", "1m").start();
    let mut watch = HalfACall::begin(&server, "/grpc.health.v1.Health/Watch");
    watch.rest.send_data(Bytes::from_static(&[0; 5]), true).expect("can be sent");
    watch.runtime.block_on(&mut watch.answer).expect("the watch begins");
    server.terminate();
    assert!(server.wait_for_exit().success());
    assert!(!cut_something_off(&server));
}

#[test]
fn callers_who_have_fallen_silent_do_not_keep_the_process_from_ending() {
    let mut server = Server::builder().file("rules.yaml", RULES).env("DRAIN_TIMEOUT", "1m").start();
    let connect = |address: &str, bytes: &[u8]| {
        let mut stream = TcpStream::connect(address).expect("is open");
        stream.write_all(bytes).expect("can be sent");
        stream
    };
    let nothing = connect(server.grpc(), b"");
    let half_an_opening = connect(server.grpc(), &OPENING[..10]);
    let mut opened = connect(server.grpc(), OPENING);
    opened.read_exact(&mut [0; 9]).expect("the server answers with its settings");
    let half_a_line = [server.http(), server.debug()].map(|address| connect(address, b"GET /liv"));
    server.terminate();
    assert!(server.wait_for_exit().success());
    assert!(!cut_something_off(&server), "{:?}", server.log());
    drop((nothing, half_an_opening, opened, half_a_line));
}

fn cut_something_off(server: &Server) -> bool {
    server.log().iter().any(|line| line.contains("cutting them off") || line.contains("did not end in time"))
}
