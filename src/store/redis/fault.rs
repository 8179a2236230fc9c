//! What a failed call means, and what to do about it. One row for each answer that a server can give.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::store::StoreFailure;

/// How releases say that a user, or a script of its, may not do something.
const FORBIDDEN: [&str; 3] = ["NOPERM", "can't run this command", "ACL failure"];

/// Why a call to a node gave no decisions, by what follows from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The script is not there. It did not run: send it along.
    NoScript,
    /// The slot lives elsewhere now. It did not run: go there.
    Moved { address: String },
    /// The slot is on its way. It did not run: ask there, once.
    Ask { address: String },
    /// Keys are on their way. It did not run: once more, a little later.
    TryAgain,
    /// No longer a primary. It did not run: find out who is, and go there.
    ReadOnly,
    /// The node cannot serve anybody now: LOADING, MASTERDOWN, BUSY, CLUSTERDOWN. It did not run.
    Down(String),
    /// The node refuses writes: OOM, NOREPLICAS, MISCONF. It did not run.
    RefusesWrites(String),
    /// Wrong password or missing permission. It did not run.
    Denied(String),
    /// The connection broke; the call may have run.
    Broken(String),
    /// No answer in time; the call may have run.
    Timeout,
    /// An answer of another shape.
    BadResponse(String),
    /// Any other error.
    Other(String),
    /// Not asked: the node is known to be sick, or has more to do than it can.
    NotAsked,
}

impl Fault {
    #[must_use]
    pub fn of(error: &RedisError) -> Self {
        let text = || sentence(error);
        let address = || error.redirect_node().map(|(address, _)| address.to_owned());
        match error.kind() {
            ErrorKind::Server(kind) => match (kind, address()) {
                (ServerErrorKind::NoScript, _) => Self::NoScript,
                (ServerErrorKind::Moved, Some(address)) => Self::Moved { address },
                (ServerErrorKind::Ask, Some(address)) => Self::Ask { address },
                (ServerErrorKind::TryAgain, _) => Self::TryAgain,
                (ServerErrorKind::ReadOnly, _) => Self::ReadOnly,
                (ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown | ServerErrorKind::ClusterDown, _) => {
                    Self::Down(text())
                }
                (ServerErrorKind::NoPerm, _) => Self::Denied(text()),
                _ => Self::by_words(error),
            },
            ErrorKind::AuthenticationFailed => Self::Denied("the login was refused".to_owned()),
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => Self::BadResponse(text()),
            _ if error.is_timeout() => Self::Timeout,
            _ if error.is_io_error() || error.is_unrecoverable_error() => Self::Broken(text()),
            _ => Self::by_words(error),
        }
    }

    /// A script passes on the errors of its commands with words of its own around them.
    fn by_words(error: &RedisError) -> Self {
        let text = sentence(error);
        let says = |words: &[&str]| words.iter().any(|word| error.code() == Some(word) || text.contains(word));
        if says(&["NOSCRIPT"]) {
            Self::NoScript
        } else if says(&["READONLY"]) {
            Self::ReadOnly
        } else if says(&["LOADING", "MASTERDOWN", "CLUSTERDOWN", "BUSY"]) {
            Self::Down(text)
        } else if says(&["OOM", "NOREPLICAS", "MISCONF"]) {
            Self::RefusesWrites(text)
        } else if says(&["NOAUTH", "WRONGPASS", "unauthenticated"]) || says(&FORBIDDEN) {
            Self::Denied(text)
        } else {
            Self::Other(text)
        }
    }

    /// The connection is of no more use.
    #[must_use]
    pub fn breaks_connection(&self) -> bool {
        matches!(self, Self::Broken(_) | Self::ReadOnly | Self::BadResponse(_) | Self::Denied(_))
    }

    /// The node says itself that asking it is useless for now.
    #[must_use]
    pub fn trips_at_once(&self) -> bool {
        matches!(self, Self::Down(_) | Self::Denied(_))
    }

    /// Says something about where a slot is, and nothing about the health of the node.
    #[must_use]
    pub fn is_redirection(&self) -> bool {
        matches!(self, Self::Moved { .. } | Self::Ask { .. } | Self::TryAgain)
    }

    /// Refused before it ran, by a node that does not serve the slot: another may be asked without charging twice.
    #[must_use]
    pub fn has_not_run(&self) -> bool {
        self.is_redirection() || *self == Self::ReadOnly
    }

    #[must_use]
    pub fn failure(&self) -> StoreFailure {
        match self {
            Self::Timeout => StoreFailure::Timeout,
            Self::BadResponse(_) => StoreFailure::BadResponse,
            Self::NotAsked => StoreFailure::Breaker,
            _ => StoreFailure::RedisError,
        }
    }

    /// What to do about it, where somebody has to do something.
    #[must_use]
    pub fn advice(&self) -> Option<&'static str> {
        match self {
            Self::RefusesWrites(text) if text.contains("OOM") => {
                Some("the store refuses writes: give it more memory, or set a maxmemory-policy that evicts")
            }
            Self::RefusesWrites(text) if text.contains("NOREPLICAS") => {
                Some("the store refuses writes: it has too few replicas for min-replicas-to-write")
            }
            Self::RefusesWrites(_) => Some("the store refuses writes: see its own log"),
            Self::Denied(text) if FORBIDDEN.iter().any(|words| text.contains(words)) => {
                Some("the user lacks a permission: the README lists the ACL that sluice needs")
            }
            Self::Denied(_) => Some("the store refuses the password: set REDIS_AUTH to `password` or `user:password`"),
            _ => None,
        }
    }
}

/// As the server said it, where it was the server.
fn sentence(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoScript => f.write_str("the script is not loaded"),
            Self::Moved { address } => write!(f, "the slot has moved to {address}"),
            Self::Ask { address } => write!(f, "the slot is moving to {address}"),
            Self::TryAgain => f.write_str("the slot is moving"),
            Self::ReadOnly => f.write_str("the node is a replica now"),
            Self::Timeout => f.write_str("no answer in time"),
            Self::NotAsked => f.write_str("the node is known to be sick, or has too much to do"),
            Self::Down(text)
            | Self::RefusesWrites(text)
            | Self::Denied(text)
            | Self::Broken(text)
            | Self::BadResponse(text)
            | Self::Other(text) => f.write_str(text),
        }
    }
}
