//! Files of rules that are written to hurt: each is refused soon and by the name of its limit, while the rules before it serve; and a
//! hundred thousand rules that are meant load.

use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

use super::other_than;
use crate::{
    harness::{
        Server as Sluice,
        grpc::request,
        load::{Call, Load, Outcome, Style, p99},
        wait::{DEADLINE, holds_within},
        wait_until,
    },
    sheet::{Sheet, millis, shown},
    watch::Watch,
};

const RULES: &str = "domain: d\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 4000000000}}]\n";
const REFUSED: Duration = millis(1_000);
const LOADED: Duration = millis(2_000);
/// For a debug build on a busy machine.
const PATIENCE: Duration = DEADLINE.saturating_mul(3);

struct Bomb {
    name: &'static str,
    text: String,
    /// What the refusal must say.
    limit: &'static str,
}

pub fn bombs(sheet: &Sheet) {
    let sluice = Sluice::start(RULES);
    let watch = Watch::begin([&sluice]);
    let style = Style { callers_of_each: 4, pause: Some(millis(10)), deadline: None };
    let load = Load::start(&[sluice.grpc()], &style, |_, _| request("d", &[("user", "one")]));
    load.wait_for_calls(100);
    for Bomb { name, text, limit } in all(sheet) {
        sheet.step(&format!("{name}: {} KB", text.len() >> 10));
        let generation = sluice.config()["generation"].clone();
        sluice.write("rules.yaml", &text);
        let began = Instant::now();
        let named = holds_within(PATIENCE, || sluice.config()["last_error"].to_string().contains(limit));
        let took = began.elapsed();
        let fault = format!("rules: {name}");
        sheet.judge(&fault, "refused by its limit", &named, &format!("\"{limit}\""), named);
        sheet.at_most(&fault, "refused after", took, REFUSED);
        let kept = sluice.config()["generation"] == generation;
        sheet.judge(&fault, "the rules before are in force", &kept, "true", kept);
        sluice.write("rules.yaml", RULES);
        wait_until("it is mended", || sluice.config()["last_error"].is_null());
    }
    let count = if sheet.is_full() { 100_000 } else { 5_000 };
    for (name, text, rules) in [("many rules", many(count), count + 1), ("few rules again", RULES.to_owned(), 1)] {
        sheet.step(name);
        let began = Instant::now();
        sluice.write("rules.yaml", &text);
        let loaded = holds_within(PATIENCE, || sluice.config()["rules"] == rules);
        let took = began.elapsed();
        let fault = format!("rules: {name}");
        sheet.judge(&fault, "rules in force", &loaded, &format!("= {rules}"), loaded);
        sheet.at_most(&fault, "loaded after", took, LOADED);
    }
    let calls = sheet.record(load, "bombs");
    let fault = "rules that hurt";
    sheet.count(fault, &format!("of {} calls failed", calls.len()), other_than(&calls, &[Outcome::Ok]), 0);
    let longest = calls.iter().map(Call::took).max().unwrap_or_default();
    sheet.step(&format!("p99 of callers {}, longest wait {}", shown(p99(&calls)), shown(longest)));
    watch.end_but_log(sheet, fault);
}

fn all(sheet: &Sheet) -> Vec<Bomb> {
    let megabytes = |count: usize| many(count * 1_000_000 / many(1_000).len() * 1_000);
    let bombs = vec![
        Bomb { name: "aliases of aliases", text: laughs(), limit: "values once its aliases are written out" },
        Bomb { name: "aliases of rules", text: aliased_rules(), limit: "descriptors in all files together" },
        Bomb { name: "100,000 levels of lists", text: nested("[", 100_000), limit: "nested deeper than 64 levels" },
        Bomb { name: "100,000 levels of maps", text: nested("{a: ", 100_000), limit: "nested deeper than 64 levels" },
        Bomb { name: "1,000 levels of rules", text: deep_rules(1_000), limit: "nested deeper than 64 levels" },
        Bomb { name: "50 MB", text: megabytes(50), limit: "bytes, at most" },
    ];
    let large = if sheet.is_full() {
        vec![
            Bomb { name: "merge keys", text: merges(), limit: "merge keys write out more than" },
            Bomb { name: "300,000 rules", text: many(300_000), limit: "more than 1500000 values" },
            Bomb {
                name: "15 million values",
                text: format!("domain: d\ndescriptors: [{}]", "1,".repeat(15_000_000)),
                limit: "values once its aliases are written out",
            },
        ]
    } else {
        Vec::new()
    };
    bombs.into_iter().chain(large).collect()
}

/// Rules that are good, beside the one that is asked for.
fn many(count: usize) -> String {
    let mut text = RULES.replace("[{", "\n  - {").replace("}]", "}\n  - key: tenant\n    descriptors:");
    for number in 0..count {
        let _ = writeln!(
            text,
            "      - {{key: user, value: user-{number}, rate_limit: {{unit: second, requests_per_unit: 10}}}}"
        );
    }
    text
}

fn laughs() -> String {
    let mut text = "a0: &a0 [ha, ha, ha, ha, ha, ha, ha, ha, ha, ha]\n".to_owned();
    for level in 1..12 {
        let below = format!("*a{}, ", level - 1).repeat(10);
        let _ = writeln!(text, "a{level}: &a{level} [{below}]");
    }
    text + "domain: d\n"
}

fn merges() -> String {
    let keys: String = (0..1_000).map(|key| format!("k{key}: 1, ")).collect();
    let mut text = format!("a: &a {{{keys}}}\nb:\n");
    (0..2_000).for_each(|_| text += "  - {<<: *a}\n");
    text + "domain: d\n"
}

fn aliased_rules() -> String {
    let inner = "{key: b}, ".repeat(999);
    format!("domain: d\ndescriptors: [&d {{key: a, descriptors: [{inner}]}}, {}]\n", "*d, ".repeat(400))
}

fn nested(open: &str, levels: usize) -> String {
    format!("domain: d\ndescriptors: {}", open.repeat(levels))
}

fn deep_rules(levels: usize) -> String {
    let mut text = "domain: d\n".to_owned();
    for level in 0..levels {
        let indent = " ".repeat(2 * level);
        let _ = writeln!(text, "{indent}descriptors:\n{indent}- key: k{level}");
    }
    text
}
