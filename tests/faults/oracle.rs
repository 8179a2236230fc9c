//! Judges a history by itself. It knows JSON lines and arithmetic, and nothing of the service, its rules or its stores.
//!
//! Nobody knows when a call was decided, only that it was between its being sent and its being answered. So, for every two
//! instants a < b, what calls sent after a and answered before b were admitted must be at most C + r(b - a) + 1, for a bucket that holds
//! C and is given r each second. The largest of "admitted - r(b - a)" over all pairs is the **burst** of a history; it is at most
//! C + 1 if nobody ever got too much.
//!
//! And not too few: who asks all the time is admitted at least 99.5 % of C + rT, who asks at less than r is never refused.

use std::{
    fs::File,
    io::{BufRead as _, BufReader},
    path::Path,
};

use serde::Deserialize;

/// One line.
#[derive(Clone, Debug, Deserialize)]
pub struct Line {
    pub key: String,
    pub hits: u32,
    pub sent_us: u64,
    pub answered_us: u64,
    pub code: Option<String>,
    pub degraded: bool,
}

impl Line {
    fn is_admitted(&self) -> bool {
        self.code.as_deref() == Some("OK")
    }
}

/// Calls of one key that the same somebody decided.
pub struct History(Vec<Line>);

/// All lines of a file.
pub fn read(path: &Path) -> Vec<Line> {
    let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let line = |line: Result<String, _>| serde_json::from_str(&line.expect("it is text")).expect("a line of a history");
    BufReader::new(file).lines().map(line).collect()
}

impl History {
    /// What the store said of a key.
    pub fn of_store(lines: &[Line], key: &str) -> Self {
        Self(lines.iter().filter(|line| line.key == key && !line.degraded).cloned().collect())
    }

    /// What was said of a key without the store.
    pub fn without_store(lines: &[Line], key: &str) -> Self {
        Self(lines.iter().filter(|line| line.key == key && line.degraded).cloned().collect())
    }

    /// The most that was admitted within any time beyond what came in during it.
    pub fn burst(&self, per_second: f64) -> f64 {
        let refill = |us: u64| per_second * us as f64 / 1e6;
        let mut by_sent: Vec<&Line> = self.0.iter().filter(|line| line.is_admitted()).collect();
        by_sent.sort_by_key(|line| line.sent_us);
        let mut by_answer: Vec<usize> = (0..by_sent.len()).collect();
        by_answer.sort_by_key(|place| by_sent[*place].answered_us);
        let mut sums = Suffixes::new(by_sent.len());
        let mut burst: f64 = 0.0;
        for place in by_answer {
            let line = by_sent[place];
            sums.add(place, f64::from(line.hits), refill(line.sent_us));
            burst = burst.max(sums.best() - refill(line.answered_us));
        }
        burst
    }

    pub fn admitted(&self) -> u64 {
        self.0.iter().filter(|line| line.is_admitted()).map(|line| u64::from(line.hits)).sum()
    }

    pub fn refused(&self) -> usize {
        self.0.iter().filter(|line| !line.is_admitted() && line.code.is_some()).count()
    }

    /// What was admitted of what could have been, between the first answer and the last question.
    pub fn share(&self, capacity: f64, per_second: f64) -> f64 {
        let first = self.0.iter().map(|line| line.answered_us).min().unwrap_or(0);
        let last = self.0.iter().map(|line| line.sent_us).max().unwrap_or(0);
        self.admitted() as f64 / (capacity + per_second * last.saturating_sub(first) as f64 / 1e6)
    }
}

/// Values in a row, each with a start of its own, and the largest of all "start of a place + sum of values from there on". Adding a
/// value takes a logarithm of their number.
struct Suffixes {
    leaves: usize,
    /// A binary tree: the sum below each node, and the best that begins below it.
    nodes: Vec<(f64, f64)>,
}

impl Suffixes {
    fn new(values: usize) -> Self {
        let leaves = values.next_power_of_two();
        Self { leaves, nodes: vec![(0.0, f64::NEG_INFINITY); 2 * leaves] }
    }

