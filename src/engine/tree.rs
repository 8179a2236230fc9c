//! The rules of all domains, and how a descriptor finds its own.
//!
//! Level by level: the exact (key, value), else the first glob of that key that matches, in the order of the file, else
//! the key alone. What is chosen is never taken back. The rule is the one at the last entry.

#[cfg(test)]
mod tests;

use std::{collections::HashMap, sync::Arc};

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use super::{glob::Glob, request::Entry, rule::Rule};

type Map<V> = HashMap<Box<str>, V, RandomState>;

/// One node of a tree. With neither rule nor children it is an allow-list entry.
#[derive(Clone, Debug, Default)]
pub struct Node {
    pub rule: Option<Arc<Rule>>,
    pub children: Level,
    /// Metrics show the request's value at this level.
    pub value_to_metric: bool,
    /// All values that match the glob share one counter.
    pub share_threshold: bool,
}

/// Siblings, by key.
#[derive(Clone, Debug, Default)]
pub struct Level {
    keys: Map<Siblings>,
}

/// The nodes of one key.
#[derive(Clone, Debug, Default)]
pub struct Siblings {
    exact: Map<Node>,
    globs: Vec<(Glob, Node)>,
    default: Option<Box<Node>>,
}

impl Siblings {
    /// How many have a value of their own.
    #[must_use]
    pub fn exact_count(&self) -> usize {
        self.exact.len()
    }

    /// In the order of the file.
    pub fn globs(&self) -> impl Iterator<Item = &Glob> {
        self.globs.iter().map(|(glob, _)| glob)
    }

    /// All of them, with their values: empty for the key alone, a pattern for a glob.
    pub fn nodes(&self) -> impl Iterator<Item = (&str, &Node)> {
        let exact = self.exact.iter().map(|(value, node)| (&**value, node));
        let globs = self.globs.iter().map(|(glob, node)| (glob.text(), node));
        exact.chain(globs).chain(self.default.iter().map(|node| ("", &**node)))
    }

    /// Whether the key stands there alone, for every value that nothing else takes.
    #[must_use]
    pub fn has_default(&self) -> bool {
        self.default.is_some()
    }
}

/// A sibling with the same key and value stands there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DuplicateSibling;

impl Level {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The keys that stand here, in no order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.keys.keys().map(|key| &**key)
    }

    #[must_use]
    pub fn siblings(&self, key: &str) -> Option<&Siblings> {
        self.keys.get(key)
    }

    /// An empty value is the default of its key; one with a star is a glob.
    pub fn insert(&mut self, key: &str, value: &str, node: Node) -> Result<(), DuplicateSibling> {
        let siblings = self.keys.entry(key.into()).or_default();
        if value.is_empty() {
            if siblings.default.is_some() {
                return Err(DuplicateSibling);
            }
            siblings.default = Some(Box::new(node));
        } else if let Some(glob) = Glob::parse(value) {
            if siblings.globs.iter().any(|(sibling, _)| sibling.text() == value) {
                return Err(DuplicateSibling);
            }
            siblings.globs.push((glob, node));
        } else {
            if siblings.exact.contains_key(value) {
                return Err(DuplicateSibling);
            }
            siblings.exact.insert(value.into(), node);
        }
        Ok(())
    }

    fn choose(&self, entry: Entry<'_>) -> Option<Step<'_>> {
        let siblings = self.keys.get(entry.key)?;
        if let Some(node) = siblings.exact.get(entry.value) {
            return Some(Step { node, how: How::Exact });
        }
        if let Some((glob, node)) = siblings.globs.iter().find(|(glob, _)| glob.matches(entry.value)) {
            return Some(Step { node, how: How::Glob(glob.text()) });
        }
        siblings.default.as_deref().map(|node| Step { node, how: How::Default })
    }
}

/// How an entry met its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How<'t> {
    Exact,
    /// With the text of the pattern.
    Glob(&'t str),
    Default,
}

/// One level of a way through the tree.
#[derive(Clone, Copy, Debug)]
pub struct Step<'t> {
    pub node: &'t Node,
    pub how: How<'t>,
}

impl<'t> Step<'t> {
    /// The pattern, where all values that match it count as one.
    #[must_use]
    pub fn shared_pattern(&self) -> Option<&'t str> {
        match self.how {
            How::Glob(pattern) if self.node.share_threshold => Some(pattern),
            _ => None,
        }
    }
}

pub type Steps<'t> = SmallVec<[Step<'t>; 3]>;

/// The tree of one domain.
#[derive(Clone, Debug)]
pub struct RuleTree {
    pub domain: Arc<str>,
    /// Entries whose value is part of the slot tag: see [`super::key`].
    pub partition_by: Box<[Box<str>]>,
    pub root: Level,
}

impl RuleTree {
    /// As far as the entries lead: as many steps as entries if every one of them met a node.
    #[must_use]
    pub fn walk<'t>(&'t self, entries: &[Entry<'_>]) -> Steps<'t> {
        let mut steps = Steps::new();
        let mut level = &self.root;
        for entry in entries {
            let Some(step) = level.choose(*entry) else { break };
            level = &step.node.children;
            steps.push(step);
        }
        steps
    }

    /// The rule of a descriptor, and the way to it.
    #[must_use]
    pub fn find<'t>(&'t self, entries: &[Entry<'_>]) -> Option<(&'t Arc<Rule>, Steps<'t>)> {
        let steps = self.walk(entries);
        if steps.len() != entries.len() {
            return None;
        }
        let rule = steps.last()?.node.rule.as_ref()?;
        Some((rule, steps))
    }
}

/// What holds for all rules at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Begins every key.
    pub key_prefix: Box<str>,
    /// No request is refused; what would have been refused is told.
    pub shadow: bool,
    /// Every rule is a quota rule.
    pub quota_mode: bool,
}

/// All rules, compiled. Never changed: a reload makes another one.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    domains: HashMap<Arc<str>, RuleTree, RandomState>,
    /// Every rule, in the order of the files, at the place that is its id.
    rules: Vec<Arc<Rule>>,
    options: Options,
}

impl RuleSet {
    /// Rules must stand at their ids, and domains be distinct: `config::compile` sees to both.
    #[must_use]
    pub fn new(trees: Vec<RuleTree>, rules: Vec<Arc<Rule>>, options: Options) -> Self {
        let domains = trees.into_iter().map(|tree| (tree.domain.clone(), tree)).collect();
        Self { domains, rules, options }
    }

    #[must_use]
    pub fn domain(&self, name: &str) -> Option<&RuleTree> {
        self.domains.get(name)
    }

    pub fn domains(&self) -> impl Iterator<Item = &RuleTree> {
        self.domains.values()
    }

    #[must_use]
    pub fn rules(&self) -> &[Arc<Rule>] {
        &self.rules
    }

    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }
}
