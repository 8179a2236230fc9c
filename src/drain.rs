//! The calls of a connection: how many are being answered and since when, so that a connection can be ended without losing one
//! and without waiting for a caller who has gone silent, and so that no caller holds more of them, or for longer, than is fair.
//!
//! It knows nothing of what is called, nor of the protocol.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures_util::TryFutureExt as _;
use http::Response;
use hyper::body::{Body, Frame, SizeHint};
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, sleep},
};

/// How long a connection that was asked to end may stay without a call. A caller that is well ends it within a round trip.
pub const LINGER: Duration = Duration::from_secs(1);
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// How often the age of calls is looked at.
pub const SLICE: Duration = Duration::from_secs(5);
/// How long a call may take, from its first byte to the last byte of its answer: for ever longer than any deadline of Envoy's,
/// and what a caller gets who sends or reads too slowly. Then its connection is cut, [`SLICE`] later at the latest.
pub const CALL_MAX: Duration = Duration::from_secs(20);
/// The last one is for calls of any age.
const SLICES: usize = 5;
const AGELESS: usize = SLICES;

/// Calls that a connection may have under way even though all connections together have too many, so that nobody is shut out by
/// somebody else.
pub const CALLS_SHARE: u64 = 64;
/// When there are so many times too many, because there are as many connections, each has one.
const CALLS_FAR_TOO_MANY: u64 = 4;
/// What all connections together may have sent of large requests that are not complete.
pub const UNFINISHED_BYTES_MAX: usize = 32 << 20;
/// What one of them may have. One message of the largest size, and some.
pub const UNFINISHED_BYTES_SHARE: usize = 5 << 20;
/// What each may have whatever the others have, so that nobody with long headers is shut out by somebody else.
pub const UNFINISHED_BYTES_OWN: usize = 64 << 10;

/// A request of this size takes no room.
const FREE_BYTES: usize = 4 << 10;

/// The calls of all connections.
#[derive(Debug)]
pub struct InFlight {
    calls_max: u64,
    calls: AtomicU64,
    unfinished_bytes: AtomicUsize,
    refused: AtomicU64,
    given_up: AtomicU64,
}

impl InFlight {
    #[must_use]
    pub fn new(calls_max: u64) -> Arc<Self> {
        Arc::new(Self {
            calls_max,
            calls: AtomicU64::new(0),
            unfinished_bytes: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
        })
    }

    /// Calls that each connection may have under way when there are so many in all.
    fn share(&self, calls: u64) -> u64 {
        if calls < self.calls_max.saturating_mul(CALLS_FAR_TOO_MANY) { CALLS_SHARE } else { 1 }
    }

    /// Calls that are being answered.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }

    /// How many there may be.
    #[must_use]
    pub fn calls_max(&self) -> u64 {
        self.calls_max
    }

    /// Calls that were refused since the start, because there were too many or because of their size.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Calls whose callers had gone before there was an answer.
    #[must_use]
    pub fn given_up(&self) -> u64 {
        self.given_up.load(Relaxed)
    }
}

/// The calls of one connection.
#[derive(Clone, Debug)]
pub struct Calls(Arc<Counts>);

#[derive(Debug)]
struct Counts {
    all: Arc<InFlight>,
    begun: AtomicU64,
    ended: AtomicU64,
    asked: AtomicU64,
    /// Which of `open` counts the calls that begin now.
    slice: AtomicUsize,
    open: [AtomicUsize; SLICES + 1],
    unfinished_bytes: AtomicUsize,
}

/// A call that is being answered, until this is dropped.
#[derive(Debug)]
pub struct Call {
    calls: Calls,
    slice: usize,
    answered: bool,
    /// Of something that there is little of.
    room: Option<OwnedSemaphorePermit>,
}

impl Call {
    /// Keeps something for as long as it lasts.
    pub fn hold(&mut self, room: OwnedSemaphorePermit) {
        self.room = Some(room);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let counts = &*self.calls.0;
        counts.open[self.slice].fetch_sub(1, Relaxed);
        if self.slice != AGELESS {
            counts.all.calls.fetch_sub(1, Relaxed);
            counts.ended.fetch_add(1, Relaxed);
        }
        if !self.answered {
            counts.all.given_up.fetch_add(1, Relaxed);
        }
    }
}

impl Calls {
    #[must_use]
    pub fn new(all: Arc<InFlight>) -> Self {
        Self(Arc::new(Counts {
            all,
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            slice: AtomicUsize::new(0),
            open: Default::default(),
            unfinished_bytes: AtomicUsize::new(0),
        }))
    }

