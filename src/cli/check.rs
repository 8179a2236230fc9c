//! `sluice check`: are rules good?

use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde_json::json;

use super::{BAD, OK, UNUSABLE, format_arg, put};
use crate::config::{CompileOptions, Compiled, Diagnostic, Severity, Source, compile, read_sources_or_pipe};

pub fn command() -> Command {
    Command::new("check")
        .about("Say whether rules are good, and what is doubtful in them")
        .after_help("Exits with 0 if the rules are good, 1 if they are bad, 2 if they cannot be read.")
        .arg(
            Arg::new("paths")
                .value_name("PATH")
                .required(true)
                .num_args(1..)
                .value_parser(value_parser!(PathBuf))
                .help("Files, or directories with *.yaml, *.yml and *.json files, or /dev/stdin; all of them together are one set of rules"),
        )
        .arg(
            Arg::new("merge")
                .long("merge-domain-config")
                .action(ArgAction::SetTrue)
                .help("Let several files add rules to one domain, as MERGE_DOMAIN_CONFIG=true does"),
        )
        .arg(
            Arg::new("deny-warnings")
                .long("deny-warnings")
                .action(ArgAction::SetTrue)
                .help("Call rules bad if there is something doubtful in them"),
        )
        .arg(format_arg())
}

pub fn run(matches: &ArgMatches) -> u8 {
    let paths = matches.get_many::<PathBuf>("paths").into_iter().flatten();
    let json = matches.get_one::<String>("format").is_some_and(|format| format == "json");
    let sources = match read_all(paths) {
        Ok(sources) => sources,
        Err(unreadable) => {
            for message in &unreadable {
                eprintln!("sluice: {message}");
            }
            if json {
                put(format_args!("{:#}", json!({"ok": false, "unreadable": unreadable})));
            }
            return UNUSABLE;
        }
    };
    let options = CompileOptions { merge_domains: matches.get_flag("merge"), ..CompileOptions::default() };
    let (diagnostics, counts) = match compile(&sources, &options) {
        Ok(Compiled { set, warnings, .. }) => (warnings, Some((set.domains().count(), set.rules().len()))),
        Err(errors) => (errors, None),
    };
    let doubtful = diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Warning);
    let good = counts.is_some() && !(doubtful && matches.get_flag("deny-warnings"));
    if json {
        let (domains, rules) = counts.unzip();
        let report =
            json!({"ok": good, "files": sources.len(), "domains": domains, "rules": rules, "diagnostics": diagnostics});
        put(format_args!("{report:#}"));
    } else {
        print_text(&diagnostics, counts, sources.len());
    }
    if good { OK } else { BAD }
}

fn read_all<'p>(paths: impl Iterator<Item = &'p PathBuf>) -> Result<Vec<Source>, Vec<String>> {
    let mut sources = Vec::new();
    let mut unreadable = Vec::new();
    for path in paths.map(PathBuf::as_path) {
        match read_sources_or_pipe(path) {
            Ok(read) if read.is_empty() => unreadable.push(nothing_in(path)),
            Ok(read) => sources.extend(read),
            Err(error) => unreadable.push(error.to_string()),
        }
    }
    if unreadable.is_empty() { Ok(sources) } else { Err(unreadable) }
}

fn nothing_in(path: &Path) -> String {
    format!("{}: no *.yaml, *.yml or *.json files in this directory", path.display())
}

fn print_text(diagnostics: &[Diagnostic], counts: Option<(usize, usize)>, files: usize) {
    for diagnostic in diagnostics {
        put(format_args!("{diagnostic}\n"));
    }
    let of = |severity| diagnostics.iter().filter(|diagnostic| diagnostic.severity == severity).count();
    match counts {
        Some((domains, rules)) => put(format_args!(
            "ok: {}, {}, {}, {}",
            count(rules, "rule"),
            count(domains, "domain"),
            count(files, "file"),
            count(of(Severity::Warning), "warning")
        )),
        None => put(format_args!("bad: {}, {}", count(of(Severity::Error), "error"), count(files, "file"))),
    };
}

fn count(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}
