//! Starts the servers that are measured, each on ports of its own, and stops them.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::{Ipv4Addr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

pub use super::ports::free_port;

/// valgrind reads all debug information first.
const START_DEADLINE: Duration = Duration::from_secs(60);
const STOP_DEADLINE: Duration = Duration::from_secs(60);

/// Where servers listen. It is also part of the names of the files through which valgrind takes commands, because it goes by the
/// same variable.
pub const HOST: &str = "127.0.0.1";

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from)
}

/// The programs, as `tests/bench/run` has built them.
pub fn program(name: &str) -> PathBuf {
    let path = target().join("release").join(name);
    assert!(path.exists(), "{} is not built: start tests/bench/run instead", path.display());
    path
}

pub fn rules(name: &str) -> String {
    let path = Path::new("tests/bench/rules").join(name);
    assert!(path.exists(), "{} is not there: start tests/bench/run from the repository", path.display());
    path.display().to_string()
}

/// What is served, and from where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind<'a> {
    Floor,
    /// With rules of `tests/bench/rules`, in this process or in the Redis on a port.
    Sluice {
        rules: &'a str,
        redis: Option<u16>,
    },
    /// limitador's library, with the limits that its main.rs names.
    Limitador {
        redis: Option<u16>,
    },
}

/// Where `tests/bench/limitador/run` puts it.
fn limitador() -> PathBuf {
    target().join("limitador/release/limitador-peer")
}

/// It is measured where somebody has built it.
pub fn has_limitador() -> bool {
    limitador().exists()
}

/// A server that runs, and ends with this value.
pub struct Running {
    child: Child,
    pub address: String,
}

impl Running {
    pub fn start(kind: Kind<'_>, env: &[(&str, &str)]) -> Self {
        Self::spawn(kind, env, None)
    }

    /// Under callgrind, which writes its counts into a directory, as `counts.1`, `counts.2`, when told to.
    pub fn start_counted(kind: Kind<'_>, env: &[(&str, &str)], counts: &Path) -> Self {
        Self::spawn(kind, env, Some(counts))
    }

    fn spawn(kind: Kind<'_>, env: &[(&str, &str)], counts: Option<&Path>) -> Self {
        let port = free_port();
        let served = match kind {
            Kind::Floor => program("floor"),
            Kind::Sluice { .. } => program("sluice"),
            Kind::Limitador { .. } => limitador(),
        };
        let mut command = match counts {
            None => Command::new(served),
            Some(counts) => counted(counts, &served),
        };
        match kind {
            Kind::Floor => {
                command.arg(port.to_string());
            }
            Kind::Limitador { redis } => {
                command.arg(port.to_string()).args(redis.map(|redis| format!("redis://127.0.0.1:{redis}")));
            }
            Kind::Sluice { rules: name, redis } => {
                command.env("RATE_LIMIT_CONFIG", rules(name)).env("GRPC_PORT", port.to_string());
                command.envs(["GRPC_HOST", "DEBUG_HOST"].map(|name| (name, HOST)));
                command.envs([("PORT", "0"), ("DEBUG_PORT", "0"), ("LOG_FORMAT", "json"), ("USE_STATSD", "false")]);
                if let Some(redis) = redis {
                    command.envs([("BACKEND_TYPE", "redis"), ("REDIS_SOCKET_TYPE", "tcp")]);
                    command.env("REDIS_URL", format!("127.0.0.1:{redis}"));
                    // A server under valgrind is slow, and is not to be taken for a sick store.
                    command.env("REDIS_TIMEOUT", "10s");
                }
            }
        }
        command
            .env("HOST", HOST)
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let stderr = child.stderr.take().expect("stderr is piped");
        let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
        let mut seen = Vec::new();
        let serving = lines.by_ref().any(|line| {
            let is_serving = line.contains("serving");
            seen.push(line);
            is_serving
        });
        assert!(serving, "{command:?} does not serve:\n{}", seen.join("\n"));
        // Who does not read stops the writer.
        thread::spawn(move || lines.for_each(drop));
        let running = Self { child, address: format!("127.0.0.1:{port}") };
        until("the server listens", START_DEADLINE, || TcpStream::connect(&running.address).is_ok());
        running
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end, as an operator would, and waits until it has.
    pub fn stop(mut self) {
        signal("TERM", self.child.id());
        let child = &mut self.child;
        until("the server has ended", STOP_DEADLINE, || matches!(child.try_wait(), Ok(Some(_))));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a program under callgrind, which writes its counts into a directory when told to, and at the end, as `counts`.
fn counted(counts: &Path, program: &Path) -> Command {
    let mut command = Command::new("valgrind");
    command.arg("--tool=callgrind").arg(format!("--callgrind-out-file={}/counts", counts.display()));
    command.arg(format!("--vgdb-prefix={}", vgdb_prefix(counts).display())).arg(program);
    command
}

/// Where valgrind listens for commands.
pub fn vgdb_prefix(counts: &Path) -> PathBuf {
    counts.join("vgdb")
}

/// A Redis that keeps nothing on disk.
pub struct Redis {
    child: Child,
    pub port: u16,
    dir: PathBuf,
}

impl Redis {
    pub fn start() -> Self {
        Self::spawn(Command::new("redis-server"))
    }

    /// Under callgrind. It writes over its environment, which commands for valgrind go by, so that none reaches it: it is counted
    /// as a whole, when it has ended.
    pub fn start_counted(counts: &Path) -> Self {
        let found = Command::new("sh").args(["-c", "command -v redis-server"]).output().expect("there is a shell");
        Self::spawn(counted(counts, Path::new(String::from_utf8_lossy(&found.stdout).trim())))
    }

    fn spawn(mut command: Command) -> Self {
        let port = free_port();
        let dir = std::env::temp_dir().join(format!("sluice-bench-redis-{port}"));
        fs::create_dir_all(&dir).expect("there is room for a directory");
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port", &port.to_string()]);
        command.arg("--dir").arg(&dir).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("redis-server is installed: tests/bench/run does that");
        until("redis listens", START_DEADLINE, || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
        Self { child, port, dir }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end, and waits until it has.
    pub fn stop(mut self) {
        signal("TERM", self.child.id());
        let child = &mut self.child;
        until("redis has ended", STOP_DEADLINE, || matches!(child.try_wait(), Ok(Some(_))));
    }

    pub fn connect(&self) -> redis::Connection {
        let client =
            redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).expect("an address makes a client");
        client.get_connection().expect("redis listens")
    }

    /// A number of INFO.
    pub fn info(&self, section: &str, field: &str) -> f64 {
        let text: String = redis::cmd("INFO").arg(section).query(&mut self.connect()).expect("INFO is answered");
        let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.and_then(|value| value.trim().parse().ok()).unwrap_or_else(|| panic!("INFO has no {field}:\n{text}"))
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn signal(name: &str, process: u32) {
    let _ = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status();
}

pub fn until(what: &str, deadline: Duration, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < deadline, "waited {} s in vain until {what}", deadline.as_secs());
        thread::park_timeout(Duration::from_millis(10));
    }
}
