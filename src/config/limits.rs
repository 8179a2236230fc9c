//! What is written as a limit, to a [`Limit`]: by plans, or inline, with the defaults of a domain.

use std::{collections::HashMap, sync::Arc};

use super::{
    diagnostic::{Finding, Place, Report, Step, Trail},
    hint, lint,
    rates::{Inline, QuotaSpec, rate_specs, refuse_quota},
    rules_file::{At, Defaults, Field, PlanSpec, RateLimitSpec, RulesFile},
};
use crate::engine::{
    quota::{Algorithm, OnOverLimit, Quota, Unit},
    rule::{Counted, Limit, OnStoreFailure},
};

/// Plans in one chain.
const CHAIN_MAX: usize = 8;

struct Plan<'n> {
    place: Place,
    spec: &'n PlanSpec<'n>,
    is_used: bool,
    /// What rules make of it, by what they say themselves. Without one for rules that say nothing it has been refused.
    quotas: Vec<(Own, Arc<Quota>)>,
}

/// What a rule says that its plan could have said.
type Own = (Option<OnOverLimit>, Option<bool>);

/// The limits of one document.
pub struct Limits<'n> {
    defaults: Defaults,
    plans: HashMap<&'n str, Plan<'n>>,
}

impl<'n> Limits<'n> {
    pub fn new(report: &mut Report<'_>, trail: &Trail<'n>, file: &'n RulesFile<'n>) -> Self {
        let defaults = file.defaults.get().cloned().unwrap_or_default();
        let mut limits = Self { defaults, plans: HashMap::new() };
        for (name, spec) in file.plans.get().into_iter().flatten() {
            let mut plan = Plan { place: name.place, spec, is_used: false, quotas: Vec::new() };
            let quota = limits.plan_quota(report, trail, name.value, &plan, (None, None));
            plan.quotas.extend(quota.map(|quota| ((None, None), quota)));
            limits.plans.insert(name.value, plan);
        }
        limits
    }

    pub fn on_store_failure(&self) -> Option<OnStoreFailure> {
        self.defaults.on_store_failure.copied()
    }

    /// Tells which plans no rule has asked for.
    pub fn finish(&self, report: &mut Report<'_>, trail: &Trail<'n>) {
        for (name, plan) in self.plans.iter().filter(|(_, plan)| !plan.is_used) {
            let message = format!("no rule uses the plan '{name}'");
            report.add(trail, Finding::warning(plan.place, message).field("plans"));
        }
    }

    /// `None` where a mistake has been reported.
    pub fn limit(
        &mut self,
        report: &mut Report<'_>,
        trail: &Trail<'n>,
        at: &'n At<Box<RateLimitSpec<'n>>>,
    ) -> Option<Limit> {
        let spec = &*at.value;
        if spec.unlimited.copied() == Some(true) {
            unlimited(report, trail, spec);
            return Some(Limit::Unlimited);
        }
        if matches!(spec.unlimited, Field::Wrong) {
            return None;
        }
        let quota_spec = QuotaSpec {
            algorithm: &spec.algorithm,
            rates: &spec.rates,
            inline: Inline {
                place: at.place,
                requests: &spec.requests_per_unit,
                unit: &spec.unit,
                multiplier: &spec.unit_multiplier,
                burst: &spec.burst,
                name: None,
            },
            on_over_limit: spec.on_over_limit.copied(),
            track_denials: spec.track_denials.copied(),
        };
        if !spec.plans.is_absent() || !spec.plan.is_absent() {
            return self.chain(report, trail, spec, &quota_spec);
        }
        let quota = self.quota(report, trail, &quota_spec)?;
        Some(Limit::Counted([Counted { quota: Arc::new(quota), plan: None }].into()))
    }

    fn chain(
        &mut self,
        report: &mut Report<'_>,
        trail: &Trail<'n>,
        spec: &'n RateLimitSpec<'n>,
        inline: &QuotaSpec<'_, 'n>,
    ) -> Option<Limit> {
        let others = [("algorithm", spec.algorithm.place()), ("rates", spec.rates.place())];
        let others = others.into_iter().filter(|(_, place)| place.is_some());
        for (field, place) in inline.inline.written().chain(others) {
            let Some(place) = place else { continue };
            let message = format!("{field} cannot stand beside a plan, which brings its own limit");
            report.add(
                trail,
                Finding::error(place, message).field(field).hint("write it in the plan, or remove the plan"),
            );
        }
        if let (Some(place), false) = (spec.plan.place(), spec.plans.is_absent()) {
            let message = "plan and plans cannot both be given";
            report.add(trail, Finding::error(place, message).field("plan").hint("put all names into plans"));
        }
        let (names, field) = match (spec.plan.at(), spec.plans.at()) {
            (_, Some(plans)) => (plans.value.clone(), "plans"),
            (Some(plan), None) => (vec![*plan], "plan"),
            (None, None) => return None,
        };
        let place = spec.plans.place().unwrap_or(inline.inline.place);
        if names.is_empty() || names.len() > CHAIN_MAX {
            let message = format!("{} plans in one rule, 1 to {CHAIN_MAX} are possible", names.len());
            report.add(trail, Finding::error(place, message).field("plans"));
            return None;
        }
        let mut chain: Vec<Option<Counted>> = Vec::with_capacity(names.len());
        for (index, name) in names.iter().enumerate() {
            if names[..index].iter().any(|earlier| earlier.value == name.value) {
                let message = format!("the plan '{}' is named twice", name.value);
                report.add(trail, Finding::error(name.place, message).field(field));
            }
            chain.push(self.counted(report, trail, *name, field, (inline.on_over_limit, inline.track_denials)));
        }
        let chain: Option<Box<[Counted]>> = chain.into_iter().collect();
        chain.map(Limit::Counted)
    }

