use std::time::Duration;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tokio_util::sync::CancellationToken;

use super::*;

#[tokio::test]
async fn a_server_answers_over_tcp_and_ends_when_told() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let serving = tokio::spawn(server::serve(listener, house().router, stop.clone()));
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
    let serving = tokio::spawn(server::serve(listener, house().router, stop.clone()));
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
