//! A `sluice serve` of its own for a test: free ports, a rules directory of its own, its log lines at hand.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
};

use serde_json::Value;
use tempfile::TempDir;

use super::{
    grpc, http,
    scrape::Scrape,
    wait::{DEADLINE, holds_within, wait_until},
};

/// The binary, or the one that `SLUICE_BIN` names, with nothing of this process's environment but what finding programs needs.
pub fn sluice() -> Command {
    let built = std::env::var_os("SLUICE_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_sluice").into());
    let mut command = Command::new(built);
    command.env_clear();
    for name in ["PATH", "HOME"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command
}

/// The binary, which may have so many open files.
fn limited(files_max: u32) -> Command {
    let plain = sluice();
    let mut command = Command::new("prlimit");
    command.arg(format!("--nofile={files_max}:{files_max}")).arg(plain.get_program()).env_clear();
    command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    fn push(&self, line: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What to start: files of rules and settings on top of those that every test has.
pub struct Builder {
    dir: TempDir,
    env: Vec<(String, String)>,
    files_max: Option<u32>,
}

impl Builder {
    /// A file in the rules directory.
    pub fn file(self, name: &str, text: &str) -> Self {
        let path = self.dir.path().join(name);
        fs::create_dir_all(path.parent().expect("a file has a directory")).expect("the directory can be made");
        fs::write(path, text).expect("the rules directory can be written");
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Lets it have so many open files.
    pub fn limit_files(mut self, max: u32) -> Self {
        self.files_max = Some(max);
        self
    }

    /// For what [`Builder::file`] cannot make: links, directories.
    pub fn prepare(self, prepare: impl FnOnce(&Path)) -> Self {
        prepare(self.dir.path());
        self
    }

    /// Starts it and waits until it listens.
    #[track_caller]
    pub fn start(self) -> Server {
        let mut server = self.spawn();
        let lines = server.lines.clone();
        let child = &mut server.child;
        let mut serving = None;
        holds_within(DEADLINE, || {
            serving = lines.all().iter().find_map(|line| Listeners::parse(line));
            serving.is_some() || matches!(child.try_wait(), Ok(Some(_)))
        });
        let Some(listeners) = serving else {
            panic!("sluice did not say that it is serving; its log:\n{}", server.log().join("\n"));
        };
        server.listeners = listeners;
        server
    }

    /// Starts it and does not wait.
    pub fn spawn(self) -> Server {
        let mut command = match self.files_max {
            None => sluice(),
            Some(max) => limited(max),
        };
        command
            .arg("serve")
            .env("RATE_LIMIT_CONFIG", self.dir.path())
            .envs(["HOST", "GRPC_HOST", "DEBUG_HOST"].map(|name| (name, "127.0.0.1")))
            .envs(["PORT", "GRPC_PORT", "DEBUG_PORT"].map(|name| (name, "0")))
            .envs([("LOG_FORMAT", "json"), ("LOG_LEVEL", "info"), ("USE_STATSD", "false")])
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("sluice starts");
        let stderr = child.stderr.take().expect("stderr is piped");
        let lines = Lines::default();
        let reader = thread::spawn({
            let lines = lines.clone();
            move || BufReader::new(stderr).lines().map_while(Result::ok).for_each(|line| lines.push(line))
        });
        Server { child, dir: self.dir, lines, reader: Some(reader), listeners: Listeners::default() }
    }
}

/// Where it listens, from the line that says so.
#[derive(Default)]
struct Listeners {
    http: String,
    grpc: String,
    debug: String,
    prometheus: Option<String>,
}

impl Listeners {
    fn parse(line: &str) -> Option<Self> {
        let line = serde_json::from_str(line).ok().or_else(|| Self::from_text(line))?;
        if message(&line)? != "serving" {
            return None;
        }
        let address = |name| Some(field(&line, name)?.as_str()?.to_owned());
        Some(Self {
            http: address("http")?,
            grpc: address("grpc")?,
            debug: address("debug")?,
            prometheus: address("prometheus"),
        })
    }

    /// The line as text, in the form that it has as JSON.
    fn from_text(line: &str) -> Option<Value> {
        let (_, fields) = line.split_once(" serving ")?;
        let fields = fields.split(' ').filter_map(|field| field.split_once('='));
        let fields = fields.chain([("message", "serving")]).map(|(name, value)| (name.to_owned(), value.into()));
        Some(Value::Object(fields.collect()))
    }
}

/// A field of a log line, wherever the format puts it.
fn field<'l>(line: &'l Value, name: &str) -> Option<&'l Value> {
    line.get(name).or_else(|| line.get("fields")?.get(name))
}

fn message(line: &Value) -> Option<&str> {
    field(line, "message").or_else(|| line.get("@message"))?.as_str()
}

/// Of a process: open files, threads, and memory in use in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Footprint {
    pub files: usize,
    pub threads: usize,
    pub memory: usize,
}

pub struct Server {
    child: Child,
    dir: TempDir,
    lines: Lines,
    reader: Option<JoinHandle<()>>,
    listeners: Listeners,
}

