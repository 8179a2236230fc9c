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
    grpc::{Code, RateLimitServiceClient, Request, Response, connect},
    wait::{DEADLINE, holds_within, wait_until},
};

/// A caller that waits longer than this would wait for ever.
const HUNG: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Ok,
    Over,
    /// Answered by policy.
    DegradedOk,
    DegradedOver,
    Unavailable,
    /// Not answered before the caller's own deadline.
    Late,
    /// Anything else: never wanted.
    Error,
}

impl Outcome {
    fn of(response: &Response) -> Self {
        let degraded = response.response_headers_to_add.iter().any(|header| header.key == "x-ratelimit-degraded");
        match (response.overall_code == i32::from(Code::Ok), degraded) {
            (true, false) => Self::Ok,
            (false, false) => Self::Over,
            (true, true) => Self::DegradedOk,
            (false, true) => Self::DegradedOver,
        }
    }

    fn of_failure(status: &tonic::Status) -> Self {
        match status.code() {
            tonic::Code::Unavailable => Self::Unavailable,
            // The client's own clock says it with the first of these, the server's with the second.
            tonic::Code::Cancelled | tonic::Code::DeadlineExceeded => Self::Late,
            _ => Self::Error,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Call {
    pub client: usize,
    /// Which of the servers it asked, by its place.
    pub sidecar: usize,
    /// The first descriptor of the request.
    pub key: Box<str>,
    pub hits: u32,
    /// What the first descriptor's counter has left.
    pub remaining: u32,
    pub sent: Instant,
    pub answered: Instant,
    pub outcome: Outcome,
    /// What it was told, if that was no answer.
    pub error: Option<Box<str>>,
}

impl Call {
    pub fn took(&self) -> Duration {
        self.answered.duration_since(self.sent)
    }
}

/// A client that keeps its connection.
struct Caller {
    number: usize,
    sidecar: usize,
    client: RateLimitServiceClient<Channel>,
    deadline: Option<Duration>,
}

impl Caller {
    async fn ask(&mut self, request: Request) -> Call {
        let (key, hits) = (key_of(&request), request.hits_addend.max(1));
        let mut request = tonic::Request::new(request);
        if let Some(deadline) = self.deadline {
            request.set_timeout(deadline);
        }
        let sent = Instant::now();
        let response = tokio::time::timeout(HUNG, self.client.should_rate_limit(request)).await;
        let answered = Instant::now();
        let (outcome, error) = match &response {
            Ok(Ok(response)) => (Outcome::of(response.get_ref()), None),
            Ok(Err(status)) => (Outcome::of_failure(status), Some(status.to_string().into())),
            Err(_) => (Outcome::Error, Some("it hung".into())),
        };
        let response = response.ok().and_then(Result::ok).map(tonic::Response::into_inner);
        let remaining = response.and_then(|response| Some(response.statuses.first()?.limit_remaining)).unwrap_or(0);
        Call { client: self.number, sidecar: self.sidecar, key, hits, remaining, sent, answered, outcome, error }
    }
}

fn key_of(request: &Request) -> Box<str> {
    let entries = request.descriptors.iter().take(1).flat_map(|descriptor| &descriptor.entries);
    entries.map(|entry| format!("{}={}", entry.key, entry.value)).collect::<Vec<_>>().join(",").into()
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
                    let all = f64::from(u32::try_from(servers.len() * style.callers_of_each).unwrap_or(1));
                    let servers = servers.iter().enumerate().flat_map(|pair| vec![pair; style.callers_of_each]);
                    for (number, (sidecar, server)) in servers.enumerate() {
                        let client = RateLimitServiceClient::new(connect(server).await);
                        let mut caller = Caller { number, sidecar, client, deadline: style.deadline };
                        let (stop, calls, make, style) = (stop.clone(), calls.clone(), make.clone(), style.clone());
                        callers.spawn(async move {
                            // One after the other, and not all in the same moment.
                            let mut beat = style.pause.map(|pause| {
                                let share = f64::from(u32::try_from(number).unwrap_or(0)) / all;
                                tokio::time::interval_at(tokio::time::Instant::now() + pause.mul_f64(share), pause)
                            });
                            for turn in 0.. {
                                if stop.load(Ordering::Relaxed) {
                                    break;
                                }
                                if let Some(beat) = &mut beat {
                                    beat.tick().await;
                                }
                                let call = caller.ask(make(number, turn)).await;
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
        let far = end.saturating_duration_since(Instant::now()) + DEADLINE;
        assert!(holds_within(far, || Instant::now() >= end), "it is never time");
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

pub fn count(calls: &[Call], outcome: Outcome) -> usize {
    calls.iter().filter(|call| call.outcome == outcome).count()
}

/// The slowest but for one in a hundred.
pub fn p99<'c>(calls: impl IntoIterator<Item = &'c Call>) -> Duration {
    let mut took: Vec<Duration> = calls.into_iter().map(Call::took).collect();
    took.sort_unstable();
    took.get((took.len() * 99 / 100).min(took.len().saturating_sub(1))).copied().unwrap_or_default()
}
