//! Real servers, started on free ports for one test and killed when it ends.

mod cluster;
pub mod fake;
mod ports;
mod proxy;
mod sentinel;

use std::{
    fs,
    io::{self, BufRead as _, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
};

pub use cluster::Cluster;
pub use ports::free_port;
pub use proxy::Proxy;
use redis::{FromRedisValue, Value};
pub use sentinel::Sentinels;
use tempfile::TempDir;

pub const REDIS: &str = "redis-server";
pub const VALKEY: &str = "valkey-server";

/// The user that sluice is in all tests: it may do what is said in `src/store/redis/mod.rs` and nothing else.
pub const USER: &str = "sluice";
pub const PASSWORD: &str = "open-sesame";
pub const AUTH: &str = "sluice:open-sesame";

static ALONE: Mutex<()> = Mutex::new(());

/// Tests with several servers and a load take turns, so that they do not measure each other.
pub fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The permissions as the documentation has them: the line of `src/store/redis/mod.rs` that begins like this.
pub fn documented_acl(begin: &str) -> Vec<String> {
    let documentation = include_str!("../../../src/store/redis/mod.rs");
    let line = documentation.lines().find_map(|line| line.strip_prefix("//! ")?.strip_prefix(begin));
    let line = line.unwrap_or_else(|| panic!("no line begins with {begin}"));
    line.split_whitespace().map(|word| word.replace("PASSWORD", PASSWORD)).collect()
}

pub struct Server {
    child: Child,
    binary: String,
    options: Vec<String>,
    acl: Vec<String>,
    port: u16,
    dir: TempDir,
}

impl Server {
    /// Starts `redis-server` or `valkey-server`, and returns when it accepts connections.
    pub fn start(binary: &str) -> Self {
        Self::start_with(binary, &[])
    }

    pub fn start_with(binary: &str, options: &[&str]) -> Self {
        Self::start_as(binary, "", options)
    }

    /// With more permissions for sluice: those that the documentation has after these words.
    pub fn start_as(binary: &str, also: &str, options: &[&str]) -> Self {
        let mut acl = documented_acl("user sluice ");
        if !also.is_empty() {
            acl.extend(documented_acl(also));
        }
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        // Somebody else can take the port between our finding it and the server's binding it.
        let started =
            (0..10).find_map(|_| Self::try_start(binary, &options, &acl, free_port(), TempDir::new().unwrap()));
        started.unwrap_or_else(|| panic!("{binary} did not start on any of ten free ports"))
    }

    /// On a port that a test has chosen before.
    pub fn start_on(binary: &str, port: u16) -> Self {
        let started = Self::try_start(binary, &[], &documented_acl("user sluice "), port, TempDir::new().unwrap());
        started.unwrap_or_else(|| panic!("{binary} did not start on {port}"))
    }

    fn try_start(binary: &str, options: &[String], acl: &[String], port: u16, dir: TempDir) -> Option<Self> {
        let child = Command::new(binary)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .args(["--repl-diskless-sync-delay", "0", "--enable-debug-command", "yes"])
            .args(["--user", USER])
            .args(acl)
            .args(options)
            .current_dir(dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{binary} cannot be started ({error}): tests/run installs what tests need"));
        let (binary, options, acl) = (binary.to_owned(), options.to_vec(), acl.to_vec());
        Self::until_ready(Self { child, binary, options, acl, port, dir })
    }

    fn until_ready(mut server: Self) -> Option<Self> {
        let mut log = BufReader::new(server.child.stdout.take().unwrap());
        let mut line = String::new();
        while log.read_line(&mut line).unwrap() > 0 {
            if line.contains("Ready to accept connections") {
                // A server whose log nobody reads would stop when the pipe is full.
                thread::spawn(move || io::copy(&mut log, &mut io::sink()));
                return Some(server);
            }
            line.clear();
        }
        None
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// As the user that sluice is.
    pub fn url_of_sluice(&self) -> String {
        format!("redis://{AUTH}@{}", self.address())
    }

    pub fn connection(&self) -> redis::Connection {
        redis::Client::open(self.url()).and_then(|client| client.get_connection()).unwrap()
    }

    /// One command, as somebody who may do everything.
    #[track_caller]
    pub fn run<T: FromRedisValue>(&self, words: &[&str]) -> T {
        self.try_run(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    pub fn try_run<T: FromRedisValue>(&self, words: &[&str]) -> redis::RedisResult<T> {
        let mut command = redis::Cmd::new();
        command.arg(words);
        command.query(&mut redis::Client::open(self.url())?.get_connection()?)
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again, empty, where it was.
    pub fn restart(&mut self) {
        self.kill();
        for name in ["dump.rdb", "nodes.conf"] {
            let _ = fs::remove_file(self.dir.path().join(name));
        }
        let dir = std::mem::replace(&mut self.dir, TempDir::new().unwrap());
        let again = Self::try_start(&self.binary, &self.options, &self.acl, self.port, dir);
        *self = again.unwrap_or_else(|| panic!("{} did not start again on {}", self.binary, self.port));
    }

    pub fn pause(&self) {
        self.signal("STOP");
    }

    pub fn resume(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let status = Command::new("sh").args(["-c", &format!("kill -{name} {id}")]).status().unwrap();
        assert!(status.success(), "signal {name} could not be sent to {id}");
    }

    /// How often a command was called.
    pub fn calls(&self, command: &str) -> u64 {
        let stats: String = self.run(&["INFO", "commandstats"]);
        let row = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        row.and_then(|row| row.split(',').next()?.parse().ok()).unwrap_or(0)
    }

    /// How often it answered with this error.
    pub fn errors(&self, name: &str) -> usize {
        let stats: String = self.run(&["INFO", "errorstats"]);
        let row = stats.lines().find_map(|line| line.strip_prefix(&format!("errorstat_{name}:count=")));
        row.and_then(|row| row.trim().parse().ok()).unwrap_or(0)
    }

    /// All keys with the time that they have left.
    pub fn keys(&self) -> Vec<(String, i64)> {
        let mut connection = self.connection();
        // Lets the replicas of a cluster answer, and means nothing elsewhere.
        let _ = redis::cmd("READONLY").exec(&mut connection);
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
        let ttl = |key: String| {
            let left: i64 = redis::cmd("PTTL").arg(&key).query(&mut connection).unwrap();
            (key, left)
        };
        keys.into_iter().map(ttl).collect()
    }

    /// What holds for every server when a test ends: every key goes some day, and nothing forbidden was tried.
    #[track_caller]
    pub fn assert_clean(&self) {
        let eternal: Vec<_> = self.keys().into_iter().filter(|(_, left)| *left == -1).collect();
        assert!(eternal.is_empty(), "keys without a TTL: {eternal:?}");
        let denied: Vec<Value> = self.run(&["ACL", "LOG"]);
        assert!(denied.is_empty(), "the ACL log has {denied:?}");
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
