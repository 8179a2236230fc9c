//! sluice: a rate-limit service for Envoy, Istio and Envoy Gateway.

pub mod config;
pub mod drain;
pub mod engine;
pub mod explain;
pub mod grpc;
pub mod health;
pub mod http;
pub mod limiter;
pub mod live;
pub mod load_report;
pub mod rfc3339;
pub mod store;
pub mod telemetry;
