//! Log lines say what happened, and nothing that is in them can look like another line.

use std::{
    io::{BufRead as _, BufReader},
    process::Stdio,
};

use serde_json::Value;

use crate::harness::{
    Server,
    grpc::{self, request},
    http, sluice, wait_until,
};

/// Every way to end a line, to begin an escape sequence, and to look like a field or a line of our own.
const HOSTILE: [&str; 9] = [
    "x\n2026-01-01T00:00:00Z error   forged key=value",
    "x\r\nforged",
    "\u{1b}[2J\u{1b}[31mforged\u{9b}31m",
    "\" forged=\"yes\" \"",
    "x\u{2028}forged\u{2029}forged\u{85}forged\u{b}forged\u{c}forged",
    "\u{202e}degrof\u{2066}\u{feff}",
    "x\0forged\u{8}\u{7f}",
    "\\n forged \\u001b",
    "{\"@message\": \"forged\"}",
];

const RULES: &str = r#"
domain: "d\nforged \e[31m\L"
descriptors:
  - {key: ip, rate_limit: {unit: hour, requests_per_unit: 2, name: "per ip\nforged \e[31m\L"}}
  - {key: "k\nforged \e[31m\L", rate_limit: {unit: hour, requests_per_unit: 2}, shadow_mode: true}
"#;
const DOMAIN: &str = "d\nforged \u{1b}[31m\u{2028}";

/// Lets every hostile text through every door that logs it.
fn provoke(server: &Server) {
    for text in HOSTILE {
        for request in [request(DOMAIN, &[("ip", text)]), request(text, &[(text, text)])] {
            server.ask(request).expect("is answered");
        }
        let mut with_override = request(text, &[(text, text)]);
        with_override.descriptors[0].limit =
            Some(grpc::Override { requests_per_unit: 1, unit: 1, unit_multiplier: None });
        server.ask(with_override).expect("is answered");
        let json =
            serde_json::json!({"domain": text, "descriptors": [{"entries": [{"key": text, "value": text}]}], text: 1});
        http::post(server.http(), "/json", &json.to_string());
    }
    // A file whose name and content are hostile.
    server.write("bad\nforged \u{1b}[31m.yaml", "domain: x\n\"k\\nforged \\e[31m\": 1\n");
    wait_until("the bad file is seen", || server.metric("ratelimit_service_config_load_error") > 0.0);
}

fn lines(format: &str, level: &str) -> Vec<String> {
    let builder = Server::builder().file("rules.yaml", RULES).env("LOG_LEVEL", level).env("LOG_FORMAT", format);
    let server = builder.start();
    provoke(&server);
    let (_, log) = server.stop();
    assert!(log.len() > 3 * HOSTILE.len(), "values are logged at this level: {log:#?}");
    log
}

/// What no reader of lines and no terminal may see.
fn assert_harmless(line: &str) {
    let steers = |c: &char| {
        c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    assert_eq!(line.chars().find(steers), None, "{line:?}");
}

#[test]
fn no_value_can_forge_a_line_of_text() {
    for line in lines("text", "debug") {
        assert_harmless(&line);
        let level = line.split_whitespace().nth(1).unwrap_or_default();
        let is_ours = line.starts_with("20") && ["error", "warning", "info", "debug"].contains(&level);
        assert!(is_ours, "{line:?}");
        // A quote in a value is escaped, so that every field is ours.
        assert!(!line.contains(" forged=\"yes\""), "{line:?}");
    }
}

#[test]
fn no_value_can_forge_a_line_of_json_and_every_value_is_whole() {
    let log = lines("json", "debug");
    for line in &log {
        assert_harmless(line);
        let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        assert!(line["level"].is_string() && line["@timestamp"].is_string() && line["@message"] != "forged", "{line}");
    }
    let domains: Vec<Value> = log.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok()).collect();
    for text in HOSTILE {
        assert!(domains.iter().any(|line| line["domain"] == *text), "{text:?} was logged as it is");
    }
}

#[test]
fn it_goes_on_when_nobody_reads_its_log_any_more() {
    let dir = tempfile::tempdir().expect("there is room");
    std::fs::write(dir.path().join("rules.yaml"), "domain: d\ndescriptors: []\n").expect("can be written");
    let mut child = sluice()
        .env("RATE_LIMIT_CONFIG", dir.path())
        .envs(["HOST", "GRPC_HOST", "DEBUG_HOST"].map(|name| (name, "127.0.0.1")))
        .envs(["PORT", "GRPC_PORT", "DEBUG_PORT"].map(|name| (name, "0")))
        .envs([("LOG_FORMAT", "json"), ("LOG_LEVEL", "debug")])
        .stderr(Stdio::piped())
        .spawn()
        .expect("sluice starts");
    let mut log = BufReader::new(child.stderr.take().expect("is piped"));
    let mut line = String::new();
    while !line.contains("\"serving\"") {
        line.clear();
        assert!(log.read_line(&mut line).expect("is text") > 0, "it serves");
    }
    drop(log);
    let serving: Value = serde_json::from_str(&line).expect("is JSON");
    let (grpc, http) = (serving["grpc"].as_str().expect("is there"), serving["http"].as_str().expect("is there"));
    for _ in 0..20 {
        grpc::ask(grpc, request("d", &[("a", "b")])).expect("is answered");
    }
    let metrics = http::get(http, "/metrics").body;
    assert!(metrics.contains("\nsluice_panics_total 0\n"), "{metrics}");
    assert!(matches!(child.try_wait(), Ok(None)), "it lives");
    let _ = child.kill();
    let _ = child.wait();
}
