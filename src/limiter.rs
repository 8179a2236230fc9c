//! The use case: a request becomes a plan, the store decides it, the decisions become an answer.
//!
//! Two pure functions around one await. Knows no wire format, no Redis and no YAML. What callers get while the store cannot
//! decide is one visible `match` in here.

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use serde_json::{Map, Value};
use smallvec::SmallVec;
use tracing::debug;

use crate::{
    engine::{
        algorithm::{Decision, Decisions, refuses},
        plan::{Limited, Match, Plan},
        quota::Quota,
        request::{Hits, Request},
        rule::OnStoreFailure,
        tree::RuleSet,
        verdict::{Code, Verdict},
    },
    live::Reader,
    panics::{self, Panicked},
    store::{Answers, Store, StoreFailure, local::LocalShare, refusals::Refusals},
    telemetry::{
        metrics::{BoundedSeries, Metrics, RuleMetrics},
        traces::CallSpan,
    },
};

pub type Metadata = Map<String, Value>;

/// All that is in force at one time: the rules, and what goes with each of them.
#[derive(Debug, Default)]
pub struct Rules {
    /// Until the first good rules have come, there are none to answer by.
    pub loaded: bool,
    pub set: RuleSet,
    /// By rule id: what the caller is told when the rule passes.
    pub metadata: Vec<Option<Arc<Metadata>>>,
    /// By rule id. Made when a rule is first met, so that a hundred thousand rules cost nothing at rest.
    series: Vec<RuleSeries>,
}

#[derive(Debug, Default)]
struct RuleSeries {
    fixed: OnceLock<Arc<RuleMetrics>>,
    by_value: OnceLock<Arc<BoundedSeries>>,
}

impl Rules {
    #[must_use]
    pub fn new(set: RuleSet, metadata: Vec<Option<Arc<Metadata>>>) -> Self {
        let series = set.rules().iter().map(|_| RuleSeries::default()).collect();
        Self { loaded: true, set, metadata, series }
    }

    fn series(&self, metrics: &Metrics, domain: &str, limited: &Limited) -> Arc<RuleMetrics> {
        match (limited.rule.as_deref(), &limited.labels) {
            (Some(rule), None) => self.series[rule.id].fixed.get_or_init(|| metrics.rule(rule)).clone(),
            (Some(rule), Some(labels)) => {
                let series = self.series[rule.id].by_value.get_or_init(|| metrics.by_value(rule));
                metrics.rule_by_value(rule, series, labels)
            }
            (None, labels) => metrics.override_of(domain, labels.iter().flatten().cloned()),
        }
    }
}

/// How the limiter is set up.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Where neither the rule nor its domain says otherwise.
    pub on_store_failure: OnStoreFailure,
    /// The share of a limit from which on a hit counts as near it.
    pub near_limit_ratio: f32,
}

#[derive(Debug)]
pub struct Limiter {
    rules: Reader<Rules>,
    store: Store,
    /// Where asking the store is worth sparing.
    refusals: Option<Arc<Refusals>>,
    /// Decides where a rule says `local`.
    local: LocalShare,
    policy: Policy,
    metrics: Arc<Metrics>,
}

/// How a caller wants to be answered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asking<'a> {
    /// When the question came, if the caller has looked at the clock.
    pub began: Option<Instant>,
    /// How long the caller can wait.
    pub budget: Option<Duration>,
    /// What counts where a domain or a first key has no rules.
    pub default: Option<&'a Arc<Quota>>,
    /// The span of the call, if it is traced.
    pub span: Option<&'a CallSpan>,
}

/// What a request needs, and by which rules.
#[derive(Debug)]
pub struct Planned {
    rules: Arc<Rules>,
    plan: Arc<Plan>,
}

/// What was decided, with all that is needed to say it.
#[derive(Debug)]
pub struct Answer {
    pub rules: Arc<Rules>,
    pub plan: Arc<Plan>,
    pub decisions: Decisions,
    /// Some check was decided by policy because the store could not.
    pub degraded: bool,
    /// Refused without asking the store: see [`Refusals`].
    pub from_memory: bool,
    /// From the question to the decision.
    pub took: Duration,
}

