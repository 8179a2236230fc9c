//! `sluice schema`: the JSON Schema of the rules.

use clap::Command;

use super::{OK, put};
use crate::config::rules_schema;

pub fn command() -> Command {
    Command::new("schema").about("Print the JSON Schema of the rules, for editors")
}

pub fn run() -> u8 {
    put(format_args!("{:#}", rules_schema()));
    OK
}
