//! The law: what a request may do, decided from rules, counters and a time.
//!
//! Pure. Nothing in here does I/O, waits, logs, reads a clock or the environment, uses a float or a global, or knows how a
//! request arrived or where a counter is kept. `find`, `decide` and `conclude` cannot fail; only constructors can.

pub mod algorithm;
pub mod glob;
pub mod key;
pub mod period;
pub mod plan;
pub mod quota;
pub mod request;
pub mod rule;
#[doc(hidden)]
pub mod scenarios;
pub mod tree;
pub mod verdict;
