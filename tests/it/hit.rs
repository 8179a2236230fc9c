//! `sluice hit` against a running server: what it prints, and its exit code.

use std::{io, net::TcpStream, os::unix::net::UnixListener, thread};

use serde_json::Value;

use crate::harness::{Server, sluice};

const RULES: &str = r"
domain: shop
descriptors:
  - {key: ip, rate_limit: {unit: year, requests_per_unit: 3, name: per_ip}}
  - {key: user, rate_limit: {unit: year, requests_per_unit: 100}}
  - key: tenant
    descriptors:
      - {key: path, rate_limit: {unit: year, requests_per_unit: 5, unit_multiplier: 2}}
";

/// Exit code, standard output, standard error.
fn hit(args: &[&str]) -> (i32, String, String) {
    let output = sluice().arg("hit").args(args).output().expect("sluice runs");
    let text = |bytes| String::from_utf8(bytes).expect("prints text");
    (output.status.code().expect("ends by itself"), text(output.stdout), text(output.stderr))
}

fn hit_at(server: &Server, args: &[&str]) -> (i32, String, String) {
    hit(&[&["--target", server.grpc(), "--domain", "shop"], args].concat())
}

#[test]
fn each_answer_is_printed_and_the_exit_code_tells_whether_one_was_refused() {
    let server = Server::start(RULES);
    let (code, out, err) = hit_at(&server, &["--times", "3", "ip=1.2.3.4"]);
    assert_eq!((code, &*err), (0, ""), "{out}");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 4, "{out}");
    assert!(lines[0].contains("1  OK") && lines[0].contains("ip=1.2.3.4: 3 per year (per_ip), 2 remaining"), "{out}");
    assert!(lines[3].starts_with("3 asked: 3 OK, 0 OVER_LIMIT"), "{out}");

    let (code, out, _) = hit_at(&server, &["--times", "2", "ip=1.2.3.4"]);
    assert_eq!(code, 1, "{out}");
    assert!(out.contains("OVER_LIMIT  ip=1.2.3.4") && out.contains("2 asked: 0 OK, 2 OVER_LIMIT"), "{out}");
}

#[test]
fn hits_are_of_each_descriptor_and_can_be_looks_or_refunds() {
    let server = Server::start(RULES);
    let (code, out, _) = hit_at(&server, &["--hits", "3", "ip=1", "tenant=acme,path=/v1"]);
    assert_eq!(code, 0, "{out}");
    assert!(out.contains("ip=1: 3 per year (per_ip), 0 remaining"), "{out}");
    assert!(out.contains("tenant=acme,path=/v1: 5 per 2 years, 2 remaining"), "{out}");
    let (code, out, _) = hit_at(&server, &["--hits", "-2", "ip=1"]);
    assert!(code == 0 && out.contains("2 remaining"), "{out}");
    let (code, out, _) = hit_at(&server, &["--hits", "0", "--times", "3", "ip=1"]);
    assert!(code == 0 && out.lines().take(3).all(|line| line.contains("2 remaining")), "{out}");
    let (_, out, _) = hit_at(&server, &["nobody=1"]);
    assert!(out.contains("nobody=1: no limit"), "{out}");
}

#[test]
fn json_has_one_line_for_each_answer_and_one_for_the_sum() {
    let server = Server::start(RULES);
    let (code, out, _) = hit_at(&server, &["--format", "json", "--times", "4", "--interval", "1ms", "ip=1"]);
    assert_eq!(code, 1, "{out}");
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).expect("is JSON")).collect();
    assert_eq!(lines.len(), 5, "{out}");
    assert_eq!((&lines[0]["request"], &lines[0]["code"]), (&1.into(), &"OK".into()));
    assert_eq!(lines[0]["answer"]["statuses"][0]["limitRemaining"], 2);
    assert_eq!(lines[3]["answer"]["overallCode"], "OVER_LIMIT");
    assert_eq!((&lines[4]["summary"]["ok"], &lines[4]["summary"]["over_limit"]), (&3.into(), &1.into()));
}

#[test]
fn the_native_api_is_called_when_asked_for() {
    let server = Server::start(RULES);
    let (code, out, _) = hit_at(&server, &["--native", "--hits", "2", "--times", "2", "ip=1"]);
    assert_eq!(code, 1, "{out}");
    assert!(out.contains("OK          ip=1: per_ip, 1 remaining"), "{out}");
    assert!(out.contains("OVER_LIMIT  ip=1: per_ip") && out.contains("retry after"), "{out}");
    let (_, out, _) = hit_at(&server, &["--native", "--format", "json", "nobody=1"]);
    let line: Value = serde_json::from_str(out.lines().next().expect("there is one")).expect("is JSON");
    assert_eq!((&line["answer"][0]["rule"], &line["answer"][0]["allowed"]), (&"native_default".into(), &true.into()));
    let methods = r#"ratelimit_service_total_requests{grpc_method="ConsumeAndCheckLimit"}"#;
    assert_eq!(server.metric(methods), 3.0);
}

/// A socket that leads to an address.
fn socket_to(address: &str, path: &std::path::Path) {
    let listener = UnixListener::bind(path).expect("the path is free");
    let address = address.to_owned();
    thread::spawn(move || {
        for here in listener.incoming().map_while(Result::ok) {
            let there = TcpStream::connect(&address).expect("the server is there");
            let (mut asks, mut sink) = (here.try_clone().expect("cloned"), there.try_clone().expect("cloned"));
            thread::spawn(move || io::copy(&mut asks, &mut sink));
            let (mut answers, mut back) = (there, here);
            thread::spawn(move || io::copy(&mut answers, &mut back));
        }
    });
}

#[test]
fn a_target_can_be_a_unix_socket() {
    let server = Server::start(RULES);
    let path = server.path("socket");
    socket_to(server.grpc(), &path);
    for target in [format!("unix:{}", path.display()), format!("unix://{}", path.display())] {
        let (code, out, err) = hit(&["--target", &target, "--domain", "shop", "user=a"]);
        assert_eq!((code, &*err), (0, ""), "{out}");
        assert!(out.contains("user=a: 100 per year"), "{out}");
    }
}

#[test]
fn what_cannot_be_asked_is_said_in_a_sentence_and_exits_with_2() {
    let server = Server::start(RULES);
    let cases: [(&[&str], &str); 6] = [
        (&["ip"], "which has no `=`"),
        (&["--times", "0", "ip=1"], "--times"),
        (&["--interval", "soon", "ip=1"], "--interval"),
        (&["--native", "--hits", "-1", "ip=1"], "native API"),
        (&["--domain", "", "ip=1"], "domain"),
        (&[], "DESCRIPTOR"),
    ];
    for (args, part) in cases {
        let (code, out, err) = hit(&[&["--target", server.grpc()], args].concat());
        assert_eq!(code, 2, "{args:?}: {out}{err}");
        assert!(err.contains(part), "{part} is not in: {err}");
    }
}

#[test]
fn a_server_that_is_not_there_is_named() {
    for target in ["127.0.0.1:1", "unix:/nowhere/sluice.sock", "nonsense", "https://127.0.0.1:1"] {
        let (code, _, err) = hit(&["--target", target, "ip=1"]);
        assert_eq!(code, 2, "{err}");
        assert!(err.contains(target), "{target} is not in: {err}");
    }
}
