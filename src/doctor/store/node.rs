//! One node, from the dial to its setup. What comes later is not looked at where something before it is broken: one cause, one
//! finding.

use std::{ops::RangeInclusive, time::Duration};

use redis::{Value, cmd};
use tokio::time::timeout;

use super::{
    NODE_MAX, Store,
    canary::Canary,
    care::{Facts, Unseen},
    clock::{self, Reading},
    identity::{Age, Greeting, greet},
    latency::{self, ms},
    permissions::{Permissions, is_about, try_all},
    reach::{self, Connection, Unreached, user_of},
};
use crate::{
    doctor::finding::{Finding, Verdict},
    store::redis::{
        fault::Fault,
        settings::{Address, Topology},
    },
};

/// What a node is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    Primary,
    Replica,
    /// Named by the settings, and by no node: a replica that has not heard from its primary yet, or another name for one that is
    /// known.
    Seed,
}

#[derive(Clone, Debug)]
pub struct Node {
    pub address: Address,
    pub duty: Duty,
    /// Where a key lives that it decides.
    pub slots: RangeInclusive<u16>,
}

#[derive(Debug, Default)]
pub struct Examined {
    pub target: String,
    pub findings: Vec<Finding>,
    pub clock: Option<Reading>,
    pub p99: Option<Duration>,
    /// What it would not say of how it is set up.
    pub unseen: Option<Unseen>,
    /// Those who follow it, where ROLE is granted.
    pub replicas: Vec<Address>,
}

impl Examined {
    fn say(&mut self, verdict: Verdict, check: &'static str, message: impl Into<String>) {
        self.findings.push(Finding::new(verdict, check, &self.target, message));
    }
}

pub async fn examine(store: &Store, node: &Node) -> Examined {
    let mut examined = Examined { target: store.target(&node.address), ..Examined::default() };
    let look = Look { store, node };
    let limit = store.patience() * NODE_MAX;
    match timeout(limit, look.look(&mut examined)).await {
        Ok(Ok(())) => {}
        Ok(Err(fault)) => examined.say(Verdict::Fail, "reach", format!("the conversation ended: {fault}")),
        Err(_) => examined.say(Verdict::Fail, "reach", format!("not done within {limit:?}: it answers too slowly")),
    }
    examined
}

struct Look<'a> {
    store: &'a Store,
    node: &'a Node,
}

