//! Envoy's question frame by frame: however it is cut up it is the same question, and what is no question is told so.

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, Request};
use prost::Message as _;
use tokio::net::TcpStream;

use crate::harness::{
    Server,
    grpc::{self, Response, request},
};

const RULES: &str = "{domain: d, descriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 1000}}]}";
const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// What a call was answered: the message if there was one, and the headers and trailers as one.
struct Answered {
    message: Option<Response>,
    said: HeaderMap,
}

impl Answered {
    fn status(&self) -> &str {
        self.said["grpc-status"].to_str().unwrap()
    }
}

/// Sends these pieces, each as a frame of its own, on one stream of one connection.
fn call(server: &Server, path: &str, headers: &[(&str, &str)], pieces: &[&[u8]]) -> Answered {
    grpc::wait(async {
        let stream = TcpStream::connect(server.grpc()).await.unwrap();
        let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let mut head = Request::post(format!("http://sluice{path}")).header("content-type", "application/grpc");
        for (name, value) in headers {
            head = head.header(*name, *value);
        }
        let (answer, mut body) = sender.send_request(head.body(()).unwrap(), false).unwrap();
        for piece in pieces {
            // A server that has heard enough may have hung up.
            if body.send_data(Bytes::copy_from_slice(piece), false).is_err() {
                break;
            }
            tokio::task::yield_now().await;
        }
        let _ = body.send_data(Bytes::new(), true);
        let (head, mut body) = answer.await.unwrap().into_parts();
        let mut received = BytesMut::new();
        while let Some(data) = body.data().await {
            let data = data.unwrap();
            body.flow_control().release_capacity(data.len()).unwrap();
            received.extend_from_slice(&data);
        }
        let mut said = head.headers;
        said.extend(body.trailers().await.unwrap().unwrap_or_default());
        let message = received.get(5..).map(|message| Response::decode(message).unwrap());
        Answered { message, said }
    })
}

fn framed(flag: u8, message: &[u8]) -> Vec<u8> {
    let mut bytes = vec![flag];
    bytes.put_u32(u32::try_from(message.len()).unwrap());
    bytes.extend_from_slice(message);
    bytes
}

fn question() -> Vec<u8> {
    framed(0, &request("d", &[("k", "v")]).encode_to_vec())
}

#[test]
fn a_question_in_any_number_of_pieces_is_one_question() {
    let server = Server::start(RULES);
    let question = question();
    let bytes: Vec<&[u8]> = question.chunks(1).collect();
    for (index, pieces) in [vec![&question[..]], vec![&question[..3], &question[3..]], bytes].iter().enumerate() {
        let answered = call(&server, PATH, &[], pieces);
        assert_eq!(answered.status(), "0");
        assert_eq!(answered.said["content-type"], "application/grpc");
        let remaining = answered.message.unwrap().statuses[0].limit_remaining;
        assert_eq!(remaining, 999 - u32::try_from(index).unwrap());
    }
}

#[test]
fn a_question_may_say_that_it_is_not_compressed() {
    let server = Server::start(RULES);
    assert_eq!(call(&server, PATH, &[("grpc-encoding", "identity")], &[&question()]).status(), "0");
}

#[test]
fn what_is_no_question_is_told_so_and_charges_nothing() {
    let server = Server::start(RULES);
    let (question, long) = (question(), framed(0, &vec![0; (4 << 20) + 1]));
    let no_message: &[&[u8]] = &[];
    let cases: [(&str, &[&[u8]], &str, &str); 9] = [
        ("nothing", no_message, "13", "Missing request message"),
        ("half a prefix", &[&question[..4]], "13", "Missing request message"),
        ("half a message", &[&question[..9]], "13", "bytes long"),
        ("two messages", &[&question, &question], "13", "one message"),
        ("compressed, but not said how", &[&framed(1, b"x")], "13", "compressed-flag"),
        ("an unknown flag", &[&framed(7, b"x")], "13", "compression flag"),
        ("no protobuf", &[&framed(0, b"\xff\xff")], "3", "decode"),
        ("more than is taken", &[&long[..5]], "3", "4194304"),
        ("more than is taken, all of it", &[&long], "3", "4194304"),
    ];
    for (what, pieces, status, text) in cases {
        let answered = call(&server, PATH, &[], pieces);
        let said = answered.said["grpc-message"].to_str().unwrap().replace("%20", " ");
        assert_eq!(answered.status(), status, "{what}: {said}");
        assert!(said.contains(text), "{what}: {said}");
        assert!(answered.message.is_none(), "{what}");
    }
    let compressed = call(&server, PATH, &[("grpc-encoding", "gzip")], &[&framed(1, b"x")]);
    assert_eq!((compressed.status(), &compressed.said["grpc-accept-encoding"]), ("12", &"identity".parse().unwrap()));
    assert_eq!(call(&server, PATH, &[], &[&question]).message.unwrap().statuses[0].limit_remaining, 999);
}

#[test]
fn a_method_that_nobody_has_is_unimplemented() {
    let server = Server::start(RULES);
    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldNotRateLimit";
    assert_eq!(call(&server, path, &[], &[&question()]).status(), "12");
}
