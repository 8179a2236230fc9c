//! A blocking HTTP/1.1 client, just large enough: one request, one connection.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

use serde_json::Value;

use super::wait::DEADLINE;

#[derive(Debug)]
pub struct Response {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| &**value)
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in: {}", self.body))
    }
}

pub fn get(address: &str, path: &str) -> Response {
    send(address, "GET", path, "", "")
}

pub fn post(address: &str, path: &str, body: &str) -> Response {
    send(address, "POST", path, "application/json", body)
}

pub fn send(address: &str, method: &str, path: &str, content_type: &str, body: impl AsRef<[u8]>) -> Response {
    let stream = TcpStream::connect(address).unwrap_or_else(|error| panic!("{address}: {error}"));
    send_over(stream, method, path, &[("content-type", content_type)], body)
}

/// Over a connection that the caller has made.
pub fn send_over(
    mut stream: TcpStream,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: impl AsRef<[u8]>,
) -> Response {
    let body = body.as_ref();
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout above 0 is accepted");
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let (host, length) = (stream.peer_addr().expect("it is connected"), body.len());
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n"
    );
    stream.write_all(&[request.as_bytes(), body].concat()).expect("the request can be sent");
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap_or_else(|error| panic!("{method} {path}: {error}"));
    parse(&bytes).unwrap_or_else(|| panic!("{method} {path}: not HTTP: {:?}", String::from_utf8_lossy(&bytes)))
}

fn parse(bytes: &[u8]) -> Option<Response> {
    let split = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..split]).ok()?;
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers: Vec<(String, String)> = lines
        .map(|line| line.split_once(':').map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())))
        .collect::<Option<_>>()?;
    let body = &bytes[split + 4..];
    let is_chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
    let body = if is_chunked { unchunk(body)? } else { body.to_vec() };
    Some(Response { status, headers, body: String::from_utf8(body).ok()? })
}

fn unchunk(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|window| window == b"\r\n")?;
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..end]).ok()?, 16).ok()?;
        if length == 0 {
            return Some(body);
        }
        body.extend_from_slice(rest.get(end + 2..end + 2 + length)?);
        rest = rest.get(end + 4 + length..)?;
    }
}