impl Look<'_> {
    /// The fault is one that ended the conversation.
    async fn look(&self, examined: &mut Examined) -> Result<(), Fault> {
        let settings = &self.store.settings;
        let dial = reach::dial(self.store, &self.node.address, &settings.auth, settings.database);
        let (dialled, ends_s) = tokio::join!(dial, self.store.certificates(&self.node.address));
        examined.findings.extend(self.store.judge_certificates(&self.node.address, &ends_s, dialled.is_ok()));
        let (mut connection, took) = match dialled {
            Ok(dialled) => dialled,
            Err(unreached) => {
                self.tell_unreached(&unreached, examined).await;
                return Ok(());
            }
        };
        let greeting = match greet(&mut connection).await {
            Ok(greeting) => greeting,
            Err(fault) => {
                self.tell_unreached(&Unreached::by(fault, self.store.patience()), examined).await;
                return Ok(());
            }
        };
        examined.say(Verdict::Ok, "reach", format!("dialled and logged in within {}", ms(took)));
        if !self.judge_greeting(&greeting, examined) {
            return Ok(());
        }
        self.try_script(&mut connection, &greeting, examined).await?;
        if let Some(reading) = clock::read(&mut connection, &examined.target).await.or_else(refused)? {
            examined.findings.push(clock::judge(&reading));
            examined.clock = Some(reading);
        }
        let facts = Facts::ask(&mut connection).await?;
        examined.findings.extend(facts.judge(&examined.target));
        examined.unseen = facts.unseen();
        if let Topology::Sentinel { .. } = settings.topology {
            examined.replicas = replicas(&mut connection).await;
        }
        Ok(())
    }

    /// Without a replica the store works; without a primary it does not.
    async fn tell_unreached(&self, unreached: &Unreached, examined: &mut Examined) {
        if is_about(&unreached.reason, "select") {
            let database = self.store.settings.database;
            let message = format!(
                "user '{}' may not run SELECT, which database {database} takes: grant +select, or use database 0",
                user_of(&self.store.settings.auth)
            );
            examined.say(Verdict::Fail, "acl", message);
            return;
        }
        let auth = (self.store.names.auth, &self.store.settings.auth);
        let reason = reach::explain(self.store, &self.node.address, unreached, auth).await;
        match self.node.duty {
            Duty::Primary => examined.say(Verdict::Fail, "reach", reason),
            Duty::Replica | Duty::Seed => {
                examined.say(Verdict::Warn, "reach", format!("a replica cannot take over: {reason}"));
            }
        }
    }

    /// Whether it is worth going on.
    fn judge_greeting(&self, greeting: &Greeting, examined: &mut Examined) -> bool {
        let identity = match greeting {
            Greeting::Identity(identity) => identity,
            Greeting::Forbidden => {
                examined.say(Verdict::Ok, "version", "it knows HELLO, so that it is Redis 6.0 or newer");
                return true;
            }
            Greeting::Unknown => {
                let what = "upgrade it, or see whether a proxy stands before it";
                let message = format!("it knows no HELLO, so that it is older than Redis 6.0: {what}");
                examined.say(Verdict::Fail, "version", message);
                return true;
            }
        };
        match identity.age() {
            Age::Good(message) => examined.say(Verdict::Ok, "version", message),
            Age::TooOld(message) => examined.say(Verdict::Fail, "version", message),
            Age::Unknown(message) => examined.say(Verdict::Warn, "version", message),
        }
        let kind = self.store.names.kind;
        let mistaken = match (&self.store.settings.topology, &*identity.mode) {
            (_, "sentinel") => Some(format!("it is a sentinel, and no store: set {kind}=SENTINEL")),
            (Topology::Single(_) | Topology::Sentinel { .. }, "cluster") => {
                Some(format!("it is a node of a cluster: set {kind}=CLUSTER"))
            }
            _ => None,
        };
        if let Some(mistaken) = mistaken {
            examined.say(Verdict::Fail, "role", mistaken);
            return false;
        }
        let Some(is_replica) = identity.is_replica else { return true };
        match (self.node.duty, is_replica) {
            (Duty::Primary | Duty::Seed, false) => examined.say(Verdict::Ok, "role", "primary"),
            (Duty::Replica | Duty::Seed, true) => examined.say(Verdict::Ok, "role", "replica"),
            (Duty::Primary, true) => examined.say(Verdict::Fail, "role", self.not_a_primary()),
            (Duty::Replica, false) => {
                examined.say(
                    Verdict::Warn,
                    "role",
                    "known as a replica, but it is a primary: is a failover under way?",
                );
            }
        }
        true
    }

    fn not_a_primary(&self) -> String {
        let names = self.store.names;
        match self.store.settings.topology {
            Topology::Single(_) => format!(
                "it is a replica, which takes no writes: set {} to its primary, or let sentinels find it ({}=SENTINEL)",
                names.url, names.kind
            ),
            Topology::Sentinel { .. } => {
                "the sentinels name it as the primary, but it is a replica: is a failover under way?".to_owned()
            }
            Topology::Cluster(_) => {
                "the cluster names it as a primary, but it is a replica: is a failover under way?".to_owned()
            }
        }
    }

    async fn try_script(
        &self,
        connection: &mut Connection,
        greeting: &Greeting,
        examined: &mut Examined,
    ) -> Result<(), Fault> {
        let settings = &self.store.settings;
        let canary = Canary::new(&settings.key_prefix, &self.node.slots);
        let found = try_all(connection, settings, &canary).await?;
        let is_granted = self.judge_permissions(&found, examined);
        let is_replica = greeting.is_replica().unwrap_or(false);
        match found.script {
            _ if is_replica || !is_granted || self.node.duty != Duty::Primary => {}
            Err(Fault::ReadOnly) => examined.say(Verdict::Fail, "role", self.not_a_primary()),
            Err(fault) => {
                let advice = fault.advice().map_or_else(String::new, |advice| format!(": {advice}"));
                examined.say(Verdict::Fail, "script", format!("it does not decide: {fault}{advice}"));
            }
            Ok(()) => {
                if greeting.is_replica().is_none() {
                    examined.say(Verdict::Ok, "role", "it takes writes, as a primary does");
                }
                examined.say(Verdict::Ok, "script", "it decides a key of the doctor's own");
                let latency = latency::measure(connection, &canary).await?;
                examined.p99 = Some(latency.p99);
                let judged = latency::judge(latency, settings.timeout, self.store.names.timeout, &examined.target);
                examined.findings.push(judged);
            }
        }
        Ok(())
    }

    fn judge_permissions(&self, found: &Permissions, examined: &mut Examined) -> bool {
        let user = user_of(&self.store.settings.auth);
        if !found.missing.is_empty() {
            let commands = found.missing.iter().map(|grant| grant.trim_start_matches('+').replace('|', " "));
            let commands = commands.collect::<Vec<_>>().join(", ").to_ascii_uppercase();
            let missing = found.missing.join(" ");
            examined.say(Verdict::Fail, "acl", format!("user '{user}' may not run {commands}: grant {missing}"));
        }
        if found.keys_are_missing {
            let prefix = &self.store.settings.key_prefix;
            let keys = format!("keys that begin with CACHE_KEY_PREFIX, '{prefix}'");
            examined.say(Verdict::Fail, "acl", format!("user '{user}' may not use {keys}: grant ~{prefix}*"));
        }
        let is_granted = found.missing.is_empty() && !found.keys_are_missing;
        if is_granted {
            examined.say(Verdict::Ok, "acl", format!("user '{user}' may do all that sluice needs"));
        }
        is_granted
    }
}

/// What is refused is told elsewhere.
fn refused(fault: Fault) -> Result<Option<Reading>, Fault> {
    if matches!(fault, Fault::Timeout | Fault::Broken(_)) { Err(fault) } else { Ok(None) }
}

/// Those whom a primary calls its replicas.
async fn replicas(connection: &mut Connection) -> Vec<Address> {
    let Ok(Value::Array(fields)) = reach::ask(connection, &cmd("ROLE")).await else { return Vec::new() };
    let Some(Value::Array(rows)) = fields.into_iter().nth(2) else { return Vec::new() };
    let address = |row: Value| {
        let (host, port, _): (String, u16, String) = redis::from_redis_value(row).ok()?;
        Some(Address::Tcp { host, port })
    };
    rows.into_iter().filter_map(address).collect()
}
