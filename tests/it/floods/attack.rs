//! What callers can do to a server that do not mean well. Each attack is a function of an address and says how it ended.
//!
//! Depends on nothing but the bytes in [`super::wire`], so that other programs can measure what happens to everybody else
//! meanwhile.

use std::{
    io::Write as _,
    net::TcpStream,
    sync::LazyLock,
    time::{Duration, Instant},
};

use super::wire::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PING, PRIORITY, RESET, Raw, SETTINGS, WINDOW_UPDATE,
    call, call_headers, frame, message, question,
};
use crate::harness::wait::holds_within;

/// A server is expected to have ended an attack by then.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// What is sent in one go.
const BATCH: usize = 200;
const BATCHES_MAX: usize = 20_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The server has closed every connection of the attack.
    Closed,
    /// The server answered each call with an error, and the attack had no more to send.
    Refused,
    /// The attack came to its end by itself.
    Tolerated,
}

#[derive(Clone, Copy)]
pub struct Attack {
    pub name: &'static str,
    pub run: fn(&str) -> Ended,
    pub ends: Ended,
}

/// Those that send as much as they can.
pub const FLOODS: &[Attack] = &[
    Attack { name: "rapid reset", run: rapid_reset, ends: Ended::Closed },
    Attack { name: "CONTINUATION flood", run: continuations, ends: Ended::Closed },
    Attack {
        name: "PING flood",
        run: |address| flood(address, |_| frame(PING, 0, 0, b"pingping")),
        ends: Ended::Closed,
    },
    Attack {
        name: "SETTINGS flood",
        run: |address| flood(address, |_| frame(SETTINGS, 0, 0, &[])),
        ends: Ended::Closed,
    },
    Attack { name: "PRIORITY flood", run: priorities, ends: Ended::Closed },
    Attack { name: "WINDOW_UPDATE flood", run: window_updates, ends: Ended::Closed },
    Attack { name: "empty DATA flood", run: empty_data, ends: Ended::Closed },
    Attack { name: "RST_STREAM flood", run: resets, ends: Ended::Closed },
    Attack { name: "rapid reset of half a message", run: rapid_reset_of_crumbs, ends: Ended::Closed },
    Attack { name: "PING flood behind half a message", run: pings_and_crumbs, ends: Ended::Closed },
    Attack {
        name: "PING reply flood",
        run: |address| flood(address, |_| frame(PING, ACK, 0, b"pingping")),
        ends: Ended::Closed,
    },
    Attack { name: "SETTINGS flood over open streams", run: settings_over_streams, ends: Ended::Closed },
    Attack { name: "header bomb", run: header_bomb, ends: Ended::Closed },
    Attack { name: "compressed bomb", run: compressed_bomb, ends: Ended::Refused },
    Attack { name: "descriptor bomb", run: descriptor_bomb, ends: Ended::Refused },
];

/// Those that send little and hold what they get.
pub const HOLDS: &[Attack] = &[
    Attack { name: "slow readers", run: |address| slow_readers(address, 8), ends: Ended::Closed },
    Attack { name: "stalled requests", run: |address| stalled_requests(address, 8), ends: Ended::Refused },
];

/// Sends batches until the server has had enough.
fn flood(address: &str, mut batch: impl FnMut(u32) -> Vec<u8>) -> Ended {
    let mut raw = Raw::connect(address, &[]).expect("connects");
    for round in 0..BATCHES_MAX {
        let first = u32::try_from(round * BATCH).expect("fits");
        let bytes: Vec<u8> = (first..).take(BATCH).flat_map(&mut batch).collect();
        if raw.is_closed() || raw.send(&bytes).is_err() {
            return Ended::Closed;
        }
    }
    Ended::Tolerated
}

fn rapid_reset(address: &str) -> Ended {
    let headers = call_headers(&[]);
    flood(address, |number| {
        let stream = 2 * number + 1;
        [frame(HEADERS, END_HEADERS | END_STREAM, stream, &headers), frame(RESET, 0, stream, &8_u32.to_be_bytes())]
            .concat()
    })
}

