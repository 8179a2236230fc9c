//! A rules file as it is written: one struct for each kind of map in it, every value with its place.
//!
//! The JSON Schema comes from these structs, [`super::read`] fills them, [`super::compile()`] makes rules of them. They
//! know what can be written, and nothing of what it means.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value};

use super::diagnostic::Place;
use crate::engine::{
    quota::{Algorithm, OnOverLimit, Unit},
    rule::OnStoreFailure,
};

/// A value and where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At<T> {
    pub value: T,
    pub place: Place,
}

/// What became of a key that may be written.
#[derive(Clone, Debug, Default)]
pub enum Field<T> {
    #[default]
    Absent,
    /// Written, and refused already; nothing more needs to be said about it.
    Wrong,
    Is(At<T>),
}

impl<T> Field<T> {
    #[must_use]
    pub fn at(&self) -> Option<&At<T>> {
        if let Field::Is(at) = self { Some(at) } else { None }
    }

    #[must_use]
    pub fn get(&self) -> Option<&T> {
        self.at().map(|at| &at.value)
    }

    #[must_use]
    pub fn place(&self) -> Option<Place> {
        self.at().map(|at| at.place)
    }

    #[must_use]
    pub fn is_absent(&self) -> bool {
        matches!(self, Field::Absent)
    }
}

impl<T: Copy> Field<T> {
    #[must_use]
    pub fn copied(&self) -> Option<T> {
        self.get().copied()
    }
}

impl<T: JsonSchema> JsonSchema for Field<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("Optional{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        <Option<T>>::json_schema(generator)
    }
}

impl<T: JsonSchema> JsonSchema for At<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<T>()
    }
}

/// Rules of one domain.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, extend("required" = ["domain"]))]
pub struct RulesFile<'n> {
    /// The namespace of these rules. A request names it, and it is compared exactly.
    #[schemars(schema_with = "name_schema")]
    pub domain: Field<&'n str>,
    /// Entries whose value spreads the counters of this domain over the slots of a Redis cluster. One name, or a list.
    #[schemars(schema_with = "names_schema")]
    pub partition_by: Field<Vec<At<&'n str>>>,
    /// What holds for every rule of this domain that does not say otherwise.
    pub defaults: Field<Defaults>,
    /// Limits by name, for `plan` and `plans` of a `rate_limit`.
    #[schemars(schema_with = "plans_schema")]
    pub plans: Field<Vec<(At<&'n str>, PlanSpec<'n>)>>,
    /// The first level of the tree of rules.
    pub descriptors: Field<Vec<At<DescriptorSpec<'n>>>>,
}

/// What holds for every rule of a domain that does not say otherwise.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, extend("required" = []))]
pub struct Defaults {
    /// How hits are counted.
    #[schemars(schema_with = "algorithm_schema")]
    pub algorithm: Field<Algorithm>,
    /// Whether a refused request counts.
    #[schemars(schema_with = "on_over_limit_schema")]
    pub on_over_limit: Field<OnOverLimit>,
    /// What callers get while the store cannot decide.
    #[schemars(schema_with = "on_store_failure_schema")]
    pub on_store_failure: Field<OnStoreFailure>,
    /// Keep the number of hits refused since the last admitted one.
    pub track_denials: Field<bool>,
}

/// A node of the tree: one entry of a descriptor.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, extend("required" = ["key"]))]
pub struct DescriptorSpec<'n> {
    /// The key of the entry.
    #[schemars(schema_with = "name_schema")]
    pub key: Field<&'n str>,
    /// The value of the entry. Absent: any value. With a `*`: any value that matches.
    #[schemars(schema_with = "text_schema")]
    pub value: Field<&'n str>,
    /// The limit. Without one, and without descriptors of its own, this node is an allow-list entry.
    pub rate_limit: Field<Box<RateLimitSpec<'n>>>,
    /// The next level of the tree.
    pub descriptors: Field<Vec<At<DescriptorSpec<'n>>>>,
    /// Count, but never refuse.
    pub shadow_mode: Field<bool>,
    /// Refuse only if every quota rule of a request refuses.
    pub quota_mode: Field<bool>,
    /// Metrics show the request's values at every level.
    pub detailed_metric: Field<bool>,
    /// Metrics show the request's value at this level.
    pub value_to_metric: Field<bool>,
    /// All values that match the `*` share one counter.
    pub share_threshold: Field<bool>,
    /// Anything, returned to callers when the rule admits them.
    pub metadata: Field<Map<String, Value>>,
}

