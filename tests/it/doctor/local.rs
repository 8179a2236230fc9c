//! What is on this host: rules, settings, ports, sockets.

use std::{
    fs,
    net::TcpListener,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener},
    },
};

use tempfile::TempDir;

use super::{RULES, doctor};
use crate::{
    harness::{Server as Sluice, sluice},
    transport::certificates::Authority,
};

fn rules(text: &str) -> (TempDir, String) {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("rules.yaml"), text).unwrap();
    let path = dir.path().to_str().unwrap().to_owned();
    (dir, path)
}

#[test]
fn bad_rules_are_named_with_their_place() {
    let (_dir, path) =
        rules("domain: d\ndescriptors:\n  - {key: a, rate_limit: {unit: fortnight, requests_per_unit: 1}}\n");
    doctor(&[("RATE_LIMIT_CONFIG", &path)]).fails("rules", &["rules.yaml:3", "fortnight"]);
    let many = "  - {key: a, rate_limit: {unit: fortnight, requests_per_unit: 1}}\n".repeat(9);
    let (_dir, path) = rules(&format!("domain: d\ndescriptors:\n{many}"));
    doctor(&[("RATE_LIMIT_CONFIG", &path)]).fails("rules", &["more", "sluice check"]);
}

#[test]
fn rules_that_are_missing_are_named() {
    doctor(&[("RATE_LIMIT_CONFIG", "/nowhere/rules")]).fails("rules", &["/nowhere/rules", "RATE_LIMIT_CONFIG"]);
    let waiting = [("RATE_LIMIT_CONFIG", "/nowhere/rules"), ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true")];
    doctor(&waiting).warns("rules", &["/nowhere/rules"]);
    let empty = TempDir::new().unwrap();
    doctor(&[("RATE_LIMIT_CONFIG", empty.path().to_str().unwrap())]).warns("rules", &["nothing is limited"]);
}

#[test]
fn doubtful_rules_and_settings_are_warned_of_and_can_be_denied() {
    let (_dir, path) = rules("domain: d\ndescriptors:\n  - {key: a, rate_limit: {unit: hour, requests_per_unit: 0}}\n");
    let env = [("RATE_LIMIT_CONFIG", &*path), ("MEMCACHE_HOST_PORT", "x:1")];
    let seen = doctor(&env);
    seen.warns("rules", &["rules.yaml:3"]);
    seen.warns("settings", &["MEMCACHE_HOST_PORT"]);
    let ran = sluice().args(["doctor", "--deny-warnings"]).envs(env).env("GRPC_PORT", "0").env("PORT", "0").output();
    assert_eq!(ran.unwrap().status.code(), Some(1));
}

#[test]
fn wrong_settings_and_arguments_are_no_diagnosis() {
    let seen = doctor(&[("PORT", "abc"), ("REDIS_TYPE", "ring"), ("REDIS_URL", "a:1")]);
    assert_eq!(seen.code, Some(2), "{seen}");
    assert!(seen.stderr.contains("PORT") && seen.stderr.contains("SENTINEL"), "{seen}");
    assert_eq!(sluice().args(["doctor", "--dance"]).output().unwrap().status.code(), Some(2));
}

#[test]
fn help_says_what_it_looks_at_and_what_the_exit_codes_mean() {
    let ran = sluice().args(["doctor", "--help"]).output().unwrap();
    let text = String::from_utf8(ran.stdout).unwrap();
    assert_eq!(ran.status.code(), Some(0));
    for part in ["--redis-url", "--deny-warnings", "--format", "Exits with 0", "kubectl exec", "latency"] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

fn port_of(address: &str) -> &str {
    address.rsplit(':').next().unwrap()
}

#[test]
fn a_sluice_that_runs_already_is_recognised() {
    let running = Sluice::start(RULES);
    let ports = [
        ("GRPC_PORT", port_of(running.grpc())),
        ("PORT", port_of(running.http())),
        ("DEBUG_PORT", port_of(running.debug())),
    ];
    let seen = doctor(&ports);
    assert_eq!(seen.code, Some(0), "{seen}");
    seen.finds("listen", &["GRPC_PORT", "says SERVING"]);
    seen.finds("listen", &["\"PORT", concat!("a sluice ", env!("CARGO_PKG_VERSION"))]);
    seen.finds("listen", &["DEBUG_PORT", "a sluice serves"]);

    let sick = Sluice::builder().file("rules.yaml", "domain: [").start();
    doctor(&[("GRPC_PORT", port_of(sick.grpc()))]).fails("listen", &["GRPC_PORT", "NOT_SERVING", "log"]);
}

#[test]
fn a_sluice_that_runs_with_tls_is_recognised() {
    let authority = Authority::new();
    authority.sign("server", "DNS:sluice.test", 20);
    let file = |name: &str| authority.path(name).to_str().unwrap().to_owned();
    let (certificate, key, ca) = (file("server.crt"), file("server.key"), file("ca.crt"));
    let tls =
        [("GRPC_SERVER_USE_TLS", "true"), ("GRPC_SERVER_TLS_CERT", &*certificate), ("GRPC_SERVER_TLS_KEY", &*key)];
    let start = |env: &[(&str, &str)]| {
        let builder = Sluice::builder().file("rules.yaml", RULES);
        env.iter().fold(builder, |builder, (name, value)| builder.env(name, value)).start()
    };
    let running = start(&tls);
    let seen = doctor(&[&tls[..], &[("GRPC_PORT", port_of(running.grpc()))]].concat());
    seen.finds("tls", &["the certificate that is served now ends at"]);
    seen.finds("listen", &["GRPC_PORT", "says SERVING"]);

    let mutual = [&tls[..], &[("GRPC_CLIENT_TLS_CACERT", &*ca)]].concat();
    let running = start(&mutual);
    let seen = doctor(&[&mutual[..], &[("GRPC_PORT", port_of(running.grpc()))]].concat());
    seen.finds("tls", &["the certificate that is served now ends at"]);
    seen.finds("listen", &["GRPC_PORT", "callers with a certificate"]);
}

#[test]
fn a_port_that_is_taken_by_somebody_else_is_named() {
    let other = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = other.local_addr().unwrap().port().to_string();
    doctor(&[("PORT", &port)]).fails("listen", &["\"PORT\"", &port, "no sluice"]);
    doctor(&[("GRPC_PORT", &port)]).fails("listen", &["GRPC_PORT", &port, "no gRPC"]);
}

#[test]
fn an_address_that_this_machine_does_not_have_is_named() {
    doctor(&[("HOST", "192.0.2.1")]).fails("listen", &["192.0.2.1", "no such address"]);
}

#[test]
fn a_unix_socket_that_cannot_be_made_is_named() {
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    doctor(&[("GRPC_UDS", &path("s.sock"))]).finds("listen", &["GRPC_UDS", "can be made"]);
    doctor(&[("GRPC_UDS", &path("none/s.sock"))]).fails("listen", &["GRPC_UDS", "none", "No such file"]);
    doctor(&[("GRPC_UDS", &path(&"long".repeat(30)))]).fails("listen", &["GRPC_UDS", "shorten it"]);
    fs::write(path("precious"), "data").unwrap();
    doctor(&[("GRPC_UDS", &path("precious"))]).fails("listen", &["GRPC_UDS", "is no socket"]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left behind");

    let running = Sluice::builder().file("rules.yaml", RULES).env("GRPC_UDS", &path("s.sock")).start();
    doctor(&[("GRPC_UDS", &path("s.sock"))]).finds("listen", &["GRPC_UDS", "says SERVING"]);
    drop(running);
}

#[test]
fn a_name_that_is_no_file_is_free_served_or_taken() {
    let name = format!("@sluice-doctor-{}", std::process::id());
    doctor(&[("GRPC_UDS", &name)]).finds("listen", &["GRPC_UDS", &name, "is free"]);
    let running = Sluice::builder().file("rules.yaml", RULES).env("GRPC_UDS", &name).start();
    doctor(&[("GRPC_UDS", &name)]).finds("listen", &["GRPC_UDS", "says SERVING"]);
    drop(running);
    let address = SocketAddr::from_abstract_name(&name[1..]).unwrap();
    let _other = UnixListener::bind_addr(&address).unwrap();
    doctor(&[("GRPC_UDS", &name)]).fails("listen", &["GRPC_UDS", &name, "answers no gRPC"]);
}
