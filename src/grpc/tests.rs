//! Calls that panic, over a real connection.

use std::{sync::Arc, time::Duration};

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::{
    Code as GrpcCode, Status,
    service::Routes,
    transport::{Channel, Endpoint},
};

use super::{
    convert::Presentation,
    listen::{Listener, bind_tcp},
    native::NativeDoor,
    proto::{
        envoy::{
            extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
            service::ratelimit::v3::{
                RateLimitRequest, RateLimitResponse, rate_limit_response::Code,
                rate_limit_service_client::RateLimitServiceClient,
            },
        },
        ratelimiter::v1::{
            ConsumeAndCheckLimitRequest, rate_limiter_service_client::RateLimiterServiceClient,
            rate_limiter_service_server::RateLimiterServiceServer,
        },
    },
    server::{ConnectionAge, Door, serve},
    service::RateLimitDoor,
    services::Services,
};
use crate::{
    config::{CompileOptions, Source, compile},
    connections::Connections,
    drain::InFlight,
    engine::rule::OnStoreFailure,
    limiter::{Limiter, Policy, Rules},
    live,
    load_report::LoadReport,
    panics::tests::fragile_counter,
    store::{Store, local::LocalShare, memory::MemoryStore},
    telemetry::metrics::Metrics,
};

const RULES: &str = "
domain: d
descriptors:
  - {key: allow, rate_limit: {unit: year, requests_per_unit: 1, on_store_failure: allow}}
  - {key: deny, rate_limit: {unit: year, requests_per_unit: 1, on_store_failure: deny}}
  - {key: error, rate_limit: {unit: year, requests_per_unit: 1, on_store_failure: error}}
  - {key: local, rate_limit: {unit: year, requests_per_unit: 1, on_store_failure: local}}
  - {key: process, rate_limit: {unit: year, requests_per_unit: 1}}
";

/// A server, and one connection to it.
struct Served {
    channel: Channel,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

async fn served(store: MemoryStore, on_store_failure: OnStoreFailure, fragile: impl FnOnce(&mut Metrics)) -> Served {
    let source = Source { name: "rules.yaml".to_owned(), text: RULES.to_owned() };
    let compiled = compile(&[source], &CompileOptions::default()).unwrap();
    let (_, rules) = live::pair(Rules::new(compiled.set, compiled.metadata));
    let mut metrics = Arc::into_inner(Metrics::new()).unwrap();
    fragile(&mut metrics);
    let metrics = Arc::new(metrics);
    let policy = Policy { on_store_failure, near_limit_ratio: 0.8 };
    let limiter = Limiter::new(rules, Store::Memory(store), LocalShare::new(100, 1), policy, metrics.clone());
    let limiter = Arc::new(limiter);
    let presentation = Arc::new(Presentation { headers: None, dynamic_metadata: false });
    let door = RateLimitDoor::new(limiter.clone(), presentation, None);
    let native = NativeDoor::new(limiter, live::pair(LoadReport::default()).1, None, None);
    let services = Services::new(door, Routes::new(RateLimiterServiceServer::new(native)));
    let listener = bind_tcp(([127, 0, 0, 1], 0).into()).unwrap();
    let address = listener.local_addr().unwrap();
    let door = Door {
        services,
        tls: None,
        age: ConnectionAge { max: None, grace: None },
        connections: Connections::new(10, metrics.door("grpc")),
        idle_max: 10,
        in_flight: InFlight::new(1_000),
    };
    let stop = CancellationToken::new();
    let serving = tokio::spawn(serve(Listener::Tcp(listener), door, stop.clone()));
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    Served { channel, metrics, stop, serving }
}

impl Served {
    async fn ask(&self, keys: &[&str]) -> Result<RateLimitResponse, Status> {
        self.ask_in("d", keys).await
    }

    async fn ask_in(&self, domain: &str, keys: &[&str]) -> Result<RateLimitResponse, Status> {
        let descriptor = |key: &&str| RateLimitDescriptor {
            entries: vec![Entry { key: (*key).to_owned(), value: "1".to_owned() }],
            ..RateLimitDescriptor::default()
        };
        let descriptors = keys.iter().map(descriptor).collect();
        let request = RateLimitRequest { domain: domain.to_owned(), descriptors, hits_addend: 0 };
        RateLimitServiceClient::new(self.channel.clone())
            .should_rate_limit(request)
            .await
            .map(tonic::Response::into_inner)
    }

