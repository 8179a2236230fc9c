//! Rules from text to a set, seen from outside.

mod corpus;
mod meaning;
mod robustness;
mod warnings;

use super::{CompileOptions, Compiled, Diagnostic, Source, compile};

fn source(name: &str, text: &str) -> Source {
    Source { name: name.to_owned(), text: text.to_owned() }
}

fn compiled(text: &str) -> Compiled {
    compile(&[source("rules.yaml", text)], &CompileOptions::default())
        .unwrap_or_else(|errors| panic!("{}", shown(&errors)))
}

fn errors(text: &str) -> Vec<Diagnostic> {
    compile(&[source("rules.yaml", text)], &CompileOptions::default()).expect_err("rules that are refused")
}

fn shown(diagnostics: &[Diagnostic]) -> String {
    diagnostics.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n\n")
}
