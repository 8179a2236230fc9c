//! A lane to a node: a queue, one connection, and few calls under way.
//!
//! Whatever queues up while two calls are under way is the next batch. There is no delay for the sake of a batch: an idle
//! lane sends a request the moment it comes, a busy one sends many at once, and the more there is to do the cheaper each becomes.
//! Where the store is far away, two calls would make callers wait for those before them; so a lane whose last call left a
//! moment ago may send another.
//!
//! ```text
//! callers --> queue --> batch of at most 32 requests, 64 keys and 256 checks, of one slot --> EVALSHA --> answers, one to each caller
//! ```
//!
//! A request whose caller has gone, or whose time is up, is dropped before it is sent, and so is never charged. A call that was
//! sent is never sent again, unless the server says that it did not run it.

#[cfg(test)]
mod tests;

use std::{collections::VecDeque, future::Future, sync::Arc, time::Duration};

use bb8_redis::bb8::{Pool, PooledConnection};
use futures_util::{StreamExt as _, future::Either, stream::FuturesUnordered};
use redis::{Cmd, RedisError, Value, aio::MultiplexedConnection};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until, timeout, timeout_at},
};

use super::{
    connect::{self, DialErrors, Dialer},
    fault::Fault,
    node::{self, Vitals},
    script::{self, Asked, ScriptFailure},
};
use crate::engine::{
    algorithm::{Check, Decisions},
    plan::{Keys, Plan},
};

const REQUESTS_MAX: usize = 32;
const KEYS_MAX: usize = 64;
/// Many checks may share a key, and each of them costs the server its time.
const CHECKS_MAX: usize = 256;
/// Calls under way at any time.
const CALLS: usize = 2;
/// Calls under way to a store that is slow to answer.
const CALLS_MAX: usize = 32;
/// A call that takes longer does not hold up the next.
const PATIENCE: Duration = Duration::from_millis(1);
/// A connection that has had nothing to do for so long is asked whether it still leads anywhere.
const IDLE: Duration = Duration::from_secs(2);
/// Before a lane without a connection dials again, while others have one.
const REDIAL: Duration = Duration::from_millis(200);
/// Calls without an answer, one after the other, after which the connection is thought dead.
const TIMEOUTS_MAX: u32 = 3;

/// What is asked of one slot: a whole plan, or the part of it that lives there.
#[derive(Clone, Debug)]
pub enum Ask {
    Whole(Arc<Plan>),
    Part(Arc<(Vec<Check>, Keys)>),
}

impl Ask {
    #[must_use]
    pub fn asked(&self) -> Asked<'_> {
        match self {
            Self::Whole(plan) => (&plan.checks, &plan.keys),
            Self::Part(part) => (&part.0, &part.1),
        }
    }
}

/// What came of it.
pub type Reply = Result<Result<Decisions, ScriptFailure>, Fault>;

/// How a request travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// With others of its slot.
    Shared,
    /// By itself: where a slot is on its way, keys of others could be elsewhere.
    Alone,
    /// By itself, to a node that the slot is on its way to, and that answers for it only if asked so.
    Asking,
}

/// A request that waits for its turn.
#[derive(Debug)]
pub struct Pending {
    pub ask: Ask,
    /// Requests of different slots do not travel together.
    pub slot: Option<u16>,
    pub way: Way,
    pub deadline: Instant,
    pub reply: oneshot::Sender<Reply>,
}

impl Pending {
    fn is_wanted(&self) -> bool {
        !self.reply.is_closed() && self.deadline > Instant::now()
    }

    fn travels_with(&self, other: &Self) -> bool {
        self.slot == other.slot && self.way == Way::Shared && other.way == Way::Shared
    }
}

type Link = PooledConnection<'static, Dialer>;

/// What was under way and has ended.
enum Ended {
    Dial(Result<Link, Fault>),
    /// On which link, by its number, and how it failed if it did.
    Call {
        link: u64,
        failed: Option<Fault>,
    },
}

