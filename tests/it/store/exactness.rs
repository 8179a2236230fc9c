//! Several sluices and many callers share one truth: never too many, and not too few.

use std::time::{Duration, Instant};

use super::{Stage, ask_all, sluice};
use crate::{
    harness::{
        Server as Sluice,
        grpc::request,
        load::{Load, Outcome, Style, assert_never_too_many, count},
    },
    servers::{Cluster, REDIS, Server, VALKEY, alone},
};

const RULES: &str = "
domain: d
descriptors:
  - {key: bucket, rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: 100, burst: 200}}
  - key: three
    rate_limit:
      algorithm: leaky_bucket
      rates:
        - {requests_per_unit: 100, unit: second, burst: 50}
        - {requests_per_unit: 3000, unit: minute, burst: 150}
        - {requests_per_unit: 100000, unit: hour, burst: 100000}
  - {key: slow, rate_limit: {algorithm: token_bucket, unit: year, requests_per_unit: 10, burst: 1000}}
  - {key: wide, rate_limit: {unit: year, requests_per_unit: 1000, on_over_limit: spare}}
  - {key: shut, rate_limit: {unit: year, requests_per_unit: 0}}
";

const SATURATED: Style = Style { callers_of_each: 8, pause: None, deadline: None };
const RUN: Duration = Duration::from_secs(3);

/// Saturates one bucket through all of them. The last of its rates, as capacity and refill, governs in the long run.
fn saturate(sluices: &[Sluice], key: &'static str, rates: &[(f64, f64)]) {
    let addresses: Vec<&str> = sluices.iter().map(Sluice::grpc).collect();
    let load = Load::start(&addresses, &SATURATED, move |_, _| request("d", &[(key, "one")]));
    let began = Instant::now();
    load.run_until(began + RUN);
    let calls = load.stop();
    let wrong = calls.iter().find(|call| !matches!(call.outcome, Outcome::Ok | Outcome::Over));
    assert!(wrong.is_none(), "only OK and OVER_LIMIT, not {wrong:?}");
    assert!(count(&calls, Outcome::Over) > 0, "the bucket was never empty");
    rates.iter().for_each(|(capacity, per_second)| assert_never_too_many(&calls, *capacity, *per_second));
    let (capacity, per_second) = rates[rates.len() - 1];
    let first = calls.iter().map(|call| call.sent).min().unwrap();
    let last = calls.iter().map(|call| call.answered).max().unwrap();
    let possible = capacity + per_second * last.duration_since(first).as_secs_f64();
    let admitted = count(&calls, Outcome::Ok);
    println!("{key}: {} calls, {admitted} admitted of {possible:.0} possible", calls.len());
    #[allow(clippy::cast_precision_loss)]
    let share = admitted as f64 / possible;
    // The last moments of the run may have had no caller.
    assert!(share > 0.97, "{admitted} of {possible} is too few");
}

/// Asks slower than the bucket fills.
fn pace(sluices: &[Sluice]) {
    let addresses: Vec<&str> = sluices.iter().map(Sluice::grpc).collect();
    let style = Style { callers_of_each: 1, pause: Some(Duration::from_millis(45)), deadline: None };
    let load = Load::start(&addresses, &style, |_, _| request("d", &[("bucket", "paced")]));
    load.wait_for_calls(100);
    let calls = load.stop();
    assert_eq!(count(&calls, Outcome::Ok), calls.len(), "nobody who keeps to the rate is refused");
}

/// One of three rules is exhausted: the other two are left alone.
fn exhausted(sluices: &[Sluice]) {
    let addresses: Vec<&str> = sluices.iter().map(Sluice::grpc).collect();
    let all = [("slow", "a"), ("wide", "a"), ("shut", "a")];
    let load = Load::start(&addresses, &SATURATED, move |_, _| ask_all("d", &all));
    load.wait_for_calls(500);
    let calls = load.stop();
    assert_eq!(count(&calls, Outcome::Over), calls.len());
    for key in ["slow", "wide"] {
        let response = sluices[0].ask(request("d", &[(key, "a")])).unwrap();
        assert_eq!(response.statuses[0].limit_remaining, 999, "{key} was spared");
    }
}

fn run(stage: &Stage, processes: usize) {
    let _alone = alone();
    let sluices: Vec<Sluice> = (0..processes).map(|_| stage.sluice(RULES, &[])).collect();
    saturate(&sluices, "bucket", &[(200.0, 100.0)]);
    // Of three rates the first governs a burst and the second all that follows; the third is never met.
    saturate(&sluices, "three", &[(50.0, 100.0), (150.0, 50.0)]);
    pace(&sluices);
    exhausted(&sluices);
    stage.assert_clean();
}

#[test]
fn four_sluices_share_one_truth_on_redis() {
    run(&Stage::Single(Server::start(REDIS)), 4);
}

#[test]
fn four_sluices_share_one_truth_on_valkey() {
    run(&Stage::Single(Server::start(VALKEY)), 4);
}

#[test]
fn three_sluices_share_one_truth_on_a_cluster() {
    run(&Stage::Cluster(Cluster::start(REDIS)), 3);
}

#[test]
fn many_callers_share_one_truth_in_memory() {
    let _alone = alone();
    let sluices = [sluice(RULES, &[])];
    saturate(&sluices, "bucket", &[(200.0, 100.0)]);
    saturate(&sluices, "three", &[(50.0, 100.0), (150.0, 50.0)]);
    pace(&sluices);
    exhausted(&sluices);
}
