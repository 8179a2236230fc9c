//! The clocks of nodes, against this host's and against each other. Decisions are made by the clock of the node that has the
//! counter; where nodes disagree, a failover makes counters jump, and where a node is wrong, windows begin at the wrong time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::reach::{Connection, ask};
use crate::{
    doctor::finding::{Finding, Verdict},
    store::redis::fault::Fault,
};

const LOOKS: usize = 5;
const DOUBTFUL: Duration = Duration::from_secs(1);
const WRONG: Duration = Duration::from_secs(60);

/// How a node's clock stands to this host's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    pub target: String,
    /// The node's time less ours.
    offset_us: i128,
    /// Half of the round trip: it cannot be known better.
    give_us: u128,
}

/// The look with the shortest way is the most exact.
pub async fn read(connection: &mut Connection, target: &str) -> Result<Option<Reading>, Fault> {
    let mut best: Option<Reading> = None;
    for _ in 0..LOOKS {
        let (began, sent) = (SystemTime::now(), Instant::now());
        let reply = ask(connection, &redis::cmd("TIME")).await?;
        let half = sent.elapsed() / 2;
        let Ok((seconds, us)) = redis::from_redis_value::<(u64, u64)>(reply) else { return Ok(None) };
        let ours = (began + half).duration_since(UNIX_EPOCH).unwrap_or_default();
        let theirs = Duration::from_secs(seconds) + Duration::from_micros(us);
        let reading =
            Reading { target: target.to_owned(), offset_us: signed(theirs) - signed(ours), give_us: half.as_micros() };
        if best.as_ref().is_none_or(|best| reading.give_us < best.give_us) {
            best = Some(reading);
        }
    }
    Ok(best)
}

fn signed(duration: Duration) -> i128 {
    i128::try_from(duration.as_micros()).unwrap_or(i128::MAX)
}

fn verdict(apart_us: u128, give_us: u128) -> Verdict {
    let certain = Duration::from_micros(u64::try_from(apart_us.saturating_sub(give_us)).unwrap_or(u64::MAX));
    match certain {
        certain if certain >= WRONG => Verdict::Fail,
        certain if certain >= DOUBTFUL => Verdict::Warn,
        _ => Verdict::Ok,
    }
}

/// A node against this host.
pub fn judge(reading: &Reading) -> Finding {
    let apart = reading.offset_us.unsigned_abs();
    let verdict = verdict(apart, reading.give_us);
    let side = if reading.offset_us < 0 { "behind" } else { "ahead of" };
    let shown = format!("{} {side} this host", shown(apart));
    let message = match verdict {
        Verdict::Ok => shown,
        _ => format!("its clock is {shown}: let NTP set both, for windows begin and end by the node's clock"),
    };
    Finding::new(verdict, "clock", &reading.target, message)
}

/// Nodes against each other, where there are several.
pub fn compare(label: &str, readings: &[Reading]) -> Option<Finding> {
    let first = readings.iter().min_by_key(|reading| reading.offset_us)?;
    let last = readings.iter().max_by_key(|reading| reading.offset_us).filter(|_| readings.len() > 1)?;
    let apart = (last.offset_us - first.offset_us).unsigned_abs();
    let verdict = verdict(apart, first.give_us + last.give_us);
    let target = format!("{label}all nodes");
    let message = match verdict {
        Verdict::Ok => format!("their clocks agree to {}", shown(apart)),
        _ => format!(
            "the clocks of {} and {} are {} apart: let NTP set them, or a failover makes counters jump by that",
            first.target,
            last.target,
            shown(apart)
        ),
    };
    Some(Finding::new(verdict, "clock", &target, message))
}

fn shown(us: u128) -> String {
    match us {
        0..1_000_000 => format!("{}.{} ms", us / 1_000, us % 1_000 / 100),
        1_000_000..120_000_000 => format!("{}.{} s", us / 1_000_000, us % 1_000_000 / 100_000),
        _ => format!("{} minutes", (us + 30_000_000) / 60_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(target: &str, offset_ms: i128, give_ms: u128) -> Reading {
        Reading { target: target.to_owned(), offset_us: offset_ms * 1_000, give_us: give_ms * 1_000 }
    }

    #[test]
    fn a_clock_is_wrong_by_what_is_certain_and_not_by_the_length_of_the_way() {
        assert_eq!(judge(&reading("a", 1_500, 600)).verdict, Verdict::Ok);
        assert_eq!(judge(&reading("a", -1_500, 100)).verdict, Verdict::Warn);
        let wrong = judge(&reading("a", -300_000, 1));
        assert_eq!(wrong.verdict, Verdict::Fail);
        assert!(wrong.message.contains("5 minutes behind"), "{}", wrong.message);
    }

    #[test]
    fn the_two_that_differ_most_are_named() {
        let found = compare("", &[reading("a", 0, 1), reading("b", 2_000, 1), reading("c", -1_000, 1)]).unwrap();
        assert_eq!(found.verdict, Verdict::Warn);
        assert!(found.message.contains("c and b are 3.0 s apart"), "{}", found.message);
        assert_eq!(compare("", &[reading("a", 0, 1)]), None);
    }
}
