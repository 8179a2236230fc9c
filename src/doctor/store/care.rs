//! How a node is set up: what it does when its memory is full, what it remembers across a restart, how it guards against a split
//! brain. Needs `INFO` and `CONFIG GET`, which the service itself does not: where they are not granted, that is said and is no fault.

use std::collections::HashMap;

use redis::cmd;

use super::reach::{Connection, ask, ask_all};
use crate::{doctor::finding::Finding, store::redis::fault::Fault};

const OPTIONS: [&str; 7] = [
    "maxmemory",
    "maxmemory-policy",
    "save",
    "appendonly",
    "appendfsync",
    "min-replicas-to-write",
    "cluster-require-full-coverage",
];
/// Of `maxmemory`, from which on it is nearly full.
const NEARLY_FULL_PERCENT: u64 = 90;

/// What the node says of itself, as far as it may.
#[derive(Debug, Default)]
pub struct Facts {
    info: HashMap<String, String>,
    config: HashMap<String, String>,
    hides_info: bool,
    hides_config: bool,
}

/// What could not be looked at, and what would have to be granted.
pub type Unseen = (&'static str, &'static str);

impl Facts {
    pub async fn ask(connection: &mut Connection) -> Result<Self, Fault> {
        let mut facts = Self::default();
        match ask(connection, &cmd("INFO")).await {
            Ok(reply) => {
                let text: String = redis::from_redis_value(reply).unwrap_or_default();
                let pairs = text.lines().filter_map(|line| line.trim_end().split_once(':'));
                facts.info = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            }
            Err(fault) => facts.hides_info = is_refusal(fault)?,
        }
        let get = |option: &str| {
            let mut get = cmd("CONFIG");
            get.arg("GET").arg(option);
            get
        };
        let gets: Vec<_> = OPTIONS.iter().map(|option| get(option)).collect();
        for reply in ask_all(connection, gets.iter()).await {
            match reply {
                Ok(reply) => facts.config.extend(redis::from_redis_value::<HashMap<_, _>>(reply).unwrap_or_default()),
                Err(fault) => facts.hides_config = is_refusal(fault)?,
            }
        }
        Ok(facts)
    }

    /// What one of the two commands says is not asked of the other.
    pub fn unseen(&self) -> Option<Unseen> {
        match (self.hides_info, self.hides_config) {
            (false, false) => None,
            (true, true) => Some(("eviction, persistence and replication", "+info +config|get")),
            (true, false) => Some(("memory in use, the last save and replication", "+info")),
            (false, true) => Some(("save, appendfsync and min-replicas-to-write", "+config|get")),
        }
    }

    fn text(&self, option: &str, field: &str) -> Option<&str> {
        self.config.get(option).or_else(|| self.info.get(field)).map(String::as_str)
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.info.get(name).map(String::as_str)
    }

