//! `sluice serve`: the service itself.

use std::{collections::HashMap, time::Duration};

use clap::{Arg, ArgAction, ArgMatches, Command};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{error, warn};

use super::{BAD, OK, UNUSABLE};
use crate::{
    app,
    config::settings::{GROUPS, Settings, Warning},
    panics,
    telemetry::logs,
};

/// After so many turns of connections a thread looks who else has sent something. The default is 61, which keeps others waiting
/// while a few connections have much to do.
const TURNS_BETWEEN_LOOKS: u32 = 16;

pub fn command() -> Command {
    Command::new("serve").about("Serve (what happens without a subcommand, too)").args(args())
}

/// One flag for each setting, with the variable that it goes before.
pub fn args() -> Vec<Arg> {
    let arg = |group: &'static str, setting: &crate::config::settings::Setting| {
        let default = if setting.default.is_empty() { "none" } else { setting.default };
        Arg::new(setting.env)
            .long(setting.flag())
            .value_name("VALUE")
            .action(ArgAction::Set)
            .help_heading(group)
            .help(format!("{} [env: {}] [default: {default}]", setting.help, setting.env))
    };
    GROUPS.iter().flat_map(|group| group.settings.iter().map(move |setting| arg(group.name, setting))).collect()
}

/// The settings that flags and the environment give. What is wrong with them is told, all of it.
pub fn settings(matches: &ArgMatches) -> Option<(Settings, Vec<Warning>)> {
    let given = |env: &'static str| Some((env, matches.get_one::<String>(env)?.clone()));
    let settings = GROUPS.iter().flat_map(|group| group.settings);
    let flags: HashMap<_, _> = settings.filter_map(|setting| given(setting.env)).collect();
    match Settings::from_process(&flags) {
        Ok(read) => Some(read),
        Err(bad) => {
            for setting in &bad {
                eprintln!("sluice: {setting}");
            }
            eprintln!("sluice: {} wrong, not started. `sluice serve --help` lists them all.", settings_are(bad.len()));
            None
        }
    }
}

pub fn run(matches: &ArgMatches) -> u8 {
    panics::install();
    let Some((settings, warnings)) = settings(matches) else { return UNUSABLE };
    logs::install(&settings.telemetry);
    for warning in warnings {
        warn!("{warning}");
    }
    match serve(settings) {
        Ok(()) => OK,
        Err(failed) => {
            error!("{failed:#}");
            BAD
        }
    }
}

fn settings_are(count: usize) -> String {
    if count == 1 { "1 setting is".to_owned() } else { format!("{count} settings are") }
}

fn serve(settings: Settings) -> anyhow::Result<()> {
    // One provider for every TLS connection. A second call, in a test, finds it there already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().event_interval(TURNS_BETWEEN_LOOKS).build()?;
    let served = runtime.block_on(async {
        let mut signals =
            Signals { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? };
        let shutdown = async move {
            let first = signals.next().await;
            tokio::spawn(async move {
                let signal = signals.next().await;
                warn!(signal, "told to stop once more while draining: ending at once, calls in flight are cut off");
                std::process::exit(i32::from(OK));
            });
            first
        };
        app::run(settings, shutdown).await
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    served
}

/// Those that ask for the end.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
