//! How long the real script takes, against what it is given.

use std::time::{Duration, Instant};

use super::{
    canary::Canary,
    reach::{Connection, ask},
};
use crate::{
    doctor::finding::{Finding, Verdict},
    store::redis::fault::Fault,
};

const CALLS: usize = 100;
/// A store that is far away is asked less often.
const TAKES_AT_MOST: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    pub calls: usize,
    pub p50: Duration,
    pub p99: Duration,
}

/// One call after the other, as an idle sluice sends them.
pub async fn measure(connection: &mut Connection, canary: &Canary) -> Result<Latency, Fault> {
    let call = canary.evalsha();
    let (began, mut took) = (Instant::now(), Vec::with_capacity(CALLS));
    while took.is_empty() || took.len() < CALLS && began.elapsed() < TAKES_AT_MOST {
        let sent = Instant::now();
        ask(connection, &call).await?;
        took.push(sent.elapsed());
    }
    took.sort_unstable();
    Ok(Latency { calls: took.len(), p50: percentile(&took, 50), p99: percentile(&took, 99) })
}

/// The nearest rank: the smallest of which so many percent are at most as large. Of a hundred, the 99th is not the largest.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

/// Against the store timeout, by the name of its setting.
pub fn judge(latency: Latency, timeout: Duration, name: &str, target: &str) -> Finding {
    let Latency { calls, p50, p99 } = latency;
    let figures = format!("p50 {}, p99 {} of {calls} calls", ms(p50), ms(p99));
    let (verdict, message) = if p50 > timeout {
        let what = "most calls are answered by on_store_failure: bring the store nearer, or raise it";
        (Verdict::Fail, format!("{figures} is beyond {name}, which is {timeout:?}: {what}"))
    } else if p99 > timeout {
        let what = "some calls are answered by on_store_failure: see what makes the store slow, or raise it";
        (Verdict::Warn, format!("{figures} is not always within {name}, which is {timeout:?}: {what}"))
    } else {
        (Verdict::Ok, format!("{figures}, within {name}, which is {timeout:?}"))
    };
    Finding::new(verdict, "latency", &target, message)
}

/// As people read it.
pub fn ms(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slow_call_of_a_hundred_is_not_the_99th_percentile() {
        let sorted: Vec<Duration> = (1..=100).map(Duration::from_millis).collect();
        assert_eq!(percentile(&sorted, 50), Duration::from_millis(50));
        assert_eq!(percentile(&sorted, 99), Duration::from_millis(99));
        assert_eq!(percentile(&sorted[..1], 50), Duration::from_millis(1));
        assert_eq!(percentile(&sorted[..10], 99), Duration::from_millis(10));
    }

    #[test]
    fn what_is_beyond_the_timeout_fails_and_what_is_so_at_times_is_doubtful() {
        let ms = Duration::from_millis;
        let verdict = |p50, p99| {
            let latency = Latency { calls: 100, p50: ms(p50), p99: ms(p99) };
            judge(latency, ms(10), "REDIS_TIMEOUT", "a:1").verdict
        };
        assert_eq!(verdict(1, 10), Verdict::Ok);
        assert_eq!(verdict(1, 11), Verdict::Warn);
        assert_eq!(verdict(11, 12), Verdict::Fail);
    }
}
