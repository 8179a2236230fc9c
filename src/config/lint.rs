//! What is allowed and probably not meant. Nothing here refuses anything.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{
    diagnostic::{Finding, Place, Report, Step, Trail, label},
    rates::{Inline, QuotaSpec, inline_rates},
    rules_file::{At, DescriptorSpec, Field, RulesFile},
};
use crate::engine::{
    glob::Glob,
    quota::{Algorithm, OnOverLimit, Quota, Rate},
};

/// More globs of one key than this are not compared with each other.
const COMPARED_MAX: usize = 500;
/// A bucket whose clock ticks more coarsely than this may surprise.
const TICK_US_MAX: u64 = 1_000;
/// Paths listed in one message.
const LISTED_MAX: usize = 5;

/// Looks at files that compile.
pub fn lint<'n>(report: &mut Report<'_>, files: &'n [(usize, At<RulesFile<'n>>)]) {
    let mut names: HashMap<&str, HashSet<&str>> = HashMap::new();
    for (_, file) in files {
        let domain = names.entry(file.value.domain.copied().unwrap_or_default()).or_default();
        collect_names(&file.value.descriptors, domain);
    }
    for (source, file) in files {
        let domain = file.value.domain.copied().unwrap_or_default();
        let names = names.get(domain).cloned().unwrap_or_default();
        let mut linter = Linter { report, trail: Trail::new(*source, domain), names, paths: Vec::new() };
        linter.level(&file.value.descriptors);
        linter.partition(&file.value);
    }
}

type Descriptors<'n> = Field<Vec<At<DescriptorSpec<'n>>>>;

fn collect_names<'n>(descriptors: &Descriptors<'n>, names: &mut HashSet<&'n str>) {
    for At { value: spec, .. } in descriptors.get().into_iter().flatten() {
        names.extend(spec.rate_limit.get().and_then(|limit| limit.name.copied()));
        collect_names(&spec.descriptors, names);
    }
}

fn key_of<'n>(spec: &DescriptorSpec<'n>) -> &'n str {
    spec.key.copied().unwrap_or_default()
}

fn value_of<'n>(spec: &DescriptorSpec<'n>) -> &'n str {
    spec.value.copied().unwrap_or_default()
}

fn rules_in(spec: &DescriptorSpec<'_>) -> usize {
    let below: usize = spec.descriptors.get().into_iter().flatten().map(|child| rules_in(&child.value)).sum();
    below + usize::from(spec.rate_limit.at().is_some())
}

struct Linter<'r, 's, 'n> {
    report: &'r mut Report<'s>,
    trail: Trail<'n>,
    /// The names of all rules of the domain.
    names: HashSet<&'n str>,
    /// The (key, value) pairs that lead to each rule.
    paths: Vec<Vec<(&'n str, &'n str)>>,
}

impl<'n> Linter<'_, '_, 'n> {
    fn level(&mut self, descriptors: &Descriptors<'n>) {
        let Some(descriptors) = descriptors.get() else { return };
        self.trail.steps.push(Step::Field("descriptors"));
        self.globs(descriptors);
        for (index, At { value: spec, .. }) in descriptors.iter().enumerate() {
            self.trail.steps.push(Step::Index(index));
            self.trail.labels.push((key_of(spec), value_of(spec)));
            self.node(spec);
            self.level(&spec.descriptors);
            self.trail.labels.pop();
            self.trail.steps.pop();
        }
        self.trail.steps.pop();
    }

    fn node(&mut self, spec: &DescriptorSpec<'n>) {
        if let (Some(place), true) = (spec.key.place(), key_of(spec).contains('*')) {
            let message = "a `*` in a key is an ordinary character; only values are patterns";
            self.report.add(&self.trail, Finding::warning(place, message).field("key").hint("move it into value"));
        }
        let Some(limit) = spec.rate_limit.get() else {
            for (field, mode) in [("shadow_mode", &spec.shadow_mode), ("quota_mode", &spec.quota_mode)] {
                if let Some(At { value: true, place }) = mode.at() {
                    let message = format!("{field} has no effect without a rate_limit beside it");
                    let finding = Finding::warning(*place, message).field(field);
                    self.report.add(&self.trail, finding.hint("it does not pass on to the descriptors below"));
                }
            }
            return;
        };
        self.paths.push(self.trail.labels.clone());
        for At { value: entry, .. } in limit.replaces.get().into_iter().flatten() {
            if let Some(At { value: name, place }) = entry.name.at().filter(|name| !self.names.contains(name.value)) {
                let message = format!("no rule of this domain is named '{name}', so that nothing is replaced");
                self.report.add(&self.trail, Finding::warning(*place, message).field("rate_limit.replaces"));
            }
        }
    }

