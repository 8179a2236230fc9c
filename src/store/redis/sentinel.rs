//! Who the primary is behind sentinels: they are asked for every connection, and only a node that calls itself a primary is believed.
//!
//! A sentinel names a new primary up to a second after it has promoted it, because that is how often it looks. So, where the one
//! that is named does not answer as a primary in good time, its replicas are asked themselves beside it: one of them may be promoted
//! already. Should the sentinels think better of it, they make it a replica again, which ends the connection like any other.

use futures_util::{
    StreamExt as _,
    future::{Either, select},
    stream::FuturesUnordered,
};
use redis::{Value, aio::MultiplexedConnection};
use tokio::time::timeout;

use super::{
    connect::{DialError, Dialer, send},
    fault::Fault,
    settings::Address,
};

/// The part of a dial's time that the primary that is named has to answer, before its replicas are asked.
const HEAD_START: u32 = 4;
/// How sentinels mark a replica that is not worth asking.
const GONE: [&str; 3] = ["s_down", "o_down", "disconnected"];

impl Dialer {
    /// Asks all sentinels at once, so that a dead one costs nothing, and takes the first primary that they lead to.
    pub(super) async fn open_primary(
        &self,
        master: &str,
        sentinels: &[Address],
    ) -> Result<MultiplexedConnection, DialError> {
        let mut led: FuturesUnordered<_> =
            sentinels.iter().map(|sentinel| self.open_named_by(sentinel, master)).collect();
        let mut told = DialError::new(&self.target, "no sentinel is set".to_owned(), None);
        let mut is_absent = true;
        while let Some(opened) = led.next().await {
            match opened {
                Ok(connection) => return Ok(connection),
                // What a sentinel says tells more than that another one is not there.
                Err(error) if is_absent => {
                    is_absent = matches!(error.fault, Some(Fault::Broken(_) | Fault::Timeout));
                    told = error;
                }
                Err(_) => {}
            }
        }
        Err(told)
    }

    /// Whom a sentinel calls the primary.
    pub async fn ask_sentinel(&self, sentinel: &Address, master: &str) -> Result<Address, DialError> {
        let mut connection = self.open(sentinel, &self.settings.sentinel_auth, 0).await?;
        self.named(sentinel, &mut connection, master).await
    }

    async fn open_named_by(&self, sentinel: &Address, master: &str) -> Result<MultiplexedConnection, DialError> {
        let mut connection = self.open(sentinel, &self.settings.sentinel_auth, 0).await?;
        let primary = self.named(sentinel, &mut connection, master).await?;
        let named = self.open_if_primary(primary);
        tokio::pin!(named);
        let refused = match timeout(self.patience() / HEAD_START, &mut named).await {
            Ok(Ok(opened)) => return Ok(opened),
            Ok(Err(error)) => Some(error),
            Err(_) => None,
        };
        let promoted = self.open_promoted(&mut connection, master);
        tokio::pin!(promoted);
        if let Some(error) = refused {
            return promoted.await.ok_or(error);
        }
        // Beside each other: the one that is named may only be slow, and a replica may never answer.
        match select(named, promoted).await {
            Either::Left((Ok(opened), _)) | Either::Right((Some(opened), _)) => Ok(opened),
            Either::Left((Err(error), promoted)) => promoted.await.ok_or(error),
            Either::Right((None, named)) => named.await,
        }
    }

    /// The first of the replicas that calls itself a primary.
    async fn open_promoted(&self, sentinel: &mut MultiplexedConnection, master: &str) -> Option<MultiplexedConnection> {
        let mut ask = redis::cmd("SENTINEL");
        ask.arg("replicas").arg(master);
        // Who may not ask this waits until the sentinels name it.
        let replicas = replicas(&send(sentinel, &ask).await.ok()?);
        let mut opened: FuturesUnordered<_> =
            replicas.into_iter().map(|replica| self.open_if_promoted(replica)).collect();
        while let Some(opened) = opened.next().await {
            if let Ok(connection) = opened {
                return Some(connection);
            }
        }
        None
    }

