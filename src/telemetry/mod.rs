//! What the service says of itself: logs, metrics and traces.

pub mod logs;
pub mod metrics;
mod otlp_http;
pub mod traces;
