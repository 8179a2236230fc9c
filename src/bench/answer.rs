//! Reads an answer and judges it.

use std::{borrow::Cow, fmt};

use bytes::{Bytes, BytesMut};
use h2::{Reason, RecvStream, client::ResponseFuture};
use http::{HeaderMap, StatusCode};
use prost::Message as _;

use crate::grpc::{
    convert,
    proto::envoy::service::ratelimit::v3::{RateLimitResponse, rate_limit_response::Code as WireCode},
};

/// What a good answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    Ok,
    OverLimit,
}

/// A good answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub code: Code,
    /// It says that a failure policy decided, and not the store.
    pub degraded: bool,
    /// It says nothing of the descriptors by themselves. Envoy asks for no more than the whole, and some servers tell no more.
    pub whole_only: bool,
}

/// Which answers are as wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    Any,
    Only(Code),
}

impl Expect {
    pub const OK: Self = Self::Only(Code::Ok);
    pub const OVER: Self = Self::Only(Code::OverLimit);
}

/// What is wrong with an answer. They are counted by their text, so that it says no more than the kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wrong {
    /// The connection broke under the call.
    Connection(Cow<'static, str>),
    /// The server ended the call without an answer.
    Reset(Reason2),
    Http(u16),
    /// Not a gRPC content type.
    NotGrpc,
    Grpc(i32),
    /// No message, or one that cannot be read.
    Undecodable,
    NoOverallCode,
    Statuses {
        got: usize,
        asked: usize,
    },
    Unexpected(&'static str),
    Unanswered,
    /// An open loop that would have had to hold more calls than it may.
    NotSent,
}

/// A reason of HTTP/2 that can be put in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reason2(u32);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connection(why) => write!(f, "connection: {why}"),
            Self::Reset(reason) => write!(f, "stream reset: {:?}", Reason::from(reason.0)),
            Self::Http(status) => write!(f, "http status {status}"),
            Self::NotGrpc => f.write_str("not a gRPC answer"),
            Self::Grpc(code) => write!(f, "grpc status {code} {}", grpc_name(*code)),
            Self::Undecodable => f.write_str("answer cannot be decoded"),
            Self::NoOverallCode => f.write_str("answer without overall_code"),
            Self::Statuses { got, asked } => write!(f, "{got} statuses for {asked} descriptors"),
            Self::Unexpected(code) => write!(f, "unexpected code {code}"),
            Self::Unanswered => f.write_str("unanswered at the end"),
            Self::NotSent => f.write_str("not sent: too many calls under way"),
        }
    }
}

impl From<h2::Error> for Wrong {
    fn from(error: h2::Error) -> Self {
        match error.reason() {
            Some(reason) if error.is_reset() => Self::Reset(Reason2(reason.into())),
            _ if error.is_go_away() => Self::Connection("closed by the server".into()),
            _ => match error.get_io() {
                Some(io) => Self::Connection(io.kind().to_string().into()),
                None => Self::Connection(error.to_string().into()),
            },
        }
    }
}

