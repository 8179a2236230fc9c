//! Primaries that change: behind sentinels, in a cluster, and behind one address.

use std::time::{Duration, Instant};

use super::{Stage, ask_all, sluice};
use crate::{
    harness::{
        grpc::request,
        load::{Call, Load, Outcome, Style, assert_never_too_many, count},
        wait_until,
    },
    servers::{AUTH, Cluster, Proxy, REDIS, Sentinels, Server, alone},
    store::faults::{RULES, SOME, SOON, assert_few_lines, many},
};

const TIMEOUT: (&str, &str) = ("REDIS_TIMEOUT", "100ms");

fn is_primary(server: &Server) -> bool {
    let role: redis::RedisResult<Vec<redis::Value>> = server.try_run(&["ROLE"]);
    role.is_ok_and(|role| matches!(&role[0], redis::Value::BulkString(name) if name == b"master"))
}

fn degraded(calls: &[Call]) -> usize {
    count(calls, Outcome::DegradedOk)
}

#[test]
fn sentinels_name_another_primary() {
    let _alone = alone();
    let mut stage = Stage::Sentinel(Sentinels::start(REDIS));
    let sluice = stage.sluice(RULES, &[TIMEOUT]);
    let load = Load::start(&[sluice.grpc()], &SOME, |caller, _| many(caller));
    load.wait_for_calls(50);
    let Stage::Sentinel(sentinels) = &mut stage else { unreachable!("it was made so") };
    sentinels.servers[0].kill();
    let killed = Instant::now();
    wait_until("there is another primary", || is_primary(&sentinels.servers[1]));
    let switched = killed.elapsed();
    wait_until("a sentinel names it", || sentinels.name(&sentinels.servers[1]));
    let named = Instant::now();
    let back = load.wait_for(Outcome::Ok, named);
    let calls = load.stop();
    println!(
        "sentinel: another primary after {switched:?}, named after {:?}, used {back:?} later, {} of {} by policy",
        named.duration_since(killed),
        degraded(&calls),
        calls.len()
    );
    assert!(back < SOON);
    assert_eq!(count(&calls, Outcome::Ok) + degraded(&calls), calls.len());
    assert_few_lines(&sluice);
    sentinels.servers[1].assert_clean();
}

/// A domain of its own on each primary.
fn rules_of_domains() -> String {
    let domain = |number: usize| {
        format!(
            "domain: d{number}\ndescriptors:\n  - {{key: many, rate_limit: {{unit: year, requests_per_unit: 1000000}}}}\n  - {{key: \
             bucket, rate_limit: {{algorithm: token_bucket, unit: second, requests_per_unit: 100, burst: 200}}}}\n"
        )
    };
    (0..12).map(domain).collect::<Vec<_>>().join("---\n")
}

/// The name of a domain whose counters are on this primary.
fn domain_at(cluster: &Cluster, home: usize) -> String {
    let mut domains = (0..12).map(|number| format!("d{number}"));
    domains.find(|domain| cluster.home(&format!("{{{domain}}}")) == home).expect("twelve domains are everywhere")
}

#[test]
fn a_primary_of_a_cluster_is_killed_and_the_others_never_notice() {
    let _alone = alone();
    let mut stage = Stage::Cluster(Cluster::start(REDIS));
    let sluice = stage.sluice(&rules_of_domains(), &[("REDIS_TIMEOUT", "300ms")]);
    let Stage::Cluster(cluster) = &mut stage else { unreachable!("it was made so") };
    let style = Style { callers_of_each: 2, pause: Some(Duration::from_millis(20)), deadline: None };
    let loads: Vec<Load> = (0..3)
        .map(|home| {
            let domain = domain_at(cluster, home);
            Load::start(&[sluice.grpc()], &style, move |caller, _| request(&domain, &[("many", &caller.to_string())]))
        })
        .collect();
    loads.iter().for_each(|load| load.wait_for_calls(20));
    cluster.servers[0].kill();
    let killed = Instant::now();
    loads[0].wait_for(Outcome::DegradedOk, killed);
    wait_until("its replica takes over", || is_primary(&cluster.servers[3]));
    let switched = Instant::now();
    let back = loads[0].wait_for(Outcome::Ok, switched);
    let calls: Vec<Vec<Call>> = loads.into_iter().map(Load::stop).collect();
    println!(
        "cluster: its replica took over after {:?}, used {back:?} later, {} of {} by policy",
        switched.duration_since(killed),
        degraded(&calls[0]),
        calls[0].len()
    );
    assert!(back < SOON);
    for others in &calls[1..] {
        assert_eq!(count(others, Outcome::Ok), others.len(), "the other shards never notice");
    }
    assert_few_lines(&sluice);
    cluster.servers[1..].iter().for_each(Server::assert_clean);
}

