//! Nodes to a [`RulesFile`]: which keys may stand where, and which values they take.
//!
//! Every mistake is reported and reading goes on, so that one run shows them all. Knows the shape of a file and nothing
//! of what it means.

use serde_json::{Map, Value};

use super::{
    diagnostic::{Finding, Report, Step, Trail},
    hint::{self, Level},
    rules_file::{At, Defaults, DescriptorSpec, Field, PlanSpec, RateLimitSpec, RateSpecFile, ReplacesSpec, RulesFile},
    scalar::Plain,
    yaml::{Kind, Node},
};
use crate::engine::{
    quota::{Algorithm, OnOverLimit},
    rule::OnStoreFailure,
};

/// Rules in all files together: more than anybody writes, and about 1 KB each. Aliases can make many of a short file.
pub const RULES_MAX: usize = 250_000;

const OVER_LIMIT: [&str; 2] = ["charge", "spare"];

pub struct Reader<'r, 's, 'n> {
    report: &'r mut Report<'s>,
    trail: Trail<'n>,
    /// Rules read so far, in all documents.
    rules: &'r mut usize,
}

/// Reads one document. `rules` counts those of all documents.
pub fn read<'n>(
    report: &mut Report<'_>,
    source: usize,
    document: &'n Node<'n>,
    rules: &mut usize,
) -> At<RulesFile<'n>> {
    let domain = document.get("domain").and_then(Node::text).unwrap_or_default();
    let mut reader = Reader { report, trail: Trail::new(source, domain), rules };
    let value = reader.file(document);
    At { value, place: document.place }
}

impl<'n> Reader<'_, '_, 'n> {
    fn refuse<T>(&mut self, finding: Finding) -> Field<T> {
        self.report.add(&self.trail, finding);
        Field::Wrong
    }

