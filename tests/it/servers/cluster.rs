//! A cluster of three primaries with a replica each.

use std::time::Duration;

use super::{Server, free_port};
use crate::harness::wait_until;

const PRIMARIES: usize = 3;
const SLOTS: usize = 16_384;

pub struct Cluster {
    /// Primaries first, then a replica of each.
    pub servers: Vec<Server>,
}

impl Cluster {
    /// One that is not meant to lose anybody: a machine that stalls for seconds is no reason for a failover.
    #[track_caller]
    pub fn start(binary: &str) -> Self {
        Self::start_with(binary, Duration::from_secs(10))
    }

    /// One whose nodes take a node for lost that was silent for so long.
    #[track_caller]
    pub fn start_with(binary: &str, node_timeout: Duration) -> Self {
        let node_timeout_ms = node_timeout.as_millis().to_string();
        let start = || {
            let bus = free_port().to_string();
            let options = [
                "--cluster-enabled",
                "yes",
                "--cluster-node-timeout",
                &node_timeout_ms,
                "--cluster-port",
                &bus,
                "--cluster-replica-validity-factor",
                "0",
                "--cluster-allow-replica-migration",
                "no",
                // What is lost of one shard is no reason for the others to refuse.
                "--cluster-require-full-coverage",
                "no",
            ];
            (Server::start_as(binary, "in a cluster also: ", &options), bus)
        };
        let started: Vec<(Server, String)> = (0..2 * PRIMARIES).map(|_| start()).collect();
        let (servers, buses): (Vec<Server>, Vec<String>) = started.into_iter().unzip();
        for (index, server) in servers.iter().enumerate() {
            server.run::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
            let (port, bus) = (servers[0].port().to_string(), &buses[0]);
            server.run::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, bus]);
        }
        let cluster = Self { servers };
        for (index, server) in cluster.servers[..PRIMARIES].iter().enumerate() {
            let (first, last) = (index * SLOTS / PRIMARIES, (index + 1) * SLOTS / PRIMARIES - 1);
            server.run::<()>(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
        }
        wait_until("all have met", || {
            cluster
                .servers
                .iter()
                .all(|server| server.cluster_info("cluster_known_nodes") == (2 * PRIMARIES).to_string())
        });
        for (replica, primary) in cluster.servers[PRIMARIES..].iter().zip(&cluster.servers) {
            let id: String = primary.run(&["CLUSTER", "MYID"]);
            wait_until("a replica follows", || replica.try_run::<()>(&["CLUSTER", "REPLICATE", &id]).is_ok());
        }
        wait_until("the cluster is complete", || {
            let is_ok = |server: &Server| server.cluster_info("cluster_state") == "ok";
            let follows =
                |server: &Server| server.run::<String>(&["INFO", "replication"]).contains("master_link_status:up");
            cluster.servers.iter().all(is_ok) && cluster.servers[PRIMARIES..].iter().all(follows)
        });
        cluster
    }

    /// As `REDIS_URL` has it.
    pub fn seeds(&self) -> String {
        self.servers.iter().map(Server::address).collect::<Vec<_>>().join(",")
    }

    /// The first primary's place that had a key's slot at the start.
    pub fn home(&self, key: &str) -> usize {
        let slot: usize = self.servers[0].run(&["CLUSTER", "KEYSLOT", key]);
        slot * PRIMARIES / SLOTS
    }
}

impl Server {
    /// What it says of the cluster.
    pub fn cluster_info(&self, field: &str) -> String {
        let info: String = self.run(&["CLUSTER", "INFO"]);
        let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.unwrap_or_default().trim().to_owned()
    }
}
