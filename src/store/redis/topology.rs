//! Which node answers for a slot: always the same one, or, in a cluster, whoever the cluster says.

use std::{
    collections::{HashMap, HashSet},
    ops::RangeInclusive,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use arc_swap::ArcSwap;
use redis::Value;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::{
    canary::{self, ANY_SLOT},
    connect::{DialError, Dialer, Target, send},
    metrics::StoreMetrics,
    node::Node,
    report::Report,
    settings::{Address, RedisSettings, Topology},
};
use crate::panics;

pub const SLOTS: usize = 16_384;
/// A cluster is asked who serves what at most twice a second.
const REFRESH_PAUSE: Duration = Duration::from_millis(500);
/// A node that a redirection has named is kept for so long, even if the cluster does not list it: a slot may be on its way to one
/// that has none yet, and to dial it anew after every refresh would make callers wait for it again and again.
const NAMED_FOR: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub enum Nodes {
    /// A server of its own, or the primary that sentinels name: its dialer finds it.
    One(Arc<Node>),
    Cluster(Arc<Cluster>),
}

impl Nodes {
    #[must_use]
    pub fn start(settings: &Arc<RedisSettings>, metrics: &Arc<StoreMetrics>, stop: &CancellationToken) -> Self {
        let one = |target| {
            let canary = format!("{}{{sluice}}canary", settings.key_prefix);
            Self::One(Node::start(Dialer::new(target, settings), &canary, metrics.clone(), stop))
        };
        match &settings.topology {
            Topology::Single(address) => one(Target::Fixed(address.clone())),
            Topology::Sentinel { master, sentinels } => {
                one(Target::Sentinel { master: master.clone(), sentinels: sentinels.clone() })
            }
            Topology::Cluster(seeds) => Self::Cluster(Cluster::start(seeds, settings, metrics, stop)),
        }
    }

    /// The node of a slot, if one is known.
    #[must_use]
    pub fn of(&self, slot: u16) -> Option<Arc<Node>> {
        match self {
            Self::One(node) => Some(node.clone()),
            Self::Cluster(cluster) => cluster.of(slot),
        }
    }

    #[must_use]
    pub fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Whether every known node answers, and there is one.
    #[must_use]
    pub fn is_well(&self) -> bool {
        match self {
            Self::One(node) => node.vitals.breaker.is_passing(),
            Self::Cluster(cluster) => cluster.is_well(),
        }
    }

    /// Whether a node, or the way to the nodes, was tried and is sick: there is nothing to wait for.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        match self {
            Self::One(node) => node.vitals.report.has_failed(),
            Self::Cluster(cluster) => {
                let map = cluster.map.load();
                cluster.report.has_failed() || map.nodes.iter().any(|node| node.vitals.report.has_failed())
            }
        }
    }
}

/// Who serves which slot, as far as the cluster has told.
#[derive(Debug)]
pub struct Cluster {
    map: ArcSwap<SlotMap>,
    /// By address, so that a node keeps its lanes when slots move.
    nodes: Mutex<HashMap<Address, Known>>,
    seeds: Vec<Address>,
    settings: Arc<RedisSettings>,
    metrics: Arc<StoreMetrics>,
    /// Somebody was sent elsewhere.
    stale: Notify,
    report: Report,
    stop: CancellationToken,
}

#[derive(Debug)]
struct Known {
    node: Arc<Node>,
    /// When a redirection last named it, if no list of slots has since.
    named_at: Option<Instant>,
}

impl Known {
    /// Nobody speaks of it any more.
    fn is_over(&self) -> bool {
        self.named_at.is_some_and(|at| at.elapsed() >= NAMED_FOR)
    }
}

#[derive(Debug, Default)]
struct SlotMap {
    nodes: Vec<Arc<Node>>,
    /// By slot: a place in `nodes`, from 1; 0 is nobody.
    slots: Vec<u16>,
}

impl Cluster {
    fn start(
        seeds: &[Address],
        settings: &Arc<RedisSettings>,
        metrics: &Arc<StoreMetrics>,
        stop: &CancellationToken,
    ) -> Arc<Self> {
        let cluster = Arc::new(Self {
            map: ArcSwap::default(),
            nodes: Mutex::default(),
            seeds: seeds.to_vec(),
            settings: settings.clone(),
            metrics: metrics.clone(),
            stale: Notify::new(),
            report: Report::new("cluster".to_owned()),
            stop: stop.clone(),
        });
        let refreshing = cluster.clone();
        let stop = stop.clone();
        let refresh = move || refreshing.clone().refresh_always();
        tokio::spawn(async move { stop.run_until_cancelled(panics::again(refresh)).await });
        cluster
    }

    fn of(&self, slot: u16) -> Option<Arc<Node>> {
        let map = self.map.load();
        let place = usize::from(*map.slots.get(usize::from(slot))?).checked_sub(1)?;
        map.nodes.get(place).cloned()
    }

    fn is_well(&self) -> bool {
        let map = self.map.load();
        !map.nodes.is_empty() && map.nodes.iter().all(|node| node.vitals.breaker.is_passing())
    }

    /// The node that a redirection names.
    #[must_use]
    pub fn named(&self, address: &str) -> Option<Arc<Node>> {
        self.stale.notify_one();
        let address = match (address.strip_prefix(':'), self.seeds.first()) {
            // A node that does not know its own name: that of the cluster will do.
            (Some(port), Some(Address::Tcp { host, .. })) => {
                Address::Tcp { host: host.clone(), port: port.parse().ok()? }
            }
            _ => Address::parse(address).ok()?,
        };
        Some(self.node(&address, ANY_SLOT, Some(Instant::now())))
    }

