//! A cluster: each node that the settings name, the slots that they know of, and every node that serves one.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use tokio::time::timeout;

use super::{
    PATIENCE, Store, examine_nodes,
    node::{self, Duty, Node},
    permissions::is_about,
    reach::{self, Unreached},
};
use crate::{
    doctor::finding::{Finding, Verdict},
    store::redis::{
        canary::ANY_SLOT,
        fault::Fault,
        settings::Address,
        topology::{SLOTS, SlotRange, slots_from},
    },
};

/// Of slots that nobody serves, so many ranges are named.
const RANGES_TOLD_MAX: usize = 3;

pub async fn examine(store: &Store, seeds: &[Address]) -> (Vec<Finding>, Vec<node::Examined>) {
    let told = join_all(seeds.iter().map(|seed| ask(store, seed))).await;
    let maps: Vec<&Vec<SlotRange>> = told.iter().flatten().collect();
    // As long as one of them knows, the cluster is found.
    let verdict = if maps.is_empty() { Verdict::Fail } else { Verdict::Warn };
    let seed_finding = |(seed, told): (&Address, &Result<Vec<SlotRange>, String>)| {
        let target = store.target(seed);
        match told {
            Ok(ranges) => Finding::ok("cluster", &target, format!("it knows who serves {} slots", covered(ranges))),
            Err(reason) => Finding::new(verdict, "cluster", &target, reason),
        }
    };
    let mut findings: Vec<Finding> = seeds.iter().zip(&told).map(seed_finding).collect();
    let target = store.target(&"all nodes");
    if maps.windows(2).any(|pair| primaries(pair[0]) != primaries(pair[1])) {
        let what = "is a slot or a failover on its way, or are these nodes of two clusters?";
        findings.push(Finding::warn("slots", &target, format!("the nodes do not agree on who serves what: {what}")));
    }
    // Of those who do not agree, the one who knows most.
    let Some(best) = maps.iter().max_by_key(|ranges| covered(ranges)) else { return (findings, Vec::new()) };
    findings.push(coverage(best, &target));
    let mut nodes = nodes(&maps);
    for (seed, _) in seeds.iter().zip(&told).filter(|(_, told)| told.is_ok()) {
        if !is_known(seed, &nodes).await {
            nodes.push(Node { address: seed.clone(), duty: Duty::Seed, slots: ANY_SLOT });
        }
    }
    (findings, examine_nodes(store, &nodes).await)
}

/// Whether it is one of these, by this name or by its address.
async fn is_known(seed: &Address, nodes: &[Node]) -> bool {
    let is_node = |address: &Address| nodes.iter().any(|node| node.address == *address);
    let Address::Tcp { host, port } = seed else { return is_node(seed) };
    let resolved = timeout(PATIENCE, tokio::net::lookup_host((&**host, *port))).await;
    let resolved = resolved.ok().and_then(Result::ok).into_iter().flatten();
    let mut addresses = resolved.map(|address| Address::Tcp { host: address.ip().to_string(), port: address.port() });
    is_node(seed) || addresses.any(|address| is_node(&address))
}

/// The slots that a node knows of, or what keeps it from telling.
async fn ask(store: &Store, seed: &Address) -> Result<Vec<SlotRange>, String> {
    let patience = store.patience();
    let unreached = match timeout(patience, slots_from(&store.settings, seed)).await {
        Ok(Ok(ranges)) => return Ok(ranges),
        Ok(Err(error)) => Unreached::of(error, patience),
        Err(_) => Unreached::silent(patience),
    };
    Err(match &unreached.fault {
        Some(Fault::Denied(text)) if is_about(text, "cluster") => {
            format!("user '{}' may not run CLUSTER SLOTS: grant +cluster|slots", reach::user_of(&store.settings.auth))
        }
        Some(Fault::Other(text)) if text.contains("cluster support disabled") => {
            format!("it is no node of a cluster: set {}=SINGLE, or name the nodes of one", store.names.kind)
        }
        _ => reach::explain(store, seed, &unreached, (store.names.auth, &store.settings.auth)).await,
    })
}

