//! A distributed store: who its nodes are, and what each of them says.

mod canary;
mod care;
mod clock;
mod cluster;
mod identity;
mod latency;
mod node;
mod permissions;
mod reach;
mod sentinel;

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;

use self::node::{Duty, Node};
use super::{
    certificates::{self, presented},
    finding::Finding,
};
use crate::store::redis::{
    canary::ANY_SLOT,
    settings::{Address, RedisSettings, Topology},
};

/// For the dial, and for one answer, unless the service itself waits longer. What takes longer is of no use to a rate limiter.
const PATIENCE: Duration = Duration::from_secs(1);
/// For all of a node, in patiences. Its looks have limits of their own; this is for a node that is slow in all of them.
const NODE_MAX: u32 = 6;
/// For all of a store: whom it is found by, its primaries, and then its replicas.
const STORE_MAX: u32 = 15;

/// What a store and its settings are called.
#[derive(Debug)]
pub struct Names {
    /// Stands before the address of a node.
    label: &'static str,
    url: &'static str,
    kind: &'static str,
    auth: &'static str,
    sentinel_auth: &'static str,
    tls: &'static str,
    timeout: &'static str,
}

pub const MAIN: Names = Names {
    label: "",
    url: "REDIS_URL",
    kind: "REDIS_TYPE",
    auth: "REDIS_AUTH",
    sentinel_auth: "REDIS_SENTINEL_AUTH",
    tls: "REDIS_TLS",
    timeout: "REDIS_TIMEOUT",
};

pub const PER_SECOND: Names = Names {
    label: "per-second ",
    url: "REDIS_PERSECOND_URL",
    kind: "REDIS_PERSECOND_TYPE",
    auth: "REDIS_PERSECOND_AUTH",
    sentinel_auth: "REDIS_PERSECOND_SENTINEL_AUTH",
    tls: "REDIS_PERSECOND_TLS",
    timeout: "REDIS_PERSECOND_TIMEOUT",
};

#[derive(Debug, Default)]
pub struct Examined {
    pub findings: Vec<Finding>,
    /// Of the script on the slowest primary.
    pub p99: Option<Duration>,
}

/// What all looks at one store share.
#[derive(Clone, Debug)]
pub struct Store {
    settings: Arc<RedisSettings>,
    names: &'static Names,
}

impl Store {
    fn patience(&self) -> Duration {
        PATIENCE.max(self.settings.timeout)
    }

    /// As findings name a node.
    fn target(&self, address: &impl ToString) -> String {
        format!("{}{}", self.names.label, address.to_string())
    }

    /// When the certificates end that a server shows, where TLS is spoken.
    async fn certificates(&self, address: &Address) -> Vec<u64> {
        if self.settings.tls.is_none() {
            return Vec::new();
        }
        presented(address).await.unwrap_or_default()
    }

    fn judge_certificates(&self, address: &Address, ends_s: &[u64], was_believed: bool) -> Vec<Finding> {
        certificates::judge_chain(&self.target(address), "the certificate that it shows", ends_s, was_believed)
    }
}

/// How long it may take to look at a store.
pub fn time_for(settings: &RedisSettings) -> Duration {
    PATIENCE.max(settings.timeout) * STORE_MAX
}

pub async fn examine(settings: &RedisSettings, names: &'static Names) -> Examined {
    let store = Store { settings: Arc::new(settings.clone()), names };
    let (mut findings, nodes) = match &store.settings.topology {
        Topology::Single(address) => {
            let node = Node { address: address.clone(), duty: Duty::Primary, slots: ANY_SLOT };
            (Vec::new(), examine_nodes(&store, &[node]).await)
        }
        Topology::Sentinel { master, sentinels } => sentinel::examine(&store, master, sentinels).await,
        Topology::Cluster(seeds) => cluster::examine(&store, seeds).await,
    };
    let clocks: Vec<_> = nodes.iter().filter_map(|node| node.clock.clone()).collect();
    let p99 = nodes.iter().filter_map(|node| node.p99).max();
    let hidden = care::hidden(nodes.iter().filter_map(|node| Some((&*node.target, node.unseen?))));
    findings.extend(nodes.into_iter().flat_map(|node| node.findings));
    findings.extend(hidden);
    findings.extend(clock::compare(names.label, &clocks));
    Examined { findings, p99 }
}

/// Side by side.
async fn examine_nodes(store: &Store, nodes: &[Node]) -> Vec<node::Examined> {
    join_all(nodes.iter().map(|node| node::examine(store, node))).await
}