    fn node(&self, address: &Address, slots: RangeInclusive<u16>, named_at: Option<Instant>) -> Arc<Node> {
        let mut nodes = self.nodes();
        let start = || {
            let dialer = Dialer::new(Target::Fixed(address.clone()), &self.settings);
            let canary = canary::key_in(&self.settings.key_prefix, &slots, "canary");
            Known { node: Node::start(dialer, &canary, self.metrics.clone(), &self.stop), named_at }
        };
        let known = nodes.entry(address.clone()).or_insert_with(start);
        known.named_at = named_at;
        known.node.clone()
    }

    fn nodes(&self) -> MutexGuard<'_, HashMap<Address, Known>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for the slots at the start, when somebody was sent elsewhere, for as long as a node is sick, and to let a node go that
    /// was kept for nothing.
    async fn refresh_always(self: Arc<Self>) {
        loop {
            match self.refresh().await {
                Ok(()) => self.report.is_well(),
                Err(error) => self.report.is_sick(&error.to_string(), None),
            }
            sleep(REFRESH_PAUSE).await;
            let is_settled = || self.is_well() && !self.nodes().values().any(Known::is_over);
            while is_settled() && timeout(REFRESH_PAUSE, self.stale.notified()).await.is_err() {}
        }
    }

    /// Asks those who were well a moment ago, then those whom the settings name, until one answers.
    async fn refresh(&self) -> Result<(), DialError> {
        let known: Vec<Address> = {
            let nodes = self.nodes();
            let passing = nodes.iter().filter(|(_, known)| known.node.vitals.breaker.is_passing());
            passing.map(|(address, _)| address.clone()).collect()
        };
        let mut last = None;
        for address in known.iter().chain(&self.seeds) {
            match slots_from(&self.settings, address).await {
                Ok(ranges) => {
                    self.adopt(ranges);
                    return Ok(());
                }
                Err(error) => last = Some(error),
            }
        }
        last.map_or(Ok(()), Err)
    }

    fn adopt(&self, ranges: Vec<SlotRange>) {
        let mut places: HashMap<Address, u16> = HashMap::new();
        let mut map = SlotMap { nodes: Vec::new(), slots: vec![0; SLOTS] };
        for SlotRange { first, last, primary, .. } in ranges {
            let place = *places.entry(primary).or_insert_with_key(|address| {
                map.nodes.push(self.node(address, first..=last, None));
                u16::try_from(map.nodes.len()).unwrap_or(0)
            });
            let range = usize::from(first)..=usize::from(last).min(SLOTS - 1);
            if let Some(slots) = map.slots.get_mut(range) {
                slots.fill(place);
            }
        }
        let primaries: HashSet<&Address> = places.keys().collect();
        let mut nodes = self.nodes();
        let before = nodes.len();
        // One that the cluster no longer lists, and that nobody is sent to, goes at once.
        nodes.retain(|address, known| primaries.contains(address) || known.named_at.is_some() && !known.is_over());
        let old = self.map.load().slots != map.slots;
        if old || before != nodes.len() {
            debug!(primaries = map.nodes.len(), "learned the slots of the cluster");
        }
        drop(nodes);
        self.map.store(Arc::new(map));
    }
}

/// Slots and who serves them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotRange {
    pub first: u16,
    pub last: u16,
    pub primary: Address,
    pub replicas: Vec<Address>,
}

/// Asks one node who serves what.
pub async fn slots_from(settings: &Arc<RedisSettings>, address: &Address) -> Result<Vec<SlotRange>, DialError> {
    let dialer = Dialer::new(Target::Fixed(address.clone()), settings);
    let asked = async {
        let mut connection = dialer.open(address, &settings.auth, 0).await?;
        let mut ask = redis::cmd("CLUSTER");
        ask.arg("SLOTS");
        let reply = send(&mut connection, &ask).await;
        reply.map_err(|error| dialer.explain(address, &error))
    };
    let reason = match timeout(dialer.patience(), asked).await {
        Ok(reply) => match ranges(&reply?, address) {
            ranges if ranges.is_empty() => "it knows no slots: is it part of a cluster that is complete?".to_owned(),
            ranges => return Ok(ranges),
        },
        Err(_) => format!("it did not name the slots within {:?}", dialer.patience()),
    };
    Err(DialError { target: address.to_string(), reason, fault: None })
}

/// From the reply to CLUSTER SLOTS. What cannot be read is left out.
fn ranges(reply: &Value, asked: &Address) -> Vec<SlotRange> {
    let Value::Array(rows) = reply else { return Vec::new() };
    let range = |row: &Value| {
        let Value::Array(fields) = row else { return None };
        let [Value::Int(first), Value::Int(last), primary, replicas @ ..] = &fields[..] else { return None };
        Some(SlotRange {
            first: u16::try_from(*first).ok()?,
            last: u16::try_from(*last).ok()?,
            primary: node_address(primary, asked)?,
            replicas: replicas.iter().filter_map(|replica| node_address(replica, asked)).collect(),
        })
    };
    rows.iter().filter_map(range).collect()
}

fn node_address(node: &Value, asked: &Address) -> Option<Address> {
    let Value::Array(fields) = node else { return None };
    let [host, Value::Int(port), ..] = &fields[..] else { return None };
    let host = match host {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        _ => String::new(),
    };
    let host = match (host.as_str(), asked) {
        // A node that does not know its own name is where it was asked.
        ("" | "?", Address::Tcp { host, .. }) => host.clone(),
        _ => host,
    };
    Some(Address::Tcp { host, port: u16::try_from(*port).ok()? })
}
