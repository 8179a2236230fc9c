//! The composition root: settings become a store, rules, a limiter, listeners and tasks, which run until shutdown and then
//! drain.

use std::{future::Future, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, anyhow, bail};
use tokio::{
    net::TcpListener,
    sync::mpsc,
    task::JoinHandle,
    time::{interval, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::service::Routes;
use tonic_health::{ServingStatus, pb::health_server::HealthServer, server::HealthReporter};
use tracing::{info, warn};

use crate::{
    config::{reload::Reloader, settings::Settings},
    connections::{self, Connections},
    drain::InFlight,
    grpc::{
        convert::{HeaderNames, Presentation},
        limits::{NATIVE_MESSAGE_BYTES_MAX, SMALL_MESSAGE_BYTES_MAX},
        listen::{Listener, bind_tcp},
        native::NativeDoor,
        proto::{
            self, envoy::service::ratelimit::v3::rate_limit_service_server,
            ratelimiter::v1::rate_limiter_service_server,
        },
        server::{ConnectionAge, Door},
        service::RateLimitDoor,
        services::Services,
        tls::{Tls, TlsReloader},
    },
    health::Health,
    http::{self, Doors},
    limiter::{Limiter, Policy, Rules},
    live,
    load_report::LoadReport,
    panics,
    store::{Store, local::LocalShare, memory::MemoryStore, redis::RedisStore, refusals::Refusals},
    telemetry::{metrics::Metrics, traces::Tracer},
};

/// How often buffered metrics are folded and idle counters dropped.
const UPKEEP: Duration = Duration::from_secs(1);
/// How many counters of each shard the upkeep looks at.
const SWEPT_PER_UPKEEP: usize = 256;
/// How often the health of the store is looked at.
const STORE_LOOK: Duration = Duration::from_millis(100);
/// How long the start waits for a store at most.
const STORE_HEAD_START: Duration = Duration::from_secs(1);

/// The listeners, bound before anything is served, so that one that cannot be had is told at once.
struct Listeners {
    grpc: Listener,
    http: TcpListener,
    debug: TcpListener,
    prometheus: Option<(TcpListener, String)>,
}

impl Listeners {
    async fn bind(settings: &Settings) -> anyhow::Result<Self> {
        let prometheus = match &settings.telemetry.prometheus {
            Some((address, path)) => Some((bind("PROMETHEUS_ADDR", *address)?, path.clone())),
            None => None,
        };
        let grpc = match &settings.grpc.unix {
            Some(unix) => {
                let bound = Listener::bind_unix(unix).await;
                bound.map_err(|error| anyhow!("cannot do what GRPC_UDS asks for: {error}"))?
            }
            None => Listener::Tcp(bind("GRPC_HOST and GRPC_PORT", settings.grpc.address)?),
        };
        Ok(Self {
            grpc,
            http: bind("HOST and PORT", settings.http)?,
            debug: bind("DEBUG_HOST and DEBUG_PORT", settings.debug)?,
            prometheus,
        })
    }
}

fn bind(name: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    bind_tcp(address).with_context(|| format!("cannot listen on {address}, which {name} asks for"))
}

/// Serves until `shutdown` resolves, then drains.
pub async fn run(settings: Settings, shutdown: impl Future<Output = &'static str>) -> anyhow::Result<()> {
    let metrics = Metrics::new();
    let health = Arc::new(Health::new(settings.telemetry.healthy_with_a_domain));
    let (publisher, rules) = live::pair(Rules::default());
    let (report_publisher, report) = live::pair(LoadReport::default());
    if !settings.rules.path.exists() && !settings.rules.force_start {
        bail!(
            "there are no rules at {}: set RATE_LIMIT_CONFIG to a file or directory, or FORCE_START_WITHOUT_INITIAL_CONFIG to wait \
             for them",
            settings.rules.path.display()
        );
    }
    let mut reloader = Reloader {
        path: settings.rules.path.clone(),
        poll_interval: settings.rules.poll_interval,
        options: settings.compile_options(),
        rules: publisher,
        report: report_publisher,
        metrics: metrics.clone(),
        health: health.clone(),
        known: crate::config::reload::Known::default(),
    };
    let background = CancellationToken::new();
    let tasks = TaskTracker::new();
    let tls = open_tls(&settings, &metrics, &tasks, &background)?;
    let listeners = Listeners::bind(&settings).await?;
    reloader = tokio::task::spawn_blocking(move || {
        reloader.load();
        reloader
    })
    .await?;

    let limiter = open_limiter(&settings, rules, metrics, &background).await;
    let presentation = Arc::new(presentation(&settings));

    let (reloads, asked) = mpsc::channel(1);
    tasks.spawn(reloader.run(asked, background.clone()));
    let follows = settings.store.redis.as_ref().is_some_and(|(main, _)| main.health_follows_connections);
    tasks.spawn(report_store(limiter.clone(), health.clone(), follows, background.clone()));
    let (reporter, grpc_health) = tonic_health::server::health_reporter();
    tasks.spawn(report_health(reporter, health.clone(), background.clone()));

    let calls = CancellationToken::new();
    let (max, grace) = (settings.grpc.max_connection_age, settings.grpc.max_connection_age_grace);
    let age = ConnectionAge { max: some(max), grace: some(grace) };
    let tracer = settings.telemetry.traces.as_ref().map(Tracer::start).transpose()?.map(Arc::new);
    let envoy = RateLimitDoor::new(limiter.clone(), presentation.clone(), tracer.clone());
    let native_default = settings.answers.native_default.clone().map(Arc::new);
    let native = NativeDoor::new(limiter.clone(), report.clone(), native_default, tracer.clone());
    let in_flight = InFlight::new(settings.grpc.max_calls_in_flight);
    tasks.spawn(upkeep(limiter.clone(), in_flight.clone(), background.clone()));
    let door = Door {
        services: services(envoy, native, grpc_health)?,
        tls,
        age,
        connections: Connections::new(grpc_connections_max(&settings), limiter.metrics().door("grpc")),
        idle_max: settings.grpc.max_idle_connections,
        in_flight: in_flight.clone(),
    };
    announce(&listeners, limiter.store())?;
    let grpc = start_grpc(listeners.grpc, door, &calls)?;
    let scrapes = Arc::default();
    let doors = Doors { limiter: limiter.clone(), presentation, health: health.clone(), scrapes };
    let serve_http = |listener, router, name, connections_max| {
        let door = http_door(router, name, connections_max, limiter.metrics(), &in_flight);
        tasks.spawn(http::server::serve(listener, door, background.clone()));
    };
    serve_http(listeners.http, http::router(doors), "http", http::server::CONNECTIONS_MAX);
    let debug = http::debug::router(limiter.clone(), report, reloads);
    serve_http(listeners.debug, debug, "debug", http::server::DEBUG_CONNECTIONS_MAX);
    if let Some((listener, path)) = listeners.prometheus {
        let router = http::metrics::router(limiter.clone(), &path);
        serve_http(listener, router, "prometheus", http::server::DEBUG_CONNECTIONS_MAX);
    }

    let signal = shutdown.await;
    info!(signal, "shutting down");
    health.set_draining();
    sleep(settings.drain.delay).await;
    calls.cancel();
    if timeout(settings.drain.timeout, grpc).await.is_err() {
        warn!(timeout = ?settings.drain.timeout, "calls were still in flight, cutting them off");
    }
    background.cancel();
    tasks.close();
    if timeout(settings.drain.timeout, tasks.wait()).await.is_err() {
        warn!("background work did not end in time");
    }
    if let Some(tracer) = tracer {
        flush(tracer, settings.drain.timeout).await;
    }
    limiter.store().drain().await;
    info!("bye");
    Ok(())
}

/// The limiter, with its store and what is decided without it.
async fn open_limiter(
    settings: &Settings,
    rules: live::Reader<Rules>,
    metrics: Arc<Metrics>,
    stop: &CancellationToken,
) -> Arc<Limiter> {
    let store = open_store(settings, &metrics, stop).await;
    let policy = Policy {
        on_store_failure: settings.store.on_store_failure,
        near_limit_ratio: settings.telemetry.near_limit_ratio,
    };
    let local = LocalShare::new(settings.store.memory_entries_max, settings.store.local_replicas);
    let limiter = Limiter::new(rules, store, local, policy, metrics);
    Arc::new(match (limiter.store(), settings.store.refusals) {
        (Store::Redis(_), Some(scope)) => limiter.remembering(Refusals::new(scope)),
        _ => limiter,
    })
}

/// Sends the spans of the last calls.
async fn flush(tracer: Arc<Tracer>, patience: Duration) {
    match tokio::task::spawn_blocking(move || tracer.shutdown(patience)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => warn!(error, "the last traces could not be sent"),
        Err(error) => warn!(%error, "the last traces could not be sent"),
    }
}

fn presentation(settings: &Settings) -> Presentation {
    let answers = &settings.answers;
    Presentation {
        headers: answers.headers.then(|| HeaderNames {
            limit: answers.limit_header.clone(),
            remaining: answers.remaining_header.clone(),
            reset: answers.reset_header.clone(),
        }),
        dynamic_metadata: answers.dynamic_metadata,
    }
}

/// As many as are asked for, or as there are file descriptors for: three quarters, the others are for the other doors.
fn grpc_connections_max(settings: &Settings) -> usize {
    let wanted = settings.grpc.max_connections;
    let possible = connections::possible_for_grpc().unwrap_or(wanted);
    if possible < wanted {
        warn!(
            wanted,
            possible, "there are not enough file descriptors for GRPC_MAX_CONNECTIONS: raise `ulimit -n`, or lower it"
        );
    }
    wanted.min(possible)
}

fn http_door(
    router: axum::Router,
    name: &'static str,
    connections_max: usize,
    metrics: &Metrics,
    in_flight: &Arc<InFlight>,
) -> http::server::Door {
    let possible = connections::possible().map_or(connections_max, |possible| (possible / 8).max(1));
    let connections = Connections::new(connections_max.min(possible), metrics.door(name));
    http::server::Door { router, connections, in_flight: in_flight.clone() }
}

fn some(duration: Duration) -> Option<Duration> {
    (!duration.is_zero()).then_some(duration)
}

fn services(
    door: RateLimitDoor,
    native: NativeDoor,
    health: HealthServer<impl tonic_health::pb::health_server::Health>,
) -> anyhow::Result<Services> {
    let native = rate_limiter_service_server::RateLimiterServiceServer::new(native)
        .max_decoding_message_size(NATIVE_MESSAGE_BYTES_MAX);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let v1 = reflection().build_v1().context("reflection")?.max_decoding_message_size(SMALL_MESSAGE_BYTES_MAX);
    let v1alpha =
        reflection().build_v1alpha().context("reflection")?.max_decoding_message_size(SMALL_MESSAGE_BYTES_MAX);
    let health = health.max_decoding_message_size(SMALL_MESSAGE_BYTES_MAX);
    Ok(Services::new(door, Routes::new(native).add_service(health).add_service(v1).add_service(v1alpha)))
}

/// One line, once all listeners are open, with the addresses that were really bound.
fn announce(listeners: &Listeners, store: &Store) -> anyhow::Result<()> {
    let prometheus = match &listeners.prometheus {
        Some((listener, _)) => listener.local_addr()?.to_string(),
        None => "off".to_owned(),
    };
    info!(
        grpc = %listeners.grpc,
        http = %listeners.http.local_addr()?,
        debug = %listeners.debug.local_addr()?,
        prometheus,
        store = store.name(),
        "serving"
    );
    Ok(())
}

#[cfg_attr(not(feature = "bench"), expect(clippy::unnecessary_wraps, reason = "what is measured beside it can fail"))]
fn start_grpc(listener: Listener, door: Door, stop: &CancellationToken) -> anyhow::Result<JoinHandle<()>> {
    #[cfg(feature = "bench")]
    if crate::grpc::per_core::is_wanted() {
        return Ok(crate::grpc::per_core::start(listener, &door, stop)?);
    }
    Ok(tokio::spawn(crate::grpc::server::serve(listener, door, stop.clone())))
}

/// The certificate, if one is asked for, and the task that renews it.
fn open_tls(
    settings: &Settings,
    metrics: &Metrics,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> anyhow::Result<Option<Arc<Tls>>> {
    let Some(tls) = settings.grpc.tls.clone() else { return Ok(None) };
    let (tls, reloader) = TlsReloader::start(tls, metrics.tls()).map_err(|error| {
        anyhow!("cannot serve TLS: {error}: see GRPC_SERVER_TLS_CERT, GRPC_SERVER_TLS_KEY and GRPC_CLIENT_TLS_CACERT")
    })?;
    tasks.spawn(reloader.run(stop.clone()));
    Ok(Some(tls))
}

/// Redis where a setting says so, else this process. A Redis that is well gets a moment to show it, so that the first callers
/// find it. One that has failed once is not waited for: the ports are open by then, and the failure policy can answer.
async fn open_store(settings: &Settings, metrics: &Metrics, stop: &CancellationToken) -> Store {
    let Some((main, per_second)) = settings.store.redis.clone() else {
        return Store::Memory(MemoryStore::new(settings.store.memory_entries_max));
    };
    let store = RedisStore::start(main, per_second, &Arc::new(metrics.store_calls()), stop);
    let mut looks = interval(STORE_LOOK / 10);
    let _ = timeout(STORE_HEAD_START, async {
        while !store.is_well() && !store.has_failed() {
            looks.tick().await;
        }
    })
    .await;
    Store::Redis(store)
}

/// Lets health and metrics say whether the store answers.
async fn report_store(limiter: Arc<Limiter>, health: Arc<Health>, health_follows: bool, stop: CancellationToken) {
    let look = || async {
        let mut looks = interval(STORE_LOOK);
        while stop.run_until_cancelled(looks.tick()).await.is_some() {
            let is_well = match limiter.store() {
                Store::Memory(_) => true,
                Store::Redis(store) => store.is_well(),
            };
            limiter.metrics().store_up.set(if is_well { 1.0 } else { 0.0 });
            if health_follows {
                health.set_store_healthy(is_well);
            }
        }
    };
    panics::again(look).await;
}

#[expect(clippy::cast_precision_loss, reason = "gauges are floats")]
async fn upkeep(limiter: Arc<Limiter>, in_flight: Arc<InFlight>, stop: CancellationToken) {
    let keep_up = || async {
        let mut beat = interval(UPKEEP);
        while stop.run_until_cancelled(beat.tick()).await.is_some() {
            limiter.metrics().calls_in_flight.set(in_flight.calls() as f64);
            limiter.metrics().calls_refused.absolute(in_flight.refused());
            limiter.metrics().calls_given_up.absolute(in_flight.given_up());
            if let Store::Memory(store) = limiter.store() {
                store.sweep(SWEPT_PER_UPKEEP);
            }
        }
    };
    panics::again(keep_up).await;
}

/// Lets the gRPC health service say what the rest of the process knows.
async fn report_health(reporter: HealthReporter, health: Arc<Health>, stop: CancellationToken) {
    let report = || async {
        let mut serving = health.subscribe();
        loop {
            let status = if *serving.borrow_and_update() { ServingStatus::Serving } else { ServingStatus::NotServing };
            for service in
                ["", "ratelimit", rate_limit_service_server::SERVICE_NAME, rate_limiter_service_server::SERVICE_NAME]
            {
                reporter.set_service_status(service, status).await;
            }
            match stop.run_until_cancelled(serving.changed()).await {
                Some(Ok(())) => {}
                Some(Err(_)) | None => return,
            }
        }
    };
    panics::again(report).await;
}