    /// Every call that has begun has ended, or this would wait for it.
    async fn ends(self) {
        drop(self.channel);
        self.stop.cancel();
        tokio::time::timeout(Duration::from_secs(20), self.serving).await.expect("no call is left over").unwrap();
    }
}

fn is_degraded(response: &RateLimitResponse) -> bool {
    response.response_headers_to_add.iter().any(|header| header.key == "x-ratelimit-degraded")
}

#[tokio::test]
async fn a_panic_of_the_store_is_answered_by_the_policy_of_the_rule_and_its_connection_goes_on() {
    let served = served(MemoryStore::broken(), OnStoreFailure::Deny, |_| {}).await;
    for turn in 0..3 {
        for (key, expected) in [("allow", Code::Ok), ("deny", Code::OverLimit), ("process", Code::OverLimit)] {
            let response = served.ask(&[key]).await.unwrap();
            assert_eq!((response.overall_code(), is_degraded(&response)), (expected, true), "{key}");
        }
        let local = served.ask(&["local"]).await.unwrap();
        let expected = if turn == 0 { Code::Ok } else { Code::OverLimit };
        assert_eq!((local.overall_code(), is_degraded(&local)), (expected, true), "local");
        assert_eq!(served.ask(&["error"]).await.unwrap_err().code(), GrpcCode::Unavailable);
        let free = served.ask(&["nothing"]).await.unwrap();
        assert_eq!((free.overall_code(), is_degraded(&free)), (Code::Ok, false), "needs no store");
    }
    let text = served.metrics.render();
    for series in [
        "sluice_degraded_decisions_total{reason=\"panic\",policy=\"deny\"} 6",
        "sluice_store_errors_total{kind=\"panic\"} 15",
    ] {
        assert!(text.contains(series), "{series} is not in {text}");
    }
    served.ends().await;
}

#[tokio::test]
async fn calls_that_panic_side_by_side_are_all_answered() {
    let served = served(MemoryStore::broken(), OnStoreFailure::Deny, |_| {}).await;
    let answers = futures_util::future::join_all((0..50).map(|_| served.ask(&["process"]))).await;
    assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(|answer| answer.overall_code() == Code::OverLimit)));
    served.ends().await;
}

#[tokio::test]
async fn a_panic_outside_of_the_rules_is_answered_by_the_policy_of_the_process() {
    for (policy, expected) in [
        (OnStoreFailure::Allow, Some(Code::Ok)),
        (OnStoreFailure::Local, Some(Code::Ok)),
        (OnStoreFailure::Deny, Some(Code::OverLimit)),
        (OnStoreFailure::Error, None),
    ] {
        let served = served(MemoryStore::new(100), policy, |metrics| metrics.service_errors = fragile_counter()).await;
        // Without a domain it is refused, which is counted.
        match served.ask_in("", &["allow"; 3]).await {
            Ok(response) => {
                assert_eq!((Some(response.overall_code()), is_degraded(&response)), (expected, true));
                assert!(response.statuses.len() == 3 && response.statuses.iter().all(|s| Some(s.code()) == expected));
                let retry = response.response_headers_to_add.iter().find(|header| header.key == "Retry-After");
                let expected = (policy == OnStoreFailure::Deny).then_some("1");
                assert_eq!(retry.map(|header| &*header.value), expected);
            }
            Err(status) => assert_eq!((status.code(), None), (GrpcCode::Unavailable, expected)),
        }
        assert_eq!(served.ask(&["allow"]).await.unwrap().overall_code(), Code::Ok, "the connection goes on");
        served.ends().await;
    }
}

#[tokio::test]
async fn a_panic_while_counting_changes_no_decision() {
    let store = MemoryStore::new(100);
    let served = served(store, OnStoreFailure::Allow, |metrics| metrics.domain_not_found = fragile_counter()).await;
    let mut client = RateLimitServiceClient::new(served.channel.clone());
    let descriptors = vec![RateLimitDescriptor::default()];
    let request = RateLimitRequest { domain: "unknown".to_owned(), descriptors, hits_addend: 0 };
    let response = client.should_rate_limit(request).await.unwrap().into_inner();
    assert_eq!((response.overall_code(), is_degraded(&response)), (Code::Ok, false));
    served.ends().await;
}

#[tokio::test]
async fn a_panic_behind_another_door_is_an_internal_error_and_the_connection_goes_on() {
    let fragile = |metrics: &mut Metrics| metrics.service_errors = fragile_counter();
    let served = served(MemoryStore::new(100), OnStoreFailure::Allow, fragile).await;
    let mut native = RateLimiterServiceClient::new(served.channel.clone());
    for _ in 0..3 {
        let status = native.consume_and_check_limit(ConsumeAndCheckLimitRequest::default()).await.unwrap_err();
        let expected = (GrpcCode::Internal, "sluice has panicked: its log has the place");
        assert_eq!((status.code(), status.message()), expected);
    }
    assert_eq!(served.ask(&["allow"]).await.unwrap().overall_code(), Code::Ok);
    served.ends().await;
}
