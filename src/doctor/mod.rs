//! `sluice doctor`: looks at a deployment with the settings that `serve` would have, and says what hurts or is going to.
//!
//! ```text
//! settings -> { rules, stores, certificates, listeners, this host } side by side -> findings -> a report
//! ```
//!
//! Every look is made the way that the service goes: the same loader, the same dialler, the same script. None of them waits for
//! long, none charges a counter of a caller, and what is written for a look has a time to live. Knows nothing of
//! arguments and exit codes.

mod certificates;
mod envoy;
mod finding;
mod host;
mod instance;
mod listeners;
mod rules;
mod store;

use std::{future::Future, time::Duration};

use tokio::time::timeout;

pub use self::finding::{Finding, Report, Verdict};
use crate::{
    config::settings::{Settings, Warning},
    store::redis::settings::RedisSettings,
};

/// For all that is said of one subject, other than a store. Each look has a limit of its own; this is in case they add up.
const SUBJECT_MAX: Duration = Duration::from_secs(15);

/// Looks at everything. Takes about as long as the slowest answer.
pub async fn examine(settings: &Settings, warnings: &[Warning]) -> Report {
    let (rules, store, per_second, certificates, listeners) = tokio::join!(
        rules::examine(settings),
        examine_stores(settings, false),
        examine_stores(settings, true),
        in_time("tls", certificates::examine(settings)),
        in_time("listen", listeners::examine(settings)),
    );
    let mut findings: Vec<Finding> =
        warnings.iter().map(|warning| Finding::warn("settings", &"", warning.clone())).collect();
    if findings.is_empty() {
        findings.push(Finding::ok("settings", &"", "all are understood"));
    }
    findings.extend(rules.findings);
    findings.extend(store.findings);
    findings.extend(per_second.findings);
    let slowest = store.p99.max(per_second.p99);
    findings.push(envoy::advise(settings, &rules.policies, slowest));
    findings.extend(certificates);
    findings.extend(listeners);
    findings.extend(host::examine(settings, &rules.policies));
    Report { findings }
}

async fn examine_stores(settings: &Settings, per_second: bool) -> store::Examined {
    match (&settings.store.redis, per_second) {
        (Some((main, _)), false) => examine_store(main, &store::MAIN).await,
        (Some((_, Some(own))), true) => examine_store(own, &store::PER_SECOND).await,
        _ => store::Examined::default(),
    }
}

async fn examine_store(settings: &RedisSettings, names: &'static store::Names) -> store::Examined {
    let limit = store::time_for(settings);
    let late = || store::Examined { findings: vec![too_late("reach", limit)], p99: None };
    timeout(limit, store::examine(settings, names)).await.unwrap_or_else(|_| late())
}

async fn in_time(check: &'static str, looking: impl Future<Output = Vec<Finding>>) -> Vec<Finding> {
    timeout(SUBJECT_MAX, looking).await.unwrap_or_else(|_| vec![too_late(check, SUBJECT_MAX)])
}

fn too_late(check: &'static str, limit: Duration) -> Finding {
    Finding::fail(check, &"", format!("no result within {limit:?}: something here is very slow"))
}
