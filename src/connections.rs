//! Who is let in at a door: how many connections it may have, what happens beyond, and what is told of those that were closed.
//!
//! When a door is full, whoever has been waiting longest without saying anything makes room for who comes. Knows nothing of what
//! is spoken on a connection.

use std::{
    collections::VecDeque,
    fs, io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, sleep, timeout},
};
use tracing::{debug, warn};

use crate::{drain::Calls, telemetry::metrics::DoorMetrics};

/// After an error that the next attempt would have, too, such as no file descriptors being left. At first, and at most.
const PAUSE_FIRST: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// How long a newcomer that has to make room may take.
const LEAVING_MAX: Duration = Duration::from_millis(100);
/// How often the log tells the same thing again.
const REMIND: Duration = Duration::from_secs(30);
/// Floods that are left unread before they are ended, so that who makes them has to wait. Each keeps its state meanwhile.
const HELD_MAX: usize = 64;
/// File descriptors that are for other things than connections: stores, rules, certificates.
const DESCRIPTORS_KEPT: usize = 100;

/// Why a connection was closed from this side. The names are labels of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// There were as many as there may be.
    TooMany,
    /// It was not opened, or asked nothing, in its time.
    Silent,
    /// It sent frames that ask nothing.
    Flood,
    /// A call on it took longer than any may.
    Overdue,
    /// It had no call for a while, and many others neither.
    Idle,
}

impl Closed {
    pub const ALL: [Closed; 5] = [Closed::TooMany, Closed::Silent, Closed::Flood, Closed::Overdue, Closed::Idle];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Closed::TooMany => "too_many",
            Closed::Silent => "silent",
            Closed::Flood => "flood",
            Closed::Overdue => "overdue",
            Closed::Idle => "idle",
        }
    }

    fn advice(self) -> &'static str {
        match self {
            Closed::TooMany => {
                "closing connections: there are as many as there may be; see GRPC_MAX_CONNECTIONS and `ulimit -n`"
            }
            Closed::Silent => "closing connections: their callers did not open them, or asked nothing, in time",
            Closed::Flood => "closing connections: their callers send frames that ask nothing",
            Closed::Overdue => "closing connections: a call on them was not sent, or its answer not read, in time",
            Closed::Idle => "asking idle connections to leave: there are many; see GRPC_MAX_IDLE_CONNECTIONS",
        }
    }
}

/// The connections of one door.
#[derive(Clone, Debug)]
pub struct Connections(Arc<Door>);

#[derive(Debug)]
struct Door {
    max: usize,
    open: AtomicUsize,
    idle: AtomicUsize,
    held: AtomicUsize,
    /// A connection has ended.
    left: Notify,
    metrics: DoorMetrics,
    told: [Seldom; Closed::ALL.len()],
}

/// A connection, until this is dropped.
#[derive(Debug)]
pub struct Guest(Connections);

impl Drop for Guest {
    fn drop(&mut self) {
        self.0.0.open.fetch_sub(1, Relaxed);
        self.0.0.metrics.left();
        self.0.0.left.notify_one();
    }
}

/// A connection that counts as idle, until this is dropped.
#[derive(Debug)]
pub struct Idle(Connections);

impl Drop for Idle {
    fn drop(&mut self) {
        self.0.0.idle.fetch_sub(1, Relaxed);
    }
}

/// A flood that is left unread, until this is dropped.
#[derive(Debug)]
pub struct Held(Connections);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.0.held.fetch_sub(1, Relaxed);
    }
}

impl Connections {
    #[must_use]
    pub fn new(max: usize, metrics: DoorMetrics) -> Self {
        let told = std::array::from_fn(|_| Seldom::default());
        let [open, idle, held] = std::array::from_fn(|_| AtomicUsize::new(0));
        Self(Arc::new(Door { max, open, idle, held, left: Notify::new(), metrics, told }))
    }

    /// Waits until there is room for one more, for which the oldest newcomer makes way. False if there is none.
    pub async fn has_room(&self, newcomers: &mut Newcomers) -> bool {
        if self.0.open.load(Relaxed) < self.0.max {
            return true;
        }
        self.closed(Closed::TooMany);
        while newcomers.oldest_leaves() {
            // One that asked at the very moment when it was told stays; then the next one has to go.
            let _ = timeout(LEAVING_MAX, self.0.left.notified()).await;
            if self.0.open.load(Relaxed) < self.0.max {
                return true;
            }
        }
        false
    }

    #[must_use]
    pub fn enter(&self) -> Guest {
        self.0.open.fetch_add(1, Relaxed);
        self.0.metrics.entered();
        Guest(self.clone())
    }

    /// Counts a connection as idle.
    #[must_use]
    pub fn rest(&self) -> Idle {
        self.0.idle.fetch_add(1, Relaxed);
        Idle(self.clone())
    }

