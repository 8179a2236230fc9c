//! What is known of the last loads of the rules, as `/config` shows it. Plain data: who loads the rules fills it in.

use std::time::SystemTime;

use serde::{Serialize, Serializer};

use crate::rfc3339::rfc3339;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LoadReport {
    /// The files that the rules in use were read from.
    pub files: Vec<String>,
    /// Of the contents of these files; empty if no rules were loaded yet.
    pub hash: String,
    /// How many sets of rules were put to use since the start.
    pub generation: u64,
    /// When the rules in use were put to use.
    #[serde(serialize_with = "optional_time")]
    pub loaded_at: Option<SystemTime>,
    /// Of the last attempt, if it failed and none has succeeded since.
    pub last_error: Option<LoadFailure>,
    /// How many domains the rules in use have.
    pub domains: usize,
    /// How many rules are in use.
    pub rules: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LoadFailure {
    #[serde(serialize_with = "time")]
    pub at: SystemTime,
    /// All of them, each with its place.
    pub errors: Vec<String>,
}

fn time<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&rfc3339(*time))
}

#[allow(clippy::ref_option, reason = "the shape that serde calls")]
fn optional_time<S: Serializer>(time: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(rfc3339).serialize(serializer)
}

/// Somebody wants the rules to be read now, and to be told when they have been.
pub type ReloadAsked = tokio::sync::oneshot::Sender<()>;
