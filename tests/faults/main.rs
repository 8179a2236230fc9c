//! What sluice survives, by one command: real servers killed, stopped, failed over, moved and slowed under load, and the figures
//! that callers see beside the bounds that are promised.
//!
//! `cargo test --test faults` runs the short form: few seconds for each fault, and of the bounds those are judged that hold on any
//! machine; times are printed and marked. `tests/faults/run` runs the full form on a release build and judges everything.
//!
//! # How a row is added
//!
//! A row is a fault: a function in a file below `rows/`, and its line in [`rows::ROWS`] with the name by which it is asked for. It
//! gets a [`sheet::Sheet`] and reads like the row of a table: who is there, what they do, what happens when, what must hold.
//!
//! ```text
//! pub fn killed(sheet: &Sheet) {
//!     let mut server = Server::start(REDIS);                                 // who: tests/it/servers, tests/it/harness
//!     let sluice = sidecar(&server, RULES, &[]);
//!     let watch = Watch::begin([&sluice]);                                   // before any load: what must be so again
//!     let load = Load::start(&[sluice.grpc()], &STYLE, |caller, turn| ...);  // what they do
//!     sheet.step("the store is dead");                                       // what happens when; shown as it does
//!     server.kill();
//!     sheet.run(&load, sheet.span(10.0, 1.5));                               // full form, short form, in seconds
//!     let calls = sheet.record(load, "redis");                               // target/faults/killed-redis.jsonl
//!     sheet.at_most("killed", "p99", p99(&calls), millis(2));                // a time: judged in the full form only
//!     sheet.count("killed", "calls that failed", other_than(..), 0);         // a count: judged always
//!     watch.end(sheet, "killed");                                            // files, threads, lines of the log, alive
//! }
//! ```
//!
//! What callers were admitted is judged by [`oracle`], which knows nothing but the history that was written. A row that panics is
//! broken; the others run all the same. Nothing here sleeps: waiting is for a condition with a deadline, or for the load to run.

#![allow(clippy::cast_precision_loss, clippy::float_cmp, reason = "what is counted here is small and whole")]

#[allow(dead_code, unused_imports, reason = "shared with tests/it, which uses the rest")]
#[path = "../it/floods/attack.rs"]
mod attack;
#[allow(dead_code, unused_imports, reason = "shared with tests/it, which uses the rest")]
#[path = "../it/transport/certificates.rs"]
mod certificates;
#[allow(dead_code, unused_imports, reason = "shared with tests/it, which uses the rest")]
#[path = "../it/envoy/process/mod.rs"]
mod envoy;
#[allow(dead_code, unused_imports, reason = "shared with tests/it, which uses the rest")]
#[path = "../it/harness/mod.rs"]
mod harness;
mod history;
mod island;
mod oracle;
mod rows;
#[allow(dead_code, unused_imports, reason = "shared with tests/it, which uses the rest")]
#[path = "../it/servers/mod.rs"]
mod servers;
mod sheet;
mod watch;
#[allow(dead_code, unused_imports, reason = "shared with tests/it, which uses the rest")]
#[path = "../it/floods/wire.rs"]
mod wire;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use rows::{ROWS, Row};
use sheet::Sheet;

const USAGE: &str = "usage: tests/faults/run [ROW...]                     the full form, on a release build
       cargo test --test faults -- [ROW...] [OPTION...]