pub struct Lane {
    /// Which of the node's lanes.
    number: usize,
    queue: mpsc::Receiver<Pending>,
    /// Came out of the queue, but belongs to the next batch.
    held: VecDeque<Pending>,
    pool: Pool<Dialer>,
    dial_errors: DialErrors,
    vitals: Arc<Vitals>,
    link: Option<Link>,
    /// Counts the links, so that a late call does not speak for a newer one.
    link_number: u64,
    dialling: bool,
    /// A link broke, or could not be had, while the node was thought well: dialled anew before the next caller comes.
    redial_at: Option<Instant>,
    timeouts_in_a_row: u32,
    /// The first of them.
    silent_since: Instant,
    sent_at: Instant,
}

impl Lane {
    #[must_use]
    pub fn new(
        number: usize,
        queue: mpsc::Receiver<Pending>,
        pool: Pool<Dialer>,
        dial_errors: DialErrors,
        vitals: Arc<Vitals>,
    ) -> Self {
        Self {
            number,
            queue,
            held: VecDeque::new(),
            pool,
            dial_errors,
            vitals,
            link: None,
            link_number: 0,
            dialling: false,
            redial_at: None,
            timeouts_in_a_row: 0,
            silent_since: Instant::now(),
            sent_at: Instant::now(),
        }
    }

    /// Until the last sender is gone and everything is answered. Can be called again after a panic: what was under way then
    /// has got no answer, what waits is still there.
    pub async fn run(&mut self) {
        self.dialling = false;
        let mut under_way = FuturesUnordered::new();
        loop {
            if !self.dialling && self.redial_at.is_some_and(|at| at <= Instant::now()) {
                self.redial_at = None;
                // A node that is sick is dialled by its probe.
                if self.vitals.breaker.is_passing() {
                    under_way.push(Either::Right(Either::Left(self.dial())));
                }
            }
            let (calls, dialling, soon, idle) =
                (under_way.len(), self.dialling, self.sent_at + PATIENCE, self.sent_at + IDLE);
            let has_room = calls < CALLS || calls < CALLS_MAX && soon <= Instant::now();
            let is_idle = calls == 0 && self.link.is_some();
            let redial_at = self.redial_at;
            tokio::select! {
                biased;
                Some(ended) = under_way.next(), if calls > 0 => self.note(ended),
                next = self.next(), if has_room && !dialling => {
                    let Some(first) = next else { break };
                    match self.connection() {
                        Some((connection, era)) => {
                            if let Some(sent) = self.batch(first, era) {
                                under_way.push(Either::Left(call(connection, sent)));
                            }
                        }
                        None if first.is_wanted() => {
                            self.held.push_front(first);
                            under_way.push(Either::Right(Either::Left(self.dial())));
                        }
                        None => {}
                    }
                }
                () = sleep_until(soon), if !has_room && calls < CALLS_MAX && !dialling => {}
                () = sleep_until(redial_at.unwrap_or(idle)), if redial_at.is_some() && !dialling => {}
                () = sleep_until(idle), if is_idle => {
                    self.sent_at = Instant::now();
                    if let Some((connection, _)) = self.connection() {
                        let beat = beat(connection, self.link_number, self.vitals.clone());
                        under_way.push(Either::Right(Either::Right(beat)));
                    }
                }
            }
        }
        while let Some(ended) = under_way.next().await {
            self.note(ended);
        }
    }

    async fn next(&mut self) -> Option<Pending> {
        match self.held.pop_front() {
            Some(held) => Some(held),
            None => self.queue.recv().await,
        }
    }