    fn file(&mut self, node: &'n Node<'n>) -> RulesFile<'n> {
        let mut file = RulesFile::default();
        if !matches!(node.kind, Kind::Map(_)) {
            file.domain = Field::Wrong;
        }
        self.map(node, Level::File, |reader, key, value| match key {
            "domain" => file.domain = reader.text(value),
            "partition_by" => file.partition_by = reader.texts(value),
            "defaults" => file.defaults = reader.one(value, Self::defaults),
            "plans" => file.plans = reader.plans(value),
            "descriptors" => file.descriptors = reader.list(value, Self::descriptor),
            _ => {}
        });
        file
    }

    fn defaults(&mut self, node: &'n Node<'n>) -> Defaults {
        let mut defaults = Defaults::default();
        self.map(node, Level::Defaults, |reader, key, value| match key {
            "algorithm" => defaults.algorithm = reader.algorithm(value),
            "on_over_limit" => defaults.on_over_limit = reader.on_over_limit(value),
            "on_store_failure" => defaults.on_store_failure = reader.on_store_failure(value),
            "track_denials" => defaults.track_denials = reader.bool(value),
            _ => {}
        });
        defaults
    }

    fn descriptor(&mut self, node: &'n Node<'n>) -> DescriptorSpec<'n> {
        *self.rules += 1;
        if *self.rules > RULES_MAX {
            // Told once; what follows is not even read.
            if *self.rules == RULES_MAX + 1 {
                let message = format!("more than {RULES_MAX} descriptors in all files together");
                let finding = Finding::error(node.place, message);
                self.report
                    .add(&self.trail, finding.hint("use globs or rules without a value, which need one for many"));
            }
            return DescriptorSpec::default();
        }
        let own = |key: &str| node.get(key).filter(|node| Plain::of(node) != Some(Plain::Null)).and_then(Node::text);
        self.trail.labels.push((own("key").unwrap_or("?"), own("value").unwrap_or_default()));
        let mut spec = DescriptorSpec::default();
        self.map(node, Level::Descriptor, |reader, key, value| match key {
            "key" => spec.key = reader.text(value),
            "value" => spec.value = reader.text(value),
            "rate_limit" => spec.rate_limit = reader.one(value, |reader, node| Box::new(reader.rate_limit(node))),
            "descriptors" => spec.descriptors = reader.list(value, Self::descriptor),
            "shadow_mode" => spec.shadow_mode = reader.bool(value),
            "quota_mode" => spec.quota_mode = reader.bool(value),
            "detailed_metric" => spec.detailed_metric = reader.bool(value),
            "value_to_metric" => spec.value_to_metric = reader.bool(value),
            "share_threshold" => spec.share_threshold = reader.bool(value),
            "metadata" => spec.metadata = reader.metadata(value),
            _ => {}
        });
        self.trail.labels.pop();
        spec
    }

    fn rate_limit(&mut self, node: &'n Node<'n>) -> RateLimitSpec<'n> {
        let mut spec = RateLimitSpec::default();
        self.map(node, Level::RateLimit, |reader, key, value| match key {
            "name" => spec.name = reader.text(value),
            "requests_per_unit" => spec.requests_per_unit = reader.number(value),
            "unit" => spec.unit = reader.text(value),
            "unit_multiplier" => spec.unit_multiplier = reader.number(value),
            "algorithm" => spec.algorithm = reader.algorithm(value),
            "burst" => spec.burst = reader.number(value),
            "rates" => spec.rates = reader.list(value, Self::rate),
            "plans" => spec.plans = reader.texts(value),
            "plan" => spec.plan = reader.text(value),
            "unlimited" => spec.unlimited = reader.bool(value),
            "replaces" => spec.replaces = reader.list(value, Self::replaces),
            "on_over_limit" => spec.on_over_limit = reader.on_over_limit(value),
            "on_store_failure" => spec.on_store_failure = reader.on_store_failure(value),
            "track_denials" => spec.track_denials = reader.bool(value),
            _ => {}
        });
        spec
    }

    fn plan(&mut self, node: &'n Node<'n>) -> PlanSpec<'n> {
        let mut spec = PlanSpec::default();
        if !matches!(node.kind, Kind::Map(_)) {
            (spec.requests_per_unit, spec.unit) = (Field::Wrong, Field::Wrong);
        }
        self.map(node, Level::Plan, |reader, key, value| match key {
            "requests_per_unit" => spec.requests_per_unit = reader.number(value),
            "unit" => spec.unit = reader.text(value),
            "unit_multiplier" => spec.unit_multiplier = reader.number(value),
            "algorithm" => spec.algorithm = reader.algorithm(value),
            "burst" => spec.burst = reader.number(value),
            "rates" => spec.rates = reader.list(value, Self::rate),
            "on_over_limit" => spec.on_over_limit = reader.on_over_limit(value),
            "track_denials" => spec.track_denials = reader.bool(value),
            _ => {}
        });
        spec
    }

    fn rate(&mut self, node: &'n Node<'n>) -> RateSpecFile<'n> {
        let mut spec = RateSpecFile::default();
        self.map(node, Level::Rate, |reader, key, value| match key {
            "name" => spec.name = reader.text(value),
            "requests_per_unit" => spec.requests_per_unit = reader.number(value),
            "unit" => spec.unit = reader.text(value),
            "unit_multiplier" => spec.unit_multiplier = reader.number(value),
            "burst" => spec.burst = reader.number(value),
            _ => {}
        });
        spec
    }

    fn replaces(&mut self, node: &'n Node<'n>) -> ReplacesSpec<'n> {
        let mut spec = ReplacesSpec::default();
        self.map(node, Level::Replaces, |reader, key, value| {
            if key == "name" {
                spec.name = reader.text(value);
            }
        });
        spec
    }

    /// Gives each known key and its value to `take`, and refuses the others.
    fn map(&mut self, node: &'n Node<'n>, level: Level, mut take: impl FnMut(&mut Self, &'static str, &'n Node<'n>)) {
        if !matches!(node.kind, Kind::Map(_)) {
            let message = format!("{} must be a map, but is {}", level.name(), kind_name(node));
            self.report.add(&self.trail, Finding::error(node.place, message));
            return;
        }
        for (key, value) in node.pairs() {
            match key_text(key) {
                Err(shown) => {
                    let finding = Finding::error(key.place, format!("key is not of type string: {shown}"));
                    self.report.add(&self.trail, finding.hint("quote it if it is meant"));
                }
                Ok(text) => match level.keys().iter().find(|known| **known == text) {
                    None => self.report.add_error(&self.trail, || hint::unknown_key(level, text, key.place)),
                    Some(known) => {
                        self.trail.steps.push(Step::Field(known));
                        take(self, known, value);
                        self.trail.steps.pop();
                    }
                },
            }
        }
    }

    /// One map, or nothing.
    fn one<T>(&mut self, node: &'n Node<'n>, read: impl FnOnce(&mut Self, &'n Node<'n>) -> T) -> Field<T> {
        if is_null(node) {
            return Field::Absent;
        }
        let field = self.trail.steps.last().copied();
        if let (false, Some(Step::Field(name))) = (matches!(node.kind, Kind::Map(_)), field) {
            let message = format!("{name} must be a map, but is {}", kind_name(node));
            return self.refuse(Finding::error(node.place, message));
        }
        let value = read(self, node);
        Field::Is(At { value, place: node.place })
    }

    /// A list of maps, or nothing.
    fn list<T>(&mut self, node: &'n Node<'n>, mut read: impl FnMut(&mut Self, &'n Node<'n>) -> T) -> Field<Vec<At<T>>> {
        let items = match &node.kind {
            _ if is_null(node) => return Field::Absent,
            Kind::Seq(items) => items,
            Kind::Map(_) | Kind::Scalar { .. } => {
                let finding = Finding::error(node.place, format!("a list is wanted here, not {}", kind_name(node)));
                return self.refuse(finding.hint("begin each entry with `- `"));
            }
        };
        let mut values = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            self.trail.steps.push(Step::Index(index));
            if matches!(item.kind, Kind::Map(_)) {
                values.push(At { value: read(self, item), place: item.place });
            } else {
                let shown = if is_null(item) { "null" } else { item.text().unwrap_or("a list") };
                let message = format!("yaml file contains list of type other than map: {shown}");
                self.report.add(&self.trail, Finding::error(item.place, message));
            }
            self.trail.steps.pop();
        }
        Field::Is(At { value: values, place: node.place })
    }

    fn plans(&mut self, node: &'n Node<'n>) -> Field<Vec<(At<&'n str>, PlanSpec<'n>)>> {
        self.one(node, |reader, node| {
            let mut plans = Vec::new();
            for (key, value) in node.pairs() {
                match key_text(key) {
                    Err(shown) => {
                        let message = format!("key is not of type string: {shown}");
                        reader.report.add(&reader.trail, Finding::error(key.place, message).hint("quote it"));
                    }
                    Ok(name) => {
                        reader.trail.steps.push(Step::Name(name));
                        plans.push((At { value: name, place: key.place }, reader.plan(value)));
                        reader.trail.steps.pop();
                    }
                }
            }
            plans
        })
    }

    /// A number or a boolean is taken as its text, as the reference does.
    fn text(&mut self, node: &'n Node<'n>) -> Field<&'n str> {
        let text = node.text().unwrap_or_default();
        match Plain::of(node) {
            Some(Plain::Null) => Field::Absent,
            Some(Plain::Text | Plain::Int(_) | Plain::Bool(_)) => Field::Is(At { value: text, place: node.place }),
            Some(Plain::Float(_) | Plain::Big(_)) => {
                let message = format!("a string is wanted here, but {text} is a number with a fraction or too large");
                self.refuse(Finding::error(node.place, message).hint(format!("quote it: \"{text}\"")))
            }
            None => {
                let message = format!("a string is wanted here, not {}", kind_name(node));
                self.refuse(Finding::error(node.place, message))
            }
        }
    }

    /// One text, or a list of them.
    fn texts(&mut self, node: &'n Node<'n>) -> Field<Vec<At<&'n str>>> {
        let Kind::Seq(items) = &node.kind else {
            return match self.text(node) {
                Field::Absent => Field::Absent,
                Field::Wrong => Field::Wrong,
                Field::Is(at) if at.value.is_empty() => self.refuse(Finding::error(at.place, "a name is missing here")),
                Field::Is(at) => Field::Is(At { value: vec![at], place: at.place }),
            };
        };
        let mut texts = Vec::with_capacity(items.len());
        let mut is_whole = true;
        for (index, item) in items.iter().enumerate() {
            self.trail.steps.push(Step::Index(index));
            match self.text(item) {
                Field::Is(at) if !at.value.is_empty() => texts.push(at),
                Field::Wrong => is_whole = false,
                Field::Absent | Field::Is(_) => {
                    self.report.add(&self.trail, Finding::error(item.place, "a name is missing here"));
                    is_whole = false;
                }
            }
            self.trail.steps.pop();
        }
        if is_whole { Field::Is(At { value: texts, place: node.place }) } else { Field::Wrong }
    }

    fn bool(&mut self, node: &'n Node<'n>) -> Field<bool> {
        match Plain::of(node) {
            Some(Plain::Null) => Field::Absent,
            Some(Plain::Bool(value)) => Field::Is(At { value, place: node.place }),
            _ => {
                let finding = Finding::error(node.place, format!("true or false is wanted here, not {}", shown(node)));
                self.refuse(match hint_without_quotes(node, |plain| matches!(plain, Plain::Bool(_))) {
                    Some(hint) => finding.hint(hint),
                    None => finding,
                })
            }
        }
    }

    fn number(&mut self, node: &'n Node<'n>) -> Field<u32> {
        let in_range = match Plain::of(node) {
            Some(Plain::Null) => return Field::Absent,
            Some(Plain::Int(value)) => u32::try_from(value).ok(),
            Some(Plain::Big(_)) => None,
            _ => {
                let message = format!("a whole number is wanted here, not {}", shown(node));
                let finding = Finding::error(node.place, message);
                return self.refuse(match hint_without_quotes(node, |plain| matches!(plain, Plain::Int(_))) {
                    Some(hint) => finding.hint(hint),
                    None => finding,
                });
            }
        };
        if let Some(value) = in_range {
            return Field::Is(At { value, place: node.place });
        }
        let text = node.text().unwrap_or_default();
        self.refuse(Finding::error(node.place, format!("{text} is out of range: 0 to {} is possible", u32::MAX)))
    }

    fn choice<T>(&mut self, node: &'n Node<'n>, names: &[&'static str], find: impl Fn(&str) -> Option<T>) -> Field<T> {
        let At { value, place } = match self.text(node) {
            Field::Absent => return Field::Absent,
            Field::Wrong => return Field::Wrong,
            Field::Is(at) => at,
        };
        if let Some(value) = find(value) {
            return Field::Is(At { value, place });
        }
        let finding = Finding::error(place, format!("'{value}' is none of {}", names.join(", ")));
        self.refuse(match hint::nearest(value, names.iter().copied()) {
            Some(nearest) => finding.hint(format!("did you mean '{nearest}'?")),
            None => finding,
        })
    }

    fn algorithm(&mut self, node: &'n Node<'n>) -> Field<Algorithm> {
        self.choice(node, &Algorithm::ALL.map(Algorithm::name), Algorithm::from_name)
    }

    fn on_over_limit(&mut self, node: &'n Node<'n>) -> Field<OnOverLimit> {
        self.choice(node, &OVER_LIMIT, |name| match name {
            "charge" => Some(OnOverLimit::Charge),
            "spare" => Some(OnOverLimit::Spare),
            _ => None,
        })
    }

    fn on_store_failure(&mut self, node: &'n Node<'n>) -> Field<OnStoreFailure> {
        self.choice(node, &OnStoreFailure::ALL.map(OnStoreFailure::name), OnStoreFailure::from_name)
    }

    fn metadata(&mut self, node: &'n Node<'n>) -> Field<Map<String, Value>> {
        if is_null(node) {
            return Field::Absent;
        }
        match super::json::of(node) {
            Ok(Value::Object(value)) => Field::Is(At { value, place: node.place }),
            Ok(_) => {
                let message = format!("error parsing metadata: it must be a map, but is {}", kind_name(node));
                self.refuse(Finding::error(node.place, message))
            }
            Err((place, reason)) => self.refuse(Finding::error(place, format!("error parsing metadata: {reason}"))),
        }
    }
}

fn is_null(node: &Node<'_>) -> bool {
    Plain::of(node) == Some(Plain::Null)
}

/// The text of a key that is a string, or how to show one that is not.
fn key_text<'n>(key: &'n Node<'n>) -> Result<&'n str, &'n str> {
    match (Plain::of(key), key.text()) {
        (Some(Plain::Text), Some(text)) => Ok(text),
        (_, Some(text)) => Err(text),
        (_, None) => Err(kind_name(key)),
    }
}

/// With its article.
fn kind_name(node: &Node<'_>) -> &'static str {
    match &node.kind {
        Kind::Scalar { .. } => Plain::of(node).map_or("a scalar", Plain::name),
        Kind::Seq(_) => "a list",
        Kind::Map(_) => "a map",
    }
}

fn shown(node: &Node<'_>) -> String {
    match node.text() {
        Some(text) => format!("{} ('{text}')", kind_name(node)),
        None => kind_name(node).to_owned(),
    }
}

fn hint_without_quotes(node: &Node<'_>, wanted: impl Fn(Plain) -> bool) -> Option<String> {
    let text = node.text()?;
    wanted(super::scalar::resolve(text)).then(|| format!("remove the quotes: {text}"))
}
