//! `sluice doctor`: is a deployment well?

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::{BAD, OK, UNUSABLE, format_arg, put, serve};
use crate::doctor::{Verdict, examine};

const ABOUT: &str = "Say what is broken in a deployment, or is going to be

Takes the settings that `serve` takes, by flags and by the environment, and looks at all that they lead to: rules; every Redis or \
                     Valkey node (reach, version, role, permissions, the real script on a key of its own, latency, clock, eviction, \
                     persistence, replication); certificates; ports; open files and memory; and what to write into Envoy's filter. \
                     Charges no counter.";

const EXAMPLES: &str = "Examples:
  sluice doctor                                                the settings of the environment
  REDIS_URL=redis:6379 REDIS_AUTH_FILE=/etc/auth sluice doctor
  sluice doctor --format json --deny-warnings                  for a pipeline
  kubectl exec deploy/sluice -- /bin/sluice doctor             inside a pod, with its settings and its network

Exits with 0 if nothing is broken, with 1 if something is, with 2 if the settings or arguments are wrong.";

pub fn command() -> Command {
    Command::new("doctor")
        .about("Say what is broken in a deployment, or is going to be")
        .long_about(ABOUT)
        .after_help(EXAMPLES)
        .arg(
            Arg::new("deny-warnings")
                .long("deny-warnings")
                .action(ArgAction::SetTrue)
                .help("Exit with 1 if something is doubtful, too"),
        )
        .arg(format_arg())
        .args(serve::args())
}

pub fn run(matches: &ArgMatches) -> u8 {
    let Some((settings, warnings)) = serve::settings(matches) else { return UNUSABLE };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("sluice: cannot start: {error}");
            return UNUSABLE;
        }
    };
    let report = runtime.block_on(examine(&settings, &warnings));
    // A name that is still being looked up is not waited for.
    runtime.shutdown_background();
    let text = if matches.get_one::<String>("format").is_some_and(|format| format == "json") {
        format!("{:#}", report.json())
    } else {
        report.to_string()
    };
    put(text);
    match report.worst() {
        Verdict::Fail => BAD,
        Verdict::Warn if matches.get_flag("deny-warnings") => BAD,
        Verdict::Ok | Verdict::Warn => OK,
    }
}
