//! One thread's part of a load: its connections, its calls, its tally.

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{sync::mpsc, task::JoinSet, time::timeout_at};

use super::{
    Load, PATIENCE, Shape, Span,
    answer::{self, Answer, Code, Expect, Wrong},
    link::{Link, Open, SharedLink},
    question::Questions,
    tally::Tally,
};

/// Calls that a thread of an open loop has under way at most, so that a server that hangs does not fill our memory.
const UNDER_WAY_MAX: usize = 100_000;

pub struct Driver {
    links: Vec<SharedLink>,
    shape: Shape,
    asker: Arc<Asker>,
    /// When calls are due, in an open loop.
    due: Option<mpsc::UnboundedReceiver<Instant>>,
}

impl Driver {
    pub fn new(
        load: &Load,
        connections: usize,
        questions: Arc<Questions>,
        tally: Arc<Mutex<Tally>>,
        span: Span,
    ) -> Self {
        let links = (0..connections).map(|_| Arc::new(Link::new(load.target.clone()))).collect();
        let asker = Arc::new(Asker { questions, tally, span, expect: load.expect });
        Self { links, shape: load.shape, asker, due: None }
    }

    /// Where to say when calls are due.
    pub fn paced(&mut self) -> mpsc::UnboundedSender<Instant> {
        let (sender, due) = mpsc::unbounded_channel();
        self.due = Some(due);
        sender
    }

    /// Until the end. `budget` is how many calls it sends, where that is given.
    pub fn run(self, budget: Option<u64>) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            match (self.shape, self.due) {
                (Shape::Closed { streams }, _) => closed(&self.links, streams, &self.asker, budget).await,
                (Shape::Open { .. }, Some(due)) => open(&self.links, &self.asker, due).await,
                (Shape::Open { .. }, None) => {}
            }
        });
        Ok(())
    }
}

async fn closed(links: &[SharedLink], streams: usize, asker: &Arc<Asker>, budget: Option<u64>) {
    let left = Arc::new(AtomicI64::new(budget.map_or(i64::MAX, |calls| i64::try_from(calls).unwrap_or(i64::MAX))));
    let mut calls = JoinSet::new();
    for link in links {
        for _ in 0..streams {
            let (link, asker, left) = (link.clone(), asker.clone(), left.clone());
            calls.spawn(async move {
                let mut random = fastrand::Rng::new();
                let Ok(mut open) = link.open(None).await else { return };
                while !asker.is_over() && left.fetch_sub(1, Ordering::Relaxed) > 0 {
                    let due = Instant::now();
                    let ended = asker.ask(&link, open.clone(), due, &mut random).await;
                    if matches!(ended, Err(Wrong::Connection(_))) {
                        match link.open(Some(open.number())).await {
                            Ok(another) => open = another,
                            Err(_) => return,
                        }
                    }
                }
            });
        }
    }
    let deadline = asker.span.ends_at.map(|end| end + PATIENCE);
    drain(calls, deadline, asker).await;
}

async fn open(links: &[SharedLink], asker: &Arc<Asker>, mut due: mpsc::UnboundedReceiver<Instant>) {
    let mut opened: Vec<Open> = Vec::new();
    for link in links {
        match link.open(None).await {
            Ok(open) => opened.push(open),
            Err(wrong) => return asker.tally().note(Duration::ZERO, &Err(wrong)),
        }
    }
    let under_way = Arc::new(AtomicUsize::new(0));
    let mut calls = JoinSet::new();
    let mut next = 0;
    while let Some(due) = due.recv().await {
        while calls.try_join_next().is_some() {}
        if under_way.load(Ordering::Relaxed) >= UNDER_WAY_MAX {
            asker.note(due, &Err(Wrong::NotSent));
            continue;
        }
        under_way.fetch_add(1, Ordering::Relaxed);
        next = (next + 1) % links.len();
        let (link, asker, under_way) = (links[next].clone(), asker.clone(), under_way.clone());
        let open = link.current().unwrap_or_else(|| opened[next].clone());
        calls.spawn(async move {
            let number = open.number();
            let ended = asker.ask(&link, open, due, &mut fastrand::Rng::new()).await;
            under_way.fetch_sub(1, Ordering::Relaxed);
            if matches!(ended, Err(Wrong::Connection(_))) {
                let _ = link.open(Some(number)).await;
            }
        });
    }
    drain(calls, Some(Instant::now() + PATIENCE), asker).await;
}

/// Waits for the calls under way. Those that are not answered in time are counted as such: in time is before the deadline, and
/// without one as long as answers keep coming.
async fn drain(mut calls: JoinSet<()>, deadline: Option<Instant>, asker: &Asker) {
    let mut seen = None;
    while !calls.is_empty() {
        let patience = deadline.unwrap_or_else(|| Instant::now() + PATIENCE);
        let is_late = timeout_at(patience.into(), async { while calls.join_next().await.is_some() {} }).await.is_err();
        let now_seen = asker.tally().seen();
        if is_late && (deadline.is_some() || seen == Some(now_seen)) {
            let mut tally = asker.tally();
            (0..calls.len()).for_each(|_| tally.note(Duration::ZERO, &Err(Wrong::Unanswered)));
            return;
        }
        seen = Some(now_seen);
    }
}

/// Asks, and writes down what came of it.
struct Asker {
    questions: Arc<Questions>,
    tally: Arc<Mutex<Tally>>,
    span: Span,
    expect: Expect,
}

impl Asker {
    fn is_over(&self) -> bool {
        self.span.ends_at.is_some_and(|end| Instant::now() >= end)
    }

    async fn ask(&self, link: &Link, open: Open, due: Instant, random: &mut fastrand::Rng) -> Result<Answer, Wrong> {
        let body = self.questions.next(random);
        let sent = link.call(open, body).await;
        if due >= self.span.counts_from {
            self.tally().sent_late(due.elapsed());
        }
        let ended = match sent {
            Ok(response) => answer::read(response, self.questions.descriptors).await,
            Err(wrong) => Err(wrong),
        };
        let ended = match (ended, self.expect) {
            (Ok(Answer { code, .. }), Expect::Only(wanted)) if code != wanted => Err(Wrong::Unexpected(match code {
                Code::Ok => "OK",
                Code::OverLimit => "OVER_LIMIT",
            })),
            (ended, _) => ended,
        };
        self.note(due, &ended);
        ended
    }

    fn note(&self, due: Instant, ended: &Result<Answer, Wrong>) {
        if due >= self.span.counts_from {
            self.tally().note(due.elapsed(), ended);
        }
    }

    /// Nobody else has it, but for the moment in which the progress is told.
    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
