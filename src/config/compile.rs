//! Rules files to a [`RuleSet`]: what is written is checked for sense and given its place in the trees.
//!
//! Knows what rules mean. Knows nothing of YAML, of files on disk or of who asks.

use std::{collections::HashMap, sync::Arc};

use foldhash::fast::RandomState;
use serde_json::{Map, Value};

use super::{
    Source,
    diagnostic::{Diagnostic, Finding, Place, Report, Step, Trail, label},
    limits::Limits,
    lint, read,
    rules_file::{At, DescriptorSpec, Field, RateLimitSpec, RulesFile},
    yaml,
};
use crate::engine::{
    rule::{Limit, Rule},
    tree::{Level, Node, Options, RuleSet, RuleTree},
};

#[derive(Clone, Debug, Default)]
pub struct CompileOptions {
    pub engine: Options,
    /// Several documents may hold rules of one domain. Their defaults and plans stay their own.
    pub merge_domains: bool,
}

/// Metadata by rule id.
pub type Metadata = Vec<Option<Arc<Map<String, Value>>>>;

#[derive(Debug)]
pub struct Compiled {
    pub set: RuleSet,
    pub metadata: Metadata,
    pub warnings: Vec<Diagnostic>,
}

/// All sources make one set, or none of them does.
pub fn compile(sources: &[Source], options: &CompileOptions) -> Result<Compiled, Vec<Diagnostic>> {
    let mut report = Report::new(sources);
    let documents: Vec<Vec<yaml::Node<'_>>> =
        sources.iter().enumerate().map(|(source, text)| documents(&mut report, source, &text.text)).collect();
    let documents =
        documents.iter().enumerate().flat_map(|(source, nodes)| nodes.iter().map(move |node| (source, node)));
    let mut rules = 0;
    let files: Vec<(usize, At<RulesFile<'_>>)> =
        documents.map(|(source, node)| (source, read::read(&mut report, source, node, &mut rules))).collect();
    if rules > read::RULES_MAX {
        return Err(report.finish().0);
    }
    let mut compiler = Compiler {
        report: &mut report,
        merge_domains: options.merge_domains,
        domains: Vec::new(),
        by_name: HashMap::default(),
        rules: Vec::new(),
        metadata: Vec::new(),
    };
    for (source, file) in &files {
        compiler.file(*source, file);
    }
    let Compiler { domains, rules, metadata, .. } = compiler;
    if !report.has_errors() {
        lint::lint(&mut report, &files);
    }
    let (errors, warnings) = report.finish();
    if !errors.is_empty() {
        return Err(errors);
    }
    let trees = domains.into_iter().map(|domain| domain.tree).collect();
    Ok(Compiled { set: RuleSet::new(trees, rules, options.engine.clone()), metadata, warnings })
}

fn documents<'a>(report: &mut Report<'_>, source: usize, text: &'a str) -> Vec<yaml::Node<'a>> {
    let parsed = yaml::parse(text);
    let trail = Trail::new(source, "");
    // A file that was cut off to nothing must not pass for a file without rules.
    if parsed.documents.is_empty() && parsed.mistakes.is_empty() {
        let finding = Finding::error(Place::START, "config file cannot have empty domain: the file is empty");
        report.add(&trail, finding.hint("remove the file, or begin it with `domain: <name>`"));
    }
    for mistake in parsed.mistakes {
        report.add(&trail, mistake);
    }
    parsed.documents
}

/// Where a (key, value) of one level was first written.
type Siblings<'n> = HashMap<(&'n str, &'n str), (usize, Place), RandomState>;

struct Domain<'n> {
    tree: RuleTree,
    first: (usize, Place),
    siblings: Siblings<'n>,
}

struct Compiler<'r, 's, 'n> {
    report: &'r mut Report<'s>,
    merge_domains: bool,
    domains: Vec<Domain<'n>>,
    by_name: HashMap<&'n str, usize>,
    rules: Vec<Arc<Rule>>,
    metadata: Metadata,
}

/// What the rules of one document have in common, and where among them the compiler stands.
struct Context<'n> {
    domain: Arc<str>,
    limits: Limits<'n>,
    trail: Trail<'n>,
    path: Vec<Box<str>>,
}

