//! `sluice doctor` against deployments that are broken in one way each: it names the cause, and fails.

mod cluster;
mod local;
mod login;
mod nodes;
mod sentinel;
mod setup;
mod tls;
mod well;

use std::{fmt, process::Command};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    harness::sluice,
    servers::{AUTH, PASSWORD},
};

pub const RULES: &str = "domain: d\ndescriptors:\n  - {key: a, rate_limit: {unit: hour, requests_per_unit: 10}}\n";

/// What the doctor said.
pub struct Seen {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    findings: Vec<Value>,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "exit code {:?}\n{}{}", self.code, self.stdout, self.stderr)
    }
}

impl Seen {
    /// Whether there is a finding with this verdict about this check that has all of these in it.
    pub fn has(&self, verdict: &str, check: &str, parts: &[&str]) -> bool {
        self.findings.iter().any(|finding| {
            let text = format!("{}: {}", finding["target"], finding["message"]);
            finding["verdict"] == verdict && finding["check"] == check && parts.iter().all(|part| text.contains(part))
        })
    }

    /// Broken, and for this reason.
    #[track_caller]
    pub fn fails(&self, check: &str, parts: &[&str]) {
        assert!(self.has("fail", check, parts), "no failure of {check} has all of {parts:?}:\n{self}");
        assert_eq!(self.code, Some(1), "{self}");
    }

    /// Not broken, but doubtful, and for this reason.
    #[track_caller]
    pub fn warns(&self, check: &str, parts: &[&str]) {
        assert!(self.has("warn", check, parts), "no warning of {check} has all of {parts:?}:\n{self}");
        assert_eq!(self.code, Some(0), "{self}");
    }

    #[track_caller]
    pub fn finds(&self, check: &str, parts: &[&str]) {
        assert!(self.has("ok", check, parts), "nothing good of {check} has all of {parts:?}:\n{self}");
    }

    /// Whatever it thinks of it.
    #[track_caller]
    pub fn says(&self, check: &str, parts: &[&str]) {
        let is_said = ["ok", "warn", "fail"].iter().any(|verdict| self.has(verdict, check, parts));
        assert!(is_said, "nothing about {check} has all of {parts:?}:\n{self}");
    }

    /// How many checks failed.
    pub fn failures(&self) -> usize {
        self.findings.iter().filter(|finding| finding["verdict"] == "fail").count()
    }
}

/// With rules, ports and patience that are good unless the settings say otherwise.
#[track_caller]
pub fn doctor(env: &[(&str, &str)]) -> Seen {
    look(sluice(), env)
}

/// The same, of one server, as the user that sluice is.
#[track_caller]
pub fn doctor_of(address: &str, env: &[(&str, &str)]) -> Seen {
    // A busy machine is no slow store.
    doctor(&[&[("REDIS_URL", address), ("REDIS_AUTH", AUTH), ("REDIS_TIMEOUT", "2s")], env].concat())
}

/// The same, with a clock that is off by so much, as faketime writes it.
#[track_caller]
pub fn doctor_by_clock(offset: &str, address: &str) -> Seen {
    let mut command = Command::new("faketime");
    command.args(["-f", offset]).arg(env!("CARGO_BIN_EXE_sluice"));
    look(command, &[("REDIS_URL", address), ("REDIS_AUTH", AUTH)])
}

#[track_caller]
fn look(mut command: Command, env: &[(&str, &str)]) -> Seen {
    let rules = TempDir::new().unwrap();
    std::fs::write(rules.path().join("rules.yaml"), RULES).unwrap();
    let output = command
        .args(["doctor", "--format", "json"])
        .env("RATE_LIMIT_CONFIG", rules.path())
        .envs(["PORT", "GRPC_PORT", "DEBUG_PORT"].map(|name| (name, "0")))
        .env("REDIS_TIMEOUT", "2s")
        .envs(env.iter().copied())
        .output()
        .expect("sluice runs, and tests/run has installed what it is run with");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("prints text");
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(!stdout.contains(PASSWORD) && !stderr.contains(PASSWORD), "a password is shown:\n{stdout}{stderr}");
    let report: Value = serde_json::from_str(&stdout).unwrap_or_default();
    let findings = report["checks"].as_array().cloned().unwrap_or_default();
    Seen { code: output.status.code(), stdout, stderr, findings }
}
