//! What was seen, and how it is told.

use std::{
    collections::BTreeMap,
    fmt,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::{
    Load, Shape,
    answer::{Answer, Code, Wrong},
};

const LONGEST: Duration = Duration::from_secs(60);
const QUANTILES: [(&str, f64); 5] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999)];

/// Nanoseconds, to three digits.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1_000, nanoseconds(LONGEST), 3).expect("a microsecond to a minute, in three digits")
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[derive(Debug)]
pub struct Tally {
    latency: Histogram<u64>,
    /// From when a call was due to when it was sent: what this side added by itself.
    late: Histogram<u64>,
    ok: u64,
    over_limit: u64,
    degraded: u64,
    whole_only: u64,
    errors: BTreeMap<Wrong, u64>,
    last: Option<Instant>,
}

impl Tally {
    #[must_use]
    pub fn new() -> Self {
        Self {
            latency: histogram(),
            late: histogram(),
            ok: 0,
            over_limit: 0,
            degraded: 0,
            whole_only: 0,
            errors: BTreeMap::new(),
            last: None,
        }
    }

    pub fn sent_late(&mut self, late: Duration) {
        self.late.saturating_record(nanoseconds(late));
    }

    pub fn note(&mut self, took: Duration, ended: &Result<Answer, Wrong>) {
        self.last = Some(Instant::now());
        match ended {
            Ok(answer) => {
                self.latency.saturating_record(nanoseconds(took));
                self.degraded += u64::from(answer.degraded);
                self.whole_only += u64::from(answer.whole_only);
                match answer.code {
                    Code::Ok => self.ok += 1,
                    Code::OverLimit => self.over_limit += 1,
                }
            }
            Err(wrong) => *self.errors.entry(wrong.clone()).or_default() += 1,
        }
    }

    /// Good answers and errors.
    #[must_use]
    pub fn seen(&self) -> (u64, u64) {
        (self.ok + self.over_limit, self.errors.values().sum())
    }

    pub fn add(&mut self, other: &Self) {
        self.latency.add(&other.latency).expect("all histograms have the same bounds");
        self.late.add(&other.late).expect("all histograms have the same bounds");
        self.ok += other.ok;
        self.over_limit += other.over_limit;
        self.degraded += other.degraded;
        self.whole_only += other.whole_only;
        for (wrong, count) in &other.errors {
            *self.errors.entry(wrong.clone()).or_default() += count;
        }
        self.last = self.last.max(other.last);
    }
}

/// What a load came to.
#[derive(Debug)]
pub struct Report {
    target: String,
    shape: String,
    warmup: Duration,
    took: Duration,
    tally: Tally,
    is_open: bool,
}

impl Report {
    #[must_use]
    pub fn new(load: &Load, tally: Tally, counts_from: Instant) -> Self {
        let shape = match load.shape {
            Shape::Closed { streams } => format!("closed loop, {} connections x {streams} streams", load.connections),
            Shape::Open { rate } => format!("open loop, {rate}/s over {} connections", load.connections),
        };
        let took = tally.last.map_or(Duration::ZERO, |last| last.saturating_duration_since(counts_from));
        Self {
            target: load.target.to_string(),
            shape,
            warmup: load.warmup,
            took,
            tally,
            is_open: matches!(load.shape, Shape::Open { .. }),
        }
    }

    /// Good answers and errors.
    #[must_use]
    pub fn seen(&self) -> (u64, u64) {
        self.tally.seen()
    }

    #[must_use]
    pub fn json(&self) -> Value {
        let (answers, errors) = self.seen();
        let by_kind: serde_json::Map<String, Value> =
            self.tally.errors.iter().map(|(wrong, count)| (wrong.to_string(), json!(count))).collect();
        json!({
            "target": self.target,
            "load": self.shape,
            "warmup_s": self.warmup.as_secs_f64(),
            "duration_s": self.took.as_secs_f64(),
            "requests": answers + errors,
            "answers": answers,
            "answers_per_s": self.rate(),
            "codes": {"ok": self.tally.ok, "over_limit": self.tally.over_limit},
            "degraded": self.tally.degraded,
            "without_statuses": self.tally.whole_only,
            "errors": errors,
            "errors_by_kind": by_kind,
            "latency_us": microseconds(&self.tally.latency),
            "sent_late_us": microseconds(&self.tally.late),
        })
    }

    #[expect(clippy::cast_precision_loss, reason = "for people")]
    fn rate(&self) -> f64 {
        let took = self.took.as_secs_f64();
        if took > 0.0 { self.seen().0 as f64 / took } else { 0.0 }
    }
}

#[expect(clippy::cast_precision_loss, reason = "nanoseconds of a minute")]
fn microseconds(histogram: &Histogram<u64>) -> Value {
    let us = |nanoseconds: u64| json!(nanoseconds as f64 / 1_000.0);
    let mut fields: serde_json::Map<String, Value> = QUANTILES
        .iter()
        .map(|(name, quantile)| ((*name).to_owned(), us(histogram.value_at_quantile(*quantile))))
        .collect();
    fields.insert("max".to_owned(), us(histogram.max()));
    fields.insert("mean".to_owned(), json!(histogram.mean() / 1_000.0));
    fields.into()
}

/// `12.3 us`, `4.56 ms`, `1.20 s`.
#[expect(clippy::cast_precision_loss, reason = "for people")]
fn shown(nanoseconds: u64) -> String {
    match nanoseconds as f64 / 1_000.0 {
        us if us < 1_000.0 => format!("{us:.0} us"),
        us if us < 1_000_000.0 => format!("{:.2} ms", us / 1_000.0),
        us => format!("{:.2} s", us / 1_000_000.0),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (answers, errors) = self.seen();
        let quantiles = |histogram: &Histogram<u64>| {
            let of =
                |(name, quantile): &(&str, f64)| format!("{name} {}", shown(histogram.value_at_quantile(*quantile)));
            let mut parts: Vec<String> = QUANTILES.iter().map(of).collect();
            parts.push(format!("max {}", shown(histogram.max())));
            parts.join("  ")
        };
        writeln!(f, "target     {}, {}", self.target, self.shape)?;
        let (took, warmup) = (self.took.as_secs_f64(), self.warmup.as_secs_f64());
        writeln!(f, "answers    {answers} in {took:.2} s after {warmup} s of warm-up, {:.0}/s", self.rate())?;
        writeln!(f, "codes      OK {}, OVER_LIMIT {}", self.tally.ok, self.tally.over_limit)?;
        if self.tally.degraded > 0 {
            writeln!(f, "           {} of them by a failure policy, and not by the store", self.tally.degraded)?;
        }
        if self.tally.whole_only > 0 {
            writeln!(f, "           {} of them without a status for each descriptor", self.tally.whole_only)?;
        }
        writeln!(f, "errors     {errors}")?;
        for (wrong, count) in &self.tally.errors {
            writeln!(f, "           {count} x {wrong}")?;
        }
        write!(f, "latency    {}", quantiles(&self.tally.latency))?;
        if self.is_open {
            write!(f, "\nsent late  {}", quantiles(&self.tally.late))?;
        }
        Ok(())
    }
}
