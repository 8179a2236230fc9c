//! sluice: a rate-limit service for Envoy, Istio and Envoy Gateway.
//!
//! # The rooms
//!
//! Dependencies point down only.
//!
//! ```text
//! main -> cli -> { app, doctor } -> { grpc, http, config, telemetry } -> limiter -> { engine, store, live }
//! store -> engine          config -> engine          engine -> nothing
//! ```
//!
//! | room | what is in it |
//! |---|---|
//! | [`engine`] | the law, pure: rules, keys, algorithms, `decide`. Read `plan.rs`, `algorithm/mod.rs` and `verdict.rs` first |
//! | [`limiter`] | the use case: request, plan, store, answer; what happens when the store cannot decide |
//! | [`store`] | where counters are kept: this process, or Redis and Valkey, with breaker and remembered refusals |
//! | [`config`] | settings of the process; rules from text to [`engine::tree::RuleSet`], with every mistake in its place; reload |
//! | [`grpc`], [`http`] | the doors: Envoy's question, the native API, `/json`, health, metrics, debug |
//! | [`doctor`] | what is broken in a deployment: looks through the same loader, dialler and script as the service |
//! | [`explain`] | which rules a request meets, and why |
//! | [`telemetry`] | logs, and every metric in one table |
//! | [`app`], [`cli`] | putting it together; the command line |
//! | [`connections`], [`drain`] | what every door bounds: connections, and the calls on them |
//! | [`live`], [`health`], [`load_report`], [`panics`], [`printable`], [`rfc3339`] | small things that several rooms share |
//!
//! `lua/` is how counters move, once more, for Redis. `tests/it` talks to the program from outside; a differential test holds engine and
//! Lua to each other.
//!
//! # The path of a request
//!
//! ```text
//! Envoy -> grpc/service.rs      convert::parse       wire -> Request               bad input ends here
//!          limiter.rs::check    rules.plan()         Request x RuleSet -> Plan     pure
//!                               store.decide()       Plan -> decisions             the one await
//!                               plan.conclude()      -> Verdict                    pure
//!          convert::render      Verdict -> wire
//! ```
//!
//! # The path of a reload
//!
//! ```text
//! file event, poll or SIGHUP -> config/reload.rs -> yaml -> read -> compile -> RuleSet -> publish: one pointer store
//! ```
//!
//! # What is always so
//!
//! * The engine does no I/O, reads no clock, waits for nothing, and has no float and no global. Time is an argument.
//! * No request waits for a reload, and none sees half of one. A bad set of rules never replaces a good one.
//! * No lock and no rules are held across the one await.
//! * A request is decided by one call to the store, all or nothing; one per slot where a domain is partitioned in a cluster.
//! * No caller waits for a sick store longer than its own deadline.
//! * Keys are made in `engine/key.rs` and nowhere else. No byte of a caller can choose a cluster slot.
//! * The environment is read in `config/settings` and nowhere else. Secrets are never shown.
//! * A panic ends one call, which is answered by the failure policy, or one piece of work, which begins again.
//! * Whatever comes from outside and is shown to people is [`printable`]: one line stays one line.
//!
//! # Which error where
//!
//! [`engine::quota::InvalidQuota`] says why numbers are refused; [`config::Diagnostic`] where in a file. [`grpc::convert::BadRequest`]
//! is the caller's fault, [`limiter::CheckError`] ours. [`store::StoreFailure`] is why a check could not be decided; what follows
//! from it is the rule's `on_store_failure`. `anyhow` is for `cli` and `app` only.

pub mod app;
pub mod bench;
pub mod cli;
pub mod config;
pub mod connections;
pub mod doctor;
pub mod drain;
pub mod engine;
pub mod explain;
pub mod grpc;
pub mod health;
pub mod http;
pub mod limiter;
pub mod live;
pub mod load_report;
pub mod panics;
pub mod printable;
pub mod rfc3339;
pub mod store;
pub mod telemetry;
