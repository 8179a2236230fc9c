//! HTTP/2 written by hand, for what no library would send.

use std::{
    collections::HashSet,
    io::{self, Read as _, Write as _},
    net::{Shutdown, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use prost::Message as _;

use crate::harness::{
    grpc,
    wait::{DEADLINE, holds_within},
};

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RESET: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;
pub const ACK: u8 = 1;

const REFUSED_STREAM: u32 = 7;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("fits a frame").to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A header that no table remembers.
pub fn header(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0];
    for text in [name, value] {
        bytes.extend(prefixed(text.len(), 7));
        bytes.extend(text.as_bytes());
    }
    bytes
}

/// An integer of HPACK behind a prefix of so many bits, which are all that is in the first byte.
fn prefixed(mut number: usize, bits: u8) -> Vec<u8> {
    let full = (1_usize << bits) - 1;
    let byte = |number: usize| u8::try_from(number).expect("is a byte");
    if number < full {
        return vec![byte(number)];
    }
    let mut bytes = vec![byte(full)];
    number -= full;
    while number >= 128 {
        bytes.push(byte(number % 128) | 128);
        number /= 128;
    }
    bytes.push(byte(number));
    bytes
}

pub const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The headers of a call of `ShouldRateLimit`, and these.
pub fn call_headers(more: &[(&str, &str)]) -> Vec<u8> {
    headers_to(SHOULD_RATE_LIMIT, more)
}

/// The headers of a call of anything.
pub fn headers_to(path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let own = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "sluice"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    own.iter().chain(more).flat_map(|(name, value)| header(name, value)).collect()
}

/// A message with what gRPC puts before it.
pub fn message(compressed: bool, message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("fits").to_be_bytes();
    [&[u8::from(compressed)], &length[..], message].concat()
}

/// A whole question, as Envoy sends it.
pub fn question(domain: &str, entries: &[(&str, &str)]) -> Vec<u8> {
    message(false, &grpc::request(domain, entries).encode_to_vec())
}

/// A call that is asked in full.
pub fn call(stream: u32, question: &[u8]) -> Vec<u8> {
    [frame(HEADERS, END_HEADERS, stream, &call_headers(&[])), frame(DATA, END_STREAM, stream, question)].concat()
}

/// What a connection has been sent.
#[derive(Default)]
struct Seen {
    closed: AtomicBool,
    /// Messages of answers.
    answers: AtomicUsize,
    pongs: AtomicUsize,
    /// Streams that were ended by headers alone: calls that were answered with an error.
    failed: AtomicUsize,
    /// Streams that were refused because there are too many.
    refused: AtomicUsize,
}

/// A connection whose answers are read and thrown away, so that the server can always write.
pub struct Raw {
    stream: TcpStream,
    seen: Arc<Seen>,
}

impl Raw {
    /// With these settings of ours.
    pub fn connect(address: &str, settings: &[(u16, u32)]) -> io::Result<Self> {
        let mut stream = TcpStream::connect(address)?;
        let payload: Vec<u8> = settings
            .iter()
            .flat_map(|(name, value)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat())
            .collect();
        stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &payload)].concat())?;
        let seen = Arc::new(Seen::default());
        thread::spawn({
            let (stream, seen) = (stream.try_clone()?, seen.clone());
            move || read_on(stream, &seen)
        });
        Ok(Self { stream, seen })
    }

    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Whether the other side has closed it.
    pub fn is_closed(&self) -> bool {
        self.seen.closed.load(Ordering::Relaxed)
    }

    /// How many calls were answered with a message.
    pub fn answers(&self) -> usize {
        self.seen.answers.load(Ordering::Relaxed)
    }

    /// How many calls were answered with an error.
    pub fn failed(&self) -> usize {
        self.seen.failed.load(Ordering::Relaxed)
    }

    /// How many streams were refused.
    pub fn refused(&self) -> usize {
        self.seen.refused.load(Ordering::Relaxed)
    }

    /// Waits until everything that was sent has been read. False if it never is.
    pub fn settles(&mut self) -> bool {
        let before = self.seen.pongs.load(Ordering::Relaxed);
        let sent = self.send(&frame(PING, 0, 0, b"and now?")).is_ok();
        sent && holds_within(DEADLINE, || self.is_closed() || self.seen.pongs.load(Ordering::Relaxed) > before)
            && !self.is_closed()
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Answers pings, so that nobody takes us for gone.
fn read_on(mut stream: TcpStream, seen: &Seen) {
    let (mut unread, mut buffer, mut begun) = (Vec::new(), vec![0; 64 << 10], HashSet::new());
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        unread.extend(&buffer[..length]);
        let mut at = 0;
        while let Some((head, rest)) = unread[at..].split_first_chunk::<9>() {
            let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
            let Some(payload) = rest.get(..length) else { break };
            match (head[3], head[4] & ACK) {
                (PING, 0) => {
                    let _ = stream.write_all(&frame(PING, ACK, 0, payload));
                }
                (PING, _) => {
                    seen.pongs.fetch_add(1, Ordering::Relaxed);
                }
                (DATA, _) if length > 0 => {
                    seen.answers.fetch_add(1, Ordering::Relaxed);
                }
                (HEADERS, flags) => {
                    // Trailers follow an answer; an error has nothing before them.
                    let is_first = begun.insert(u32::from_be_bytes([head[5], head[6], head[7], head[8]]));
                    seen.failed.fetch_add(usize::from(is_first && flags == END_STREAM), Ordering::Relaxed);
                }
                (RESET, _) if payload == REFUSED_STREAM.to_be_bytes() => {
                    seen.refused.fetch_add(1, Ordering::Relaxed);
                }
                _ => {}
            }
            at += 9 + length;
        }
        unread.drain(..at);
    }
    seen.closed.store(true, Ordering::Relaxed);
}
