//! The application behind Envoy: answers everything, and says that it took ten tokens to do so.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    thread,
};

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nx-tokens-used: 10\r\ncontent-length: 2\r\n\r\nok";

/// Serves until the test process ends, and gives its port.
pub fn start() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("is bound").port();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || serve(stream));
        }
    });
    port
}

/// Requests without a body, one after another.
fn serve(mut stream: TcpStream) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
    while let Some(Ok(line)) = lines.next() {
        if line.is_empty() {
            stream.write_all(ANSWER).ok()?;
        }
    }
    None
}
