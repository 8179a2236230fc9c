//! Whether this process wants requests: what every door's health answer is read from.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// Shared by all doors. Starts with a healthy store and without rules.
#[derive(Debug)]
pub struct Health {
    parts: Mutex<Parts>,
    serving: watch::Sender<bool>,
}

#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct Parts {
    domain_required: bool,
    /// How many domains the rules in use have; none until the first good rules have come.
    domains: Option<usize>,
    store_healthy: bool,
    draining: bool,
}

/// Why no requests are wanted. Each says what to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    #[error("draining: the process is shutting down")]
    Draining,
    #[error("rules: none are loaded yet, see the log or /config on the debug port")]
    NoRules,
    #[error("rules: they have no domain")]
    NoDomain,
    #[error("store: the store does not answer")]
    StoreDown,
}

impl Parts {
    fn not_ready(self) -> Option<NotReady> {
        if self.draining {
            Some(NotReady::Draining)
        } else if self.domains.is_none() {
            Some(NotReady::NoRules)
        } else if self.domain_required && self.domains == Some(0) {
            Some(NotReady::NoDomain)
        } else if !self.store_healthy {
            Some(NotReady::StoreDown)
        } else {
            None
        }
    }
}

impl Health {
    /// `domain_required` is `HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED`: rules without a domain are then not enough.
    #[must_use]
    pub fn new(domain_required: bool) -> Self {
        let parts = Parts { domain_required, domains: None, store_healthy: true, draining: false };
        Self { parts: Mutex::new(parts), serving: watch::Sender::new(parts.not_ready().is_none()) }
    }

    /// What stands in the way, if anything does.
    #[must_use]
    pub fn not_ready(&self) -> Option<NotReady> {
        self.parts().not_ready()
    }

    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.not_ready().is_none()
    }

    /// Follows [`Health::is_serving`]; woken only when it changes.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.serving.subscribe()
    }

    /// Rules with this many domains are in use.
    pub fn set_rules(&self, domains: usize) {
        self.set(|parts| parts.domains = Some(domains));
    }

    pub fn set_store_healthy(&self, healthy: bool) {
        self.set(|parts| parts.store_healthy = healthy);
    }

    /// There is no way back.
    pub fn set_draining(&self) {
        self.set(|parts| parts.draining = true);
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The watch is set under the lock, so that it never ends on the older of two changes.
    fn set(&self, change: impl FnOnce(&mut Parts)) {
        let mut parts = self.parts();
        change(&mut parts);
        let serving = parts.not_ready().is_none();
        self.serving.send_if_modified(|known| std::mem::replace(known, serving) != serving);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_rules() -> Health {
        let health = Health::new(false);
        health.set_rules(1);
        health
    }

    #[test]
    fn without_rules_nothing_is_ready_and_without_a_domain_only_where_none_is_required() {
        for (required, domains, not_ready) in [
            (false, None, Some(NotReady::NoRules)),
            (false, Some(0), None),
            (true, Some(0), Some(NotReady::NoDomain)),
            (true, Some(1), None),
        ] {
            let health = Health::new(required);
            domains.into_iter().for_each(|domains| health.set_rules(domains));
            assert_eq!(health.not_ready(), not_ready);
        }
    }

    #[test]
    fn a_store_that_comes_back_is_healthy_again_but_draining_is_for_good() {
        let health = with_rules();
        health.set_store_healthy(false);
        assert_eq!(health.not_ready(), Some(NotReady::StoreDown));
        health.set_store_healthy(true);
        assert!(health.is_serving());
        health.set_draining();
        health.set_store_healthy(true);
        assert_eq!(health.not_ready(), Some(NotReady::Draining));
    }

    #[test]
    fn who_subscribed_hears_of_changes_and_of_nothing_else() {
        let health = with_rules();
        let mut serving = health.subscribe();
        health.set_rules(2);
        assert!(!serving.has_changed().unwrap());
        health.set_draining();
        assert!(serving.has_changed().unwrap());
        assert!(!*serving.borrow_and_update());
    }
}
