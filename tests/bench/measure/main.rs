//! Measures sluice against the floor, against itself and against peers. `tests/bench/run` builds all it needs and starts it.
//!
//! Counts of instructions repeat, on any machine and under any load; times do not, and are taken in turns, several times, and
//! told as a median with its spread.

mod guard;
mod instructions;
mod load;
#[path = "../../it/servers/ports.rs"]
mod ports;
mod redis_cost;
mod script;
mod servers;
mod table;
mod timed;

use std::process::ExitCode;

const USAGE: &str = "usage: tests/bench/run [PART...] [--peer NAME=HOST:PORT[@PID]]... [--rounds N] [--seconds N]

parts:
  instructions   of the server for one decision, under callgrind, beside the floor
  operations     instructions of the engine and the embedded store by themselves
  script         instructions of Redis for one decision, under callgrind, beside INCRBY + EXPIRE
  redis          CPU of Redis for one decision beside INCRBY + EXPIRE, and memory for one key beside a hash
  saturation     answers a second, with sluice bench and with h2load
  latency        at a fixed rate, and with four calls under way
  runtimes       one thread pool beside one runtime for each core, with 1, 2, 8 and 64 connections
Without a part: all of them. --peer adds a server that runs already to the timed parts; it must have the rules of
tests/bench/rules/3.yaml, and its CPU is counted if its process is named. limitador is measured where tests/bench/limitador/run
has built it.";

/// A server of somebody else.
#[derive(Debug)]
struct Peer {
    name: String,
    address: String,
    process: Option<u32>,
}

impl Peer {
    fn parse(text: &str) -> Option<Self> {
        let (name, place) = text.split_once('=')?;
        let (address, process) = match place.split_once('@') {
            Some((address, process)) => (address, Some(process.parse().ok()?)),
            None => (place, None),
        };
        Some(Self { name: name.to_owned(), address: address.to_owned(), process })
    }
}

/// What the command line asks for.
#[derive(Debug)]
struct Wishes {
    parts: Vec<String>,
    peers: Vec<Peer>,
    rounds: usize,
    seconds: u64,
    update: bool,
}

impl Wishes {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Option<Self> {
        let mut wishes = Self { parts: Vec::new(), peers: Vec::new(), rounds: 5, seconds: 3, update: false };
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--peer" => wishes.peers.push(Peer::parse(&arguments.next()?)?),
                "--rounds" => wishes.rounds = arguments.next()?.parse().ok().filter(|rounds| *rounds > 0)?,
                "--seconds" => wishes.seconds = arguments.next()?.parse().ok().filter(|seconds| *seconds > 0)?,
                "--update" => wishes.update = true,
                part if PARTS.iter().any(|(name, _)| *name == part) || part == "guard" => wishes.parts.push(argument),
                _ => return None,
            }
        }
        Some(wishes)
    }
}

type Part = (&'static str, fn(&Wishes));

const PARTS: &[Part] = &[
    ("instructions", |_| instructions::measure()),
    ("operations", |_| instructions::operations()),
    ("script", |_| script::measure()),
    ("redis", redis_cost::measure),
    ("saturation", timed::saturation),
    ("latency", timed::latency),
    ("runtimes", timed::runtimes),
];

fn main() -> ExitCode {
    let Some(wishes) = Wishes::parse(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    if wishes.parts.iter().any(|part| part == "guard") {
        return if guard::run(wishes.update) { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    table::machine();
    for (name, measure) in PARTS {
        if wishes.parts.is_empty() || wishes.parts.iter().any(|part| part == name) {
            measure(&wishes);
        }
    }
    ExitCode::SUCCESS
}
