//! Deciding alone while the store cannot: each sluice takes its share of every limit.

use std::sync::Arc;

use super::memory::MemoryStore;
use crate::engine::{algorithm::Decisions, plan::Plan};

#[derive(Debug)]
pub struct LocalShare {
    store: MemoryStore,
    /// Among how many a limit is shared.
    replicas: u32,
}

impl LocalShare {
    #[must_use]
    pub fn new(entries_max: usize, replicas: u32) -> Self {
        Self { store: MemoryStore::new(entries_max), replicas }
    }

    /// Decides some checks of a plan, all or nothing among themselves.
    #[must_use]
    pub fn decide(&self, plan: &Plan, checks: &[usize]) -> Decisions {
        let (mut checks, keys) = plan.part(checks);
        for check in &mut checks {
            check.quota = Arc::new(check.quota.shared_by(self.replicas));
        }
        self.store.decide(&checks, &keys)
    }
}
