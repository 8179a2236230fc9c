//! One beyond each limit of a request, over the wire: a clear error for who is beyond, an answer for everybody else.

use tonic::Code;

use super::RULES;
use crate::harness::{
    Server,
    grpc::{Request, descriptor, native, request, wait},
    http,
};

fn refusal(server: &Server, request: Request) -> (Code, String) {
    let status = server.ask(request).expect_err("is refused");
    (status.code(), status.message().to_owned())
}

#[test]
fn one_beyond_each_limit_of_a_request_is_an_invalid_argument_with_its_place() {
    let server = Server::start(RULES);
    let long = "x".repeat(1_025);
    let huge = "x".repeat((64 << 10) + 1);
    let many_descriptors = Request { descriptors: vec![descriptor(&[("user", "a")]); 257], ..request("d", &[]) };
    let many_entries = request("d", &vec![("user", "a"); 65]);
    let large = Request { descriptors: vec![descriptor(&[("user", &"x".repeat(64 << 10))]); 65], ..request("d", &[]) };
    let mega = request("d", &[("user", &"x".repeat(1 << 20))]);
    for (asked, says) in [
        (request(&long, &[("user", "a")]), "domain has 1025 bytes, at most 1024 are possible"),
        (many_descriptors, "257 descriptors in one request, at most 256 are possible"),
        (many_entries, "descriptors[0] has 65 entries, at most 64 are possible"),
        (request("d", &[(&long, "a")]), "descriptors[0].entries[0].key has 1025 bytes, at most 1024 are possible"),
        (
            request("d", &[("user", &huge)]),
            "descriptors[0].entries[0].value has 65537 bytes, at most 65536 are possible",
        ),
        (mega, "descriptors[0].entries[0].value has 1048576 bytes"),
        (large, "bytes, at most 4194304 are possible"),
    ] {
        let (code, message) = refusal(&server, asked);
        assert_eq!(code, Code::InvalidArgument, "{message}");
        assert!(message.contains(says), "{message}");
        server.ask(request("d", &[("user", "other")])).expect("others are answered");
    }
    let most = request("d", &[("user", &"x".repeat(64 << 10))]);
    server.ask(most).expect("as much as is possible is answered");
}

#[test]
fn one_beyond_each_limit_of_the_native_api_is_an_invalid_argument() {
    let server = Server::start(RULES);
    let asked = native::ConsumeAndCheckLimitRequest {
        limit_key: format!("user:{}", "x".repeat((64 << 10) + 1)),
        ..native::ConsumeAndCheckLimitRequest::default()
    };
    let refused = wait(async {
        let channel = crate::harness::grpc::connect(server.grpc()).await;
        let mut client = native::rate_limiter_service_client::RateLimiterServiceClient::new(channel);
        client.consume_and_check_limit(asked).await.expect_err("is refused")
    });
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert_eq!(refused.message(), "limit_key behind its prefix has 65537 bytes, at most 65536 are possible");
}

#[test]
fn one_beyond_each_limit_of_an_http_request_is_refused_with_its_status() {
    let server = Server::start(RULES);
    let question = |value: &str| {
        format!(r#"{{"domain": "d", "descriptors": [{{"entries": [{{"key": "user", "value": "{value}"}}]}}]}}"#)
    };
    let long = server.post_json(&question(&"x".repeat((64 << 10) + 1)));
    assert_eq!(
        (long.status, &*long.body),
        (400, "descriptors[0].entries[0].value has 65537 bytes, at most 65536 are possible\n")
    );
    let bomb = server.post_json(&format!("[{}0]", "0,".repeat(100_000)));
    assert_eq!(bomb.status, 400);
    assert!(bomb.body.contains("more than 100000 values"), "{}", bomb.body);
    // Whoever sends much more is told so, too, and not cut off in the middle of it.
    for more in [1, 8 << 20] {
        assert_eq!(server.post_json(&" ".repeat((1 << 20) + more)).status, 413);
    }
    let stream = || std::net::TcpStream::connect(server.http()).expect("connects");
    let wide =
        |kib: usize| http::send_over(stream(), "GET", "/livez", &[("x-wide", &"x".repeat(kib << 10))], "").status;
    // What is read in one go is looked at as a whole, so that the limit is not one of single bytes.
    assert_eq!((wide(62), wide(200)), (200, 431));
    // Three are in every request of this client.
    let many = |count| http::send_over(stream(), "GET", "/livez", &vec![("x-many", "x"); count], "").status;
    assert_eq!((many(97), many(98)), (200, 431));
    assert_eq!(server.post_json(&question("other")).status, 200);
}

#[test]
fn calls_beyond_those_in_flight_are_unavailable_at_once_and_others_keep_their_share() {
    use super::wire::{DATA, END_HEADERS, HEADERS, Raw, call_headers, frame};
    let server = Server::builder().file("rules.yaml", RULES).env("MAX_CALLS_IN_FLIGHT", "100").start();
    let mut greedy = Raw::connect(server.grpc(), &[]).expect("connects");
    let open =
        |stream| [frame(HEADERS, END_HEADERS, stream, &call_headers(&[])), frame(DATA, 0, stream, &[0])].concat();
    let held: Vec<u8> = (0..100).flat_map(|number| open(2 * number + 1)).collect();
    greedy.send(&held).expect("is open");
    // Who looks at the metrics is a call, too, so that one of the hundred may find no room.
    let (calls, refused) = ("sluice_calls_in_flight", "sluice_calls_refused_total");
    crate::harness::wait_until("as many are in flight as may be", || {
        server.metric(calls) + server.metric(refused) >= 100.0
    });
    greedy.send(&open(201)).expect("is open");
    crate::harness::wait_until("one more is refused", || server.metric("sluice_calls_refused_total") >= 1.0);
    crate::harness::wait_until("it is told so", || greedy.failed() >= 1);
    server.ask(request("d", &[("user", "other")])).expect("others are answered");
    assert!(!greedy.is_closed());
}