    /// `None` if there are too many already.
    #[must_use]
    pub fn begin(&self) -> Option<Call> {
        let counts = &*self.0;
        let others = counts.all.calls.fetch_add(1, Relaxed);
        if others >= counts.all.calls_max && self.under_way() >= counts.all.share(others) {
            counts.all.calls.fetch_sub(1, Relaxed);
            counts.all.refused.fetch_add(1, Relaxed);
            // It is not the caller's fault that nobody reads its message.
            self.note_asked();
            return None;
        }
        counts.begun.fetch_add(1, Relaxed);
        let slice = counts.slice.load(Relaxed);
        counts.open[slice].fetch_add(1, Relaxed);
        Some(Call { calls: self.clone(), slice, answered: false, room: None })
    }

    /// A call that ends when its caller wants, and that nobody waits for. `None` if there are `max` already.
    #[must_use]
    pub fn begin_watch(&self, max: usize) -> Option<Call> {
        let watches = &self.0.open[AGELESS];
        if watches.fetch_add(1, Relaxed) >= max {
            watches.fetch_sub(1, Relaxed);
            self.0.all.refused.fetch_add(1, Relaxed);
            return None;
        }
        // Begun, and ended as far as anybody waits for it.
        self.0.begun.fetch_add(1, Relaxed);
        self.0.ended.fetch_add(1, Relaxed);
        Some(Call { calls: self.clone(), slice: AGELESS, answered: false, room: None })
    }

    /// The message of a call is complete.
    pub fn note_asked(&self) {
        self.0.asked.fetch_add(1, Relaxed);
    }

    /// How many calls had a message.
    #[must_use]
    pub fn asked(&self) -> u64 {
        self.0.asked.load(Relaxed)
    }

    fn under_way(&self) -> u64 {
        self.0.begun.load(Relaxed).saturating_sub(self.0.ended.load(Relaxed))
    }

    /// How many there were, of either kind.
    #[must_use]
    pub fn begun(&self) -> u64 {
        self.0.begun.load(Relaxed)
    }

    /// Whether there is one, of either kind.
    #[must_use]
    pub fn are_open(&self) -> bool {
        self.under_way() > 0 || self.0.open[AGELESS].load(Relaxed) > 0
    }

    /// To be called every [`SLICE`]. Says whether a call takes longer than [`CALL_MAX`].
    #[must_use]
    pub fn is_overdue(&self) -> bool {
        let next = (self.0.slice.load(Relaxed) + 1) % SLICES;
        let is_overdue = self.0.open[next].load(Relaxed) > 0;
        self.0.slice.store(next, Relaxed);
        is_overdue
    }

    /// Waits until there was no call for [`LINGER`].
    pub async fn quiet(&self) {
        let mut seen = 0;
        let mut since = Instant::now();
        loop {
            let begun = self.0.begun.load(Relaxed);
            if self.under_way() > 0 || begun != seen {
                (seen, since) = (begun, Instant::now());
            } else if since.elapsed() >= LINGER {
                return;
            }
            sleep(BETWEEN_LOOKS).await;
        }
    }
}

/// The room that one request takes while it is not complete. Small ones take none.
#[derive(Debug)]
pub struct Room {
    calls: Calls,
    taken: usize,
}

impl Room {
    #[must_use]
    pub fn new(calls: Calls) -> Self {
        Self { calls, taken: 0 }
    }

    /// Those of the connection.
    #[must_use]
    pub fn calls(&self) -> &Calls {
        &self.calls
    }

    /// Takes what a request of so many bytes needs. False if there is not as much.
    #[must_use]
    pub fn grow(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(FREE_BYTES + self.taken);
        if more == 0 {
            return true;
        }
        let (counts, relaxed) = (&*self.calls.0, Relaxed);
        let own = counts.unfinished_bytes.fetch_add(more, relaxed) + more;
        let all = counts.all.unfinished_bytes.fetch_add(more, relaxed) + more;
        self.taken += more;
        if own <= UNFINISHED_BYTES_OWN || own <= UNFINISHED_BYTES_SHARE && all <= UNFINISHED_BYTES_MAX {
            return true;
        }
        counts.all.refused.fetch_add(1, relaxed);
        false
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.taken > 0 {
            self.calls.0.unfinished_bytes.fetch_sub(self.taken, Relaxed);
            self.calls.0.all.unfinished_bytes.fetch_sub(self.taken, Relaxed);
        }
    }
}

/// Lets one request be answered. A call lasts until the last byte of the answer is given away.
pub fn answer<Out>(
    mut call: Call,
    answering: impl Future<Output = Result<Response<Out>, Infallible>>,
) -> impl Future<Output = Result<Response<Counted<Out>>, Infallible>> {
    answering.map_ok(move |response| {
        call.answered = true;
        response.map(|body| Counted { body, _call: Some(call) })
    })
}

/// The body of an answer, and with it the call that it ends.
#[derive(Debug)]
pub struct Counted<B> {
    body: B,
    _call: Option<Call>,
}

impl<B> Counted<B> {
    /// The body of an answer to a call that was not begun.
    pub fn refusal(body: B) -> Self {
        Self { body, _call: None }
    }
}

