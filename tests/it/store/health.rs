//! Whether requests are wanted while the store is away: by setting. That the process lives: always.

use tonic_health::pb::health_check_response::ServingStatus;

use super::Stage;
use crate::{
    harness::{Server as Sluice, grpc, wait_until},
    servers::{REDIS, Server},
    store::faults::RULES,
};

fn is_ready(sluice: &Sluice) -> bool {
    let ready = sluice.get("/readyz").status == 200;
    let serving = grpc::health(sluice.grpc(), "").unwrap() == ServingStatus::Serving;
    ready && serving
}

#[test]
fn readiness_follows_the_store_where_it_is_told_to() {
    let mut stage = Stage::Single(Server::start(REDIS));
    let follows = stage.sluice(RULES, &[("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true")]);
    let ignores = stage.sluice(RULES, &[]);
    wait_until("both are ready", || is_ready(&follows) && is_ready(&ignores));
    let Stage::Single(server) = &mut stage else { unreachable!("it was made so") };
    server.kill();
    // Nobody asks anything: it has to be noticed all the same.
    wait_until("it is not ready", || follows.get("/readyz").status == 503);
    wait_until("gRPC says so too", || grpc::health(follows.grpc(), "").unwrap() == ServingStatus::NotServing);
    wait_until("the other knows it", || ignores.metric("sluice_store_up") == 0.0);
    assert!(is_ready(&ignores));
    for sluice in [&follows, &ignores] {
        assert_eq!(sluice.get("/livez").status, 200);
    }
    server.restart();
    wait_until("it is ready again", || is_ready(&follows));
    stage.assert_clean();
}
