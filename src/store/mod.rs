//! Where counters are kept. The port is one question: may these checks pass?
//!
//! A store owns the clock. It never decides what a caller gets when it cannot answer: that is the limiter's part.

pub mod breaker;
pub mod local;
pub mod memory;
pub mod redis;
pub mod refusals;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use smallvec::SmallVec;

use crate::engine::{
    algorithm::{Decision, Decisions, State},
    plan::Plan,
    quota::Quota,
    request::USUAL,
};
use memory::MemoryStore;
use redis::RedisStore;
use refusals::Refusals;

/// One answer for each check of a plan: a decision, or why there is none.
pub type Answers = SmallVec<[Result<Decision, StoreFailure>; USUAL]>;

/// Why a check could not be decided. Counted by these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreFailure {
    /// The store refused or the connection broke.
    RedisError,
    /// No answer within the budget.
    Timeout,
    /// An answer of another shape than ours.
    BadResponse,
    /// The key holds something that is not ours.
    BadTypes,
    /// The store is known to be sick and was not asked.
    Breaker,
    /// A mistake of sluice: see [`crate::panics`].
    Panic,
}

impl StoreFailure {
    pub const ALL: [StoreFailure; 6] = [
        StoreFailure::RedisError,
        StoreFailure::Timeout,
        StoreFailure::BadResponse,
        StoreFailure::BadTypes,
        StoreFailure::Breaker,
        StoreFailure::Panic,
    ];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            StoreFailure::RedisError => "redis_error",
            StoreFailure::Timeout => "timeout",
            StoreFailure::BadResponse => "bad_response",
            StoreFailure::BadTypes => "bad_types",
            StoreFailure::Breaker => "breaker",
            StoreFailure::Panic => "panic",
        }
    }
}

/// How a counter stands, by the clock of its store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Brought up to now.
    pub state: State,
    /// When it was last changed, if anything is remembered of it.
    pub changed_us: Option<u64>,
}

impl Standing {
    #[must_use]
    pub fn new(remembered: Option<State>, quota: &Quota, now_us: u64) -> Self {
        let changed_us = remembered.as_ref().map(|state| state.at_us);
        let mut state = remembered.unwrap_or_else(|| State::absent(quota));
        state.settle(quota, now_us);
        Self { state, changed_us }
    }
}

/// Two of them, and no more until somebody outside has to bring a third.
#[derive(Debug)]
pub enum Store {
    Memory(MemoryStore),
    Redis(RedisStore),
}

impl Store {
    /// Decides all checks of a plan where nobody has to be waited for.
    #[must_use]
    pub fn decide_here(&self, plan: &Plan) -> Option<Decisions> {
        match self {
            Store::Memory(store) => Some(store.decide(&plan.checks, &plan.keys)),
            Store::Redis(_) => None,
        }
    }

    /// Decides all checks of a plan at once. `budget` is how long the caller can wait.
    pub async fn decide(&self, plan: &Arc<Plan>, budget: Option<Duration>) -> Answers {
        match self {
            Store::Memory(store) => store.decide(&plan.checks, &plan.keys).into_iter().map(Ok).collect(),
            Store::Redis(store) => store.decide(plan, budget).await,
        }
    }

    /// Gives back what checks took that are to be spared, where a request that the store has not refused is refused by policy. Their
    /// decisions say so then. `asked_at` is when the question came, `budget` how long the caller could wait then.
    pub async fn spare(
        &self,
        plan: &Plan,
        answers: &Answers,
        decisions: &mut Decisions,
        asked_at: Instant,
        budget: Option<Duration>,
    ) {
        match self {
            // It always answers.
            Store::Memory(_) => {}
            Store::Redis(store) => store.spare(plan, answers, decisions, asked_at.into(), budget).await,
        }
    }

    /// How one counter stands, without charging it.
    pub async fn peek(&self, key: &str, quota: &Quota, budget: Option<Duration>) -> Result<Standing, StoreFailure> {
        match self {
            Store::Memory(store) => Ok(Standing::new(store.peek(key), quota, memory::now_us())),
            Store::Redis(store) => store.peek(key, quota, budget).await,
        }
    }

    /// What the store gives back by itself is told to who remembers refusals.
    pub fn tell_of_gifts(&mut self, refusals: &Arc<Refusals>) {
        match self {
            Store::Memory(_) => {}
            Store::Redis(store) => store.tell_of_gifts(refusals),
        }
    }

    /// Waits for what is still under way when the last caller has gone.
    pub async fn drain(&self) {
        match self {
            Store::Memory(_) => {}
            Store::Redis(store) => store.drain().await,
        }
    }

    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Store::Memory(_) => "memory",
            Store::Redis(_) => "redis",
        }
    }
}
