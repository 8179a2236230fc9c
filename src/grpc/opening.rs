//! The first bytes of a connection, which every caller has to send before anything is set up for it.
//!
//! An HTTP/2 connection takes some 25 KB of memory, and most of what is known of one that only waits fits into a few bytes. So
//! the opening is answered here, and the connection is set up with the first frame that is neither a setting nor a window.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};

use super::limits::{HEADER_LIST_BYTES_MAX, STREAMS_MAX, WINDOW_BYTES};

/// What HTTP/2 begins with (RFC 9113, 3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_BYTES: u32 = 16 << 10;
const HEAD_BYTES: usize = 9;
/// What is kept unread at most. No caller that is well sends as many settings.
const KEPT_BYTES_MAX: usize = 512;

/// Our settings, as hyper sends them first on a connection that was set up with the same limits.
const SETTINGS: [u8; HEAD_BYTES + 24] = {
    let mut frame = [0; HEAD_BYTES + 24];
    frame[2] = 24;
    frame[3] = 4;
    let settings = [(3, STREAMS_MAX), (4, WINDOW_BYTES), (5, FRAME_BYTES), (6, HEADER_LIST_BYTES_MAX)];
    let mut at = 0;
    while at < settings.len() {
        let (name, value) = settings[at];
        let (start, value) = (HEAD_BYTES + 6 * at, value.to_be_bytes());
        frame[start + 1] = name;
        let mut byte = 0;
        while byte < value.len() {
            frame[start + 2 + byte] = value[byte];
            byte += 1;
        }
        at += 1;
    }
    frame
};

/// Waits for the preface of HTTP/2 and answers it with our settings.
pub async fn opened<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) -> io::Result<()> {
    let mut bytes = [0; PREFACE.len()];
    let mut length = 0;
    while length < PREFACE.len() {
        let more = stream.read(&mut bytes[length..]).await?;
        if more == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        length += more;
        if bytes[..length] != PREFACE[..length] {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the caller does not speak HTTP/2"));
        }
    }
    stream.write_all(&SETTINGS).await?;
    stream.flush().await
}

/// Waits for the first frame that asks something, and gives everything back unread.
pub async fn asked<S: AsyncRead + Unpin>(mut stream: S) -> io::Result<Opened<S>> {
    let mut kept = Vec::with_capacity(128);
    kept.extend_from_slice(PREFACE);
    while only_opens(&kept[PREFACE.len()..]) && kept.len() < KEPT_BYTES_MAX {
        if stream.read_buf(&mut kept).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(Opened { unread: kept, read: 0, unwritten: SETTINGS.len(), stream })
}

/// Whether these frames are settings and windows only, as far as they are here.
fn only_opens(mut frames: &[u8]) -> bool {
    const SETTINGS: u8 = 4;
    const WINDOW_UPDATE: u8 = 8;
    while let Some(head) = frames.first_chunk::<HEAD_BYTES>() {
        if !matches!(head[3], SETTINGS | WINDOW_UPDATE) {
            return false;
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        frames = frames.get(HEAD_BYTES + length..).unwrap_or_default();
    }
    true
}

/// A stream whose opening is read once more, by whom it was meant for, and whose answer to that is not sent again.
#[derive(Debug)]
pub struct Opened<S> {
    unread: Vec<u8>,
    read: usize,
    unwritten: usize,
    stream: S,
}

impl<S: AsyncRead + Unpin> AsyncRead for Opened<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.unread.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buffer);
        }
        let rest = &self.unread[self.read..];
        let now = rest.len().min(buffer.remaining());
        buffer.put_slice(&rest[..now]);
        self.read += now;
        if self.read == self.unread.len() {
            self.unread = Vec::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Opened<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.unwritten == 0 {
            return Pin::new(&mut self.stream).poll_write(cx, bytes);
        }
        let sent_before = self.unwritten.min(bytes.len());
        self.unwritten -= sent_before;
        Poll::Ready(Ok(sent_before))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.unwritten == 0 {
            return Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        }
        let first = slices.iter().find(|slice| !slice.is_empty()).map_or(&[][..], |slice| slice);
        let written = ready!(self.poll_write(cx, first))?;
        Poll::Ready(Ok(written))
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
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::duplex;

    use super::*;

    const NO_SETTINGS: [u8; HEAD_BYTES] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const PING: [u8; HEAD_BYTES + 8] = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];

    #[tokio::test]
    async fn the_opening_is_answered_and_read_again_however_small_the_pieces() {
        let (mut caller, mut door) = duplex(1 << 10);
        let sent = [&PREFACE[..], &NO_SETTINGS, &PING].concat();
        caller.write_all(&sent).await.unwrap();
        opened(&mut door).await.unwrap();
        let mut stream = asked(door).await.unwrap();
        let mut answered = [0; SETTINGS.len()];
        caller.read_exact(&mut answered).await.unwrap();
        assert_eq!(answered, SETTINGS);
        caller.shutdown().await.unwrap();
        let mut first = [0; 5];
        stream.read_exact(&mut first).await.unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        assert_eq!([&first[..], &rest[..]].concat(), sent);
    }

    #[tokio::test]
    async fn another_protocol_is_seen_at_once() {
        let (mut caller, mut door) = duplex(1 << 10);
        caller.write_all(b"GET / HTTP").await.unwrap();
        assert_eq!(opened(&mut door).await.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn settings_and_windows_only_open_a_connection_and_anything_else_asks() {
        assert!(only_opens(&[]));
        assert!(only_opens(&[NO_SETTINGS, [0, 0, 4, 8, 0, 0, 0, 0, 0]].concat()));
        assert!(!only_opens(&[&NO_SETTINGS[..], &PING].concat()));
        assert!(!only_opens(&[0, 0, 1, 1, 0, 0, 0, 0, 1]));
    }

    /// What was sent for hyper must be what hyper would have sent.
    #[tokio::test]
    async fn the_settings_are_those_that_hyper_sends() {
        let (mut caller, door) = duplex(1 << 10);
        caller.write_all(PREFACE).await.unwrap();
        let service = service_fn(async |_| Ok::<_, std::convert::Infallible>(http::Response::new(String::new())));
        let builder = super::super::server::connection_builder(super::super::streams::Streams::default());
        let connection = builder.serve_connection(TokioIo::new(door), service);
        let mut sent = [0; SETTINGS.len()];
        tokio::select! {
            _ = connection => panic!("the connection ends"),
            read = caller.read_exact(&mut sent) => read.unwrap(),
        };
        assert_eq!(sent, SETTINGS);
    }
}
