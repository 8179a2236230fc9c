//! The distributed store: Redis or Valkey, on its own, behind Sentinel, or as a cluster.
//!
//! All counters of a request are decided in one script call: a server of its own decides whatever it is asked, and in a cluster
//! their keys share a slot. Where a domain is partitioned in a cluster, or rules per second live on a store of their own, there is
//! one call for each part, side by side; each part is decided all or nothing, and if one of them refuses, what the others took for
//! rules that spare refused requests is given back: see [`parts`].
//!
//! Never decides what a caller gets when the store cannot answer, and never waits longer than the budget.
//!
//! The user that sluice is on the servers needs no more than this, as lines of an ACL file; the tests have it so. Keys begin with
//! `CACHE_KEY_PREFIX`, so that `~*` can be narrowed to that. Redis 6.0 knows no `resetchannels`.
//!
//! ```text
//! user sluice on >PASSWORD ~* resetchannels -@all +eval +evalsha +script|load +time +get +mget +set +ping
//! in a cluster also: +cluster|slots +asking
//! behind sentinels also: +role
//! for a database other than 0 also: +select
//! on sentinels: user sluice on >PASSWORD -@all +sentinel|get-master-addr-by-name +sentinel|replicas
//! ```

pub mod canary;
pub mod connect;
pub mod fault;
pub mod lane;
pub mod metrics;
pub mod node;
mod parts;
mod peek;
pub mod report;
pub mod script;
mod sentinel;
pub mod settings;
pub mod state;
pub mod topology;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use smallvec::SmallVec;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::warn;

use self::{
    fault::Fault,
    lane::{Ask, Reply, Way},
    metrics::StoreMetrics,
    node::Node,
    parts::Part,
    script::{Damage, ScriptFailure},
    settings::RedisSettings,
    topology::Nodes,
};
use super::{Answers, StoreFailure, refusals::Refusals};
use crate::engine::plan::Plan;

/// What a caller needs of its time to get the answer home: so much at least, and this part of it.
const MARGIN: Duration = Duration::from_millis(3);
const MARGIN_PART: u32 = 10;
/// Before a slot that is on its way is asked for again; twice as long after each time.
const TRY_AGAIN: Duration = Duration::from_millis(2);
/// How often a request is sent after its slot: it may have moved twice since the map was drawn, and be on its way again.
const ASKED_MAX: usize = 6;
/// A call that would have less than this left is not worth sending.
const LEAST: Duration = Duration::from_millis(1);

/// How often damaged keys are told of.
const DAMAGE_TOLD_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct RedisStore {
    main: Arc<Backend>,
    /// For rules whose unit is a second.
    per_second: Option<Arc<Backend>>,
    /// What is being given back.
    gifts: TaskTracker,
    /// Who must know of that.
    refusals: Option<Arc<Refusals>>,
    damage_told: Mutex<Option<Instant>>,
}

#[derive(Debug)]
struct Backend {
    nodes: Nodes,
    timeout: Duration,
}

impl Backend {
    fn start(settings: RedisSettings, metrics: &Arc<StoreMetrics>, stop: &CancellationToken) -> Arc<Self> {
        let timeout = settings.timeout;
        Arc::new(Self { nodes: Nodes::start(&Arc::new(settings), metrics, stop), timeout })
    }
}

impl RedisStore {
    /// Connects in the background. Nothing waits for it here.
    #[must_use]
    pub fn start(
        main: RedisSettings,
        per_second: Option<RedisSettings>,
        metrics: &Arc<StoreMetrics>,
        stop: &CancellationToken,
    ) -> Self {
        Self {
            main: Backend::start(main, metrics, stop),
            per_second: per_second.map(|settings| Backend::start(settings, metrics, stop)),
            gifts: TaskTracker::new(),
            refusals: None,
            damage_told: Mutex::default(),
        }
    }

    pub fn tell_of_gifts(&mut self, refusals: &Arc<Refusals>) {
        self.refusals = Some(refusals.clone());
    }

