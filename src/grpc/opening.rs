//! The first bytes of an HTTP/2 connection, which every caller has to send before anything is set up for it.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

/// What HTTP/2 begins with (RFC 9113, 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Waits for the opening of the connection and gives it back unread.
pub async fn opened<S: AsyncRead + Unpin>(mut stream: S) -> io::Result<Opened<S>> {
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
    Ok(Opened { unread: PREFACE, stream })
}

/// A stream whose opening is read once more, by whom it was meant for.
#[derive(Debug)]
pub struct Opened<S> {
    unread: &'static [u8],
    stream: S,
}

impl<S: AsyncRead + Unpin> AsyncRead for Opened<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.unread.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buffer);
        }
        let (now, later) = self.unread.split_at(self.unread.len().min(buffer.remaining()));
        buffer.put_slice(now);
        self.unread = later;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Opened<S> {
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
    use super::*;

    #[tokio::test]
    async fn the_opening_is_read_again_however_small_the_pieces() {
        let sent = [&PREFACE[..], b"and more"].concat();
        let mut stream = opened(&sent[..]).await.unwrap();
        let mut first = [0; 5];
        stream.read_exact(&mut first).await.unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        assert_eq!([&first[..], &rest[..]].concat(), sent);
    }

    #[tokio::test]
    async fn another_protocol_is_seen_at_once() {
        let error = opened(&b"GET / HTTP"[..]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
