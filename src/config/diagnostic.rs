//! What is wrong with a rules file, where, and what to do about it.
//!
//! Knows places and text. Knows nothing of what rules mean.

use std::{cell::OnceCell, fmt};

use serde::Serialize;

use super::Source;
use crate::printable::Printable;

/// More mistakes than this are counted, not shown.
pub const SHOWN_MAX: usize = 1_000;
/// Longer source lines are cut around the place in question.
const EXCERPT_CHARS_MAX: usize = 160;

/// A place in a source, in characters, both counted from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub line: u32,
    pub column: u32,
}

impl Place {
    pub const START: Place = Place { line: 1, column: 1 };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Error,
    Warning,
    Info,
}

impl Severity {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Info => "info",
        }
    }
}

/// One thing to say about a file. Its [`fmt::Display`] is several lines, as compilers do it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    pub severity: Severity,
    pub file: String,
    pub line: u32,
    pub column: u32,
    /// The way through the file: `descriptors[2].rate_limit.unit`.
    pub path: String,
    /// The way through the rules: `edge > api_key`.
    pub tree_path: String,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The line of the file, cut if it is long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excerpt: Option<String>,
    /// How many characters of the excerpt stand before the place.
    #[serde(skip)]
    pub caret: usize,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, column, .. } = self;
        let (file, message, path) = (Printable(&self.file), Printable(&self.message), Printable(&self.path));
        let tree_path = Printable(&self.tree_path);
        write!(f, "{}: {message}\n  --> {file}:{line}:{column}", self.severity.name())?;
        let margin = " ".repeat(line.to_string().len());
        if let Some(excerpt) = &self.excerpt {
            write!(f, "\n{margin} |\n{line} | {}\n{margin} | {}^", Printable(excerpt), " ".repeat(self.caret))?;
        }
        match (self.path.is_empty(), self.tree_path.is_empty()) {
            (true, true) => {}
            (false, true) => write!(f, "\n{margin} = at: {path}")?,
            (true, false) => write!(f, "\n{margin} = at: {tree_path}")?,
            (false, false) => write!(f, "\n{margin} = at: {path} ({tree_path})")?,
        }
        if let Some(hint) = &self.hint {
            write!(f, "\n{margin} = hint: {}", Printable(hint))?;
        }
        Ok(())
    }
}

/// A diagnostic in the making: what its finder knows.
#[derive(Clone, Debug)]
pub struct Finding {
    pub severity: Severity,
    pub place: Place,
    /// The field of the node in question, where it is one.
    pub field: Option<&'static str>,
    pub message: String,
    pub hint: Option<String>,
}

impl Finding {
    fn new(severity: Severity, place: Place, message: impl Into<String>) -> Self {
        Self { severity, place, field: None, message: message.into(), hint: None }
    }

    pub fn error(place: Place, message: impl Into<String>) -> Self {
        Self::new(Severity::Error, place, message)
    }

    pub fn warning(place: Place, message: impl Into<String>) -> Self {
        Self::new(Severity::Warning, place, message)
    }

