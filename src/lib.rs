//! sluice: a rate-limit service for Envoy, Istio and Envoy Gateway.

pub mod engine;
pub mod live;
pub mod store;
