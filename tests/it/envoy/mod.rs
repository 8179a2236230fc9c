//! A real Envoy asks a real sluice: the bootstraps and rules of `deploy/envoy/`, as they stand there but for ports, paths and,
//! because a test machine may stall, how long Envoy waits.

mod answers;
mod changes;
mod costs;
mod faults;
mod limits;
mod process;
mod transports;
mod upstream;

use std::{fs, path::Path};

use process::Envoy;

use crate::harness::{Server, server::Builder};

/// A file of `deploy/envoy/`.
fn deployed(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/envoy").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn port(address: &str) -> u16 {
    address.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap_or_else(|| panic!("no port in {address}"))
}

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