    pub fn info(place: Place, message: impl Into<String>) -> Self {
        Self::new(Severity::Info, place, message)
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    #[must_use]
    pub fn field(mut self, field: &'static str) -> Self {
        self.field = Some(field);
        self
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Step<'n> {
    Field(&'static str),
    Name(&'n str),
    Index(usize),
}

/// Where a reader stands. Only written out when there is something to say.
#[derive(Clone, Debug, Default)]
pub struct Trail<'n> {
    /// Which of the sources.
    pub source: usize,
    pub domain: &'n str,
    pub steps: Vec<Step<'n>>,
    /// The (key, value) of each descriptor on the way.
    pub labels: Vec<(&'n str, &'n str)>,
}

impl<'n> Trail<'n> {
    #[must_use]
    pub fn new(source: usize, domain: &'n str) -> Self {
        Self { source, domain, ..Self::default() }
    }

    fn path(&self, field: Option<&'static str>) -> String {
        let mut path = String::new();
        for step in self.steps.iter().copied().chain(field.map(Step::Field)) {
            match step {
                Step::Index(index) => path.extend(["[", &index.to_string(), "]"]),
                Step::Field(name) | Step::Name(name) => {
                    if !path.is_empty() {
                        path.push('.');
                    }
                    path.push_str(name);
                }
            }
        }
        path
    }

    fn tree_path(&self) -> String {
        let mut path = self.domain.to_owned();
        for (key, value) in &self.labels {
            path.push_str(" > ");
            path.push_str(&label(key, value));
        }
        path
    }
}

/// How a node is written in paths: `key`, or `key_value`.
#[must_use]
pub fn label(key: &str, value: &str) -> String {
    if value.is_empty() { key.to_owned() } else { format!("{key}_{value}") }
}

/// Where the lines of a text begin. Made when the first excerpt is wanted.
struct Lines {
    starts: Vec<usize>,
    is_ascii: bool,
}

impl Lines {
    fn of(text: &str) -> Self {
        let after_breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Self { starts: std::iter::once(0).chain(after_breaks).collect(), is_ascii: text.is_ascii() }
    }

    /// The line, cut to a readable length, and how many characters of it stand before the column.
    fn excerpt(&self, text: &str, place: Place) -> Option<(String, usize)> {
        let line = usize::try_from(place.line).ok()?.checked_sub(1)?;
        let start = *self.starts.get(line)?;
        let end = self.starts.get(line + 1).map_or(text.len(), |next| next - 1);
        let line = text[start..end].trim_end_matches('\r').trim_start_matches('\u{FEFF}');
        let before = usize::try_from(place.column).ok()?.saturating_sub(1);
        let skipped = (before + EXCERPT_CHARS_MAX / 4).saturating_sub(EXCERPT_CHARS_MAX);
        // A file can be one line of many megabytes; then only plain bytes can be skipped quickly.
        let cut: String = if self.is_ascii {
            line.get(skipped..(skipped + EXCERPT_CHARS_MAX).min(line.len())).unwrap_or_default().to_owned()
        } else {
            line.chars().skip(skipped).take(EXCERPT_CHARS_MAX).collect()
        };
        // A tab would move the caret; other control characters could move the terminal.
        let shown: String = cut.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
        Some((shown.trim_end().to_owned(), before - skipped))
    }
}

/// Collects what is found, with the text it is found in.
pub struct Report<'s> {
    sources: &'s [Source],
    lines: Vec<OnceCell<Lines>>,
    found: Vec<(usize, Diagnostic)>,
    errors: usize,
    others: usize,
}

impl<'s> Report<'s> {
    #[must_use]
    pub fn new(sources: &'s [Source]) -> Self {
        let lines = sources.iter().map(|_| OnceCell::new()).collect();
        Self { sources, lines, found: Vec::new(), errors: 0, others: 0 }
    }

    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.errors > 0
    }

    /// The name of a source.
    #[must_use]
    pub fn file(&self, source: usize) -> &str {
        self.sources.get(source).map_or("", |source| &source.name)
    }

    /// As `add`, for what is dear to write: after very many errors it is counted and not written.
    pub fn add_error(&mut self, trail: &Trail<'_>, write: impl FnOnce() -> Finding) {
        if self.errors < SHOWN_MAX {
            self.add(trail, write());
        } else {
            self.errors += 1;
        }
    }

    pub fn add(&mut self, trail: &Trail<'_>, finding: Finding) {
        let Finding { severity, place, field, message, hint } = finding;
        // Errors count for themselves, so that no number of warnings can hide one.
        let count = if severity == Severity::Error { &mut self.errors } else { &mut self.others };
        *count += 1;
        if *count > SHOWN_MAX {
            return;
        }
        let file = self.file(trail.source).to_owned();
        let text = self.sources.get(trail.source).map_or("", |source| &source.text);
        let lines = self.lines.get(trail.source).map(|lines| lines.get_or_init(|| Lines::of(text)));
        let excerpt = lines.and_then(|lines| lines.excerpt(text, place));
        let (excerpt, caret) = excerpt.map_or((None, 0), |(excerpt, caret)| (Some(excerpt), caret));
        let (path, tree_path) = (trail.path(field), trail.tree_path());
        let Place { line, column } = place;
        let found = Diagnostic { severity, file, line, column, path, tree_path, message, hint, excerpt, caret };
        self.found.push((trail.source, found));
    }

    /// Everything found, in the order of the files: errors first, the rest second.
    #[must_use]
    pub fn finish(mut self) -> (Vec<Diagnostic>, Vec<Diagnostic>) {
        self.found.sort_by_key(|(source, found)| (*source, found.line, found.column));
        let found = self.found.into_iter().map(|(_, found)| found);
        let (mut errors, mut others): (Vec<_>, Vec<_>) = found.partition(|found| found.severity == Severity::Error);
        for (count, shown) in [(self.errors, &mut errors), (self.others, &mut others)] {
            if let (1.., Some(last)) = (count.saturating_sub(SHOWN_MAX), shown.last_mut()) {
                last.hint = Some(format!("{} more are not shown", count - SHOWN_MAX));
            }
        }
        (errors, others)
    }
}

#[cfg(test)]
#[path = "diagnostic_tests.rs"]
mod tests;
