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
mod doctor;
mod doors;
mod envoy;
#[allow(dead_code, reason = "shared with tests/faults, which uses the rest")]
mod floods;
mod framing;
#[allow(dead_code, reason = "shared with tests/faults, which uses the rest")]
mod harness;
mod hit;
mod logs;
mod metrics;
mod native;
mod reload;
mod secrets;
#[allow(dead_code, unused_imports, reason = "shared with tests/faults, which uses the rest")]
mod servers;
mod store;
mod tidy;
mod traces;
mod transport;
