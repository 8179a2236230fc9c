//! A primary with a replica, and three sentinels who watch them.

use std::{
    fs,
    process::{Child, Command, Stdio},
    time::Duration,
};

use tempfile::TempDir;

use super::{Server, documented_acl, free_port};
use crate::harness::wait_until;

pub const MASTER: &str = "mymaster";

struct Sentinel {
    child: Child,
    port: u16,
    _dir: TempDir,
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub struct Sentinels {
    /// The primary and its replica, as they were at the start.
    pub servers: Vec<Server>,
    sentinels: Vec<Sentinel>,
}

impl Sentinels {
    /// Some that are not meant to act: a machine that stalls for seconds is no reason for a failover.
    #[track_caller]
    pub fn start(binary: &str) -> Self {
        Self::start_with(binary, Duration::from_secs(30))
    }

    /// Some who take a server for lost that was silent for so long.
    #[track_caller]
    pub fn start_with(binary: &str, down_after: Duration) -> Self {
        let also = "behind sentinels also: ";
        let primary = Server::start_as(binary, also, &[]);
        let replica = Server::start_as(binary, also, &["--replicaof", "127.0.0.1", &primary.port().to_string()]);
        wait_until("the replica follows", || {
            replica.run::<String>(&["INFO", "replication"]).contains("master_link_status:up")
        });
        let sentinels = (0..3).map(|_| start_sentinel(binary, primary.port(), down_after)).collect();
        let sentinels = Self { servers: vec![primary, replica], sentinels };
        wait_until("the sentinels know each other and the replica", || {
            sentinels.sentinels.iter().all(|sentinel| {
                let master = sentinel.master();
                master.contains("num-other-sentinels=2") && master.contains("num-slaves=1")
            })
        });
        sentinels
    }

    /// As `REDIS_URL` has it: the first of them is not there.
    pub fn url(&self) -> String {
        let sentinels = self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port));
        [MASTER.to_owned(), format!("127.0.0.1:{}", free_port())]
            .into_iter()
            .chain(sentinels)
            .collect::<Vec<_>>()
            .join(",")
    }

    /// Takes a command from sluice on every sentinel.
    pub fn forbid(&self, command: &str) {
        for sentinel in &self.sentinels {
            let url = format!("redis://127.0.0.1:{}", sentinel.port);
            let mut connection = redis::Client::open(url).and_then(|client| client.get_connection()).unwrap();
            redis::cmd("ACL").arg(&["SETUSER", "sluice", &format!("-{command}")]).exec(&mut connection).unwrap();
        }
    }

    /// Whether any of them calls this one the primary.
    pub fn name(&self, server: &Server) -> bool {
        let port = format!(" port={} ", server.port());
        self.sentinels.iter().any(|sentinel| sentinel.master().contains(&port))
    }
}

impl Sentinel {
    fn master(&self) -> String {
        let url = format!("redis://127.0.0.1:{}", self.port);
        let ask = || -> redis::RedisResult<Vec<String>> {
            redis::cmd("SENTINEL").arg("master").arg(MASTER).query(&mut redis::Client::open(url)?.get_connection()?)
        };
        let fields = ask().unwrap_or_default();
        fields.chunks(2).map(|pair| pair.join("=")).collect::<Vec<_>>().join(" ")
    }
}

fn start_sentinel(binary: &str, primary: u16, down_after: Duration) -> Sentinel {
    let (port, dir) = (free_port(), TempDir::new().unwrap());
    let down_after_ms = down_after.as_millis();
    let acl = documented_acl("on sentinels: user sluice ").join(" ");
    let file = dir.path().join("sentinel.conf");
    let text = format!(
        "port {port}\nbind 127.0.0.1\nuser sluice {acl}\nsentinel monitor {MASTER} 127.0.0.1 {primary} 2\n\
         sentinel down-after-milliseconds {MASTER} {down_after_ms}\nsentinel failover-timeout {MASTER} 3000\n"
    );
    fs::write(&file, text).unwrap();
    let child = Command::new(binary)
        .arg(&file)
        .arg("--sentinel")
        .current_dir(dir.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    Sentinel { child, port, _dir: dir }
}
