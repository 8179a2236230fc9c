//! How many label sets there may be. Rules are many and values of requests are more, and every label set is ten series that
//! live as long as the process, whatever rules come and go.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use super::RuleMetrics;
use crate::engine::rule::Rule;

/// How many label sets with values of requests one rule can have.
pub const SERIES_PER_RULE: usize = 1_000;
/// How many label sets all rules together can have: 200,000 series, some 30 MB to scrape.
pub const LABEL_SETS_MAX: usize = 20_000;
/// A value that is longer makes no label.
pub const LABEL_BYTES_MAX: usize = 256;

/// What the labels of one series say that stands for all that have none of their own.
const OVERFLOW: &str = "overflow";

/// The domain, the levels, and the name of a rule.
type Labels = Box<[Box<str>]>;

/// All label sets that were made since the start.
#[derive(Debug, Default)]
pub struct Series {
    known: Mutex<HashMap<Labels, Arc<RuleMetrics>>>,
    by_value: Mutex<HashMap<Labels, Arc<BoundedSeries>>>,
    pub overrides: BoundedSeries,
}

impl Series {
    /// Gives the label set of this domain, path and name. Beyond [`LABEL_SETS_MAX`], the one for all others.
    pub fn label_set(
        &self,
        domain: &str,
        path: &[&str],
        name: Option<&str>,
        make: impl Fn(&str, &[&str], Option<&str>) -> RuleMetrics,
    ) -> Arc<RuleMetrics> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(series) = known.get(&labels(domain, path, name)) {
            return series.clone();
        }
        if known.len() < LABEL_SETS_MAX {
            let series = Arc::new(make(domain, path, name));
            known.insert(labels(domain, path, name), series.clone());
            return series;
        }
        let overflow = || Arc::new(make(OVERFLOW, &[OVERFLOW], None));
        known.entry(labels(OVERFLOW, &[OVERFLOW], None)).or_insert_with(overflow).clone()
    }

    /// Where the value series of a rule are kept. Beyond [`LABEL_SETS_MAX`] rules it is a place that keeps nothing for long.
    pub fn by_value(&self, rule: &Rule) -> Arc<BoundedSeries> {
        let path: Vec<&str> = rule.path.iter().map(|part| &**part).collect();
        let mut by_value = self.by_value.lock().unwrap_or_else(PoisonError::into_inner);
        let labels = labels(&rule.domain, &path, rule.name.as_deref());
        if by_value.len() >= LABEL_SETS_MAX && !by_value.contains_key(&labels) {
            return Arc::default();
        }
        by_value.entry(labels).or_default().clone()
    }
}

fn labels(domain: &str, path: &[&str], name: Option<&str>) -> Labels {
    let parts = [domain].into_iter().chain(path.iter().copied()).chain(name);
    // A name and one more level would else be the same.
    let kind = if name.is_some() { "named" } else { "" };
    parts.chain([kind]).map(Into::into).collect()
}

/// Series whose labels hold values of requests: at most [`SERIES_PER_RULE`] for one rule.
#[derive(Debug, Default)]
pub struct BoundedSeries {
    series: Mutex<HashMap<Labels, Arc<RuleMetrics>>>,
}

impl BoundedSeries {
    pub fn get(&self, labels: &[Box<str>], make: impl Fn(&[&str]) -> Arc<RuleMetrics>) -> Arc<RuleMetrics> {
        let mut series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = series.get(labels) {
            return known.clone();
        }
        let fits = series.len() < SERIES_PER_RULE && labels.iter().all(|label| label.len() <= LABEL_BYTES_MAX);
        let shown: Vec<&str> = labels.iter().map(|label| if fits { &**label } else { OVERFLOW }).collect();
        let key: Labels = shown.iter().map(|label| Box::from(*label)).collect();
        series.entry(key).or_insert_with(|| make(&shown)).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Metrics;

    use super::*;

    fn lines(metrics: &Metrics) -> usize {
        metrics.render().lines().filter(|line| line.starts_with("sluice_hits_total")).count()
    }

    fn boxed(text: String) -> [Box<str>; 1] {
        [text.into()]
    }

    #[test]
    fn a_limit_that_comes_with_requests_has_so_many_series_and_one_for_the_rest() {
        let metrics = Metrics::new();
        for value in 0..SERIES_PER_RULE + 500 {
            metrics.override_of("d", boxed(format!("value{value}"))).hits.increment(1);
        }
        metrics.override_of("d", boxed("v".repeat(LABEL_BYTES_MAX + 1))).hits.increment(1);
        assert_eq!(lines(&metrics), SERIES_PER_RULE + 1);
        assert!(metrics.render().contains("sluice_hits_total{domain=\"overflow\",rule=\"overflow\"} 501"));
    }

    #[test]
    fn a_long_value_makes_no_label_even_though_there_is_room() {
        let metrics = Metrics::new();
        metrics.override_of("d", boxed("v".repeat(LABEL_BYTES_MAX))).hits.increment(1);
        metrics.override_of("d", boxed("v".repeat(LABEL_BYTES_MAX + 1))).hits.increment(1);
        assert!(metrics.render().contains("sluice_hits_total{domain=\"overflow\",rule=\"overflow\"} 1"));
    }

    #[test]
    fn all_label_sets_together_are_bounded_and_known_ones_stay_their_own() {
        let metrics = Metrics::new();
        let of = |rule: usize| metrics.label_set("d", &[&format!("key{rule}")], None);
        for rule in 0..LABEL_SETS_MAX + 10 {
            of(rule).hits.increment(1);
        }
        assert_eq!(lines(&metrics), LABEL_SETS_MAX + 1);
        of(0).hits.increment(1);
        let text = metrics.render();
        assert!(text.contains("sluice_hits_total{domain=\"d\",rule=\"key0\"} 2"));
        assert!(text.contains("sluice_hits_total{domain=\"overflow\",rule=\"overflow\"} 10"));
    }
}
