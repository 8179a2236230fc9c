//! Keeps the rules in force: reads them, compiles them off the path of requests, and publishes what is good. The only
//! publisher of rules.

#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use sha2::{Digest, Sha256};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval_at, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::{CompileOptions, Compiled, Diagnostic, Severity, Source, compile, read_sources, watch::Watch};
use crate::{
    engine::{rule::Rule, tree::RuleSet},
    health::Health,
    limiter::Rules,
    live::Publisher,
    load_report::{LoadFailure, LoadReport, ReloadAsked},
    panics,
    telemetry::metrics::Metrics,
};

/// Rules are read when nothing has changed for this long, and nobody is in the midst of writing, so that a file is not read half
/// written: half of a file can be good YAML.
const QUIET: Duration = Duration::from_millis(100);
/// But at the latest after this long: a change is in force within two seconds.
const QUIET_AT_MOST: Duration = Duration::from_millis(1_000);
/// Of a file with thousands of mistakes, the log names this many.
const LOGGED_MAX: usize = 5;

pub struct Reloader {
    pub path: PathBuf,
    pub poll_interval: Duration,
    pub options: CompileOptions,
    pub rules: Publisher<Rules>,
    pub report: Publisher<LoadReport>,
    pub metrics: Arc<Metrics>,
    pub health: Arc<Health>,
    pub known: Known,
}

/// What was read last, so that the same is not judged again.
#[derive(Default)]
pub struct Known {
    /// Of what was read last, good or bad.
    hash: Option<String>,
    /// The error of the last try to read, if it could not even be read.
    unreadable: Option<String>,
    /// What is in force.
    rules: Option<Arc<Rules>>,
    /// What was in force before. To take thousands of rules apart takes long, so that is not left to the last request that uses them,
    /// but is done by the next look at the rules.
    retired: Option<Arc<Rules>>,
    report: LoadReport,
}

impl Reloader {
    /// Reads the rules and puts them to use if they are new and good. Blocks.
    pub fn load(&mut self) {
        if panics::caught_now(|| self.read()).is_err() {
            self.record_failure(vec!["sluice has panicked while it read the rules: its log has the place".to_owned()]);
        }
    }

    fn read(&mut self) {
        self.known.retired = None;
        let sources = match read_sources(&self.path) {
            Ok(sources) => sources,
            Err(unreadable) => return self.refuse_unreadable(unreadable.to_string()),
        };
        if sources.is_empty() && self.known.report.domains > 0 {
            return self.refuse_unreadable(gone(&self.path));
        }
        self.known.unreadable = None;
        let hash = hash(&sources);
        if self.known.hash.as_ref() == Some(&hash) {
            self.metrics.reloads("unchanged").increment(1);
            return;
        }
        self.known.hash = Some(hash.clone());
        match compile(&sources, &self.options) {
            Ok(compiled) => self.apply(compiled, &sources, hash),
            Err(diagnostics) => self.refuse(&diagnostics),
        }
    }

    fn apply(&mut self, compiled: Compiled, sources: &[Source], hash: String) {
        let Compiled { set, metadata, warnings } = compiled;
        let change = Change::between(self.known.rules.as_ref().map(|rules| &rules.set), &set);
        let domains = set.domains().count();
        self.known.report = LoadReport {
            files: sources.iter().map(|source| source.name.clone()).collect(),
            hash,
            generation: self.known.report.generation + 1,
            loaded_at: Some(SystemTime::now()),
            last_error: None,
            domains,
            rules: set.rules().len(),
        };
        let rules = Arc::new(Rules::new(set, metadata));
        self.known.retired = self.known.rules.replace(rules.clone());
        self.rules.publish(rules);
        self.report.publish(self.known.report.clone());
        self.health.set_rules(domains);
        self.metrics.reloads("applied").increment(1);
        self.metrics.load_success.increment(1);
        self.measure();
        let doubtful = warnings.iter().filter(|diagnostic| diagnostic.severity == Severity::Warning);
        for warning in doubtful.clone().take(LOGGED_MAX) {
            warn!(file = %warning.file, line = warning.line, path = %warning.path, "{}", warning.message);
        }
        if let Some(more) = doubtful.count().checked_sub(LOGGED_MAX).filter(|more| *more > 0) {
            warn!(more, "there is more that is doubtful: `sluice check` shows all");
        }
        if domains == 0 {
            warn!(path = %self.path.display(), "there are no rules in there: nothing is limited");
        }
        let report = &self.known.report;
        info!(
            added = %change.added,
            changed = %change.changed,
            removed = %change.removed,
            rules = report.rules,
            domains,
            generation = report.generation,
            hash = %report.hash,
            "rules applied"
        );
    }

    #[expect(clippy::cast_precision_loss, reason = "gauges are floats")]
    fn measure(&self) {
        self.metrics.domains.set(self.known.report.domains as f64);
        self.metrics.rules.set(self.known.report.rules as f64);
        self.metrics.generation.set(self.known.report.generation as f64);
    }

    fn refuse(&mut self, diagnostics: &[Diagnostic]) {
        for diagnostic in diagnostics.iter().take(LOGGED_MAX) {
            let hint = diagnostic.hint.as_deref().unwrap_or_default();
            error!(
                file = %diagnostic.file,
                line = diagnostic.line,
                column = diagnostic.column,
                path = %diagnostic.path,
                hint,
                "{}",
                diagnostic.message
            );
        }
        if let Some(more) = diagnostics.len().checked_sub(LOGGED_MAX).filter(|more| *more > 0) {
            error!(more, "there are more mistakes: /config on the debug port and `sluice check` show all");
        }
        self.record_failure(diagnostics.iter().map(ToString::to_string).collect());
    }