    fn counted(
        &mut self,
        report: &mut Report<'_>,
        trail: &Trail<'n>,
        name: At<&'n str>,
        field: &'static str,
        own: Own,
    ) -> Option<Counted> {
        let counted = |quota: &Arc<Quota>| Counted { quota: quota.clone(), plan: Some(name.value.into()) };
        let Some(mut plan) = self.plans.remove(name.value) else {
            let message = format!("there is no plan '{}' in this document", name.value);
            let finding = Finding::error(name.place, message).field(field);
            let nearest = hint::nearest(name.value, self.plans.keys().copied());
            report.add(
                trail,
                match nearest {
                    Some(nearest) => finding.hint(format!("did you mean '{nearest}'?")),
                    None => finding.hint("define it under plans, at the top of the document"),
                },
            );
            return None;
        };
        plan.is_used = true;
        let known = plan.quotas.iter().find(|(known, _)| *known == own).map(|(_, quota)| counted(quota));
        let found = known.or_else(|| {
            // A plan that has been refused is not refused again for each rule.
            plan.quotas.first()?;
            let quota = self.plan_quota(report, trail, name.value, &plan, own)?;
            let found = counted(&quota);
            plan.quotas.push((own, quota));
            Some(found)
        });
        self.plans.insert(name.value, plan);
        found
    }

    fn plan_quota(
        &self,
        report: &mut Report<'_>,
        trail: &Trail<'n>,
        name: &'n str,
        plan: &Plan<'n>,
        (over, track): Own,
    ) -> Option<Arc<Quota>> {
        let spec = plan.spec;
        let steps = vec![Step::Field("plans"), Step::Name(name)];
        let trail = Trail { steps, ..Trail::new(trail.source, trail.domain) };
        let quota_spec = QuotaSpec {
            algorithm: &spec.algorithm,
            rates: &spec.rates,
            inline: Inline {
                place: plan.place,
                requests: &spec.requests_per_unit,
                unit: &spec.unit,
                multiplier: &spec.unit_multiplier,
                burst: &spec.burst,
                name: None,
            },
            on_over_limit: over.or(spec.on_over_limit.copied()),
            track_denials: track.or(spec.track_denials.copied()),
        };
        self.quota(report, &trail, &quota_spec).map(Arc::new)
    }

    fn quota(&self, report: &mut Report<'_>, trail: &Trail<'_>, spec: &QuotaSpec<'_, '_>) -> Option<Quota> {
        let rates = rate_specs(report, trail, spec)?;
        if matches!(spec.algorithm, Field::Wrong) {
            return None;
        }
        let algorithm = spec.algorithm.copied().or(self.defaults.algorithm.copied()).unwrap_or(Algorithm::FixedWindow);
        let over = spec.on_over_limit.or(self.defaults.on_over_limit.copied());
        let over = over.unwrap_or(OnOverLimit::default_of(algorithm));
        let track = spec.track_denials.or(self.defaults.track_denials.copied()).unwrap_or(false);
        match Quota::try_new(algorithm, rates.clone(), over, track) {
            Ok(quota) => {
                lint::quota(report, trail, spec, &quota);
                Some(quota)
            }
            Err(whole) => {
                refuse_quota(report, trail, spec, &whole, |rate| {
                    Quota::try_new(algorithm, vec![rates.get(rate)?.clone()], over, track).err()
                });
                None
            }
        }
    }
}

/// As the reference has it: a valid unit is refused, an invalid one and a number are passed over. What the reference
/// does not know is refused.
fn unlimited(report: &mut Report<'_>, trail: &Trail<'_>, spec: &RateLimitSpec<'_>) {
    if let Some(At { value, place }) = spec.unit.at() {
        let finding = if Unit::from_name(value).is_some() {
            Finding::error(*place, "should not specify rate limit unit when unlimited").hint("remove the unit")
        } else {
            Finding::warning(*place, format!("the unit '{value}' has no effect when unlimited")).hint("remove it")
        };
        report.add(trail, finding.field("unit"));
    }
    if let Some(place) = spec.requests_per_unit.place() {
        let message = "requests_per_unit has no effect when unlimited";
        report.add(trail, Finding::warning(place, message).field("requests_per_unit").hint("remove one of the two"));
    }
    let others = [
        ("unit_multiplier", spec.unit_multiplier.place()),
        ("algorithm", spec.algorithm.place()),
        ("burst", spec.burst.place()),
        ("rates", spec.rates.place()),
        ("plans", spec.plans.place()),
        ("plan", spec.plan.place()),
        ("on_over_limit", spec.on_over_limit.place()),
        ("track_denials", spec.track_denials.place()),
    ];
    for (field, place) in others {
        let Some(place) = place else { continue };
        let message = format!("{field} has no meaning when unlimited");
        report.add(trail, Finding::error(place, message).field(field).hint("remove it"));
    }
}
