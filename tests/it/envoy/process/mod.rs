//! Starts Envoy with a bootstrap of `deploy/envoy/` and asks it. Needs nothing else of these tests, so that others can have an Envoy
//! too.

mod upstream;

use std::{
    env, fs,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use serde_json::Value;
use socket2::{Domain, Socket, Type};
use tempfile::TempDir;

use crate::harness::{
    Server, http,
    wait::{DEADLINE, holds_within},
};

/// How long Envoy waits for an answer and for a health check, in tests that are not about it.
const PATIENCE: &str = "timeout: 10s";
const WAITS_FOR_ANSWERS: &str = "timeout: 0.25s";
const WAITS_FOR_HEALTH: &str = "- timeout: 1s";

/// A file of `deploy/envoy/`.
pub fn deployed(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/envoy").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn port(address: &str) -> u16 {
    address.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap_or_else(|| panic!("no port in {address}"))
}

/// The program that `tests/run` installs.
fn binary() -> PathBuf {
    if let Some(path) = env::var_os("ENVOY_BIN") {
        return path.into();
    }
    let venv = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/envoy/lib");
    let versions = fs::read_dir(&venv).into_iter().flatten().flatten();
    let mut found = versions.map(|version| version.path().join("site-packages/envoy/_bin/envoy"));
    found.find(|path| path.exists()).unwrap_or_else(|| {
        panic!("there is no Envoy in {}: tests/run installs it, or set ENVOY_BIN to one", venv.display())
    })
}

pub struct Builder {
    text: String,
    dir: TempDir,
}

impl Builder {
    /// Puts other text in the place of what must be there.
    #[track_caller]
    pub fn replace(mut self, old: &str, new: &str) -> Self {
        assert!(self.text.contains(old), "the bootstrap has no {old:?}");
        self.text = self.text.replace(old, new);
        self
    }

    #[track_caller]
    pub fn port(self, deployed: u16, here: u16) -> Self {
        self.replace(&format!("port_value: {deployed}}}"), &format!("port_value: {here}}}"))
    }

    /// For a machine that may stall.
    pub fn patient(mut self) -> Self {
        self.text = self.text.replace(WAITS_FOR_HEALTH, &format!("- {PATIENCE}"));
        self.replace(WAITS_FOR_ANSWERS, PATIENCE)
    }

    #[track_caller]
    pub fn start(self) -> Envoy {
        let path = self.dir.path().join("envoy.yaml");
        fs::write(&path, &self.text).expect("can be written");
        let binary = binary();
        let log = self.dir.path().join("envoy.log");
        let admin = self.dir.path().join("admin");
        let child = Command::new(&binary)
            .arg("-c")
            .arg(path)
            .args(["--concurrency", "2", "--disable-hot-restart", "-l", "warning", "--file-flush-interval-msec", "50"])
            .arg("--log-path")
            .arg(&log)
            .arg("--admin-address-path")
            .arg(&admin)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", binary.display()));
        let mut envoy = Envoy { child, dir: self.dir, admin: String::new(), port: 0 };
        let live = holds_within(DEADLINE, || {
            fs::read_to_string(&admin).unwrap_or_default().trim().clone_into(&mut envoy.admin);
            !envoy.admin.is_empty() && envoy.is_live() || matches!(envoy.child.try_wait(), Ok(Some(_)))
        });
        assert!(live && envoy.is_live(), "Envoy does not run; its log:\n{}", envoy.log());
        envoy.port = envoy.find_port();
        envoy
    }
}

pub struct Envoy {
    child: Child,
    dir: TempDir,
    admin: String,
    port: u16,
}

impl Envoy {
    /// With a bootstrap of `deploy/envoy/`: free ports for itself, and an application of its own.
    pub fn bootstrap(file: &str) -> Builder {
        let dir = tempfile::tempdir().expect("there is room");
        let builder = Builder { text: deployed(file), dir };
        builder.port(9901, 0).port(10000, 0).port(8000, upstream::start())
    }

    /// With `envoy.yaml`, as it stands but for ports and paths.
    pub fn as_deployed(sluice: &Server) -> Builder {
        let builder = Self::bootstrap("envoy.yaml").port(8081, port(sluice.grpc()));
        let log = builder.dir.path().join("access.log");
        builder.replace("/dev/stdout", log.to_str().expect("is text"))
    }

    /// The same with patience.
    pub fn asking(sluice: &Server) -> Builder {
        Self::as_deployed(sluice).patient()
    }

    /// Where it takes requests.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    pub fn get(&self, path: &str, headers: &[(&str, &str)]) -> http::Response {
        self.get_from(Ipv4Addr::LOCALHOST, path, headers)
    }

    /// As a caller with this address, which must be one of 127.0.0.0/8.
    pub fn get_from(&self, caller: Ipv4Addr, path: &str, headers: &[(&str, &str)]) -> http::Response {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("there are sockets");
        socket.bind(&SocketAddr::from((caller, 0)).into()).expect("loopback has many addresses");
        let envoy = self.address();
        socket.connect(&envoy.into()).unwrap_or_else(|error| panic!("{envoy}: {error}"));
        http::send_over(TcpStream::from(socket), "GET", path, headers, "")
    }

    /// A counter of Envoy's. 0 if it was never counted.
    pub fn counter(&self, name: &str) -> u64 {
        let text = http::get(&self.admin, &format!("/stats?filter=^{name}$")).body;
        text.trim().rsplit(": ").next().and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    /// How often it got no answer from sluice.
    pub fn errors(&self) -> u64 {
        self.counter("cluster.app.ratelimit.error")
    }

    /// How many sluices it finds healthy.
    pub fn healthy_sluices(&self) -> u64 {
        self.counter("cluster.sluice.membership_healthy")
    }

    pub fn access_log(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.dir.path().join("access.log")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    fn is_live(&self) -> bool {
        TcpStream::connect_timeout(&self.admin.parse().expect("an address"), Duration::from_secs(1)).is_ok()
            && http::get(&self.admin, "/ready").body.trim() == "LIVE"
    }

    fn find_port(&self) -> u16 {
        let listeners = http::get(&self.admin, "/listeners?format=json").json();
        let ingress = &listeners["listener_statuses"][0]["local_address"]["socket_address"]["port_value"];
        ingress.as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or_else(|| panic!("no port in {listeners}"))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("envoy.log")).unwrap_or_default()
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("--- log of Envoy\n{}\n---", self.log());
        }
    }
}
