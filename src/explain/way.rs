//! How each entry of a descriptor met its node, what was passed over, and why there may be no limit at the end.

use std::fmt;

use serde::Serialize;

use super::path_of;
use crate::engine::{
    request::{Entry, Request},
    rule::Rule,
    tree::{How, Level, RuleSet, Step},
};

/// How many siblings or keys a sentence names; more are counted.
const NAMED_MAX: usize = 20;

/// One level of the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LevelMet {
    pub key: String,
    pub value: String,
    #[serde(flatten)]
    pub met: Met,
    pub passed_over: Vec<PassedOver>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "met_by", rename_all = "snake_case")]
pub enum Met {
    Exact,
    Glob {
        pattern: String,
        /// All values that match it share one counter.
        shares_counter: bool,
    },
    /// The key alone, which takes every value.
    Default,
    Nothing {
        reason: String,
    },
}

/// A sibling that was not chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PassedOver {
    pub sibling: String,
    pub why: &'static str,
}

/// Why a descriptor has no limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Why {
    UnknownDomain {
        domain: String,
        known: Vec<String>,
    },
    EmptyDescriptor,
    /// The entry at this level, counted from 1, met nothing.
    NothingMet {
        level: usize,
    },
    /// The way ends above this level.
    DeeperThanRules {
        level: usize,
    },
    /// Rules stand further down, below these keys.
    ShallowerThanRules {
        next_keys: Vec<String>,
    },
    AllowListed,
    Replaced {
        rule: String,
        by: Vec<String>,
    },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownDomain { domain, known } if known.is_empty() => {
                write!(f, "the domain `{domain}` has no rules; no other domain has any")
            }
            Self::UnknownDomain { domain, known } => {
                write!(f, "the domain `{domain}` has no rules; there are rules for {}", quoted(known))
            }
            Self::EmptyDescriptor => f.write_str("the descriptor has no entries"),
            Self::NothingMet { level } => write!(f, "entry {level} met nothing"),
            Self::DeeperThanRules { level } => {
                write!(f, "the descriptor is deeper than any rule on its way: nothing stands below entry {}", level - 1)
            }
            Self::ShallowerThanRules { next_keys } => {
                write!(
                    f,
                    "the node met has no limit of its own; rules below it need another entry, of {}",
                    quoted(next_keys)
                )
            }
            Self::AllowListed => {
                f.write_str("the node met has neither a limit nor rules below it: an entry of an allow list")
            }
            Self::Replaced { rule, by } => write!(f, "the rule {rule} is replaced by {}", by.join(", ")),
        }
    }
}

pub fn levels(set: &RuleSet, domain: &str, entries: &[Entry<'_>]) -> Vec<LevelMet> {
    let Some(tree) = set.domain(domain) else { return Vec::new() };
    let steps = tree.walk(entries);
    let mut level = &tree.root;
    let mut met = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let step = steps.get(index);
        met.push(level_met(level, *entry, step));
        match step {
            Some(step) => level = &step.node.children,
            None => break,
        }
    }
    met
}

fn level_met(level: &Level, entry: Entry<'_>, step: Option<&Step<'_>>) -> LevelMet {
    let met = match step.map(|step| (step.how, step.node)) {
        Some((How::Exact, _)) => Met::Exact,
        Some((How::Glob(pattern), node)) => {
            Met::Glob { pattern: pattern.to_owned(), shares_counter: node.share_threshold }
        }
        Some((How::Default, _)) => Met::Default,
        None => Met::Nothing { reason: nothing(level, entry) },
    };
    let passed_over = passed_over(level, entry, &met);
    LevelMet { key: entry.key.to_owned(), value: entry.value.to_owned(), met, passed_over }
}

fn nothing(level: &Level, entry: Entry<'_>) -> String {
    let Some(siblings) = level.siblings(entry.key) else {
        let keys = sorted(level.keys());
        return match keys.len() {
            0 => "no rule goes this deep".to_owned(),
            _ => format!("no rule has the key `{}` here; there is {}", entry.key, quoted(&keys)),
        };
    };
    let (exact, globs) = (siblings.exact_count(), siblings.globs().count());
    let (Entry { key, value }, values) = (entry, if exact == 1 { "value" } else { "values" });
    let patterns = if globs == 1 { "pattern" } else { "patterns" };
    format!(
        "the key `{key}` has {exact} {values} and {globs} {patterns} here, but none takes `{value}`, and no default"
    )
}