/// The decisions of a plan, and how they came about, as in [`Answer`].
#[derive(Default)]
struct Decided {
    decisions: Decisions,
    degraded: bool,
    from_memory: bool,
}

impl Answer {
    #[must_use]
    pub fn verdict(&self) -> Verdict<'_> {
        self.plan.conclude(&self.decisions)
    }
}

/// Why a request has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    #[error("no rate limit configuration loaded")]
    NoRules,
    /// The store could not decide, and a rule says that the caller is to be told so.
    #[error("the store cannot decide: {}", .0.name())]
    Unavailable(StoreFailure),
}

impl Limiter {
    #[must_use]
    pub fn new(rules: Reader<Rules>, store: Store, local: LocalShare, policy: Policy, metrics: Arc<Metrics>) -> Self {
        Self { rules, store, refusals: None, local, policy, metrics }
    }

    /// Answers from memory what the store has refused for some time to come.
    #[must_use]
    pub fn remembering(mut self, refusals: Refusals) -> Self {
        let refusals = Arc::new(refusals);
        self.store.tell_of_gifts(&refusals);
        Self { refusals: Some(refusals), ..self }
    }

    #[must_use]
    pub fn rules(&self) -> Arc<Rules> {
        self.rules.load()
    }

    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Decides a request. `budget` is how long the caller can wait.
    pub async fn check(&self, request: &Request<'_>, budget: Option<Duration>) -> Result<Answer, CheckError> {
        self.check_as(request, Asking { budget, ..Asking::default() }).await
    }

    /// Decides a request as its caller wants it.
    pub async fn check_as(&self, request: &Request<'_>, asking: Asking<'_>) -> Result<Answer, CheckError> {
        let planned = self.plan(request, asking.default)?;
        self.check_planned(request.domain, planned, asking).await
    }

    /// The first half of it, after which the request is needed no more.
    pub fn plan(&self, request: &Request<'_>, default: Option<&Arc<Quota>>) -> Result<Planned, CheckError> {
        let rules = self.rules.load();
        if !rules.loaded {
            self.metrics.service_errors.increment(1);
            return Err(CheckError::NoRules);
        }
        let plan = Arc::new(rules.set.plan_or(request, default));
        Ok(Planned { rules, plan })
    }

    /// The second half.
    pub async fn check_planned(
        &self,
        domain: &str,
        Planned { rules, plan }: Planned,
        asking: Asking<'_>,
    ) -> Result<Answer, CheckError> {
        let began = asking.began.unwrap_or_else(Instant::now);
        let decided = match panics::caught(self.decide(&plan, asking, began)).await {
            Ok(decided) => decided?,
            Err(Panicked) => self.settle(&plan, &SmallVec::from_elem(Err(StoreFailure::Panic), plan.checks.len()))?,
        };
        let Decided { decisions, degraded, from_memory } = decided;
        let took = began.elapsed();
        let answer = Answer { rules, plan, decisions, degraded, from_memory, took };
        // Whatever goes wrong in counting, what was decided stands.
        let _ = panics::caught_now(|| self.account(domain, &answer));
        self.metrics.decision_duration.record(took);
        Ok(answer)
    }

    /// What a caller gets where a panic has left not even a plan. Without a rule there is no limit to decide by here, so that
    /// `local` allows.
    pub fn without_a_plan(&self) -> Result<Code, CheckError> {
        let policy = self.policy.on_store_failure;
        self.metrics.degraded(StoreFailure::Panic, policy.name()).increment(1);
        match policy {
            OnStoreFailure::Allow | OnStoreFailure::Local => Ok(Code::Ok),
            OnStoreFailure::Deny => Ok(Code::OverLimit),
            OnStoreFailure::Error => Err(CheckError::Unavailable(StoreFailure::Panic)),
        }
    }

