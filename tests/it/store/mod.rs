//! The distributed store on real servers: what it decides, how often it asks, and what callers get on its bad days.
//!
//! Everywhere sluice is a user who may do only what the documentation says, and after every test every key has a TTL.

mod damage;
mod faults;
mod health;
mod one_call;
mod panics;
mod promoted;
mod replies;
mod secured;
mod spared;
mod suite;

use crate::{
    harness::{
        Server as Sluice,
        grpc::{Descriptor, Request, descriptor},
    },
    servers::{AUTH, Cluster, Sentinels, Server},
};

/// A store for a test.
pub enum Stage {
    Single(Server),
    Sentinel(Sentinels),
    Cluster(Cluster),
}

impl Stage {
    /// The settings with which sluice finds it.
    pub fn env(&self) -> Vec<(String, String)> {
        let of =
            |pairs: &[(&str, String)]| pairs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        let auth = AUTH.to_owned();
        match self {
            Self::Single(server) => of(&[("REDIS_URL", server.url_of_sluice())]),
            Self::Sentinel(sentinels) => of(&[
                ("REDIS_TYPE", "SENTINEL".to_owned()),
                ("REDIS_URL", sentinels.url()),
                ("REDIS_AUTH", auth.clone()),
                ("REDIS_SENTINEL_AUTH", auth),
            ]),
            Self::Cluster(cluster) => {
                of(&[("REDIS_TYPE", "CLUSTER".to_owned()), ("REDIS_URL", cluster.seeds()), ("REDIS_AUTH", auth)])
            }
        }
    }

    pub fn servers(&self) -> &[Server] {
        match self {
            Self::Single(server) => std::slice::from_ref(server),
            Self::Sentinel(sentinels) => &sentinels.servers,
            Self::Cluster(cluster) => &cluster.servers,
        }
    }

    #[track_caller]
    pub fn assert_clean(&self) {
        self.servers().iter().for_each(Server::assert_clean);
    }

    /// A sluice that uses it. Its patience is that of a busy machine, unless the settings say otherwise.
    #[track_caller]
    pub fn sluice(&self, rules: &str, env: &[(&str, &str)]) -> Sluice {
        let mut builder = Sluice::builder().file("rules.yaml", rules).env("REDIS_TIMEOUT", "30s");
        for (name, value) in self.env() {
            builder = builder.env(&name, &value);
        }
        for (name, value) in env {
            builder = builder.env(name, value);
        }
        let sluice = builder.start();
        sluice.wait_for_store();
        sluice
    }
}

/// A sluice with these settings and rules.
#[track_caller]
pub fn sluice(rules: &str, env: &[(&str, &str)]) -> Sluice {
    let builder = Sluice::builder().file("rules.yaml", rules);
    env.iter().fold(builder, |builder, (name, value)| builder.env(name, value)).start()
}

/// Several descriptors of one entry.
pub fn ask_all(domain: &str, entries: &[(&str, &str)]) -> Request {
    let descriptors: Vec<Descriptor> = entries.iter().map(|entry| descriptor(&[*entry])).collect();
    Request { domain: domain.to_owned(), descriptors, hits_addend: 0 }
}