    #[must_use]
    pub fn idle(&self) -> usize {
        self.0.idle.load(Relaxed)
    }

    /// Lets a flood be left unread. `None` if there are many already.
    #[must_use]
    pub fn hold(&self) -> Option<Held> {
        let held = Held(self.clone());
        (self.0.held.fetch_add(1, Relaxed) < HELD_MAX).then_some(held)
    }

    /// A connection was closed from this side: counts it, and says so now and then.
    pub fn closed(&self, why: Closed) {
        let index = Closed::ALL.iter().position(|one| *one == why).unwrap_or(0);
        self.0.metrics.closed(index);
        if let Some(closed) = self.0.told[index].tell() {
            warn!(reason = why.name(), closed, "{}", why.advice());
        }
    }
}

/// How many connections there are file descriptors for, where the system tells it.
#[must_use]
pub fn possible() -> Option<usize> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let all: usize = line.split_whitespace().next()?.parse().ok()?;
    Some(all.saturating_sub(DESCRIPTORS_KEPT.min(all / 2)))
}

/// How many of them are for the gRPC door.
#[must_use]
pub fn possible_for_grpc() -> Option<usize> {
    possible().map(|possible| (possible * 3 / 4).max(1))
}

/// Which connections do not have to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stays {
    /// Those that have asked something: their callers are well, and would lose what they ask next.
    OnceAsked,
    /// Those that wait for an answer: callers who find an idle connection closed open another one.
    WhileAsking,
}

/// Connections that have to make room if there is none, the oldest first.
#[derive(Debug)]
pub struct Newcomers {
    stays: Stays,
    queue: VecDeque<Newcomer>,
}

#[derive(Debug)]
struct Newcomer {
    leave: oneshot::Sender<()>,
    calls: Calls,
}

/// What a newcomer knows of its leaving.
#[derive(Debug)]
pub struct Leave {
    stays: Stays,
    /// Until there is an answer, which must not be asked for again: a connection waits in several places, one after the other.
    told: Option<oneshot::Receiver<()>>,
}

impl Leave {
    /// Until the connection with these calls has to make room: never, if it stays by then.
    pub async fn wanted(&mut self, calls: &Calls) {
        let is_wanted = match &mut self.told {
            Some(told) => told.await.is_ok(),
            None => false,
        };
        self.told = None;
        if !is_wanted || self.stays.is_so(calls) {
            std::future::pending::<()>().await;
        }
    }
}

impl Stays {
    fn is_so(self, calls: &Calls) -> bool {
        match self {
            Self::OnceAsked => calls.begun() > 0,
            Self::WhileAsking => calls.are_open(),
        }
    }
}

impl Newcomers {
    #[must_use]
    pub fn new(stays: Stays) -> Self {
        Self { stays, queue: VecDeque::new() }
    }

    /// A connection with these calls, which is a newcomer until this is dropped.
    pub fn add(&mut self, calls: Calls) -> Leave {
        // Those that have gone, or are none any more, are left out before the queue grows.
        if self.queue.len() == self.queue.capacity() {
            let for_ever = self.stays == Stays::OnceAsked;
            self.queue.retain(|one| !(one.leave.is_closed() || for_ever && self.stays.is_so(&one.calls)));
        }
        let (leave, told) = oneshot::channel();
        self.queue.push_back(Newcomer { leave, calls });
        Leave { stays: self.stays, told: Some(told) }
    }

    /// Lets the oldest make room. False if there is none.
    pub fn oldest_leaves(&mut self) -> bool {
        for _ in 0..self.queue.len() {
            let Some(newcomer) = self.queue.pop_front() else { break };
            if !self.stays.is_so(&newcomer.calls) {
                if newcomer.leave.send(()).is_ok() {
                    return true;
                }
            } else if self.stays == Stays::WhileAsking && !newcomer.leave.is_closed() {
                self.queue.push_back(newcomer);
            }
        }
        false
    }
}

/// What follows from errors of accepting.
#[derive(Debug, Default)]
pub struct AcceptErrors {
    pause: Duration,
    told: Seldom,
}

impl AcceptErrors {
    pub fn none(&mut self) {
        self.pause = Duration::ZERO;
    }

    /// Waits before the next attempt, unless the error is that of one caller.
    pub async fn wait_after(&mut self, error: &io::Error) {
        use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
        if matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted) {
            debug!(%error, "a caller left before it was let in");
            return;
        }
        if let Some(times) = self.told.tell() {
            warn!(%error, times, "cannot accept a connection, trying again");
        }
        self.pause = (self.pause * 2).clamp(PAUSE_FIRST, PAUSE_MAX);
        sleep(self.pause).await;
    }
}

/// Something that happens often and is told seldom.
#[derive(Debug, Default)]
struct Seldom {
    times: AtomicU64,
    told: Mutex<Option<Instant>>,
}

