//! A real Envoy asks a real sluice: the bootstraps and rules of `deploy/envoy/`, as they stand there but for ports, paths and,
//! because a test machine may stall, how long Envoy waits.

mod answers;
mod changes;
mod costs;
mod faults;
mod limits;
#[allow(dead_code, reason = "shared with tests/faults, which uses the rest")]
mod process;
mod transports;

use std::time::{SystemTime, UNIX_EPOCH};

use process::{Envoy, deployed, port};

use crate::harness::{Server, server::Builder, wait_until};

/// An Envoy and the sluice that it asks.
struct Edge {
    envoy: Envoy,
    sluice: Server,
}

impl Edge {
    /// With the rules that go with the bootstrap.
    fn start() -> Self {
        Self::with(Server::builder().file("rules.yaml", &deployed("rules.yaml")))
    }

    fn with(sluice: Builder) -> Self {
        let sluice = sluice.start();
        let envoy = Envoy::asking(&sluice).start();
        wait_for_room_in_the_hour();
        Self { envoy, sluice }
    }

    /// The status of every answer to the same request, asked this many times.
    fn statuses(&self, times: usize, path: &str, headers: &[(&str, &str)]) -> Vec<u16> {
        (0..times).map(|_| self.envoy.get(path, headers).status).collect()
    }
}

/// The rules count by the hour: what is counted must not begin anew in the middle of a test.
fn wait_for_room_in_the_hour() {
    const HOUR_S: u64 = 3_600;
    const ROOM_S: u64 = 10;
    let now_s = || SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_secs();
    wait_until("there is room in the hour", || HOUR_S - now_s() % HOUR_S > ROOM_S);
}

/// So many answers of 200, then so many of 429.
fn then_refused(allowed: usize, refused: usize) -> Vec<u16> {
    [vec![200; allowed], vec![429; refused]].concat()
}