impl Server {
    pub fn builder() -> Builder {
        Builder { dir: tempfile::tempdir().expect("there is room for a directory"), env: Vec::new(), files_max: None }
    }

    /// With one file of rules.
    #[track_caller]
    pub fn start(rules: &str) -> Self {
        Self::builder().file("rules.yaml", rules).start()
    }

    pub fn http(&self) -> &str {
        &self.listeners.http
    }

    pub fn grpc(&self) -> &str {
        &self.listeners.grpc
    }

    pub fn debug(&self) -> &str {
        &self.listeners.debug
    }

    pub fn prometheus(&self) -> &str {
        self.listeners.prometheus.as_deref().expect("the serving line names the prometheus address")
    }

    /// The rules directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("the rules directory can be written");
    }

    pub fn get(&self, path: &str) -> http::Response {
        http::get(self.http(), path)
    }

    pub fn get_debug(&self, path: &str) -> http::Response {
        http::get(self.debug(), path)
    }

    pub fn post_json(&self, body: &str) -> http::Response {
        http::post(self.http(), "/json", body)
    }

    pub fn ask(&self, request: grpc::Request) -> Result<grpc::Response, tonic::Status> {
        grpc::ask(self.grpc(), request)
    }

    pub fn scrape(&self) -> Scrape {
        Scrape::parse(&self.get("/metrics").body)
    }

    /// The value of one series, written as in the exposition, with the labels in any order. 0 if it is not there.
    pub fn metric(&self, series: &str) -> f64 {
        self.scrape().value(series).unwrap_or(0.0)
    }

    /// What `/config` says.
    pub fn config(&self) -> Value {
        self.get_debug("/config").json()
    }

    /// Lets it read its rules now, and waits until it has.
    #[track_caller]
    pub fn reload(&self) {
        let stream = TcpStream::connect(self.debug()).expect("the debug door is open");
        let answer = http::send_over(stream, "POST", "/reload", &[("x-sluice", "reload")], "");
        assert_eq!(answer.status, 200, "{}", answer.body);
    }

    /// Waits until it says that its store answers.
    #[track_caller]
    pub fn wait_for_store(&self) {
        wait_until("the store answers", || self.metric("sluice_store_up") == 1.0);
    }

    /// What the system says of the process.
    pub fn footprint(&self) -> Footprint {
        let files = fs::read_dir(format!("/proc/{}/fd", self.child.id())).map_or(0, Iterator::count);
        Footprint { files, threads: self.status("Threads:"), memory: self.memory() }
    }

    /// In bytes. To count its files as well takes longer than many answers, if they are ten thousand.
    pub fn memory(&self) -> usize {
        self.status("VmRSS:") * 1024
    }

    fn status(&self, field: &str) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let value = status.lines().find_map(|line| line.strip_prefix(field)?.split_whitespace().next());
        value.and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    /// What everybody on the machine can see of how it was started.
    pub fn command_line(&self) -> String {
        let bytes = fs::read(format!("/proc/{}/cmdline", self.child.id())).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\0', " ")
    }

    /// From now on it can have no more than this many bytes of its own.
    pub fn limit_memory(&self, bytes: usize) {
        let (id, limit) = (self.child.id().to_string(), format!("--data={bytes}"));
        let status = Command::new("prlimit").args(["--pid", &id, &limit]).status().expect("prlimit runs");
        assert!(status.success(), "the memory of {id} could not be limited");
    }

    pub fn log(&self) -> Vec<String> {
        self.lines.all()
    }

    /// Waits for a log line that has all of these in it, and gives it.
    #[track_caller]
    pub fn wait_for_line(&self, parts: &[&str]) -> String {
        let find = || self.log().into_iter().find(|line| parts.iter().all(|part| line.contains(part)));
        let mut found = None;
        let seen = holds_within(DEADLINE, || {
            found = find();
            found.is_some()
        });
        assert!(seen, "no log line has all of {parts:?}; the log:\n{}", self.log().join("\n"));
        found.unwrap_or_default()
    }

    /// Of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Stops it where it stands, until it is resumed.
    pub fn pause(&self) {
        self.signal("STOP");
    }

    pub fn resume(&self) {
        self.signal("CONT");
    }

    pub fn hang_up(&self) {
        self.signal("HUP");
    }

    pub fn terminate(&self) {
        self.signal("TERM");
    }

    /// Asks it to stop and waits until it has.
    #[track_caller]
    pub fn stop(mut self) -> (ExitStatus, Vec<String>) {
        self.terminate();
        let status = self.wait_for_exit();
        (status, self.log())
    }

    #[track_caller]
    pub fn wait_for_exit(&mut self) -> ExitStatus {
        let child = &mut self.child;
        wait_until("sluice has ended", || matches!(child.try_wait(), Ok(Some(_))));
        if let Some(reader) = self.reader.take() {
            reader.join().expect("the log reader does not panic");
        }
        self.child.wait().expect("an ended process has a status")
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let status = Command::new("sh").args(["-c", &format!("kill -{name} {id}")]).status().expect("sh runs");
        assert!(status.success(), "signal {name} could not be sent to {id}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("--- log of sluice\n{}\n---", self.log().join("\n"));
        }
    }
}
