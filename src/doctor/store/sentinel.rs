//! A store behind sentinels: each of them, the primary that they name, and the replicas that it and they name.

use std::collections::HashMap;

use futures_util::future::join_all;
use redis::Value;

use super::{
    Store, examine_nodes,
    node::{self, Duty, Node},
    permissions::is_about,
    reach::{self, Unreached},
};
use crate::{
    doctor::finding::{Finding, Verdict},
    store::redis::{
        canary::ANY_SLOT,
        fault::Fault,
        settings::{Address, Auth},
    },
};

/// What the service asks a sentinel.
const QUESTIONS: [&str; 2] = ["get-master-addr-by-name", "replicas"];

pub async fn examine(store: &Store, master: &str, sentinels: &[Address]) -> (Vec<Finding>, Vec<node::Examined>) {
    let (told, certificates) = tokio::join!(
        join_all(sentinels.iter().map(|sentinel| ask(store, master, sentinel))),
        join_all(sentinels.iter().map(|sentinel| store.certificates(sentinel))),
    );
    let judged = sentinels.iter().zip(&told).zip(&certificates);
    let certificates: Vec<Finding> = judged
        .flat_map(|((sentinel, told), ends_s)| store.judge_certificates(sentinel, ends_s, told.is_ok()))
        .collect();
    let mut primaries: Vec<Address> = Vec::new();
    for Told { primary, .. } in told.iter().flatten() {
        if !primaries.contains(primary) {
            primaries.push(primary.clone());
        }
    }
    let known: Vec<Address> = told.iter().flatten().flat_map(|told| told.replicas.clone()).collect();
    // As long as one of them knows, the store is found.
    let verdict = if primaries.is_empty() { Verdict::Fail } else { Verdict::Warn };
    let mut findings: Vec<Finding> = sentinels
        .iter()
        .zip(told)
        .map(|(sentinel, told)| {
            let target = store.target(sentinel);
            match told {
                Ok(told) if told.hides_replicas => {
                    let reason = forbidden(&store.settings.sentinel_auth, QUESTIONS[1]);
                    Finding::warn("sentinel", &target, format!("a failover is noticed late: {reason}"))
                }
                Ok(Told { primary, .. }) => {
                    Finding::ok("sentinel", &target, format!("it names {primary} as the primary of '{master}'"))
                }
                Err(reason) => Finding::new(verdict, "sentinel", &target, reason),
            }
        })
        .collect();
    findings.extend(certificates);
    if primaries.len() > 1 {
        let named: Vec<String> = primaries.iter().map(ToString::to_string).collect();
        let what = "is a failover under way, or are these sentinels of two different groups?";
        let message = format!("the sentinels name different primaries, {}: {what}", named.join(" and "));
        findings.push(Finding::fail("sentinel", &store.target(&master), message));
    }
    let node = |address: Address, duty| Node { address, duty, slots: ANY_SLOT };
    let primaries: Vec<Node> = primaries.into_iter().map(|address| node(address, Duty::Primary)).collect();
    let mut nodes = examine_nodes(store, &primaries).await;
    let mut replicas: Vec<Node> = Vec::new();
    for address in nodes.iter().flat_map(|primary| &primary.replicas).chain(&known) {
        if replicas.iter().chain(&primaries).all(|known| known.address != *address) {
            replicas.push(node(address.clone(), Duty::Replica));
        }
    }
    nodes.extend(examine_nodes(store, &replicas).await);
    (findings, nodes)
}

/// What a sentinel knows.
struct Told {
    primary: Address,
    replicas: Vec<Address>,
    /// It may not be asked for replicas.
    hides_replicas: bool,
}

/// Whom a sentinel names, or what keeps it from that.
async fn ask(store: &Store, master: &str, sentinel: &Address) -> Result<Told, String> {
    let auth = (store.names.sentinel_auth, &store.settings.sentinel_auth);
    let (mut connection, _) = match reach::dial(store, sentinel, auth.1, 0).await {
        Ok(dialled) => dialled,
        Err(unreached) => return Err(reach::explain(store, sentinel, &unreached, auth).await),
    };
    let about = |question: &str| {
        let mut ask = redis::cmd("SENTINEL");
        ask.arg(question).arg(master);
        ask
    };
    let primary = match reach::ask(&mut connection, &about(QUESTIONS[0])).await {
        Ok(reply) => redis::from_redis_value::<Option<(String, u16)>>(reply).unwrap_or(None),
        Err(Fault::Denied(text)) if is_about(&text, "sentinel") => return Err(forbidden(auth.1, QUESTIONS[0])),
        Err(Fault::Other(text)) if text.contains("unknown command") => {
            return Err(format!(
                "it is no sentinel: {} takes the master's name and then the sentinels",
                store.names.url
            ));
        }
        Err(fault) => return Err(reach::explain(store, sentinel, &Unreached::by(fault, store.patience()), auth).await),
    };
    let Some((host, port)) = primary else {
        let names = format!("the first name in {} is the master's", store.names.url);
        return Err(format!("this sentinel knows no master '{master}': {names}"));
    };
    let replicas = reach::ask(&mut connection, &about(QUESTIONS[1])).await;
    let hides_replicas = matches!(&replicas, Err(Fault::Denied(_)));
    let replicas = replicas.map_or_else(|_| Vec::new(), addresses);
    Ok(Told { primary: Address::Tcp { host, port }, replicas, hides_replicas })
}

fn forbidden(auth: &Auth, question: &str) -> String {
    let (user, name) = (reach::user_of(auth), question.to_ascii_uppercase());
    format!("user '{user}' may not run SENTINEL {name}: grant +sentinel|{question}")
}

/// From the reply to SENTINEL REPLICAS. What cannot be read is left out.
fn addresses(reply: Value) -> Vec<Address> {
    let rows: Vec<HashMap<String, String>> = redis::from_redis_value(reply).unwrap_or_default();
    let address = |row: HashMap<String, String>| {
        Some(Address::Tcp { host: row.get("ip")?.clone(), port: row.get("port")?.parse().ok()? })
    };
    rows.into_iter().filter_map(address).collect()
}
