//! Many callers at once: no hit is lost, none is given twice.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use crate::harness::{Server, http};

const CALLERS: u64 = 4;
const CALLS_OF_EACH: u64 = 50;
const LIMIT: u64 = 120;

/// How many of all calls with this body were admitted, when several callers send it at the same time.
fn admitted(server: &Server, body: &str) -> u64 {
    let admitted = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..CALLERS {
            scope.spawn(|| {
                for _ in 0..CALLS_OF_EACH {
                    let status = http::post(server.http(), "/json", body).status;
                    assert!(matches!(status, 200 | 429), "{status}");
                    admitted.fetch_add(u64::from(status == 200), Ordering::Relaxed);
                }
            });
        }
    });
    admitted.into_inner()
}

fn rules(limit: &str) -> String {
    format!(
        "domain: d\ndescriptors:\n  - {{key: a, rate_limit: {{{limit}}}}}\n  - {{key: b, rate_limit: {{{limit}}}}}\n"
    )
}

fn body(descriptors: &str) -> String {
    format!(r#"{{"domain": "d", "descriptors": [{descriptors}]}}"#)
}

const A: &str = r#"{"entries": [{"key": "a", "value": "1"}]}"#;
const B: &str = r#"{"entries": [{"key": "b", "value": "1"}]}"#;

#[test]
fn a_window_admits_exactly_its_limit() {
    let server = Server::start(&rules(&format!("unit: year, requests_per_unit: {LIMIT}")));
    assert_eq!(admitted(&server, &body(A)), LIMIT);
}

#[test]
fn a_bucket_admits_exactly_its_burst() {
    let limit = format!("algorithm: token_bucket, unit: year, requests_per_unit: 2, burst: {LIMIT}");
    let server = Server::start(&rules(&limit));
    assert_eq!(admitted(&server, &body(A)), LIMIT);
}

#[test]
fn requests_that_share_several_counters_are_decided_as_a_whole() {
    let limit = format!("unit: year, requests_per_unit: {LIMIT}, on_over_limit: spare");
    let server = Server::start(&rules(&limit));
    let (there, back) = (body(&format!("{A}, {B}")), body(&format!("{B}, {A}")));
    let both = thread::scope(|scope| {
        let one = scope.spawn(|| admitted(&server, &there));
        admitted(&server, &back) + one.join().expect("the callers do not panic")
    });
    assert_eq!(both, LIMIT);
    assert_eq!(admitted(&server, &body(B)), 0, "what was refused for one counter was not taken from the other");
}