    fn refuse_unreadable(&mut self, message: String) {
        if self.known.unreadable.as_ref() == Some(&message) {
            return;
        }
        self.known.hash = None;
        error!("{message}");
        self.known.unreadable = Some(message.clone());
        self.record_failure(vec![message]);
    }

    fn record_failure(&mut self, errors: Vec<String>) {
        let kept = if self.known.rules.is_some() { "the rules before stay in force" } else { "there are no rules yet" };
        error!(errors = errors.len(), "rules refused: {kept}");
        self.known.report.last_error = Some(LoadFailure { at: SystemTime::now(), errors });
        self.report.publish(self.known.report.clone());
        self.metrics.reloads("failed").increment(1);
        self.metrics.load_error.increment(1);
    }

    /// Loads again whenever something may have changed, or somebody asks for it, until `stop`.
    pub async fn run(self, asked: mpsc::Receiver<ReloadAsked>, stop: CancellationToken) {
        let (path, poll_interval) = (self.path.clone(), self.poll_interval);
        let (asked, reloader) = (tokio::sync::Mutex::new(asked), Arc::new(Mutex::new(self)));
        let watch = || follow(&path, poll_interval, &asked, &reloader);
        stop.run_until_cancelled(panics::again(watch)).await;
    }
}

async fn follow(
    path: &Path,
    poll_interval: Duration,
    asked: &tokio::sync::Mutex<mpsc::Receiver<ReloadAsked>>,
    reloader: &Arc<Mutex<Reloader>>,
) {
    let mut asked = asked.lock().await;
    let mut watch = Watch::new(path);
    let mut hangup = hangups();
    let mut poll = interval_at(Instant::now() + poll_interval, poll_interval);
    poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut quiet, mut done) = (Duration::ZERO, None::<ReloadAsked>);
    loop {
        settle(&mut watch, quiet).await;
        // Before the read, the first one included: what changes from here on is seen, and what changed until here is read.
        watch.follow();
        let reloader = reloader.clone();
        let load = move || reloader.lock().unwrap_or_else(PoisonError::into_inner).load();
        // Fails only when the process ends.
        let _ = tokio::task::spawn_blocking(load).await;
        if let Some(done) = done.take() {
            let _ = done.send(());
        }
        quiet = Duration::ZERO;
        tokio::select! {
            () = watch.changed() => quiet = QUIET,
            () = next(&mut hangup) => info!("SIGHUP: reading the rules"),
            Some(told) = asked.recv() => done = Some(told),
            _ = poll.tick() => {}
        }
    }
}

/// Waits until nothing has changed for a while and nobody is writing, whatever the reason to read: for `quiet` at least.
async fn settle(watch: &mut Watch, quiet: Duration) {
    let deadline = Instant::now() + QUIET_AT_MOST;
    let mut quiet = quiet.max(watch.rests_in(QUIET));
    while !quiet.is_zero() {
        let end = deadline.min(Instant::now() + quiet);
        let has_changed = timeout_at(end, watch.changed()).await.is_ok();
        if Instant::now() >= deadline {
            watch.forget_writers();
            break;
        }
        quiet = if has_changed { QUIET } else { watch.rests_in(QUIET) };
    }
    watch.drain();
}

fn hangups() -> Option<Signal> {
    signal(SignalKind::hangup()).inspect_err(|error| warn!(%error, "SIGHUP will not reload the rules")).ok()
}

async fn next(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}

/// Of a directory that had rules. A volume that is not mounted and files that are being replaced look the same as rules that
/// nobody wants any more, and happen more often.
fn gone(path: &Path) -> String {
    format!(
        "there is no *.yaml, *.yml or *.json file in {} any more: to limit nothing, put a file there with a domain and no \
         descriptors",
        path.display()
    )
}

fn hash(sources: &[Source]) -> String {
    let mut hash = Sha256::new();
    for source in sources {
        for part in [&source.name, &source.text] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
    }
    hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What is different, in a form for one log line.
struct Change {
    added: Named,
    changed: Named,
    removed: Named,
}

/// How many rules, and the names of the first few.
#[derive(Default)]
struct Named(Vec<String>);

impl std::fmt::Display for Named {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0.len())?;
        if !self.0.is_empty() {
            let shown = self.0.iter().take(5).map(String::as_str).collect::<Vec<_>>().join(", ");
            let more = if self.0.len() > 5 { ", ..." } else { "" };
            write!(f, " ({shown}{more})")?;
        }
        Ok(())
    }
}

impl Change {
    fn between(before: Option<&RuleSet>, after: &RuleSet) -> Self {
        let name = |rule: &Rule| format!("{}.{}", rule.domain, rule.path.join("."));
        let same_place = |rule: &Arc<Rule>| (rule.domain.clone(), rule.path.clone());
        let mut old: HashMap<_, _> =
            before.iter().flat_map(|set| set.rules()).map(|rule| (same_place(rule), rule)).collect();
        let mut change = Self { added: Named::default(), changed: Named::default(), removed: Named::default() };
        for rule in after.rules() {
            match old.remove(&same_place(rule)) {
                None => change.added.0.push(name(rule)),
                Some(known) if **known != (Rule { id: known.id, ..(**rule).clone() }) => {
                    change.changed.0.push(name(rule));
                }
                Some(_) => {}
            }
        }
        change.removed.0.extend(old.values().map(|rule| name(rule)));
        change.removed.0.sort_unstable();
        change
    }
}
