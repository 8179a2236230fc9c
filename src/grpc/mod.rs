//! The gRPC doors: Envoy's question and its answer, and the native API.

pub mod convert;
pub mod listen;
pub mod native;
mod opening;
#[cfg(feature = "bench")]
pub mod per_core;
pub mod proto;
pub mod server;
pub mod service;
pub mod services;
pub mod streams;
pub mod tls;
mod validity;
