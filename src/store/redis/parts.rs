//! Requests that need more than one call: how they are split, and what follows when one part refuses.
//!
//! Each part is decided all or nothing by itself. A part that was not refused by itself has charged checks that a refused request
//! should have spared: those are given back, even if the caller goes away meanwhile.

use std::{sync::Arc, time::Duration};

use smallvec::SmallVec;
use tokio::{
    task::JoinHandle,
    time::{Instant, timeout_at},
};

use super::{
    Backend, RedisStore, ask, deadline,
    lane::{Ask, Reply},
};
use crate::{
    engine::{
        algorithm::{Check, Decision, Decisions, refuses},
        key,
        plan::Plan,
        quota::{Algorithm, OnOverLimit, Quota, Unit},
        request::Hits,
    },
    store::{Answers, StoreFailure},
};

/// The checks of a plan that are decided in one call, by their places in the plan.
pub(super) struct Part<'s> {
    pub backend: &'s Arc<Backend>,
    /// 0 where there are no slots.
    pub slot: u16,
    pub checks: SmallVec<[usize; 4]>,
}

impl RedisStore {
    /// One for each store that the plan needs, and in a cluster one for each slot there.
    pub(super) fn parts(&self, plan: &Plan) -> SmallVec<[Part<'_>; 2]> {
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

    pub(super) async fn decide_parts(&self, plan: &Arc<Plan>, budget: Option<Duration>) -> Answers {
        // One look at the clock for all that follows: what is given back has what the parts have left, and not a budget of its own.
        let began = Instant::now();
        let parts = self.parts(plan);
        let asks = parts.iter().map(|part| {
            let ask = Ask::Part(Arc::new(plan.part(&part.checks)));
            self.decide_part(plan, part, ask, deadline(began, part.backend.timeout, budget))
        });
        let replies = futures_util::future::join_all(asks).await;
        let mut answers: Answers = SmallVec::from_elem(Err(StoreFailure::BadResponse), plan.checks.len());
        for (part, reply) in parts.iter().zip(&replies) {
            part.checks.iter().zip(reply).for_each(|(index, answer)| answers[*index] = *answer);
        }
        // What has no answer may pass yet.
        let mut decided: Decisions = answers.iter().map(|answer| answer.unwrap_or(Decision::uncounted(true))).collect();
        if refuses(&plan.checks, &decided) {
            let gifts = self.give_back(plan, &answers, &mut decided, began);
            wait_for(gifts, deadline(began, self.main.timeout, budget)).await;
            answers.iter_mut().zip(decided).for_each(|(answer, decision)| *answer = answer.map(|_| decision));
        }
        answers
    }

    /// The same where the store has not refused the request, but what had to be decided without it did. `decisions` are those
    /// that count in the end.
    pub async fn spare(
        &self,
        plan: &Plan,
        answers: &Answers,
        decisions: &mut Decisions,
        asked_at: Instant,
        budget: Option<Duration>,
    ) {
        let gifts = self.give_back(plan, answers, decisions, asked_at);
        wait_for(gifts, deadline(asked_at, self.main.timeout, budget)).await;
    }

    /// Gives back what the checks of a refused request took that should have been spared, and makes their decisions say so.
    /// `answers` is what the store said to each check, when it was asked at `asked_at`.
    fn give_back(
        &self,
        plan: &Plan,
        answers: &Answers,
        decisions: &mut Decisions,
        asked_at: Instant,
    ) -> Vec<JoinHandle<Reply>> {
        let mut gifts = Vec::new();
        for part in self.parts(plan) {
            let taken = taken(plan, &part, answers);
            // What was taken of a window that has ended is gone with it; given back later, it would be taken off the next one.
            let end = |index: &usize| {
                let is_window = plan.checks[*index].quota.algorithm() == Algorithm::FixedWindow;
                answers[*index].ok().filter(|_| is_window).map(|taken| asked_at + Duration::from_micros(taken.reset_us))
            };
            let is_open = |index: &usize| end(index).is_none_or(|end| end > Instant::now());
            let (windows, others): (SmallVec<[usize; 4]>, SmallVec<[usize; 4]>) =
                taken.iter().copied().filter(is_open).partition(|index| end(index).is_some());
            for (taken, end) in [(&others, None), (&windows, windows.iter().filter_map(end).min())] {
                if !taken.is_empty() {
                    gifts.push(self.give(&part, gift(plan, taken), end));
                }
            }
            for index in taken {
                decisions[index] = spared(decisions[index], &plan.checks[index]);
            }
        }
        gifts
    }

    /// It is not sent after `end`.
    fn give(&self, part: &Part<'_>, gift: Ask, end: Option<Instant>) -> JoinHandle<Reply> {
        let (backend, slot, refusals) = (part.backend.clone(), part.slot, self.refusals.clone());
        let deadline = deadline(Instant::now(), backend.timeout, None);
        let deadline = end.map_or(deadline, |end| end.min(deadline));
        self.gifts.spawn(async move {
            let forget = || {
                let (checks, keys) = gift.asked();
                refusals.iter().for_each(|refusals| refusals.forget_refunds(checks, keys));
            };
            forget();
            let reply = ask(&backend, gift.clone(), slot, deadline).await;
            forget();
            reply
        })
    }
}

fn gift(plan: &Plan, taken: &[usize]) -> Ask {
    let (mut checks, keys) = plan.part(taken);
    for check in &mut checks {
        check.hits = Hits::Refund(check.hits.taken());
    }
    Ask::Part(Arc::new((checks, keys)))
}

/// So that a caller who comes again finds it there.
async fn wait_for(gifts: Vec<JoinHandle<Reply>>, deadline: Instant) {
    let _ = timeout_at(deadline, futures_util::future::join_all(gifts)).await;
}

/// The checks of a part that were charged and would not have been, had it known that the request is refused.
fn taken(plan: &Plan, part: &Part<'_>, answers: &Answers) -> SmallVec<[usize; 4]> {
    let mut answered: SmallVec<[usize; 4]> = part.checks.clone();
    answered.retain(|index| answers[*index].is_ok());
    // By what was sent, which is not what the request says: see `Plan::part`.
    let (sent, _) = plan.part(&answered);
    let its: Decisions = answered.iter().filter_map(|index| answers[*index].ok()).collect();
    if refuses(&sent, &its) {
        return SmallVec::new();
    }
    let was_taken = |index: &mut usize| {
        let check = &plan.checks[*index];
        let spares = check.quota.on_over_limit() == OnOverLimit::Spare;
        spares && check.hits.taken() > 0 && answers[*index].is_ok_and(|decision| decision.fits)
    };
    answered.retain(was_taken);
    answered
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

pub(super) fn is_per_second(quota: &Quota) -> bool {
    quota.rates().iter().all(|rate| rate.period().unit() == Unit::Second && rate.period().multiplier() == 1)
}
