//! The faults. What rows share: sidecars, rules, and what is asked of every history.

mod absent;
mod cardinality;
mod clock;
mod cluster;
mod config;
mod exact;
mod floods;
mod hostile;
mod outage;
mod reload;
mod restarts;
mod slow;
mod soak;
mod switched;

use std::time::{Duration, Instant};

use crate::{
    harness::{
        Server as Sluice,
        grpc::{Descriptor, Request, descriptor},
        load::{Call, Outcome, Style},
    },
    oracle::History,
    servers::Server,
    sheet::{Sheet, shown},
};

pub struct Row {
    pub name: &'static str,
    pub fault: &'static str,
    pub run: fn(&Sheet),
}

pub const ROWS: &[Row] = &[
    Row {
        name: "exact",
        fault: "none: 4 sidecars x 8 clients on one bucket; Redis, Valkey, Cluster, memory",
        run: exact::one_bucket,
    },
    Row {
        name: "three-rules",
        fault: "a request with three rules, one of them exhausted, under load",
        run: exact::three_rules,
    },
    Row { name: "killed", fault: "kill -9 of the store, 10 s, back empty; each policy", run: outage::killed },
    Row { name: "black-hole", fault: "nothing arrives on either side, 30 s; each policy", run: outage::black_hole },
    Row { name: "lost-packets", fault: "every packet lost both ways, 30 s; each policy", run: outage::lost_packets },
    Row {
        name: "stopped",
        fault: "kill -STOP of the store: 5 s with each policy, 300 s at 1k/s with 256 MB of memory",
        run: outage::stopped,
    },
    Row {
        name: "sentinel",
        fault: "the primary is killed, sentinels promote its replica",
        run: switched::by_sentinels,
    },
    Row {
        name: "readonly",
        fault: "FAILOVER TO and REPLICAOF behind one address: READONLY on open sockets",
        run: switched::behind_one_address,
    },
    Row { name: "flushed", fault: "SCRIPT FLUSH every 100 ms under load", run: switched::flushed },
    Row { name: "shard", fault: "one primary of a cluster is killed", run: cluster::primary_killed },
    Row { name: "slot", fault: "a hot slot of a cluster moves, and stays half moved", run: cluster::slot_moved },
    Row { name: "absent", fault: "started with the store down, DNS failing, wrong port", run: absent::at_the_start },
    Row { name: "slow", fault: "every reply of the store 2, 8, 15, 50, 200 ms late", run: slow::late_replies },
    Row {
        name: "clock",
        fault: "the store's clock jumps an hour either way, those of the sidecars are an hour apart",
        run: clock::jumps,
    },
    Row {
        name: "hostile",
        fault: "hostile keys: separators, braces, NUL, newlines, 1 MB, invalid UTF-8; gRPC and /json, memory and Redis",
        run: hostile::keys,
    },
    Row {
        name: "cardinality",
        fault: "5M distinct values on an embedded store with room for 1M",
        run: cardinality::bomb,
    },
    Row {
        name: "floods",
        fault: "HTTP/2 floods, huge headers, 10k idle connections, stalled TLS handshakes, compressed bombs",
        run: floods::strangers,
    },
    Row {
        name: "config",
        fault: "rules that hurt: aliases, depth, 50 MB, 300,000 of them; and 100,000 good ones",
        run: config::bombs,
    },
    Row {
        name: "reload",
        fault: "rules swapped by symlink, written in place, half written and wrong, ten times a second, under load",
        run: reload::under_load,
    },
    Row {
        name: "restarts",
        fault: "two sluices restarted in turn (SIGTERM) behind Envoy, at 1k/s",
        run: restarts::rolling,
    },
    Row {
        name: "soak",
        fault: "ten minutes of keys, connections and rules that come and go, and of a store that fails at random",
        run: soak::everything,
    },
];

/// A token bucket: what it holds, and what it is given each second.
#[derive(Clone, Copy)]
struct Bucket {
    capacity: f64,
    per_second: f64,
}

impl Bucket {
    /// As the value of `rate_limit`, with more keys.
    fn rule(self, more: &str) -> String {
        let Self { capacity, per_second } = self;
        format!("{{algorithm: token_bucket, unit: second, requests_per_unit: {per_second}, burst: {capacity}{more}}}")
    }

    /// Never more than it had, with an allowance where a fault gives one.
    fn never_too_many(self, sheet: &Sheet, fault: &str, figure: &str, history: &History, allowance: f64) {
        let (burst, most) = (history.burst(self.per_second), self.capacity + allowance + 1.0);
        let also = if allowance > 0.0 { format!(" + {allowance}") } else { String::new() };
        let bound = format!("<= {}{also} + 1", self.capacity);
        sheet.judge(fault, figure, &format!("{burst:.1}"), &bound, burst <= most && history.admitted() > 0);
    }
}

/// As fast as they are answered.
const SATURATED: Style = Style { callers_of_each: 8, pause: None, deadline: None };

/// A sidecar with these settings and rules. It may be too early for its store to answer.
#[track_caller]
fn sluice(rules: &str, env: &[(&str, &str)]) -> Sluice {
    let builder = Sluice::builder().file("rules.yaml", rules);
    env.iter().fold(builder, |builder, (name, value)| builder.env(name, value)).start()
}

/// One that uses this server, and whose store answers.
#[track_caller]
fn sidecar(server: &Server, rules: &str, env: &[(&str, &str)]) -> Sluice {
    let url = server.url_of_sluice();
    let env: Vec<(&str, &str)> = [("REDIS_URL", url.as_str())].into_iter().chain(env.iter().copied()).collect();
    let sluice = sluice(rules, &env);
    sluice.wait_for_store();
    sluice
}

/// Several descriptors of one entry.
fn ask_all(domain: &str, entries: &[(&str, &str)]) -> Request {
    let descriptors: Vec<Descriptor> = entries.iter().map(|entry| descriptor(&[*entry])).collect();
    Request { domain: domain.to_owned(), descriptors, hits_addend: 0 }
}

/// Calls that ended in another way than these.
fn other_than(calls: &[Call], wanted: &[Outcome]) -> usize {
    let others: Vec<&Call> = calls.iter().filter(|call| !wanted.contains(&call.outcome)).collect();
    for call in others.iter().take(3) {
        eprintln!("    not wanted: {call:?}");
    }
    others.len()
}

/// The store was not asked, or did not answer.
fn is_by_policy(call: &Call) -> bool {
    matches!(call.outcome, Outcome::DegradedOk | Outcome::DegradedOver | Outcome::Unavailable)
}

/// The store decides again soon after it could, and from then on nearly always: a call here and there is late on any machine.
fn is_back(sheet: &Sheet, fault: &str, calls: &[Call], well: Instant, bound: Duration) {
    let after: Vec<&Call> = calls.iter().filter(|call| call.sent > well).collect();
    let first = after.iter().filter(|call| !is_by_policy(call)).map(|call| call.answered).min();
    sheet.at_most(fault, "decided by the store again after", first.map_or(Duration::MAX, |first| first - well), bound);
    let later: Vec<&Call> = after.into_iter().filter(|call| call.sent > well + bound).collect();
    let strays = later.iter().filter(|call| is_by_policy(call)).count();
    let figure = format!("by policy of {} calls from {} on", later.len(), shown(bound));
    sheet.share_within(fault, &figure, strays, later.len(), 5);
}
