//! The black-box suite: starts the real `sluice` and talks to it as Envoy, curl, Prometheus and an operator do.
//!
//! It knows the wire, the command line and the log line that says where the server listens; nothing of the inside.

#![allow(clippy::float_cmp, reason = "what is counted is whole")]

mod bench;
mod cli;
mod concurrency;
mod conformance;
mod deploy;
mod differential;
mod doors;
mod envoy;
mod harness;
mod hit;
mod metrics;
mod native;
mod reload;
mod servers;
mod store;
mod tidy;
mod traces;
mod transport;