    fn number(&self, name: &str) -> u64 {
        self.field(name).and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    pub fn judge(&self, target: &str) -> Vec<Finding> {
        [self.eviction(target), self.persistence(target), self.replication(target), self.coverage(target)]
            .into_iter()
            .flatten()
            .collect()
    }

    fn eviction(&self, target: &str) -> Option<Finding> {
        let policy = self.text("maxmemory-policy", "maxmemory_policy")?;
        let max: u64 = self.text("maxmemory", "maxmemory")?.parse().ok()?;
        let (used, evicted) = (self.number("used_memory"), self.number("evicted_keys"));
        let full = used.saturating_mul(100).checked_div(max).unwrap_or(0);
        let state = if max > 0 {
            format!("maxmemory-policy {policy}, {full} % of {} used", bytes(max))
        } else {
            format!("maxmemory-policy {policy}, no maxmemory")
        };
        let forgotten = "evicted counters are forgotten, so that their callers begin anew";
        Some(if max > 0 && policy.ends_with("-random") {
            let what =
                "counters are forgotten at random, also those that refuse: set volatile-ttl, or noeviction with room";
            Finding::warn("eviction", &target, format!("{state}: {what}"))
        } else if max > 0 && full >= NEARLY_FULL_PERCENT && policy == "noeviction" {
            let what = "full, it refuses every write: give it more memory, or a policy that evicts";
            Finding::warn("eviction", &target, format!("{state}: {what}"))
        } else if policy != "noeviction" && evicted > 0 {
            let what = format!("{evicted} keys evicted so far, and {forgotten}: give it more memory");
            Finding::warn("eviction", &target, format!("{state}: {what}"))
        } else if policy != "noeviction" && max > 0 && full >= NEARLY_FULL_PERCENT {
            Finding::warn("eviction", &target, format!("{state}: soon {forgotten}: give it more memory"))
        } else {
            Finding::ok("eviction", &target, state)
        })
    }

    fn persistence(&self, target: &str) -> Option<Finding> {
        if let (Some("err"), _) | (_, Some("err")) =
            (self.field("rdb_last_bgsave_status"), self.field("aof_last_write_status"))
        {
            let what = "its last save failed, after which it may refuse writes (MISCONF): see its log, and its disk";
            return Some(Finding::warn("persistence", &target, what));
        }
        let appends = matches!(self.text("appendonly", "aof_enabled")?, "yes" | "1");
        let always = appends && self.config.get("appendfsync").is_some_and(|when| when == "always");
        if always {
            let what = "appendfsync always makes every decision wait for the disk: everysec is enough";
            return Some(Finding::warn("persistence", &target, what));
        }
        let saves = self.config.get("save").map(|save| !save.is_empty());
        Some(Finding::ok(
            "persistence",
            &target,
            match (appends, saves) {
                (true, _) => "appendonly yes: a restart keeps the counters",
                (false, Some(true)) => "it saves snapshots: a restart forgets what came after the last",
                (false, Some(false)) => {
                    "none: a restart forgets every counter, which gives each caller one window or burst anew"
                }
                (false, None) => "appendonly no: a restart forgets what is in no snapshot",
            },
        ))
    }

    fn replication(&self, target: &str) -> Option<Finding> {
        if self.field("role")? == "slave" {
            let link = self.field("master_link_status").unwrap_or("unknown");
            return Some(if link == "up" {
                Finding::ok("replication", &target, "it follows its primary")
            } else {
                let what = "after a failover to it counters would be old: see its log";
                Finding::warn("replication", &target, format!("its link to the primary is {link}: {what}"))
            });
        }
        let (replicas, wanted) = (self.number("connected_slaves"), self.config.get("min-replicas-to-write"));
        Some(match wanted.map(String::as_str) {
            _ if replicas == 0 => Finding::ok("replication", &target, "no replica follows it"),
            Some("0") => {
                let what = "a primary that is cut off goes on writing what a failover forgets: set it to 1";
                Finding::warn("replication", &target, format!("{replicas} replicas, min-replicas-to-write 0: {what}"))
            }
            Some(wanted) => {
                Finding::ok("replication", &target, format!("{replicas} replicas, min-replicas-to-write {wanted}"))
            }
            None => Finding::ok("replication", &target, format!("{replicas} replicas")),
        })
    }

    fn coverage(&self, target: &str) -> Option<Finding> {
        if self.field("cluster_enabled")? != "1" {
            return None;
        }
        Some(match self.config.get("cluster-require-full-coverage")?.as_str() {
            "yes" => {
                let what = "the loss of one shard stops all of them: set it to no";
                Finding::warn("coverage", &target, format!("cluster-require-full-coverage yes: {what}"))
            }
            other => Finding::ok("coverage", &target, format!("cluster-require-full-coverage {other}")),
        })
    }
}

/// A refusal is an answer; a connection that broke is none.
fn is_refusal(fault: Fault) -> Result<bool, Fault> {
    if matches!(fault, Fault::Timeout | Fault::Broken(_)) { Err(fault) } else { Ok(true) }
}

/// Of the nodes that would not say something: one finding for all that is the same. It is no warning, because the service needs none
/// of it.
pub fn hidden<'n>(nodes: impl Iterator<Item = (&'n str, Unseen)>) -> Vec<Finding> {
    let mut groups: Vec<(Unseen, Vec<&str>)> = Vec::new();
    for (target, unseen) in nodes {
        match groups.iter_mut().find(|(known, _)| *known == unseen) {
            Some((_, targets)) => targets.push(target),
            None => groups.push((unseen, vec![target])),
        }
    }
    let finding = |((what, grants), targets): (Unseen, Vec<&str>)| {
        let message = format!("not looked at, because it takes {grants}: {what}; grant it, or check by hand");
        Finding::ok("setup", &targets.join(", "), message)
    };
    groups.into_iter().map(finding).collect()
}

