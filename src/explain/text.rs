//! An explanation for people to read.

use std::fmt;

use super::{CounterShown, Explained, Explanation, LevelMet, Met, Outcome, RuleShown, StateShown};
use crate::{
    engine::{
        quota::Quota,
        rule::{Counted, Limit},
    },
    printable::Printable,
};

/// `10 per second with a burst of 100 and 10000 per hour with a burst of 10000 (leaky_bucket)`.
pub fn limit_in_words(limit: &Limit) -> String {
    match limit {
        Limit::Unlimited => "unlimited".to_owned(),
        Limit::Counted(counted) => counted.iter().map(counted_in_words).collect::<Vec<_>>().join(", and "),
    }
}

fn counted_in_words(counted: &Counted) -> String {
    let quota: &Quota = &counted.quota;
    let rates = quota.rates().iter().map(|rate| {
        let words = format!("{} per {}", rate.requests(), rate.period());
        if quota.algorithm().is_bucket() { format!("{words} with a burst of {}", rate.capacity()) } else { words }
    });
    let words = format!("{} ({})", rates.collect::<Vec<_>>().join(" and "), quota.algorithm().name());
    match &counted.plan {
        Some(plan) => format!("plan `{plan}`: {words}"),
        None => words,
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "domain {}", Printable(&self.domain))?;
        if self.global_shadow_mode {
            writeln!(f, "the whole service is in shadow mode: nothing is refused")?;
        }
        if self.global_quota_mode {
            writeln!(f, "the whole service is in quota mode: refused only if every descriptor is over its limit")?;
        }
        for (index, descriptor) in self.descriptors.iter().enumerate() {
            write!(f, "\ndescriptor {}: {descriptor}", index + 1)?;
        }
        Ok(())
    }
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries: Vec<String> = self.entries.iter().map(|entry| format!("{}={}", entry.key, entry.value)).collect();
        writeln!(f, "{}", Printable(&entries.join(", ")))?;
        for level in &self.levels {
            write!(f, "{level}")?;
        }
        match &self.outcome {
            Outcome::Limited { rule, counters } => {
                write!(f, "{rule}")?;
                counters.iter().try_for_each(|counter| write!(f, "{counter}"))
            }
            Outcome::Unlimited { rule } => write!(f, "{rule}"),
            Outcome::NoLimit { reason, .. } => writeln!(f, "  no limit: {}", Printable(reason)),
        }
    }
}

impl fmt::Display for LevelMet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  {}={}: ", Printable(&self.key), Printable(&self.value))?;
        match &self.met {
            Met::Exact => writeln!(f, "met by its exact value")?,
            Met::Glob { pattern, shares_counter } => {
                let shared = if *shares_counter { ", all values of which share one counter" } else { "" };
                writeln!(f, "met by the pattern `{}`{shared}", Printable(pattern))?;
            }
            Met::Default => writeln!(f, "met by the key alone, which takes any value")?,
            Met::Nothing { reason } => writeln!(f, "met nothing: {}", Printable(reason))?,
        }
        self.passed_over
            .iter()
            .try_for_each(|passed| writeln!(f, "    not {}: {}", Printable(&passed.sibling), Printable(passed.why)))
    }
}

impl fmt::Display for RuleShown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  rule {}", Printable(&self.path))?;
        if let Some(name) = &self.name {
            write!(f, " (`{}`)", Printable(name))?;
        }
        let on_store_failure = self.on_store_failure.unwrap_or("as the process is set");
        writeln!(f, "\n    limit: {}", Printable(&self.limit))?;
        writeln!(f, "    mode: {}; when the store fails: {on_store_failure}", self.mode)?;
        if !self.replaces.is_empty() {
            writeln!(f, "    replaces: {}", Printable(&self.replaces.join(", ")))?;
        }
        Ok(())
    }
}

impl fmt::Display for CounterShown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "    counter {} (slot {})", Printable(&self.key), self.slot)?;
        let refused = if self.on_over_limit == "charge" { "count all the same" } else { "count nothing" };
        writeln!(f, "      refused hits {refused} ({})", self.on_over_limit)?;
        match &self.state {
            None => Ok(()),
            Some(StateShown::Unknown { failure }) => {
                writeln!(f, "      now: unknown, the store does not say: {failure}")
            }
            Some(StateShown::Known { rate, used, remaining, reset_s, denials }) => {
                write!(f, "      now: {used} used, {remaining} remaining, reset in {reset_s} s")?;
                let name = self.rates.get(*rate).and_then(|rate| rate.name.as_deref());
                if let (Some(name), true) = (name, self.rates.len() > 1) {
                    write!(f, ", at the rate `{}`", Printable(name))?;
                }
                if self.track_denials {
                    write!(f, ", {denials} hits refused since the last admitted one")?;
                }
                writeln!(f)
            }
        }
    }
}
