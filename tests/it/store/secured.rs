//! Getting in: permissions, passwords, TLS, sockets, databases; and one sentence that says what to fix where it does not work.

use std::{fs, path::Path, process::Command};

use super::{Stage, ask_all, sluice};
use crate::{
    harness::{
        Server as Sluice,
        grpc::{Code, request},
        wait_until,
    },
    servers::{AUTH, PASSWORD, REDIS, Sentinels, Server, VALKEY, alone, documented_acl},
};

const RULES: &str = "
domain: d
descriptors:
  - {key: a, rate_limit: {unit: year, requests_per_unit: 10}}
  - {key: second, rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: 10}}
";

/// Asks once, and says what is left.
fn left(sluice: &Sluice) -> u32 {
    sluice.ask(request("d", &[("a", "1")])).unwrap().statuses[0].limit_remaining
}

#[track_caller]
fn on(env: &[(&str, &str)]) -> Sluice {
    let sluice = sluice(RULES, &[&[("REDIS_TIMEOUT", "30s")], env].concat());
    sluice.wait_for_store();
    sluice
}

/// A sluice whose store will not have it, and the line that says why.
#[track_caller]
fn refused(env: &[(&str, &str)], parts: &[&str]) -> String {
    let sluice = sluice(RULES, env);
    let response = sluice.ask(request("d", &[("a", "1")])).unwrap();
    assert_eq!(response.overall_code, i32::from(Code::Ok), "the policy answers");
    let line = sluice.wait_for_line(&[&["the store fails"], parts].concat());
    assert!(!line.contains(PASSWORD), "{line}");
    line
}

#[test]
fn a_documented_permission_that_is_missing_is_told_or_done_without() {
    for binary in [REDIS, VALKEY] {
        let server = Server::start(binary);
        for permission in documented_acl("user sluice ").iter().filter(|word| word.starts_with('+')) {
            server.run::<()>(&["ACL", "SETUSER", "sluice", &permission.replacen('+', "-", 1)]);
            if permission == "+ping" {
                // Asked of idle connections; where it is forbidden, only the server's ACL log fills.
            } else if permission == "+mget" {
                // Then keys are asked for one by one.
                let sluice = on(&[("REDIS_URL", &server.url_of_sluice())]);
                for turn in 1..=2 {
                    let response = sluice.ask(ask_all("d", &[("a", "mget"), ("a", "other")])).unwrap();
                    assert!(response.statuses.iter().all(|status| status.limit_remaining == 10 - turn), "{binary}");
                }
            } else if permission == "+eval" {
                // Needed only where the script has been forgotten.
                let sluice = on(&[("REDIS_URL", &server.url_of_sluice())]);
                server.run::<()>(&["SCRIPT", "FLUSH"]);
                let _ = sluice.ask(request("d", &[("a", "1")]));
                sluice.wait_for_line(&["the store fails", "NOPERM"]);
            } else {
                refused(&[("REDIS_URL", &server.url_of_sluice())], &["README"]);
            }
            server.run::<()>(&["ACL", "SETUSER", "sluice", permission]);
        }
        server.run::<()>(&["ACL", "LOG", "RESET"]);
        assert_eq!(left(&on(&[("REDIS_URL", &server.url_of_sluice())])), 9);
        server.assert_clean();
    }
}

#[test]
fn a_wrong_password_is_told() {
    let server = Server::start(REDIS);
    refused(&[("REDIS_URL", &server.address()), ("REDIS_AUTH", "sluice:wrong")], &["login was refused", "REDIS_AUTH"]);
    let locked = Server::start_with(REDIS, &["--requirepass", "other"]);
    refused(&[("REDIS_URL", &locked.address())], &["unauthenticated", "REDIS_AUTH"]);
}

