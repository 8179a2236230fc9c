//! A histogram of times, counted straight into its buckets.
//!
//! The exporter's own keeps every sample until somebody sorts them, which costs each decision more than deciding where in the
//! tree its rule is, and memory for as long as nobody does.

use std::{
    fmt::Write as _,
    sync::atomic::{AtomicU64, Ordering},
};

use metrics::{HistogramFn, Label};

use super::Family;

/// From 25 us, which a decision in memory stays below, to the second that nobody waits for.
const UP_TO_S: [f64; 14] =
    [0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0];

/// One series.
#[derive(Debug)]
pub struct Buckets {
    pub labels: String,
    /// How many fell into each, with one more for what is above all of them.
    counts: [AtomicU64; UP_TO_S.len() + 1],
    sum_ns: AtomicU64,
}

impl HistogramFn for Buckets {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds, which are never below 0")]
    fn record(&self, seconds: f64) {
        let index = UP_TO_S.iter().position(|up_to| seconds <= *up_to).unwrap_or(UP_TO_S.len());
        self.counts[index].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add((seconds * 1e9) as u64, Ordering::Relaxed);
    }
}

impl Buckets {
    /// Label values must need no escaping: they are names of ours.
    #[must_use]
    pub fn new(labels: &[Label]) -> Self {
        let labels = labels.iter().map(|label| format!("{}=\"{}\",", label.key(), label.value())).collect();
        Self { labels, counts: std::array::from_fn(|_| AtomicU64::new(0)), sum_ns: AtomicU64::new(0) }
    }

    /// Appends its lines in the text format of Prometheus.
    #[expect(clippy::cast_precision_loss, reason = "what Prometheus computes with")]
    pub fn render(&self, family: Family, out: &mut String) {
        let (name, labels) = (family.name, &self.labels);
        let mut count = 0;
        let bounds = UP_TO_S.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
        for (bound, in_bucket) in bounds.zip(&self.counts) {
            count += in_bucket.load(Ordering::Relaxed);
            let _ = writeln!(out, "{name}_bucket{{{labels}le=\"{bound}\"}} {count}");
        }
        let braced = match labels.strip_suffix(',') {
            Some(labels) => format!("{{{labels}}}"),
            None => String::new(),
        };
        let sum_s = self.sum_ns.load(Ordering::Relaxed) as f64 / 1e9;
        let _ = writeln!(out, "{name}_sum{braced} {sum_s}\n{name}_count{braced} {count}");
    }
}

#[cfg(test)]
mod tests {
    use super::{super::table::RESPONSE_TIME, *};

    #[test]
    fn a_time_is_in_its_bucket_and_in_all_above() {
        let buckets = Buckets::new(&[Label::new("grpc_method", "Ask")]);
        for seconds in [0.000_025, 0.000_026, 0.5, 7.0] {
            buckets.record(seconds);
        }
        let mut text = String::new();
        buckets.render(RESPONSE_TIME, &mut text);
        for line in [
            r#"_bucket{grpc_method="Ask",le="0.000025"} 1"#,
            r#"_bucket{grpc_method="Ask",le="0.00005"} 2"#,
            r#"_bucket{grpc_method="Ask",le="0.25"} 2"#,
            r#"_bucket{grpc_method="Ask",le="1"} 3"#,
            r#"_bucket{grpc_method="Ask",le="+Inf"} 4"#,
            r#"_sum{grpc_method="Ask"} 7.500051"#,
            r#"_count{grpc_method="Ask"} 4"#,
        ] {
            assert!(text.contains(&format!("ratelimit_service_response_time_seconds{line}\n")), "{line} in:\n{text}");
        }
    }
}