impl<'n> Compiler<'_, '_, 'n> {
    fn file(&mut self, source: usize, file: &'n At<RulesFile<'n>>) {
        let name = file.value.domain.copied().unwrap_or_default();
        let trail = Trail::new(source, name);
        let limits = Limits::new(self.report, &trail, &file.value);
        let index = self.domain(&trail, file);
        let (tree, siblings) = match self.domains.get_mut(index) {
            Some(domain) => (&mut domain.tree, &mut domain.siblings),
            None => return,
        };
        let (mut root, mut siblings) = (std::mem::take(&mut tree.root), std::mem::take(siblings));
        let mut context = Context { domain: tree.domain.clone(), limits, trail, path: Vec::new() };
        self.level(&mut context, &file.value.descriptors, &mut root, &mut siblings);
        context.limits.finish(self.report, &context.trail);
        if let Some(domain) = self.domains.get_mut(index) {
            domain.tree.root = root;
            domain.siblings = siblings;
        }
    }

    /// The place of the document's domain in `domains`. One that is refused gets a place too, so that the mistakes in
    /// its rules are found as well.
    fn domain(&mut self, trail: &Trail<'n>, file: &'n At<RulesFile<'n>>) -> usize {
        let At { value: file, place } = file;
        let name = trail.domain;
        let here = file.domain.place().unwrap_or(*place);
        if name.is_empty() && !matches!(file.domain, Field::Wrong) {
            let finding = Finding::error(here, "config file cannot have empty domain").field("domain");
            self.report.add(trail, finding.hint("begin the document with `domain: <name>`"));
        }
        let partition_by = self.partition_by(trail, file);
        if let Some(index) = self.by_name.get(name).copied().filter(|_| !name.is_empty()) {
            let first = self.domains[index].first;
            if self.merge_domains {
                self.merge_partition(trail, index, file, &partition_by);
                return index;
            }
            let message = format!("duplicate domain '{name}' in config file, first in {}", self.show(first));
            let finding = Finding::error(here, message).field("domain");
            self.report.add(trail, finding.hint("put the rules together, or set MERGE_DOMAIN_CONFIG=true"));
        }
        let tree = RuleTree { domain: name.into(), partition_by, root: Level::default() };
        self.domains.push(Domain { tree, first: (trail.source, here), siblings: Siblings::default() });
        let index = self.domains.len() - 1;
        self.by_name.entry(name).or_insert(index);
        index
    }

    fn partition_by(&mut self, trail: &Trail<'n>, file: &'n RulesFile<'n>) -> Box<[Box<str>]> {
        let names = file.partition_by.get().map(Vec::as_slice).unwrap_or_default();
        for (index, name) in names.iter().enumerate() {
            if names[..index].iter().any(|earlier| earlier.value == name.value) {
                let message = format!("partition_by names '{}' twice", name.value);
                self.report.add(trail, Finding::error(name.place, message).field("partition_by"));
            }
        }
        names.iter().map(|name| name.value.into()).collect()
    }

    fn merge_partition(&mut self, trail: &Trail<'n>, index: usize, file: &RulesFile<'n>, here: &[Box<str>]) {
        let domain = &self.domains[index];
        if let (Some(place), false) = (file.partition_by.place(), *domain.tree.partition_by == *here) {
            let message = format!("partition_by differs from the one in {}", self.show(domain.first));
            let finding = Finding::error(place, message).field("partition_by");
            self.report.add(trail, finding.hint("write it in the first file of the domain only"));
        }
    }

    fn show(&self, (source, place): (usize, Place)) -> String {
        format!("{}:{}:{}", self.report.file(source), place.line, place.column)
    }

    fn level(
        &mut self,
        context: &mut Context<'n>,
        descriptors: &'n Field<Vec<At<DescriptorSpec<'n>>>>,
        level: &mut Level,
        siblings: &mut Siblings<'n>,
    ) {
        context.trail.steps.push(Step::Field("descriptors"));
        for (index, descriptor) in descriptors.get().into_iter().flatten().enumerate() {
            context.trail.steps.push(Step::Index(index));
            self.descriptor(context, descriptor, level, siblings);
            context.trail.steps.pop();
        }
        context.trail.steps.pop();
    }

    fn descriptor(
        &mut self,
        context: &mut Context<'n>,
        descriptor: &'n At<DescriptorSpec<'n>>,
        level: &mut Level,
        siblings: &mut Siblings<'n>,
    ) {
        let At { value: spec, place } = descriptor;
        let (key, value) = (spec.key.copied().unwrap_or_default(), spec.value.copied().unwrap_or_default());
        context.trail.labels.push((if key.is_empty() { "?" } else { key }, value));
        context.path.push(label(key, value).into());
        let is_sound = self.key(context, spec, *place, siblings);
        let rule = self.rule(context, spec);
        self.share_threshold(context, spec);
        let mut children = Level::default();
        if !spec.descriptors.is_absent() {
            self.level(context, &spec.descriptors, &mut children, &mut Siblings::default());
        }
        context.path.pop();
        context.trail.labels.pop();
        if is_sound {
            let is_set = |field: &Field<bool>| field.copied() == Some(true);
            let (value_to_metric, share_threshold) = (is_set(&spec.value_to_metric), is_set(&spec.share_threshold));
            let node = Node { rule, children, value_to_metric, share_threshold };
            // `key` has refused duplicates, so that this one cannot be.
            let _ = level.insert(key, value, node);
        }
    }