    /// The first and those that can go with it, as far as they are still wanted.
    fn batch(&mut self, first: Pending, era: u64) -> Option<Sent> {
        let size = |pending: &Pending| {
            let (checks, keys) = pending.ask.asked();
            (checks.len(), keys.len())
        };
        let (mut checks, mut keys) = size(&first);
        let mut batch = Vec::with_capacity(4);
        if first.is_wanted() {
            batch.push(first);
        }
        while batch.len() < REQUESTS_MAX && keys < KEYS_MAX && checks < CHECKS_MAX {
            let Some(next) = self.held.pop_front().or_else(|| self.queue.try_recv().ok()) else { break };
            if !next.is_wanted() {
                continue;
            }
            let (its_checks, its_keys) = size(&next);
            let has_room = keys + its_keys <= KEYS_MAX && checks + its_checks <= CHECKS_MAX;
            if !has_room || batch.first().is_some_and(|first| !first.travels_with(&next)) {
                self.held.push_front(next);
                break;
            }
            (checks, keys) = (checks + its_checks, keys + its_keys);
            batch.push(next);
        }
        if batch.is_empty() {
            return None;
        }
        self.sent_at = Instant::now();
        Some(Sent { batch, link: self.link_number, era, vitals: self.vitals.clone() })
    }

    fn dial(&mut self) -> impl Future<Output = Ended> + use<> {
        (self.dialling, self.redial_at) = (true, None);
        dial(self.pool.clone(), self.dial_errors.clone(), self.vitals.clone())
    }

    /// The connection, if there is one to a node that still is who it was.
    fn connection(&mut self) -> Option<(MultiplexedConnection, u64)> {
        if self.link.as_ref().is_some_and(|link| link.era != self.vitals.era()) {
            self.give_up();
        }
        self.link.as_ref().map(|link| (link.connection.clone(), link.era))
    }

    /// Learns from what has ended.
    fn note(&mut self, ended: Ended) {
        match ended {
            Ended::Dial(Ok(link)) => {
                self.dialling = false;
                self.vitals.linked(self.number, link.era);
                self.link = Some(link);
                self.link_number += 1;
                self.timeouts_in_a_row = 0;
            }
            Ended::Dial(Err(fault)) => {
                self.dialling = false;
                self.redial_at = Some(Instant::now() + REDIAL);
                let waiting = self.held.drain(..).chain(std::iter::from_fn(|| self.queue.try_recv().ok()));
                fail(waiting.collect(), &fault);
            }
            Ended::Call { failed: None, .. } => self.timeouts_in_a_row = 0,
            Ended::Call { link, failed: Some(fault) } if link == self.link_number => {
                if fault == Fault::Timeout {
                    if self.timeouts_in_a_row == 0 {
                        self.silent_since = Instant::now();
                    }
                    self.timeouts_in_a_row += 1;
                }
                // Calls that were under way together end together: that is one silence, which may be over in a moment.
                let is_silent = self.timeouts_in_a_row >= TIMEOUTS_MAX
                    && self.silent_since.elapsed() >= node::grace(self.vitals.timeout);
                if fault.breaks_connection() || is_silent {
                    self.give_up();
                }
            }
            Ended::Call { .. } => {}
        }
    }

    /// The next caller finds another connection, or none.
    pub fn give_up(&mut self) {
        if let Some(link) = self.link.take() {
            self.vitals.unlinked(self.number);
            link.give_up();
            self.redial_at = Some(Instant::now());
        }
        self.timeouts_in_a_row = 0;
    }
}

fn fail(batch: Vec<Pending>, fault: &Fault) {
    for pending in batch {
        let _ = pending.reply.send(Err(fault.clone()));
    }
}

/// A connection from the pool. One that takes longer than callers can wait trips the breaker, and is waited for all the same.
async fn dial(pool: Pool<Dialer>, errors: DialErrors, vitals: Arc<Vitals>) -> Ended {
    let linked = errors.or_link(&pool);
    tokio::pin!(linked);
    let linked = if let Ok(linked) = timeout(vitals.timeout, &mut linked).await {
        linked
    } else {
        vitals.dial_is_slow();
        linked.await
    };
    Ended::Dial(linked.map_err(|error| {
        vitals.dial_failed(&error);
        error.fault.unwrap_or(Fault::Broken(error.reason))
    }))
}

