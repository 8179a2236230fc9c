use std::time::Duration;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tokio_util::sync::CancellationToken;

use axum::routing::get as get_method;

use super::*;
use crate::{connections::Connections, drain::InFlight, telemetry::metrics::Metrics};

fn door(router: Router) -> server::Door {
    let connections = Connections::new(2, Metrics::new().door("http"));
    server::Door { router, connections, in_flight: InFlight::new(1) }
}

#[tokio::test]
async fn a_server_answers_over_tcp_and_ends_when_told() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let serving = tokio::spawn(server::serve(listener, door(house().router), stop.clone()));
    let mut idle = TcpStream::connect(address).await.unwrap();
    idle.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut start = [0; 12];
    idle.read_exact(&mut start).await.unwrap();
    assert_eq!(&start, b"HTTP/1.1 200");
    // The connection stays open and idle: it must not hold up the end.
    stop.cancel();
    tokio::time::timeout(Duration::from_secs(10), serving).await.expect("ends in time").unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn a_server_gives_up_on_a_caller_who_says_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let serving = tokio::spawn(server::serve(listener, door(house().router), stop.clone()));
    let mut silent = TcpStream::connect(address).await.unwrap();
    silent.write_all(b"GET /livez HT").await.unwrap();
    // From here on time runs only while everybody waits.
    tokio::time::pause();
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(Duration::from_mins(10), silent.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "the connection is still open");
    stop.cancel();
    serving.await.unwrap();
}

#[tokio::test]
async fn a_panic_is_answered_500_and_the_connection_goes_on() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let panicking = Router::new().route("/panic", get_method(async || -> StatusCode { panic!("on purpose") }));
    let stop = CancellationToken::new();
    let serving = tokio::spawn(server::serve(listener, door(panicking.merge(house().router)), stop.clone()));
    let mut caller = TcpStream::connect(address).await.unwrap();
    for (path, expected) in [("/panic", "HTTP/1.1 500"), ("/livez", "HTTP/1.1 200"), ("/panic", "HTTP/1.1 500")] {
        caller.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await.unwrap();
        let mut start = [0; 1024];
        let read = caller.read(&mut start).await.unwrap();
        let answer = String::from_utf8_lossy(&start[..read]);
        assert!(answer.starts_with(expected), "{path}: {answer}");
        assert_eq!(answer.contains("sluice has panicked: its log has the place"), path == "/panic", "{answer}");
    }
    stop.cancel();
    tokio::time::timeout(Duration::from_secs(10), serving).await.expect("ends in time").unwrap();
}
