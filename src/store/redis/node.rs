//! One server of the store: its lanes, its breaker and the probe that finds out when it is well again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bb8_redis::bb8::Pool;
use tokio::{
    sync::{
        mpsc::{self, error::TrySendError},
        oneshot,
    },
    time::{Instant, sleep, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    canary,
    connect::{DialError, DialErrors, Dialer},
    fault::Fault,
    lane::{Ask, Lane, Pending, Reply, Way},
    metrics::StoreMetrics,
    report::Report,
};
use crate::{panics, store::breaker::Breaker};

/// Requests that wait in a lane; one more is a failure at once, not a wait.
pub const QUEUE_MAX: usize = 1_024;
const PROBE_FIRST: Duration = Duration::from_millis(25);
/// With the dial before it, well below the second after which a store that is back must be in use again.
const PROBE_LAST: Duration = Duration::from_millis(200);
/// A node that is found sick again within this time is not trusted as before: it has to answer twice as many probes one after the
/// other, so that one that is on the edge of being of use does not go back and forth.
const SETTLED: Duration = Duration::from_secs(10);
const PROBES_MAX: u32 = 8;
/// Between attempts with a password that was refused.
const PROBE_DENIED: Duration = Duration::from_secs(2);

/// A store that is silent for less than this has only held its breath: as long as a few calls one after the other may take, and
/// well below the second within which a store that is gone must be known to be.
#[must_use]
pub fn grace(timeout: Duration) -> Duration {
    const TIMEOUTS: u32 = 5;
    const AT_MOST: Duration = Duration::from_millis(250);
    (timeout * TIMEOUTS).min(AT_MOST)
}

/// The health of a node.
#[derive(Debug)]
pub struct Vitals {
    pub breaker: Breaker,
    pub report: Report,
    /// The most that a call may take.
    pub timeout: Duration,
    metrics: Arc<StoreMetrics>,
    era: Arc<AtomicU64>,
    /// By lane: the era of its connection, from 1; 0 is none.
    links: Box<[AtomicU64]>,
}

impl Vitals {
    /// A lane has a connection now.
    pub fn linked(&self, lane: usize, era: u64) {
        self.links[lane].store(era + 1, Ordering::Release);
    }

    pub fn unlinked(&self, lane: usize) {
        self.links[lane].store(0, Ordering::Release);
    }

    fn is_linked(&self, lane: usize) -> bool {
        self.links[lane].load(Ordering::Acquire) == self.era() + 1
    }

    /// Whether any lane can be used at once.
    fn has_link(&self) -> bool {
        (0..self.links.len()).any(|lane| self.is_linked(lane))
    }

    pub fn succeeded(&self, took: Duration) {
        self.metrics.call_duration.record(took);
        self.breaker.succeeded();
    }

    pub fn failed(&self, fault: &Fault) {
        if fault.is_redirection() {
            return;
        }
        let tripped = if fault.trips_at_once() { self.breaker.trip() } else { self.breaker.failed() };
        self.tell(tripped, &fault.to_string(), fault.advice());
    }

    /// Callers who have another lane do not notice.
    pub fn dial_failed(&self, error: &DialError) {
        self.tell(!self.has_link() && self.breaker.trip(), &error.to_string(), None);
    }

    /// Callers cannot wait for it, if they have to.
    pub fn dial_is_slow(&self) {
        if !self.has_link() && self.breaker.trip() {
            let reason = format!("no connection within {:?}, which is the store timeout", self.timeout);
            self.tell(true, &reason, None);
        }
    }

    fn tell(&self, tripped: bool, reason: &str, advice: Option<&'static str>) {
        if tripped {
            self.metrics.breaker_trips.increment(1);
            self.report.is_sick(reason, advice);
        } else {
            self.report.fails(reason, advice);
        }
    }

    fn is_well(&self) {
        if self.breaker.pass() {
            self.report.is_well();
        }
    }

    /// Connections of an earlier era lead to somebody who is no longer the primary.
    #[must_use]
    pub fn era(&self) -> u64 {
        self.era.load(Ordering::Acquire)
    }

    /// A connection of this era has turned out to lead to a replica. Whether this ended it: told by many, it ends but once.
    pub fn end_era(&self, era: u64) -> bool {
        self.era.compare_exchange(era, era + 1, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

#[derive(Debug)]
pub struct Node {
    pub vitals: Arc<Vitals>,
    /// One connection more than there are lanes, for what does not decide.
    pub pool: Pool<Dialer>,
    lanes: Arc<[mpsc::Sender<Pending>]>,
    next: AtomicUsize,
    stop: CancellationToken,
}

/// The lanes end when they have answered what they have; the probe ends at once.
impl Drop for Node {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Node {
    /// Connects in the background. `canary` is a key of this node that the probe may charge.
    #[must_use]
    pub fn start(dialer: Dialer, canary: &str, metrics: Arc<StoreMetrics>, stop: &CancellationToken) -> Arc<Self> {
        let connections = dialer.settings.connections.max(1);
        let vitals = Arc::new(Vitals {
            breaker: Breaker::tripped(grace(dialer.settings.timeout)),
            report: Report::new(dialer.target.to_string()),
            timeout: dialer.settings.timeout,
            metrics,
            era: dialer.era.clone(),
            links: (0..connections).map(|_| AtomicU64::new(0)).collect(),
        });
        let dial_errors = DialErrors::default();
        let patience = dialer.patience();
        let pool = Pool::builder()
            .max_size(u32::try_from(connections + 1).unwrap_or(u32::MAX))
            .connection_timeout(patience * 2)
            .retry_connection(false)
            .max_lifetime(None)
            .idle_timeout(None)
            .test_on_check_out(false)
            .error_sink(Box::new(dial_errors.clone()))
            .build_unchecked(dialer);
        let lanes = (0..connections).map(|number| {
            let (sender, queue) = mpsc::channel(QUEUE_MAX);
            let lane = Lane::new(number, queue, pool.clone(), dial_errors.clone(), vitals.clone());
            tokio::spawn(run_lane(lane, vitals.clone()));
            sender
        });
        let lanes: Arc<[_]> = lanes.collect();
        let stop = stop.child_token();
        let probe = Probe {
            lanes: lanes.clone(),
            vitals: vitals.clone(),
            canary: canary::ask(canary),
            patience,
            turn: AtomicUsize::new(0),
        };
        tokio::spawn({
            let stop = stop.clone();
            async move { stop.run_until_cancelled(panics::again(|| probe.run())).await }
        });
        Arc::new(Self { vitals, pool, lanes, next: AtomicUsize::new(0), stop })
    }

    /// Asks, and waits until the deadline at most.
    pub async fn ask(&self, ask: Ask, slot: Option<u16>, way: Way, deadline: Instant) -> Reply {
        let (reply, answer) = oneshot::channel();
        let pending = Pending { ask, slot, way, deadline, reply };
        let reply = if self.vitals.breaker.is_passing() && self.send(pending) {
            answered(answer, deadline).await
        } else {
            Err(Fault::NotAsked)
        };
        if reply.as_ref().is_err_and(|fault| !fault.has_not_run()) {
            self.vitals.report.unanswered();
        }
        reply
    }
}

impl Node {
    /// To the next lane that has a connection and room. Where none has a connection, to any of them, which then dials.
    fn send(&self, mut pending: Pending) -> bool {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        for step in 0..self.lanes.len() {
            let lane = first.wrapping_add(step) % self.lanes.len();
            if !self.vitals.is_linked(lane) && self.vitals.has_link() {
                continue;
            }
            match self.lanes[lane].try_send(pending) {
                Ok(()) => return true,
                Err(TrySendError::Full(back) | TrySendError::Closed(back)) => pending = back,
            }
        }
        false
    }
}

/// A lane that panics goes on with another connection; to the breaker it is a call that failed, so that a lane that always
/// panics is left alone for a while.
async fn run_lane(mut lane: Lane, vitals: Arc<Vitals>) {
    while panics::caught(lane.run()).await.is_err() {
        let _ = panics::caught_now(|| {
            lane.give_up();
            vitals.failed(&Fault::Other("sluice has panicked while it asked".to_owned()));
        });
    }
}

async fn ask_lane(lane: &mpsc::Sender<Pending>, ask: Ask, slot: Option<u16>, way: Way, deadline: Instant) -> Reply {
    let (reply, answer) = oneshot::channel();
    if lane.try_send(Pending { ask, slot, way, deadline, reply }).is_err() {
        return Err(Fault::NotAsked);
    }
    answered(answer, deadline).await
}

async fn answered(answer: oneshot::Receiver<Reply>, deadline: Instant) -> Reply {
    match timeout_at(deadline, answer).await {
        Ok(Ok(reply)) => reply,
        // The lane found it too late to send.
        Ok(Err(_)) | Err(_) => Err(Fault::Timeout),
    }
}

/// Asks a tripped node now and then, on the way that callers take, with the real script on a key of its own: a PING would be
/// answered by a server that has no memory, no script or no permission left for us. Nobody else dials while it does.
struct Probe {
    lanes: Arc<[mpsc::Sender<Pending>]>,
    vitals: Arc<Vitals>,
    canary: Ask,
    /// How long a dial may take.
    patience: Duration,
    /// Which lane is next.
    turn: AtomicUsize,
}

impl Probe {
    async fn run(&self) {
        let (mut passed_at, mut wanted) = (None::<Instant>, 1);
        loop {
            self.vitals.breaker.until_tripped().await;
            let again_so_soon = passed_at.is_some_and(|at| at.elapsed() < SETTLED);
            wanted = if again_so_soon { (wanted * 2).min(PROBES_MAX) } else { 1 };
            self.until_answered(wanted).await;
            self.vitals.is_well();
            self.connect_the_others();
            passed_at = Some(Instant::now());
        }
    }

    /// So many times one after the other.
    async fn until_answered(&self, wanted: u32) {
        let (mut answered, mut pause) = (0, PROBE_FIRST);
        loop {
            let longest = match self.probe().await {
                Ok(()) if answered + 1 == wanted => return,
                Ok(()) => {
                    (answered, pause) = (answered + 1, PROBE_FIRST);
                    PROBE_FIRST
                }
                Err(fault) => {
                    answered = 0;
                    if let Fault::Denied(_) = fault { PROBE_DENIED } else { PROBE_LAST }
                }
            };
            sleep(pause.mul_f64(0.8 + 0.4 * fastrand::f64())).await;
            pause = (pause * 2).min(longest);
        }
    }

    /// One lane alone, so that a node that is not there is dialled once; another one the next time, so that no lane that is stuck
    /// can keep a node from being found well.
    async fn probe(&self) -> Result<(), Fault> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.lanes.len();
        let deadline = Instant::now() + self.patience * 2 + self.vitals.timeout;
        probe_lane(&self.lanes[turn], self.canary.clone(), deadline).await
    }

    /// Callers have one lane and need not wait for the others, which dial before anybody uses them.
    fn connect_the_others(&self) {
        let deadline = Instant::now() + self.patience * 2 + self.vitals.timeout;
        for (number, lane) in self.lanes.iter().enumerate() {
            if !self.vitals.is_linked(number) {
                let (lane, canary) = (lane.clone(), self.canary.clone());
                tokio::spawn(async move { probe_lane(&lane, canary, deadline).await });
            }
        }
    }
}

async fn probe_lane(lane: &mpsc::Sender<Pending>, canary: Ask, deadline: Instant) -> Result<(), Fault> {
    match ask_lane(lane, canary, None, Way::Alone, deadline).await {
        Err(fault) if !fault.is_redirection() => Err(fault),
        _ => Ok(()),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use metrics::{Counter, Histogram};

    use super::*;

    /// Of a node that is well, and that nobody counts.
    pub fn vitals() -> Vitals {
        let metrics = StoreMetrics { call_duration: Histogram::noop(), breaker_trips: Counter::noop() };
        let vitals = Vitals {
            breaker: Breaker::tripped(grace(Duration::from_millis(10))),
            report: Report::new("node".to_owned()),
            timeout: Duration::from_millis(10),
            metrics: Arc::new(metrics),
            era: Arc::default(),
            links: [AtomicU64::new(0), AtomicU64::new(0)].into(),
        };
        vitals.is_well();
        vitals
    }

    #[tokio::test(start_paused = true)]
    async fn one_request_more_than_a_lane_may_hold_fails_at_once() {
        let (lane, _held) = mpsc::channel(QUEUE_MAX);
        let deadline = Instant::now() + Duration::from_secs(1);
        let ask = || ask_lane(&lane, canary::ask("key"), None, Way::Shared, deadline);
        let waiting: Vec<_> = (0..QUEUE_MAX).map(|_| Box::pin(ask())).collect();
        let mut waiting = futures_util::future::join_all(waiting);
        assert!(futures_util::poll!(&mut waiting).is_pending());
        assert!(matches!(ask().await, Err(Fault::NotAsked)));
        assert!(Instant::now() < deadline, "it was not waited for");
        assert!(waiting.await.iter().all(|reply| matches!(reply, Err(Fault::Timeout))));
    }

    #[tokio::test]
    async fn an_era_ends_once_however_many_say_so() {
        let vitals = vitals();
        assert!(vitals.end_era(0));
        assert!(!vitals.end_era(0));
        assert_eq!(vitals.era(), 1);
    }

    #[tokio::test]
    async fn where_a_slot_is_says_nothing_about_the_health_of_a_node() {
        let vitals = vitals();
        for _ in 0..100 {
            vitals.failed(&Fault::TryAgain);
            vitals.failed(&Fault::Moved { address: "elsewhere:1".to_owned() });
        }
        assert!(vitals.breaker.is_passing());
        vitals.failed(&Fault::Down("LOADING".to_owned()));
        assert!(!vitals.breaker.is_passing());
    }

    #[tokio::test]
    async fn a_lane_that_cannot_be_dialled_trips_only_where_no_other_has_a_connection() {
        let vitals = vitals();
        let error = DialError::new(&"node", "refused", None);
        vitals.linked(1, 0);
        vitals.dial_failed(&error);
        vitals.dial_is_slow();
        assert!(vitals.breaker.is_passing());
        // A connection of an earlier era is none.
        assert!(vitals.end_era(0));
        vitals.dial_is_slow();
        assert!(!vitals.breaker.is_passing());
        vitals.is_well();
        vitals.linked(1, 1);
        vitals.unlinked(1);
        vitals.dial_failed(&error);
        assert!(!vitals.breaker.is_passing());
    }
}
