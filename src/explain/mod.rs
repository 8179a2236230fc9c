//! Which rule a request meets, why, and where its counters stand. Never charges: it asks with no hits, which is a look.
//!
//! The way through the tree and the plan are the engine's own, so that what is explained is what happens. Knows no door.

mod descriptor;
#[cfg(test)]
mod tests;
mod text;
mod way;

use std::ops::Range;

use std::sync::Arc;

use serde::Serialize;

pub use descriptor::parse_descriptor;
pub use way::{LevelMet, Met, PassedOver, Why};

use crate::{
    engine::{
        algorithm::Decision,
        key::slot,
        plan::{Limited, Match, Plan},
        quota::{OnOverLimit, Quota},
        request::{Descriptor, Entry, Hits, Request},
        rule::{Limit, OnStoreFailure, Rule},
        tree::{Options, RuleSet},
    },
    store::{Answers, Store, StoreFailure},
};

/// All that can be said of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    pub domain: String,
    /// The whole service is in shadow mode: nothing is refused.
    pub global_shadow_mode: bool,
    /// The whole service is in quota mode: every rule is a quota rule.
    pub global_quota_mode: bool,
    pub descriptors: Vec<Explained>,
}

/// All that can be said of one descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explained {
    pub entries: Vec<Pair>,
    /// As far as the entries lead, and the first that leads nowhere.
    pub levels: Vec<LevelMet>,
    #[serde(flatten)]
    pub outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pair {
    pub key: String,
    pub value: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum Outcome {
    Limited {
        rule: RuleShown,
        counters: Vec<CounterShown>,
    },
    Unlimited {
        rule: RuleShown,
    },
    NoLimit {
        #[serde(flatten)]
        why: Why,
        /// The same in words.
        reason: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RuleShown {
    /// As the metrics and `/rlconfig` name it.
    pub path: String,
    pub name: Option<String>,
    /// In words.
    pub limit: String,
    /// `enforce`, `shadow` or `quota`.
    pub mode: &'static str,
    /// `null` is the setting of the process.
    pub on_store_failure: Option<&'static str>,
    pub replaces: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CounterShown {
    pub key: String,
    /// In a cluster of Redis or Valkey.
    pub slot: u16,
    pub plan: Option<String>,
    pub algorithm: &'static str,
    pub rates: Vec<RateShown>,
    pub on_over_limit: &'static str,
    pub track_denials: bool,
    /// Absent if no store was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<StateShown>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RateShown {
    pub name: Option<String>,
    pub requests_per_unit: u32,
    pub unit: &'static str,
    pub unit_multiplier: u32,
    /// Buckets only.
    pub burst: Option<u64>,
}

/// Where a counter stands now, at the rate that has the least room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum StateShown {
    Known {
        /// Which of `rates`.
        rate: usize,
        used: u64,
        remaining: u64,
        /// To the end of the window, or until the bucket is full of tokens.
        reset_s: u64,
        /// Hits refused since the last admitted one, where they are tracked.
        denials: u64,
    },
    Unknown {
        failure: &'static str,
    },
}

/// From the rules alone.
#[must_use]
pub fn explain(set: &RuleSet, domain: &str, descriptors: &[Vec<(String, String)>]) -> Explanation {
    let request = look_request(domain, descriptors);
    explained(set, &request, &set.plan(&request), None)
}

/// From the rules, and what the store knows of the counters.
pub async fn look(set: &RuleSet, store: &Store, domain: &str, descriptors: &[Vec<(String, String)>]) -> Explanation {
    let request = look_request(domain, descriptors);
    let plan = Arc::new(set.plan(&request));
    let answers = if plan.checks.is_empty() { Answers::new() } else { store.decide(&plan, None).await };
    explained(set, &request, &plan, Some(&answers))
}

fn look_request<'a>(domain: &'a str, descriptors: &'a [Vec<(String, String)>]) -> Request<'a> {
    let descriptor = |entries: &'a Vec<(String, String)>| Descriptor {
        entries: entries.iter().map(|(key, value)| Entry { key, value }).collect(),
        hits: Hits::Take(0),
        override_quota: None,
    };
    Request { domain, descriptors: descriptors.iter().map(descriptor).collect() }
}

fn explained(set: &RuleSet, request: &Request<'_>, plan: &Plan, answers: Option<&Answers>) -> Explanation {
    let descriptors = request.descriptors.iter().zip(&plan.matches).map(|(descriptor, matched)| Explained {
        entries: descriptor.entries.iter().map(pair).collect(),
        levels: way::levels(set, request.domain, &descriptor.entries),
        outcome: match matched {
            Match::Limited(limited @ Limited { rule: Some(rule), .. }) => Outcome::Limited {
                rule: rule_shown(rule, set.options()),
                counters: counters(plan, rule, limited.checks.clone(), answers),
            },
            Match::Unlimited(rule) => Outcome::Unlimited { rule: rule_shown(rule, set.options()) },
            // A limit without a rule comes with a request, and a look brings none.
            Match::Limited(_) | Match::Free => {
                let why = way::why_free(set, request, &descriptor.entries);
                Outcome::NoLimit { reason: why.to_string(), why }
            }
        },
    });
    Explanation {
        domain: request.domain.to_owned(),
        global_shadow_mode: set.options().shadow,
        global_quota_mode: set.options().quota_mode,
        descriptors: descriptors.collect(),
    }
}

fn pair(entry: &Entry<'_>) -> Pair {
    Pair { key: entry.key.to_owned(), value: entry.value.to_owned() }
}

fn counters(plan: &Plan, rule: &Rule, checks: Range<usize>, answers: Option<&Answers>) -> Vec<CounterShown> {
    let counter = |(index, check): (usize, usize)| {
        let key = plan.keys.get(plan.checks[check].slot);
        let plan_name = match &rule.limit {
            Limit::Counted(counted) => counted[index].plan.as_deref(),
            Limit::Unlimited => None,
        };
        counter_shown(key, plan_name, &plan.checks[check].quota, answers.map(|answers| answers[check]))
    };
    checks.enumerate().map(counter).collect()
}

fn rule_shown(rule: &Rule, options: &Options) -> RuleShown {
    RuleShown {
        path: path_of(rule),
        name: rule.name.as_deref().map(str::to_owned),
        limit: text::limit_in_words(&rule.limit),
        mode: match (rule.shadow, rule.quota_mode || options.quota_mode) {
            (true, _) => "shadow",
            (false, true) => "quota",
            (false, false) => "enforce",
        },
        on_store_failure: rule.on_store_failure.map(OnStoreFailure::name),
        replaces: rule.replaces.iter().map(ToString::to_string).collect(),
    }
}

fn path_of(rule: &Rule) -> String {
    format!("{}.{}", rule.domain, rule.path.join("."))
}

fn counter_shown(
    key: &str,
    plan: Option<&str>,
    quota: &Quota,
    answer: Option<Result<Decision, StoreFailure>>,
) -> CounterShown {
    let rates = quota.rates().iter().map(|rate| RateShown {
        name: rate.name().map(str::to_owned),
        requests_per_unit: rate.requests(),
        unit: rate.period().unit().name(),
        unit_multiplier: rate.period().multiplier(),
        burst: quota.algorithm().is_bucket().then(|| rate.capacity()),
    });
    let state = answer.map(|answer| match answer {
        Ok(decision) => StateShown::Known {
            rate: decision.rate,
            used: decision.before,
            remaining: decision.remaining,
            reset_s: decision.reset_us.div_ceil(1_000_000),
            denials: decision.denials,
        },
        Err(failure) => StateShown::Unknown { failure: failure.name() },
    });
    CounterShown {
        key: key.to_owned(),
        slot: slot(key),
        plan: plan.map(str::to_owned),
        algorithm: quota.algorithm().name(),
        rates: rates.collect(),
        on_over_limit: match quota.on_over_limit() {
            OnOverLimit::Charge => "charge",
            OnOverLimit::Spare => "spare",
        },
        track_denials: quota.track_denials(),
        state,
    }
}
