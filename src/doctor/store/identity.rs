//! Who a node says it is. Every server that is new enough knows `HELLO`, and from Redis 6.2 on it needs no permission.

use redis::Value;

use super::{
    permissions::is_about,
    reach::{Connection, ask},
};
use crate::store::redis::fault::Fault;

/// The oldest releases that the script is written for.
const FLOORS: [(&str, &str, [u32; 2]); 2] = [("redis", "Redis", [6, 0]), ("valkey", "Valkey", [7, 2])];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    pub server: String,
    pub version: String,
    /// standalone, sentinel or cluster.
    pub mode: String,
    /// Not known of a sentinel.
    pub is_replica: Option<bool>,
}

/// What came of HELLO.
#[derive(Debug)]
pub enum Greeting {
    Identity(Identity),
    /// It knows HELLO, but does not answer us.
    Forbidden,
    /// It knows no HELLO.
    Unknown,
}

impl Greeting {
    /// As far as it says.
    pub fn is_replica(&self) -> Option<bool> {
        if let Self::Identity(identity) = self { identity.is_replica } else { None }
    }
}

pub async fn greet(connection: &mut Connection) -> Result<Greeting, Fault> {
    let mut hello = redis::cmd("HELLO");
    // The protocol that is spoken already.
    hello.arg(2);
    match ask(connection, &hello).await {
        Ok(reply) => Ok(Greeting::Identity(read(&reply))),
        Err(Fault::Other(text)) if text.contains("unknown command") => Ok(Greeting::Unknown),
        Err(Fault::Denied(text)) if is_about(&text, "hello") => Ok(Greeting::Forbidden),
        Err(fault) => Err(fault),
    }
}

fn read(reply: &Value) -> Identity {
    let mut identity = Identity::default();
    let Value::Array(fields) = reply else { return identity };
    for pair in fields.chunks_exact(2) {
        let [Value::BulkString(name), Value::BulkString(value)] = pair else { continue };
        let value = String::from_utf8_lossy(value).into_owned();
        match &name[..] {
            b"server" => identity.server = value,
            b"version" => identity.version = value,
            b"mode" => identity.mode = value,
            b"role" => identity.is_replica = Some(value != "master"),
            _ => {}
        }
    }
    identity
}

/// Whether a release is new enough.
#[derive(Debug, PartialEq, Eq)]
pub enum Age {
    Good(String),
    TooOld(String),
    Unknown(String),
}

impl Identity {
    pub fn age(&self) -> Age {
        let shown = format!("{} {}", self.server, self.version);
        let Some((_, name, floor)) = FLOORS.iter().find(|(server, ..)| *server == self.server) else {
            return Age::Unknown(format!("'{shown}' is neither Redis nor Valkey: sluice was not tried with it"));
        };
        let mut numbers = self.version.split('.').map(str::parse::<u32>);
        let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
            return Age::Unknown(format!("'{shown}' is no version: see what it is"));
        };
        let [oldest, oldest_minor] = floor;
        if [major, minor] < *floor {
            return Age::TooOld(format!("{name} {} is older than {oldest}.{oldest_minor}: upgrade it", self.version));
        }
        Age::Good(format!("{name} {}; {oldest}.{oldest_minor} or newer is needed", self.version))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_below_the_floor_are_too_old() {
        let age = |server: &str, version: &str| {
            Identity { server: server.to_owned(), version: version.to_owned(), ..Identity::default() }.age()
        };
        assert!(matches!(age("redis", "6.0.0"), Age::Good(_)));
        assert!(matches!(age("redis", "10.1.2"), Age::Good(_)));
        assert_eq!(age("redis", "5.0.14"), Age::TooOld("Redis 5.0.14 is older than 6.0: upgrade it".to_owned()));
        assert!(matches!(age("valkey", "7.2.5"), Age::Good(_)));
        assert!(matches!(age("valkey", "7.1.9"), Age::TooOld(_)));
        assert!(matches!(age("other", "1.0"), Age::Unknown(_)));
        assert!(matches!(age("redis", "unstable"), Age::Unknown(_)));
    }
}
