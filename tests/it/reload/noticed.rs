//! What is noticed without waiting for the next poll, what is waited for, and what is not taken for a change. The poll is an hour
//! here, so that it cannot help.

use std::{
    fs,
    io::Write as _,
    net::TcpStream,
    os::unix::fs::symlink,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use super::{ERROR, limit, rules, wait_for_error, wait_for_limit};
use crate::harness::{Server, http, server::Builder, wait::holds_within, wait_until};

/// What the README promises, and a little for a busy machine.
const SOON: Duration = Duration::from_millis(3_000);
/// Longer than a change rests before it is read, shorter than a writer is waited for.
const PAUSE: Duration = Duration::from_millis(300);

fn without_polls() -> Builder {
    Server::builder().env("RULES_POLL_INTERVAL", "1h")
}

fn of(path: &Path) -> Builder {
    without_polls().env("RATE_LIMIT_CONFIG", path.to_str().expect("is text"))
}

pub(super) fn reads(server: &Server) -> f64 {
    server.scrape().of("sluice_reloads_total").iter().map(|(_, value)| value).sum()
}

/// Once at the start, and once more when the files are watched.
pub(super) fn wait_for_first_reads(server: &Server) {
    wait_until("the rules were read and are watched", || reads(server) == 2.0);
}

#[track_caller]
fn soon_limits(server: &Server, expected: u64) {
    let began = Instant::now();
    wait_for_limit(server, "d", expected);
    assert!(began.elapsed() < SOON, "it took {:?}", began.elapsed());
}

#[test]
fn reading_the_rules_is_no_reason_to_read_them_again() {
    let server = without_polls().file("rules.yaml", &rules("d", 5)).start();
    wait_for_first_reads(&server);
    server.hang_up();
    wait_until("the rules were read again", || reads(&server) == 3.0);
    assert!(!holds_within(Duration::from_millis(700), || reads(&server) > 3.0), "nothing has changed");
}

/// Writes half of the rules, which is good YAML with fewer rules, lets `then` happen, waits, and writes the other half.
fn write_with_a_pause(server: &Server, then: impl FnOnce() + Send + 'static) {
    let text = format!("{}  - {{key: second}}\n", rules("d", 7));
    let first = text.find("  - {key: second").expect("is in there");
    let mut file = fs::File::create(server.path("rules.yaml")).expect("can be written");
    file.write_all(&text.as_bytes()[..first]).expect("can be written");
    let then = thread::spawn(then);
    let was_applied = holds_within(PAUSE, || server.config()["generation"] != 1);
    file.write_all(&text.as_bytes()[first..]).expect("can be written");
    drop(file);
    assert!(!was_applied, "half of a file was put in force");
    then.join().expect("does not panic");
}

#[test]
fn half_of_a_file_is_not_read_while_somebody_writes_it_whoever_asks_for_it() {
    let nothing = |_: &Server| -> Box<dyn FnOnce() + Send> { Box::new(|| {}) };
    let hang_up = |server: &Server| -> Box<dyn FnOnce() + Send> {
        let id = server.id().to_string();
        Box::new(move || {
            std::process::Command::new("kill").args(["-HUP", &id]).status().expect("kill runs");
        })
    };
    let reload = |server: &Server| -> Box<dyn FnOnce() + Send> {
        let debug = server.debug().to_owned();
        Box::new(move || {
            let stream = TcpStream::connect(debug).expect("is there");
            http::send_over(stream, "POST", "/reload", &[("x-sluice", "reload")], "");
        })
    };
    for reason in [&nothing as &dyn Fn(&Server) -> Box<dyn FnOnce() + Send>, &hang_up, &reload] {
        let server = without_polls().file("rules.yaml", &rules("d", 5)).start();
        wait_for_first_reads(&server);
        write_with_a_pause(&server, reason(&server));
        soon_limits(&server, 7);
        assert_eq!(server.config()["generation"], 2, "all of it was read at once");
    }
}

#[test]
fn a_writer_who_never_ends_is_not_waited_for_for_ever() {
    let server = without_polls().file("rules.yaml", &rules("d", 5)).start();
    let mut file = fs::File::create(server.path("rules.yaml")).expect("can be written");
    file.write_all(rules("d", 7).as_bytes()).expect("can be written");
    soon_limits(&server, 7);
}

#[test]
fn a_directory_that_is_emptied_leaves_the_rules_in_force() {
    let server = without_polls().file("rules.yaml", &rules("d", 5)).start();
    fs::remove_file(server.path("rules.yaml")).expect("removed");
    wait_for_error(&server);
    assert_eq!(limit(&server, "d"), Some(5));
    let said = server.config()["last_error"].to_string();
    assert!(said.contains("there is no *.yaml, *.yml or *.json file in"), "{said}");
    assert_eq!(server.metric(ERROR), 1.0);
    server.write("rules.yaml", &rules("d", 6));
    soon_limits(&server, 6);
    assert!(server.config()["last_error"].is_null());
}

#[test]
fn of_many_mistakes_the_log_has_the_first_and_says_where_the_others_are() {
    let server = without_polls().file("rules.yaml", &rules("d", 5)).start();
    let wrong = |key| format!("  - {{key: k{key}, rate_limit: {{unit: fortnight, requests_per_unit: 1}}}}\n");
    let wrong: String = (0..30).map(wrong).collect();
    server.write("rules.yaml", &format!("domain: d\ndescriptors:\n{wrong}"));
    server.wait_for_line(&["\"more\":25", "/config on the debug port", "sluice check"]);
    server.wait_for_line(&["rules refused"]);
    assert_eq!(server.log().iter().filter(|line| line.contains("fortnight")).count(), 5);
    assert_eq!(server.config()["last_error"]["errors"].as_array().map(Vec::len), Some(30));
}

#[test]
fn a_file_behind_a_link_into_another_directory_is_noticed_when_it_is_edited() {
    let other = tempfile::tempdir().expect("there is room");
    let real = other.path().join("real.conf");
    fs::write(&real, rules("d", 5)).expect("written");
    let server = without_polls().prepare(|dir| symlink(&real, dir.join("rules.yaml")).expect("linked")).start();
    wait_for_first_reads(&server);
    fs::write(&real, rules("d", 6)).expect("written");
    soon_limits(&server, 6);
}

#[test]
fn a_link_in_the_middle_of_a_chain_is_noticed_when_it_is_swapped() {
    let root = tempfile::tempdir().expect("there is room");
    let at = |name: &str| root.path().join(name);
    for (version, limit) in [("v1", 5), ("v2", 6)] {
        fs::create_dir_all(at(version)).expect("made");
        fs::write(at(version).join("rules.yaml"), rules("d", limit)).expect("written");
    }
    for directory in ["links", "middle"] {
        fs::create_dir(at(directory)).expect("made");
    }
    symlink("../v1", at("middle/live")).expect("linked");
    symlink("../middle/live", at("links/current")).expect("linked");
    let server = of(&at("links/current")).start();
    wait_for_first_reads(&server);
    assert_eq!(limit(&server, "d"), Some(5));
    symlink("../v2", at("middle/next")).expect("linked");
    fs::rename(at("middle/next"), at("middle/live")).expect("swapped");
    soon_limits(&server, 6);
    // The directory that is linked now is watched, too.
    fs::write(at("v2/rules.yaml"), rules("d", 7)).expect("written");
    soon_limits(&server, 7);
}

#[test]
fn rules_whose_directories_are_not_there_yet_are_noticed_when_they_come() {
    let root = tempfile::tempdir().expect("there is room");
    let path = root.path().join("a/b/rules");
    let server = of(&path).env("FORCE_START_WITHOUT_INITIAL_CONFIG", "true").start();
    server.wait_for_line(&["error", "a/b/rules"]);
    fs::create_dir_all(&path).expect("made");
    fs::write(path.join("rules.yaml"), rules("d", 5)).expect("written");
    wait_until("good rules answer", || {
        server.ask(crate::harness::grpc::request("d", &[("ip", "1")])).is_ok_and(|answer| !answer.statuses.is_empty())
    });
    soon_limits(&server, 5);
}
