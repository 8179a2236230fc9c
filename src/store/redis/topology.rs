//! Which node answers for a slot: always the same one, or, in a cluster, whoever the cluster says.

use std::{
    collections::{HashMap, HashSet},
    ops::RangeInclusive,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use arc_swap::ArcSwap;
use redis::Value;
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::{
    connect::{DialError, Dialer, Target, send},
    metrics::StoreMetrics,
    node::Node,
    report::Report,
    settings::{Address, RedisSettings, Topology},
};
use crate::engine::key;

const SLOTS: usize = 16_384;
const ANY_SLOT: RangeInclusive<u16> = 0..=u16::MAX;
/// A cluster is asked who serves what at most twice a second.
const REFRESH_PAUSE: Duration = Duration::from_millis(500);

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
}

/// Who serves which slot, as far as the cluster has told.
#[derive(Debug)]
pub struct Cluster {
    map: ArcSwap<SlotMap>,
    /// By address, so that a node keeps its lanes when slots move.
    nodes: Mutex<HashMap<Address, Arc<Node>>>,
    seeds: Vec<Address>,
    settings: Arc<RedisSettings>,
    metrics: Arc<StoreMetrics>,
    /// Somebody was sent elsewhere.
    stale: Notify,
    report: Report,
    stop: CancellationToken,
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
        tokio::spawn(async move { stop.run_until_cancelled(refreshing.refresh_always()).await });
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
        Some(self.node(&address, ANY_SLOT))
    }

    fn node(&self, address: &Address, slots: RangeInclusive<u16>) -> Arc<Node> {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let start = || {
            let dialer = Dialer::new(Target::Fixed(address.clone()), &self.settings);
            let canary = canary_of(&self.settings.key_prefix, slots);
            Node::start(dialer, &canary, self.metrics.clone(), &self.stop)
        };
        nodes.entry(address.clone()).or_insert_with(start).clone()
    }

    /// Asks for the slots at the start, when somebody was sent elsewhere, and for as long as a node is sick.
    async fn refresh_always(self: Arc<Self>) {
        loop {
            match self.refresh().await {
                Ok(()) => self.report.is_well(),
                Err(error) => self.report.is_sick(&error.to_string(), None),
            }
            sleep(REFRESH_PAUSE).await;
            while self.is_well() && timeout(REFRESH_PAUSE, self.stale.notified()).await.is_err() {}
        }
    }

    /// Asks those who were well a moment ago, then those whom the settings name, until one answers.
    async fn refresh(&self) -> Result<(), DialError> {
        let known: Vec<Address> = {
            let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
            let passing = nodes.iter().filter(|(_, node)| node.vitals.breaker.is_passing());
            passing.map(|(address, _)| address.clone()).collect()
        };
        let mut last = None;
        for address in known.iter().chain(&self.seeds) {
            match self.slots_from(address).await {
                Ok(ranges) => {
                    self.adopt(ranges);
                    return Ok(());
                }
                Err(error) => last = Some(error),
            }
        }
        last.map_or(Ok(()), Err)
    }

    async fn slots_from(&self, address: &Address) -> Result<Vec<(u16, u16, Address)>, DialError> {
        let dialer = Dialer::new(Target::Fixed(address.clone()), &self.settings);
        let asked = async {
            let mut connection = dialer.open(address, &self.settings.auth, 0).await?;
            let mut ask = redis::cmd("CLUSTER");
            ask.arg("SLOTS");
            let reply = send(&mut connection, &ask).await;
            reply.map_err(|error| dialer.explain(address, &error))
        };
        let reason = match timeout(dialer.patience(), asked).await {
            Ok(reply) => match ranges(&reply?, address) {
                ranges if ranges.is_empty() => {
                    "it knows no slots: is it part of a cluster that is complete?".to_owned()
                }
                ranges => return Ok(ranges),
            },
            Err(_) => format!("it did not name the slots within {:?}", dialer.patience()),
        };
        Err(DialError { target: address.to_string(), reason, fault: None })
    }

    fn adopt(&self, ranges: Vec<(u16, u16, Address)>) {
        let mut places: HashMap<Address, u16> = HashMap::new();
        let mut map = SlotMap { nodes: Vec::new(), slots: vec![0; SLOTS] };
        for (first, last, address) in ranges {
            let place = *places.entry(address).or_insert_with_key(|address| {
                map.nodes.push(self.node(address, first..=last));
                u16::try_from(map.nodes.len()).unwrap_or(0)
            });
            let range = usize::from(first)..=usize::from(last).min(SLOTS - 1);
            if let Some(slots) = map.slots.get_mut(range) {
                slots.fill(place);
            }
        }
        let primaries: HashSet<&Address> = places.keys().collect();
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let before = nodes.len();
        nodes.retain(|address, _| primaries.contains(address));
        let old = self.map.load().slots != map.slots;
        if old || before != nodes.len() {
            debug!(primaries = map.nodes.len(), "learned the slots of the cluster");
        }
        drop(nodes);
        self.map.store(Arc::new(map));
    }
}

/// A key that lives in one of these slots; any key where none is known.
fn canary_of(prefix: &str, slots: RangeInclusive<u16>) -> String {
    let key = |number: u32| format!("{prefix}{{sluice-{number}}}canary");
    // Each number is a slot as if by chance: a single slot is met within a few times their number.
    (0..500_000).map(key).find(|name| slots.contains(&key::slot(name))).unwrap_or_else(|| key(0))
}

/// The ranges and their primaries, from the reply to CLUSTER SLOTS. What cannot be read is left out.
fn ranges(reply: &Value, asked: &Address) -> Vec<(u16, u16, Address)> {
    let Value::Array(rows) = reply else { return Vec::new() };
    let range = |row: &Value| {
        let Value::Array(fields) = row else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = &fields[..] else { return None };
        let [host, Value::Int(port), ..] = &primary[..] else { return None };
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
        let address = Address::Tcp { host, port: u16::try_from(*port).ok()? };
        Some((u16::try_from(*first).ok()?, u16::try_from(*last).ok()?, address))
    };
    rows.iter().filter_map(range).collect()
}
