//! From text to rules: what operators write, and what is wrong with it.
//!
//! ```text
//! sources -> yaml (nodes with places) -> read (RulesFile) -> compile (RuleSet) + lint (warnings)
//! ```
//!
//! Every mistake is found in one go, each with its place. What is refused never becomes rules, and rules that work stay in
//! force until better ones have come: see [`reload`]. The settings of the process are read once: see [`settings`].

pub mod compile;
pub mod diagnostic;
mod hint;
mod json;
mod limits;
mod lint;
mod rates;
pub mod read;
pub mod reload;
pub mod rules_file;
mod scalar;
pub mod settings;
pub mod sources;
mod watch;
pub mod yaml;

#[cfg(test)]
mod tests;

pub use compile::{CompileOptions, Compiled, compile};
pub use diagnostic::{Diagnostic, Severity};
pub use rules_file::rules_schema;
pub use sources::{ReadError, Source, read_sources, read_sources_or_pipe};
