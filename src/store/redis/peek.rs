//! Looks at one counter without deciding anything: for whoever wants to know how it stands. Rare, and never on the path of a
//! decision.

use std::time::Duration;

use redis::Value;
use tokio::time::{Instant, timeout_at};

use super::{
    Backend, RedisStore, connect,
    fault::Fault,
    parts::is_per_second,
    state::{self, EXACT_MAX},
    topology::Nodes,
};
use crate::{
    engine::{algorithm::State, key, quota::Quota},
    store::{Standing, StoreFailure},
};

/// A connection of its own may have to be opened first.
const TAKES_AT_MOST: Duration = Duration::from_secs(1);

impl RedisStore {
    /// How a counter stands, by the clock of the node that has it.
    pub async fn peek(&self, key: &str, quota: &Quota, budget: Option<Duration>) -> Result<Standing, StoreFailure> {
        let backend = match &self.per_second {
            Some(per_second) if is_per_second(quota) => per_second,
            _ => &self.main,
        };
        let deadline = Instant::now() + budget.map_or(TAKES_AT_MOST, |budget| budget.min(TAKES_AT_MOST));
        let read = timeout_at(deadline, read(backend, key)).await.unwrap_or(Err(Fault::Timeout.into()));
        let (now_us, bytes) = read.map_err(|unread| match unread {
            Unread::Fault(fault) => fault.failure(),
            Unread::NotAString => StoreFailure::BadTypes,
        })?;
        let remembered = bytes.map(|bytes| state::decode(&bytes)).transpose();
        let remembered: Option<State> = remembered.map_err(|_| StoreFailure::BadResponse)?;
        Ok(Standing::new(remembered, quota, now_us))
    }
}

type Read = Result<(u64, Option<Vec<u8>>), Unread>;

/// Why it could not be looked at.
enum Unread {
    Fault(Fault),
    /// The key is not ours.
    NotAString,
}

impl From<Fault> for Unread {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

async fn read(backend: &Backend, key: &str) -> Read {
    let node = backend.nodes.of(key::slot(key)).ok_or(Fault::NotAsked)?;
    let first = read_at(&node, key).await;
    match (&first, &backend.nodes) {
        (Err(Unread::Fault(Fault::Moved { address })), Nodes::Cluster(cluster)) => match cluster.named(address) {
            Some(node) => {
                // One that was never heard of before may need a moment.
                node.vitals.breaker.until_known().await;
                read_at(&node, key).await
            }
            None => first,
        },
        _ => first,
    }
}

/// The time first, so that a state is never ahead of it.
async fn read_at(node: &super::node::Node, key: &str) -> Read {
    if !node.vitals.breaker.is_passing() {
        return Err(Fault::NotAsked.into());
    }
    let link = node.pool.get().await.map_err(|error| Fault::Broken(error.to_string()))?;
    let mut connection = link.connection.clone();
    let fault = |error| Unread::Fault(Fault::of(&error));
    let time = connect::send(&mut connection, &redis::cmd("TIME")).await.map_err(fault)?;
    let state = match connect::send(&mut connection, redis::cmd("GET").arg(key)).await {
        Err(error) if error.code() == Some("WRONGTYPE") => return Err(Unread::NotAString),
        state => state.map_err(fault)?,
    };
    let (seconds, us): (u64, u64) = redis::from_redis_value(time).map_err(bad)?;
    let state = match state {
        Value::Nil => None,
        value => Some(redis::from_redis_value::<Vec<u8>>(value).map_err(bad)?),
    };
    let now_us = seconds.checked_mul(1_000_000).and_then(|whole| whole.checked_add(us)).filter(|us| *us < EXACT_MAX);
    Ok((now_us.ok_or_else(|| bad("a time that no clock shows"))?, state))
}

fn bad(error: impl std::fmt::Display) -> Unread {
    Unread::Fault(Fault::BadResponse(error.to_string()))
}
