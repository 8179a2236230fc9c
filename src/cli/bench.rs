//! `sluice bench`: load for a rate limit service, and how it bears it.

use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use super::{BAD, OK, UNUSABLE, format_arg, put};
use crate::{
    bench::{self, Expect, Load, Question, Shape, Target, Until},
    explain::parse_descriptor,
};

const EXAMPLES: &str = "Examples:
  sluice bench --target 127.0.0.1:8081 --domain edge --descriptor user=alice --duration 10s
                              how much it can do, over 8 connections with 32 calls under way on each
  sluice bench --target 127.0.0.1:8081 --domain edge --descriptor user=u{N} --keys 100000 --zipf 1 --rate 5000 --duration 30s
                              how long callers wait at 5000 calls a second, among 100000 users, some of them busier

Works against any server of envoy.service.ratelimit.v3.RateLimitService. Every answer is decoded and checked: an overall code, and \
                        one status for each descriptor. With --rate, latency runs from the moment a call was due.

Exits with 0 if all answers were good, 1 if some were not, 2 if there was nothing to measure.";

pub fn command() -> Command {
    let text = |name: &'static str, value: &'static str| Arg::new(name).long(name).value_name(value);
    Command::new("bench")
        .about("Put a rate limit service under load, and say what it bears and how long callers wait")
        .after_help(EXAMPLES)
        .arg(
            text("target", "HOST:PORT|unix:PATH")
                .required(true)
                .value_parser(|text: &str| Target::parse(text))
                .help("Where the service listens for gRPC, without TLS"),
        )
        .arg(text("domain", "NAME").required(true).help("The domain of every request"))
        .arg(
            text("descriptor", "KEY=VALUE,...")
                .required(true)
                .action(ArgAction::Append)
                .value_parser(|text: &str| parse_descriptor(text).map(Entries))
                .help("The entries of a descriptor; may be given several times; `{N}` in a value is the number of the key"),
        )
        .arg(number("keys", "N", "1", "How many numbers take the place of {N}"))
        .arg(
            text("zipf", "S")
                .default_value("0")
                .value_parser(value_parser!(f64))
                .help("How unevenly keys are asked for: 0 is all alike, 1 is as words in a text"),
        )
        .arg(number("hits", "N", "0", "hits_addend of every request; 0 leaves it out, which is one hit"))
        .arg(
            text("rate", "R")
                .value_parser(rate)
                .conflicts_with("streams")
                .help("Open loop: so many calls each second, whether or not answers come"),
        )
        .arg(number("connections", "C", "8", "How many connections"))
        .arg(number("streams", "S", "32", "Closed loop: how many calls are under way on each connection"))
        .arg(
            text("duration", "TIME")
                .default_value("10s")
                .value_parser(duration)
                .help("How long it is measured: 500ms, 10s, 2m"),
        )
        .arg(
            text("requests", "N")
                .value_parser(value_parser!(u64).range(1..))
                .conflicts_with("duration")
                .help("Stop after so many calls instead; there is then no warm-up"),
        )
        .arg(text("warmup", "TIME").default_value("1s").value_parser(duration).help("What is asked first and not counted"))
        .arg(text("threads", "N").value_parser(value_parser!(u16).range(1..=256)).help(
            "Threads that make the load [default: half of the cores, because the server often has the other half]",
        ))
        .arg(
            text("expect", "CODE")
                .value_parser(["ok", "over", "any"])
                .default_value("any")
                .help("Count every other code as an error"),
        )
        .arg(format_arg())
}

fn number(name: &'static str, value: &'static str, default: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).default_value(default).value_parser(value_parser!(u32)).help(help)
}

/// One descriptor, as the command line has it.
#[derive(Clone, Debug)]
struct Entries(Vec<(String, String)>);

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (0.001..=10_000_000.0).contains(&rate) => Ok(rate),
        _ => Err("write calls per second, such as 5000".to_owned()),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let bad = || "write a time with its unit, such as 500ms, 10s or 2m".to_owned();
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let amount: u32 = text[..digits].parse().map_err(|_| bad())?;
    let unit = match &text[digits..] {
        "ms" => Duration::from_millis(1),
        "s" => Duration::from_secs(1),
        "m" => Duration::from_secs(60),
        _ => return Err(bad()),
    };
    unit.checked_mul(amount).filter(|it| *it <= Duration::from_secs(86_400)).ok_or_else(bad)
}

pub fn run(matches: &ArgMatches) -> u8 {
    let Some(load) = load(matches) else { return UNUSABLE };
    match bench::run(&load) {
        Ok(report) => {
            if matches.get_one::<String>("format").is_some_and(|format| format == "json") {
                put(format_args!("{:#}", report.json()));
            } else {
                put(&report);
            }
            let (answers, errors) = report.seen();
            if answers > 0 && errors == 0 { OK } else { BAD }
        }
        Err(error) => {
            eprintln!("sluice: {error}");
            UNUSABLE
        }
    }
}

/// None cannot be: what is asked for here is required or has a default.
fn load(matches: &ArgMatches) -> Option<Load> {
    let number = |name: &str| matches.get_one::<u32>(name).copied();
    let descriptors = matches.get_many::<Entries>("descriptor")?.map(|entries| entries.0.clone()).collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let streams = usize::try_from(number("streams")?.max(1)).ok()?;
    let requests = matches.get_one::<u64>("requests");
    Some(Load {
        target: matches.get_one::<Target>("target")?.clone(),
        question: Question {
            domain: matches.get_one::<String>("domain")?.clone(),
            descriptors,
            hits: number("hits")?,
            keys: number("keys")?.into(),
            zipf: *matches.get_one("zipf")?,
        },
        shape: match matches.get_one::<f64>("rate") {
            Some(rate) => Shape::Open { rate: *rate },
            None => Shape::Closed { streams },
        },
        connections: usize::try_from(number("connections")?.max(1)).ok()?,
        threads: matches.get_one::<u16>("threads").map_or((cores / 2).max(1), |threads| usize::from(*threads)),
        until: match requests {
            Some(requests) => Until::Sent(*requests),
            None => Until::Elapsed(*matches.get_one("duration")?),
        },
        warmup: if requests.is_some() { Duration::ZERO } else { *matches.get_one("warmup")? },
        expect: match matches.get_one::<String>("expect")?.as_str() {
            "ok" => Expect::OK,
            "over" => Expect::OVER,
            _ => Expect::Any,
        },
    })
}