    async fn decide(&self, plan: &Arc<Plan>, asking: Asking<'_>, began: Instant) -> Result<Decided, CheckError> {
        if let Some(decided) = self.decide_at_once(plan, asking, began) {
            return Ok(decided);
        }
        let span = asking.span.map(|call| Box::new(call.store(self.store.name(), plan.checks.len())));
        // Now, too, because the caller may go away, and what it gives back may be given back all the same.
        if let Some(refusals) = &self.refusals {
            refusals.forget_refunds(&plan.checks, &plan.keys);
        }
        // In memory of its own: a call that needs no store has no room for it.
        let answers = Box::pin(self.store.decide(plan, asking.budget)).await;
        if let Some(span) = span {
            span.end(answers.iter().find_map(|answer| answer.err()).map(StoreFailure::name));
        }
        if let Some(refusals) = &self.refusals {
            refusals.forget_refunds(&plan.checks, &plan.keys);
            refusals.learn(&plan.checks, &plan.keys, &answers, began);
        }
        if answers.iter().all(Result::is_ok) {
            return Ok(Decided { decisions: answers.into_iter().flatten().collect(), ..Decided::default() });
        }
        // Kept apart, because it is rare.
        Box::pin(self.settle_and_spare(plan, answers, asking.budget, began)).await
    }

    /// What the store took for rules that spare refused requests is given back where policy refuses the request.
    async fn settle_and_spare(
        &self,
        plan: &Plan,
        answers: Answers,
        budget: Option<Duration>,
        began: Instant,
    ) -> Result<Decided, CheckError> {
        let mut settled = self.settle(plan, &answers);
        let mut by_store = allowing(&answers);
        let is_refused = |decided: &Decided| refuses(&plan.checks, &decided.decisions);
        // Where what the store has answered is a refusal by itself, the store has seen to it.
        if settled.as_ref().map_or(true, is_refused) && !refuses(&plan.checks, &by_store) {
            let decisions = settled.as_mut().map_or(&mut by_store, |decided| &mut decided.decisions);
            self.store.spare(plan, &answers, decisions, began, budget).await;
        }
        settled
    }

    /// Where nobody has to be waited for.
    fn decide_at_once(&self, plan: &Plan, asking: Asking<'_>, began: Instant) -> Option<Decided> {
        if plan.checks.is_empty() {
            return Some(Decided::default());
        }
        let recall = |refusals: &Arc<Refusals>| refusals.recall(&plan.checks, &plan.keys, began);
        if let Some(decisions) = self.refusals.as_ref().and_then(recall) {
            return Some(Decided { decisions, from_memory: true, degraded: false });
        }
        // A store that is traced is asked for all the same.
        let here = asking.span.is_none().then(|| self.store.decide_here(plan)).flatten();
        here.map(|decisions| Decided { decisions, ..Decided::default() })
    }

    /// Gives every check a decision, by policy where the store has none. A refusal that is certain goes before a failure.
    fn settle(&self, plan: &Plan, answers: &Answers) -> Result<Decided, CheckError> {
        let mut decisions = allowing(answers);
        let refused = plan.conclude(&decisions).code == Code::OverLimit;
        let mut local: SmallVec<[usize; 4]> = SmallVec::new();
        for (check, answer) in answers.iter().enumerate() {
            let Err(failure) = *answer else { continue };
            let policy = self.on_store_failure(plan, check);
            self.metrics.store_errors(failure).increment(1);
            self.metrics.degraded(failure, policy.name()).increment(1);
            match policy {
                OnStoreFailure::Allow => {}
                OnStoreFailure::Deny => decisions[check] = Decision::uncounted(false),
                OnStoreFailure::Local => local.push(check),
                OnStoreFailure::Error if refused => {}
                OnStoreFailure::Error => {
                    self.metrics.store_call_errors.increment(1);
                    return Err(CheckError::Unavailable(failure));
                }
            }
        }
        for (check, decision) in local.iter().zip(self.local.decide(plan, &local)) {
            decisions[*check] = decision;
        }
        Ok(Decided { decisions, degraded: true, from_memory: false })
    }

    fn on_store_failure(&self, plan: &Plan, check: usize) -> OnStoreFailure {
        let of_rule = plan.matches.iter().find_map(|matched| match matched {
            Match::Limited(limited) if limited.checks.contains(&check) => limited.rule.as_ref()?.on_store_failure,
            _ => None,
        });
        of_rule.unwrap_or(self.policy.on_store_failure)
    }