/// The whole answer to one call.
pub async fn read(response: ResponseFuture, descriptors: usize) -> Result<Answer, Wrong> {
    let (head, mut body) = response.await?.into_parts();
    if head.status != StatusCode::OK {
        return Err(Wrong::Http(head.status.as_u16()));
    }
    let content_type = head.headers.get(http::header::CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    if !content_type.starts_with(b"application/grpc") {
        return Err(Wrong::NotGrpc);
    }
    if let Some(wrong) = grpc_status(&head.headers).filter(|status| *status != 0) {
        return Err(Wrong::Grpc(wrong));
    }
    let message = read_body(&mut body).await?;
    match body.trailers().await?.as_ref().and_then(grpc_status) {
        Some(0) => judge(&message, descriptors),
        Some(status) => Err(Wrong::Grpc(status)),
        None => Err(Wrong::NotGrpc),
    }
}

/// Nearly always one piece, which is then not copied.
async fn read_body(body: &mut RecvStream) -> Result<Bytes, Wrong> {
    let Some(first) = body.data().await.transpose()? else { return Ok(Bytes::new()) };
    let _ = body.flow_control().release_capacity(first.len());
    let mut more: Option<BytesMut> = None;
    while let Some(piece) = body.data().await.transpose()? {
        let _ = body.flow_control().release_capacity(piece.len());
        more.get_or_insert_with(|| BytesMut::from(&first[..])).extend_from_slice(&piece);
    }
    Ok(more.map_or(first, BytesMut::freeze))
}

fn grpc_status(headers: &HeaderMap) -> Option<i32> {
    headers.get("grpc-status")?.to_str().ok()?.parse().ok()
}

fn judge(frame: &[u8], descriptors: usize) -> Result<Answer, Wrong> {
    let message = frame.split_at_checked(5).filter(|(head, message)| {
        head[0] == 0 && u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize == message.len()
    });
    let (_, message) = message.ok_or(Wrong::Undecodable)?;
    let answer = RateLimitResponse::decode(message).map_err(|_| Wrong::Undecodable)?;
    let code = match answer.overall_code() {
        WireCode::Ok => Code::Ok,
        WireCode::OverLimit => Code::OverLimit,
        WireCode::Unknown => return Err(Wrong::NoOverallCode),
    };
    let got = answer.statuses.len();
    if got != descriptors && got != 0 {
        return Err(Wrong::Statuses { got, asked: descriptors });
    }
    let degraded = answer.response_headers_to_add.iter().any(|header| header.key == convert::DEGRADED);
    Ok(Answer { code, degraded, whole_only: got < descriptors })
}

fn grpc_name(code: i32) -> &'static str {
    match code {
        1 => "CANCELLED",
        2 => "UNKNOWN",
        3 => "INVALID_ARGUMENT",
        4 => "DEADLINE_EXCEEDED",
        5 => "NOT_FOUND",
        7 => "PERMISSION_DENIED",
        8 => "RESOURCE_EXHAUSTED",
        12 => "UNIMPLEMENTED",
        13 => "INTERNAL",
        14 => "UNAVAILABLE",
        16 => "UNAUTHENTICATED",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::DescriptorStatus;

    fn frame(code: WireCode, statuses: usize) -> Vec<u8> {
        let statuses = (0..statuses).map(|_| DescriptorStatus::default()).collect();
        let answer = RateLimitResponse { overall_code: code.into(), statuses, ..RateLimitResponse::default() };
        let message = answer.encode_to_vec();
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        [&[0], &length[..], &message].concat()
    }

    #[test]
    fn an_answer_counts_by_its_overall_code() {
        let answer = |code| Ok(Answer { code, degraded: false, whole_only: false });
        assert_eq!(judge(&frame(WireCode::Ok, 1), 1), answer(Code::Ok));
        assert_eq!(judge(&frame(WireCode::OverLimit, 3), 3), answer(Code::OverLimit));
    }

    #[test]
    fn an_answer_may_be_to_the_whole_only() {
        let answer = |code| Ok(Answer { code, degraded: false, whole_only: true });
        assert_eq!(judge(&frame(WireCode::Ok, 0), 1), answer(Code::Ok));
        assert_eq!(judge(&frame(WireCode::OverLimit, 0), 3), answer(Code::OverLimit));
    }

    #[test]
    fn an_answer_to_something_else_is_wrong() {
        assert_eq!(judge(&[], 1), Err(Wrong::Undecodable));
        assert_eq!(judge(&[0, 0, 0, 0, 9, 8], 1), Err(Wrong::Undecodable));
        assert_eq!(judge(&[0, 0, 0, 0, 1, 0xff], 1), Err(Wrong::Undecodable));
        assert_eq!(judge(&[0, 0, 0, 0, 0], 1), Err(Wrong::NoOverallCode));
        assert_eq!(judge(&frame(WireCode::Ok, 1), 2), Err(Wrong::Statuses { got: 1, asked: 2 }));
        assert_eq!(judge(&frame(WireCode::Ok, 2), 1), Err(Wrong::Statuses { got: 2, asked: 1 }));
    }
}
