//! What our user may do on a node, found out by doing it: every command that sluice ever sends there, once.
//!
//! `ACL DRYRUN` would tell the same, but not on Redis 6, and not to the user that the README describes, who may not run it: the
//! attempt would stand in the server's `ACL LOG` and bring nothing. A server looks at permissions before anything else, so that
//! replicas and nodes that refuse writes answer the question as well.

use redis::{Cmd, cmd};

use super::{
    canary::Canary,
    reach::{Connection, ask_all},
};
use crate::store::redis::{
    fault::Fault,
    script,
    settings::{RedisSettings, Topology},
};

#[derive(Debug)]
pub struct Permissions {
    /// As the ACL would grant them.
    pub missing: Vec<&'static str>,
    /// Keys of ours are refused.
    pub keys_are_missing: bool,
    /// What came of the script, as the service calls it.
    pub script: Result<(), Fault>,
}

/// The fault is one that ended the conversation.
pub async fn try_all(
    connection: &mut Connection,
    settings: &RedisSettings,
    canary: &Canary,
) -> Result<Permissions, Fault> {
    let mut found = Permissions { missing: Vec::new(), keys_are_missing: false, script: Err(Fault::NoScript) };
    let commands = commands(settings, canary);
    let results = ask_all(connection, commands.iter().map(|(.., command)| command)).await;
    for ((grant, name, _), result) in commands.into_iter().zip(results) {
        if let Err(fault @ (Fault::Timeout | Fault::Broken(_))) = result {
            return Err(fault);
        }
        if let Err(Fault::Denied(text)) = &result {
            if is_about(text, name) {
                found.missing.push(grant);
            } else if text.contains("key") {
                found.keys_are_missing = true;
            }
        }
        // By its text it is asked for only where the name is not known.
        let is_script = name == "evalsha" || name == "eval" && found.script == Err(Fault::NoScript);
        if is_script {
            found.script = result.and_then(|reply| canary.is_decided(&reply));
        }
    }
    Ok(found)
}

/// What is needed on a node of this topology: the grant, the name by which a refusal calls it, the command.
fn commands(settings: &RedisSettings, canary: &Canary) -> Vec<(&'static str, &'static str, Cmd)> {
    let with = |name: &str, argument: &str| {
        let mut command = cmd(name);
        command.arg(argument);
        command
    };
    let mut load = with("SCRIPT", "LOAD");
    load.arg(script::SCRIPT);
    let mut all = vec![
        ("+ping", "ping", cmd("PING")),
        ("+time", "time", cmd("TIME")),
        ("+get", "get", canary.get()),
        ("+mget", "mget", canary.mget()),
        ("+set", "set", canary.set()),
        ("+script|load", "script", load),
        ("+evalsha", "evalsha", canary.evalsha()),
        ("+eval", "eval", canary.eval()),
    ];
    match settings.topology {
        Topology::Single(_) => {}
        Topology::Sentinel { .. } => all.push(("+role", "role", cmd("ROLE"))),
        Topology::Cluster(_) => {
            all.push(("+cluster|slots", "cluster", with("CLUSTER", "SLOTS")));
            all.push(("+asking", "asking", cmd("ASKING")));
        }
    }
    all
}

/// Whether a refusal is about this command, and not about one that a script runs: releases say `'get' command` or
/// `'script|load' command`.
pub fn is_about(text: &str, name: &str) -> bool {
    text.contains(&format!("'{name}'")) || text.contains(&format!("'{name}|"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_its_command() {
        let redis_6 = "NOPERM this user has no permissions to run the 'script' command or its subcommand";
        let redis_7 = "NOPERM this user has no permissions to run the 'script|load' command";
        assert!(is_about(redis_6, "script") && is_about(redis_7, "script"));
        assert!(!is_about("ERR The user executing the script can't run this command or subcommand script: 1a", "eval"));
        assert!(!is_about("NOPERM this user has no permissions to run the 'evalsha' command", "eval"));
    }
}
