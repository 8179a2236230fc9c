//! Sluices that are restarted in turn behind an Envoy: whoever asks Envoy notices nothing, and every request is decided, once.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::Empty;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;

use super::other_than;
use crate::{
    envoy::{Builder, Envoy},
    harness::{
        Server as Sluice,
        grpc::wait,
        load::{Call, Outcome, p99},
        wait_until,
    },
    history,
    servers::{REDIS, Server, free_port},
    sheet::{Sheet, millis, shown},
};

const CALLERS: usize = 20;
const LIMIT: usize = 1_000_000_000;
const DRAIN: Duration = Duration::from_secs(10);

pub fn rolling(sheet: &Sheet) {
    // Envoy's health checks alone have to do: a sluice that says it leaves is not asked any more when it goes.
    let announced = Rolling {
        fault: "restarts, announced for 5 s",
        drain_delay: "5s",
        restarts: if sheet.is_full() { 20 } else { 2 },
        part: "announced",
    };
    announced.run(sheet, |bootstrap| bootstrap.replace("num_retries: 2", "num_retries: 0"));
    // They come too late to help: what a sluice has not seen when it goes, Envoy sends to the other.
    let sudden = Rolling {
        fault: "restarts, unannounced",
        drain_delay: "0s",
        restarts: if sheet.is_full() { 20 } else { 4 },
        part: "unannounced",
    };
    sudden.run(sheet, |bootstrap| bootstrap.replace("interval: 1s", "interval: 600s"));
}

struct Rolling {
    fault: &'static str,
    drain_delay: &'static str,
    restarts: usize,
    part: &'static str,
}

impl Rolling {
    fn run(&self, sheet: &Sheet, change: fn(Builder) -> Builder) {
        let fault = self.fault;
        let mut replicas = Replicas::start(self.drain_delay);
        let envoy = change(replicas.bootstrap(sheet)).start();
        wait_until("both are healthy", || envoy.healthy_sluices() == 2);
        let pause = if sheet.is_full() { millis(20) } else { millis(80) };
        let load = EdgeLoad::start(envoy.address(), pause);
        let drains: Vec<Duration> = (0..self.restarts)
            .map(|turn| {
                let drained = replicas.restart(turn % 2);
                wait_until("both are healthy again", || envoy.healthy_sluices() == 2);
                sheet.step(&format!("{fault}: {} of {}, gone after {}", turn + 1, self.restarts, shown(drained)));
                drained
            })
            .collect();
        let calls = load.stop();
        history::write(&history::path(&format!("restarts-{}", self.part)), &calls);

        let undecided = other_than(&calls, &[Outcome::Ok]);
        let figure = format!("of {} requests in {} restarts not decided", calls.len(), self.restarts);
        sheet.judge(fault, &figure, &undecided, "0", undecided == 0 && calls.len() > 100);
        sheet.judge(fault, "errors that Envoy counted", &envoy.errors(), "0", envoy.errors() == 0);
        let timeouts = envoy.counter("cluster.sluice.upstream_rq_timeout");
        sheet.judge(fault, "timeouts that Envoy counted", &timeouts, "0", timeouts == 0);
        let counted = replicas.counted();
        let figure = "hits that the store counted beyond the requests";
        sheet.judge(fault, figure, &(counted.cast_signed() - calls.len().cast_signed()), "0", counted == calls.len());
        sheet.at_most(fault, "longest drain", drains.into_iter().max().unwrap_or_default(), DRAIN);
        sheet.at_most(fault, "p99 of a request through Envoy", p99(&calls), millis(250));
    }
}

/// Two sluices on ports of their own, which they get again after a restart, and the store that they share.
struct Replicas {
    store: Server,
    drain_delay: &'static str,
    sluices: Vec<(u16, Sluice)>,
}

impl Replicas {
    fn start(drain_delay: &'static str) -> Self {
        let mut replicas = Self { store: Server::start(REDIS), drain_delay, sluices: Vec::new() };
        for _ in 0..2 {
            let port = free_port();
            replicas.sluices.push((port, replicas.sluice(port)));
        }
        replicas
    }

