//! `POST /json`: the same question and answer as over gRPC, in protobuf's JSON.

use std::time::Duration;

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderName, HeaderValue, StatusCode},
    response::Response,
};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;

use super::{Doors, proto_json, sentence, typed};
use crate::{
    drain::{Calls, Room},
    grpc::{
        convert,
        proto::envoy::service::ratelimit::v3::{RateLimitResponse, rate_limit_response::Code},
        wire::Question,
    },
};

/// A request with 256 descriptors of long values fits many times over.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// A caller who sends no faster than this allows is not worth the connection.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Of a body that is too long. None of it is kept.
const DISCARDED_BYTES_MAX: usize = 16 << 20;
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);

pub async fn answer(State(doors): State<Doors>, request: Request) -> Response {
    let refuse = |status: StatusCode, reason: &dyn std::fmt::Display| {
        doors.limiter.metrics().service_errors.increment(1);
        sentence(status, reason)
    };
    let body = match read(request).await {
        Ok(body) => body,
        Err((status, reason)) => return refuse(status, &reason),
    };
    let wire = match proto_json::parse(&body) {
        Ok(wire) => wire,
        Err(bad) => return refuse(StatusCode::BAD_REQUEST, &bad),
    };
    let wire = Question::from(&wire);
    let question = match convert::parse(&wire) {
        Ok(question) => question,
        Err(bad) => return refuse(StatusCode::BAD_REQUEST, &bad),
    };
    match doors.limiter.check(&question, None).await {
        Ok(answer) => {
            let asked = doors.presentation.dynamic_metadata.then_some(&wire);
            render(&convert::render(&answer, &doors.presentation, asked))
        }
        // The limiter has counted this one itself.
        Err(unanswered) => sentence(StatusCode::SERVICE_UNAVAILABLE, unanswered),
    }
}

async fn read(request: Request) -> Result<Bytes, (StatusCode, String)> {
    let too_late = |_| {
        let reason = format!("the body did not arrive within {} s", BODY_TIMEOUT.as_secs());
        Err((StatusCode::REQUEST_TIMEOUT, reason))
    };
    tokio::time::timeout(BODY_TIMEOUT, read_body(request)).await.unwrap_or_else(too_late)
}

async fn read_body(mut request: Request) -> Result<Bytes, (StatusCode, String)> {
    let mut room = request.extensions_mut().remove::<Calls>().map(Room::new);
    let mut body = request.into_body();
    let mut read = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| (StatusCode::BAD_REQUEST, format!("the body cannot be read: {error}")))?;
        let data = frame.into_data().unwrap_or_default();
        if read.len() + data.len() > BODY_BYTES_MAX {
            drop((read, room));
            let _ = tokio::time::timeout(DISCARD_TIMEOUT, discard(body)).await;
            let reason = format!("the body is longer than {BODY_BYTES_MAX} bytes");
            return Err((StatusCode::PAYLOAD_TOO_LARGE, reason));
        }
        read.extend_from_slice(&data);
        if !room.as_mut().is_none_or(|room| room.grow(read.len())) {
            let reason = "too many bytes of large requests are waiting for their rest".to_owned();
            return Err((StatusCode::SERVICE_UNAVAILABLE, reason));
        }
    }
    Ok(read.freeze())
}

/// Who is still sending when the connection is closed may never see why: so the rest is read, up to a point, and thrown away.
async fn discard(mut body: Body) {
    let mut discarded = 0;
    while let Some(Ok(frame)) = body.frame().await {
        discarded += frame.data_ref().map_or(0, Bytes::len);
        if discarded > DISCARDED_BYTES_MAX {
            return;
        }
    }
}

fn render(wire: &RateLimitResponse) -> Response {
    let status =
        if wire.overall_code == i32::from(Code::OverLimit) { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
    let mut response = typed(status, "application/json", proto_json::render(wire).to_string());
    // What Envoy would add to its response stands on this one too; a name or value that HTTP cannot carry is left out.
    for header in &wire.response_headers_to_add {
        let name = HeaderName::from_bytes(header.key.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(&header.value)) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}
