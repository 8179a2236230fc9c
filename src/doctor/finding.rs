//! What was found: one sentence for each check, and how bad it is.

use std::fmt;

use serde::Serialize;
use serde_json::{Value, json};

use crate::printable::Printable;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Ok,
    /// Works, but may not always, or could not be looked at.
    Warn,
    /// Does not work.
    Fail,
}

impl Verdict {
    fn shown(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub verdict: Verdict,
    /// What was looked for, by a name that does not change.
    pub check: &'static str,
    /// Whom it is about: a node, a file, a port.
    pub target: String,
    /// The cause, its value, and what to do.
    pub message: String,
}

impl Finding {
    pub fn new(verdict: Verdict, check: &'static str, target: &impl ToString, message: impl Into<String>) -> Self {
        Self { verdict, check, target: target.to_string(), message: message.into() }
    }

    pub fn ok(check: &'static str, target: &impl ToString, message: impl Into<String>) -> Self {
        Self::new(Verdict::Ok, check, target, message)
    }

    pub fn warn(check: &'static str, target: &impl ToString, message: impl Into<String>) -> Self {
        Self::new(Verdict::Warn, check, target, message)
    }

    pub fn fail(check: &'static str, target: &impl ToString, message: impl Into<String>) -> Self {
        Self::new(Verdict::Fail, check, target, message)
    }
}

/// One line, whatever a server has said.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.target.is_empty() { String::new() } else { format!("{}: ", self.target) };
        let line = format!("{:<4}  {:<11}  {place}{}", self.verdict.shown(), self.check, self.message);
        Printable(&line).fmt(f)
    }
}

#[derive(Clone, Debug, Default)]
pub struct Report {
    pub findings: Vec<Finding>,
}

impl Report {
    #[must_use]
    pub fn count(&self, verdict: Verdict) -> usize {
        self.findings.iter().filter(|finding| finding.verdict == verdict).count()
    }

    #[must_use]
    pub fn worst(&self) -> Verdict {
        self.findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Ok)
    }

    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "verdict": self.worst(),
            "summary": {
                "ok": self.count(Verdict::Ok),
                "warn": self.count(Verdict::Warn),
                "fail": self.count(Verdict::Fail),
            },
            "checks": self.findings,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            writeln!(f, "{finding}")?;
        }
        let verdict = match self.worst() {
            Verdict::Ok => "all is well",
            Verdict::Warn => "works, with doubts",
            Verdict::Fail => "broken",
        };
        let count = |verdict| self.count(verdict);
        write!(
            f,
            "{verdict}: {} ok, {} to look at, {} failed",
            count(Verdict::Ok),
            count(Verdict::Warn),
            count(Verdict::Fail)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_one_line_and_cannot_forge_another() {
        let finding = Finding::warn("reach", &"a:1", "it said\nok    rules  \u{1b}[32m");
        assert_eq!(finding.to_string(), "warn  reach        a:1: it said\\nok    rules  \\u{1b}[32m");
    }

    #[test]
    fn the_worst_finding_is_the_verdict() {
        let mut report = Report::default();
        assert_eq!(report.worst(), Verdict::Ok);
        report.findings.push(Finding::fail("rules", &"", "bad"));
        report.findings.push(Finding::warn("clock", &"a:1", "off"));
        assert_eq!(report.worst(), Verdict::Fail);
        assert_eq!(report.json()["summary"]["warn"], 1);
        assert!(report.to_string().ends_with("broken: 0 ok, 1 to look at, 1 failed"));
    }
}
