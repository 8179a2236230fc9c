//! Whether a node of the store is worth asking.
//!
//! Passing: every call goes through. Tripped: none does; the failure policy answers without touching the node. Probing: one
//! task asks it something real now and then, and passes it again when that succeeds. Tripped and probing are one state for callers.
//!
//! It trips on [`IN_A_ROW`] failures in a row, when within a second at least half of [`SHARE_AT_LEAST`] calls or more have failed, or at
//! once when the node itself says that it cannot serve. A slow store that answers two calls in three is not cut off. Neither is
//! one that held its breath for a moment: many calls are under way at a time, and all of them fail together, so that failures
//! count only when they have gone on for a while.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, SetOnce},
    time::Instant,
};

const IN_A_ROW: u32 = 5;
const SHARE_AT_LEAST: u32 = 20;
const SHARE_WINDOW_MS: u128 = 1_000;

#[derive(Debug)]
pub struct Breaker {
    passing: AtomicBool,
    tripped: Notify,
    /// It has passed once.
    known: SetOnce<()>,
    /// How long failures have to go on.
    grace: Duration,
    recent: Mutex<Recent>,
}

#[derive(Debug)]
struct Recent {
    failed_in_a_row: u32,
    /// The first of those in a row.
    row_began: Instant,
    since: Instant,
    calls: u32,
    failed: u32,
    /// The first of those since then.
    failing_since: Instant,
}

impl Recent {
    fn new() -> Self {
        let now = Instant::now();
        Self { failed_in_a_row: 0, row_began: now, since: now, calls: 0, failed: 0, failing_since: now }
    }

    fn count(&mut self, failed: bool) {
        if self.since.elapsed().as_millis() >= SHARE_WINDOW_MS {
            (self.since, self.calls, self.failed) = (Instant::now(), 0, 0);
        }
        self.calls += 1;
        if !failed {
            self.failed_in_a_row = 0;
            return;
        }
        let now = Instant::now();
        if self.failed_in_a_row == 0 {
            self.row_began = now;
        }
        if self.failed == 0 {
            self.failing_since = now;
        }
        self.failed += 1;
        self.failed_in_a_row += 1;
    }

    fn is_sick(&self, grace: Duration) -> bool {
        let in_a_row = self.failed_in_a_row >= IN_A_ROW && self.row_began.elapsed() >= grace;
        let by_share = self.calls >= SHARE_AT_LEAST && self.failed * 2 >= self.calls;
        in_a_row || by_share && self.failing_since.elapsed() >= grace
    }
}

impl Breaker {
    /// Tripped at first: a node has to show that it is there. `grace` is how long failures have to go on.
    #[must_use]
    pub fn tripped(grace: Duration) -> Self {
        Self {
            passing: AtomicBool::new(false),
            tripped: Notify::new(),
            known: SetOnce::new(),
            grace,
            recent: Mutex::new(Recent::new()),
        }
    }

    #[must_use]
    pub fn is_passing(&self) -> bool {
        self.passing.load(Ordering::Acquire)
    }

    pub fn succeeded(&self) {
        self.recent().count(false);
    }

    /// Whether this failure was the one that tripped it.
    pub fn failed(&self) -> bool {
        let sick = {
            let mut recent = self.recent();
            recent.count(true);
            recent.is_sick(self.grace)
        };
        sick && self.trip()
    }

    /// Whether it was passing before.
    pub fn trip(&self) -> bool {
        let was_passing = self.passing.swap(false, Ordering::AcqRel);
        if was_passing {
            self.tripped.notify_one();
        }
        was_passing
    }

    /// Whether it was tripped before.
    pub fn pass(&self) -> bool {
        *self.recent() = Recent::new();
        let was_tripped = !self.passing.swap(true, Ordering::AcqRel);
        let _ = self.known.set(());
        was_tripped
    }

    /// Waits until the node has shown once that it is there.
    pub async fn until_known(&self) {
        self.known.wait().await;
    }

    /// Waits until there is something to probe.
    pub async fn until_tripped(&self) {
        while self.is_passing() {
            self.tripped.notified().await;
        }
    }

    fn recent(&self) -> std::sync::MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_millis(50);

    fn passing() -> Breaker {
        let breaker = Breaker::tripped(GRACE);
        breaker.pass();
        breaker
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_has_to_show_first_that_it_is_there() {
        let breaker = Breaker::tripped(GRACE);
        assert!(!breaker.is_passing());
        assert!(breaker.pass());
        assert!(breaker.is_passing());
    }

    #[tokio::test(start_paused = true)]
    async fn failures_in_a_row_trip_it_and_a_success_between_them_does_not_let_them_add_up() {
        let breaker = passing();
        for _ in 0..3 {
            for _ in 1..IN_A_ROW {
                assert!(!breaker.failed());
            }
            for _ in 0..2 * IN_A_ROW {
                breaker.succeeded();
            }
        }
        for _ in 1..IN_A_ROW {
            assert!(!breaker.failed());
        }
        tokio::time::advance(GRACE).await;
        assert!(breaker.failed());
        assert!(!breaker.is_passing());
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_fail_together_do_not_trip_it_until_more_follow() {
        let breaker = passing();
        for _ in 0..10 * SHARE_AT_LEAST {
            assert!(!breaker.failed());
        }
        tokio::time::advance(GRACE).await;
        assert!(breaker.failed());
    }

    #[tokio::test(start_paused = true)]
    async fn half_of_the_calls_of_a_second_failing_trips_it() {
        let breaker = passing();
        let fails_of_each_two = || {
            breaker.succeeded();
            breaker.failed()
        };
        assert!(!(0..SHARE_AT_LEAST).any(|_| fails_of_each_two()));
        tokio::time::advance(GRACE).await;
        assert!(fails_of_each_two());
    }

    #[tokio::test(start_paused = true)]
    async fn failures_of_another_second_do_not_count() {
        let breaker = passing();
        for _ in 0..(SHARE_AT_LEAST * 10) {
            breaker.succeeded();
            assert!(!breaker.failed());
            tokio::time::advance(Duration::from_millis(200)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_trip_is_told() {
        let breaker = std::sync::Arc::new(passing());
        let waiting = tokio::spawn({
            let breaker = breaker.clone();
            async move { breaker.until_tripped().await }
        });
        tokio::task::yield_now().await;
        assert!(breaker.trip());
        assert!(!breaker.trip());
        waiting.await.unwrap();
    }
}
