//! Rules that change while the server runs, in every way in which files change.

mod noticed;

use std::{fs, net::TcpStream, os::unix::fs::symlink, path::Path};

use serde_json::Value;

use crate::harness::{Server, http, wait_until};

const SUCCESS: &str = "ratelimit_service_config_load_success";
const ERROR: &str = "ratelimit_service_config_load_error";

fn rules(domain: &str, limit: u32) -> String {
    format!("domain: {domain}\ndescriptors:\n  - {{key: ip, rate_limit: {{unit: day, requests_per_unit: {limit}}}}}\n")
}

fn ask(server: &Server, domain: &str, hits: u32) -> Value {
    let entries = r#"[{"key": "ip", "value": "1"}]"#;
    let descriptor = format!(r#"{{"entries": {entries}, "hitsAddend": "{hits}"}}"#);
    server.post_json(&format!(r#"{{"domain": "{domain}", "descriptors": [{descriptor}]}}"#)).json()
}

/// The limit that holds, seen by a look; `None` is no limit.
fn limit(server: &Server, domain: &str) -> Option<u64> {
    ask(server, domain, 0)["statuses"][0]["currentLimit"]["requestsPerUnit"].as_u64()
}

fn remaining(server: &Server, domain: &str) -> u64 {
    ask(server, domain, 0)["statuses"][0]["limitRemaining"].as_u64().unwrap_or(0)
}

#[track_caller]
fn wait_for_limit(server: &Server, domain: &str, expected: impl Into<Option<u64>>) {
    let expected = expected.into();
    wait_until(&format!("the limit of {domain} is {expected:?}"), || limit(server, domain) == expected);
}

/// Waits until a bad set of rules has been seen and refused.
#[track_caller]
fn wait_for_error(server: &Server) {
    wait_until("a bad load is counted", || server.metric(ERROR) > 0.0);
    wait_until("/config tells the error", || {
        server.config()["last_error"].is_string() || server.config()["last_error"].is_object()
    });
}

#[test]
fn a_file_that_is_edited_in_place_takes_effect() {
    let server = Server::start(&rules("d", 5));
    assert_eq!(limit(&server, "d"), Some(5));
    server.write("rules.yaml", &rules("d", 7));
    wait_for_limit(&server, "d", 7);
    assert_eq!(server.config()["generation"], 2);
}

#[test]
fn a_file_that_an_editor_renames_into_place_takes_effect() {
    let server = Server::start(&rules("d", 5));
    for limit in [6, 7] {
        server.write(".rules.yaml.swp", &rules("d", limit));
        fs::rename(server.path(".rules.yaml.swp"), server.path("rules.yaml")).expect("renamed");
        wait_for_limit(&server, "d", u64::from(limit));
    }
}

/// Kubernetes: the files are links into `..data`, which is a link to a directory with the time in its name.
fn publish_config_map(dir: &Path, version: &str, text: &str) {
    fs::create_dir(dir.join(version)).expect("made");
    fs::write(dir.join(version).join("rules.yaml"), text).expect("written");
    symlink(version, dir.join("..data_tmp")).expect("linked");
    fs::rename(dir.join("..data_tmp"), dir.join("..data")).expect("renamed");
}

#[test]
fn a_config_map_that_is_swapped_takes_effect() {
    let server = Server::builder()
        .prepare(|dir| {
            publish_config_map(dir, "..2026_01", &rules("d", 5));
            symlink("..data/rules.yaml", dir.join("rules.yaml")).expect("linked");
        })
        .start();
    assert_eq!(limit(&server, "d"), Some(5));
    publish_config_map(server.dir(), "..2026_02", &rules("d", 6));
    fs::remove_dir_all(server.path("..2026_01")).expect("removed");
    wait_for_limit(&server, "d", 6);
    publish_config_map(server.dir(), "..2026_03", &rules("d", 7));
    wait_for_limit(&server, "d", 7);
}

#[test]
fn a_root_directory_that_is_swapped_by_its_link_takes_effect() {
    let root = tempfile::tempdir().expect("there is room");
    let publish = |version: &str, limit| {
        let dir = root.path().join(version).join("config");
        fs::create_dir_all(&dir).expect("made");
        fs::write(dir.join("rules.yaml"), rules("d", limit)).expect("written");
        symlink(version, root.path().join("next")).expect("linked");
        fs::rename(root.path().join("next"), root.path().join("current")).expect("renamed");
    };
    publish("one", 5);
    let current = root.path().join("current");
    let server =
        Server::builder().env("RATE_LIMIT_CONFIG", "").env("RUNTIME_ROOT", current.to_str().expect("is text")).start();
    assert_eq!(limit(&server, "d"), Some(5));
    publish("two", 6);
    wait_for_limit(&server, "d", 6);
}

#[test]
fn a_single_file_is_watched_as_well() {
    let other = tempfile::tempdir().expect("there is room");
    let file = other.path().join("limits.yaml");
    fs::write(&file, rules("d", 5)).expect("written");
    let server = Server::builder().env("RATE_LIMIT_CONFIG", file.to_str().expect("is text")).start();
    fs::write(&file, rules("d", 6)).expect("written");
    wait_for_limit(&server, "d", 6);
}

#[test]
fn a_bad_file_never_replaces_rules_that_work() {
    let server = Server::start(&rules("d", 5));
    ask(&server, "d", 2);
    let half_written = "domain: d\ndescriptors:\n  - key: ip\n    rate_li";
    for (index, bad) in [half_written, "domain: [", "", "domain: d\nsurprise: 1\n"].into_iter().enumerate() {
        let errors = server.metric(ERROR);
        server.write("rules.yaml", bad);
        wait_until("a bad load is counted", || server.metric(ERROR) > errors);
        wait_for_error(&server);
        assert_eq!(limit(&server, "d"), Some(5), "after bad file {index}");
        assert_eq!(remaining(&server, "d"), 3, "after bad file {index}");
    }
    assert_eq!(server.metric(SUCCESS), 1.0);
    let config = server.config();
    assert!(config["last_error"].to_string().contains("rules.yaml"), "{config}");
    assert_eq!(config["generation"], 1, "{config}");
    assert_eq!(server.get("/healthcheck").status, 200, "it still serves");
    server.wait_for_line(&["error", "rules.yaml"]);
}

#[test]
fn one_bad_file_keeps_the_whole_set_as_it_was() {
    let server = Server::builder().file("a.yaml", &rules("a", 5)).file("b.yaml", &rules("b", 5)).start();
    server.write("b.yaml", "domain: b\ndescriptors: 5\n");
    wait_for_error(&server);
    server.write("a.yaml", &rules("a", 9));
    wait_until("another bad load is counted", || server.metric(ERROR) > 1.0);
    assert_eq!((limit(&server, "a"), limit(&server, "b")), (Some(5), Some(5)));
}

#[test]
fn a_bad_file_that_is_mended_heals() {
    let server = Server::start(&rules("d", 5));
    server.write(
        "rules.yaml",
        "domain: d\ndescriptors: [{key: ip, rate_limit: {unit: fortnight, requests_per_unit: 1}}]\n",
    );
    wait_for_error(&server);
    server.write("rules.yaml", &rules("d", 8));
    wait_for_limit(&server, "d", 8);
    wait_until("/config has no error", || server.config()["last_error"].is_null());
}

#[test]
fn a_bad_file_that_is_put_back_as_it_was_heals() {
    let server = Server::start(&rules("d", 5));
    server.write("rules.yaml", "domain: d\nnonsense");
    wait_for_error(&server);
    server.write("rules.yaml", &rules("d", 5));
    wait_until("/config has no error", || server.config()["last_error"].is_null());
    assert_eq!(limit(&server, "d"), Some(5));
}

#[test]
fn a_file_that_is_added_takes_effect_and_one_that_is_removed_loses_it() {
    let server = Server::builder().file("a.yaml", &rules("a", 5)).start();
    assert_eq!(limit(&server, "b"), None);
    server.write("b.yaml", &rules("b", 6));
    wait_for_limit(&server, "b", 6);
    fs::remove_file(server.path("b.yaml")).expect("removed");
    wait_for_limit(&server, "b", None);
    assert_eq!(limit(&server, "a"), Some(5));
}

#[test]
fn a_directory_that_goes_away_leaves_the_rules_and_one_that_comes_back_is_followed() {
    let server = Server::builder().file("rules.yaml", &rules("d", 5)).env("RULES_POLL_INTERVAL", "100ms").start();
    let away = server.dir().with_extension("away");
    fs::rename(server.dir(), &away).expect("renamed");
    wait_for_error(&server);
    assert_eq!(limit(&server, "d"), Some(5));
    fs::rename(&away, server.dir()).expect("renamed");
    wait_until("/config has no error", || server.config()["last_error"].is_null());
    server.write("rules.yaml", &rules("d", 6));
    wait_for_limit(&server, "d", 6);
}

#[test]
fn files_that_are_no_rules_are_left_alone() {
    let server = Server::start(&rules("d", 5));
    server.write("README.md", "{ no yaml");
    server.write(".hidden.yaml", "{ no yaml");
    server.write("rules.yaml~", "{ no yaml");
    server.write("rules.yaml", &rules("d", 6));
    wait_for_limit(&server, "d", 6);
    assert_eq!(server.metric(ERROR), 0.0);
}

#[test]
fn a_hang_up_signal_reads_the_rules_again() {
    // The poll is so slow, and the files so still, that only the signal can be the reason.
    let server = Server::builder().file("rules.yaml", &rules("d", 5)).env("RULES_POLL_INTERVAL", "1h").start();
    noticed::wait_for_first_reads(&server);
    server.hang_up();
    wait_until("the rules were read again", || noticed::reads(&server) == 3.0);
    assert_eq!(limit(&server, "d"), Some(5), "it lives, and answers as before");
    assert_eq!(server.config()["generation"], 1, "the same content is no new generation");
    server.write("rules.yaml", &rules("d", 6));
    server.hang_up();
    wait_for_limit(&server, "d", 6);
}

#[test]
fn counters_survive_a_reload_for_unchanged_rules_and_for_other_limits_of_the_same_window() {
    let server = Server::builder().file("a.yaml", &rules("a", 5)).file("b.yaml", &rules("b", 5)).start();
    ask(&server, "a", 2);
    ask(&server, "b", 2);
    server.write("b.yaml", &rules("b", 10));
    wait_for_limit(&server, "b", 10);
    assert_eq!(remaining(&server, "a"), 3);
    assert_eq!(remaining(&server, "b"), 8);
}

#[test]
fn one_log_line_says_what_was_added_changed_and_removed() {
    let rule =
        |key: &str, limit: u32| format!("  - {{key: {key}, rate_limit: {{unit: day, requests_per_unit: {limit}}}}}\n");
    let set = |rules: [String; 3]| format!("domain: d\ndescriptors:\n{}", rules.concat());
    let server = Server::start(&set([rule("stays", 1), rule("changes", 1), rule("goes", 1)]));
    server.write("rules.yaml", &set([rule("stays", 1), rule("changes", 2), rule("comes", 1)]));
    let line = server.wait_for_line(&["added", "changed", "removed", "comes", "changes", "goes"]);
    assert!(!line.contains("stays"), "{line}");
}

#[test]
fn a_reload_under_load_never_loses_the_rules() {
    let server = Server::start(&rules("d", 5));
    for limit in 6..16 {
        server.write("rules.yaml", &rules("d", limit));
        wait_until("the new limit holds", || {
            let seen = self::limit(&server, "d");
            assert!(seen.is_some_and(|seen| seen + 1 >= u64::from(limit)), "{seen:?} while going to {limit}");
            seen == Some(u64::from(limit))
        });
    }
}

#[test]
fn bad_rules_at_the_start_do_not_keep_it_from_starting_where_forced() {
    let server = Server::builder()
        .file("rules.yaml", "domain: d\nnonsense")
        .env("FORCE_START_WITHOUT_INITIAL_CONFIG", "true")
        .start();
    let asked = crate::harness::grpc::request("d", &[("ip", "1")]);
    let status = server.ask(asked).expect_err("there are no rules to answer by");
    assert!(status.message().contains("no rate limit configuration loaded"), "{status:?}");
    server.write("rules.yaml", &rules("d", 5));
    wait_until("good rules answer", || server.ask(crate::harness::grpc::request("d", &[("ip", "1")])).is_ok());
}

#[test]
fn who_asks_for_a_reload_is_told_how_it_went() {
    let server = Server::start(&rules("d", 5));
    let reload = |headers: &[(&str, &str)]| {
        let stream = TcpStream::connect(server.debug()).expect("is there");
        http::send_over(stream, "POST", "/reload", headers, "")
    };
    server.write("rules.yaml", &rules("d", 7));
    assert_eq!(reload(&[]).status, 403, "a page in a browser can send this");
    let applied = reload(&[("x-sluice", "reload")]);
    assert_eq!((applied.status, applied.json()["last_error"].is_null()), (200, true), "{}", applied.body);
    assert_eq!(limit(&server, "d"), Some(7));
    server.write("rules.yaml", "domain: [");
    let refused = reload(&[("x-sluice", "reload")]);
    assert_eq!((refused.status, refused.json()["last_error"].is_object()), (422, true), "{}", refused.body);
    assert_eq!(limit(&server, "d"), Some(7), "the rules before stay in force");
}