/// Moves a slot with all that is in it while it is in use.
fn move_slot(cluster: &Cluster, slot: &str, from: usize, to: usize) {
    let (source, target) = (&cluster.servers[from], &cluster.servers[to]);
    let id = |server: &Server| server.run::<String>(&["CLUSTER", "MYID"]);
    target.run::<()>(&["CLUSTER", "SETSLOT", slot, "IMPORTING", &id(source)]);
    source.run::<()>(&["CLUSTER", "SETSLOT", slot, "MIGRATING", &id(target)]);
    let port = target.port().to_string();
    loop {
        let keys: Vec<String> = source.run(&["CLUSTER", "GETKEYSINSLOT", slot, "5"]);
        if keys.is_empty() {
            break;
        }
        let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        migrate.extend(keys.iter().map(String::as_str));
        source.run::<String>(&migrate);
    }
    let owner = id(target);
    for server in [target, source] {
        server.run::<()>(&["CLUSTER", "SETSLOT", slot, "NODE", &owner]);
    }
}

#[test]
fn a_hot_slot_moves_and_nobody_notices() {
    let _alone = alone();
    let stage = Stage::Cluster(Cluster::start(REDIS));
    let sluice = stage.sluice(&rules_of_domains(), &[("REDIS_TIMEOUT", "500ms")]);
    let Stage::Cluster(cluster) = &stage else { unreachable!("it was made so") };
    let domain = domain_at(cluster, 0);
    let slot: u16 = cluster.servers[0].run(&["CLUSTER", "KEYSLOT", &format!("{{{domain}}}")]);
    let slot = slot.to_string();
    let style = Style { callers_of_each: 4, pause: None, deadline: None };
    let hot = domain.clone();
    let load = Load::start(&[sluice.grpc()], &style, move |_, _| request(&hot, &[("bucket", "hot")]));
    // Keys that come and are still there while the slot moves.
    let fresh = domain.clone();
    let pace = Style { callers_of_each: 2, pause: Some(Duration::from_millis(5)), deadline: None };
    let others = Load::start(&[sluice.grpc()], &pace, move |caller, number| {
        request(&fresh, &[("many", &format!("{caller}-{}", number % 200))])
    });
    load.wait_for_calls(200);
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        move_slot(cluster, &slot, from, to);
        load.wait_for_calls(100);
    }
    let (calls, others) = (load.stop(), others.stop());
    println!("a slot moved three times: {} and {} calls, none by policy", calls.len(), others.len());
    assert_eq!(count(&calls, Outcome::Ok) + count(&calls, Outcome::Over), calls.len());
    assert_eq!(count(&others, Outcome::Ok), others.len());
    assert_never_too_many(&calls, 200.0, 100.0);
    stage.assert_clean();
}

#[test]
fn a_primary_becomes_a_replica_and_a_primary_again() {
    let _alone = alone();
    let stage = Stage::Single(Server::start(REDIS));
    let other = Server::start(REDIS);
    let sluice = stage.sluice(RULES, &[TIMEOUT]);
    let load = Load::start(&[sluice.grpc()], &SOME, |caller, _| many(caller));
    load.wait_for_calls(50);
    let server = &stage.servers()[0];
    let demoted = Instant::now();
    server.run::<()>(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
    let noticed = load.wait_for(Outcome::DegradedOk, demoted);
    load.wait_for_calls(50);
    server.run::<()>(&["REPLICAOF", "NO", "ONE"]);
    let back = load.wait_for(Outcome::Ok, Instant::now());
    let calls = load.stop();
    println!("demoted: policy after {noticed:?}, back {back:?} after it was a primary again");
    assert!(back < SOON);
    assert_eq!(count(&calls, Outcome::Ok) + degraded(&calls), calls.len());
    assert_few_lines(&sluice);
    stage.assert_clean();
}

#[test]
fn the_address_leads_to_another_primary_while_old_connections_stay_open() {
    let _alone = alone();
    let (old, new) = (Server::start(REDIS), Server::start(REDIS));
    let proxy = Proxy::start(&old.address());
    let url = format!("redis://{AUTH}@{}", proxy.address());
    let sluice = sluice(RULES, &[("REDIS_URL", &url), ("REDIS_TIMEOUT", "500ms")]);
    sluice.wait_for_store();
    let load =
        Load::start(&[sluice.grpc()], &SOME, |caller, _| ask_all("d", &[("many", &caller.to_string()), ("more", "1")]));
    load.wait_for_calls(50);
    proxy.lead_to(&new.address());
    old.run::<()>(&["REPLICAOF", "127.0.0.1", &new.port().to_string()]);
    let switched = Instant::now();
    wait_until("the new one is asked", || new.calls("evalsha") > 2);
    let after = switched.elapsed();
    load.wait_for_calls(50);
    let calls = load.stop();
    println!(
        "READONLY on open sockets: the new one is asked after {after:?}, {} of {} by policy",
        degraded(&calls),
        calls.len()
    );
    assert!(after < SOON);
    // At most one failed try for each connection, and that is tried again at once.
    assert!(degraded(&calls) <= 4, "{} were answered by policy", degraded(&calls));
    new.assert_clean();
}
