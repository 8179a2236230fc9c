//! The other bootstraps: a unix socket, and mutual TLS.

use super::{deployed, port, process::Envoy, then_refused, wait_for_room_in_the_hour};
use crate::{harness::Server, transport::certificates::Authority};

fn statuses(envoy: &Envoy) -> Vec<u16> {
    (0..5).map(|_| envoy.get("/", &[("x-user", "ann")]).status).collect()
}

#[test]
fn envoy_asks_over_a_unix_socket() {
    let dir = tempfile::tempdir().expect("there is room");
    let socket = dir.path().join("sluice.sock");
    let socket = socket.to_str().expect("is text");
    let _sluice = Server::builder().file("rules.yaml", &deployed("rules.yaml")).env("GRPC_UDS", socket).start();
    let envoy = Envoy::bootstrap("uds.yaml")
        .patient()
        .replace("path: /run/sluice/sluice.sock", &format!("path: {socket}"))
        .start();
    wait_for_room_in_the_hour();
    assert_eq!(statuses(&envoy), then_refused(3, 2));
    assert_eq!(envoy.errors(), 0);
}

#[test]
fn envoy_asks_over_mutual_tls_and_only_the_named_one_is_answered() {
    let authority = Authority::new();
    authority.sign("server", "DNS:sluice.edge.svc", 20);
    authority.sign("envoy", "URI:spiffe://cluster.local/ns/edge/sa/envoy", 20);
    authority.sign("stranger", "URI:spiffe://cluster.local/ns/edge/sa/stranger", 20);
    let path = |file: &str| authority.path(file).to_str().expect("is text").to_owned();
    let sluice = Server::builder()
        .file("rules.yaml", &deployed("rules.yaml"))
        .env("GRPC_SERVER_USE_TLS", "true")
        .env("GRPC_SERVER_TLS_CERT", &path("server.crt"))
        .env("GRPC_SERVER_TLS_KEY", &path("server.key"))
        .env("GRPC_CLIENT_TLS_CACERT", &path("ca.crt"))
        .env("GRPC_CLIENT_TLS_SAN", "spiffe://cluster.local/ns/edge/sa/envoy")
        .start();
    let envoy = |name: &str| {
        Envoy::bootstrap("mtls.yaml")
            .patient()
            .port(8081, port(sluice.grpc()))
            .replace("/etc/envoy/certs/ca.crt", &path("ca.crt"))
            .replace("/etc/envoy/certs/envoy.crt", &path(&format!("{name}.crt")))
            .replace("/etc/envoy/certs/envoy.key", &path(&format!("{name}.key")))
            .start()
    };
    let named = envoy("envoy");
    wait_for_room_in_the_hour();
    assert_eq!(statuses(&named), then_refused(3, 2));
    assert_eq!(named.errors(), 0);
    let stranger = envoy("stranger");
    assert_eq!(statuses(&stranger), then_refused(5, 0), "Envoy lets requests through that nobody decides");
    assert_eq!(stranger.errors(), 5);
}