    /// Whether the key is one, and the only one of its kind.
    fn key(
        &mut self,
        context: &Context<'n>,
        spec: &DescriptorSpec<'n>,
        place: Place,
        siblings: &mut Siblings<'n>,
    ) -> bool {
        let (key, value) = (spec.key.copied().unwrap_or_default(), spec.value.copied().unwrap_or_default());
        if matches!(spec.key, Field::Wrong) || matches!(spec.value, Field::Wrong) {
            return false;
        }
        let here = spec.key.place().unwrap_or(place);
        if key.is_empty() {
            let finding = Finding::error(here, "descriptor has empty key").field("key");
            self.report.add(&context.trail, finding.hint("write `key: <name>`"));
            return false;
        }
        let Some(first) = siblings.insert((key, value), (context.trail.source, here)) else { return true };
        let composite = format!("{}.{}", context.domain, context.path.join("."));
        let message = format!("duplicate descriptor composite key '{composite}', first in {}", self.show(first));
        self.report.add(&context.trail, Finding::error(here, message).field("key"));
        false
    }

    fn rule(&mut self, context: &mut Context<'n>, spec: &'n DescriptorSpec<'n>) -> Option<Arc<Rule>> {
        let limit_spec = spec.rate_limit.at()?;
        context.trail.steps.push(Step::Field("rate_limit"));
        let limit = context.limits.limit(self.report, &context.trail, limit_spec);
        let replaces = self.replaces(context, &limit_spec.value);
        context.trail.steps.pop();
        let is_set = |field: &Field<bool>| field.copied() == Some(true);
        let name = limit_spec.value.name.copied().filter(|name| !name.is_empty());
        let on_store_failure = limit_spec.value.on_store_failure.copied();
        let rule = Arc::new(Rule {
            id: self.rules.len(),
            domain: context.domain.clone(),
            path: context.path.as_slice().into(),
            name: name.map(Into::into),
            replaces,
            // Without a limit there is an error, and this rule is never used.
            limit: limit.unwrap_or(Limit::Unlimited),
            shadow: is_set(&spec.shadow_mode),
            quota_mode: is_set(&spec.quota_mode),
            detailed_metric: is_set(&spec.detailed_metric),
            on_store_failure: on_store_failure.or(context.limits.on_store_failure()),
        });
        self.rules.push(rule.clone());
        self.metadata.push(spec.metadata.get().map(|metadata| Arc::new(metadata.clone())));
        Some(rule)
    }

    fn replaces(&mut self, context: &Context<'n>, spec: &RateLimitSpec<'n>) -> Box<[Box<str>]> {
        let mut names = Vec::new();
        for At { value: entry, place } in spec.replaces.get().into_iter().flatten() {
            let name = entry.name.copied().unwrap_or_default();
            let place = entry.name.place().unwrap_or(*place);
            if matches!(entry.name, Field::Wrong) {
                continue;
            }
            if name.is_empty() {
                let message = "should not have an empty replaces entry";
                let finding = Finding::error(place, message).field("replaces");
                self.report.add(&context.trail, finding.hint("write `- name: <name of a rate_limit>`"));
            } else if spec.name.copied() == Some(name) {
                let message = format!("replaces should not contain name of same descriptor ('{name}')");
                self.report.add(&context.trail, Finding::error(place, message).field("replaces"));
            }
            names.push(name.into());
        }
        names.into()
    }

    fn share_threshold(&mut self, context: &Context<'n>, spec: &DescriptorSpec<'n>) {
        let Some(At { value: true, place }) = spec.share_threshold.at() else { return };
        let value = spec.value.copied().unwrap_or_default();
        if !value.contains('*') && !matches!(spec.value, Field::Wrong) {
            let key = label(spec.key.copied().unwrap_or_default(), value);
            let message = format!(
                "share_threshold can only be used with wildcard values (containing '*'), but found key '{key}'"
            );
            let finding = Finding::error(*place, message).field("share_threshold");
            self.report.add(&context.trail, finding.hint("put a `*` into the value, or remove share_threshold"));
        }
    }
}
