//! The distributed store: Redis or Valkey, on its own, behind Sentinel, or as a cluster.
//!
//! All counters of a request are decided in one script call: a server of its own decides whatever it is asked, and in a cluster
//! their keys share a slot. Where a domain is partitioned in a cluster, or rules per second live on a store of their own, there is
//! one call for each part, side by side; each part is decided all or nothing, and if one of them refuses, what the others took for
//! rules that spare refused requests is given back.
//!
//! Never decides what a caller gets when the store cannot answer, and never waits longer than the budget.
//!
//! The user that sluice is on the servers needs no more than this, as lines of an ACL file; the tests have it so. Keys begin with
//! `CACHE_KEY_PREFIX`, so that `~*` can be narrowed to that. Redis 6.0 knows no `resetchannels`.
//!
//! ```text
//! user sluice on >PASSWORD ~* resetchannels -@all +eval +evalsha +script|load +time +get +set +ping
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
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep_until, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::warn;

use self::{
    fault::Fault,
    lane::{Ask, Reply, Way},
    metrics::StoreMetrics,
    node::Node,
    script::{Damage, ScriptFailure},
    settings::RedisSettings,
    topology::Nodes,
};
use super::{Answers, StoreFailure, refusals::Refusals};
use crate::engine::{
    algorithm::{Check, Decision, refuses},
    key,
    plan::Plan,
    quota::{OnOverLimit, Quota, Unit},
    request::Hits,
};

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

/// The checks of a plan that are decided in one call, by their places in the plan.
struct Part<'s> {
    backend: &'s Arc<Backend>,
    /// 0 where there are no slots.
    slot: u16,
    checks: SmallVec<[usize; 4]>,
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

    /// One for each store that the plan needs, and in a cluster one for each slot there.
    fn parts(&self, plan: &Plan) -> SmallVec<[Part<'_>; 2]> {
        let mut parts: SmallVec<[Part<'_>; 2]> = SmallVec::new();
        for (index, check) in plan.checks.iter().enumerate() {
            let backend = match &self.per_second {
                Some(per_second) if is_per_second(&check.quota) => per_second,
                _ => &self.main,
            };
            let slot = if backend.nodes.is_cluster() { key::slot(plan.keys.get(check.slot)) } else { 0 };
            let belongs = |part: &&mut Part<'_>| Arc::ptr_eq(part.backend, backend) && part.slot == slot;
            match parts.iter_mut().find(belongs) {
                Some(part) => part.checks.push(index),
                None => parts.push(Part { backend, slot, checks: SmallVec::from_slice(&[index]) }),
            }
        }
        parts
    }

    async fn decide_parts(&self, plan: &Arc<Plan>, budget: Option<Duration>) -> Answers {
        // One look at the clock for all that follows: what is given back has what the parts have left, and not a budget of its own.
        let began = Instant::now();
        let parts = self.parts(plan);
        let asks = parts.iter().map(|part| {
            let ask = Ask::Part(Arc::new(plan.part(&part.checks)));
            self.decide_part(plan, part, ask, deadline(began, part.backend.timeout, budget))
        });
        let replies = futures_util::future::join_all(asks).await;
        let mut all: SmallVec<[Option<Result<Decision, StoreFailure>>; 4]> =
            SmallVec::from_elem(None, plan.checks.len());
        for (part, reply) in parts.iter().zip(&replies) {
            for (index, answer) in part.checks.iter().zip(reply) {
                all[*index] = Some(*answer);
            }
        }
        let mut all: Answers = all.into_iter().map(|answer| answer.unwrap_or(Err(StoreFailure::BadResponse))).collect();
        // Given back even if the caller goes, and waited for, so that a caller who comes again finds it there.
        let gifts = self.give_back(plan, &parts, &mut all);
        let _ = timeout_at(deadline(began, self.main.timeout, budget), futures_util::future::join_all(gifts)).await;
        all
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

    /// A part that was not refused by itself has charged checks that a refused request should have spared.
    fn give_back(&self, plan: &Arc<Plan>, parts: &[Part<'_>], answers: &mut Answers) -> Vec<JoinHandle<Reply>> {
        let mut gifts = Vec::new();
        let decided: SmallVec<[Decision; 4]> =
            answers.iter().map(|answer| answer.unwrap_or(Decision::uncounted(true))).collect();
        if !refuses(&plan.checks, &decided) {
            return gifts;
        }
        for part in parts {
            let of_part = |index: &usize| (plan.checks[*index].clone(), decided[*index]);
            let (checks, its): (Vec<Check>, Vec<Decision>) = part.checks.iter().map(of_part).unzip();
            if refuses(&checks, &its) {
                continue;
            }
            let was_taken = |index: &&usize| {
                let check = &plan.checks[**index];
                let spares = check.quota.on_over_limit() == OnOverLimit::Spare;
                spares && check.hits.taken() > 0 && answers[**index].is_ok_and(|decision| decision.fits)
            };
            let taken: SmallVec<[usize; 4]> = part.checks.iter().filter(was_taken).copied().collect();
            if taken.is_empty() {
                continue;
            }
            let (mut checks, keys) = plan.part(&taken);
            for (check, index) in checks.iter_mut().zip(&taken) {
                answers[*index] = answers[*index].map(|decision| spared(decision, check));
                check.hits = Hits::Refund(check.hits.taken());
            }
            let (backend, slot, gift) = (part.backend.clone(), part.slot, Ask::Part(Arc::new((checks, keys))));
            let deadline = deadline(Instant::now(), backend.timeout, None);
            let refusals = self.refusals.clone();
            gifts.push(self.gifts.spawn(async move {
                let forget = || {
                    let (checks, keys) = gift.asked();
                    refusals.iter().for_each(|refusals| refusals.forget_refunds(checks, keys));
                };
                forget();
                let reply = ask(&backend, gift.clone(), slot, deadline).await;
                forget();
                reply
            }));
        }
        gifts
    }
}

/// The decision as if nothing had been taken.
fn spared(decision: Decision, check: &Check) -> Decision {
    let (hits, rate) = (check.hits.taken(), &check.quota.rates()[decision.rate]);
    let shorter_us = if check.quota.algorithm().is_bucket() && rate.leak() > 0 {
        (hits * rate.weight()).div_ceil(rate.leak()) * rate.tick_us()
    } else {
        0
    };
    Decision {
        remaining: (decision.remaining + hits).min(rate.capacity()),
        reset_us: decision.reset_us.saturating_sub(shorter_us),
        ..decision
    }
}

fn is_per_second(quota: &Quota) -> bool {
    quota.rates().iter().all(|rate| rate.period().unit() == Unit::Second && rate.period().multiplier() == 1)
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
