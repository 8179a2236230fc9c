//! The one place where a test pauses: between two looks at a condition that has a deadline.

use std::{
    thread,
    time::{Duration, Instant},
};

pub const DEADLINE: Duration = Duration::from_secs(20);
const BETWEEN_LOOKS: Duration = Duration::from_millis(15);

/// Looks until the condition holds. Panics at the deadline with what was waited for.
#[track_caller]
pub fn wait_until(what: &str, condition: impl FnMut() -> bool) {
    assert!(holds_within(DEADLINE, condition), "waited {DEADLINE:?} in vain until {what}");
}

pub fn holds_within(deadline: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + deadline;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        thread::park_timeout(BETWEEN_LOOKS);
    }
}