/// Of a stream that has ended.
fn resets(address: &str) -> Ended {
    flood(address, |number| match number {
        0 => call(1, &question("d", &[("user", "reset")])),
        _ => frame(RESET, 0, 1, &8_u32.to_be_bytes()),
    })
}

/// Each stream has begun to ask something.
fn rapid_reset_of_crumbs(address: &str) -> Ended {
    let headers = call_headers(&[]);
    flood(address, |number| {
        let stream = 2 * number + 1;
        let crumb = [frame(HEADERS, END_HEADERS, stream, &headers), frame(DATA, 0, stream, &[0])].concat();
        [crumb, frame(RESET, 0, stream, &8_u32.to_be_bytes())].concat()
    })
}

/// A message that never ends, and three pings for each byte of it.
fn pings_and_crumbs(address: &str) -> Ended {
    let begun = message(false, &vec![0; 1 << 20]);
    flood(address, |number| match number {
        0 => [frame(HEADERS, END_HEADERS, 1, &call_headers(&[])), frame(DATA, 0, 1, &begun[..6])].concat(),
        _ => [frame(PING, 0, 0, b"pingping").repeat(3), frame(DATA, 0, 1, &[0])].concat(),
    })
}

/// Each of them changes the window of every stream.
fn settings_over_streams(address: &str) -> Ended {
    const INITIAL_WINDOW_SIZE: u16 = 4;
    let headers = call_headers(&[]);
    flood(address, |number| {
        if number < 1_000 {
            return frame(HEADERS, END_HEADERS, 2 * number + 1, &headers);
        }
        let window = 1_000 + number % 2;
        frame(SETTINGS, 0, 0, &[&INITIAL_WINDOW_SIZE.to_be_bytes()[..], &window.to_be_bytes()].concat())
    })
}

fn continuations(address: &str) -> Ended {
    flood(address, |number| match number {
        0 => frame(HEADERS, 0, 1, &call_headers(&[])),
        _ => frame(CONTINUATION, 0, 1, &[]),
    })
}

fn priorities(address: &str) -> Ended {
    flood(address, |number| frame(PRIORITY, 0, 2 * number + 1, &[0, 0, 0, 0, 1]))
}

fn window_updates(address: &str) -> Ended {
    flood(address, |number| match number {
        0 => frame(HEADERS, END_HEADERS, 1, &call_headers(&[])),
        _ => frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes()),
    })
}

fn empty_data(address: &str) -> Ended {
    flood(address, |number| match number {
        0 => frame(HEADERS, END_HEADERS, 1, &call_headers(&[])),
        _ => frame(DATA, 0, 1, &[]),
    })
}

/// A long header is put into the table once and then named by one byte, again and again.
fn header_bomb(address: &str) -> Ended {
    let value = "b".repeat(3_000);
    // Literal with indexing, and the first entry of the table that is ours.
    let mut remembered = super::wire::header("bomb", &value);
    remembered[0] = 0x40;
    let named = vec![0xBE; 8_000];
    flood(address, |number| {
        let headers = if number == 0 { &remembered } else { &named };
        frame(HEADERS, END_HEADERS, 2 * number + 1, &[call_headers(&[]), headers.clone()].concat())
    })
}

/// Calls one after the other on one connection, and whether none was answered with an answer.
fn refused_calls(address: &str, calls: u32, more: &[(&str, &str)], body: &[u8]) -> Ended {
    let mut raw = Raw::connect(address, &[]).expect("connects");
    for number in 0..calls {
        let stream = 2 * number + 1;
        let mut sent = frame(HEADERS, END_HEADERS, stream, &call_headers(more));
        let mut pieces = body.chunks(16 << 10).peekable();
        while let Some(piece) = pieces.next() {
            let flags = if pieces.peek().is_none() { END_STREAM } else { 0 };
            sent.extend(frame(DATA, flags, stream, piece));
        }
        if raw.is_closed() || raw.send(&sent).is_err() {
            return Ended::Closed;
        }
    }
    match (raw.settles(), raw.answers()) {
        (true, 0) => Ended::Refused,
        (true, _) => Ended::Tolerated,
        (false, _) => Ended::Closed,
    }
}

