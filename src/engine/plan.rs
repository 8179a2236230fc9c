//! From a request to checks, and from decisions to a verdict: the two pure halves around the store's one answer.

#[cfg(test)]
mod tests;

use std::{ops::Range, sync::Arc};

use smallvec::SmallVec;

use super::{
    algorithm::{Check, Mode},
    key::Place,
    quota::Quota,
    request::{Descriptor, Entry, Hits, Request, USUAL},
    rule::{Counted, Limit, Rule},
    tree::{How, RuleSet, RuleTree, Steps},
};

/// How metrics and answers name the built-in default.
pub const DEFAULT_NAME: &str = "native_default";

/// What a request needs from the store. Owns all that it needs, so that the rules can change meanwhile.
#[derive(Debug, Default)]
pub struct Plan {
    /// One for each descriptor of the request.
    pub matches: SmallVec<[Match; USUAL]>,
    pub checks: SmallVec<[Check; USUAL]>,
    pub keys: Keys,
    /// A quota descriptor passes without being counted, so that quota rules cannot refuse this request.
    pub(super) quota_passes: bool,
    pub(super) shadow: bool,
    quota_mode: bool,
    /// The domain has no rules at all.
    pub unknown_domain: bool,
}

/// What a descriptor met.
#[derive(Debug)]
pub enum Match {
    /// No rule, or one that another rule replaces.
    Free,
    Unlimited(Arc<Rule>),
    Limited(Limited),
}

#[derive(Debug)]
pub struct Limited {
    /// `None` is a limit that came with the request, or the built-in default.
    pub rule: Option<Arc<Rule>>,
    /// No rule is there, and the built-in default counts.
    pub is_default: bool,
    pub hits: Hits,
    /// Its place in [`Plan::checks`].
    pub checks: Range<usize>,
    /// How metrics name its path, where values of the request are part of that.
    pub labels: Option<Box<[Box<str>]>>,
}

impl Limited {
    /// The name or the path of the rule; the built-in default has a name of its own, and a limit of a request is `override`.
    #[must_use]
    pub fn shown_name(&self) -> String {
        match &self.rule {
            Some(rule) => rule.shown_name(),
            None if self.is_default => DEFAULT_NAME.to_owned(),
            None => "override".to_owned(),
        }
    }

    /// The plan that one of its checks comes from.
    #[must_use]
    pub fn plan_name(&self, check: usize) -> Option<&str> {
        match self.rule.as_ref().map(|rule| &rule.limit) {
            Some(Limit::Counted(counted)) => counted[check - self.checks.start].plan.as_deref(),
            _ => None,
        }
    }

    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.rule.as_ref().is_some_and(|rule| rule.shadow)
    }
}

/// The keys of the distinct counters of a request, in one buffer.
#[derive(Debug, Default)]
pub struct Keys {
    text: String,
    ends: SmallVec<[usize; USUAL]>,
}

impl Keys {
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).map(|slot| self.get(slot))
    }

    #[must_use]
    pub fn get(&self, slot: usize) -> &str {
        let start = if slot == 0 { 0 } else { self.ends[slot - 1] };
        &self.text[start..self.ends[slot]]
    }

    /// The slot of a key that is written now, or that stands there already.
    fn slot_of(&mut self, write: impl FnOnce(&mut String)) -> usize {
        let start = self.text.len();
        write(&mut self.text);
        if let Some(slot) = (0..self.len()).find(|slot| *self.get(*slot) == self.text[start..]) {
            self.text.truncate(start);
            return slot;
        }
        self.ends.push(self.text.len());
        self.ends.len() - 1
    }
}

impl<'a> FromIterator<&'a str> for Keys {
    fn from_iter<I: IntoIterator<Item = &'a str>>(texts: I) -> Self {
        let mut keys = Self::default();
        for text in texts {
            keys.slot_of(|out| out.push_str(text));
        }
        keys
    }
}

impl RuleSet {
    /// Finds the rules of a request and the counters that they need.
    #[must_use]
    pub fn plan(&self, request: &Request<'_>) -> Plan {
        self.plan_or(request, None)
    }

