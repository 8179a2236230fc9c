//! Runs the calls of a connection inside the connection's own task.
//!
//! The usual way is a task for each call. A call that is answered then wakes its connection, which writes that one answer at once:
//! a system call for each answer, and two turns of the scheduler. Here all calls that have something to do run first, and
//! then the connection writes what they have to say in one go. A batch of answers from the store wakes the connection once.
//!
//! Calls of one connection never run at the same time on two cores. They share a lock inside HTTP/2 in any case, and what one
//! of them does between two awaits takes microseconds. How much is read in one go is bounded, so that the other connections get
//! their turn: see [`super::frames`].

use std::{
    future::Future,
    mem,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use futures_util::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};

use crate::panics;

use super::frames::Turn;

/// Takes the calls that a connection wants to be run.
#[derive(Clone, Default)]
pub struct Streams(Arc<Mutex<Vec<BoxFuture<'static, ()>>>>);

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, call: F) {
        // What a call does is answered for already. Whatever else panics here resets one stream, and spares the others.
        let call = panics::caught(call).map(|_| ());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(call.boxed());
    }
}

impl Streams {
    fn take(&self) -> Vec<BoxFuture<'static, ()>> {
        mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A connection together with its calls. With the connection its calls end.
pub struct Together<C> {
    connection: Pin<Box<C>>,
    begun: Streams,
    running: FuturesUnordered<BoxFuture<'static, ()>>,
    turn: Arc<Turn>,
}

impl<C: Future> Together<C> {
    /// The connection must have been made with these streams, and must read in these turns.
    pub fn new(connection: C, begun: Streams, turn: Arc<Turn>) -> Self {
        Self { connection: Box::pin(connection), begun, running: FuturesUnordered::new(), turn }
    }

    pub fn connection(&mut self) -> Pin<&mut C> {
        self.connection.as_mut()
    }
}

impl<C: Future> Future for Together<C> {
    type Output = C::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<C::Output> {
        self.turn.begin();
        loop {
            if let Poll::Ready(ended) = self.connection.as_mut().poll(context) {
                return Poll::Ready(ended);
            }
            let begun = self.begun.take();
            self.running.extend(begun);
            let mut has_ended = false;
            while let Poll::Ready(Some(())) = self.running.poll_next_unpin(context) {
                has_ended = true;
            }
            if !has_ended {
                return Poll::Pending;
            }
        }
    }
}
