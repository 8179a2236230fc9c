//! The clock of an open loop: says when each call is due, whatever became of those before.
//!
//! A thread of its own, because a runtime's timer counts in milliseconds, and the sleep of a thread in some fifty microseconds.

use std::{
    thread,
    time::{Duration, Instant},
};

use tokio::sync::mpsc;

use super::{Load, Shape, Span, Until, drive::Driver};

pub struct Pacer {
    /// One for each thread.
    threads: Vec<mpsc::UnboundedSender<Instant>>,
    rate: f64,
    span: Span,
    calls_max: u64,
}

impl Pacer {
    /// None for a closed loop.
    pub fn of(load: &Load, drivers: &mut [Driver], span: Span) -> Option<Self> {
        let Shape::Open { rate } = load.shape else { return None };
        let calls_max = match load.until {
            Until::Sent(calls) => calls,
            Until::Elapsed(_) => u64::MAX,
        };
        Some(Self { threads: drivers.iter_mut().map(Driver::paced).collect(), rate, span, calls_max })
    }

    pub fn run(self) {
        let began = Instant::now();
        for number in 0..self.calls_max {
            #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^53 calls")]
            let due = began + Duration::from_secs_f64(number as f64 / self.rate);
            if self.span.ends_at.is_some_and(|end| due >= end) {
                return;
            }
            let wait = due.saturating_duration_since(Instant::now());
            if !wait.is_zero() {
                thread::sleep(wait);
            }
            #[expect(clippy::cast_possible_truncation, reason = "only the remainder is wanted")]
            let thread = &self.threads[number as usize % self.threads.len()];
            if thread.send(due).is_err() {
                return;
            }
        }
    }
}