impl Seldom {
    /// How often it has happened since it was told last, if it is to be told now.
    fn tell(&self) -> Option<u64> {
        self.times.fetch_add(1, Relaxed);
        let now = Instant::now();
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_some_and(|told| now.duration_since(told) < REMIND) {
            return None;
        }
        *told = Some(now);
        Some(self.times.swap(0, Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{drain::InFlight, telemetry::metrics::Metrics};

    fn calls() -> Calls {
        Calls::new(InFlight::new(u64::MAX))
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_whose_listener_has_gone_may_wait_in_one_place_after_the_other() {
        let (mut newcomers, calls) = (Newcomers::new(Stays::OnceAsked), calls());
        let mut leave = newcomers.add(calls.clone());
        drop(newcomers);
        for _ in 0..2 {
            let wanted = tokio::time::timeout(std::time::Duration::from_secs(1), leave.wanted(&calls));
            assert!(wanted.await.is_err(), "nobody wants it to leave");
        }
    }

    #[test]
    fn the_oldest_of_those_who_have_asked_nothing_makes_room() {
        let mut newcomers = Newcomers::new(Stays::OnceAsked);
        let asked = calls();
        let (gone, mut asks) = (newcomers.add(calls()), newcomers.add(asked.clone()));
        let (mut first, mut second) = (newcomers.add(calls()), newcomers.add(calls()));
        drop(gone);
        drop(asked.begin());
        assert!(newcomers.oldest_leaves());
        assert!(asks.told.as_mut().unwrap().try_recv().is_err(), "who has asked stays");
        assert!(first.told.as_mut().unwrap().try_recv().is_ok());
        assert!(second.told.as_mut().unwrap().try_recv().is_err());
        drop(second);
        assert!(!newcomers.oldest_leaves());
    }

    #[test]
    fn where_only_those_who_wait_for_an_answer_stay_the_others_make_room_whatever_they_have_asked() {
        let mut newcomers = Newcomers::new(Stays::WhileAsking);
        let (busy, idle) = (calls(), calls());
        let (_asks, mut asked) = (newcomers.add(busy.clone()), newcomers.add(idle.clone()));
        let call = busy.begin();
        drop(idle.begin());
        assert!(newcomers.oldest_leaves());
        assert!(asked.told.as_mut().unwrap().try_recv().is_ok());
        assert!(!newcomers.oldest_leaves());
        drop(call);
        assert!(newcomers.oldest_leaves(), "it is idle now");
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_when_it_is_told_to_leave_stays() {
        let mut newcomers = Newcomers::new(Stays::OnceAsked);
        let calls = calls();
        let mut leave = newcomers.add(calls.clone());
        assert!(newcomers.oldest_leaves());
        drop(calls.begin());
        assert!(timeout(REMIND, leave.wanted(&calls)).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_door_lets_one_in_for_the_oldest_newcomer_and_nobody_for_those_who_have_asked() {
        let door = Connections::new(2, Metrics::new().door("grpc"));
        let mut newcomers = Newcomers::new(Stays::OnceAsked);
        let (asked, waiting) = (door.enter(), door.enter());
        // This one asks at the moment when it is told to leave, and the next one takes its time to go.
        let (_stays, mut leave) = (newcomers.add(calls()), newcomers.add(calls()));
        tokio::spawn(async move {
            leave.wanted(&calls()).await;
            drop(waiting);
        });
        assert!(door.has_room(&mut newcomers).await);
        let _new = door.enter();
        assert!(!door.has_room(&mut newcomers).await, "there is no newcomer left");
        drop(asked);
        assert!(door.has_room(&mut newcomers).await);
    }

    #[test]
    fn newcomers_that_are_none_any_more_are_not_kept() {
        let mut newcomers = Newcomers::new(Stays::OnceAsked);
        let _stays = newcomers.add(calls());
        let mut asked = Vec::new();
        for _ in 0..10_000 {
            let calls = calls();
            asked.push(newcomers.add(calls.clone()));
            drop(calls.begin());
            drop(newcomers.add(calls));
        }
        assert!(newcomers.queue.capacity() < 100, "{}", newcomers.queue.capacity());
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_that_lasts_is_told_twice_a_minute_and_tried_twice_a_second() {
        let mut errors = AcceptErrors::default();
        let began = Instant::now();
        let (mut tries, mut lines) = (0, 0);
        while began.elapsed() < Duration::from_mins(1) {
            let before = errors.told.times.load(Relaxed);
            errors.wait_after(&io::Error::from_raw_os_error(24)).await;
            tries += 1;
            lines += u32::from(errors.told.times.load(Relaxed) <= before);
        }
        assert!((100..200).contains(&tries), "{tries} tries");
        assert_eq!(lines, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn the_error_of_one_caller_holds_up_nobody() {
        let began = Instant::now();
        let mut errors = AcceptErrors::default();
        errors.wait_after(&io::ErrorKind::ConnectionAborted.into()).await;
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
