//! Getting in, and what one may do there.

use super::{doctor, doctor_of};
use crate::servers::{AUTH, REDIS, Server, VALKEY, documented_acl};

#[test]
fn a_wrong_password_and_an_unknown_user_are_named() {
    let server = Server::start(REDIS);
    let seen = doctor(&[("REDIS_URL", &server.address()), ("REDIS_AUTH", "sluice:wrong")]);
    seen.fails("reach", &[&server.address(), "login as 'sluice' was refused", "password is wrong", "REDIS_AUTH"]);
    let seen = doctor(&[("REDIS_URL", &server.address()), ("REDIS_AUTH", "nobody:open")]);
    seen.fails("reach", &["login as 'nobody' was refused", "no such user", "REDIS_AUTH"]);
}

#[test]
fn a_password_that_is_missing_is_named() {
    let server = Server::start_with(REDIS, &["--requirepass", "other"]);
    doctor(&[("REDIS_URL", &server.address())]).fails("reach", &["NOAUTH", "REDIS_AUTH"]);
}

#[test]
fn a_password_file_that_cannot_be_read_is_a_wrong_setting() {
    let seen = doctor(&[("REDIS_URL", "127.0.0.1:1"), ("REDIS_AUTH_FILE", "/nowhere/password")]);
    assert_eq!(seen.code, Some(2), "{seen}");
    assert!(seen.stderr.contains("/nowhere/password"), "{seen}");
}

#[test]
fn every_documented_command_is_named_when_it_is_missing() {
    for binary in [REDIS, VALKEY] {
        let server = Server::start(binary);
        let commands = documented_acl("user sluice ").into_iter().filter(|word| word.starts_with('+'));
        for command in commands {
            server.run::<()>(&["ACL", "SETUSER", "sluice", &command.replacen('+', "-", 1)]);
            let seen = doctor_of(&server.address(), &[]);
            let name = command.trim_start_matches('+').replace('|', " ").to_uppercase();
            seen.fails("acl", &[&server.address(), &format!("'sluice' may not run {name}: grant {command}\"")]);
            assert_eq!(seen.failures(), 1, "one cause, one failure: {seen}");
            server.run::<()>(&["ACL", "SETUSER", "sluice", &command]);
        }
        assert_eq!(doctor_of(&server.address(), &[]).code, Some(0));
    }
}

#[test]
fn several_missing_commands_are_named_together() {
    let server = Server::start(REDIS);
    server.run::<()>(&["ACL", "SETUSER", "sluice", "-set", "-script|load"]);
    doctor_of(&server.address(), &[]).fails("acl", &["grant +set +script|load"]);
}

#[test]
fn a_replica_without_a_permission_is_found_before_a_failover_does() {
    let primary = Server::start(REDIS);
    let replica = Server::start_with(REDIS, &["--replicaof", "127.0.0.1", &primary.port().to_string()]);
    replica.run::<()>(&["ACL", "SETUSER", "sluice", "-set"]);
    doctor_of(&replica.address(), &[]).fails("acl", &["grant +set"]);
}

#[test]
fn a_database_that_may_not_be_chosen_is_named() {
    let server = Server::start(REDIS);
    let url = format!("redis://{AUTH}@{}/3", server.address());
    doctor(&[("REDIS_URL", &url)]).fails("acl", &["database 3", "+select"]);
}

#[test]
fn keys_that_may_not_be_used_are_named() {
    let server = Server::start(REDIS);
    server.run::<()>(&["ACL", "SETUSER", "sluice", "resetkeys", "~app:*"]);
    doctor_of(&server.address(), &[]).fails("acl", &["CACHE_KEY_PREFIX", "grant ~*"]);
    doctor_of(&server.address(), &[("CACHE_KEY_PREFIX", "web:")]).fails("acl", &["grant ~web:*"]);
    assert_eq!(doctor_of(&server.address(), &[("CACHE_KEY_PREFIX", "app:")]).code, Some(0));
}
