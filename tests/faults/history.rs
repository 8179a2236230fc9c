//! What callers asked and were answered, as JSON lines: all that the oracle is told.

use std::{
    fs::{self, File},
    io::{BufWriter, Write as _},
    path::{Path, PathBuf},
    time::Instant,
};

use serde_json::json;

use crate::harness::load::{Call, Outcome};

pub fn path(name: &str) -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/faults");
    fs::create_dir_all(&directory).expect("target/faults can be made");
    directory.join(format!("{name}.jsonl"))
}

/// Times are in microseconds since the first call was sent.
pub fn write(path: &Path, calls: &[Call]) {
    let mut file = BufWriter::new(File::create(path).expect("a history can be written"));
    let Some(began) = calls.iter().map(|call| call.sent).min() else { return };
    let since = |at: Instant| u64::try_from(at.duration_since(began).as_micros()).unwrap_or(u64::MAX);
    for call in calls {
        let (code, degraded) = match call.outcome {
            Outcome::Ok => (Some("OK"), false),
            Outcome::Over => (Some("OVER_LIMIT"), false),
            Outcome::DegradedOk => (Some("OK"), true),
            Outcome::DegradedOver => (Some("OVER_LIMIT"), true),
            Outcome::Unavailable | Outcome::Late | Outcome::Error => (None, false),
        };
        let line = json!({
            "client": call.client, "sidecar": call.sidecar, "key": call.key, "hits": call.hits,
            "sent_us": since(call.sent), "answered_us": since(call.answered),
            "code": code, "degraded": degraded, "error": call.error,
        });
        writeln!(file, "{line}").expect("a history can be written");
    }
}
