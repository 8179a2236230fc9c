//! A panic in the middle of a call to the store. No request can provoke one, so the store is put together here, with a clock
//! face for its metrics that breaks when it is told to.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use ::metrics::{Counter, Histogram, HistogramFn};
use sluice::{
    config::{CompileOptions, Source, compile, settings::Settings},
    engine::{
        request::{Descriptor, Entry, Hits, Request},
        rule::OnStoreFailure,
        verdict::Code,
    },
    limiter::{Limiter, Policy, Rules},
    live,
    store::{
        Store,
        local::LocalShare,
        redis::{RedisStore, metrics::StoreMetrics},
    },
    telemetry::metrics::Metrics,
};
use tokio_util::sync::CancellationToken;

use crate::{
    harness::wait_until,
    servers::{REDIS, Server},
};

const RULES: &str = "
domain: d
descriptors:
  - {key: a, rate_limit: {unit: year, requests_per_unit: 1000, on_store_failure: deny}}
";
const LANES: usize = 3;

/// Recorded into after every call that was answered.
#[derive(Default)]
struct Fragile {
    is_broken: AtomicBool,
    panics: AtomicUsize,
}

impl HistogramFn for Fragile {
    fn record(&self, _: f64) {
        if self.is_broken.load(Ordering::Relaxed) {
            self.panics.fetch_add(1, Ordering::Relaxed);
            panic!("on purpose");
        }
    }
}

fn limiter(server: &Server, fragile: &Arc<Fragile>) -> Limiter {
    let url = server.url_of_sluice();
    let set = |name: &str| match name {
        "REDIS_URL" => Some(url.clone()),
        "REDIS_POOL_SIZE" => Some(LANES.to_string()),
        "REDIS_TIMEOUT" => Some("30s".to_owned()),
        _ => None,
    };
    let (settings, _) = Settings::read(set).unwrap();
    let (main, _) = settings.store.redis.unwrap();
    let metrics = StoreMetrics { call_duration: Histogram::from_arc(fragile.clone()), breaker_trips: Counter::noop() };
    let store = RedisStore::start(main, None, &Arc::new(metrics), &CancellationToken::new());
    let source = Source { name: "rules.yaml".to_owned(), text: RULES.to_owned() };
    let compiled = compile(&[source], &CompileOptions::default()).unwrap();
    let (_, rules) = live::pair(Rules::new(compiled.set, compiled.metadata));
    let policy = Policy { on_store_failure: OnStoreFailure::Allow, near_limit_ratio: 0.8 };
    Limiter::new(rules, Store::Redis(store), LocalShare::new(10, 1), policy, Metrics::new())
}

fn is_well(limiter: &Limiter) -> bool {
    matches!(limiter.store(), Store::Redis(store) if store.is_well())
}

/// What is decided, and whether by policy.
async fn ask(limiter: &Limiter) -> (Code, bool) {
    let entries = [Entry { key: "a", value: "1" }];
    let descriptor = Descriptor { entries: entries.into_iter().collect(), hits: Hits::ONE, override_quota: None };
    let request = Request { domain: "d", descriptors: [descriptor].into_iter().collect() };
    let answer = limiter.check(&request, Some(Duration::from_secs(30))).await.unwrap();
    (answer.verdict().code, answer.degraded)
}

#[test]
fn a_lane_that_panics_is_a_failed_call_and_goes_on() {
    let server = Server::start(REDIS);
    let fragile = Arc::new(Fragile::default());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let limiter = limiter(&server, &fragile);
        let well = || tokio::task::block_in_place(|| wait_until("the store is well", || is_well(&limiter)));
        well();
        assert_eq!(ask(&limiter).await, (Code::Ok, false));

        fragile.is_broken.store(true, Ordering::Relaxed);
        // More than there are lanes, and until the breaker has found out by itself.
        let mut asked = 0;
        while asked < 50 || is_well(&limiter) {
            assert_eq!(ask(&limiter).await, (Code::OverLimit, true), "the policy of the rule answers");
            asked += 1;
            assert!(asked < 1_000_000, "a lane that always panics is left alone");
        }
        let panics = fragile.panics.load(Ordering::Relaxed);
        assert!(panics > LANES, "a lane that has panicked is asked again: {panics}");

        fragile.is_broken.store(false, Ordering::Relaxed);
        well();
        for _ in 0..4 * LANES {
            assert_eq!(ask(&limiter).await, (Code::Ok, false), "every lane goes on");
        }
    });
    server.assert_clean();
}
