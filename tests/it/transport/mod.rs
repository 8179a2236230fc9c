//! How callers come in and how they are asked to leave: unix sockets, IPv6, TLS, the age of connections, shutdown.

pub mod certificates;
mod leaving;
mod tls;

use std::{
    net::TcpStream,
    os::unix::{fs::PermissionsExt as _, net::UnixListener},
};

use crate::harness::{
    Server,
    grpc::{self, request},
    wait_until,
};

const RULES: &str = "domain: d\ndescriptors:\n  - {key: ip, rate_limit: {unit: hour, requests_per_unit: 100}}\n";

#[test]
fn a_unix_socket_is_served_with_its_mode_and_removed_at_the_end() {
    let dir = tempfile::tempdir().expect("there is room");
    let path = dir.path().join("sluice.sock");
    drop(UnixListener::bind(&path).expect("a stale socket can be made"));
    let server = Server::builder()
        .file("rules.yaml", RULES)
        .env("GRPC_UDS", path.to_str().expect("is text"))
        .env("GRPC_UDS_MODE", "0660")
        .start();
    assert_eq!(server.grpc(), format!("unix:{}", path.display()));
    assert_eq!(std::fs::metadata(&path).expect("is there").permissions().mode() & 0o777, 0o660);
    let answer = server.ask(request("d", &[("ip", "1")])).expect("is answered");
    assert_eq!(answer.statuses[0].limit_remaining, 99);

    let mut second = Server::builder().file("rules.yaml", RULES).env("GRPC_UDS", path.to_str().expect("text")).spawn();
    assert!(!second.wait_for_exit().success());
    assert!(second.log().concat().contains("another process listens"), "{:?}", second.log());
    server.ask(request("d", &[("ip", "1")])).expect("the first one still serves");

    let (status, _) = server.stop();
    assert!(status.success());
    assert!(!path.exists());
}

#[test]
fn an_abstract_socket_is_a_name_and_no_file() {
    let name = format!("sluice-test-{}", std::process::id());
    let server = Server::builder().file("rules.yaml", RULES).env("GRPC_UDS", &format!("@{name}")).start();
    let sockets = std::fs::read_to_string("/proc/net/unix").expect("Linux lists them");
    assert!(sockets.lines().any(|line| line.ends_with(&format!("@{name}"))));
    assert!(server.stop().0.success());
}

#[test]
fn the_unspecified_ipv6_address_takes_callers_of_both_families() {
    let server = Server::builder().file("rules.yaml", RULES).env("GRPC_HOST", "::").env("HOST", "::").start();
    for address in [server.grpc(), server.http()] {
        let port = address.strip_prefix("[::]:").expect("is bound to ::");
        for host in ["127.0.0.1", "[::1]"] {
            TcpStream::connect(format!("{host}:{port}")).unwrap_or_else(|error| panic!("{host}: {error}"));
        }
    }
    let port = server.grpc().trim_start_matches("[::]:");
    for host in ["127.0.0.1", "[::1]"] {
        grpc::ask(&format!("{host}:{port}"), request("d", &[("ip", "1")])).expect("is answered");
    }
}

#[test]
fn a_killed_process_leaves_a_socket_that_the_next_one_takes_over() {
    let dir = tempfile::tempdir().expect("there is room");
    let path = dir.path().join("sluice.sock");
    let start = || Server::builder().file("rules.yaml", RULES).env("GRPC_UDS", path.to_str().expect("is text")).start();
    let killed = start();
    drop(killed);
    wait_until("the socket is left behind", || path.exists());
    start().ask(request("d", &[("ip", "1")])).expect("is answered");
}
