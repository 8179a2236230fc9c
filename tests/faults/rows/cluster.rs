//! A cluster that loses a primary, and one whose slots move while they are in use.

use std::time::Instant;

use super::{Bucket, ask_all, is_back, is_by_policy, other_than, sluice, switched::is_primary};
use crate::{
    harness::{
        Server as Sluice,
        grpc::request,
        load::{Call, Load, Outcome, Style},
        wait_until,
    },
    oracle::History,
    servers::{AUTH, Cluster, REDIS, Server},
    sheet::{Sheet, millis},
    watch::{self, Watch},
};

const BUCKET: Bucket = Bucket { capacity: 100.0, per_second: 100.0 };
/// The others must never notice, not even that the machine is busy.
const PATIENT: (&str, &str) = ("REDIS_TIMEOUT", "30s");
/// As many domains as it takes for one to be on each primary.
const DOMAINS: usize = 12;

fn rules() -> String {
    let domain = |number: usize| {
        let bucket = BUCKET.rule("");
        format!(
            "domain: d{number}\ndescriptors:\n  - {{key: bucket, rate_limit: {bucket}}}\n  - {{key: many, rate_limit: {{unit: year, \
             requests_per_unit: 1000000}}}}\n"
        )
    };
    (0..DOMAINS).map(domain).collect::<Vec<_>>().join("---\n")
}

/// The name of a domain whose counters are on this primary.
fn domain_at(cluster: &Cluster, home: usize) -> String {
    let mut domains = (0..DOMAINS).map(|number| format!("d{number}"));
    domains.find(|domain| cluster.home(&format!("{{{domain}}}")) == home).expect("twelve domains are everywhere")
}

fn start(cluster: &Cluster) -> Sluice {
    let seeds = cluster.seeds();
    let env = [("REDIS_TYPE", "CLUSTER"), ("REDIS_URL", &seeds), ("REDIS_AUTH", AUTH), PATIENT];
    let sluice = sluice(&rules(), &env);
    sluice.wait_for_store();
    sluice
}

pub fn primary_killed(sheet: &Sheet) {
    let fault = "cluster, one of three primaries killed";
    // Short, because all wait for it.
    let mut cluster = Cluster::start_with(REDIS, millis(1_000));
    let sluice = start(&cluster);
    let watch = Watch::begin([&sluice]);
    let style = Style { callers_of_each: 4, pause: Some(millis(20)), deadline: None };
    let loads: Vec<Load> = (0..3)
        .map(|home| {
            let domain = domain_at(&cluster, home);
            Load::start(&[sluice.grpc()], &style, move |_, _| request(&domain, &[("bucket", "one")]))
        })
        .collect();
    sheet.run(&loads[0], sheet.span(3.0, 1.0));
    sheet.step("a primary is killed");
    let killed = Instant::now();
    cluster.servers[0].kill();
    loads[0].wait_for(Outcome::DegradedOk, killed);
    wait_until("its replica takes over", || is_primary(&cluster.servers[3]));
    let writes = Instant::now();
    sheet.step(&format!("its replica takes over after {:.1?}", writes - killed));
    loads[0].wait_for(Outcome::Ok, writes);
    sheet.run(&loads[0], sheet.span(3.0, 1.0));
    let calls: Vec<Vec<Call>> =
        loads.into_iter().enumerate().map(|(shard, load)| sheet.record(load, &format!("shard-{shard}"))).collect();
    let wrong = other_than(&calls[0], &[Outcome::Ok, Outcome::Over, Outcome::DegradedOk]);
    sheet.count(fault, &format!("its shard: of {} calls neither by store nor policy", calls[0].len()), wrong, 0);
    is_back(sheet, fault, &calls[0], writes, millis(1_000));
    for (shard, its) in calls.iter().enumerate() {
        if shard > 0 {
            let figure = format!("shard {shard}: of {} calls not by the store", its.len());
            sheet.count(fault, &figure, other_than(its, &[Outcome::Ok, Outcome::Over]), 0);
        }
        let history = History::of_store(&sheet.recorded(&format!("shard-{shard}")), "bucket=one");
        let lost = if shard == 0 { BUCKET.capacity } else { 0.0 };
        BUCKET.never_too_many(sheet, fault, &format!("shard {shard}: burst"), &history, lost);
    }
    watch.end(sheet, fault);
    watch::clean(sheet, fault, &cluster.servers[1..].iter().collect::<Vec<_>>());
}

/// How the keys end that one request has.
const TOGETHER: [char; 3] = ['a', 'b', 'c'];

/// A slot on its way from one primary to another.
struct Move<'c> {
    slot: String,
    from: &'c Server,
    to: &'c Server,
}

