//! The conformance tables: what the reference service answers, and what sluice adds to it, as text that reads as
//! documentation. `tests/conformance/README.md` explains the format.
//!
//! Every case runs twice, each time on a server of its own with empty counters: once over gRPC, once over `/json`.

mod answer;
mod table;

use std::{collections::BTreeSet, fs, path::Path};

use crate::harness::Server;
use answer::{Answer, Door};
use table::{Case, Step, Table};

macro_rules! tables {
    ($($name:ident)*) => {
        $(#[test] fn $name() { run(stringify!($name)); })*
        const TABLES: &[&str] = &[$(stringify!($name)),*];
    };
}

tables! {
    allow_lists
    charge_and_spare
    defaults
    duplicates
    dynamic_metadata
    empty_and_unknown
    exact_values
    globs
    global_quota
    global_shadow
    headers
    hits
    leaky_bucket
    looks
    matching_depth
    merged_domains
    modes_together
    nested
    no_backtracking
    overrides
    pairs
    partitions
    plans
    policies
    quota
    refunds
    renamed_headers
    replaces
    several_descriptors
    shadow
    share_threshold
    sliding_window
    token_bucket
    unit_multiplier
    units
    unlimited
    written_otherwise
}

/// The issue asks for more than this many.
const CASES_MIN: usize = 200;

#[test]
fn every_table_is_run_and_there_are_more_than_200_cases() {
    let files = fs::read_dir(directory()).expect("the tables are there").map(|file| file.expect("is readable").path());
    let tables = files.filter(|path| path.extension().is_some_and(|extension| extension == "txt"));
    let stems = tables.map(|path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned());
    let named: BTreeSet<String> = TABLES.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(stems.collect::<BTreeSet<_>>(), named);

    let cases: usize = TABLES.iter().map(|name| read(name).cases.len()).sum();
    assert!(cases > CASES_MIN, "only {cases} cases");
}

fn directory() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/conformance"))
}

fn read(name: &str) -> Table {
    let path = directory().join(name).with_extension("txt");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Table::parse(&format!("tests/conformance/{name}.txt"), &text)
}

/// All cases of a table through both doors; every failure is reported, not only the first.
fn run(name: &str) {
    let table = read(name);
    assert!(!table.cases.is_empty(), "{name} has no cases");
    let mut failures = Vec::new();
    for case in &table.cases {
        for door in [Door::Grpc, Door::Json] {
            failures.extend(run_case(&table, case, door, &[]));
        }
    }
    assert!(failures.is_empty(), "{} of {name} failed:\n\n{}", failures.len(), failures.join("\n\n"));
}

/// All cases of a table on a store that these settings name. Every case has keys of its own there.
pub fn run_on_store(name: &str, prefix: &str, env: &[(String, String)]) {
    let table = read(name);
    let mut failures = Vec::new();
    for (number, case) in table.cases.iter().enumerate() {
        let mut env = env.to_vec();
        env.push(("CACHE_KEY_PREFIX".to_owned(), format!("{prefix}{number}:")));
        // That of a busy machine: nothing here is about time.
        env.push(("REDIS_TIMEOUT".to_owned(), "30s".to_owned()));
        failures.extend(run_case(&table, case, Door::Grpc, &env));
    }
    assert!(failures.is_empty(), "{} of {name} failed:\n\n{}", failures.len(), failures.join("\n\n"));
}

/// The first difference of a case: what comes after it counts on what came before.
fn run_case(table: &Table, case: &Case, door: Door, env: &[(String, String)]) -> Option<String> {
    let mut builder = Server::builder();
    for (index, rules) in table.rules.iter().enumerate() {
        builder = builder.file(&format!("rules{index}.yaml"), rules);
    }
    for (name, value) in table.env.iter().chain(env) {
        builder = builder.env(name, value);
    }
    let server = builder.start();
    server.wait_for_store();
    case.steps.iter().find_map(|step| {
        let problem = run_step(&server, step, door)?;
        let (file, line, name, text) = (&table.file, step.line, &case.name, &step.text);
        Some(format!("{file}:{line} over {door:?}: {name}\n  {text}\n  {problem}\n{}", server.log().join("\n")))
    })
}

fn run_step(server: &Server, step: &Step, door: Door) -> Option<String> {
    match Answer::ask(server, &step.request, door) {
        Ok(answer) => step.expected.compare(&answer).err(),
        Err(refusal) => step.expected.compare_refusal(&refusal).err(),
    }
}
