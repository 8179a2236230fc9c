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

use process::{Envoy, deployed, port};

use crate::harness::{Server, server::Builder};

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
        Self { envoy, sluice }
    }

    /// The status of every answer to the same request, asked this many times.
    fn statuses(&self, times: usize, path: &str, headers: &[(&str, &str)]) -> Vec<u16> {
        (0..times).map(|_| self.envoy.get(path, headers).status).collect()
    }
}

/// So many answers of 200, then so many of 429.
fn then_refused(allowed: usize, refused: usize) -> Vec<u16> {
    [vec![200; allowed], vec![429; refused]].concat()
}