fn bytes(bytes: u64) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{bytes} bytes") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Verdict;

    fn facts(info: &[(&str, &str)], config: &[(&str, &str)]) -> Facts {
        let map = |pairs: &[(&str, &str)]| pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        Facts { info: map(info), config: map(config), ..Facts::default() }
    }

    #[test]
    fn what_a_full_memory_does_is_judged_by_the_policy() {
        let verdict = |policy: &str, used: &str, evicted: &str| {
            let info = [("maxmemory", "1000"), ("used_memory", used), ("evicted_keys", evicted)];
            facts(&info, &[("maxmemory-policy", policy)]).eviction("a:1").unwrap().verdict
        };
        assert_eq!(verdict("noeviction", "100", "0"), Verdict::Ok);
        assert_eq!(verdict("noeviction", "900", "0"), Verdict::Warn);
        assert_eq!(verdict("allkeys-random", "1", "0"), Verdict::Warn);
        assert_eq!(verdict("volatile-random", "1", "0"), Verdict::Warn);
        assert_eq!(verdict("allkeys-lru", "1", "0"), Verdict::Ok);
        assert_eq!(verdict("allkeys-lru", "1", "7"), Verdict::Warn);
        assert_eq!(verdict("volatile-ttl", "999", "0"), Verdict::Warn);
        let endless = facts(&[("maxmemory", "0")], &[("maxmemory-policy", "allkeys-random")]);
        assert_eq!(endless.eviction("a:1").unwrap().verdict, Verdict::Ok, "nothing is ever evicted");
    }

    #[test]
    fn only_what_was_not_looked_at_is_named_and_together_for_nodes_that_are_alike() {
        let facts = |hides_info, hides_config| Facts { hides_info, hides_config, ..Facts::default() };
        assert_eq!(facts(false, false).unseen(), None);
        let (both, config) = (facts(true, true).unseen().unwrap(), facts(false, true).unseen().unwrap());
        let found = hidden([("a:1", both), ("b:2", config), ("c:3", both)].into_iter());
        let targets: Vec<&str> = found.iter().map(|finding| &*finding.target).collect();
        assert_eq!(targets, ["a:1, c:3", "b:2"]);
        assert!(found[0].message.contains("+info +config|get: eviction, persistence and replication"), "{found:?}");
        assert!(!found[1].message.contains("+info") && !found[1].message.contains("eviction"), "{found:?}");
        assert!(found.iter().all(|finding| finding.verdict == Verdict::Ok), "the service needs none of it");
    }

    #[test]
    fn a_save_that_failed_and_a_disk_that_is_waited_for_are_doubtful() {
        let failed = facts(&[("rdb_last_bgsave_status", "err"), ("aof_enabled", "0")], &[]);
        assert_eq!(failed.persistence("a:1").unwrap().verdict, Verdict::Warn);
        let slow = facts(&[], &[("appendonly", "yes"), ("appendfsync", "always")]);
        assert_eq!(slow.persistence("a:1").unwrap().verdict, Verdict::Warn);
        let none = facts(&[], &[("appendonly", "no"), ("save", "")]);
        assert!(none.persistence("a:1").unwrap().message.contains("forgets every counter"));
    }

    #[test]
    fn nothing_is_said_of_what_is_not_known() {
        assert_eq!(Facts::default().judge("a:1"), []);
    }
}
