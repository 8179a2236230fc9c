//! What changes while traffic flows: rules, and the sluices themselves.

use std::{
    net::TcpListener,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use super::{
    Edge, deployed,
    process::{self, Envoy},
    then_refused,
};
use crate::{
    harness::{Server, wait_until},
    servers,
};

/// Asks from several callers while `change` happens, and gives every status that came.
fn under_load(envoy: &Envoy, change: impl FnOnce()) -> Vec<u16> {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let ask = || {
            let mut statuses = Vec::new();
            while !done.load(Ordering::Relaxed) {
                statuses.push(envoy.get("/users", &[("x-user", "load")]).status);
            }
            statuses
        };
        let callers: Vec<_> = (0..3).map(|_| scope.spawn(ask)).collect();
        change();
        done.store(true, Ordering::Relaxed);
        callers.into_iter().flat_map(|caller| caller.join().expect("asks")).collect()
    })
}

#[test]
fn edited_rules_are_in_force_while_traffic_flows_and_bad_ones_never() {
    let edge = Edge::start();
    let rules = deployed("rules.yaml");
    let edited = rules.replace(
        "{name: per_user, unit: hour, requests_per_unit: 3}",
        "{name: per_user, unit: hour, requests_per_unit: 1000000}",
    );
    assert_ne!(rules, edited);
    let statuses = under_load(&edge.envoy, || {
        wait_until("the limit is reached", || edge.envoy.get("/users", &[("x-user", "load")]).status == 429);
        edge.sluice.write("rules.yaml", &edited);
        wait_until("the edit is in force", || edge.envoy.get("/users", &[("x-user", "load")]).status == 200);
        edge.sluice.write("rules.yaml", "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: fortnight}}]\n");
        edge.sluice.wait_for_line(&["fortnight"]);
        assert_eq!(edge.envoy.get("/users", &[("x-user", "load")]).status, 200);
    });
    assert!(statuses.iter().all(|status| matches!(status, 200 | 429)));
    assert_eq!(edge.envoy.errors(), 0);
    // What did not change has kept its counters.
    assert_eq!(edge.statuses(5, "/login", &[]), then_refused(5, 0));
    edge.sluice.write("rules.yaml", &rules);
    wait_until("the rules are back", || edge.sluice.config()["generation"] == 3);
    assert_eq!(edge.envoy.get("/login", &[]).status, 429);
}

/// Two sluices on ports of their own, which they get again after a restart, and the store that they share.
struct Replicas {
    store: servers::Server,
    drain_delay: &'static str,
    sluices: Vec<(u16, Server)>,
}

impl Replicas {
    fn start(drain_delay: &'static str) -> Self {
        let mut replicas = Self { store: servers::Server::start(servers::REDIS), drain_delay, sluices: Vec::new() };
        for _ in 0..2 {
            let free = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port is free");
            replicas.sluices.push((free.port(), replicas.sluice(free.port())));
        }
        replicas
    }

    fn sluice(&self, port: u16) -> Server {
        let rules =
            "domain: edge\ndescriptors:\n  - {key: user, rate_limit: {unit: hour, requests_per_unit: 1000000}}\n";
        Server::builder()
            .file("rules.yaml", rules)
            .env("GRPC_PORT", &port.to_string())
            .env("DRAIN_DELAY", self.drain_delay)
            .env("REDIS_URL", &self.store.url())
            .env("REDIS_TIMEOUT", "5s")
            .start()
    }

    fn bootstrap(&self) -> process::Builder {
        Envoy::bootstrap("replicas.yaml").patient().port(8081, self.sluices[0].0).port(8091, self.sluices[1].0)
    }

    fn restart(&mut self, index: usize) {
        let (port, sluice) = &mut self.sluices[index];
        sluice.terminate();
        assert!(sluice.wait_for_exit().success());
        let port = *port;
        self.sluices[index].1 = self.sluice(port);
    }
}

/// Every request was decided, and counted once, whoever did it.
fn assert_none_lost(envoy: &Envoy, statuses: &[u16]) {
    assert!(statuses.len() > 50, "there was next to no load: {}", statuses.len());
    assert!(statuses.iter().all(|status| *status == 200));
    assert_eq!(envoy.errors(), 0);
    assert_eq!(envoy.counter("cluster.app.ratelimit.ok"), statuses.len() as u64);
    let counted = envoy.get("/users", &[("x-user", "load")]);
    let remaining: usize =
        counted.header("x-ratelimit-remaining").and_then(|text| text.parse().ok()).expect("a number");
    assert_eq!(remaining, 1_000_000 - statuses.len() - 1);
}

#[test]
fn two_sluices_that_drain_long_enough_are_restarted_in_turn_without_a_call_lost() {
    let mut replicas = Replicas::start("5s");
    // Health checks alone have to do.
    let envoy = replicas.bootstrap().replace("num_retries: 2", "num_retries: 0").start();
    wait_until("both are healthy", || envoy.healthy_sluices() == 2);
    let statuses = under_load(&envoy, || {
        for index in 0..2 {
            replicas.restart(index);
            wait_until("both are healthy again", || envoy.healthy_sluices() == 2);
        }
    });
    assert_none_lost(&envoy, &statuses);
}

#[test]
fn two_sluices_that_do_not_drain_are_restarted_in_turn_and_what_they_have_not_seen_goes_to_the_other() {
    let mut replicas = Replicas::start("0s");
    // Health checks come too late to help.
    let envoy = replicas.bootstrap().replace("interval: 1s", "interval: 600s").start();
    let statuses = under_load(&envoy, || (0..8).for_each(|turn| replicas.restart(turn % 2)));
    assert_none_lost(&envoy, &statuses);
}
