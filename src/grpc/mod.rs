//! The gRPC doors: Envoy's question and its answer, and the native API.

pub mod convert;
mod frames;
mod intake;
pub mod limits;
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
#[cfg(test)]
mod tests;
pub mod tls;
pub mod unary;
pub mod validity;
pub mod wire;