#[test]
fn a_master_that_no_sentinel_knows_is_told() {
    let _alone = alone();
    let sentinels = Sentinels::start(REDIS);
    let url = sentinels.url().replacen("mymaster", "somebody", 1);
    let env = [("REDIS_TYPE", "SENTINEL"), ("REDIS_URL", &*url), ("REDIS_AUTH", AUTH), ("REDIS_SENTINEL_AUTH", AUTH)];
    refused(&env, &["knows no master 'somebody'", "REDIS_URL"]);
}

#[test]
fn a_server_that_is_no_cluster_is_told() {
    let server = Server::start_as(REDIS, "in a cluster also: ", &[]);
    let env = [("REDIS_TYPE", "CLUSTER"), ("REDIS_URL", &*server.address()), ("REDIS_AUTH", AUTH)];
    refused(&env, &["cluster support disabled"]);
}

#[test]
fn a_password_in_a_file_is_read_again_when_it_changes() {
    let mut server = Server::start(REDIS);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("password");
    fs::write(&file, format!("{AUTH}\n")).unwrap();
    let sluice = on(&[("REDIS_URL", &server.address()), ("REDIS_AUTH_FILE", file.to_str().unwrap())]);
    assert_eq!(left(&sluice), 9);
    server.restart();
    server.run::<()>(&["ACL", "SETUSER", "sluice", "resetpass", ">another"]);
    // Whoever is connected keeps being so; who dials anew needs the new one.
    server.run::<()>(&["CLIENT", "KILL", "USER", "sluice"]);
    wait_until("it is shut out", || {
        let _ = sluice.ask(request("d", &[("a", "1")]));
        sluice.metric("sluice_store_up") == 0.0
    });
    fs::write(&file, "sluice:another").unwrap();
    sluice.wait_for_store();
    assert!(left(&sluice) < 10);
}

#[test]
fn a_unix_socket_and_a_database_of_its_own() {
    let server = Server::start_as(
        REDIS,
        "for a database other than 0 also: ",
        &["--unixsocket", "redis.sock", "--unixsocketperm", "777"],
    );
    let socket = server.path("redis.sock");
    let socket = socket.to_str().unwrap();
    assert_eq!(left(&on(&[("REDIS_SOCKET_TYPE", "unix"), ("REDIS_URL", socket), ("REDIS_AUTH", AUTH)])), 9);
    let url = format!("unix://{socket}?user=sluice&pass={PASSWORD}&db=3");
    assert_eq!(left(&on(&[("REDIS_URL", &url)])), 9, "another database, another counter");
    let url = format!("redis://{AUTH}@{}/3", server.address());
    assert_eq!(left(&on(&[("REDIS_URL", &url)])), 8, "the same one, over TCP");
    server.assert_clean();
}

#[test]
fn rules_per_second_have_a_store_of_their_own() {
    let (main, per_second) = (Server::start(REDIS), Server::start(VALKEY));
    let sluice = on(&[
        ("REDIS_URL", &main.url_of_sluice()),
        ("REDIS_PERSECOND", "true"),
        ("REDIS_PERSECOND_URL", &per_second.url_of_sluice()),
        ("REDIS_PERSECOND_TIMEOUT", "30s"),
    ]);
    let response = sluice.ask(ask_all("d", &[("a", "1"), ("second", "1")])).unwrap();
    assert_eq!(response.overall_code, i32::from(Code::Ok));
    assert!(response.statuses.iter().all(|status| status.limit_remaining == 9));
    let has = |server: &Server, part: &str| server.keys().iter().any(|(key, _)| key.contains(part));
    assert!(has(&main, "1:a") && !has(&main, "second"));
    assert!(!has(&per_second, "1:a"));
    assert!(per_second.calls("evalsha") > 0);
    main.assert_clean();
    per_second.assert_clean();
}

fn openssl(dir: &Path, arguments: &str) {
    let ran = Command::new("openssl").args(arguments.split(' ')).current_dir(dir).output().expect("openssl is there");
    assert!(ran.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&ran.stderr));
}

