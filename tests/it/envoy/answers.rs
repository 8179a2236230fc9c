//! What callers and logs see of a decision.

use super::{Edge, deployed};
use crate::harness::{Server, wait_until};

#[test]
fn the_headers_say_the_limit_what_remains_and_when_it_begins_anew() {
    let edge = Edge::start();
    let answer = edge.envoy.get("/users", &[("x-user", "ann")]);
    assert_eq!(answer.header("x-ratelimit-limit"), Some("3, 3;w=3600;name=\"per_user\""));
    assert_eq!(answer.header("x-ratelimit-remaining"), Some("2"));
    let reset: u32 = answer.header("x-ratelimit-reset").and_then(|text| text.parse().ok()).expect("is a number");
    assert!((1..=3600).contains(&reset), "{reset}");
    assert_eq!(answer.header("retry-after"), None);
}

#[test]
fn a_window_of_five_minutes_is_shown_as_300_seconds() {
    let edge = Edge::start();
    let answer = edge.envoy.get("/reports", &[]);
    assert_eq!(answer.header("x-ratelimit-limit"), Some("7, 7;w=300;name=\"reports\""));
    assert_eq!(answer.header("x-ratelimit-remaining"), Some("6"));
}

#[test]
fn of_two_limits_the_headers_show_the_one_with_less_left_and_both_policies() {
    let edge = Edge::start();
    let answer = edge.envoy.get("/search", &[]);
    let limits = "4, 6;w=3600;name=\"all_searches\", 4;w=3600;name=\"searches_per_address\"";
    assert_eq!(answer.header("x-ratelimit-limit"), Some(limits));
    assert_eq!(answer.header("x-ratelimit-remaining"), Some("3"));
}

#[test]
fn who_is_refused_is_told_when_to_come_back() {
    let edge = Edge::start();
    edge.statuses(3, "/users", &[("x-user", "ann")]);
    let refused = edge.envoy.get("/users", &[("x-user", "ann")]);
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("x-envoy-ratelimited"), Some("true"));
    assert_eq!(refused.header("x-ratelimit-remaining"), Some("0"));
    let seconds: u32 = refused.header("retry-after").and_then(|text| text.parse().ok()).expect("is a number");
    assert!((1..=3600).contains(&seconds), "{seconds}");
}

#[test]
fn an_envoy_that_adds_no_retry_after_passes_on_that_of_sluice() {
    let sluice = Server::builder()
        .file("rules.yaml", &deployed("rules.yaml"))
        .env("LIMIT_RESPONSE_HEADERS_ENABLED", "true")
        .start();
    let envoy = super::Envoy::asking(&sluice)
        .replace("enable_retry_after_header: true", "enable_retry_after_header: false")
        .start();
    super::wait_for_room_in_the_hour();
    let allowed = envoy.get("/users", &[("x-user", "ann")]);
    assert_eq!(allowed.header("ratelimit-limit"), Some("3"));
    assert_eq!(allowed.header("ratelimit-remaining"), Some("2"));
    (0..2).for_each(|_| assert_eq!(envoy.get("/users", &[("x-user", "ann")]).status, 200));
    let refused = envoy.get("/users", &[("x-user", "ann")]);
    let seconds: u32 = refused.header("retry-after").and_then(|text| text.parse().ok()).expect("is a number");
    assert!(refused.status == 429 && (1..=3600).contains(&seconds), "{refused:?}");
}

#[test]
fn the_access_log_says_what_was_asked_and_decided() {
    let rules = deployed("rules.yaml");
    let edge = Edge::with(Server::builder().file("rules.yaml", &rules).env("RESPONSE_DYNAMIC_METADATA", "true"));
    edge.statuses(4, "/users?seen", &[("x-user", "ann")]);
    wait_until("all four are logged", || edge.envoy.access_log().len() == 4);
    let log = edge.envoy.access_log();
    let codes: Vec<_> = log.iter().map(|line| line["code"].as_u64().unwrap_or(0)).collect();
    assert_eq!(codes, [200, 200, 200, 429]);
    assert_eq!(log[3]["flags"], "RL");
    for line in &log {
        assert_eq!(line["rate_limit"]["domain"], "edge", "{line}");
        let text = line["rate_limit"].to_string();
        assert!(text.contains("user") && text.contains("ann"), "{text}");
    }
}

#[test]
fn nothing_in_a_rule_or_a_request_can_add_a_header() {
    let rules = deployed("rules.yaml")
        .replace("{name: terms,", "{name: \"terms\\r\\nx-injected: by-rule\\\"\",")
        .replace("{name: per_user,", "{name: \"per\\nx-injected: by-rule\",");
    assert_ne!(rules, deployed("rules.yaml"));
    let edge = Edge::with(
        Server::builder()
            .file("rules.yaml", &rules)
            .env("LIMIT_RESPONSE_HEADERS_ENABLED", "true")
            .env("RESPONSE_DYNAMIC_METADATA", "true"),
    );
    for _ in 0..3 {
        // Envoy decodes what is in a query, so that line ends really arrive.
        for (path, user) in [("/find?q=a%0d%0ax-injected:%20by-caller", "ann"), ("/users", "a\tb\"c\\")] {
            let answer = edge.envoy.get(path, &[("x-user", user)]);
            assert!(answer.header("x-ratelimit-limit").is_some(), "{answer:?}");
            assert_eq!(answer.header("x-injected"), None, "{answer:?}");
        }
    }
    assert_eq!(edge.envoy.get("/find?q=a%0d%0ax-injected:%20by-caller", &[]).status, 429);
    assert_eq!(edge.envoy.get("/find?q=a", &[]).status, 200, "what stands before the line end is another value");
}
