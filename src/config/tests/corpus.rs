//! The files under `tests/rules` and `config`.
//!
//! A bad file begins with a line `# expect: <line>:<column> <part of the message>` for each mistake in it, in order.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::*;
use crate::config::{json, read_sources, rules_schema, yaml};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources_in(directory: &str, at_least: usize) -> Vec<Source> {
    let sources = read_sources(&root().join(directory)).unwrap();
    assert!(sources.len() >= at_least, "{directory} has only {} files", sources.len());
    sources
}

fn good() -> Vec<Source> {
    let mut good = sources_in("tests/rules/good", 15);
    good.extend(sources_in("config/rules", 3));
    good
}

#[test]
fn every_good_file_compiles() {
    for source in good() {
        let name = source.name.clone();
        if let Err(errors) = compile(&[source], &CompileOptions::default()) {
            panic!("{name}\n{}", shown(&errors));
        }
    }
}

#[test]
fn the_examples_load_together_and_without_a_warning() {
    let compiled = compile(&sources_in("config/rules", 3), &CompileOptions::default()).unwrap();
    let warnings: Vec<_> =
        compiled.warnings.into_iter().filter(|found| found.severity == crate::config::Severity::Warning).collect();
    assert!(warnings.is_empty(), "{}", shown(&warnings));
}

#[test]
fn every_bad_file_is_refused_for_what_it_says_and_nothing_else() {
    let mut wrong = Vec::new();
    for source in sources_in("tests/rules/bad", 40) {
        let expected: Vec<String> =
            source.text.lines().map_while(|line| line.strip_prefix("# expect: ")).map(str::to_owned).collect();
        let name = PathBuf::from(&source.name).file_name().unwrap().to_owned();
        let errors = compile(&[source], &CompileOptions::default()).err().unwrap_or_default();
        let found: Vec<String> =
            errors.iter().map(|error| format!("{}:{} {}", error.line, error.column, error.message)).collect();
        let matches = |(found, expected): (&String, &String)| {
            let ((place, message), (at, part)) = (found.split_once(' ').unwrap(), expected.split_once(' ').unwrap());
            place == at && message.contains(part)
        };
        if found.is_empty() || found.len() != expected.len() || !found.iter().zip(&expected).all(matches) {
            wrong.push(format!("{}:\n  {}", name.display(), found.join("\n  ")));
        }
        assert!(errors.iter().all(|error| error.line == 0 || error.excerpt.is_some()), "{}", name.display());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_committed_schema_is_current() {
    let path = root().join("config/rules.schema.json");
    let current = serde_json::to_string_pretty(&rules_schema()).unwrap() + "\n";
    if std::env::var_os("UPDATE_SCHEMA").is_some() {
        fs::write(&path, &current).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap();
    assert!(committed == current, "config/rules.schema.json is old: run this test with UPDATE_SCHEMA=1");
}

#[test]
fn every_good_file_is_valid_by_the_schema() {
    let validator = jsonschema::validator_for(&rules_schema()).unwrap();
    for source in good() {
        for document in yaml::parse(&source.text).documents {
            let value = json::of(&document).unwrap();
            let faults: Vec<String> = validator.iter_errors(&value).map(|fault| fault.to_string()).collect();
            assert!(faults.is_empty(), "{}: {faults:?}", source.name);
        }
    }
}

#[test]
fn the_schema_refuses_what_is_refused() {
    let validator = jsonschema::validator_for(&rules_schema()).unwrap();
    for text in [
        "{}",
        "{domain: d, foo: 1}",
        "{domain: d, descriptors: [{value: x}]}",
        "{domain: d, descriptors: [{key: a, unit: second}]}",
        "{domain: d, descriptors: [{key: a, rate_limit: {unit: minutes}}]}",
        "{domain: d, descriptors: [{key: a, rate_limit: {requests_per_unit: '5'}}]}",
        "{domain: d, descriptors: [{key: a, rate_limit: {requests_per_unit: -5}}]}",
        "{domain: d, descriptors: [{key: a, rate_limit: {algorithm: gcra}}]}",
        "{domain: d, descriptors: [{key: a, rate_limit: {burst: 0}}]}",
        "{domain: d, plans: {gold: {name: x}}}",
    ] {
        let parsed = yaml::parse(text);
        assert!(!validator.is_valid(&json::of(&parsed.documents[0]).unwrap()), "{text}");
    }
}

#[test]
fn the_examples_name_the_schema_for_editors() {
    for source in sources_in("config/rules", 3) {
        assert!(source.text.starts_with("# yaml-language-server: $schema=../rules.schema.json\n"), "{}", source.name);
    }
}
