//! Watches what a connection sends, frame by frame, so that one connection takes no more than its turn and one that sends
//! frames for their own sake is ended.
//!
//! h2 bounds what a frame can make it keep, but not how many it answers: pings, settings, window updates and streams that are
//! opened and reset cost the sender nothing and us a little each. Here they are noise, of which a connection may make so
//! much in a while. A reset is not: Envoy resets every call that it gives up on, and all of them when a store is slow. What tells
//! its calls from a flood is that each came with a message.
//!
//! Knows the nine bytes before each frame and nothing else of HTTP/2.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::limits::{NOISE_MAX, READ_BYTES_MAX};

const HEAD_BYTES: usize = 9;
const DATA: u8 = 0;
const RESET: u8 = 3;
/// What a call is allowed beside itself.
const NOISE_OF_A_CALL: u32 = 3;

/// How much of a connection may be read now. Shared by the stream and whoever runs the connection.
#[derive(Debug, Default)]
pub struct Turn {
    left: AtomicUsize,
    slice: AtomicUsize,
    flooded: AtomicBool,
}

impl Turn {
    /// The connection is run: it may read again.
    pub fn begin(&self) {
        self.left.store(READ_BYTES_MAX, Relaxed);
    }

    /// Whether the stream was ended for its noise.
    pub fn is_flooded(&self) -> bool {
        self.flooded.load(Relaxed)
    }

    /// A slice of time is over: noise is counted anew.
    pub fn forget_noise(&self) {
        self.slice.fetch_add(1, Relaxed);
    }
}

/// A stream of frames.
#[derive(Debug)]
pub struct Frames<S> {
    stream: S,
    turn: Arc<Turn>,
    count: Count,
}

impl<S> Frames<S> {
    /// Of the bytes that come, so many stand before the first frame.
    pub fn new(stream: S, before: usize, turn: Arc<Turn>) -> Self {
        Self { stream, turn, count: Count { pass: before, ..Count::default() } }
    }
}

#[derive(Debug, Default)]
struct Count {
    /// Bytes until the next frame begins.
    pass: usize,
    /// Of a frame whose head came in pieces.
    head: [u8; HEAD_BYTES],
    head_length: usize,
    noise: u32,
    slice: usize,
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
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        self.pass = length as usize;
        match head[3] {
            DATA if length > 0 => self.noise = self.noise.saturating_sub(NOISE_OF_A_CALL),
            RESET => {}
            _ => self.noise += 1,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Frames<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let left = this.turn.left.load(Relaxed);
        if left == 0 {
            // Whoever waits behind this connection goes first.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buffer))?;
        let read = &buffer.filled()[before..];
        this.turn.left.store(left.saturating_sub(read.len()), Relaxed);
        let slice = this.turn.slice.load(Relaxed);
        if slice != this.count.slice {
            (this.count.slice, this.count.noise) = (slice, 0);
        }
        this.count.bytes(read);
        if this.count.noise > NOISE_MAX {
            this.turn.flooded.store(true, Relaxed);
            return Poll::Ready(Err(io::Error::other("the caller floods the connection with frames that ask nothing")));
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

    const HEADERS: u8 = 1;
    const PING: u8 = 6;

    fn frame(kind: u8, length: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, length, kind, 0, 0, 0, 0, 1];
        frame.resize(HEAD_BYTES + usize::from(length), 0xAA);
        frame
    }

    fn noise(sent: &[u8], piece: usize) -> u32 {
        let mut count = Count { pass: 3, ..Count::default() };
        [b"PRI", sent].concat().chunks(piece).for_each(|bytes| count.bytes(bytes));
        count.noise
    }

    #[test]
    fn calls_with_a_message_make_no_noise_whether_they_are_reset_or_not() {
        let call = [frame(HEADERS, 40), frame(DATA, 60)].concat();
        let cancelled = [call.clone(), frame(RESET, 4)].concat();
        let noise = noise(&[call.repeat(1_000), cancelled.repeat(1_000)].concat(), usize::MAX);
        assert!(noise <= 1, "{noise}");
    }

    #[test]
    fn frames_that_ask_nothing_are_noise_however_they_are_cut() {
        let opened_in_vain = [frame(HEADERS, 40), frame(RESET, 4)].concat();
        let sent = [frame(PING, 8).repeat(100), opened_in_vain.repeat(100), frame(DATA, 0).repeat(100)].concat();
        for piece in [1, 2, 7, 9, 10, 1_000, usize::MAX] {
            assert_eq!(noise(&sent, piece), 300, "in pieces of {piece}");
        }
    }

    #[tokio::test]
    async fn a_flood_ends_and_what_came_in_another_slice_of_time_does_not_count() {
        let turn = Arc::new(Turn::default());
        let most = frame(PING, 8).repeat(NOISE_MAX as usize);
        let two = most.repeat(2);
        let mut frames = Frames::new(&two[..], 0, turn.clone());
        let mut read = vec![0; most.len()];
        for _ in 0..2 {
            for piece in read.chunks_mut(READ_BYTES_MAX) {
                turn.begin();
                frames.read_exact(piece).await.unwrap();
            }
            turn.forget_noise();
        }
        let one_more = [most, frame(PING, 8)].concat();
        let mut frames = Frames::new(&one_more[..], 0, turn.clone());
        let mut ended = Ok(0);
        for piece in vec![0; one_more.len()].chunks_mut(1_000) {
            turn.begin();
            ended = frames.read_exact(piece).await;
        }
        assert!(ended.unwrap_err().to_string().contains("floods"));
    }

    #[tokio::test]
    async fn a_connection_is_read_no_further_than_its_turn() {
        let turn = Arc::new(Turn::default());
        let sent = vec![0; READ_BYTES_MAX + 1];
        let mut frames = Frames::new(&sent[..], sent.len(), turn.clone());
        turn.begin();
        let mut read = vec![0; READ_BYTES_MAX];
        frames.read_exact(&mut read).await.unwrap();
        let mut one = [0];
        assert!(futures_util::poll!(std::pin::pin!(frames.read_exact(&mut one))).is_pending());
        turn.begin();
        frames.read_exact(&mut one).await.unwrap();
    }
}
