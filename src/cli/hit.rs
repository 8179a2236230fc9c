//! `sluice hit`: asks a running server as Envoy does, or by the native API, and prints what it answers.

mod call;
mod text;

use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};

use self::call::{Answered, Caller, Question};
use super::{BAD, OK, UNUSABLE, descriptors_arg, format_arg, put};
use crate::{config::settings::parse_duration, explain::parse_descriptor};

const EXAMPLES: &str = "Examples:
  sluice hit --domain edge api_key=abc                           one hit
  sluice hit --domain edge --hits 3 --times 20 tenant=acme,path=/v1 ip=1.2.3.4
                                                                 twenty requests of two descriptors, three hits each
  sluice hit --domain edge --hits -3 api_key=abc                 give three hits back
  sluice hit --target unix:/run/sluice.sock --native user=alice  the native API, over a socket

Exits with 0 if every answer is OK, with 1 if one is OVER_LIMIT, with 2 if there is none.";

pub fn command() -> Command {
    Command::new("hit")
        .about("Ask a running sluice, and print each answer; charges as a real request does")
        .after_help(EXAMPLES)
        .arg(descriptors_arg())
        .arg(
            Arg::new("target")
                .long("target")
                .value_name("HOST:PORT|unix:PATH")
                .default_value("127.0.0.1:8081")
                .help("The gRPC listener, without TLS"),
        )
        .arg(Arg::new("domain").long("domain").value_name("NAME").default_value("default").help("The domain"))
        .arg(
            Arg::new("hits")
                .long("hits")
                .value_name("N")
                .value_parser(value_parser!(i64))
                .allow_negative_numbers(true)
                .default_value("1")
                .help("Hits of each descriptor; 0 is a look, a negative number gives back"),
        )
        .arg(
            Arg::new("times")
                .long("times")
                .value_name("N")
                .value_parser(value_parser!(u64).range(1..))
                .default_value("1")
                .help("How often to ask"),
        )
        .arg(
            Arg::new("interval")
                .long("interval")
                .value_name("DURATION")
                .value_parser(parse_duration)
                .default_value("0")
                .help("How long from one request to the next, such as 100ms"),
        )
        .arg(
            Arg::new("native")
                .long("native")
                .action(ArgAction::SetTrue)
                .help("Call ratelimiter.v1.RateLimiterService, once for each descriptor, instead of ShouldRateLimit"),
        )
        .arg(format_arg())
}

pub fn run(matches: &ArgMatches) -> u8 {
    match hit(matches) {
        Ok(tally) if tally.refused == 0 => OK,
        Ok(_) => BAD,
        Err(failed) => {
            eprintln!("sluice: {failed:#}");
            UNUSABLE
        }
    }
}

/// How many requests had which answer.
#[derive(Default)]
struct Tally {
    allowed: u64,
    refused: u64,
}

fn hit(matches: &ArgMatches) -> anyhow::Result<Tally> {
    let text = |name: &str| matches.get_one::<String>(name).cloned().unwrap_or_default();
    let mut descriptors = Vec::new();
    for descriptor in matches.get_many::<String>("descriptors").into_iter().flatten() {
        let entries = parse_descriptor(descriptor).map_err(anyhow::Error::msg);
        descriptors.push((descriptor.clone(), entries.with_context(|| format!("'{descriptor}' is no descriptor"))?));
    }
    let hits = matches.get_one::<i64>("hits").copied().unwrap_or(1);
    let native = matches.get_flag("native");
    if native && hits < 0 {
        anyhow::bail!("--hits {hits} gives back, which the native API cannot: leave out --native");
    }
    let question = Question { domain: text("domain"), descriptors, hits };
    let times = matches.get_one::<u64>("times").copied().unwrap_or(1);
    let pause = matches.get_one::<Duration>("interval").copied().unwrap_or_default();
    let print = if text("format") == "json" { json_line } else { text::line };

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut caller = Caller::connect(&text("target"), native).await?;
        let mut beat = (!pause.is_zero()).then(|| interval(pause));
        if let Some(beat) = &mut beat {
            beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        }
        let mut tally = Tally::default();
        let began = Instant::now();
        for number in 1..=times {
            if let Some(beat) = &mut beat {
                beat.tick().await;
            }
            let answer = caller.ask(&question).await?;
            let counted = if answer.allowed { &mut tally.allowed } else { &mut tally.refused };
            *counted += 1;
            if !put(print(number, &answer)) {
                return Ok(tally);
            }
        }
        put(summary(&tally, began.elapsed(), text("format") == "json"));
        Ok(tally)
    })
}

fn json_line(number: u64, answer: &Answered) -> String {
    json!({"request": number, "code": code(answer.allowed), "took_us": micros(answer.took), "answer": answer.json})
        .to_string()
}

fn summary(tally: &Tally, took: Duration, as_json: bool) -> String {
    let (allowed, refused) = (tally.allowed, tally.refused);
    let requests = allowed + refused;
    if as_json {
        return json!({"summary": {"requests": requests, "ok": allowed, "over_limit": refused, "took_us": micros(took)}})
            .to_string();
    }
    format!("{requests} asked: {allowed} OK, {refused} OVER_LIMIT, in {:.1} ms", took.as_secs_f64() * 1e3)
}

fn micros(took: Duration) -> u64 {
    u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
}

fn code(allowed: bool) -> &'static str {
    if allowed { "OK" } else { "OVER_LIMIT" }
}
