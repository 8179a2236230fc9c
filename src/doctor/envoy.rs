//! What to write into Envoy's filter, given what the store takes. Envoy itself is not asked.

use std::time::Duration;

use super::finding::Finding;
use crate::{config::settings::Settings, engine::rule::OnStoreFailure, store::redis::share_of};

/// The filter's own, where it is told none.
const DEFAULT: Duration = Duration::from_millis(20);
/// Costs nothing unless sluice itself hangs.
const GOOD: Duration = Duration::from_millis(250);

/// `p99` is that of the slowest primary.
pub fn advise(settings: &Settings, policies: &[OnStoreFailure], p99: Option<Duration>) -> Finding {
    let (target, who) = ("rate_limit filter", who_decides(settings, policies));
    let Some((main, per_second)) = &settings.store.redis else {
        let message = format!("`timeout: {}` is good; `failure_mode_deny` is for when no sluice answers", yaml(GOOD));
        return Finding::ok("envoy", &target, message);
    };
    let store = per_second.as_ref().map_or(main.timeout, |per_second| per_second.timeout.max(main.timeout));
    let timeout = longest_for(store);
    let advice = format!("set `timeout: {}`, so that the store gets its {store:?}; {who}", yaml(timeout));
    let given = share_of(DEFAULT);
    match p99 {
        Some(p99) if p99 > given => {
            let late = format!("of Envoy's default of {DEFAULT:?} the store gets {given:?}, and its p99 is {p99:.1?}");
            Finding::warn("envoy", &target, format!("{late}: {advice}"))
        }
        _ => Finding::ok("envoy", &target, advice),
    }
}

/// The shortest deadline, in whole milliseconds, that leaves the store its time; or the usual one if that is longer.
fn longest_for(store: Duration) -> Duration {
    let mut timeout = GOOD.max(store + Duration::from_millis(3));
    if share_of(timeout) < store {
        timeout = Duration::from_millis(u64::try_from((store * 10 / 9).as_millis()).unwrap_or(u64::MAX) + 1);
    }
    timeout
}

fn who_decides(settings: &Settings, policies: &[OnStoreFailure]) -> String {
    let default = settings.store.on_store_failure;
    if default == OnStoreFailure::Error || policies.contains(&OnStoreFailure::Error) {
        return "`failure_mode_deny` decides when no sluice answers, and also while the store is down for rules that say \
                on_store_failure: error"
            .to_owned();
    }
    let name = default.name();
    format!(
        "`failure_mode_deny` decides only when no sluice answers, on_store_failure (here {name}) while the store is down"
    )
}

/// As Envoy reads a duration.
fn yaml(duration: Duration) -> String {
    format!("{}s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Verdict;

    fn advice(pairs: &[(&str, &str)], p99: Option<Duration>) -> Finding {
        let value = |name: &str| pairs.iter().find(|(env, _)| *env == name).map(|(_, value)| (*value).to_owned());
        let (settings, _) = Settings::read(value).unwrap();
        advise(&settings, &[], p99)
    }

    #[test]
    fn the_timeout_leaves_the_store_its_own() {
        for store_ms in [1, 10, 17, 200, 225, 226, 300, 2_000, 60_000] {
            let store = Duration::from_millis(store_ms);
            let timeout = longest_for(store);
            assert!(share_of(timeout) >= store && timeout >= GOOD, "{store:?} {timeout:?}");
            assert_eq!(timeout.subsec_nanos() % 1_000_000, 0);
        }
        assert_eq!(longest_for(Duration::from_millis(10)), GOOD);
    }

    #[test]
    fn a_store_that_is_slower_than_the_default_allows_is_told() {
        let redis = [("REDIS_URL", "a:1"), ("REDIS_TIMEOUT", "60ms")];
        assert_eq!(advice(&redis, Some(Duration::from_millis(5))).verdict, Verdict::Ok);
        let slow = advice(&redis, Some(Duration::from_millis(30)));
        assert_eq!(slow.verdict, Verdict::Warn);
        assert!(slow.message.contains("20ms") && slow.message.contains("timeout: 0.25s"), "{}", slow.message);
    }

    #[test]
    fn who_decides_while_the_store_is_down_follows_from_the_policy() {
        let error = advice(&[("REDIS_URL", "a:1"), ("ON_STORE_FAILURE", "error")], None).message;
        assert!(error.contains("also while the store is down"), "{error}");
        let deny = advice(&[("REDIS_URL", "a:1"), ("ON_STORE_FAILURE", "deny")], None).message;
        assert!(deny.contains("here deny"), "{deny}");
    }
}
