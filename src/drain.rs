//! Which calls of a connection are being answered, so that a connection can be ended without losing one and without waiting
//! for a caller who has gone silent.
//!
//! It knows nothing of what is called, nor of the protocol.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use http::Response;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Instant, sleep};

/// How long a connection that was asked to end may stay without a call. A caller that is well ends it within a round trip.
pub const LINGER: Duration = Duration::from_secs(1);
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// The calls of one connection.
#[derive(Clone, Debug, Default)]
pub struct Calls(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A call that is being answered, until this is dropped.
#[derive(Debug)]
pub struct Call(Calls);

impl Drop for Call {
    fn drop(&mut self) {
        self.0.0.ended.fetch_add(1, Ordering::Release);
    }
}

impl Calls {
    #[must_use]
    pub fn begin(&self) -> Call {
        self.0.begun.fetch_add(1, Ordering::Relaxed);
        Call(self.clone())
    }

    /// Waits until there was no call for [`LINGER`].
    pub async fn quiet(&self) {
        let mut seen = 0;
        let mut since = Instant::now();
        loop {
            let ended = self.0.ended.load(Ordering::Acquire);
            let begun = self.0.begun.load(Ordering::Acquire);
            if begun != ended || begun != seen {
                (seen, since) = (begun, Instant::now());
            } else if since.elapsed() >= LINGER {
                return;
            }
            sleep(BETWEEN_LOOKS).await;
        }
    }
}

/// Lets one request be answered. A call lasts until the last byte of the answer is given away.
pub async fn answer<Out>(
    call: Option<Call>,
    answering: impl Future<Output = Result<Response<Out>, Infallible>>,
) -> Result<Response<Counted<Out>>, Infallible> {
    answering.await.map(|response| response.map(|body| Counted { body, _call: call }))
}

/// The body of an answer, and with it the call that it ends.
#[derive(Debug)]
pub struct Counted<B> {
    body: B,
    _call: Option<Call>,
}

impl<B: Body + Unpin> Body for Counted<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_calls_is_quiet_soon_and_one_with_a_call_only_after_it() {
        let calls = Calls::default();
        let began = Instant::now();
        calls.quiet().await;
        assert!(began.elapsed() < 2 * LINGER);

        let call = calls.begin();
        let quiet = calls.quiet();
        let mut quiet = std::pin::pin!(quiet);
        assert!(tokio::time::timeout(100 * LINGER, quiet.as_mut()).await.is_err(), "a call is not waited for");
        drop(call);
        assert!(tokio::time::timeout(2 * LINGER, quiet).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_between_two_looks_starts_the_wait_anew() {
        let calls = Calls::default();
        let quiet = calls.quiet();
        let mut quiet = std::pin::pin!(quiet);
        for _ in 0..5 {
            assert!(tokio::time::timeout(LINGER.mul_f64(0.8), quiet.as_mut()).await.is_err());
            drop(calls.begin());
        }
        assert!(tokio::time::timeout(2 * LINGER, quiet).await.is_ok());
    }
}
