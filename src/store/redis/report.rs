//! What the log says about a node: a line when it falls sick, a line when it is well, a summary now and then, and never more
//! than a few lines a minute, whatever happens in between.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;
use tracing::{error, info};

/// How often lasting trouble is told again.
const REMIND: Duration = Duration::from_secs(30);
/// How soon a new reason for the same trouble is told.
const NEWS: Duration = Duration::from_secs(5);
/// Lines about failures within [`A_MINUTE`]; what happens beyond them is in the next summary.
const LINES_MAX: u32 = 4;
const A_MINUTE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Report {
    node: String,
    /// Requests that got no decision since the last line.
    unanswered: AtomicU64,
    told: Mutex<Told>,
}

#[derive(Debug)]
struct Told {
    /// At first, as the breaker is.
    sick: bool,
    /// What the log says last.
    said_well: bool,
    reason: String,
    at: Option<Instant>,
    lines: u32,
    counting_since: Instant,
}

impl Told {
    /// Whether one more line may be written now.
    fn may_tell(&mut self, now: Instant) -> bool {
        if now.duration_since(self.counting_since) >= A_MINUTE {
            (self.counting_since, self.lines) = (now, 0);
        }
        self.lines += u32::from(self.lines <= LINES_MAX);
        self.lines <= LINES_MAX
    }
}

impl Report {
    #[must_use]
    pub fn new(node: String) -> Self {
        let told = Told {
            sick: true,
            said_well: false,
            reason: String::new(),
            at: None,
            lines: 0,
            counting_since: Instant::now(),
        };
        Self { node, unanswered: AtomicU64::new(0), told: Mutex::new(told) }
    }

    /// A request got no decision.
    pub fn unanswered(&self) {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
    }

    /// A call failed, or a dial. Says so if it is news, or has not been said for a while.
    pub fn fails(&self, reason: &str, advice: Option<&'static str>) {
        self.tell_failure(reason, advice, false);
    }

    /// The node is not asked any more.
    pub fn is_sick(&self, reason: &str, advice: Option<&'static str>) {
        self.tell_failure(reason, advice, true);
    }

    fn tell_failure(&self, reason: &str, advice: Option<&'static str>, falls_sick: bool) {
        let now = Instant::now();
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let silent_for = told.at.map_or(Duration::MAX, |at| now.duration_since(at));
        let is_transition = falls_sick && !told.sick;
        let is_news = told.reason != reason && silent_for >= NEWS;
        told.sick |= falls_sick;
        if !(is_transition || is_news || silent_for >= REMIND) || !told.may_tell(now) {
            return;
        }
        (told.at, told.reason, told.said_well) = (Some(now), reason.to_owned(), false);
        let sick = told.sick;
        drop(told);
        let unanswered = self.unanswered.swap(0, Ordering::Relaxed);
        let policy = if sick { "; the failure policy answers until it is well" } else { "" };
        let advice = advice.map_or_else(String::new, |advice| format!("; {advice}"));
        error!(node = %self.node, unanswered, "the store fails: {reason}{advice}{policy}");
    }

    /// Whether the last that was told is that it fails.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).at.is_some()
    }

    /// The node is asked again. Said as often as the opposite was.
    pub fn is_well(&self) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        (told.sick, told.at) = (false, None);
        let said = std::mem::replace(&mut told.said_well, true);
        drop(told);
        if !said {
            let unanswered = self.unanswered.swap(0, Ordering::Relaxed);
            info!(node = %self.node, unanswered, "the store is well");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many lines a fault of a minute makes, that does this every 100 ms.
    fn lines(report: &Report) -> u32 {
        report.told.lock().unwrap().lines.min(LINES_MAX)
    }

    #[tokio::test(start_paused = true)]
    async fn lasting_trouble_is_told_once_and_then_twice_a_minute() {
        let report = Report::new("node".to_owned());
        assert!(!report.has_failed(), "nothing is known yet");
        report.is_sick("refused", None);
        assert!(report.has_failed());
        for _ in 0..590 {
            tokio::time::advance(Duration::from_millis(100)).await;
            report.fails("refused", None);
        }
        assert_eq!(lines(&report), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_flaps_does_not_fill_the_log() {
        let report = Report::new("node".to_owned());
        for turn in 0..590 {
            tokio::time::advance(Duration::from_millis(100)).await;
            report.is_sick(&format!("reason {turn}"), None);
            report.is_well();
        }
        assert_eq!(lines(&report), LINES_MAX);
        tokio::time::advance(A_MINUTE).await;
        report.is_sick("again", None);
        assert_eq!(lines(&report), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn another_reason_is_news_after_a_few_seconds() {
        let report = Report::new("node".to_owned());
        report.is_sick("refused", None);
        report.fails("wrong password", None);
        assert_eq!(lines(&report), 1);
        tokio::time::advance(NEWS).await;
        report.fails("wrong password", None);
        assert_eq!(lines(&report), 2);
    }
}
