//! Load for any rate limit service that speaks Envoy's protocol, and what came of it.
//!
//! Two ways to ask. A closed loop keeps so many calls under way and finds out how much a server can do. An open loop sends at
//! a fixed rate, whatever the server does, and finds out how long callers wait: a call's time runs from the moment it was
//! due, so that a server that stalls is charged with everyone who had to wait, and not with one slow call.
//!
//! Every answer is read and judged: a status of 200 says nothing about a gRPC call. Knows the wire and nothing else of this
//! program, so that it measures a peer exactly as it measures us.

mod answer;
mod drive;
mod link;
mod pace;
mod question;
mod tally;

use std::{
    io::{IsTerminal as _, Write as _},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

pub use answer::Expect;
pub use link::{Target, Unreachable};
pub use question::{BadQuestion, Question};
pub use tally::Report;

use drive::Driver;
use link::Link;
use question::Questions;
use tally::Tally;

/// How long answers are waited for when everything is sent.
const PATIENCE: Duration = Duration::from_secs(5);
const PROGRESS: Duration = Duration::from_secs(1);

/// What to do to which server.
#[derive(Clone, Debug)]
pub struct Load {
    pub target: Target,
    pub question: Question,
    pub shape: Shape,
    pub connections: usize,
    pub threads: usize,
    pub until: Until,
    /// What is asked first and not counted.
    pub warmup: Duration,
    pub expect: Expect,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// So many calls under way on each connection.
    Closed { streams: usize },
    /// So many calls each second, over all connections.
    Open { rate: f64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// After the warm-up.
    Elapsed(Duration),
    /// So many calls in all.
    Sent(u64),
}

/// When calls count, and when no more are sent.
#[derive(Clone, Copy, Debug)]
struct Span {
    counts_from: Instant,
    ends_at: Option<Instant>,
}

/// Why there was nothing to measure.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error(transparent)]
    Question(#[from] BadQuestion),
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// Runs a load to its end.
pub fn run(load: &Load) -> Result<Report, BenchError> {
    let questions = Arc::new(Questions::prepare(&load.question)?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(Link::new(load.target.clone()).greet())?;
    drop(runtime);

    let began = Instant::now();
    let span = Span {
        counts_from: began + load.warmup,
        ends_at: match load.until {
            Until::Elapsed(duration) => Some(began + load.warmup + duration),
            Until::Sent(_) => None,
        },
    };
    let threads = load.threads.clamp(1, load.connections);
    let tallies: Vec<_> = (0..threads).map(|_| Arc::new(Mutex::new(Tally::new()))).collect();
    let mut drivers: Vec<Driver> = Vec::new();
    for (index, tally) in tallies.iter().enumerate() {
        let connections = share(load.connections, threads, index);
        drivers.push(Driver::new(load, connections, questions.clone(), tally.clone(), span));
    }
    let budgets = budgets(load);
    let pacer = pace::Pacer::of(load, &mut drivers, span);
    let running: Vec<_> = drivers
        .into_iter()
        .zip(budgets)
        .map(|(driver, budget)| thread::Builder::new().name("bench".to_owned()).spawn(move || driver.run(budget)))
        .collect::<Result<_, _>>()?;
    let pacing = pacer.map(|pacer| thread::Builder::new().name("pace".to_owned()).spawn(move || pacer.run()));
    let pacing = pacing.transpose()?;

    watch(&running, &tallies);
    for thread in running {
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    }
    if let Some(pacing) = pacing {
        pacing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }
    let mut all = Tally::new();
    for tally in &tallies {
        all.add(&tally.lock().unwrap_or_else(PoisonError::into_inner));
    }
    Ok(Report::new(load, all, span.counts_from))
}

/// The part of `whole` that falls to one of several.
fn share(whole: usize, among: usize, index: usize) -> usize {
    whole / among + usize::from(index < whole % among)
}

/// How many calls each thread sends, where their number is given.
fn budgets(load: &Load) -> Vec<Option<u64>> {
    let threads = load.threads.clamp(1, load.connections);
    let of = |index| match (load.until, load.shape) {
        (Until::Sent(calls), Shape::Closed { .. }) => {
            let (calls, threads) = (usize::try_from(calls).unwrap_or(usize::MAX), threads);
            Some(share(calls, threads, index) as u64)
        }
        _ => None,
    };
    (0..threads).map(of).collect()
}

/// Says now and then how far it is, if somebody looks.
fn watch<T>(running: &[thread::JoinHandle<T>], tallies: &[Arc<Mutex<Tally>>]) {
    let began = Instant::now();
    let (mut told_at, mut told_answers) = (began, 0);
    let mut told = false;
    let shown = std::io::stderr().is_terminal();
    while running.iter().any(|thread| !thread.is_finished()) {
        thread::park_timeout(Duration::from_millis(20));
        if told_at.elapsed() < PROGRESS {
            continue;
        }
        let of = |tally: &Arc<Mutex<Tally>>| tally.lock().unwrap_or_else(PoisonError::into_inner).seen();
        let (answers, errors) = tallies.iter().map(of).fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        #[expect(clippy::cast_precision_loss, reason = "for people")]
        let rate = (answers - told_answers) as f64 / told_at.elapsed().as_secs_f64();
        let line = format!("{:>4} s  {answers} answers, {rate:.0}/s, {errors} errors", began.elapsed().as_secs());
        // On a terminal one line that changes, in a file one line after the other.
        let _ = if shown { write!(std::io::stderr(), "\r\x1b[K{line}") } else { writeln!(std::io::stderr(), "{line}") };
        (told_at, told_answers, told) = (Instant::now(), answers, true);
    }
    if told && shown {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
}
