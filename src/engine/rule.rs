//! A rule: a limit with a place in the tree, and how it takes part in a verdict.

use std::sync::Arc;

use super::quota::Quota;

/// What callers get while the store cannot decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStoreFailure {
    Allow,
    Deny,
    Error,
    Local,
}

impl OnStoreFailure {
    pub const ALL: [OnStoreFailure; 4] =
        [OnStoreFailure::Allow, OnStoreFailure::Deny, OnStoreFailure::Error, OnStoreFailure::Local];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            OnStoreFailure::Allow => "allow",
            OnStoreFailure::Deny => "deny",
            OnStoreFailure::Error => "error",
            OnStoreFailure::Local => "local",
        }
    }

    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

/// A quota and the plan it comes from, if it comes from one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    pub quota: Arc<Quota>,
    pub plan: Option<Box<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Counts nothing and always allows.
    Unlimited,
    /// All of these must allow. Never empty; more than one where plans are chained.
    Counted(Box<[Counted]>),
}

/// A node of a domain's tree that has a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its place in [`super::tree::RuleSet::rules`].
    pub id: usize,
    pub domain: Arc<str>,
    /// How each level of its path is written: `key`, or `key_value`. The metrics and `/rlconfig` know it by these.
    pub path: Box<[Box<str>]>,
    pub name: Option<Box<str>>,
    /// The names of rules that are dropped when this one matches in the same request.
    pub replaces: Box<[Box<str>]>,
    pub limit: Limit,
    /// Never refuses.
    pub shadow: bool,
    /// Refuses only together with every other rule of this kind.
    pub quota_mode: bool,
    /// Metrics show the request's value at every level.
    pub detailed_metric: bool,
    pub on_store_failure: Option<OnStoreFailure>,
}

impl Rule {
    /// Its name, or its path if it has none.
    #[must_use]
    pub fn shown_name(&self) -> String {
        self.name.as_deref().map_or_else(|| self.path.join("."), str::to_owned)
    }
}
