//! Puts a server under load, with `sluice bench` or with h2load, and reads what came of it.

use std::{
    fs,
    process::{Command, Output},
};

use serde_json::Value;

use super::servers::program;

/// One descriptor, or three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    One,
    Three,
    /// One of a hundred thousand.
    OneOfMany,
}

impl Asked {
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::One => &["--descriptor", "user=u1"],
            Self::Three => &["--descriptor", "user=u1", "--descriptor", "ip=192.0.2.1", "--descriptor", "key=k1"],
            // Its key has about sixty bytes.
            Self::OneOfMany => &["--descriptor", "user=user-of-the-region-eu-1-number-{N}", "--keys", "100000"],
        }
    }
}

/// Runs `sluice bench` and gives its report. Answers that are not as expected end the measurement.
pub fn bench(address: &str, asked: Asked, more: &[&str]) -> Value {
    let mut command = Command::new(program("sluice"));
    command.args(["bench", "--format", "json", "--domain", "bench", "--target", address]);
    command.args(asked.arguments()).args(more);
    let mut output = command.output().expect("sluice starts");
    if is_unanswered(&output) {
        output = command.output().expect("sluice starts");
    }
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{command:?}:\n{}{stdout}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{command:?}: {error} in:\n{stdout}"))
}

/// The server did not answer the greeting in time, after which nothing is asked: one under valgrind, on a busy machine.
fn is_unanswered(output: &Output) -> bool {
    let told = String::from_utf8_lossy(&output.stderr);
    !output.status.success() && (told.contains("cannot connect to") || told.contains("no answer within"))
}

/// Runs h2load, which counts an error of gRPC as a success, and gives the requests per second.
pub fn h2load(address: &str, connections: usize, streams: usize, seconds: u64) -> f64 {
    let body = std::env::temp_dir().join(format!("sluice-bench-{}.bin", std::process::id()));
    fs::write(&body, BODY).expect("there is room for a file");
    let mut command = Command::new("h2load");
    command.args(["-t1", "--warm-up-time", "1s", "-D", &format!("{seconds}s")]);
    command.args(["-c", &connections.to_string(), "-m", &streams.to_string()]);
    command.args(["-H", "content-type: application/grpc", "-H", "te: trailers", "-d"]).arg(&body);
    command.arg(format!("http://{address}/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"));
    let output = command.output().expect("h2load is installed: tests/bench/run does that");
    let _ = fs::remove_file(&body);
    let text = String::from_utf8_lossy(&output.stdout);
    // finished in 3.00s, 48123.33 req/s, 6.11MB/s
    let rate =
        text.lines().find_map(|line| line.strip_prefix("finished in")?.split(',').nth(1)?.trim().split(' ').next());
    rate.and_then(|rate| rate.parse().ok()).unwrap_or_else(|| panic!("{command:?}:\n{text}"))
}

/// The frame of domain `bench`, descriptor user=u1.
const BODY: &[u8] = b"\0\0\0\0\x15\x0a\x05bench\x12\x0c\x0a\x0a\x0a\x04user\x12\x02u1";

/// A number of a report, by its path.
pub fn number(report: &Value, path: &str) -> f64 {
    report.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {path} in {report:#}"))
}
