//! Watches what a connection sends, frame by frame, so that one connection takes no more than its turn, and one that sends
//! frames for their own sake is slowed down and then ended.
//!
//! h2 bounds what a frame can make it keep, but not how many it answers: pings, settings, window updates and streams that are
//! opened and reset cost the sender nothing and us a little each. So every frame spends from an allowance, and a call that was
//! asked in full earns one. It earns more than it takes on the wire, because Envoy resets every call that it gives up on; and
//! when we stand still for a moment it even opens calls whose messages our window does not let through any more, and resets
//! those, which looks just like a flood. What tells it from one is all that it has asked before.
//!
//! ```text
//! everybody         4096 in each slice of time
//! a call            earns 8, spends 2: its head, its message; and 1 for its reset
//! Envoy, 5000/s     earns 25000 a second, up to 262144: enough for a stop of 26 s, in which it gives up on everything
//! a flood of pings  earns nothing: slowed down after 2048 frames, ended after 4096
//! ```
//!
//! A flood is not ended at once: its connection is left unread for a moment, as long as there are not many like it. Who sends
//! as much as it can then waits in its own system, instead of coming back right away.
//!
//! Knows the nine bytes before each frame and nothing else of HTTP/2.

use std::{
    future::Future as _,
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

use super::limits::{
    ALLOWANCE, ALLOWANCE_MAX, CALL_EARNS, CONTINUATION_COST, EMPTY_DATA_COST, FLOOD_HELD, NOISY_PAUSE,
    NOISY_READ_BYTES_MAX, READ_BYTES_MAX, SETTINGS_COST,
};
use crate::{
    connections::{Connections, Held},
    drain::Calls,
};

const HEAD_BYTES: usize = 9;
const DATA: u8 = 0;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;

/// What a connection has left of its allowance when it is slowed down.
const NOISY: i64 = ALLOWANCE / 2;

/// How much of a connection may be read now. Shared by the stream and whoever runs the connection.
#[derive(Debug)]
pub struct Turn {
    left: AtomicUsize,
    slice: AtomicUsize,
    flooded: AtomicBool,
    calls: Calls,
    connections: Connections,
}

impl Turn {
    #[must_use]
    pub fn new(calls: Calls, connections: Connections) -> Arc<Self> {
        let (left, slice, flooded) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(Self { left, slice, flooded, calls, connections })
    }

    /// The connection is run: it may read again.
    pub fn begin(&self) {
        self.left.store(READ_BYTES_MAX, Relaxed);
    }

    /// Whether the stream was ended for its noise.
    pub fn is_flooded(&self) -> bool {
        self.flooded.load(Relaxed)
    }

    /// A slice of time is over: everybody is given an allowance anew.
    pub fn next_slice(&self) {
        self.slice.fetch_add(1, Relaxed);
    }
}

/// A stream of frames.
#[derive(Debug)]
pub struct Frames<S> {
    stream: S,
    turn: Arc<Turn>,
    count: Count,
    /// Nothing is read until then.
    pause: Option<Pin<Box<Sleep>>>,
    /// A flood that is left unread.
    held: Option<Held>,
}

impl<S> Frames<S> {
    /// Of the bytes that come, so many stand before the first frame.
    pub fn new(stream: S, before: usize, turn: Arc<Turn>) -> Self {
        Self { stream, turn, count: Count { pass: before, ..Count::default() }, pause: None, held: None }
    }

    /// Settles what was spent with what was earned since. Says how much may be read now.
    fn settle(&mut self) -> io::Result<usize> {
        if self.held.is_some() {
            return Err(self.flooded());
        }
        self.count.settle(self.turn.slice.load(Relaxed), self.turn.calls.asked());
        match self.count.allowance {
            NOISY.. => Ok(usize::MAX),
            0.. => Ok(NOISY_READ_BYTES_MAX),
            _ => {
                self.held = self.turn.connections.hold();
                if self.held.is_none() {
                    return Err(self.flooded());
                }
                self.pause = Some(Box::pin(sleep(FLOOD_HELD)));
                Ok(0)
            }
        }
    }

    fn flooded(&self) -> io::Error {
        self.turn.flooded.store(true, Relaxed);
        io::Error::other("the caller floods the connection with frames that ask nothing")
    }
}

#[derive(Debug)]
struct Count {
    /// Bytes until the next frame begins.
    pass: usize,
    /// Of a frame whose head came in pieces.
    head: [u8; HEAD_BYTES],
    head_length: usize,
    allowance: i64,
    slice: usize,
    asked: u64,
}

impl Default for Count {
    fn default() -> Self {
        Self { pass: 0, head: [0; HEAD_BYTES], head_length: 0, allowance: ALLOWANCE, slice: 0, asked: 0 }
    }
}

impl Count {
    fn bytes(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.pass > 0 {
                let passed = self.pass.min(bytes.len());
                self.pass -= passed;
                bytes = &bytes[passed..];
            } else if self.head_length == 0
                && let Some((head, rest)) = bytes.split_first_chunk()
            {
                self.frame(*head);
                bytes = rest;
            } else {
                let taken = bytes.len().min(HEAD_BYTES - self.head_length);
                self.head[self.head_length..self.head_length + taken].copy_from_slice(&bytes[..taken]);
                self.head_length += taken;
                bytes = &bytes[taken..];
                if self.head_length == HEAD_BYTES {
                    self.head_length = 0;
                    self.frame(self.head);
                }
            }
        }
    }

    fn frame(&mut self, head: [u8; HEAD_BYTES]) {
        self.pass = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        self.allowance -= match head[3] {
            SETTINGS if head[4] & ACK == 0 => SETTINGS_COST,
            CONTINUATION => CONTINUATION_COST,
            DATA if self.pass == 0 && head[4] & END_STREAM == 0 => EMPTY_DATA_COST,
            _ => 1,
        };
    }

    fn settle(&mut self, slice: usize, asked: u64) {
        let earned = i64::try_from(asked - self.asked).unwrap_or(i64::MAX).saturating_mul(CALL_EARNS);
        self.allowance = self.allowance.saturating_add(earned).min(ALLOWANCE_MAX);
        self.asked = asked;
        if slice != self.slice {
            self.slice = slice;
            self.allowance = self.allowance.max(ALLOWANCE);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Frames<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Some(pause) = &mut this.pause {
            ready!(pause.as_mut().poll(cx));
            this.pause = None;
        }
        let most = this.settle()?;
        let left = this.turn.left.load(Relaxed).min(most);
        if left == 0 {
            // Whoever waits behind this connection goes first.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        if left >= buffer.remaining() {
            ready!(Pin::new(&mut this.stream).poll_read(cx, buffer))?;
        } else {
            let mut part = ReadBuf::new(buffer.initialize_unfilled_to(left));
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut part))?;
            let read = part.filled().len();
            buffer.advance(read);
        }
        let read = &buffer.filled()[before..];
        this.turn.left.store(left.saturating_sub(read.len()), Relaxed);
        this.count.bytes(read);
        if this.count.allowance < 0 && this.settle()? == 0 {
            // Nobody needs to see the end of a flood.
            buffer.set_filled(before);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if most == NOISY_READ_BYTES_MAX {
            this.pause = Some(Box::pin(sleep(NOISY_PAUSE)));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Frames<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;
    use crate::{drain::InFlight, telemetry::metrics::Metrics};

    const HEADERS: u8 = 1;
    const RESET: u8 = 3;
    const PING: u8 = 6;

    fn frame(kind: u8, length: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, length, kind, 0, 0, 0, 0, 1];
        frame.resize(HEAD_BYTES + usize::from(length), 0xAA);
        frame
    }

    fn spent(sent: &[u8], piece: usize) -> i64 {
        let mut count = Count { pass: 3, ..Count::default() };
        [b"PRI", sent].concat().chunks(piece).for_each(|bytes| count.bytes(bytes));
        ALLOWANCE - count.allowance
    }

    fn turn() -> (Arc<Turn>, Calls) {
        let calls = Calls::new(InFlight::new(1));
        (Turn::new(calls.clone(), Connections::new(1, Metrics::new().door("grpc"))), calls)
    }

    #[test]
    fn every_frame_costs_however_it_is_cut_and_some_cost_more() {
        let opened_in_vain = [frame(HEADERS, 40), frame(RESET, 4)].concat();
        let sent = [frame(PING, 8).repeat(100), opened_in_vain.repeat(100), frame(DATA, 1).repeat(100)].concat();
        for piece in [1, 2, 7, 9, 10, 1_000, usize::MAX] {
            assert_eq!(spent(&sent, piece), 400, "in pieces of {piece}");
        }
        assert_eq!(spent(&frame(SETTINGS, 6), usize::MAX), SETTINGS_COST);
        let flagged = |kind, flag| {
            let mut frame = frame(kind, 0);
            frame[4] = flag;
            frame
        };
        assert_eq!(spent(&flagged(SETTINGS, ACK), usize::MAX), 1);
        assert_eq!(spent(&flagged(DATA, END_STREAM), usize::MAX), 1, "so Envoy ends a call");
        assert!(spent(&frame(DATA, 0).repeat(100), usize::MAX) > ALLOWANCE, "before h2 has had enough");
        assert!(spent(&frame(CONTINUATION, 0).repeat(5), usize::MAX) > ALLOWANCE);
    }

    #[test]
    fn who_asks_earns_more_than_a_call_takes_and_keeps_it_for_later() {
        let mut count = Count::default();
        let given_up = [frame(HEADERS, 40), frame(DATA, 60), frame(RESET, 4)].concat();
        for asked in 1..=10_000 {
            count.bytes(&given_up);
            count.settle(0, asked);
            assert!(count.allowance >= ALLOWANCE);
        }
        let earned = count.allowance;
        assert_eq!(earned, ALLOWANCE + 10_000 * (CALL_EARNS - 3));
        count.settle(1, 10_000);
        assert_eq!(count.allowance, earned, "a new slice takes nothing away");
        count.settle(1, 10_000_000);
        assert_eq!(count.allowance, ALLOWANCE_MAX);
    }

    /// Reads until it may not, each time in a turn of its own; how many bytes there were.
    async fn read_all(frames: &mut Frames<&[u8]>, turn: &Turn) -> (usize, io::Result<()>) {
        let (mut all, mut buffer) = (0, vec![0; 1 << 20]);
        loop {
            turn.begin();
            match frames.read(&mut buffer).await {
                Ok(0) => return (all, Ok(())),
                Ok(read) => all += read,
                Err(error) => return (all, Err(error)),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_slowed_down_held_and_ended_and_another_slice_of_time_gives_everybody_the_same_again() {
        let pings = frame(PING, 8).repeat(usize::try_from(ALLOWANCE).unwrap());
        let (turn, _calls) = turn();
        let began = tokio::time::Instant::now();
        let mut frames = Frames::new(&pings[..], 0, turn.clone());
        assert!(matches!(read_all(&mut frames, &turn).await, (all, Ok(())) if all == pings.len()));
        let slowed = began.elapsed();
        assert!(slowed >= 10 * NOISY_PAUSE, "{slowed:?}");
        assert!(!turn.is_flooded());

        turn.next_slice();
        frames.stream = &pings;
        assert!(read_all(&mut frames, &turn).await.1.is_ok());
        let one_more = frame(PING, 8);
        frames.stream = &one_more;
        let before = tokio::time::Instant::now();
        let (_, ended) = read_all(&mut frames, &turn).await;
        assert!(ended.unwrap_err().to_string().contains("floods"));
        assert!(before.elapsed() >= FLOOD_HELD && turn.is_flooded());
    }

    #[tokio::test(start_paused = true)]
    async fn of_many_floods_those_that_are_too_many_to_hold_are_ended_at_once() {
        let (turn, _calls) = turn();
        let held: Vec<Held> = std::iter::from_fn(|| turn.connections.hold()).collect();
        assert!(!held.is_empty());
        let pings = frame(PING, 8).repeat(usize::try_from(ALLOWANCE).unwrap() + 1);
        let mut frames = Frames::new(&pings[..], 0, turn.clone());
        let began = tokio::time::Instant::now();
        let (read, ended) = read_all(&mut frames, &turn).await;
        assert!(ended.is_err() && read < pings.len(), "the last of it is not passed on");
        assert!(began.elapsed() < FLOOD_HELD);
        drop(held);
        assert!(turn.connections.hold().is_some());
    }

    #[tokio::test]
    async fn a_connection_is_read_no_further_than_its_turn() {
        let (turn, _calls) = turn();
        let sent = vec![0; READ_BYTES_MAX + 1];
        let mut frames = Frames::new(&sent[..], sent.len(), turn.clone());
        turn.begin();
        let mut read = vec![0; READ_BYTES_MAX - 1];
        frames.read_exact(&mut read).await.unwrap();
        let mut more = [0; 2];
        assert_eq!(frames.read(&mut more).await.unwrap(), 1, "one byte is left of the turn");
        assert!(futures_util::poll!(std::pin::pin!(frames.read(&mut more))).is_pending());
        turn.begin();
        assert_eq!(frames.read(&mut more).await.unwrap(), 1);
    }
}
