//! TLS: to the store, and of our own.

use super::{Seen, doctor, doctor_of};
use crate::{
    servers::{REDIS, Server, free_port},
    transport::certificates::Authority,
};

fn text(authority: &Authority, file: &str) -> String {
    authority.path(file).to_str().unwrap().to_owned()
}

/// A server with this certificate, and where it speaks TLS.
fn tls_server(authority: &Authority, certificate: &str) -> (Server, String) {
    let port = free_port().to_string();
    let file = |name: &str| text(authority, name);
    let (certificate, key) = (file(&format!("{certificate}.crt")), file(&format!("{certificate}.key")));
    let files = ["--tls-cert-file", &certificate, "--tls-key-file", &key, "--tls-ca-cert-file", &file("ca.crt")];
    let options = [&["--tls-port", &port, "--tls-auth-clients", "no"], &files[..]].concat();
    (Server::start_with(REDIS, &options), format!("127.0.0.1:{port}"))
}

fn over_tls(address: &str, authority: &Authority) -> Seen {
    doctor_of(address, &[("REDIS_TLS", "true"), ("REDIS_TLS_CACERT", &text(authority, "ca.crt"))])
}

#[test]
fn what_is_wrong_with_the_tls_of_a_store_is_named() {
    let authority = Authority::new();
    authority.sign("good", "IP:127.0.0.1", 20);
    let (server, address) = tls_server(&authority, "good");
    let seen = over_tls(&address, &authority);
    assert_eq!(seen.code, Some(0), "{seen}");
    seen.finds("tls", &[&address, "the certificate that it shows ends at"]);
    seen.finds("tls", &["ca.crt", "the CA of the store"]);

    doctor_of(&address, &[]).fails("reach", &[&address, "nothing but TLS", "REDIS_TLS=true"]);
    over_tls(&server.address(), &authority).fails("reach", &[&server.address(), "no TLS there", "REDIS_TLS=false"]);
    over_tls(&address, &Authority::new()).fails("reach", &[&address, "certificate", "REDIS_TLS_CACERT"]);
    let seen = doctor_of(&address, &[("REDIS_TLS", "true"), ("REDIS_TLS_CACERT", "/nowhere/ca.crt")]);
    seen.fails("tls", &["REDIS_TLS_CACERT", "cannot read /nowhere/ca.crt"]);
}

#[test]
fn a_certificate_of_the_store_that_has_ended_or_is_about_to_is_named() {
    let authority = Authority::new();
    authority.sign_expired("ended", "IP:127.0.0.1");
    let (_server, address) = tls_server(&authority, "ended");
    let seen = over_tls(&address, &authority);
    seen.fails("tls", &[&address, "expired at 2020-", "renew it"]);
    seen.fails("reach", &[&address, "certificate expired", "renew its certificate"]);

    authority.sign("ending", "IP:127.0.0.1", 5);
    let (_server, address) = tls_server(&authority, "ending");
    over_tls(&address, &authority).warns("tls", &[&address, "renew it"]);
}

#[test]
fn what_is_wrong_with_our_own_certificate_is_named() {
    let authority = Authority::new();
    authority.sign_expired("ended", "DNS:sluice.test");
    authority.sign("good", "DNS:sluice.test", 20);
    let with = |certificate: &str, key: &str| {
        doctor(&[
            ("GRPC_SERVER_USE_TLS", "true"),
            ("GRPC_SERVER_TLS_CERT", &text(&authority, certificate)),
            ("GRPC_SERVER_TLS_KEY", &text(&authority, key)),
            ("GRPC_CLIENT_TLS_CACERT", &text(&authority, "ca.crt")),
        ])
    };
    let seen = with("good.crt", "good.key");
    assert_eq!(seen.code, Some(0), "{seen}");
    seen.finds("tls", &["good.crt", "our certificate ends at"]);
    seen.finds("tls", &["ca.crt", "the CA of our callers"]);
    with("ended.crt", "ended.key").fails("tls", &["ended.crt", "expired at 2020-", "renew it"]);
    // One behind the first that has ended, and a bundle of which one has.
    let join = |file: &str, names: [&str; 2]| {
        let text = names.map(|name| authority.read(name)).concat();
        std::fs::write(authority.path(file), text).unwrap();
    };
    join("chain.crt", ["good.crt", "ended.crt"]);
    let seen = with("chain.crt", "good.key");
    seen.warns("tls", &["chain.crt", "stands behind our certificate", "expired at 2020-"]);
    join("ca.crt", ["ended.crt", "ca.crt"]);
    with("good.crt", "good.key").finds("tls", &["ca.crt", "of 2 certificates the last to end"]);
    with("good.crt", "ended.key").fails("tls", &["GRPC_SERVER_TLS_CERT", "ended.key", "cannot serve"]);
    with("none.crt", "good.key").fails("tls", &["GRPC_SERVER_TLS_CERT", "none.crt", "cannot read"]);
}
