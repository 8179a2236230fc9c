//! TLS and mutual TLS, and certificates that are renewed while callers come.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use rustls::{
    ClientConfig, ProtocolVersion, RootCertStore, SupportedProtocolVersion,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
    version::{TLS12, TLS13},
};
use tokio::io::AsyncReadExt as _;
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{RULES, certificates::Authority};
use crate::harness::{Server, grpc::wait, server::Builder, wait_until};

const HOST: &str = "sluice.test";

fn with_tls(authority: &Authority) -> Builder {
    let path = |file| authority.path(file).to_str().expect("is text").to_owned();
    Server::builder()
        .file("rules.yaml", RULES)
        .env("GRPC_SERVER_USE_TLS", "true")
        .env("GRPC_SERVER_TLS_CERT", &path("server.crt"))
        .env("GRPC_SERVER_TLS_KEY", &path("server.key"))
}

fn authority() -> Authority {
    let authority = Authority::new();
    authority.sign("server", &format!("DNS:{HOST}"), 20);
    authority
}

/// What a caller meets: the version, the protocol, and the certificate that it was shown.
struct Met {
    version: ProtocolVersion,
    protocol: Option<Vec<u8>>,
    certificate: CertificateDer<'static>,
}

/// Connects with a certificate, or with none, and waits for the server's first frame, because in TLS 1.3 a refusal of the
/// caller's certificate comes after the handshake.
fn meet(
    server: &Server,
    authority: &Authority,
    caller: Option<(&Authority, &str)>,
    version: &'static SupportedProtocolVersion,
) -> Result<Met, std::io::Error> {
    let mut roots = RootCertStore::empty();
    let ca = authority.read("ca.crt");
    roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).expect("is PEM")).expect("is a CA");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version]).expect("is served");
    let builder = builder.with_root_certificates(roots);
    let mut config = match caller {
        Some((signer, name)) => {
            let chain = CertificateDer::from_pem_slice(signer.read(&format!("{name}.crt")).as_bytes());
            let key = PrivateKeyDer::from_pem_slice(signer.read(&format!("{name}.key")).as_bytes());
            builder.with_client_auth_cert(vec![chain.expect("is PEM")], key.expect("is PEM")).expect("fit together")
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    wait(async {
        let stream = tokio::net::TcpStream::connect(server.grpc()).await?;
        let name = ServerName::try_from(HOST).expect("is a name");
        let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        tokio::io::AsyncWriteExt::write_all(&mut stream, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
            .await?;
        stream.read_exact(&mut [0; 9]).await?;
        Ok(met(&stream))
    })
}

fn met(stream: &TlsStream<tokio::net::TcpStream>) -> Met {
    let (_, connection) = stream.get_ref();
    Met {
        version: connection.protocol_version().expect("is agreed on"),
        protocol: connection.alpn_protocol().map(<[u8]>::to_vec),
        certificate: connection.peer_certificates().expect("is shown")[0].clone().into_owned(),
    }
}

#[test]
fn both_versions_of_tls_are_spoken_and_agree_on_http2() {
    let authority = authority();
    let server = with_tls(&authority).start();
    for (version, number) in [(&TLS12, ProtocolVersion::TLSv1_2), (&TLS13, ProtocolVersion::TLSv1_3)] {
        let met = meet(&server, &authority, None, version).expect("is served");
        assert_eq!(met.version, number);
        assert_eq!(met.protocol.as_deref(), Some(&b"h2"[..]));
    }
}

#[test]
fn with_a_client_ca_only_callers_with_its_certificates_are_served() {
    let (authority, stranger) = (authority(), Authority::new());
    authority.sign("caller", "DNS:envoy.test", 20);
    stranger.sign("caller", "DNS:envoy.test", 20);
    let ca = authority.path("ca.crt");
    let server = with_tls(&authority).env("GRPC_CLIENT_TLS_CACERT", ca.to_str().expect("is text")).start();
    for version in [&TLS12, &TLS13] {
        assert!(meet(&server, &authority, Some((&authority, "caller")), version).is_ok());
        assert!(meet(&server, &authority, Some((&stranger, "caller")), version).is_err());
        assert!(meet(&server, &authority, None, version).is_err());
    }
}

#[test]
fn with_a_client_name_only_callers_whose_certificate_has_it_are_served() {
    let authority = authority();
    authority.sign("by-name", "DNS:envoy.test", 20);
    authority.sign("by-uri", "URI:spiffe://cluster.local/ns/edge/sa/envoy", 20);
    authority.sign("other", "DNS:other.test,URI:spiffe://cluster.local/ns/edge/sa/envoy2", 20);
    let ca = authority.path("ca.crt");
    for (name, welcome, others) in [
        ("envoy.test", "by-name", ["by-uri", "other"]),
        ("spiffe://cluster.local/ns/edge/sa/envoy", "by-uri", ["by-name", "other"]),
    ] {
        let server = with_tls(&authority)
            .env("GRPC_CLIENT_TLS_CACERT", ca.to_str().expect("is text"))
            .env("GRPC_CLIENT_TLS_SAN", name)
            .start();
        assert!(meet(&server, &authority, Some((&authority, welcome)), &TLS13).is_ok(), "{welcome} for {name}");
        for other in others {
            assert!(meet(&server, &authority, Some((&authority, other)), &TLS13).is_err(), "{other} for {name}");
        }
    }
}

#[test]
fn a_new_certificate_is_served_without_a_restart_and_a_bad_one_never() {
    let authority = authority();
    authority.sign("second", &format!("DNS:{HOST}"), 25);
    let server = with_tls(&authority).start();
    let shown = || meet(&server, &authority, None, &TLS13).expect("is served").certificate;
    let first = shown();
    let first_ends = server.metric("sluice_tls_certificate_expiry_seconds");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_secs_f64();
    assert_eq!(((first_ends - now) / 86_400.0).round(), 20.0);

    // The new certificate without its key is of no use.
    authority.replace("server.crt", "second.crt");
    wait_until("it is refused", || server.metric("sluice_tls_reloads_total{result=\"failed\"}") == 1.0);
    server.wait_for_line(&["the certificate before stays in use", "server.key"]);
    assert_eq!(shown(), first);

    authority.replace("server.key", "second.key");
    wait_until("the new one is served", || shown() != first);
    let second = shown();
    let second_ends = server.metric("sluice_tls_certificate_expiry_seconds");
    assert_eq!(((second_ends - first_ends) / 86_400.0).round(), 5.0);
    assert_eq!(server.metric("sluice_tls_reloads_total{result=\"applied\"}"), 1.0);

    std::fs::write(authority.path("server.crt"), "-----BEGIN CERTIFICATE-----\nAAAA\n").expect("can be written");
    wait_until("it is refused", || server.metric("sluice_tls_reloads_total{result=\"failed\"}") == 2.0);
    std::fs::remove_file(authority.path("server.crt")).expect("can be removed");
    wait_until("it is missed", || server.metric("sluice_tls_reloads_total{result=\"failed\"}") == 3.0);
    assert_eq!(shown(), second);
    assert_eq!(server.metric("sluice_tls_certificate_expiry_seconds"), second_ends);
}

#[test]
fn a_new_certificate_that_has_already_ended_is_not_served() {
    let authority = authority();
    authority.sign("ended", &format!("DNS:{HOST}"), 0);
    let server = with_tls(&authority).start();
    let first = meet(&server, &authority, None, &TLS13).expect("is served").certificate;
    for part in ["key", "crt"] {
        authority.replace(&format!("server.{part}"), &format!("ended.{part}"));
    }
    server.wait_for_line(&["the certificate expired at", "stays in use"]);
    assert_eq!(meet(&server, &authority, None, &TLS13).expect("is served").certificate, first);
}

#[test]
fn a_new_client_ca_is_asked_for_without_a_restart() {
    let (authority, successor) = (authority(), Authority::new());
    authority.sign("caller", "DNS:envoy.test", 20);
    successor.sign("caller", "DNS:envoy.test", 20);
    std::fs::copy(authority.path("ca.crt"), authority.path("callers.crt")).expect("can be copied");
    let ca = authority.path("callers.crt");
    let server = with_tls(&authority).env("GRPC_CLIENT_TLS_CACERT", ca.to_str().expect("is text")).start();
    assert!(meet(&server, &authority, Some((&authority, "caller")), &TLS13).is_ok());
    std::fs::copy(successor.path("ca.crt"), ca).expect("can be copied");
    wait_until("the new CA counts", || meet(&server, &authority, Some((&successor, "caller")), &TLS13).is_ok());
    assert!(meet(&server, &authority, Some((&authority, "caller")), &TLS13).is_err());
}

#[test]
fn without_a_certificate_that_can_be_used_it_does_not_start_and_says_why() {
    let authority = authority();
    authority.sign("second", &format!("DNS:{HOST}"), 20);
    authority.replace("server.key", "second.key");
    let mut server = with_tls(&authority).spawn();
    assert!(!server.wait_for_exit().success());
    assert!(server.log().concat().contains("server.key"), "{:?}", server.log());
}