    async fn named(
        &self,
        sentinel: &Address,
        connection: &mut MultiplexedConnection,
        master: &str,
    ) -> Result<Address, DialError> {
        let mut ask = redis::cmd("SENTINEL");
        ask.arg("get-master-addr-by-name").arg(master);
        let reply = send(connection, &ask).await.map_err(|error| self.explain(sentinel, &error))?;
        let told: Option<(String, u16)> = redis::from_redis_value(reply).unwrap_or(None);
        let Some((host, port)) = told else {
            let reason =
                format!("this sentinel knows no master '{master}': the first name in REDIS_URL is the master's");
            return Err(DialError::new(sentinel, reason, None));
        };
        Ok(Address::Tcp { host, port })
    }

    async fn open_if_primary(&self, address: Address) -> Result<MultiplexedConnection, DialError> {
        self.open_if(address, is_primary, "the sentinels call it the primary, but it is not one yet").await
    }

    async fn open_if_promoted(&self, address: Address) -> Result<MultiplexedConnection, DialError> {
        self.open_if(address, is_promoted, "it was not promoted").await
    }

    async fn open_if(
        &self,
        address: Address,
        is_right: fn(&[Value]) -> bool,
        reason: &str,
    ) -> Result<MultiplexedConnection, DialError> {
        let mut connection = self.open(&address, &self.settings.auth, self.settings.database).await?;
        let reply = send(&mut connection, &redis::cmd("ROLE")).await;
        match reply.map_err(|error| self.explain(&address, &error))? {
            Value::Array(fields) if is_right(&fields) => Ok(connection),
            _ => Err(DialError::new(&address, reason, None)),
        }
    }
}

fn is_primary(role: &[Value]) -> bool {
    is_text(role.first(), "master")
}

/// A primary that has replicated something. One at offset 0 was started a moment ago: an old primary that has come back empty,
/// and that the sentinels are about to make a replica.
fn is_promoted(role: &[Value]) -> bool {
    is_primary(role) && matches!(role.get(1), Some(Value::Int(1..)))
}

/// The addresses of those that answer, from the reply to SENTINEL REPLICAS. What cannot be read is left out.
fn replicas(reply: &Value) -> Vec<Address> {
    let Value::Array(rows) = reply else { return Vec::new() };
    let address = |row: &Value| {
        let fields: Vec<String> = redis::from_redis_value_ref(row).ok()?;
        let field = |name: &str| {
            let mut pairs = fields.chunks_exact(2);
            pairs.find(|pair| pair[0] == name).map(|pair| pair[1].clone())
        };
        let flags = field("flags").unwrap_or_default();
        if flags.split(',').any(|flag| GONE.contains(&flag)) {
            return None;
        }
        Some(Address::Tcp { host: field("ip")?, port: field("port")?.parse().ok()? })
    };
    rows.iter().filter_map(address).collect()
}

fn is_text(value: Option<&Value>, text: &str) -> bool {
    match value {
        Some(Value::BulkString(bytes)) => bytes == text.as_bytes(),
        Some(Value::SimpleString(said)) => said == text,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn replicas_that_the_sentinels_have_lost_are_not_asked() {
        let row = |port: &str, flags: &str| {
            let fields = ["name", "x", "ip", "10.0.0.1", "port", port, "flags", flags];
            Value::Array(fields.into_iter().map(text).collect())
        };
        let rows = [
            row("1", "slave"),
            row("2", "s_down,slave"),
            row("3", "slave,disconnected"),
            row("4", "o_down,slave"),
            row("5", "slave,promoted"),
            row("none", "slave"),
        ];
        let at = |port| Address::Tcp { host: "10.0.0.1".to_owned(), port };
        assert_eq!(replicas(&Value::Array(rows.to_vec())), [at(1), at(5)]);
    }

    #[test]
    fn an_old_primary_that_has_come_back_empty_was_not_promoted() {
        let role = |role: &str, offset| [text(role), Value::Int(offset), Value::Array(Vec::new())];
        assert!(is_primary(&role("master", 0)) && !is_promoted(&role("master", 0)));
        assert!(is_promoted(&role("master", 1)));
        assert!(!is_promoted(&role("slave", 1)));
    }
}
