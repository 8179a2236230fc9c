//! The rates of a limit or a plan as they are written, to rates with sound numbers, and whose fault it is if they are not.

use super::{
    diagnostic::{Finding, Place, Report, Step, Trail},
    hint,
    rules_file::{At, Field, RateSpecFile},
};
use crate::engine::quota::{Algorithm, InvalidQuota, OnOverLimit, Period, RateSpec, Unit};

/// The fields that a rate limit and a plan have in common.
pub struct QuotaSpec<'f, 'n> {
    pub algorithm: &'f Field<Algorithm>,
    pub rates: &'f Field<Vec<At<RateSpecFile<'n>>>>,
    pub inline: Inline<'f, 'n>,
    pub on_over_limit: Option<OnOverLimit>,
    pub track_denials: Option<bool>,
}

/// The fields of one rate.
pub struct Inline<'f, 'n> {
    pub place: Place,
    pub requests: &'f Field<u32>,
    pub unit: &'f Field<&'n str>,
    pub multiplier: &'f Field<u32>,
    pub burst: &'f Field<u32>,
    pub name: Option<&'n str>,
}

impl Inline<'_, '_> {
    /// Those that are written.
    pub fn written(&self) -> impl Iterator<Item = (&'static str, Option<Place>)> {
        let fields = [
            ("requests_per_unit", self.requests.is_absent(), self.requests.place()),
            ("unit", self.unit.is_absent(), self.unit.place()),
            ("unit_multiplier", self.multiplier.is_absent(), self.multiplier.place()),
            ("burst", self.burst.is_absent(), self.burst.place()),
        ];
        fields.into_iter().filter(|(_, is_absent, _)| !is_absent).map(|(name, _, place)| (name, place))
    }
}

/// Says which of the rates is at fault, and which field of it. `alone` is what is wrong with one rate by itself.
pub fn refuse_quota(
    report: &mut Report<'_>,
    trail: &Trail<'_>,
    spec: &QuotaSpec<'_, '_>,
    whole: &InvalidQuota,
    alone: impl Fn(usize) -> Option<InvalidQuota>,
) {
    let rates = inline_rates(spec);
    let faults: Vec<(usize, InvalidQuota)> =
        (0..rates.len()).filter_map(|index| alone(index).map(|fault| (index, fault))).collect();
    for (index, fault) in &faults {
        let (field, place) = blame(&rates[*index], fault);
        let mut trail = trail.clone();
        if !spec.rates.is_absent() {
            trail.steps.extend([Step::Field("rates"), Step::Index(*index)]);
        }
        let finding = Finding::error(place, fault.to_string()).field(field);
        report.add(
            &trail,
            match advice(fault) {
                Some(advice) => finding.hint(advice),
                None => finding,
            },
        );
    }
    if faults.is_empty() {
        let place = spec.rates.place().unwrap_or(spec.inline.place);
        report.add(trail, Finding::error(place, whole.to_string()).field("rates"));
    }
}

fn blame(rate: &Inline<'_, '_>, fault: &InvalidQuota) -> (&'static str, Place) {
    let requests = ("requests_per_unit", rate.requests.place().unwrap_or(rate.place));
    match fault {
        InvalidQuota::ZeroBurst | InvalidQuota::BurstOfWindow(_) | InvalidQuota::DrainTooSlow { .. } => {
            rate.burst.place().map_or(requests, |place| ("burst", place))
        }
        _ => requests,
    }
}

fn advice(fault: &InvalidQuota) -> Option<&'static str> {
    match fault {
        InvalidQuota::BurstOfWindow(_) => Some("remove it, or choose algorithm: token_bucket"),
        InvalidQuota::BucketThatNeverRefills => Some("use algorithm: fixed_window to block everything"),
        InvalidQuota::DrainTooSlow { .. } => Some("lower the burst, or raise the rate"),
        _ => None,
    }
}

/// The rates as written: those of `rates`, or the one inline.
pub fn inline_rates<'f, 'n>(spec: &QuotaSpec<'f, 'n>) -> Vec<Inline<'f, 'n>> {
    let Some(rates) = spec.rates.get() else {
        let Inline { place, requests, unit, multiplier, burst, name } = spec.inline;
        return vec![Inline { place, requests, unit, multiplier, burst, name }];
    };
    let inline = |At { value, place }: &'f At<RateSpecFile<'n>>| Inline {
        place: *place,
        requests: &value.requests_per_unit,
        unit: &value.unit,
        multiplier: &value.unit_multiplier,
        burst: &value.burst,
        name: value.name.copied().filter(|name| !name.is_empty()),
    };
    rates.iter().map(inline).collect()
}

/// `None` where a mistake has been reported.
pub fn rate_specs(report: &mut Report<'_>, trail: &Trail<'_>, spec: &QuotaSpec<'_, '_>) -> Option<Vec<RateSpec>> {
    if spec.rates.is_absent() {
        return rate_spec(report, trail, &spec.inline).map(|rate| vec![rate]);
    }
    for (field, place) in spec.inline.written() {
        let Some(place) = place else { continue };
        let message = format!("{field} cannot stand beside rates, which stands instead of it");
        report.add(trail, Finding::error(place, message).field(field).hint("move it into an entry of rates"));
    }
    spec.rates.at()?;
    let mut trail = trail.clone();
    let mut specs = Vec::new();
    for (index, rate) in inline_rates(spec).iter().enumerate() {
        trail.steps.extend([Step::Field("rates"), Step::Index(index)]);
        specs.push(rate_spec(report, &trail, rate));
        trail.steps.truncate(trail.steps.len() - 2);
    }
    specs.into_iter().collect()
}

fn rate_spec(report: &mut Report<'_>, trail: &Trail<'_>, rate: &Inline<'_, '_>) -> Option<RateSpec> {
    if rate.requests.is_absent() {
        let finding = Finding::error(rate.place, "requests_per_unit is missing").field("requests_per_unit");
        report.add(trail, finding.hint("write `requests_per_unit: 0` if everything is to be refused"));
    }
    let period = period(report, trail, rate);
    let burst = if matches!(rate.burst, Field::Wrong) { None } else { Some(rate.burst.copied()) };
    Some(RateSpec {
        requests: rate.requests.copied()?,
        period: period?,
        burst: burst?,
        name: rate.name.map(Into::into),
    })
}

fn period(report: &mut Report<'_>, trail: &Trail<'_>, rate: &Inline<'_, '_>) -> Option<Period> {
    if matches!(rate.unit, Field::Wrong) {
        return None;
    }
    let written = rate.unit.copied().unwrap_or_default();
    let Some(unit) = Unit::from_name(written) else {
        let place = rate.unit.place().unwrap_or(rate.place);
        let finding = Finding::error(place, format!("invalid rate limit unit '{written}'")).field("unit");
        let names = Unit::ALL.map(Unit::name);
        report.add(
            trail,
            match hint::nearest(written, names) {
                Some(nearest) => finding.hint(format!("did you mean '{nearest}'?")),
                None => finding.hint(format!("write one of {}", names.join(", "))),
            },
        );
        return None;
    };
    if matches!(rate.multiplier, Field::Wrong) {
        return None;
    }
    match Period::try_new(unit, rate.multiplier.copied().unwrap_or(1)) {
        Ok(period) => Some(period),
        Err(fault) => {
            let place = rate.multiplier.place().or(rate.unit.place()).unwrap_or(rate.place);
            report.add(trail, Finding::error(place, fault.to_string()).field("unit_multiplier"));
            None
        }
    }
}