/// Asks an idle connection for a sign of life. No script: that is for calls, and for the probe of a node that is sick.
async fn beat(mut connection: MultiplexedConnection, link: u64, vitals: Arc<Vitals>) -> Ended {
    let ping = redis::cmd("PING");
    let failed = match timeout(vitals.timeout, connect::send(&mut connection, &ping)).await {
        Ok(Ok(_)) => None,
        // Whatever a server replies is a sign of life.
        Ok(Err(error)) => Some(Fault::of(&error)).filter(|fault| matches!(fault, Fault::Broken(_))),
        Err(_) => Some(Fault::Timeout),
    };
    if let Some(fault) = &failed {
        vitals.failed(fault);
    }
    Ended::Call { link, failed }
}

/// A batch on its way.
struct Sent {
    batch: Vec<Pending>,
    link: u64,
    era: u64,
    vitals: Arc<Vitals>,
}

/// Sends a batch and answers everybody in it. Says how the call went, for the health of the node: by the clock of the store and
/// not by those of its callers, who may be in more of a hurry than any store could be.
async fn call(mut connection: MultiplexedConnection, sent: Sent) -> Ended {
    let began = Instant::now();
    let asked: Vec<Asked<'_>> = sent.batch.iter().map(|pending| pending.ask.asked()).collect();
    let asking = sent.batch.iter().any(|pending| pending.way == Way::Asking);
    let reply = match timeout_at(began + sent.vitals.timeout, evaluate(&mut connection, &asked, asking)).await {
        Ok(Ok(reply)) => script::decode(&reply, &asked).map_err(|bad| Fault::BadResponse(bad.to_string())),
        Ok(Err(error)) => Err(Fault::of(&error)),
        Err(_) => Err(Fault::Timeout),
    };
    let failed = match reply {
        Ok(answers) => {
            sent.vitals.succeeded(began.elapsed());
            for (pending, answer) in sent.batch.into_iter().zip(answers) {
                let _ = pending.reply.send(Ok(answer));
            }
            None
        }
        Err(fault) => {
            // Many may learn at once that a node is a replica now; that is one failure.
            if fault != Fault::ReadOnly || sent.vitals.end_era(sent.era) {
                sent.vitals.failed(&fault);
            }
            fail(sent.batch, &fault);
            Some(fault)
        }
    };
    Ended::Call { link: sent.link, failed }
}

/// By name; where the server does not know the name, by the text, at once: it says so before it runs anything.
async fn evaluate(
    connection: &mut MultiplexedConnection,
    asked: &[Asked<'_>],
    asking: bool,
) -> Result<Value, RedisError> {
    let mut by_name = redis::cmd("EVALSHA");
    by_name.arg(script::SHA1.as_str());
    script::encode(0, asked, &mut by_name);
    match send(connection, by_name, asking).await {
        Err(error) if Fault::of(&error) == Fault::NoScript => {
            let mut by_text = redis::cmd("EVAL");
            by_text.arg(script::SCRIPT);
            script::encode(0, asked, &mut by_text);
            send(connection, by_text, asking).await
        }
        reply => reply,
    }
}

async fn send(connection: &mut MultiplexedConnection, command: Cmd, asking: bool) -> Result<Value, RedisError> {
    if !asking {
        return connect::send(connection, &command).await;
    }
    // Both in one write, so that nobody else's command can come between them.
    let mut both = redis::pipe();
    both.cmd("ASKING").ignore().add_command(command);
    let replies = connection.send_packed_commands(&both, 1, 1).await?;
    match replies.into_iter().next() {
        Some(Value::ServerError(error)) => Err(error.into()),
        Some(reply) => Ok(reply),
        None => Ok(Value::Nil),
    }
}