    /// Compares the globs of each key with those before them, and the default of the key with all of them.
    fn globs(&mut self, descriptors: &[At<DescriptorSpec<'n>>]) {
        let mut by_key: BTreeMap<&str, Vec<(usize, Glob, Place)>> = BTreeMap::new();
        for (index, At { value: spec, place }) in descriptors.iter().enumerate() {
            if let Some(glob) = Glob::parse(value_of(spec)) {
                let place = spec.value.place().unwrap_or(*place);
                by_key.entry(key_of(spec)).or_default().push((index, glob, place));
            }
        }
        for (key, globs) in &by_key {
            if let (true, Some((_, _, place))) = (globs.len() > COMPARED_MAX, globs.last()) {
                let message = format!("'{key}' has {} patterns, and each request may try all of them", globs.len());
                self.report.add(&self.trail, Finding::warning(*place, message));
                continue;
            }
            for (at, later) in globs.iter().enumerate() {
                self.compare(descriptors, &globs[..at], later);
            }
        }
        for (index, At { value: spec, place }) in descriptors.iter().enumerate() {
            let globs = by_key.get(key_of(spec)).map(Vec::as_slice).unwrap_or_default();
            let all = globs.iter().find(|(_, glob, _)| glob.text().bytes().all(|byte| byte == b'*'));
            if let (true, Some((_, glob, first))) = (value_of(spec).is_empty(), all) {
                self.unreachable(spec, index, spec.key.place().unwrap_or(*place), glob, *first);
            }
        }
    }

    fn compare(
        &mut self,
        descriptors: &[At<DescriptorSpec<'n>>],
        earlier: &[(usize, Glob, Place)],
        (index, glob, place): &(usize, Glob, Place),
    ) {
        // Most patterns have nothing in common, which is quickly seen.
        let rivals: Vec<_> =
            earlier.iter().filter(|(_, earlier, _)| can_both_match(earlier.text(), glob.text())).collect();
        if let Some((_, cover, first)) = rivals.iter().find(|(_, earlier, _)| earlier.covers(glob)) {
            self.unreachable(&descriptors[*index].value, *index, *place, cover, *first);
            return;
        }
        if let Some((_, other, first)) = rivals.iter().find(|(_, earlier, _)| !glob.covers(earlier)) {
            let (text, other) = (glob.text(), other.text());
            let message = format!(
                "'{text}' and '{other}' ({}:{}) can both match a value; '{other}' wins because it stands first",
                first.line, first.column
            );
            self.at_child(&descriptors[*index].value, *index, Finding::warning(*place, message).field("value"));
        }
    }

    fn unreachable(&mut self, spec: &DescriptorSpec<'n>, index: usize, place: Place, cover: &Glob, first: Place) {
        let rules = match rules_in(spec) {
            1 => "its rule can".to_owned(),
            many => format!("its {many} rules can"),
        };
        let message = format!(
            "'{}' ({}:{}) matches everything that this would, so that {rules} never apply",
            cover.text(),
            first.line,
            first.column
        );
        let finding = Finding::warning(place, message).field("value");
        self.at_child(spec, index, finding.hint("put the narrower pattern first, or remove one of the two"));
    }

    fn at_child(&mut self, spec: &DescriptorSpec<'n>, index: usize, finding: Finding) {
        self.trail.steps.push(Step::Index(index));
        self.trail.labels.push((key_of(spec), value_of(spec)));
        self.report.add(&self.trail, finding);
        self.trail.labels.pop();
        self.trail.steps.pop();
    }

    /// Says which rules share a call to the store, where a domain is spread over several slots.
    fn partition(&mut self, file: &RulesFile<'n>) {
        let Some(At { value: names, place }) = file.partition_by.at() else { return };
        let mut groups: BTreeMap<Vec<&str>, Vec<String>> = BTreeMap::new();
        for path in &self.paths {
            let has = |name: &&str| path.iter().any(|(key, _)| key == name);
            let tags = names.iter().map(|name| name.value).filter(has).collect();
            let labels: Vec<String> = path.iter().map(|(key, value)| label(key, value)).collect();
            groups.entry(tags).or_default().push(labels.join(" > "));
        }
        for name in names.iter().filter(|name| !groups.keys().any(|tags| tags.contains(&name.value))) {
            let message = format!("no rule of this document has an entry '{}' in its path", name.value);
            self.report.add(&self.trail, Finding::warning(name.place, message).field("partition_by"));
        }
        for (tags, rules) in groups {
            let listed = rules.iter().take(LISTED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
            let more = if rules.len() > LISTED_MAX { ", ..." } else { "" };
            let shared = match tags.as_slice() {
                [] => {
                    "share the domain's own call in a cluster, because none of the entries is in their paths".to_owned()
                }
                tags => format!("share one call per value of {} in a cluster", tags.join(" and ")),
            };
            let message = format!("{} of {} rules {shared}: {listed}{more}", rules.len(), self.paths.len());
            self.report.add(&self.trail, Finding::info(*place, message).field("partition_by"));
        }
    }
}

/// Whether some value begins and ends as both patterns want. Between, each star leaves room for the other pattern's
/// pieces, so that this is all it takes.
fn can_both_match(a: &str, b: &str) -> bool {
    let first = |text: &str| text.find('*').unwrap_or(text.len());
    let last = |text: &str| text.rfind('*').map_or(0, |at| at + 1);
    let (a_first, b_first) = (&a[..first(a)], &b[..first(b)]);
    let (a_last, b_last) = (&a[last(a)..], &b[last(b)..]);
    let begins = a_first.starts_with(b_first) || b_first.starts_with(a_first);
    begins && (a_last.ends_with(b_last) || b_last.ends_with(a_last))
}

/// Looks at one limit that compiles.
pub fn quota(report: &mut Report<'_>, trail: &Trail<'_>, spec: &QuotaSpec<'_, '_>, quota: &Quota) {
    // Most limits give no cause for any of this, and there can be very many of them.
    let is_plain = |rate: &Rate| rate.requests() > 0 && rate.tick_us() <= TICK_US_MAX;
    if quota.rates().len() == 1 && quota.rates().iter().all(is_plain) {
        return;
    }
    let written = inline_rates(spec);
    let place = |rate: &Inline<'_, '_>| rate.requests.place().unwrap_or(rate.place);
    for (index, (rate, written)) in quota.rates().iter().zip(&written).enumerate() {
        if rate.requests() == 0 {
            let message = "a limit of 0 blocks everything";
            report.add(trail, Finding::warning(place(written), message).field("requests_per_unit"));
        }
        if rate.tick_us() > TICK_US_MAX {
            let message = format!(
                "the bucket is so large or so slow that its clock ticks every {} ms instead of every microsecond",
                rate.tick_us() / 1_000
            );
            let place = written.burst.place().unwrap_or(place(written));
            report.add(trail, Finding::warning(place, message).field("burst"));
        }
        let others = quota.rates().iter().enumerate().filter(|(other, _)| *other != index);
        let earlier = |other: usize, rate: &Rate, than: &Rate| other < index || !implies(quota, than, rate);
        let narrower = others.into_iter().find(|(other, by)| implies(quota, by, rate) && earlier(*other, by, rate));
        if let Some((other, _)) = narrower {
            let message = format!("this rate can never refuse, because rates[{other}] is narrower");
            report.add(trail, Finding::warning(written.place, message).field("rates"));
        }
    }
}

/// Whether what the first rate admits always fits the second. Only told where refused requests count nothing: where they
/// count, a rate can be exceeded by requests that another one refused.
fn implies(quota: &Quota, narrow: &Rate, wide: &Rate) -> bool {
    if quota.on_over_limit() != OnOverLimit::Spare {
        return false;
    }
    let per = |rate: &Rate, period: &Rate| u128::from(rate.requests()) * u128::from(period.period_us());
    match quota.algorithm() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            wide.capacity() >= narrow.capacity() && per(wide, narrow) >= per(narrow, wide)
        }
        // Windows begin at whole periods, so that one of them holds a whole number of shorter ones.
        Algorithm::FixedWindow => {
            wide.period_us().is_multiple_of(narrow.period_us()) && per(wide, narrow) >= per(narrow, wide)
        }
        Algorithm::SlidingWindow => false,
    }
}