fn primaries(ranges: &[SlotRange]) -> Vec<(u16, u16, &Address)> {
    let mut all: Vec<_> = ranges.iter().map(|range| (range.first, range.last, &range.primary)).collect();
    all.sort_unstable_by_key(|(first, ..)| *first);
    all
}

/// Every node that somebody names, each with slots of its own where it has some.
fn nodes(maps: &[&Vec<SlotRange>]) -> Vec<Node> {
    let mut nodes: BTreeMap<(bool, u16, String), Node> = BTreeMap::new();
    let mut add = |address: &Address, duty: Duty, range: &SlotRange| {
        if nodes.values().all(|known| known.address != *address) {
            let node = Node { address: address.clone(), duty, slots: range.first..=range.last };
            nodes.insert((duty == Duty::Replica, range.first, address.to_string()), node);
        }
    };
    let ranges = || maps.iter().flat_map(|ranges| ranges.iter());
    ranges().for_each(|range| add(&range.primary, Duty::Primary, range));
    ranges().for_each(|range| range.replicas.iter().for_each(|replica| add(replica, Duty::Replica, range)));
    nodes.into_values().collect()
}

fn covered(ranges: &[SlotRange]) -> usize {
    SLOTS - gaps(ranges).iter().map(|(first, last)| usize::from(last - first) + 1).sum::<usize>()
}

/// Slots that nobody serves.
fn gaps(ranges: &[SlotRange]) -> Vec<(u16, u16)> {
    let end = u16::try_from(SLOTS).unwrap_or(u16::MAX);
    let (mut gaps, mut next) = (Vec::new(), 0);
    for (first, last, _) in primaries(ranges) {
        if first > next {
            gaps.push((next, first - 1));
        }
        next = next.max(last.saturating_add(1));
    }
    if next < end {
        gaps.push((next, end - 1));
    }
    gaps
}

fn coverage(ranges: &[SlotRange], target: &str) -> Finding {
    let gaps = gaps(ranges);
    if gaps.is_empty() {
        return Finding::ok("slots", &target, format!("all {SLOTS} are served"));
    }
    let mut named: Vec<String> =
        gaps.iter().take(RANGES_TOLD_MAX).map(|(first, last)| format!("{first}-{last}")).collect();
    if gaps.len() > RANGES_TOLD_MAX {
        named.push(format!("and {} more ranges", gaps.len() - RANGES_TOLD_MAX));
    }
    let (missing, named) = (SLOTS - covered(ranges), named.join(", "));
    let what = "domains that live there follow on_store_failure: bring their node back, or `redis-cli --cluster fix`";
    Finding::fail("slots", &target, format!("{missing} of {SLOTS} are served by nobody ({named}): {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u16, last: u16, port: u16) -> SlotRange {
        let at = |port| Address::Tcp { host: "h".to_owned(), port };
        SlotRange { first, last, primary: at(port), replicas: vec![at(port + 100)] }
    }

    #[test]
    fn slots_that_nobody_serves_are_named() {
        assert_eq!(gaps(&[range(0, 16_383, 1)]), []);
        let holes = [range(9_000, 16_000, 2), range(100, 8_000, 1)];
        assert_eq!(gaps(&holes), [(0, 99), (8_001, 8_999), (16_001, 16_383)]);
        let found = coverage(&holes, "all nodes");
        assert_eq!(found.verdict, Verdict::Fail);
        assert!(found.message.starts_with("1482 of 16384 are served by nobody (0-99, 8001-8999, 16001-16383)"));
    }

    #[test]
    fn every_node_is_looked_at_once() {
        let map = vec![range(0, 99, 1), range(100, 16_383, 2), range(200, 300, 1)];
        let nodes = nodes(&[&map, &map]);
        let duties: Vec<_> = nodes.iter().map(|node| (node.address.to_string(), node.duty)).collect();
        let expected =
            [("h:1", Duty::Primary), ("h:2", Duty::Primary), ("h:101", Duty::Replica), ("h:102", Duty::Replica)];
        assert_eq!(duties, expected.map(|(address, duty)| (address.to_owned(), duty)));
    }
}