    fn add(&mut self, place: usize, value: f64, start: f64) {
        let mut node = self.leaves + place;
        self.nodes[node] = (value, start + value);
        while node > 1 {
            node /= 2;
            let (left, right) = (self.nodes[2 * node], self.nodes[2 * node + 1]);
            self.nodes[node] = (left.0 + right.0, right.1.max(left.1 + right.0));
        }
    }

    fn best(&self) -> f64 {
        self.nodes[1].1
    }
}

/// Shows that it finds one hit too many and one too few, and does not cry without cause. Run before it judges anything.
pub fn prove() {
    let call = |sent_us, answered_us, code: &str| Line {
        key: "k".to_owned(),
        hits: 1,
        sent_us,
        answered_us,
        code: Some(code.to_owned()),
        degraded: false,
    };
    // A bucket of 5 that is given 10 a second, asked every 10 ms for a second and answered within 4 ms.
    let level = |admitted: u64, us: u64| 5.0 + 10.0 * us as f64 / 1e6 - admitted as f64;
    let mut admitted = 0;
    let mut exact = Vec::new();
    for turn in 0..100 {
        let at = turn * 10_000;
        let fits = level(admitted, at) >= 1.0;
        admitted += u64::from(fits);
        exact.push(call(at.saturating_sub(2_000), at + 2_000, if fits { "OK" } else { "OVER_LIMIT" }));
    }
    let history = History(exact.clone());
    assert!(history.burst(10.0) <= 6.0, "cried without cause: {}", history.burst(10.0));
    assert!(history.share(5.0, 10.0) > 0.9, "{}", history.share(5.0, 10.0));

    // Two more at once, wherever they are: one is what the bound has to spare.
    for place in [0, 30, 99] {
        let mut many = exact.clone();
        let at = many[place].answered_us;
        many.extend([call(at, at + 1, "OK"), call(at, at + 1, "OK")]);
        let burst = History(many).burst(10.0);
        assert!(burst > 6.0, "one too many at {place} was not found: {burst}");
    }
    // In a time of its own: a whole burst twice, half of what it takes to fill up apart.
    let twice = (0..2).flat_map(|turn| (0..5).map(move |_| call(turn * 250_000, turn * 250_000 + 10, "OK")));
    assert!(History(twice.collect()).burst(10.0) > 6.0, "a burst that came too soon was not found");

    // One in a hundred too few.
    let saturated = |admitted: usize| {
        let mut calls = vec![call(0, 1, "OK"); admitted];
        calls.push(call(1_000_001, 1_000_002, "OVER_LIMIT"));
        History(calls).share(100.0, 100.0)
    };
    assert!(saturated(200) >= 0.995 && saturated(198) < 0.995, "too few was not found");
    prove_against_all_pairs();
}

/// The sweep finds what looking at every pair of instants finds.
fn prove_against_all_pairs() {
    let mut seed = 7_u64;
    let mut next = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for _ in 0..50 {
        let calls: Vec<Line> = (0..40)
            .map(|_| {
                let sent_us = next(2_000_000);
                let (answered_us, hits) = (sent_us + next(300_000), u32::try_from(next(4)).unwrap_or(0));
                let code = Some("OK".to_owned());
                Line { key: String::new(), hits, sent_us, answered_us, code, degraded: false }
            })
            .collect();
        let mut most: f64 = 0.0;
        for from in &calls {
            for to in &calls {
                let inside =
                    calls.iter().filter(|call| call.sent_us >= from.sent_us && call.answered_us <= to.answered_us);
                let admitted: u32 = inside.map(|call| call.hits).sum();
                let refill = 10.0 * (to.answered_us as f64 - from.sent_us as f64) / 1e6;
                if to.answered_us >= from.sent_us {
                    most = most.max(f64::from(admitted) - refill);
                }
            }
        }
        let swept = History(calls).burst(10.0);
        assert!((swept - most).abs() < 1e-6, "{swept} by the sweep, {most} by all pairs");
    }
}