/// A CA, and certificates of it for the server, under the name `redis.test`, and for a client.
fn certificates(dir: &Path) {
    openssl(
        dir,
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=ca -keyout ca.key -out ca.pem",
    );
    for (name, names) in
        [("server", "DNS:redis.test"), ("local", "DNS:localhost,IP:127.0.0.1"), ("client", "DNS:client")]
    {
        fs::write(dir.join("names"), format!("subjectAltName={names}\nbasicConstraints=critical,CA:FALSE\n")).unwrap();
        openssl(
            dir,
            &format!(
                "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr"
            ),
        );
        openssl(
            dir,
            &format!(
                "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -extfile names -out {name}.pem"
            ),
        );
    }
}

fn tls_server(dir: &Path, certificate: &str, clients: &str) -> (Server, String) {
    let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let port = crate::servers::free_port().to_string();
    let (pem, key, ca) = (path(&format!("{certificate}.pem")), path(&format!("{certificate}.key")), path("ca.pem"));
    let options = [
        "--tls-port",
        &port,
        "--tls-cert-file",
        &pem,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &ca,
        "--tls-auth-clients",
        clients,
    ];
    (Server::start_with(REDIS, &options), format!("127.0.0.1:{port}"))
}

#[test]
fn tls_with_a_private_ca_and_with_client_certificates() {
    let dir = tempfile::tempdir().unwrap();
    certificates(dir.path());
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let ca = path("ca.pem");

    let (server, address) = tls_server(dir.path(), "local", "no");
    let tls = [("REDIS_URL", &*address), ("REDIS_AUTH", AUTH), ("REDIS_TLS", "true"), ("REDIS_TLS_CACERT", &*ca)];
    assert_eq!(left(&on(&tls)), 9);
    let url = format!("rediss://{AUTH}@{address}");
    assert_eq!(left(&on(&[("REDIS_URL", &url), ("REDIS_TLS_CACERT", &ca)])), 8);

    // A CA that is not known, a port that speaks no TLS, and one that speaks nothing else.
    refused(&tls[..3], &["certificate", "REDIS_TLS_CACERT"]);
    refused(&[("REDIS_URL", &server.address()), tls[1], tls[2], tls[3]], &["REDIS_TLS=false"]);
    refused(&[tls[0], tls[1]], &["REDIS_TLS=true"]);

    // A name that is not the server's.
    let (_server, address) = tls_server(dir.path(), "server", "yes");
    let (certificate, key) = (path("client.pem"), path("client.key"));
    let mut tls = vec![
        ("REDIS_URL", &*address),
        ("REDIS_AUTH", AUTH),
        ("REDIS_TLS", "true"),
        ("REDIS_TLS_CACERT", &*ca),
        ("REDIS_TLS_CLIENT_CERT", &*certificate),
        ("REDIS_TLS_CLIENT_KEY", &*key),
    ];
    refused(&tls, &["certificate", "name"]);
    tls.push(("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "true"));
    assert_eq!(left(&on(&tls)), 9);
    // It wants to know who we are.
    let without: Vec<_> = tls.iter().filter(|(name, _)| !name.starts_with("REDIS_TLS_CLIENT")).copied().collect();
    refused(&without, &["REDIS_TLS_CLIENT_CERT"]);
}

#[test]
fn the_store_of_a_stage_is_found_by_every_form_of_its_url() {
    let stage = Stage::Single(Server::start(REDIS));
    let server = &stage.servers()[0];
    let forms = [
        vec![("REDIS_URL", server.url_of_sluice())],
        vec![("REDIS_SOCKET_TYPE", "tcp".to_owned()), ("REDIS_URL", server.address()), ("REDIS_AUTH", AUTH.to_owned())],
        vec![
            ("BACKEND_TYPE", "redis".to_owned()),
            ("REDIS_TYPE", "SINGLE".to_owned()),
            ("REDIS_URL", server.url_of_sluice()),
        ],
    ];
    for (turn, form) in (1_u32..).zip(forms) {
        let env: Vec<(&str, &str)> = form.iter().map(|(name, value)| (*name, &**value)).collect();
        assert_eq!(left(&on(&env)), 10 - turn);
    }
    stage.assert_clean();
}