/// 8 MiB of zeros in 8 KiB. Packed once: who attacks does not spend the time of the machine on it again and again.
static COMPRESSED: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(&vec![0; 8 << 20]).expect("is memory");
    message(true, &encoder.finish().expect("is memory"))
});

fn compressed_bomb(address: &str) -> Ended {
    refused_calls(address, 50, &[("grpc-encoding", "gzip")], &COMPRESSED)
}

/// Descriptors of two bytes each, which are a hundred once they are decoded.
fn descriptor_bomb(address: &str) -> Ended {
    let bomb = message(false, &[0x12, 0].repeat(100_000));
    refused_calls(address, 1, &[], &bomb)
}

/// Ask as much as they may and never let an answer come, though they are there when they are pinged.
pub fn slow_readers(address: &str, connections: usize) -> Ended {
    const INITIAL_WINDOW_SIZE: u16 = 4;
    let question = question("d", &[("user", "slow")]);
    let calls: Vec<u8> = (0..1_024).flat_map(|number| call(2 * number + 1, &question)).collect();
    let held = held(address, connections, &[(INITIAL_WINDOW_SIZE, 0)], &calls);
    let closed = holds_within(PATIENCE, || held.iter().all(Raw::is_closed));
    if closed { Ended::Closed } else { Ended::Tolerated }
}

/// Begin as many large requests as they may and end none.
pub fn stalled_requests(address: &str, connections: usize) -> Ended {
    const CLAIMED: u32 = 3 << 20;
    let begun = [&[0], &CLAIMED.to_be_bytes()[..], &[0; 200]].concat();
    let one =
        |stream| [frame(HEADERS, END_HEADERS, stream, &call_headers(&[])), frame(DATA, 0, stream, &begun)].concat();
    let calls: Vec<u8> = (0..1_000).flat_map(|number| one(2 * number + 1)).collect();
    let held = held(address, connections, &[], &calls);
    let all_failed = holds_within(PATIENCE, || held.iter().all(|raw| raw.failed() == 1_000));
    match (all_failed, held.iter().any(Raw::is_closed)) {
        (true, false) => Ended::Refused,
        (false, true) => Ended::Closed,
        _ => Ended::Tolerated,
    }
}

fn held(address: &str, connections: usize, settings: &[(u16, u32)], bytes: &[u8]) -> Vec<Raw> {
    let connect = |_| {
        let mut raw = Raw::connect(address, settings).expect("connects");
        let _ = raw.send(bytes);
        raw
    };
    (0..connections).map(connect).collect()
}

/// Connections that are opened, and say this much.
pub fn idle(address: &str, connections: usize, first: &[u8]) -> Vec<TcpStream> {
    let connect = |_| {
        let mut stream = TcpStream::connect(address).expect("connects");
        stream.write_all(first).expect("is sent");
        stream
    };
    (0..connections).map(connect).collect()
}

/// How many of these the other side has closed.
pub fn closed(connections: &[TcpStream]) -> usize {
    connections.iter().filter(|stream| is_closed(stream)).count()
}

/// Whether the other side has closed all of these. Looks no further than the newest that is open, so that looks at ten thousand
/// that wait take nothing from the server.
pub fn are_closed(connections: &[TcpStream]) -> bool {
    connections.iter().rev().all(is_closed)
}

fn is_closed(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).expect("is a socket");
    let mut buffer = [0; 1 << 10];
    loop {
        match std::io::Read::read(&mut &*stream, &mut buffer) {
            Ok(1..) => {}
            Ok(0) => return true,
            Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }
}

/// What an HTTP/2 caller says that only opens its connection.
pub fn opening() -> Vec<u8> {
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &frame(SETTINGS, 0, 0, &[])[..]].concat()
}

/// How long an attack took.
pub fn timed(attack: &Attack, address: &str) -> (Ended, Duration) {
    let began = Instant::now();
    let ended = (attack.run)(address);
    (ended, began.elapsed())
}