    /// Whether it answers now.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.main.nodes.is_well() && self.per_second.as_ref().is_none_or(|backend| backend.nodes.is_well())
    }

    /// Whether it was tried, and does not answer.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.main.nodes.has_failed() || self.per_second.as_ref().is_some_and(|backend| backend.nodes.has_failed())
    }

    /// Waits until everything that is to be given back has been.
    pub async fn drain(&self) {
        self.gifts.close();
        self.gifts.wait().await;
    }

    pub async fn decide(&self, plan: &Arc<Plan>, budget: Option<Duration>) -> Answers {
        // What is rare is kept apart, here and below, so that the future of every call is small.
        match self.only_part(plan) {
            Some(part) => {
                let deadline = deadline(Instant::now(), part.backend.timeout, budget);
                self.decide_part(plan, &part, Ask::Whole(plan.clone()), deadline).await
            }
            None => Box::pin(self.decide_parts(plan, budget)).await,
        }
    }

    /// If one call is enough.
    fn only_part(&self, plan: &Plan) -> Option<Part<'_>> {
        let mut parts = self.parts(plan);
        if parts.len() == 1 { parts.pop() } else { None }
    }

    /// One answer for each check of a part.
    async fn decide_part(&self, plan: &Plan, part: &Part<'_>, asked: Ask, deadline: Instant) -> Answers {
        match ask(part.backend, asked.clone(), part.slot, deadline).await {
            Ok(Ok(decisions)) => decisions.into_iter().map(Ok).collect(),
            Ok(Err(failure)) => Box::pin(self.decide_around(plan, part, asked, failure, deadline)).await,
            Err(fault) => SmallVec::from_elem(Err(fault.failure()), part.checks.len()),
        }
    }

    /// Where a key is damaged, the script has decided nothing. The others are asked for without it, so that only its own rule has
    /// to do without the store.
    async fn decide_around(
        &self,
        plan: &Plan,
        part: &Part<'_>,
        mut asked: Ask,
        mut failure: ScriptFailure,
        deadline: Instant,
    ) -> Answers {
        let mut answers: Answers = SmallVec::from_elem(Err(StoreFailure::BadResponse), part.checks.len());
        let mut open: SmallVec<[usize; 4]> = (0..part.checks.len()).collect();
        loop {
            let ScriptFailure { slot, damage } = failure;
            let (checks, keys) = asked.asked();
            self.tell_damage(keys.get(slot), damage);
            let mut its_slots = checks.iter().map(|check| check.slot);
            open.retain(|place| {
                let is_damaged = its_slots.next() == Some(slot);
                if is_damaged {
                    answers[*place] = Err(damage.failure());
                }
                !is_damaged
            });
            if open.is_empty() {
                return answers;
            }
            let rest: SmallVec<[usize; 4]> = open.iter().map(|place| part.checks[*place]).collect();
            asked = Ask::Part(Arc::new(plan.part(&rest)));
            match ask(part.backend, asked.clone(), part.slot, deadline).await {
                Ok(Ok(decisions)) => {
                    open.iter().zip(decisions).for_each(|(place, decision)| answers[*place] = Ok(decision));
                    return answers;
                }
                Ok(Err(another)) => failure = another,
                Err(fault) => {
                    open.iter().for_each(|place| answers[*place] = Err(fault.failure()));
                    return answers;
                }
            }
        }
    }

    /// Now and then, however often such a key is met.
    fn tell_damage(&self, key: &str, damage: Damage) {
        let mut told = self.damage_told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_some_and(|at| at.elapsed() < DAMAGE_TOLD_EVERY) {
            return;
        }
        *told = Some(Instant::now());
        drop(told);
        warn!(
            key,
            reason = damage.name(),
            "this key holds something that is not ours, or of a newer release; it is left as it is, and its rule follows the \
             failure policy: see what writes it, or set CACHE_KEY_PREFIX"
        );
    }
}

/// What the store is given of a caller's time.
#[must_use]
pub fn share_of(deadline: Duration) -> Duration {
    deadline.saturating_sub(MARGIN.max(deadline / MARGIN_PART))
}

fn deadline(began: Instant, store: Duration, budget: Option<Duration>) -> Instant {
    began + budget.map_or(store, |budget| share_of(budget).min(store))
}

/// Asks the node of a slot.
async fn ask(backend: &Backend, ask: Ask, slot: u16, deadline: Instant) -> Reply {
    let Some(node) = backend.nodes.of(slot) else { return Err(Fault::NotAsked) };
    let tagged = backend.nodes.is_cluster().then_some(slot);
    match node.ask(ask.clone(), tagged, Way::Shared, deadline).await {
        Err(fault @ (Fault::Moved { .. } | Fault::Ask { .. } | Fault::ReadOnly | Fault::TryAgain)) => {
            Box::pin(follow(backend, ask, slot, deadline, node, fault)).await
        }
        reply => reply,
    }
}

/// Follows a slot where it has gone: a call that a node refused has not run. A node that is no longer a primary is tried once more,
/// a slot whose keys are on their way as long as there is time.
async fn follow(backend: &Backend, ask: Ask, slot: u16, deadline: Instant, node: Arc<Node>, refused: Fault) -> Reply {
    let nodes = &backend.nodes;
    let tagged = nodes.is_cluster().then_some(slot);
    let (mut asked, mut was_replica, mut pause, mut reply) = (node, false, TRY_AGAIN, Err(refused));
    for _ in 1..ASKED_MAX {
        let Err(fault) = &reply else { return reply };
        let (node, way) = match (fault, nodes) {
            (Fault::Moved { address }, Nodes::Cluster(cluster)) => (cluster.named(address), Way::Shared),
            (Fault::Ask { address }, Nodes::Cluster(cluster)) => (cluster.named(address), Way::Asking),
            (Fault::ReadOnly, _) if !was_replica => (nodes.of(slot), Way::Shared),
            // The last moment is not waited for, because the answer needs one, too.
            (Fault::TryAgain, _) if deadline > Instant::now() + pause + LEAST => {
                sleep_until(Instant::now() + pause).await;
                pause *= 2;
                // Here, and not where the map says: it may not know yet how far the slot has come.
                (Some(asked), Way::Alone)
            }
            _ => return reply,
        };
        was_replica |= *fault == Fault::ReadOnly;
        let Some(node) = node.filter(|_| deadline > Instant::now() + LEAST) else { return reply };
        // One that was never heard of before may need a moment.
        let _ = timeout_at(deadline, node.vitals.breaker.until_known()).await;
        reply = node.ask(ask.clone(), tagged, way, deadline).await;
        asked = node;
    }
    reply
}