/// What else could have been chosen: patterns and the key alone. Other values are not named: there may be many.
fn passed_over(level: &Level, entry: Entry<'_>, met: &Met) -> Vec<PassedOver> {
    let Some(siblings) = level.siblings(entry.key) else { return Vec::new() };
    let mut chosen_seen = false;
    let mut passed: Vec<PassedOver> = Vec::new();
    for glob in siblings.globs() {
        if matches!(met, Met::Glob { pattern, .. } if pattern == glob.text()) {
            chosen_seen = true;
            continue;
        }
        let why = match (glob.matches(entry.value), met) {
            (false, _) => "does not match",
            (true, Met::Exact) => "matches, but the exact value goes first",
            (true, _) if chosen_seen => "matches, but stands further down in the file",
            (true, _) => continue,
        };
        passed.push(PassedOver { sibling: format!("pattern `{}`", glob.text()), why });
    }
    if siblings.has_default() {
        let why = match met {
            Met::Exact => Some("takes any value, but the exact value goes first"),
            Met::Glob { .. } => Some("takes any value, but a pattern that matches goes first"),
            Met::Default | Met::Nothing { .. } => None,
        };
        passed.extend(why.map(|why| PassedOver { sibling: format!("key `{}` alone", entry.key), why }));
    }
    if passed.len() > NAMED_MAX {
        let more = passed.len() - NAMED_MAX;
        passed.truncate(NAMED_MAX);
        passed.push(PassedOver { sibling: format!("{more} more"), why: "left out here" });
    }
    passed
}

/// Why a descriptor that the plan leaves free is free.
pub fn why_free(set: &RuleSet, request: &Request<'_>, entries: &[Entry<'_>]) -> Why {
    let Some(tree) = set.domain(request.domain) else {
        let known = sorted(set.domains().map(|tree| &*tree.domain));
        return Why::UnknownDomain { domain: request.domain.to_owned(), known };
    };
    let steps = tree.walk(entries);
    let level = steps.len() + 1;
    let Some(last) = steps.last().map(|step| step.node) else {
        return if entries.is_empty() { Why::EmptyDescriptor } else { Why::NothingMet { level } };
    };
    match &last.rule {
        _ if steps.len() < entries.len() && last.children.is_empty() => Why::DeeperThanRules { level },
        _ if steps.len() < entries.len() => Why::NothingMet { level },
        None if last.children.is_empty() => Why::AllowListed,
        None => Why::ShallowerThanRules { next_keys: sorted(last.children.keys()) },
        Some(rule) => Why::Replaced { rule: called(rule), by: replaced_by(set, request, rule) },
    }
}

fn replaced_by(set: &RuleSet, request: &Request<'_>, rule: &Rule) -> Vec<String> {
    let Some(tree) = set.domain(request.domain) else { return Vec::new() };
    let met = request.descriptors.iter().filter_map(|descriptor| Some(tree.find(&descriptor.entries)?.0));
    let replaces =
        |other: &&std::sync::Arc<Rule>| other.replaces.iter().any(|name| Some(&**name) == rule.name.as_deref());
    let mut by: Vec<String> = met.filter(replaces).map(|rule| called(rule)).collect();
    by.dedup();
    by
}

fn called(rule: &Rule) -> String {
    match &rule.name {
        Some(name) => format!("{} (`{name}`)", path_of(rule)),
        None => path_of(rule),
    }
}

fn sorted<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort_unstable();
    names
}

fn quoted(names: &[String]) -> String {
    let some: Vec<String> = names.iter().take(NAMED_MAX).map(|name| format!("`{name}`")).collect();
    match names.len().saturating_sub(NAMED_MAX) {
        0 => some.join(", "),
        more => format!("{} and {more} more", some.join(", ")),
    }
}
