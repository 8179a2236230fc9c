//! A process without file descriptors to spare.

use std::{fs, net::TcpStream, process::Command};

use super::RULES;
use crate::harness::{
    Server,
    grpc::{RateLimitServiceClient, connect, request, wait},
    wait_until,
};

/// Processor time that the process has used, in ticks of 10 ms.
fn ticks(server: &Server) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", server.id())).expect("it runs");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    fields[11].parse::<u64>().expect("a number") + fields[12].parse::<u64>().expect("a number")
}

#[test]
fn without_file_descriptors_the_server_waits_serves_whom_it_has_and_recovers() {
    let server = Server::start(RULES);
    let asked = request("d", &[("user", "a")]);
    wait(async {
        let mut client = RateLimitServiceClient::new(connect(server.grpc()).await);
        client.should_rate_limit(asked.clone()).await.expect("is answered");
        let files = server.footprint().files;
        let limit = format!("--nofile={0}:{0}", files + 5);
        let limited = Command::new("prlimit").args(["--pid", &server.id().to_string(), &limit]).status();
        assert!(limited.expect("prlimit is there").success());

        // The system takes them all; the server gets five of them.
        let waiting: Vec<TcpStream> = (0..50).map(|_| TcpStream::connect(server.grpc()).expect("connects")).collect();
        let starved = |line: &String| line.contains("cannot accept a connection");
        wait_until("it says so", || server.log().iter().any(starved));
        let before = ticks(&server);
        let mut answered = 0;
        let until = std::time::Instant::now() + std::time::Duration::from_secs(3);
        while std::time::Instant::now() < until {
            client.should_rate_limit(asked.clone()).await.expect("who was there is answered throughout");
            answered += 1;
            tokio::time::interval_at(
                tokio::time::Instant::now() + std::time::Duration::from_millis(20),
                std::time::Duration::MAX,
            )
            .tick()
            .await;
        }
        let used = ticks(&server) - before;
        let lines = server.log().iter().filter(|line| starved(line)).count();
        eprintln!("without descriptors: {answered} answers, {used} ticks of 10 ms in 3 s, {lines} lines");
        assert!(used < 100, "{used} ticks of 10 ms within 3 s: it spins");
        assert!(lines <= 2, "{lines} lines");
        drop(waiting);
        let mut late = RateLimitServiceClient::new(connect(server.grpc()).await);
        late.should_rate_limit(asked).await.expect("who comes afterwards is let in");
    });
}

#[test]
fn a_door_has_no_more_connections_than_there_are_descriptors_for() {
    let server = Server::builder().file("rules.yaml", RULES).limit_files(160).start();
    server.wait_for_line(&["not enough file descriptors", "ulimit -n"]);
    let idle = super::attack::idle(server.grpc(), 300, b"");
    wait_until("the oldest have made room", || super::attack::closed(&idle) >= 200);
    server.ask(request("d", &[("user", "new")])).expect("is let in and answered");
    assert_eq!(server.get("/healthcheck").status, 200, "other doors have descriptors left");
    assert!(server.log().iter().all(|line| !line.contains("cannot accept")), "none is missing anywhere");
}
