//! Nodes that are not there, do not answer, or are not what they are taken for.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    thread,
    time::{Duration, Instant},
};

use super::{doctor, doctor_of};
use crate::{
    harness::wait::holds_within,
    servers::{AUTH, REDIS, Server, free_port},
};

/// Far more than the doctor takes, far less than for ever.
const SOON: Duration = Duration::from_secs(10);

#[test]
fn a_replica_in_the_place_of_a_primary_is_named() {
    let primary = Server::start(REDIS);
    let replica = Server::start_with(REDIS, &["--replicaof", "127.0.0.1", &primary.port().to_string()]);
    let seen = doctor_of(&replica.address(), &[]);
    seen.fails("role", &[&replica.address(), "replica", "REDIS_URL", "REDIS_TYPE=SENTINEL"]);
    assert_eq!(seen.failures(), 1, "{seen}");
}

#[test]
fn a_server_that_is_down_is_named() {
    let address = format!("127.0.0.1:{}", free_port());
    doctor_of(&address, &[]).fails("reach", &[&address, "nothing listens there", "REDIS_URL"]);
}

#[test]
fn a_host_that_nobody_knows_is_named() {
    doctor_of("store.invalid:6379", &[]).fails("reach", &["store.invalid:6379", "lookup"]);
}

#[test]
fn a_server_that_is_stopped_is_named_and_not_waited_for() {
    let server = Server::start(REDIS);
    server.pause();
    for env in [&[][..], &[("REDIS_AUTH", "")][..], &[("REDIS_TLS", "true")][..]] {
        let began = Instant::now();
        doctor_of(&server.address(), env).fails("reach", &[&server.address(), "no answer within", "stopped"]);
        assert!(began.elapsed() < SOON, "it took {:?}", began.elapsed());
    }
}

#[test]
fn a_server_that_is_slow_but_within_its_timeout_is_waited_for() {
    let server = Server::start(REDIS);
    server.pause();
    let seen = thread::scope(|scope| {
        let looking = scope.spawn(|| doctor_of(&server.address(), &[("REDIS_TIMEOUT", "20s")]));
        // Longer than the doctor waits for one that the service would not wait for either.
        assert!(!holds_within(Duration::from_millis(1_500), || looking.is_finished()), "it did not wait");
        server.resume();
        looking.join().expect("the doctor looks")
    });
    seen.finds("reach", &[&server.address(), "dialled and logged in"]);
    assert_eq!(seen.failures(), 0, "{seen}");
}

#[test]
fn an_http_server_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let _ = client.read(&mut [0; 1024]);
            let _ = client.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        }
    });
    for auth in [AUTH, ""] {
        let seen = doctor_of(&address, &[("REDIS_AUTH", auth)]);
        seen.fails("reach", &[&address, "an HTTP server answers there", "REDIS_URL"]);
    }
}

#[test]
fn a_server_that_knows_no_hello_is_too_old() {
    let server = Server::start_with(REDIS, &["--rename-command", "HELLO", ""]);
    doctor_of(&server.address(), &[]).fails("version", &[&server.address(), "older than Redis 6.0", "upgrade"]);
}

#[test]
fn a_node_of_a_cluster_in_the_place_of_a_server_is_named() {
    let node = Server::start_with(REDIS, &["--cluster-enabled", "yes", "--cluster-port", &free_port().to_string()]);
    doctor_of(&node.address(), &[]).fails("role", &[&node.address(), "node of a cluster", "REDIS_TYPE=CLUSTER"]);
}

#[test]
fn a_server_in_the_place_of_a_cluster_or_a_sentinel_is_named() {
    let server = Server::start_as(REDIS, "in a cluster also: ", &[]);
    let seen = doctor_of(&server.address(), &[("REDIS_TYPE", "CLUSTER")]);
    seen.fails("cluster", &[&server.address(), "no node of a cluster", "REDIS_TYPE=SINGLE"]);
    let url = format!("mymaster,{}", server.address());
    let seen = doctor(&[("REDIS_URL", &url), ("REDIS_TYPE", "SENTINEL")]);
    seen.fails("sentinel", &[&server.address(), "no sentinel", "REDIS_URL"]);
}
