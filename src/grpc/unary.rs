//! One gRPC call with one message each way, on a stream of HTTP/2: what tonic would do for Envoy's question.
//!
//! tonic is made for every kind of call and codec, and its layers cost a fifth of a whole answer. This knows one kind: a message that
//! is read into one piece of memory, mostly the one it arrived in, and an answer that is one frame of data and one of trailers.
//! Statuses are tonic's, and so are their texts where it has one. It knows nothing of what is asked.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Response, header::CONTENT_TYPE};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame};
use prost::Message;
use tonic::Status;

use super::intake::Intake;

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
const OK: HeaderValue = HeaderValue::from_static("0");
const IDENTITY: HeaderValue = HeaderValue::from_static("identity");

/// Whether the message is compressed, and its length.
pub const PREFIX: usize = 5;

/// Whether the head of a call promises a message that can be read.
pub fn welcome(headers: &HeaderMap) -> Result<(), Status> {
    let Some(encoding) = headers.get(GRPC_ENCODING).filter(|encoding| **encoding != IDENTITY) else { return Ok(()) };
    let encoding = encoding.to_str().unwrap_or("?");
    let mut status = Status::unimplemented(format!("Content is compressed with `{encoding}` which isn't supported"));
    status.metadata_mut().as_mut().insert(GRPC_ACCEPT_ENCODING, IDENTITY);
    Err(status)
}

/// The one message of a call, which has no more than `max` bytes if it is one: one that announces more is refused by the intake. The
/// call is over for the caller when this returns.
pub async fn receive(mut body: Intake, max: usize) -> Result<Bytes, Status> {
    let mut received = Bytes::new();
    while !body.is_end_stream() {
        let Some(data) = next(&mut body).await? else { break };
        if !received.is_empty() {
            return joined(received, data, body, max).await;
        }
        received = data;
    }
    whole(received)
}

/// Rare: callers send a question in one frame.
async fn joined(first: Bytes, second: Bytes, mut body: Intake, max: usize) -> Result<Bytes, Status> {
    let mut received = BytesMut::from(first);
    received.extend_from_slice(&second);
    while let Some(data) = next(&mut body).await? {
        received.extend_from_slice(&data);
        if received.len() > PREFIX + max {
            break;
        }
    }
    whole(received.freeze())
}

async fn next(body: &mut Intake) -> Result<Option<Bytes>, Status> {
    loop {
        let Some(frame) = body.frame().await else { return Ok(None) };
        // A refusal of ours, or the caller has gone.
        let frame = frame.map_err(|error| match error.downcast::<Status>() {
            Ok(refusal) => *refusal,
            Err(error) => Status::cancelled(format!("the call was broken off: {error}")),
        })?;
        // Trailers of a caller mean nothing.
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
}

fn announced(received: &[u8]) -> Option<usize> {
    let (prefix, _) = received.split_first_chunk::<PREFIX>()?;
    usize::try_from(u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]])).ok()
}

/// The message without its prefix.
fn whole(mut received: Bytes) -> Result<Bytes, Status> {
    let Some(length) = announced(&received) else {
        return Err(Status::internal("Missing request message."));
    };
    match received[0] {
        0 => {}
        1 => {
            return Err(Status::internal(
                "protocol error: received message with compressed-flag but no grpc-encoding was specified",
            ));
        }
        flag => {
            return Err(Status::internal(format!(
                "protocol error: received message with invalid compression flag: {flag} (valid flags are 0 and 1)"
            )));
        }
    }
    received.advance(PREFIX);
    if received.len() == length {
        return Ok(received);
    }
    Err(Status::internal(format!(
        "protocol error: a call has one message, which is {length} bytes long, but {} were sent",
        received.len()
    )))
}

/// What a call is answered.
pub fn answer<M: Message>(answered: Result<M, Status>) -> Response<Answer> {
    let message = match answered {
        Ok(message) => message,
        Err(status) => return status.into_http::<tonic::body::Body>().map(|_| Answer(None)),
    };
    let length = message.encoded_len();
    let mut bytes = Vec::with_capacity(PREFIX + length);
    bytes.push(0);
    bytes.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    message.encode_raw(&mut bytes);
    let mut response = Response::new(Answer(Some(Part::Message(bytes.into()))));
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

/// What is left to send of an answer.
#[derive(Debug)]
pub struct Answer(Option<Part>);

#[derive(Debug)]
enum Part {
    Message(Bytes),
    Trailers,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Poll::Ready(match self.0.take() {
            Some(Part::Message(message)) => {
                self.0 = Some(Part::Trailers);
                Some(Ok(Frame::data(message)))
            }
            Some(Part::Trailers) => {
                let mut trailers = HeaderMap::with_capacity(1);
                trailers.insert(GRPC_STATUS, OK);
                Some(Ok(Frame::trailers(trailers)))
            }
            None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn a_message_is_what_follows_its_prefix() {
        let whole = |bytes: &'static [u8]| whole(Bytes::from_static(bytes));
        assert_eq!(whole(b"\0\0\0\0\x02hi").unwrap(), "hi");
        assert_eq!(whole(b"\0\0\0\0\0").unwrap(), "");
        for bad in [&b""[..], b"\0\0\0\0", b"\x01\0\0\0\0", b"\x02\0\0\0\0", b"\0\0\0\0\x02h", b"\0\0\0\0\x02hi!"] {
            assert_eq!(whole(bad).unwrap_err().code(), Code::Internal, "{bad:?}");
        }
    }

    #[test]
    fn a_failure_is_all_in_the_headers() {
        let response = answer::<()>(Err(Status::unavailable("no store")));
        assert!(response.body().is_end_stream());
        assert_eq!(response.headers()[GRPC_STATUS], "14");
        assert_eq!(response.headers()[CONTENT_TYPE], "application/grpc");
    }
}