impl<'c> Move<'c> {
    fn begin(cluster: &'c Cluster, slot: u16, from: usize, to: usize) -> Self {
        let (slot, from, to) = (slot.to_string(), &cluster.servers[from], &cluster.servers[to]);
        to.run::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]);
        from.run::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]);
        Self { slot, from, to }
    }

    /// Those that are asked for together come first, so that they move together.
    fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.from.run(&["CLUSTER", "GETKEYSINSLOT", &self.slot, "1000"]);
        keys.sort_by_key(|key| !key.ends_with(TOGETHER));
        keys
    }

    fn migrate(&self, keys: &[&str]) {
        let port = self.to.port().to_string();
        let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        migrate.extend(keys);
        self.from.run::<String>(&migrate);
    }

    fn end(self) {
        for key in std::iter::from_fn(|| Some(self.keys()).filter(|keys| !keys.is_empty())) {
            key.chunks(5).for_each(|keys| self.migrate(&keys.iter().map(String::as_str).collect::<Vec<_>>()));
        }
        let owner = id(self.to);
        for server in [self.to, self.from] {
            server.run::<()>(&["CLUSTER", "SETSLOT", &self.slot, "NODE", &owner]);
        }
    }
}

fn id(server: &Server) -> String {
    server.run(&["CLUSTER", "MYID"])
}

pub fn slot_moved(sheet: &Sheet) {
    let fault = "cluster, a hot slot moved";
    let cluster = Cluster::start(REDIS);
    let sluice = start(&cluster);
    let watch = Watch::begin([&sluice]);
    let (hot, other) = (domain_at(&cluster, 0), domain_at(&cluster, 1));
    let slot: u16 = cluster.servers[0].run(&["CLUSTER", "KEYSLOT", &format!("{{{hot}}}")]);
    let grpc = [sluice.grpc()];
    let pace = |callers_of_each, pause| Style { callers_of_each, pause, deadline: None };
    let domain = hot.clone();
    let one = Load::start(&grpc, &pace(4, None), move |_, _| request(&domain, &[("bucket", "hot")]));
    // Keys that come while the slot moves.
    let domain = hot.clone();
    let fresh = Load::start(&grpc, &pace(2, Some(millis(5))), move |caller, turn| {
        request(&domain, &[("many", &format!("{caller}-{}", turn % 200))])
    });
    // Requests of several keys, which may be here and there.
    let domain = hot.clone();
    let several = Load::start(&grpc, &pace(2, Some(millis(5))), move |_, _| {
        let values = TOGETHER.map(String::from);
        ask_all(&domain, &values.each_ref().map(|value| ("many", value.as_str())))
    });
    let others = Load::start(&grpc, &pace(2, Some(millis(5))), move |_, _| request(&other, &[("bucket", "other")]));
    sheet.run(&one, sheet.span(2.0, 0.5));
    // Keys that are nowhere yet cannot be made together where a slot arrives.
    several.wait_for_calls(1);
    let rounds = if sheet.is_full() { 5 } else { 1 };
    for _ in 0..rounds {
        for (from, to) in [(0, 1), (1, 2), (2, 0)] {
            Move::begin(&cluster, slot, from, to).end();
            one.wait_for_calls(50);
        }
    }
    sheet.step("the slot stays half moved");
    let halved = Instant::now();
    let half = Move::begin(&cluster, slot, 0, 1);
    let keys = half.keys();
    let of_a: Vec<&str> = keys.iter().map(String::as_str).filter(|key| key.ends_with('a')).collect();
    half.migrate(&of_a);
    sheet.run(&one, sheet.span(3.0, 0.7));
    half.end();
    let whole = Instant::now();
    sheet.run(&one, sheet.span(2.0, 0.5));

    let store = [Outcome::Ok, Outcome::Over];
    for (name, load) in [("one key", one), ("fresh keys", fresh), ("another slot", others)] {
        let calls = sheet.record(load, &name.replace(' ', "-"));
        let wrong = other_than(&calls, &store);
        sheet.count(fault, &format!("{name}: of {} calls not by the store", calls.len()), wrong, 0);
    }
    let calls = sheet.record(several, "several");
    let moving: Vec<Call> = calls.iter().filter(|call| call.answered < halved || call.sent > whole).cloned().collect();
    let halfway = calls.len() - moving.len();
    let by_policy = calls.iter().filter(|call| is_by_policy(call)).count();
    let figure = format!("several keys: of {halfway} calls by policy, slot half moved");
    sheet.judge(fault, &figure, &by_policy, ">= 1", by_policy > 0);
    sheet.count(
        fault,
        &format!("several keys: of {} calls not by the store, slot not half moved", moving.len()),
        other_than(&moving, &store),
        0,
    );
    sheet.count(
        fault,
        "several keys: neither by store nor policy",
        other_than(&calls, &[Outcome::Ok, Outcome::DegradedOk]),
        0,
    );
    for (part, key) in [("one-key", "bucket=hot"), ("another-slot", "bucket=other")] {
        BUCKET.never_too_many(
            sheet,
            fault,
            &format!("{part}: burst"),
            &History::of_store(&sheet.recorded(part), key),
            0.0,
        );
    }
    let trips = sluice.metric("sluice_store_breaker_trips_total");
    sheet.judge(fault, "breaker tripped", &trips, "0", trips == 0.0);
    watch.end(sheet, fault);
    watch::clean(sheet, fault, &cluster.servers.iter().collect::<Vec<_>>());
}
