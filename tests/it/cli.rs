//! The command line: exit codes, what is printed where, and that all mistakes are told at once.

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Output, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Server, sluice};

const GOOD: &str = r#"
domain: shop
descriptors:
  - {key: ip, rate_limit: {unit: hour, requests_per_unit: 60, name: per_ip}}
  - key: tenant
    descriptors:
      - {key: path, value: "/api/*", rate_limit: {unit: day, requests_per_unit: 1000}}
"#;

/// Three mistakes in lines 3, 4 and 6.
const BAD: &str = r"domain: shop
descriptors:
  - {key: ip, rate_limit: {unit: fortnight, requests_per_unit: 60}}
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 1}, surprise: 1}
  - {key: plan, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: plan, rate_limit: {unit: hour, requests_per_unit: 2}}
";

struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Ran {
    fn all(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }
}

fn run(args: &[&str]) -> Ran {
    run_with(args, &[])
}

fn run_with(args: &[&str], env: &[(&str, &str)]) -> Ran {
    let Output { status, stdout, stderr } =
        sluice().args(args).envs(env.iter().copied()).output().expect("sluice runs");
    let text = |bytes| String::from_utf8(bytes).expect("prints text");
    Ran { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
}

fn file(text: &str) -> (TempDir, String) {
    let dir = tempfile::tempdir().expect("there is room");
    let path = dir.path().join("rules.yaml");
    fs::write(&path, text).expect("written");
    let path = path.to_str().expect("is text").to_owned();
    (dir, path)
}

#[test]
fn check_accepts_good_rules_in_a_file_and_in_a_directory() {
    let (dir, path) = file(GOOD);
    for path in [&*path, dir.path().to_str().expect("is text")] {
        let ran = run(&["check", path]);
        assert_eq!(ran.code, Some(0), "{}", ran.all());
    }
}

#[test]
fn check_tells_every_mistake_at_once_with_its_place() {
    let (_dir, path) = file(BAD);
    let ran = run(&["check", &path]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    let told = ran.all();
    for part in ["rules.yaml:3", "fortnight", "rules.yaml:4", "surprise", "rules.yaml:6", "plan"] {
        assert!(told.contains(part), "{part} is not told:\n{told}");
    }
}

#[test]
fn check_cannot_read_what_is_not_there() {
    let ran = run(&["check", "/nowhere/rules.yaml"]);
    assert_eq!(ran.code, Some(2), "{}", ran.all());
    assert!(ran.all().contains("/nowhere/rules.yaml"), "{}", ran.all());
}

#[test]
fn check_without_a_path_is_a_usage_error() {
    assert_eq!(run(&["check"]).code, Some(2));
    assert_eq!(run(&["check", "--format", "xml", "x"]).code, Some(2));
}

#[test]
fn check_reports_as_json_when_asked() {
    let (_dir, path) = file(BAD);
    let ran = run(&["check", "--format", "json", &path]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    let report: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}", ran.stdout));
    let text = report.to_string();
    for part in ["rules.yaml", "fortnight", "surprise"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }

    let (_dir, path) = file(GOOD);
    let ran = run(&["check", "--format", "json", &path]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    serde_json::from_str::<Value>(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}", ran.stdout));
}

#[test]
fn check_warns_of_what_is_legal_but_odd_and_still_accepts_it() {
    let odd = [
        ("limit", "- {key: ip, rate_limit: {unit: hour, requests_per_unit: 0}}"),
        (
            "never",
            "- {key: path, value: \"/*\", rate_limit: {unit: hour, requests_per_unit: 1}}\n  \
             - {key: path, value: \"/api/*\", rate_limit: {unit: hour, requests_per_unit: 1}}",
        ),
    ];
    for (word, descriptors) in odd {
        let (_dir, path) = file(&format!("domain: d\ndescriptors:\n  {descriptors}\n"));
        let ran = run(&["check", &path]);
        assert_eq!(ran.code, Some(0), "{}", ran.all());
        let told = ran.all();
        assert!(told.contains("warning") && told.contains("rules.yaml:"), "no warning for {word}:\n{told}");
    }
}

#[test]
fn check_sees_a_domain_that_stands_in_two_files() {
    let (dir, _) = file(GOOD);
    fs::write(
        dir.path().join("second.yaml"),
        "domain: shop\ndescriptors: [{key: other, rate_limit: {unit: day, requests_per_unit: 1}}]\n",
    )
    .expect("written");
    let dir = dir.path().to_str().expect("is text");
    let ran = run(&["check", dir]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    assert!(ran.all().contains("shop"), "{}", ran.all());
    assert_eq!(run(&["check", "--merge-domain-config", dir]).code, Some(0));
}

#[test]
fn schema_prints_the_schema_that_is_committed() {
    let ran = run(&["schema"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/rules.schema.json");
    let committed = fs::read_to_string(committed).expect("config/rules.schema.json is there");
    assert_eq!(ran.stdout.trim(), committed.trim(), "run `sluice schema > config/rules.schema.json`");
    let schema: Value = serde_json::from_str(&ran.stdout).expect("is JSON");
    assert!(jsonschema::validator_for(&schema).is_ok());
}

#[test]
fn the_schema_accepts_a_good_document_and_refuses_a_bad_one() {
    let schema: Value = serde_json::from_str(&run(&["schema"]).stdout).expect("is JSON");
    let schema = jsonschema::validator_for(&schema).expect("is a schema");
    let limit = |unit: &str| {
        let rate_limit = json!({"unit": unit, "requests_per_unit": 1});
        json!({"domain": "d", "descriptors": [{"key": "a", "rate_limit": rate_limit}]})
    };
    assert!(schema.is_valid(&limit("day")));
    assert!(!schema.is_valid(&limit("fortnight")));
    assert!(!schema.is_valid(&json!({"domain": "d", "surprise": 1})));
}

#[test]
fn explain_says_which_rule_a_request_meets_from_the_files() {
    let (_dir, path) = file(GOOD);
    let ran = run(&["explain", "--rules", &path, "--domain", "shop", "tenant=acme,path=/api/users"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    for part in ["/api/*", "1000", "day"] {
        assert!(ran.stdout.to_lowercase().contains(part), "{part} is not in\n{}", ran.stdout);
    }
    let ran = run(&["explain", "--rules", &path, "--domain", "shop", "ip=1.2.3.4"]);
    assert!(ran.stdout.contains("per_ip") && ran.stdout.contains("{shop}"), "{}", ran.stdout);
}

#[test]
fn explain_says_that_nothing_is_met() {
    let (_dir, path) = file(GOOD);
    let ran = run(&["explain", "--rules", &path, "--domain", "shop", "nobody=1"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert!(ran.stdout.to_lowercase().contains("no "), "{}", ran.stdout);
    assert!(!ran.stdout.contains("per_ip"), "{}", ran.stdout);
}

#[test]
fn explain_asks_a_running_server_and_never_charges() {
    let server = Server::start(GOOD);
    let address = format!("http://{}", server.debug());
    for _ in 0..3 {
        let ran = run(&["explain", "--server", &address, "--domain", "shop", "ip=1.2.3.4"]);
        assert_eq!(ran.code, Some(0), "{}", ran.all());
        assert!(ran.stdout.contains("per_ip") && ran.stdout.contains("{shop}"), "{}", ran.stdout);
    }
    let answer = server.ask(crate::harness::grpc::request("shop", &[("ip", "1.2.3.4")])).expect("is answered");
    assert_eq!(answer.statuses[0].limit_remaining, 59);
    assert_eq!(server.metric(r#"ratelimit_service_rate_limit_total_hits{domain="shop",key1="ip"}"#), 1.0);
}

#[test]
fn explain_says_when_there_is_no_server() {
    let ran = run(&["explain", "--server", "http://127.0.0.1:1", "--domain", "shop", "ip=1"]);
    assert!(ran.code.is_some_and(|code| code != 0), "{}", ran.all());
    assert!(ran.stderr.contains("127.0.0.1:1"), "{}", ran.stderr);
}

#[test]
fn help_names_every_subcommand() {
    let ran = run(&["--help"]);
    assert_eq!(ran.code, Some(0));
    for command in ["serve", "check", "doctor", "explain", "hit", "schema"] {
        assert!(ran.stdout.contains(command), "{command} is not in\n{}", ran.stdout);
    }
}

#[test]
fn version_is_that_of_the_package() {
    let ran = run(&["--version"]);
    assert_eq!((ran.code, ran.stdout.trim()), (Some(0), concat!("sluice ", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn an_unknown_subcommand_or_flag_is_a_usage_error() {
    assert_eq!(run(&["dance"]).code, Some(2));
    assert_eq!(run(&["serve", "--no-such-flag"]).code, Some(2));
}

#[test]
fn all_wrong_settings_are_told_together() {
    let (_dir, path) = file(GOOD);
    let wrong = [("RATE_LIMIT_CONFIG", &*path), ("PORT", "abc"), ("LOG_LEVEL", "loud"), ("SHADOW_MODE", "perhaps")];
    let ran = run_with(&["serve"], &wrong);
    assert_eq!(ran.code, Some(2), "{}", ran.all());
    for part in ["PORT", "abc", "LOG_LEVEL", "loud", "SHADOW_MODE", "perhaps"] {
        assert!(ran.stderr.contains(part), "{part} is not told:\n{}", ran.stderr);
    }
}

#[test]
fn a_flag_goes_before_the_variable() {
    let ran = run_with(&["serve", "--port", "flagged"], &[("PORT", "8080")]);
    assert_eq!(ran.code, Some(2), "{}", ran.all());
    assert!(ran.stderr.contains("flagged"), "{}", ran.stderr);
}

#[test]
fn rules_that_are_not_there_are_named() {
    let ran = run_with(&["serve"], &[("RATE_LIMIT_CONFIG", "/nowhere/rules"), ("PORT", "0"), ("GRPC_PORT", "0")]);
    assert!(ran.code.is_some_and(|code| code != 0), "{}", ran.all());
    assert!(ran.stderr.contains("/nowhere/rules"), "{}", ran.stderr);
}

#[test]
fn a_setting_of_the_reference_that_is_not_served_is_named_in_a_warning() {
    let server = Server::builder()
        .file("rules.yaml", GOOD)
        .env("MEMCACHE_HOST_PORT", "cache:11211")
        .env("CONFIG_TYPE", "GRPC_XDS_SOTW")
        .start();
    server.wait_for_line(&["warn", "MEMCACHE_HOST_PORT"]);
    server.wait_for_line(&["warn", "CONFIG_TYPE"]);
}

#[test]
fn bad_rules_at_the_start_are_told_with_their_place() {
    let server = Server::builder().file("rules.yaml", BAD).spawn();
    server.wait_for_line(&["rules.yaml", "fortnight"]);
    server.wait_for_line(&["rules.yaml", "surprise"]);
}

#[test]
fn serve_is_what_it_does_without_a_subcommand() {
    let ran = run_with(&[], &[("PORT", "abc")]);
    assert_eq!(ran.code, Some(2), "{}", ran.all());
    assert!(ran.stderr.contains("PORT"), "{}", ran.stderr);
}

#[test]
fn rules_cannot_steer_a_terminal_or_forge_a_line() {
    let hostile = "domain: \"d\\e[31m\"\nk\u{1b}[31m\u{202e}ey: 1\ndescriptors:\n  - {key: \"a\\n::error::forged\", rate_limit: {unit: \"x\\n::error::forged\\e[2J\"}}\n";
    let good = "domain: d\ndescriptors:\n  - {key: a, rate_limit: {unit: day, requests_per_unit: 1, name: \"n\\n::error::forged\\e[2J\"}}\n";
    let ((_bad_dir, bad), (_good_dir, good)) = (file(hostile), file(good));
    let value = "a=x\n::error::forged\u{1b}[2J";
    for ran in [run(&["check", &bad]), run(&["explain", "--rules", &good, "--domain", "d", value])] {
        let said = ran.all();
        assert!(said.contains("::error::forged"), "it is told: {said}");
        assert!(said.lines().all(|line| !line.starts_with("::") && !line.contains(char::is_control)), "{said:?}");
        assert!(!said.contains('\u{202e}'), "{said:?}");
    }
}

#[test]
fn a_reader_who_goes_away_is_no_reason_to_panic() {
    let (_dir, path) = file(GOOD);
    for args in [
        &["check", &*path][..],
        &["check", "--format", "json", &path],
        &["schema"],
        &["explain", "--rules", &path, "--domain", "shop", "ip=1"],
        &["doctor", "--rate-limit-config", &path, "--port", "0", "--grpc-port", "0", "--debug-port", "0"],
    ] {
        let mut child =
            sluice().args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("sluice starts");
        drop(child.stdout.take());
        let ended = child.wait_with_output().expect("sluice ends");
        let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!((ended.status.code(), &*stderr), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn check_reads_a_pipe() {
    let check = |text: &str| {
        let mut child = sluice()
            .args(["check", "/dev/stdin"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sluice starts");
        child.stdin.take().expect("is piped").write_all(text.as_bytes()).expect("is read");
        let ended = child.wait_with_output().expect("sluice ends");
        (ended.status.code(), String::from_utf8_lossy(&ended.stdout).into_owned())
    };
    let (code, said) = check(GOOD);
    assert!(code == Some(0) && said.contains("ok: 2 rules"), "{said}");
    let (code, said) = check(BAD);
    assert!(code == Some(1) && said.contains("/dev/stdin:3"), "{said}");
}

#[test]
fn explain_goes_by_the_settings_for_rules_and_keys() {
    let (dir, _) = file(GOOD);
    let dir = dir.path().to_str().expect("is text");
    let env = [("RATE_LIMIT_CONFIG", dir), ("CACHE_KEY_PREFIX", "mine:")];
    let ran = run_with(&["explain", "--domain", "shop", "ip=1"], &env);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert!(ran.stdout.contains("mine:{") && ran.stdout.contains("per_ip"), "{}", ran.stdout);
    let ran = run_with(&["explain", "--domain", "shop", "ip=1"], &[("CACHE_KEY_PREFIX", "{")]);
    assert!(ran.code == Some(2) && ran.stderr.contains("CACHE_KEY_PREFIX"), "{}", ran.all());
}

#[test]
fn who_tells_it_twice_to_stop_need_not_wait() {
    let mut server = Server::builder().file("rules.yaml", GOOD).env("DRAIN_DELAY", "1h").start();
    server.terminate();
    server.wait_for_line(&["shutting down", "SIGTERM"]);
    server.terminate();
    server.wait_for_line(&["told to stop once more", "SIGTERM"]);
    assert_eq!(server.wait_for_exit().code(), Some(0));
}

#[test]
fn why_it_cannot_listen_is_told_once_with_the_setting() {
    let (dir, path) = file(GOOD);
    let nowhere = dir.path().join("none/s.sock");
    let nowhere = nowhere.to_str().expect("is text");
    let ports = [("PORT", "0"), ("GRPC_PORT", "0"), ("DEBUG_PORT", "0"), ("RATE_LIMIT_CONFIG", &*path)];
    let tls = [("GRPC_SERVER_USE_TLS", "true"), ("GRPC_SERVER_TLS_CERT", nowhere), ("GRPC_SERVER_TLS_KEY", nowhere)];
    for (env, name) in [(&tls[..], "GRPC_SERVER_TLS_KEY"), (&[("GRPC_UDS", nowhere)], "GRPC_UDS")] {
        let ran = run_with(&["serve"], &[&ports, env].concat());
        assert_eq!(ran.code, Some(1), "{}", ran.all());
        assert!(ran.stderr.contains(name), "{}", ran.stderr);
        assert_eq!(ran.stderr.matches("No such file").count(), 1, "{}", ran.stderr);
    }
}
