//! `sluice schema`: the JSON Schema of the rules.

use clap::Command;

use super::OK;
use crate::config::rules_schema;

pub fn command() -> Command {
    Command::new("schema").about("Print the JSON Schema of the rules, for editors")
}

pub fn run() -> u8 {
    println!("{:#}", rules_schema());
    OK
}