/// A limit.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, extend("required" = []))]
pub struct RateLimitSpec<'n> {
    /// The name, which callers see, and which `replaces` can name.
    #[schemars(schema_with = "text_schema")]
    pub name: Field<&'n str>,
    /// How many requests a unit allows.
    #[schemars(range(max = 4_294_967_295_u32))]
    pub requests_per_unit: Field<u32>,
    /// The unit of time.
    #[schemars(schema_with = "unit_schema")]
    pub unit: Field<&'n str>,
    /// The period is this many units.
    #[schemars(range(min = 1, max = 4_294_967_295_u32))]
    pub unit_multiplier: Field<u32>,
    /// How hits are counted.
    #[schemars(schema_with = "algorithm_schema")]
    pub algorithm: Field<Algorithm>,
    /// How many hits a bucket holds; as many as `requests_per_unit` if absent.
    #[schemars(range(min = 1, max = 4_294_967_295_u32))]
    pub burst: Field<u32>,
    /// Several rates, all of which must allow; instead of one written inline.
    pub rates: Field<Vec<At<RateSpecFile<'n>>>>,
    /// The names of plans, all of which must allow; instead of a limit written inline.
    #[schemars(schema_with = "names_schema")]
    pub plans: Field<Vec<At<&'n str>>>,
    /// The name of a plan; instead of a limit written inline.
    #[schemars(schema_with = "text_schema")]
    pub plan: Field<&'n str>,
    /// Count nothing and always allow.
    pub unlimited: Field<bool>,
    /// Rules that are dropped when this one matches in the same request.
    pub replaces: Field<Vec<At<ReplacesSpec<'n>>>>,
    /// Whether a refused request counts.
    #[schemars(schema_with = "on_over_limit_schema")]
    pub on_over_limit: Field<OnOverLimit>,
    /// What callers get while the store cannot decide.
    #[schemars(schema_with = "on_store_failure_schema")]
    pub on_store_failure: Field<OnStoreFailure>,
    /// Keep the number of hits refused since the last admitted one.
    pub track_denials: Field<bool>,
}

/// A limit with a name, used by rules that name it.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, extend("required" = []))]
pub struct PlanSpec<'n> {
    /// How many requests a unit allows.
    #[schemars(range(max = 4_294_967_295_u32))]
    pub requests_per_unit: Field<u32>,
    /// The unit of time.
    #[schemars(schema_with = "unit_schema")]
    pub unit: Field<&'n str>,
    /// The period is this many units.
    #[schemars(range(min = 1, max = 4_294_967_295_u32))]
    pub unit_multiplier: Field<u32>,
    /// How hits are counted.
    #[schemars(schema_with = "algorithm_schema")]
    pub algorithm: Field<Algorithm>,
    /// How many hits a bucket holds; as many as `requests_per_unit` if absent.
    #[schemars(range(min = 1, max = 4_294_967_295_u32))]
    pub burst: Field<u32>,
    /// Several rates, all of which must allow; instead of one written inline.
    pub rates: Field<Vec<At<RateSpecFile<'n>>>>,
    /// Whether a refused request counts.
    #[schemars(schema_with = "on_over_limit_schema")]
    pub on_over_limit: Field<OnOverLimit>,
    /// Keep the number of hits refused since the last admitted one.
    pub track_denials: Field<bool>,
}

