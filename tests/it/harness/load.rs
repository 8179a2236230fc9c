//! Many callers at once, each with the times at which it asked and was answered.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tonic::transport::Channel;

use super::{
    grpc::{
        Code, Request, connect, proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient,
    },
    wait::wait_until,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Ok,
    Over,
    /// Answered by policy.
    DegradedOk,
    DegradedOver,
    Unavailable,
    /// Anything else: never wanted.
    Error,
}

#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub sent: Instant,
    pub answered: Instant,
    pub outcome: Outcome,
}

impl Call {
    pub fn took(&self) -> Duration {
        self.answered.duration_since(self.sent)
    }
}

/// A client that keeps its connection.
pub struct Caller {
    client: RateLimitServiceClient<Channel>,
    deadline: Option<Duration>,
}

impl Caller {
    pub async fn connect(address: &str, deadline: Option<Duration>) -> Self {
        Self { client: RateLimitServiceClient::new(connect(address).await), deadline }
    }

    pub async fn ask(&mut self, request: Request) -> Call {
        let mut request = tonic::Request::new(request);
        if let Some(deadline) = self.deadline {
            request.set_timeout(deadline);
        }
        let sent = Instant::now();
        let response = self.client.should_rate_limit(request).await;
        let answered = Instant::now();
        let outcome = match response.map(tonic::Response::into_inner) {
            Ok(response) => {
                let degraded =
                    response.response_headers_to_add.iter().any(|header| header.key == "x-ratelimit-degraded");
                match (response.overall_code == i32::from(Code::Ok), degraded) {
                    (true, false) => Outcome::Ok,
                    (false, false) => Outcome::Over,
                    (true, true) => Outcome::DegradedOk,
                    (false, true) => Outcome::DegradedOver,
                }
            }
            Err(status) if status.code() == tonic::Code::Unavailable => Outcome::Unavailable,
            Err(status) => {
                eprintln!("a caller got {status:?}");
                Outcome::Error
            }
        };
        Call { sent, answered, outcome }
    }
}

/// How callers behave.
#[derive(Clone)]
pub struct Style {
    pub callers_of_each: usize,
    /// Between two calls of one caller; none: as fast as it is answered.
    pub pause: Option<Duration>,
    pub deadline: Option<Duration>,
}

/// Asks until it is stopped.
pub struct Load {
    stop: Arc<AtomicBool>,
    calls: Arc<Mutex<Vec<Call>>>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    /// `make` gives the request for the n-th call of a caller.
    pub fn start(
        servers: &[&str],
        style: &Style,
        make: impl Fn(usize, usize) -> Request + Send + Sync + 'static,
    ) -> Self {
        let (stop, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let servers: Vec<String> = servers.iter().map(|server| (*server).to_owned()).collect();
        let (style, make) = (style.clone(), Arc::new(make));
        let thread = thread::spawn({
            let (stop, calls) = (stop.clone(), calls.clone());
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let mut callers = tokio::task::JoinSet::new();
                    for (index, server) in
                        servers.iter().flat_map(|server| vec![server; style.callers_of_each]).enumerate()
                    {
                        let (stop, calls, make, style, server) =
                            (stop.clone(), calls.clone(), make.clone(), style.clone(), server.clone());
                        callers.spawn(async move {
                            let mut caller = Caller::connect(&server, style.deadline).await;
                            let mut beat = style.pause.map(tokio::time::interval);
                            for number in 0.. {
                                if stop.load(Ordering::Relaxed) {
                                    break;
                                }
                                if let Some(beat) = &mut beat {
                                    beat.tick().await;
                                }
                                let call = caller.ask(make(index, number)).await;
                                calls.lock().unwrap().push(call);
                            }
                        });
                    }
                    callers.join_all().await;
                });
            }
        });
        Self { stop, calls, thread: Some(thread) }
    }

    pub fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }

    /// Those sent after an instant.
    pub fn calls_since(&self, since: Instant) -> Vec<Call> {
        self.calls().into_iter().filter(|call| call.sent >= since).collect()
    }

    /// Lets it run for a while: until this many calls were answered that were sent after this.
    #[track_caller]
    pub fn wait_for_calls(&self, count: usize) {
        let since = Instant::now();
        wait_until("more calls were answered", || self.calls_since(since).len() >= count);
    }

    /// Waits until a call that was sent after `since` ends like this, and says how long after `since` it was answered.
    #[track_caller]
    pub fn wait_for(&self, outcome: Outcome, since: Instant) -> Duration {
        let find = || {
            self.calls_since(since).into_iter().filter(|call| call.outcome == outcome).map(|call| call.answered).min()
        };
        wait_until(&format!("a call ends with {outcome:?}"), || find().is_some());
        find().unwrap_or(since).duration_since(since)
    }

    /// Lets it run until an instant.
    pub fn run_until(&self, end: Instant) {
        wait_until("it is time", || Instant::now() >= end);
        assert!(self.thread.as_ref().is_some_and(|thread| !thread.is_finished()), "the callers have stopped");
    }

    pub fn stop(mut self) -> Vec<Call> {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("callers do not panic");
        }
        self.calls()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// The slowest but for one in a hundred.
pub fn p99(calls: &[Call]) -> Duration {
    let mut took: Vec<Duration> = calls.iter().map(Call::took).collect();
    took.sort_unstable();
    took.get((took.len() * 99 / 100).min(took.len().saturating_sub(1))).copied().unwrap_or_default()
}

/// Trusts nothing but what callers saw: for every two instants, what was asked after the first and admitted before the second is at
/// most what the bucket held and what came in between, and one.
#[track_caller]
pub fn assert_never_too_many(calls: &[Call], capacity: f64, per_second: f64) {
    let mut admitted: Vec<&Call> = calls.iter().filter(|call| call.outcome == Outcome::Ok).collect();
    admitted.sort_unstable_by_key(|call| call.answered);
    for from in &admitted {
        let mut count = 0.0;
        for call in admitted.iter().filter(|call| call.sent >= from.sent) {
            count += 1.0;
            let most = capacity + per_second * call.answered.duration_since(from.sent).as_secs_f64() + 1.0;
            assert!(count <= most, "{count} were admitted where {most} could be");
        }
    }
}

pub fn count(calls: &[Call], outcome: Outcome) -> usize {
    calls.iter().filter(|call| call.outcome == outcome).count()
}
