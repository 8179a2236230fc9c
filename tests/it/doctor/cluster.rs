//! Clusters.

use std::time::Duration;

use super::{Seen, doctor};
use crate::{
    harness::wait_until,
    servers::{AUTH, Cluster, REDIS, Server, VALKEY, alone},
};

fn doctor_in(cluster: &Cluster) -> Seen {
    doctor(&[("REDIS_TYPE", "CLUSTER"), ("REDIS_URL", &cluster.seeds()), ("REDIS_AUTH", AUTH)])
}

#[test]
fn every_node_and_every_slot_is_looked_at() {
    let _alone = alone();
    let cluster = Cluster::start(VALKEY);
    let seen = doctor_in(&cluster);
    assert_eq!(seen.code, Some(0), "{seen}");
    seen.finds("slots", &["all 16384 are served"]);
    for (place, server) in cluster.servers.iter().enumerate() {
        let role = if place < 3 { "primary" } else { "replica" };
        seen.finds("role", &[&server.address(), role]);
        seen.finds("acl", &[&server.address()]);
        assert_eq!(seen.has("ok", "script", &[&server.address()]), place < 3, "{seen}");
        assert!(server.keys().iter().all(|(_, left)| *left != -1));
    }

    // Each of the permissions that are for this topology only, on a node that is no seed.
    let node = &cluster.servers[1];
    for command in ["+cluster|slots", "+asking"] {
        node.run::<()>(&["ACL", "SETUSER", "sluice", &command.replacen('+', "-", 1)]);
        doctor_in(&cluster).fails("acl", &[&node.address(), &format!("grant {command}\"")]);
        node.run::<()>(&["ACL", "SETUSER", "sluice", command]);
    }

    node.run::<()>(&["ACL", "SETUSER", "sluice", "+info", "+config|get"]);
    node.run::<()>(&["CONFIG", "SET", "cluster-require-full-coverage", "yes"]);
    doctor_in(&cluster).warns("coverage", &[&node.address(), "cluster-require-full-coverage yes"]);
}

#[test]
fn slots_that_nobody_serves_and_nodes_that_are_down_are_named() {
    let _alone = alone();
    let mut cluster = Cluster::start_with(REDIS, Duration::from_secs(5));
    // One that was told already may hear of them again from one that was not.
    let forgets = |server: &Server| {
        let _ = server.try_run::<()>(&["CLUSTER", "DELSLOTS", "7", "8"]);
        server.cluster_info("cluster_slots_assigned") == "16382"
    };
    wait_until("nobody knows of two slots", || cluster.servers.iter().filter(|server| !forgets(server)).count() == 0);
    doctor_in(&cluster).fails("slots", &["2 of 16384 are served by nobody (7-8)", "redis-cli --cluster fix"]);

    // A shard as a whole: its primary, which the others go on naming, and then its replica.
    let address = cluster.servers[1].address();
    cluster.servers[4].kill();
    cluster.servers[1].kill();
    wait_until("the others have noticed", || {
        cluster.servers[0].run::<String>(&["CLUSTER", "NODES"]).matches("fail").count() >= 2
    });
    doctor_in(&cluster).fails("reach", &[&address, "nothing listens there"]);
}