    /// The same, but a descriptor whose domain or whose first key has no rules at all counts against `default`.
    #[must_use]
    pub fn plan_or(&self, request: &Request<'_>, default: Option<&Arc<Quota>>) -> Plan {
        let mut plan = Plan { shadow: self.options().shadow, quota_mode: self.options().quota_mode, ..Plan::default() };
        let tree = self.domain(request.domain);
        if tree.is_none() && default.is_none() {
            plan.unknown_domain = true;
            plan.matches.extend(request.descriptors.iter().map(|_| Match::Free));
            return plan;
        }
        let found: SmallVec<[_; USUAL]> =
            request.descriptors.iter().map(|descriptor| find(tree?, descriptor)).collect();
        // Every name that a matched rule replaces, whether or not that rule is itself replaced.
        let rules = || found.iter().filter_map(|found| found.as_ref()?.0.as_ref());
        let is_replaced = |rule: &Rule| {
            let replaces = |other: &Arc<Rule>| other.replaces.iter().any(|name| Some(&**name) == rule.name.as_deref());
            rule.name.is_some() && rules().any(replaces)
        };
        for (descriptor, found) in request.descriptors.iter().zip(&found) {
            let place = |steps| Place {
                prefix: &self.options().key_prefix,
                domain: request.domain,
                partition_by: tree.map_or(&[], |tree| &tree.partition_by),
                entries: &descriptor.entries,
                steps,
                is_default: false,
            };
            let matched = match found {
                None => match default.filter(|_| has_no_rules(tree, descriptor)) {
                    Some(quota) => {
                        let place = Place { is_default: true, ..place(&[]) };
                        Match::Limited(plan.limit(None, Some(quota), descriptor.hits, &place))
                    }
                    None => Match::Free,
                },
                Some((Some(rule), _)) if rule.limit == Limit::Unlimited => Match::Unlimited(rule.clone()),
                Some((Some(rule), _)) if is_replaced(rule) => Match::Free,
                Some((rule, steps)) => {
                    let of_request = descriptor.override_quota.as_ref();
                    Match::Limited(plan.limit(rule.as_ref(), of_request, descriptor.hits, &place(steps)))
                }
            };
            plan.quota_passes |= match &matched {
                Match::Free => plan.quota_mode,
                Match::Unlimited(_) => false,
                Match::Limited(limited) => limited.is_shadow() && plan.is_quota(limited),
            };
            plan.matches.push(matched);
        }
        plan.soften();
        plan
    }
}

/// The rule of a descriptor and the way to it; no rule for a limit that came with the request.
fn find<'t>(tree: &'t RuleTree, descriptor: &Descriptor<'_>) -> Option<(Option<Arc<Rule>>, Steps<'t>)> {
    if descriptor.entries.is_empty() {
        return None;
    }
    if descriptor.override_quota.is_some() {
        return Some((None, Steps::new()));
    }
    tree.find(&descriptor.entries).map(|(rule, steps)| (Some(rule.clone()), steps))
}

/// Whether nothing in the rules speaks of such descriptors: not even to let them pass.
fn has_no_rules(tree: Option<&RuleTree>, descriptor: &Descriptor<'_>) -> bool {
    let known = |key: &str| tree.is_some_and(|tree| tree.root.siblings(key).is_some());
    descriptor.entries.first().is_some_and(|first| !known(first.key))
}

