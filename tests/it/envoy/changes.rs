//! Rules that change while traffic flows. Sluices that are restarted meanwhile are a row of `tests/faults`.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use super::{Edge, deployed, process::Envoy, then_refused};
use crate::harness::wait_until;

/// Asks from several callers while `change` happens, and gives every status that came.
fn under_load(envoy: &Envoy, change: impl FnOnce()) -> Vec<u16> {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let ask = || {
            let mut statuses = Vec::new();
            while !done.load(Ordering::Relaxed) {
                statuses.push(envoy.get("/users", &[("x-user", "load")]).status);
            }
            statuses
        };
        let callers: Vec<_> = (0..3).map(|_| scope.spawn(ask)).collect();
        change();
        done.store(true, Ordering::Relaxed);
        callers.into_iter().flat_map(|caller| caller.join().expect("asks")).collect()
    })
}

#[test]
fn edited_rules_are_in_force_while_traffic_flows_and_bad_ones_never() {
    let edge = Edge::start();
    let rules = deployed("rules.yaml");
    let edited = rules.replace(
        "{name: per_user, unit: hour, requests_per_unit: 3}",
        "{name: per_user, unit: hour, requests_per_unit: 1000000}",
    );
    assert_ne!(rules, edited);
    let statuses = under_load(&edge.envoy, || {
        wait_until("the limit is reached", || edge.envoy.get("/users", &[("x-user", "load")]).status == 429);
        edge.sluice.write("rules.yaml", &edited);
        wait_until("the edit is in force", || edge.envoy.get("/users", &[("x-user", "load")]).status == 200);
        edge.sluice.write("rules.yaml", "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: fortnight}}]\n");
        edge.sluice.wait_for_line(&["fortnight"]);
        assert_eq!(edge.envoy.get("/users", &[("x-user", "load")]).status, 200);
    });
    assert!(statuses.iter().all(|status| matches!(status, 200 | 429)));
    assert_eq!(edge.envoy.errors(), 0);
    // What did not change has kept its counters.
    assert_eq!(edge.statuses(5, "/login", &[]), then_refused(5, 0));
    edge.sluice.write("rules.yaml", &rules);
    wait_until("the rules are back", || edge.sluice.config()["generation"] == 3);
    assert_eq!(edge.envoy.get("/login", &[]).status, 429);
}
