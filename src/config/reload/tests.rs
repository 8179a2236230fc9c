use std::fs;

use super::*;
use crate::{live, panics::tests::fragile_counter};

const RULES: &str = "domain: d\ndescriptors:\n  - {key: a, rate_limit: {unit: year, requests_per_unit: 1}}\n";

#[test]
fn a_panic_while_rules_are_read_is_told_and_the_next_ones_are_read_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rules.yaml");
    fs::write(&file, RULES).unwrap();
    let (rules, _) = live::pair(Rules::default());
    let (report, reported) = live::pair(LoadReport::default());
    let mut fragile = Arc::into_inner(Metrics::new()).unwrap();
    fragile.load_success = fragile_counter();
    let mut reloader = Reloader {
        path: dir.path().to_owned(),
        poll_interval: Duration::from_secs(5),
        options: CompileOptions::default(),
        rules,
        report,
        metrics: Arc::new(fragile),
        health: Arc::new(Health::new(false)),
        known: Known::default(),
    };
    reloader.load();
    let error = reported.load().last_error.as_ref().map(|failure| failure.errors.join(""));
    assert_eq!(error.as_deref(), Some("sluice has panicked while it read the rules: its log has the place"));

    reloader.metrics = Metrics::new();
    fs::write(&file, RULES.replace("year", "day")).unwrap();
    reloader.load();
    assert_eq!((reported.load().last_error.is_none(), reported.load().rules), (true, 1));
}
