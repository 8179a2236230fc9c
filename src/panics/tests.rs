use std::{
    cell::Cell,
    process::{Command, Output},
};

use super::*;
use crate::{config::settings::Settings, telemetry::logs};

/// Panics whenever it is counted: the one thing in a call that a test can bring with it.
struct Fragile;

impl metrics::CounterFn for Fragile {
    fn increment(&self, _: u64) {
        panic!("on purpose");
    }

    fn absolute(&self, _: u64) {
        panic!("on purpose");
    }
}

pub fn fragile_counter() -> metrics::Counter {
    metrics::Counter::from_arc(std::sync::Arc::new(Fragile))
}

#[tokio::test]
async fn work_that_panics_is_caught_and_other_work_is_not_touched() {
    assert_eq!(caught(async { 1 }).await, Ok(1));
    assert_eq!(caught(async { panic!("on purpose") }).await, Err::<(), _>(Panicked));
    assert_eq!(caught_now(|| panic!("on purpose")), Err::<(), _>(Panicked));
}

#[tokio::test]
async fn a_panic_after_an_await_is_caught_too() {
    let late = async {
        tokio::task::yield_now().await;
        panic!("on purpose")
    };
    assert_eq!(caught(late).await, Err::<(), _>(Panicked));
}

#[tokio::test(start_paused = true)]
async fn work_begins_again_until_it_ends_by_itself() {
    let begun = Cell::new(0);
    let at_first = tokio::time::Instant::now();
    again(|| async {
        begun.set(begun.get() + 1);
        assert!(begun.get() == 3, "on purpose");
    })
    .await;
    assert_eq!((begun.get(), at_first.elapsed()), (3, 2 * PAUSE));
}

#[test]
fn a_panic_in_every_request_does_not_fill_the_log() {
    let mut told = Told { since: None, lines: 0, untold: 0 };
    let began = Instant::now();
    let lines = (0..1_000).filter(|_| told.next(began).is_some()).count();
    assert_eq!(lines, LINES_MAX as usize);
    assert_eq!(told.next(began + A_MINUTE), Some(1_000 - u64::from(LINES_MAX)), "what was left out is told in the end");
}

/// Panics in a process that has the log and the hook of a server. Run by the tests below, in a process of its own.
#[test]
#[ignore = "ends in panics: other tests run it in a process of its own"]
fn a_process_with_panics() {
    let format = std::env::var("FORMAT_OF_TEST").unwrap_or_default();
    if !format.is_empty() {
        let (settings, _) = Settings::read(|name| (name == "LOG_FORMAT").then(|| format.clone())).unwrap();
        logs::install(&settings.telemetry);
    }
    install();
    let value = "a-value-of-a-request";
    assert_eq!(caught_now(|| panic!("cannot use {value}")), Err::<(), _>(Panicked));
    assert_eq!(caught_now(|| &value[..=value.len()]), Err(Panicked));
    assert_eq!(caught_now(|| panic!("a text of the source")), Err::<(), _>(Panicked));
    assert_eq!(seen(), 3);
}

fn process_with_panics(format: &str) -> String {
    let this = std::env::current_exe().unwrap();
    let ran = Command::new(this)
        .args(["--exact", "panics::tests::a_process_with_panics", "--ignored", "--nocapture"])
        .env("FORMAT_OF_TEST", format)
        .env_remove("RUST_BACKTRACE")
        .output();
    let Output { status, stderr, .. } = ran.unwrap();
    let stderr = String::from_utf8(stderr).unwrap();
    assert!(status.success(), "{stderr}");
    stderr
}

#[test]
fn the_log_has_a_line_with_the_place_and_no_value_of_a_request() {
    for format in ["text", "json", ""] {
        let log = process_with_panics(format);
        let lines: Vec<&str> = log.lines().filter(|line| !line.is_empty()).collect();
        assert_eq!(lines.len(), 3, "{format}: {log}");
        assert!(lines.iter().all(|line| line.contains("src/panics/tests.rs:")), "{format}: {log}");
        assert!(!log.contains("a-value-of"), "{format}: {log}");
        if format == "json" {
            let last: serde_json::Value = serde_json::from_str(lines[2]).unwrap();
            assert_eq!((&last["level"], &last["said"]), (&"error".into(), &"a text of the source".into()));
        }
    }
}
