//! A canary: a password, wherever it is given, comes out nowhere. Logs of everything that is said at all, in both formats, every
//! door, the command line and its help, and what is said of wrong settings.

use std::{fs, net::TcpListener, process::Output};

use crate::{
    harness::{
        Server as Sluice,
        grpc::request,
        http, sluice,
        wait::{DEADLINE, holds_within},
    },
    servers::{PASSWORD, REDIS, Sentinels, Server, alone, free_port},
    traces::{grpc_collector, http_collector},
    transport::certificates::Authority,
};

/// With all that has to be encoded in a URL. Whatever is done to it, the letters stay together.
const CANARY: &str = "c4n4ry p@ss/w:rd%#?é";
const ENCODED: &str = "c4n4ry%20p%40ss%2Fw%3Ard%25%23%3F%C3%A9";
const TRACE: &str = "c4n4ry";

const RULES: &str = "
domain: d
descriptors:
  - {key: a, rate_limit: {unit: year, requests_per_unit: 100}}
";

/// A server whose password is the canary.
fn locked() -> Server {
    let server = Server::start(REDIS);
    server.run::<()>(&["ACL", "SETUSER", "sluice", "resetpass", &format!(">{CANARY}")]);
    server
}

/// All that a running sluice says: its log and every door, before and after it was asked, reloaded and stopped.
fn all_that_is_said(env: &[(&str, &str)], format: &str, is_well: bool) -> String {
    let builder = Sluice::builder().file("rules.yaml", RULES).env("LOG_LEVEL", "trace").env("LOG_FORMAT", format);
    let builder = env.iter().fold(builder, |builder, (name, value)| builder.env(name, value));
    // A store that is well gets the time of a busy machine; nobody waits for one that is not.
    let server = builder.env("REDIS_TIMEOUT", if is_well { "30s" } else { "50ms" }).start();
    if is_well {
        server.wait_for_store();
    } else {
        let _ = server.ask(request("d", &[("a", "1")]));
        server.wait_for_line(&["the store fails"]);
    }
    let _ = server.ask(request("d", &[("a", "1")]));
    server.write("bad.yaml", "domain: [\n");
    let reload = std::net::TcpStream::connect(server.debug()).expect("is there");
    http::send_over(reload, "POST", "/reload", &[("x-sluice", "reload")], "");
    let mut said = vec![server.command_line()];
    for path in ["/metrics", "/healthcheck", "/readyz", "/livez", "/nowhere"] {
        said.push(server.get(path).body);
    }
    for path in [
        "/",
        "/config",
        "/rlconfig",
        "/explain?domain=d&descriptor=a=1",
        "/explain?domain=d&descriptor=a=1&format=text",
    ] {
        said.push(server.get_debug(path).body);
    }
    said.push(server.post_json(r#"{"domain": "d", "descriptors": [{"entries": [{"key": "a", "value": "1"}]}]}"#).body);
    let (_, log) = server.stop();
    assert!(log.iter().any(|line| line.contains("trace")), "everything is said");
    said.extend(log);
    said.join("\n")
}

#[track_caller]
fn assert_silent(said: &str, secret: &str) {
    let lines: Vec<&str> = said.lines().filter(|line| line.contains(secret)).collect();
    assert!(lines.is_empty(), "{} of {} lines tell it: {:#?}", lines.len(), said.lines().count(), lines);
}

#[test]
fn a_password_that_is_right_is_told_nowhere() {
    let server = locked();
    let file = tempfile::NamedTempFile::new().expect("there is room");
    fs::write(file.path(), format!("sluice:{CANARY}\n")).expect("can be written");
    let (auth, url) = (format!("sluice:{CANARY}"), format!("redis://sluice:{ENCODED}@{}", server.address()));
    let plain = server.address();
    for (env, format) in [
        (vec![("REDIS_URL", &*url)], "text"),
        (vec![("REDIS_URL", &*url)], "json"),
        (vec![("REDIS_URL", &*plain), ("REDIS_AUTH", &*auth)], "text"),
        (vec![("REDIS_URL", &*plain), ("REDIS_AUTH_FILE", file.path().to_str().expect("is text"))], "json"),
    ] {
        assert_silent(&all_that_is_said(&env, format, true), TRACE);
    }
}

#[test]
fn a_password_that_is_wrong_is_told_nowhere() {
    let server = Server::start(REDIS);
    let url = format!("redis://sluice:{ENCODED}@{}", server.address());
    let auth = format!("sluice:{CANARY}");
    for format in ["text", "json"] {
        assert_silent(&all_that_is_said(&[("REDIS_URL", &url)], format, false), TRACE);
        let env = [("REDIS_URL", &*server.address()), ("REDIS_AUTH", &auth)];
        assert_silent(&all_that_is_said(&env, format, false), TRACE);
    }
    // A server that knows no users: the password alone.
    assert_silent(&all_that_is_said(&[("REDIS_URL", &server.address()), ("REDIS_AUTH", CANARY)], "json", false), TRACE);
}

#[test]
fn a_password_for_a_store_that_is_not_there_or_speaks_otherwise_is_told_nowhere() {
    let server = Server::start(REDIS);
    let nowhere = free_port();
    let silent = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    for url in [
        format!("redis://sluice:{ENCODED}@127.0.0.1:{nowhere}"),
        format!("redis://sluice:{ENCODED}@no-such-host.invalid"),
        format!("redis://sluice:{ENCODED}@{}", silent.local_addr().expect("is bound")),
        // It does not speak TLS.
        format!("rediss://sluice:{ENCODED}@{}", server.address()),
        format!("unix:///no/such/socket?user=sluice&pass={ENCODED}"),
    ] {
        for format in ["text", "json"] {
            assert_silent(&all_that_is_said(&[("REDIS_URL", &url)], format, false), TRACE);
        }
    }
    let cluster = [("REDIS_TYPE", "CLUSTER"), ("REDIS_URL", &*server.address()), ("REDIS_AUTH", CANARY)];
    assert_silent(&all_that_is_said(&cluster, "json", false), TRACE);
}

#[test]
fn the_password_of_sentinels_is_told_nowhere() {
    let _alone = alone();
    let sentinels = Sentinels::start(REDIS);
    let auth = format!("sluice:{PASSWORD}");
    let url = sentinels.url();
    let well =
        [("REDIS_TYPE", "SENTINEL"), ("REDIS_URL", &*url), ("REDIS_AUTH", &*auth), ("REDIS_SENTINEL_AUTH", &*auth)];
    assert_silent(&all_that_is_said(&well, "text", true), PASSWORD);
    let wrong = [well[0], well[1], well[2], ("REDIS_SENTINEL_AUTH", CANARY)];
    assert_silent(&all_that_is_said(&wrong, "json", false), TRACE);
}

#[test]
fn keys_of_tls_are_told_nowhere() {
    let authority = Authority::new();
    authority.sign("server", "DNS:localhost,IP:127.0.0.1", 30);
    authority.sign("other", "DNS:other", 30);
    let path = |name: &str| authority.path(name).to_str().expect("is text").to_owned();
    let server = Server::start(REDIS);
    let url = format!("rediss://{}", server.address());
    let (certificate, key, other) = (path("server.crt"), path("server.key"), path("other.key"));
    let secret_lines = |file: &str| -> Vec<String> {
        authority.read(file).lines().filter(|line| !line.contains("-----")).map(|line| line[..12].to_owned()).collect()
    };
    let said = all_that_is_said(
        &[
            ("GRPC_SERVER_USE_TLS", "false"),
            ("REDIS_URL", &url),
            ("REDIS_TLS_CLIENT_CERT", &certificate),
            ("REDIS_TLS_CLIENT_KEY", &key),
        ],
        "json",
        false,
    );
    secret_lines("server.key").iter().for_each(|line| assert_silent(&said, line));
    // A key that belongs to another certificate, and one that is given as a text instead of a path.
    let text = authority.read("other.key");
    for key in [&*other, &*text] {
        let env =
            [("GRPC_SERVER_USE_TLS", "true"), ("GRPC_SERVER_TLS_CERT", &*certificate), ("GRPC_SERVER_TLS_KEY", key)];
        let said = said_of(&["serve"], &env);
        assert!(said.contains("GRPC_SERVER_TLS") || said.contains("other.key"), "{said}");
        secret_lines("other.key").iter().for_each(|line| assert_silent(&said, line));
    }
}

#[test]
fn headers_for_a_collector_are_told_nowhere() {
    let (over_http, http, heads) = http_collector();
    let (over_grpc, grpc) = grpc_collector();
    let silent = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let silent = format!("http://{}", silent.local_addr().expect("is bound"));
    let with_password = format!("http://me:{ENCODED}@127.0.0.1:1");
    let server = locked();
    let url = format!("redis://sluice:{ENCODED}@{}", server.address());
    for (protocol, endpoint) in [
        ("http", &http),
        ("grpc", &grpc),
        ("http", &silent),
        ("grpc", &silent),
        ("http", &with_password),
        ("grpc", &with_password),
    ] {
        let env = [
            ("TRACING_ENABLED", "true"),
            ("TRACING_EXPORTER_PROTOCOL", protocol),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20c4n4ry,x-token=c4n4ry"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "500"),
            ("DRAIN_TIMEOUT", "1s"),
            ("REDIS_URL", &url),
        ];
        assert_silent(&all_that_is_said(&env, "text", true), TRACE);
    }
    assert!(heads.lock().expect("nobody panics")[0].contains("authorization: bearer c4n4ry"), "it was sent");
    assert!(!over_http.spans().is_empty() && !over_grpc.spans().is_empty());
    for span in over_http.spans().iter().chain(&over_grpc.spans()) {
        assert_silent(&format!("{span:?}"), TRACE);
    }
}

/// What a sluice says that does not begin to serve.
fn said_of(args: &[&str], env: &[(&str, &str)]) -> String {
    let dir = tempfile::tempdir().expect("there is room");
    fs::write(dir.path().join("rules.yaml"), RULES).expect("can be written");
    let mut command = sluice();
    command.args(args).env("RATE_LIMIT_CONFIG", dir.path()).envs(env.iter().copied());
    let Output { stdout, stderr, .. } = command.output().expect("sluice runs");
    [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat()
}

#[test]
fn wrong_settings_are_told_without_a_password_in_them() {
    for (name, value) in [
        ("REDIS_URL", "redis://me:c4n4ry"),
        ("REDIS_URL", "redis://me:c4n4ry@host:port"),
        ("REDIS_URL", "me:c4n4ry@host:6379"),
        ("REDIS_URL", "http://me:c4n4ry@host"),
        ("REDIS_URL", "redis://me:c4n4ry@host/database"),
        ("REDIS_URL", "redis://:c4n4ry,c4n4ry@host"),
        ("REDIS_URL", "redis://:c4n4ry%zz@host"),
        ("REDIS_AUTH_FILE", "c4n4ry"),
        ("REDIS_AUTH_FILE", "c4n4ry/with+slash="),
        ("REDIS_SENTINEL_AUTH_FILE", "c4n4ry"),
        ("GRPC_SERVER_TLS_KEY", "LS0tLS1CRUdJTiBc4n4ry"),
        ("GRPC_SERVER_TLS_CERT", "MIIDc4n4ry"),
        ("REDIS_TLS_CLIENT_KEY", "-----BEGIN PRIVATE KEY-----\nc4n4ry\n"),
    ] {
        // Another wrong one, so that it never begins to serve.
        for command in ["serve", "doctor"] {
            let said = said_of(&[command], &[("PORT", "wrong"), (name, value)]);
            assert!(said.contains("PORT: 'wrong'") && said.contains(&format!("sluice: {name}: ")), "{said}");
            assert_silent(&said, TRACE);
        }
    }
}

#[test]
fn an_address_for_traces_that_cannot_be_used_is_named_and_not_told() {
    for (protocol, name) in [
        ("http", "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ("http", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
        ("grpc", "OTEL_EXPORTER_OTLP_ENDPOINT"),
    ] {
        let said = said_of(
            &["serve"],
            &[
                ("TRACING_ENABLED", "true"),
                ("TRACING_EXPORTER_PROTOCOL", protocol),
                (name, "http://me:c4n4ry pw@collector:4318"),
                ("PORT", "0"),
                ("GRPC_PORT", "0"),
                ("DEBUG_PORT", "0"),
            ],
        );
        assert!(said.contains(name) && said.contains("is not shown"), "{said}");
        assert_silent(&said, TRACE);
    }
}

#[test]
fn help_tells_no_setting_that_is_set() {
    let env = [("REDIS_AUTH", CANARY), ("REDIS_URL", "redis://:c4n4ry@h:1"), ("OTEL_EXPORTER_OTLP_HEADERS", CANARY)];
    for command in ["", "serve", "check", "doctor", "explain", "hit", "bench", "schema"] {
        let args: Vec<&str> = [command, "--help"].into_iter().filter(|arg| !arg.is_empty()).collect();
        let said = said_of(&args, &env);
        assert!(said.contains("Usage:"), "{said}");
        assert_silent(&said, TRACE);
    }
    // A flag that does not exist, or stands where none can be.
    for args in [["serve", "--redis-ath=c4n4ry"], ["check", "--redis-auth=c4n4ry"]] {
        assert_silent(&said_of(&args, &env), TRACE);
    }
}

#[test]
fn a_password_in_a_flag_is_warned_of_without_telling_it() {
    for (args, env) in [
        (["serve", "--redis-auth=c4n4ry"], "REDIS_AUTH"),
        (["serve", "--redis-url=redis://:c4n4ry@127.0.0.1:1"], "REDIS_URL"),
    ] {
        let dir = tempfile::tempdir().expect("there is room");
        let log = dir.path().join("log");
        let mut child = sluice()
            .args(args)
            .env("RATE_LIMIT_CONFIG", dir.path())
            .envs(["PORT", "GRPC_PORT", "DEBUG_PORT"].map(|name| (name, "0")))
            .stderr(fs::File::create(&log).expect("can be made"))
            .spawn()
            .expect("sluice starts");
        let said = || fs::read_to_string(&log).unwrap_or_default();
        let warned = holds_within(DEADLINE, || said().contains("serving"));
        let _ = child.kill();
        let _ = child.wait();
        assert!(warned && said().contains(&format!("the flag for {env} holds a password")), "{}", said());
        assert_silent(&said(), TRACE);
    }
}
