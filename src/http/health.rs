//! `/healthcheck` as the reference has it, and `/livez` and `/readyz` as Kubernetes asks for them.

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};

use super::{Doors, plain, sentence};

/// 200 `OK`, or 500 with nothing.
pub async fn healthcheck(State(doors): State<Doors>) -> Response {
    if doors.health.is_serving() { ok() } else { StatusCode::INTERNAL_SERVER_ERROR.into_response() }
}

/// Who can answer is alive.
pub async fn livez() -> Response {
    ok()
}

/// 200 `OK`, or 503 with a sentence on what is missing.
pub async fn readyz(State(doors): State<Doors>) -> Response {
    match doors.health.not_ready() {
        None => ok(),
        Some(reason) => sentence(StatusCode::SERVICE_UNAVAILABLE, reason),
    }
}

fn ok() -> Response {
    plain(StatusCode::OK, "OK".to_owned())
}
