//! The rules in force as the native API shows them: by domain and by prefix, which is the first key.

use super::render::policy;
use crate::{
    engine::{
        quota::Quota,
        rule::{Limit, Rule},
        tree::{Level, RuleSet, RuleTree, Siblings},
    },
    grpc::proto::ratelimiter::v1::{DomainConfig, Entry, GetCurrentConfigResponse, PrefixConfig, RuleConfig},
    load_report::LoadReport,
};

/// `only` is one domain; empty is all of them.
pub fn configured(set: &RuleSet, report: &LoadReport, only: &str, default: Option<&Quota>) -> GetCurrentConfigResponse {
    let wanted = set.domains().filter(|tree| only.is_empty() || *tree.domain == *only);
    let mut domains: Vec<DomainConfig> = wanted.map(domain).collect();
    domains.sort_unstable_by(|one, other| one.domain.cmp(&other.domain));
    GetCurrentConfigResponse {
        generation: report.generation,
        hash: report.hash.clone(),
        loaded_at: report.loaded_at.map(Into::into),
        domains,
        default_rate: default.and_then(|quota| Some(policy(quota, quota.rates().first()?, None))),
    }
}

fn domain(tree: &RuleTree) -> DomainConfig {
    let mut prefixes: Vec<&str> = tree.root.keys().collect();
    prefixes.sort_unstable();
    let prefix = |key: &str| {
        let mut rules = Vec::new();
        collect_key(&tree.root, key, &mut Vec::new(), &mut rules);
        rules.sort_unstable_by_key(|(id, _)| *id);
        PrefixConfig { prefix: key.to_owned(), rules: rules.into_iter().map(|(_, rule)| rule).collect() }
    };
    DomainConfig { domain: tree.domain.to_string(), prefixes: prefixes.into_iter().map(prefix).collect() }
}

/// Adds the rules below one key, each with its id.
fn collect_key(level: &Level, key: &str, path: &mut Vec<Entry>, rules: &mut Vec<(usize, RuleConfig)>) {
    for (value, node) in level.siblings(key).into_iter().flat_map(Siblings::nodes) {
        path.push(Entry { key: key.to_owned(), value: value.to_owned() });
        if let Some(rule) = &node.rule {
            rules.push((rule.id, rule_config(rule, path)));
        }
        for key in node.children.keys() {
            collect_key(&node.children, key, path, rules);
        }
        path.pop();
    }
}

fn rule_config(rule: &Rule, path: &[Entry]) -> RuleConfig {
    let counted = match &rule.limit {
        Limit::Unlimited => &[][..],
        Limit::Counted(counted) => counted,
    };
    let rates = counted.iter().flat_map(|counted| {
        counted.quota.rates().iter().map(|rate| policy(&counted.quota, rate, counted.plan.as_deref()))
    });
    RuleConfig {
        path: path.to_vec(),
        name: rule.name.as_deref().unwrap_or_default().to_owned(),
        rates: rates.collect(),
        unlimited: rule.limit == Limit::Unlimited,
        shadow_mode: rule.shadow,
        quota_mode: rule.quota_mode,
        track_denials: counted.iter().any(|counted| counted.quota.track_denials()),
    }
}
