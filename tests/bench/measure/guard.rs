//! Compares instruction counts with the figures that are committed, and fails where one has grown.

use std::{collections::BTreeMap, fs};

use super::{
    instructions::{Case, ONE_AT_A_TIME, WIDTH, embedded, figures_file, of_operations, per_decision},
    load::Asked,
    script,
    servers::{Kind, Redis},
};

/// A count may grow by this part, which is more than counts vary by themselves: see the README.
const MARGIN: f64 = 0.05;
/// What a count depends on besides the code, as batches that happen to be small, only adds to it: of some, the least is nearest.
const TRIES: usize = 3;
const HEAD: &str =
    "# Instructions, counted by callgrind. `tests/bench/guard` fails beyond 5 % of them; `tests/bench/guard --update`
# writes them anew, for a change that is worth it. They depend on the compiler, the dependencies and the version of Redis.
";

/// Whether all is as it was, or better.
pub fn run(update: bool) -> bool {
    if update {
        let measured = measured(&BTreeMap::new());
        let lines: Vec<String> = measured.iter().map(|(name, count)| format!("{count:.0} {name}\n")).collect();
        fs::write(figures_file(), format!("{HEAD}{}", lines.concat())).expect("the figures can be written");
        return true;
    }
    let known = known();
    let measured = measured(&known);
    let mut good = true;
    println!("{:>10} {:>10} {:>8}  what", "committed", "now", "change");
    for (name, count) in &measured {
        let Some(known) = known.get(name) else {
            println!("{:>10} {count:>10.0} {:>8}  {name}: not committed", "-", "-");
            good = false;
            continue;
        };
        let is_over = is_over(*count, *known);
        let remark = if is_over { ": too many" } else { "" };
        println!("{known:>10.0} {count:>10.0} {:>+7.1}%  {name}{remark}", (count / known - 1.0) * 100.0);
        good &= !is_over;
    }
    if !good {
        println!(
            "\nMake it lean again, or, if it is worth it, run `tests/bench/guard --update` and say why in the commit."
        );
    }
    good
}

fn is_over(count: f64, known: f64) -> bool {
    count / known - 1.0 > MARGIN
}

/// The least of a few counts, where the first is more than what is known.
fn least(known: Option<&f64>, mut count: impl FnMut() -> f64) -> f64 {
    let mut least = count();
    for _ in 1..TRIES {
        if known.is_some_and(|known| is_over(least, *known)) {
            least = least.min(count());
        }
    }
    least
}

fn measured(known: &BTreeMap<String, f64>) -> Vec<(String, f64)> {
    let redis = Redis::start();
    let in_redis = Kind::Sluice { rules: "1.yaml", redis: Some(redis.port) };
    let case = |name, kind, asked| Case { name, kind, asked, expect: "ok" };
    let requests = [
        (case("request: floor", Kind::Floor, Asked::One), WIDTH),
        (case("request: embedded, 1 rule", embedded("1.yaml"), Asked::One), WIDTH),
        (case("request: embedded, 3 rules", embedded("3.yaml"), Asked::Three), WIDTH),
        // How calls fall into batches is up to the clock, and counts with it; a single one is always a batch.
        (case("request: Redis, 1 rule, one at a time", in_redis, Asked::One), ONE_AT_A_TIME),
    ];
    let requests = requests
        .iter()
        .map(|(case, width)| (case.name.to_owned(), least(known.get(case.name), || per_decision(case, *width))));
    let scripts = script::cases().into_iter().map(|case| {
        let name = format!("Redis: {}", case.name);
        let count = least(known.get(&name), || case.per_request());
        (name, count)
    });
    of_operations().into_iter().chain(requests).chain(scripts).collect()
}

fn known() -> BTreeMap<String, f64> {
    let text = fs::read_to_string(figures_file()).unwrap_or_default();
    let figure = |line: &str| {
        let (count, name) = line.split_once(' ')?;
        Some((name.to_owned(), count.parse().ok()?))
    };
    text.lines().filter(|line| !line.starts_with('#')).filter_map(figure).collect()
}