    fn sluice(&self, port: u16) -> Sluice {
        let rules = format!(
            "domain: edge\ndescriptors:\n  - {{key: user, rate_limit: {{unit: year, requests_per_unit: {LIMIT}}}}}\n"
        );
        Sluice::builder()
            .file("rules.yaml", &rules)
            .env("GRPC_PORT", &port.to_string())
            .env("DRAIN_DELAY", self.drain_delay)
            .env("REDIS_URL", &self.store.url_of_sluice())
            // No request may be decided without the store, or the count is wrong.
            .env("REDIS_TIMEOUT", "5s")
            .start()
    }

    /// As it is deployed, but on a machine that is busy more patient.
    fn bootstrap(&self, sheet: &Sheet) -> Builder {
        let bootstrap = Envoy::bootstrap("replicas.yaml").port(8081, self.sluices[0].0).port(8091, self.sluices[1].0);
        if sheet.is_full() { bootstrap } else { bootstrap.patient() }
    }

    /// How long it took to go.
    fn restart(&mut self, index: usize) -> Duration {
        let (port, sluice) = &mut self.sluices[index];
        let began = Instant::now();
        sluice.terminate();
        assert!(sluice.wait_for_exit().success());
        let (port, drained) = (*port, began.elapsed());
        self.sluices[index].1 = self.sluice(port);
        self.sluices[index].1.wait_for_store();
        drained
    }

    fn counted(&self) -> usize {
        let question = r#"{"domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": "load"}], "hitsAddend": "0"}]}"#;
        let answer = self.sluices[0].1.post_json(question).json();
        let remaining = answer["statuses"][0]["limitRemaining"].as_u64().unwrap_or(0);
        LIMIT - usize::try_from(remaining).unwrap_or(LIMIT)
    }
}

/// Callers of Envoy who keep their connections and ask by the clock.
struct EdgeLoad {
    stop: Arc<AtomicBool>,
    callers: thread::JoinHandle<Vec<Call>>,
}

impl EdgeLoad {
    fn start(envoy: SocketAddr, pause: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let callers = thread::spawn({
            let stop = stop.clone();
            move || {
                wait(async {
                    let mut callers = tokio::task::JoinSet::new();
                    for number in 0..CALLERS {
                        callers.spawn(ask_until(stop.clone(), number, envoy, pause));
                    }
                    callers.join_all().await.concat()
                })
            }
        });
        Self { stop, callers }
    }

    fn stop(self) -> Vec<Call> {
        self.stop.store(true, Ordering::Relaxed);
        self.callers.join().expect("callers do not panic")
    }
}

async fn ask_until(stop: Arc<AtomicBool>, number: usize, envoy: SocketAddr, pause: Duration) -> Vec<Call> {
    let stream = tokio::net::TcpStream::connect(envoy).await.expect("Envoy is there");
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await.expect("it is connected");
    tokio::spawn(connection);
    let share = f64::from(u32::try_from(number).unwrap_or(0)) / CALLERS as f64;
    let mut beat = tokio::time::interval_at(tokio::time::Instant::now() + pause.mul_f64(share), pause);
    let mut calls = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        beat.tick().await;
        let sent = Instant::now();
        let (outcome, remaining, error) = match ask(&mut sender).await {
            Ok((200, Some(remaining))) => (Outcome::Ok, remaining, None),
            // Let through without anybody having decided.
            Ok((200, None)) => (Outcome::Unavailable, 0, None),
            Ok((429, _)) => (Outcome::Over, 0, None),
            Ok((status, _)) => (Outcome::Error, 0, Some(format!("status {status}").into())),
            Err(error) => (Outcome::Error, 0, Some(error.to_string().into())),
        };
        let (key, answered) = ("user=load".into(), Instant::now());
        calls.push(Call { client: number, sidecar: 0, key, hits: 1, remaining, sent, answered, outcome, error });
    }
    calls
}

/// The status, and what Envoy was told remains.
async fn ask(sender: &mut SendRequest<Empty<Bytes>>) -> Result<(u16, Option<u32>), hyper::Error> {
    let request = hyper::Request::get("/users").header("host", "edge").header("x-user", "load");
    sender.ready().await?;
    let response = sender.send_request(request.body(Empty::new()).expect("is a request")).await?;
    let remaining = response.headers().get("x-ratelimit-remaining").and_then(|value| value.to_str().ok()?.parse().ok());
    let status = response.status().as_u16();
    http_body_util::BodyExt::collect(response.into_body()).await?;
    Ok((status, remaining))
}