impl<B: Body + Unpin> Body for Counted<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls() -> Calls {
        Calls::new(InFlight::new(u64::MAX))
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_calls_is_quiet_soon_and_one_with_a_call_only_after_it() {
        let calls = calls();
        let began = Instant::now();
        calls.quiet().await;
        assert!(began.elapsed() < 2 * LINGER);

        let call = calls.begin();
        let quiet = calls.quiet();
        let mut quiet = std::pin::pin!(quiet);
        assert!(tokio::time::timeout(100 * LINGER, quiet.as_mut()).await.is_err(), "a call is not waited for");
        drop(call);
        assert!(tokio::time::timeout(2 * LINGER, quiet).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_between_two_looks_starts_the_wait_anew() {
        let calls = calls();
        let quiet = calls.quiet();
        let mut quiet = std::pin::pin!(quiet);
        for _ in 0..5 {
            assert!(tokio::time::timeout(LINGER.mul_f64(0.8), quiet.as_mut()).await.is_err());
            drop(calls.begin());
        }
        assert!(tokio::time::timeout(2 * LINGER, quiet).await.is_ok());
    }

    #[test]
    fn a_call_is_overdue_after_its_time_and_a_watch_never_is() {
        let calls = calls();
        let slices = u32::try_from(SLICES).unwrap();
        assert_eq!(SLICE * (slices - 1), CALL_MAX);
        let _watch = calls.begin_watch(1).unwrap();
        assert!(calls.begin_watch(1).is_none(), "one watch too many");
        let call = calls.begin().unwrap();
        for _ in 1..slices {
            assert!(!calls.is_overdue());
            drop(calls.begin());
        }
        assert!(calls.is_overdue());
        drop(call);
        for _ in 0..20 {
            assert!(!calls.is_overdue());
        }
    }

    #[test]
    fn with_too_many_calls_in_all_each_connection_keeps_its_share() {
        let all = InFlight::new(100);
        let (greedy, modest) = (Calls::new(all.clone()), Calls::new(all.clone()));
        let held: Vec<_> = (0..100).map(|_| greedy.begin().unwrap()).collect();
        assert!(greedy.begin().is_none(), "one beyond all");
        let served: Vec<_> = (0..CALLS_SHARE).map(|_| modest.begin().unwrap()).collect();
        assert!(modest.begin().is_none(), "one beyond its share");
        assert_eq!((all.calls(), all.refused()), (100 + CALLS_SHARE, 2));
        drop((held, served));
        assert_eq!(all.calls(), 0);
        assert!(greedy.begin().is_some());
    }

    #[test]
    fn with_far_too_many_calls_in_all_each_connection_keeps_one() {
        let all = InFlight::new(100);
        let crowd: Vec<Calls> = (0..10).map(|_| Calls::new(all.clone())).collect();
        let held: Vec<_> = crowd.iter().flat_map(|calls| std::iter::from_fn(|| calls.begin())).collect();
        assert!(held.len() < 100 * 5, "{} calls", held.len());
        let late = Calls::new(all.clone());
        let call = late.begin();
        assert!(call.is_some() && late.begin().is_none());
    }

    #[tokio::test]
    async fn a_call_that_was_dropped_before_its_answer_was_given_up() {
        let calls = calls();
        let answered = answer(calls.begin().unwrap(), async { Ok(Response::new(())) }).await;
        drop(answered);
        assert_eq!(calls.0.all.given_up(), 0);
        drop(answer(calls.begin().unwrap(), std::future::pending::<Result<Response<()>, _>>()));
        assert_eq!(calls.0.all.given_up(), 1);
    }

    #[test]
    fn unfinished_requests_of_one_connection_and_of_all_are_bounded_in_bytes() {
        let all = InFlight::new(1);
        let rooms = |count: usize| (0..count).map(|_| Room::new(Calls::new(all.clone()))).collect::<Vec<_>>();
        let most = UNFINISHED_BYTES_SHARE + FREE_BYTES;
        let mut first = Room::new(Calls::new(all.clone()));
        assert!(first.grow(FREE_BYTES + 1) && first.grow(most));
        let mut neighbour = Room::new(first.calls.clone());
        assert!(neighbour.grow(FREE_BYTES), "a small one is free");
        assert!(!neighbour.grow(FREE_BYTES + 1), "one byte beyond the share of a connection");
        drop(neighbour);
        let mut others = rooms(UNFINISHED_BYTES_MAX / UNFINISHED_BYTES_SHARE - 1);
        assert!(others.iter_mut().all(|room| room.grow(most)));
        let mut late = rooms(1).remove(0);
        assert!(!late.grow(most), "beyond what there is for all");
        assert_eq!(all.refused(), 2);
        let mut small = rooms(1).remove(0);
        assert!(small.grow(FREE_BYTES + UNFINISHED_BYTES_OWN), "everybody has some");
        drop((first, others, late, small));
        assert_eq!(all.unfinished_bytes.load(Relaxed), 0);
    }
}
