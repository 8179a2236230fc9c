//! A panic is a mistake of sluice. It ends the work that it happened in, and nothing else.
//!
//! Every panic of the process is counted, and told with its place. What it says for itself may hold values of a request, and is
//! told only where it is a text of the source. What follows from a panic is said by whoever [`caught`] it: a call is answered
//! by the failure policy, a task begins [`again`].

#[cfg(test)]
pub mod tests;

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    future::Future,
    io::Write as _,
    panic::{self, AssertUnwindSafe, PanicHookInfo},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::FutureExt as _;
use tracing::error;

/// Lines about panics within [`A_MINUTE`]; a panic that comes with every request would fill the log.
const LINES_MAX: u32 = 5;
const A_MINUTE: Duration = Duration::from_secs(60);
/// Before work that has panicked begins again.
const PAUSE: Duration = Duration::from_secs(1);

static SEEN: AtomicU64 = AtomicU64::new(0);
static TOLD: Mutex<Told> = Mutex::new(Told { since: None, lines: 0, untold: 0 });

/// The work has panicked. There is nothing more to know: the place is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panicked;

/// Work that may panic without taking its surroundings with it.
// Not `async`: such a function would hold its argument twice, and calls go through several of these.
pub fn caught<T>(work: impl Future<Output = T>) -> impl Future<Output = Result<T, Panicked>> {
    AssertUnwindSafe(work).catch_unwind().map(|ended| ended.map_err(|_| Panicked))
}

/// The same where nothing is waited for.
pub fn caught_now<T>(work: impl FnOnce() -> T) -> Result<T, Panicked> {
    panic::catch_unwind(AssertUnwindSafe(work)).map_err(|_| Panicked)
}

/// Work that nobody else would take up: begins again whenever it has panicked, until it ends by itself.
pub async fn again<F: Future<Output = ()>>(mut begin: impl FnMut() -> F) {
    while caught(begin()).await.is_err() {
        tokio::time::sleep(PAUSE).await;
    }
}

/// How many panics there were in this process since [`install`].
#[must_use]
pub fn seen() -> u64 {
    SEEN.load(Ordering::Relaxed)
}

/// Tells of panics in the log, instead of on standard error in lines of their own.
pub fn install() {
    panic::set_hook(Box::new(|panic| {
        SEEN.fetch_add(1, Ordering::Relaxed);
        let told = TOLD.lock().unwrap_or_else(PoisonError::into_inner).next(Instant::now());
        if let Some(untold) = told {
            tell(panic, untold);
        }
    }));
}

fn tell(panic: &PanicHookInfo<'_>, untold: u64) {
    let place = panic.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
    let said = panic.payload().downcast_ref::<&'static str>().copied().unwrap_or_default();
    // Only where RUST_BACKTRACE asks for it.
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
    if tracing::dispatcher::has_been_set() {
        error!(
            place,
            said,
            untold,
            backtrace,
            "a panic, which is a mistake of sluice: what it was doing is given up, all else goes on; please report it"
        );
    } else {
        // Who has closed standard error does not want to know, and a panic in here would end the process.
        let _ =
            writeln!(std::io::stderr(), "sluice: a panic at {place}, which is a mistake of sluice: please report it");
    }
}

/// What the log has been told within the last minute.
struct Told {
    since: Option<Instant>,
    lines: u32,
    untold: u64,
}

impl Told {
    /// Whether this panic is told, and if so, how many before it were not.
    fn next(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now.duration_since(since) >= A_MINUTE) {
            (self.since, self.lines) = (Some(now), 0);
        }
        if self.lines >= LINES_MAX {
            self.untold += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.untold))
    }
}
