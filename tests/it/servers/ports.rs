//! Ports for servers that have to be told theirs.

use std::{
    net::{Ipv4Addr, TcpListener},
    process,
    sync::atomic::{AtomicU16, Ordering},
};

/// Below the ports that the system gives to whoever asks for any: one of those that is free now can be anybody's before a
/// server has bound it.
const FIRST: u16 = 20_000;
const PORTS: u16 = 12_000;
/// Where sentinels are if nobody says otherwise.
const SENTINEL: u16 = 26_379;

/// How many were tried by this process.
static TRIED: AtomicU16 = AtomicU16::new(0);

/// Never the same twice, as long as there are others. Processes that run side by side begin at different ports.
pub fn free_port() -> u16 {
    let begin = process::id().wrapping_mul(499) % u32::from(PORTS);
    let is_free = |port: &u16| *port != SENTINEL && TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    let next = |_| {
        let tried = u32::from(TRIED.fetch_add(1, Ordering::Relaxed));
        FIRST + u16::try_from((begin + tried) % u32::from(PORTS)).expect("is less than there are")
    };
    (0..PORTS).map(next).find(is_free).expect("there is a free port")
}