Makes the faults that sluice promises to survive, and prints what was measured beside what is promised.
Without a row: all of them. What each call was asked and answered is in target/faults/*.jsonl.

options:
  --list   the rows
  --full   the faults at their full length, and every bound is judged; else times are only shown. A row in which only times
           are beyond their bounds while the host takes more than 1 % of the CPUs for others is run again, twice at the most; the last
           run counts
  --help   this
SLUICE_BIN names the binary to judge, if not the one that cargo built with this.
Exit code: 0 if every bound that is judged holds, 1 if not, 2 for a row or option that there is not.";

/// Rows at a time, in the short form.
const SIDE_BY_SIDE: usize = 3;

/// Of a row at full length, where the host may have been what broke it.
const TRIES: usize = 3;

/// Longer than any row takes, on any machine.
const HUNG_SHORT: Duration = Duration::from_secs(600);
const HUNG_FULL: Duration = Duration::from_secs(1_800);

enum Wish {
    Run { rows: Vec<&'static Row>, full: bool },
    List,
    Help,
}

fn parse(arguments: impl Iterator<Item = String>) -> Result<Wish, String> {
    let (mut rows, mut full, mut list, mut others) = (Vec::new(), false, false, 0);
    for argument in arguments {
        match argument.as_str() {
            "--full" => full = true,
            "--list" => list = true,
            "--help" | "-h" => return Ok(Wish::Help),
            option if option.starts_with('-') => return Err(format!("there is no option '{option}'")),
            // `cargo test some_test` asks every target for it.
            test if test.contains(['_', ':']) => others += 1,
            name => match ROWS.iter().find(|row| row.name == name) {
                Some(row) => rows.push(row),
                None => return Err(format!("there is no row '{name}': --list names them")),
            },
        }
    }
    if rows.is_empty() && others == 0 {
        rows.extend(ROWS);
    }
    Ok(if list { Wish::List } else { Wish::Run { rows, full } })
}

fn main() -> ExitCode {
    match parse(std::env::args().skip(1)) {
        Err(reason) => {
            eprintln!("faults: {reason}\n\n{USAGE}");
            ExitCode::from(2)
        }
        Ok(Wish::Help) => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        Ok(Wish::List) => {
            ROWS.iter().for_each(|row| println!("{:<12} {}", row.name, row.fault));
            ExitCode::SUCCESS
        }
        Ok(Wish::Run { rows, full }) => {
            oracle::prove();
            if run(&rows, full) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
    }
}

/// Whether all that is judged holds. Where no time is judged, rows run side by side: most of them wait most of the time.
fn run(rows: &[&'static Row], full: bool) -> bool {
    let (began, next, broken) = (Instant::now(), AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..if full { 1 } else { SIDE_BY_SIDE } {
            scope.spawn(|| {
                while let Some(row) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if !run_one(row, full) {
                        broken.lock().expect("nobody panics here").push(row.name);
                    }
                }
            });
        }
    });
    let broken = broken.into_inner().expect("nobody panics here");
    println!("\n{} rows in {:.0?}", rows.len(), began.elapsed());
    if !broken.is_empty() {
        println!("broken: {}", broken.join(", "));
    }
    broken.is_empty()
}

/// Noise only slows: what holds on a busy host holds. A time that does not may be the host's doing, which the kernel knows, and is
/// taken again; the last try counts, whatever the host does. Nothing else is tried twice: a burst that was exceeded is a mistake on
/// any host.
fn run_one(row: &'static Row, full: bool) -> bool {
    let tries = if full { TRIES } else { 1 };
    for later in (0..tries).rev() {
        let _done = limit_time(row.name, if full { HUNG_FULL } else { HUNG_SHORT });
        let sheet = Sheet::open(row.name, row.fault, full);
        let ran = catch_unwind(AssertUnwindSafe(|| (row.run)(&sheet)));
        if ran.is_err() {
            sheet.panicked();
        }
        let outcome = sheet.close();
        if outcome.holds || !outcome.may_be_the_host || later == 0 {
            return outcome.holds;
        }
        println!("\n{}: the host was busy with others, so once more ({later} left)", row.name);
    }
    false
}

/// A row that hangs ends everything: it may hold what others wait for. Until what this returns is dropped.
fn limit_time(row: &'static str, limit: Duration) -> mpsc::Sender<()> {
    let (done, waiting) = mpsc::channel();
    thread::spawn(move || {
        if waiting.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("faults: {row} has not ended after {limit:?}, and never will");
            std::process::exit(1);
        }
    });
    done
}
