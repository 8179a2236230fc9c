//! Who the primary is behind sentinels: they are asked for every connection, and only a node that calls itself a primary is believed.
//!
//! A sentinel names a new primary up to a second after it has promoted it, because that is how often it looks. So, where the one
//! that is named does not answer as a primary, its replicas are asked themselves: one of them may be promoted already. Should the
//! sentinels think better of it, they make it a replica again, which ends the connection like any other.

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use redis::{Value, aio::MultiplexedConnection};
use tokio::time::timeout;

use super::{
    connect::{DialError, Dialer, send},
    fault::Fault,
    settings::Address,
};

/// The part of a dial's time that the primary that is named has to answer, before its replicas are asked.
const HEAD_START: u32 = 4;

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
        match (self.open_promoted(&mut connection, master).await, refused) {
            (Some(opened), _) => Ok(opened),
            (None, Some(error)) => Err(error),
            (None, None) => named.await,
        }
    }

    /// The first of the replicas that calls itself a primary.
    async fn open_promoted(&self, sentinel: &mut MultiplexedConnection, master: &str) -> Option<MultiplexedConnection> {
        let mut ask = redis::cmd("SENTINEL");
        ask.arg("replicas").arg(master);
        // Who may not ask this waits until the sentinels name it.
        let replicas = replicas(&send(sentinel, &ask).await.ok()?);
        let mut opened: FuturesUnordered<_> =
            replicas.into_iter().map(|replica| self.open_if_primary(replica)).collect();
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
        let mut connection = self.open(&address, &self.settings.auth, self.settings.database).await?;
        let reply = send(&mut connection, &redis::cmd("ROLE")).await;
        match reply.map_err(|error| self.explain(&address, &error))? {
            Value::Array(fields) if is_text(fields.first(), "master") => Ok(connection),
            _ => {
                let reason = "the sentinels call it the primary, but it is not one yet".to_owned();
                Err(DialError::new(&address, reason, None))
            }
        }
    }
}

/// Their addresses, from the reply to SENTINEL REPLICAS. What cannot be read is left out.
fn replicas(reply: &Value) -> Vec<Address> {
    let Value::Array(rows) = reply else { return Vec::new() };
    let address = |row: &Value| {
        let fields: Vec<String> = redis::from_redis_value_ref(row).ok()?;
        let field = |name: &str| {
            let mut pairs = fields.chunks_exact(2);
            pairs.find(|pair| pair[0] == name).map(|pair| pair[1].clone())
        };
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
