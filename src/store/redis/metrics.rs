//! What is counted of the calls to a store.

use metrics::{Counter, Histogram};

#[derive(Clone, Debug)]
pub struct StoreMetrics {
    pub call_duration: Histogram,
    pub breaker_trips: Counter,
}
