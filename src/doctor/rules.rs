//! The rules, read and compiled as `serve` would.

use super::finding::{Finding, Verdict};
use crate::{
    config::{Compiled, Diagnostic, Severity, compile, read_sources, settings::Settings},
    engine::rule::{Limit, OnStoreFailure},
};

/// Of a file with thousands of mistakes, so many are told.
const TOLD_MAX: usize = 5;

#[derive(Debug, Default)]
pub struct Examined {
    pub findings: Vec<Finding>,
    /// What rules do while the store cannot decide, without those that do as `ON_STORE_FAILURE` says.
    pub policies: Vec<OnStoreFailure>,
}

/// Large rules take a moment: off the threads that talk to nodes.
pub async fn examine(settings: &Settings) -> Examined {
    let settings = settings.clone();
    let looked = tokio::task::spawn_blocking(move || look(&settings)).await;
    looked.unwrap_or_else(|error| Examined {
        findings: vec![Finding::fail("rules", &"", format!("they could not be looked at: {error}"))],
        policies: Vec::new(),
    })
}

fn look(settings: &Settings) -> Examined {
    let path = settings.rules.path.display();
    let only = |finding| Examined { findings: vec![finding], policies: Vec::new() };
    if !settings.rules.path.exists() {
        let set = "set RATE_LIMIT_CONFIG to a file or directory";
        return only(if settings.rules.force_start {
            Finding::warn("rules", &path, format!("there are none: nothing is limited until they come, or {set}"))
        } else {
            Finding::fail("rules", &path, format!("there are none, so that `serve` does not start: {set}"))
        });
    }
    let sources = match read_sources(&settings.rules.path) {
        Ok(sources) => sources,
        Err(unreadable) => return only(Finding::fail("rules", &path, unreadable.to_string())),
    };
    match compile(&sources, &settings.compile_options()) {
        Ok(compiled) => judge(&path.to_string(), sources.len(), &compiled),
        Err(errors) => Examined { findings: told(&errors, Severity::Error, Verdict::Fail), policies: Vec::new() },
    }
}

fn judge(path: &str, files: usize, compiled: &Compiled) -> Examined {
    let (rules, domains) = (compiled.set.rules(), compiled.set.domains().count());
    let mut findings = told(&compiled.warnings, Severity::Warning, Verdict::Warn);
    findings.insert(
        0,
        if domains == 0 {
            let empty =
                "there are no rules in there, so that nothing is limited: put *.yaml, *.yml or *.json files there";
            Finding::warn("rules", &path, empty)
        } else {
            Finding::ok("rules", &path, format!("{} rules of {domains} domains in {files} files", rules.len()))
        },
    );
    let counted = rules.iter().filter(|rule| matches!(rule.limit, Limit::Counted(_)));
    let mut policies: Vec<OnStoreFailure> = counted.filter_map(|rule| rule.on_store_failure).collect();
    policies.dedup();
    Examined { findings, policies }
}

fn told(diagnostics: &[Diagnostic], severity: Severity, verdict: Verdict) -> Vec<Finding> {
    let all = || diagnostics.iter().filter(|diagnostic| diagnostic.severity == severity);
    let place = |diagnostic: &Diagnostic| format!("{}:{}", diagnostic.file, diagnostic.line);
    let mut told: Vec<Finding> = all()
        .take(TOLD_MAX)
        .map(|diagnostic| {
            let hint = diagnostic.hint.as_ref().map_or_else(String::new, |hint| format!(": {hint}"));
            Finding::new(verdict, "rules", &place(diagnostic), format!("{}{hint}", diagnostic.message))
        })
        .collect();
    if let Some(first) = all().nth(TOLD_MAX) {
        let more = format!("and {} more: `sluice check` tells them all", all().count() - TOLD_MAX);
        told.push(Finding::new(verdict, "rules", &place(first), more));
    }
    told
}
