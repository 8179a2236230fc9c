//! Stores behind sentinels.

use super::{Seen, doctor};
use crate::servers::{AUTH, REDIS, Sentinels, VALKEY, alone};

fn doctor_behind(url: &str) -> Seen {
    doctor(&[("REDIS_TYPE", "SENTINEL"), ("REDIS_URL", url), ("REDIS_AUTH", AUTH), ("REDIS_SENTINEL_AUTH", AUTH)])
}

#[test]
fn the_sentinels_the_primary_and_its_replica_are_looked_at() {
    let _alone = alone();
    let sentinels = Sentinels::start(VALKEY);
    // The first sentinel of the URL is not there.
    let url = sentinels.url();
    let down = url.split(',').nth(1).unwrap();
    let (primary, replica) = (sentinels.servers[0].address(), sentinels.servers[1].address());
    let seen = doctor_behind(&url);
    seen.warns("sentinel", &[down, "nothing listens there"]);
    seen.finds("sentinel", &[&format!("names {primary} as the primary of 'mymaster'")]);
    seen.finds("role", &[&primary, "primary"]);
    seen.finds("script", &[&primary]);
    seen.finds("role", &[&replica, "replica"]);
    seen.finds("acl", &[&replica]);
    seen.finds("clock", &["all nodes", "agree"]);
    sentinels.servers.iter().for_each(|server| assert!(server.keys().iter().all(|(_, left)| *left != -1)));

    // Each of the permissions that are for this topology only.
    sentinels.servers[0].run::<()>(&["ACL", "SETUSER", "sluice", "-role"]);
    doctor_behind(&url).fails("acl", &[&primary, "grant +role"]);
    sentinels.servers[0].run::<()>(&["ACL", "SETUSER", "sluice", "+role"]);
    sentinels.servers[1].run::<()>(&["ACL", "SETUSER", "sluice", "-eval"]);
    doctor_behind(&url).fails("acl", &[&replica, "grant +eval"]);
    sentinels.servers[1].run::<()>(&["ACL", "SETUSER", "sluice", "+eval"]);

    sentinels.servers[1].pause();
    doctor_behind(&url).warns("reach", &[&replica, "cannot take over", "no answer within"]);
}

#[test]
fn what_sentinels_do_not_know_or_do_not_tell_is_named() {
    let _alone = alone();
    let sentinels = Sentinels::start(REDIS);
    let url = sentinels.url();
    let seen = doctor_behind(&url.replacen("mymaster", "somebody", 1));
    seen.fails("sentinel", &["knows no master 'somebody'", "REDIS_URL"]);

    let env = [("REDIS_TYPE", "SENTINEL"), ("REDIS_URL", &*url), ("REDIS_AUTH", AUTH)];
    let seen = doctor(&[&env[..], &[("REDIS_SENTINEL_AUTH", "sluice:wrong")]].concat());
    seen.fails("sentinel", &["login as 'sluice' was refused", "REDIS_SENTINEL_AUTH"]);

    let sentinel = url.rsplit(',').next().unwrap();
    sentinels.forbid("sentinel|replicas");
    let seen = doctor_behind(&format!("mymaster,{sentinel}"));
    seen.warns("sentinel", &[sentinel, "SENTINEL REPLICAS", "grant +sentinel|replicas"]);
    sentinels.forbid("sentinel|get-master-addr-by-name");
    let seen = doctor_behind(&format!("mymaster,{sentinel}"));
    seen.fails("sentinel", &[sentinel, "+sentinel|get-master-addr-by-name"]);
}