/// One of several rates.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, extend("required" = ["requests_per_unit", "unit"]))]
pub struct RateSpecFile<'n> {
    /// The name, which callers see when this rate decides and the rule has none.
    #[schemars(schema_with = "text_schema")]
    pub name: Field<&'n str>,
    /// How many requests a unit allows.
    #[schemars(range(max = 4_294_967_295_u32))]
    pub requests_per_unit: Field<u32>,
    /// The unit of time.
    #[schemars(schema_with = "unit_schema")]
    pub unit: Field<&'n str>,
    /// The period is this many units.
    #[schemars(range(min = 1, max = 4_294_967_295_u32))]
    pub unit_multiplier: Field<u32>,
    /// How many hits a bucket holds; as many as `requests_per_unit` if absent.
    #[schemars(range(min = 1, max = 4_294_967_295_u32))]
    pub burst: Field<u32>,
}

/// A rule to be dropped.
#[derive(Clone, Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields, extend("required" = ["name"]))]
pub struct ReplacesSpec<'n> {
    /// The `name` of its `rate_limit`.
    #[schemars(schema_with = "name_schema")]
    pub name: Field<&'n str>,
}

/// The JSON Schema of one document of a rules file.
#[must_use]
pub fn rules_schema() -> Value {
    let mut schema =
        schemars::generate::SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<RulesFile>();
    schema.insert("title".to_owned(), "sluice rules".into());
    schema.into()
}

/// A number or a boolean where text is wanted is its own text.
fn text_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": ["string", "integer", "boolean", "null"]})
}

fn name_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": ["string", "integer", "boolean"], "minLength": 1})
}

fn names_schema(generator: &mut SchemaGenerator) -> Schema {
    let name = name_schema(generator);
    json_schema!({"anyOf": [name, {"type": "array", "items": name}, {"type": "null"}]})
}

fn plans_schema(generator: &mut SchemaGenerator) -> Schema {
    let plan = generator.subschema_for::<PlanSpec>();
    json_schema!({"type": ["object", "null"], "additionalProperties": plan})
}

/// The names for completion, and a pattern because capitals do not matter.
fn unit_schema(_: &mut SchemaGenerator) -> Schema {
    let any_case = |char: char| format!("[{}{}]", char.to_ascii_uppercase(), char);
    let patterns: Vec<String> = Unit::ALL.iter().map(|unit| unit.name().chars().map(any_case).collect()).collect();
    let pattern = format!("^({})$", patterns.join("|"));
    json_schema!({"anyOf": [
        {"enum": Unit::ALL.map(Unit::name)},
        {"type": "string", "pattern": pattern},
        {"type": "null"},
    ]})
}

fn algorithm_schema(_: &mut SchemaGenerator) -> Schema {
    choice_schema(Algorithm::ALL.map(|algorithm| (algorithm.name(), algorithm_meaning(algorithm))))
}

fn algorithm_meaning(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::FixedWindow => "Counts hits in windows that begin at whole periods.",
        Algorithm::SlidingWindow => "Counts hits in the last period, estimated from two windows.",
        Algorithm::TokenBucket => "A bucket of `burst` tokens that is refilled at the rate.",
        Algorithm::LeakyBucket => "A meter that leaks at the rate and is full at `burst`.",
    }
}

fn on_over_limit_schema(_: &mut SchemaGenerator) -> Schema {
    choice_schema([
        ("charge", "A refused request counts all the same."),
        ("spare", "A refused request counts nothing."),
    ])
}

fn on_store_failure_schema(_: &mut SchemaGenerator) -> Schema {
    choice_schema([
        ("allow", "Let requests through."),
        ("deny", "Refuse requests."),
        ("error", "Answer with an error; the caller decides."),
        ("local", "Decide with the embedded store."),
    ])
}

fn choice_schema<const N: usize>(choices: [(&str, &str); N]) -> Schema {
    let choices = choices.map(|(name, meaning)| serde_json::json!({"const": name, "description": meaning}));
    let any: Vec<Value> = choices.into_iter().chain([serde_json::json!({"type": "null"})]).collect();
    json_schema!({"anyOf": any})
}
