//! The command line: one file for each subcommand.

mod bench;
mod check;
mod doctor;
mod explain;
mod hit;
mod schema;
mod serve;

use std::{
    ffi::OsString,
    fmt::Display,
    io::{ErrorKind, Write as _},
    process::ExitCode,
};

use clap::{Arg, ArgAction, Command};

/// Good.
const OK: u8 = 0;
/// What was looked at is bad.
const BAD: u8 = 1;
/// What was asked for could not be done: wrong arguments or settings, nothing to read.
const UNUSABLE: u8 = 2;

const ABOUT: &str = "A rate-limit service for Envoy, Istio and Envoy Gateway.

Answers envoy.service.ratelimit.v3.RateLimitService from rules in YAML files, which can be edited while it runs. Without a \
                     subcommand it serves.";

const EXAMPLES: &str = "Examples:
  sluice                                               serve config/rules, on ports 8081 (gRPC) and 8080 (HTTP)
  RATE_LIMIT_CONFIG=/etc/rules sluice                  serve the rules of a directory
  sluice check /etc/rules                              say whether rules are good, and what is doubtful in them
  sluice explain --rules /etc/rules --domain edge ip=1.2.3.4
                                                       say which rule a request meets, and why
  sluice doctor                                        say what is broken in a deployment, or is going to be
  sluice hit --domain edge --times 20 ip=1.2.3.4       ask a running server twenty times, and print its answers
  sluice bench --target 127.0.0.1:8081 --domain edge --descriptor ip=1.2.3.4
                                                       put a service under load, and say what it bears";

fn command() -> Command {
    Command::new("sluice")
        .version(env!("CARGO_PKG_VERSION"))
        .about("A rate-limit service for Envoy, Istio and Envoy Gateway")
        .long_about(ABOUT)
        .after_help(EXAMPLES)
        .args_conflicts_with_subcommands(true)
        .disable_help_subcommand(true)
        .args(serve::args())
        .subcommand(serve::command())
        .subcommand(bench::command())
        .subcommand(check::command())
        .subcommand(doctor::command())
        .subcommand(explain::command())
        .subcommand(hit::command())
        .subcommand(schema::command())
}

/// Runs the program with the arguments of the process.
#[must_use]
pub fn run() -> ExitCode {
    run_with(std::env::args_os().collect())
}

fn run_with(arguments: Vec<OsString>) -> ExitCode {
    let matches = match command().try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(error) => {
            let code = if error.use_stderr() { UNUSABLE } else { OK };
            // A closed pipe is the reader's choice.
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    ExitCode::from(match matches.subcommand() {
        Some(("bench", matches)) => bench::run(matches),
        Some(("check", matches)) => check::run(matches),
        Some(("doctor", matches)) => doctor::run(matches),
        Some(("explain", matches)) => explain::run(matches),
        Some(("hit", matches)) => hit::run(matches),
        Some(("schema", _)) => schema::run(),
        Some((_, matches)) => serve::run(matches),
        None => serve::run(&matches),
    })
}

/// Prints, and says whether somebody still reads. One who has gone away has read enough: nothing is told, and the exit code is
/// the same.
fn put(text: impl Display) -> bool {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            let _ = writeln!(std::io::stderr(), "sluice: cannot print: {error}");
            false
        }
        result => result.is_ok(),
    }
}

/// The descriptors of a request, as people write them.
fn descriptors_arg() -> Arg {
    Arg::new("descriptors")
        .value_name("DESCRIPTOR")
        .required(true)
        .num_args(1..)
        .help("Entries of a descriptor as key=value,key=value; `\\,` is a comma inside a value")
}

/// `--format text` or `--format json`.
fn format_arg() -> Arg {
    Arg::new("format")
        .long("format")
        .value_name("FORMAT")
        .value_parser(["text", "json"])
        .default_value("text")
        .action(ArgAction::Set)
        .help("How to print the result")
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_sound() {
        super::command().debug_assert();
    }
}