impl Plan {
    /// `own` is the limit where no rule has one.
    fn limit(&mut self, rule: Option<&Arc<Rule>>, own: Option<&Arc<Quota>>, hits: Hits, place: &Place<'_>) -> Limited {
        let first = self.checks.len();
        let mode = match rule {
            Some(rule) if rule.shadow => Mode::Shadow,
            Some(rule) if rule.quota_mode => Mode::Quota,
            _ if self.quota_mode => Mode::Quota,
            _ => Mode::Enforce,
        };
        let own = own.map(|quota| Counted { quota: quota.clone(), plan: None });
        let counted: &[Counted] = match rule.map(|rule| &rule.limit) {
            Some(Limit::Counted(counted)) => counted,
            _ => own.as_slice(),
        };
        for (index, counted) in counted.iter().enumerate() {
            let slot = self.keys.slot_of(|out| place.write_key(counted, out));
            let quota = counted.quota.clone();
            self.checks.push(Check { quota, slot, hits, mode, chained: index > 0 });
        }
        Limited {
            rule: rule.cloned(),
            is_default: place.is_default,
            hits,
            checks: first..self.checks.len(),
            labels: labels(rule, place),
        }
    }

    /// Checks that cannot refuse this request are told so to the store.
    fn soften(&mut self) {
        let (shadow, quota_passes) = (self.shadow, self.quota_passes);
        soften(&mut self.checks, |mode| shadow || quota_passes && mode == Mode::Quota);
    }

    /// Some of the checks, with the keys that they need, to be decided apart from the others.
    ///
    /// Quota checks refuse only together. Where not all of them are here, those that are cannot tell, and must not keep the rest
    /// from being charged: they are shadows here, and whoever puts the parts together judges them.
    #[must_use]
    pub fn part(&self, checks: &[usize]) -> (Vec<Check>, Keys) {
        let mut slots: SmallVec<[usize; 4]> = SmallVec::new();
        let renumbered = checks.iter().enumerate().map(|(position, index)| {
            let check = self.checks[*index].clone();
            // The one that it belongs to may be in another part.
            let chained = check.chained && position > 0 && checks[position - 1] + 1 == *index;
            let slot = slots.iter().position(|slot| *slot == check.slot).unwrap_or_else(|| {
                slots.push(check.slot);
                slots.len() - 1
            });
            Check { slot, chained, ..check }
        });
        let mut renumbered: Vec<Check> = renumbered.collect();
        let quota_checks = |checks: &[Check]| checks.iter().filter(|check| check.mode == Mode::Quota).count();
        if quota_checks(&renumbered) < quota_checks(&self.checks) {
            soften(&mut renumbered, |mode| mode == Mode::Quota);
        }
        (renumbered, slots.iter().map(|slot| self.keys.get(*slot)).collect())
    }

    pub(super) fn is_quota(&self, limited: &Limited) -> bool {
        self.quota_mode || limited.rule.as_ref().is_some_and(|rule| rule.quota_mode)
    }
}

fn soften(checks: &mut [Check], which: impl Fn(Mode) -> bool) {
    for check in checks.iter_mut().filter(|check| which(check.mode)) {
        check.mode = Mode::Shadow;
    }
}

/// How metrics name the path of a rule, where that depends on the request: see `detailed_metric`, `value_to_metric`.
fn labels(rule: Option<&Arc<Rule>>, place: &Place<'_>) -> Option<Box<[Box<str>]>> {
    let entries = place.entries;
    if place.is_default {
        return Some(Box::new([DEFAULT_NAME.into()]));
    }
    // As the reference names it: where every level shows its value, one without a value keeps its underscore.
    let every_value =
        rule.is_some_and(|rule| rule.detailed_metric) && place.steps.iter().all(|step| step.shared_pattern().is_none());
    let with_value = |entry: &Entry<'_>| match entry.value {
        "" if !every_value => entry.key.into(),
        value => format!("{}_{value}", entry.key).into(),
    };
    let Some(rule) = rule else {
        return Some(entries.iter().map(with_value).collect());
    };
    let shows_value = |index: usize| {
        rule.detailed_metric || (place.steps[index].node.value_to_metric && place.steps[index].how != How::Exact)
    };
    if !(0..entries.len()).any(shows_value) {
        return None;
    }
    let label = |(index, entry): (usize, &Entry<'_>)| match place.steps[index].shared_pattern() {
        None if shows_value(index) => with_value(entry),
        _ => rule.path[index].clone(),
    };
    Some(entries.iter().enumerate().map(label).collect())
}