    fn account(&self, domain: &str, answer: &Answer) {
        if answer.plan.unknown_domain {
            self.metrics.domain_not_found.increment(answer.plan.matches.len() as u64);
        }
        if answer.rules.set.options().shadow && answer.verdict().masked {
            self.metrics.global_shadow.increment(1);
        }
        if tracing::enabled!(tracing::Level::DEBUG) {
            tell(domain, answer);
        }
        for matched in &answer.plan.matches {
            let Match::Limited(limited) = matched else { continue };
            let series = answer.rules.series(&self.metrics, domain, limited);
            let governing = answer.plan.governing(limited, &answer.decisions);
            let decision = &answer.decisions[governing];
            let capacity = answer.plan.checks[governing].quota.rates()[decision.rate].capacity();
            account_hits(&series, limited, decision, capacity, self.policy.near_limit_ratio);
            if answer.from_memory {
                series.over_limit_local.increment(limited.hits.taken());
            }
        }
    }
}

/// The decisions, as if whatever the store could not decide would pass.
fn allowing(answers: &Answers) -> Decisions {
    answers.iter().map(|answer| answer.unwrap_or(Decision::uncounted(true))).collect()
}

/// One debug line for each descriptor: which rule, which counter, and what was decided.
fn tell(domain: &str, answer: &Answer) {
    let verdict = answer.verdict();
    for (index, (matched, status)) in answer.plan.matches.iter().zip(&verdict.statuses).enumerate() {
        let decision = if status.code == Code::OverLimit { "OVER_LIMIT" } else { "OK" };
        let limited = match matched {
            Match::Free => {
                debug!(domain, descriptor = index, decision, "no rule is met");
                continue;
            }
            Match::Unlimited(rule) => {
                debug!(domain, descriptor = index, rule = rule.shown_name(), decision, "an unlimited rule is met");
                continue;
            }
            Match::Limited(limited) => limited,
        };
        let governing = answer.plan.governing(limited, &answer.decisions);
        let (check, decided) = (&answer.plan.checks[governing], &answer.decisions[governing]);
        let (sign, hits) = match limited.hits {
            Hits::Take(hits) => ("", hits),
            Hits::Refund(hits) => ("-", hits),
        };
        debug!(
            domain,
            descriptor = index,
            rule = limited.shown_name(),
            key = answer.plan.keys.get(check.slot),
            hits = format!("{sign}{hits}"),
            before = decided.before,
            remaining = decided.remaining,
            shadow = limited.is_shadow(),
            degraded = answer.degraded,
            decision,
            "decided"
        );
    }
}

/// Counts hits as the reference does. `before` hits of `limit` were in use.
///
/// Limit 10, near from 8 on, 7 in use, 5 asked for: 2 of them are beyond the limit, and 2 are near it, those from 8 to 10. A
/// request that does not fit as a whole is within the limit with none of its hits.
fn account_hits(series: &RuleMetrics, limited: &Limited, decision: &Decision, limit: u64, near_ratio: f32) {
    let hits = match limited.hits {
        Hits::Take(hits) => hits,
        Hits::Refund(hits) => {
            series.negative_hits.increment(hits);
            series.allowed.increment(1);
            return;
        }
    };
    series.total_hits.increment(hits);
    series.hits.increment(hits);
    if decision.fits || limited.is_shadow() {
        series.allowed.increment(1);
    } else {
        series.refused.increment(1);
    }
    if !decision.counted {
        return;
    }
    let (near, before) = (near_threshold(limit, near_ratio), decision.before);
    let after = before + hits;
    if decision.fits {
        series.within_limit.increment(hits);
        if after > near {
            series.near_limit.increment(if before >= near { hits } else { after - near });
        }
        return;
    }
    let over = if before >= limit { hits } else { after.saturating_sub(limit) };
    series.over_limit.increment(over);
    series.near_limit.increment(limit.saturating_sub(near.max(before)));
    if limited.is_shadow() {
        series.shadow_mode.increment(over);
    }
}

/// In 32-bit floats, as the reference computes it, so that both count alike.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "what the reference does"
)]
fn near_threshold(limit: u64, ratio: f32) -> u64 {
    (limit as f32 * ratio).floor() as u64
}
