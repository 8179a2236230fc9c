//! `POST /json`: the same question and answer as over gRPC, in protobuf's JSON.

use std::time::Duration;

use axum::{
    extract::{FromRequest as _, Request, State},
    http::{HeaderName, HeaderValue, StatusCode},
    response::Response,
};
use bytes::Bytes;

use super::{Doors, proto_json, sentence, typed};
use crate::grpc::{
    convert,
    proto::envoy::service::ratelimit::v3::{RateLimitResponse, rate_limit_response::Code},
};

/// A request with 256 descriptors of long values fits many times over.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// A caller who sends no faster than this allows is not worth the connection.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

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
    let question = match convert::parse(&wire) {
        Ok(question) => question,
        Err(bad) => return refuse(StatusCode::BAD_REQUEST, &bad),
    };
    match doors.limiter.check(&question, None).await {
        Ok(answer) => render(&convert::render(&wire, &answer, &doors.presentation)),
        // The limiter has counted this one itself.
        Err(unanswered) => sentence(StatusCode::SERVICE_UNAVAILABLE, unanswered),
    }
}

async fn read(request: Request) -> Result<Bytes, (StatusCode, String)> {
    match tokio::time::timeout(BODY_TIMEOUT, Bytes::from_request(request, &())).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(rejection)) if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            Err((rejection.status(), format!("the body is longer than {BODY_BYTES_MAX} bytes")))
        }
        Ok(Err(rejection)) => Err((rejection.status(), format!("the body cannot be read: {rejection}"))),
        Err(_) => {
            let reason = format!("the body did not arrive within {} s", BODY_TIMEOUT.as_secs());
            Err((StatusCode::REQUEST_TIMEOUT, reason))
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
