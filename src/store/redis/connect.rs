//! Opens connections: dials, logs in, makes sure that a primary answers, and loads the script.
//!
//! The pool gives each lane a connection of its own for as long as it works. Nothing here waits on behalf of a caller.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bb8_redis::bb8;
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _,
    RedisConnectionInfo, RedisError, TlsCertificates, Value, aio::MultiplexedConnection, io::tcp::TcpSettings,
};
use tokio::{sync::watch, time::timeout};

use super::{
    fault::Fault,
    script,
    settings::{Address, Auth, RedisSettings, Tls},
};

use crate::panics::{self, Panicked};

/// For a connection to be of use: dial, TLS, login, script. Short, because a store that is back is found by the next dial.
const CONNECT: Duration = Duration::from_millis(500);
/// Where calls may take long, so may the few round trips of a dial.
const CONNECT_PER_TIMEOUT: u32 = 5;
/// Unanswered bytes for this long mean that nobody is there.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(1);
const KEEPALIVE: Duration = Duration::from_secs(5);
const COMMANDS_WAITING_MAX: usize = 64;

/// Sends one command. An error that the server replies is an error here, and not a value like any other.
pub async fn send(connection: &mut MultiplexedConnection, command: &Cmd) -> Result<Value, RedisError> {
    match connection.send_packed_command(command).await? {
        Value::ServerError(error) => Err(error.into()),
        reply => Ok(reply),
    }
}

/// Where to dial.
#[derive(Clone, Debug)]
pub enum Target {
    Fixed(Address),
    /// Ask these who the primary is, every time.
    Sentinel {
        master: String,
        sentinels: Vec<Address>,
    },
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Fixed(address) => write!(f, "{address}"),
            Self::Sentinel { master, .. } => write!(f, "{master} (sentinel)"),
        }
    }
}

/// Why there is no connection: one sentence that says what to fix.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot connect to {target}: {reason}")]
pub struct DialError {
    pub target: String,
    pub reason: String,
    pub fault: Option<Fault>,
}

impl DialError {
    pub(super) fn new(target: &impl ToString, reason: impl Into<String>, fault: Option<Fault>) -> Self {
        Self { target: target.to_string(), reason: reason.into(), fault }
    }
}

/// Tells the lanes why the pool could not dial: the pool itself would let them wait.
#[derive(Clone, Debug)]
pub struct DialErrors(watch::Sender<Option<DialError>>);

impl Default for DialErrors {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl bb8::ErrorSink<DialError> for DialErrors {
    fn sink(&self, error: DialError) {
        self.0.send_replace(Some(error));
    }

    fn boxed_clone(&self) -> Box<dyn bb8::ErrorSink<DialError>> {
        Box::new(self.clone())
    }
}

impl DialErrors {
    /// A connection, or the next error if that comes first.
    pub async fn or_link(&self, pool: &bb8::Pool<Dialer>) -> Result<bb8::PooledConnection<'static, Dialer>, DialError> {
        let mut news = self.0.subscribe();
        let unknown =
            || DialError { target: "the store".to_owned(), reason: "no connection in time".to_owned(), fault: None };
        tokio::select! {
            biased;
            link = pool.get_owned() => link.map_err(|_| self.0.borrow().clone().unwrap_or_else(unknown)),
            _ = news.changed() => Err(news.borrow().clone().unwrap_or_else(unknown)),
        }
    }
}

/// One connection.
#[derive(Debug)]
pub struct Link {
    pub connection: MultiplexedConnection,
    /// When it was dialled: a node that turned out to be a replica begins a new era.
    pub era: u64,
    broken: AtomicBool,
}

impl Link {
    /// The pool will not use it again.
    pub fn give_up(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }
}

#[derive(Clone, Debug)]
pub struct Dialer {
    pub target: Target,
    pub settings: Arc<RedisSettings>,
    pub era: Arc<AtomicU64>,
}

impl bb8::ManageConnection for Dialer {
    type Connection = Link;
    type Error = DialError;

    async fn connect(&self) -> Result<Link, DialError> {
        let limit = self.patience();
        // The pool would count a dial that panics as under way for ever.
        match timeout(limit, panics::caught(self.dial())).await {
            Ok(Ok(dialled)) => dialled,
            Ok(Err(Panicked)) => Err(DialError::new(&self.target, "sluice has panicked while it dialled", None)),
            Err(_) => {
                Err(DialError::new(&self.target, format!("no answer within {limit:?}{}", self.hint_of_silence()), None))
            }
        }
    }

    async fn is_valid(&self, link: &mut Link) -> Result<(), DialError> {
        if self.has_broken(link) {
            Err(DialError::new(&self.target, "the connection broke".to_owned(), None))
        } else {
            Ok(())
        }
    }

    fn has_broken(&self, link: &mut Link) -> bool {
        link.broken.load(Ordering::Relaxed)
    }
}

impl Dialer {
    #[must_use]
    pub fn new(target: Target, settings: &Arc<RedisSettings>) -> Self {
        Self { target, settings: settings.clone(), era: Arc::default() }
    }

    /// How long a dial may take.
    #[must_use]
    pub fn patience(&self) -> Duration {
        CONNECT.max(self.settings.timeout * CONNECT_PER_TIMEOUT)
    }

    async fn dial(&self) -> Result<Link, DialError> {
        let era = self.era.load(Ordering::Acquire);
        let mut connection = match &self.target {
            Target::Fixed(address) => self.open(address, &self.settings.auth, self.settings.database).await?,
            Target::Sentinel { master, sentinels } => self.open_primary(master, sentinels).await?,
        };
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(script::SCRIPT);
        let loaded = send(&mut connection, &load).await;
        loaded.map_err(|error| self.explain(&self.target, &error))?;
        Ok(Link { connection, era, broken: AtomicBool::new(false) })
    }

    /// A connection to a server, logged in.
    pub async fn open(
        &self,
        address: &Address,
        auth: &Auth,
        database: i64,
    ) -> Result<MultiplexedConnection, DialError> {
        let login = auth.read().map_err(|reason| DialError::new(address, reason, None))?;
        let mut redis = RedisConnectionInfo::default().set_db(database).set_skip_set_lib_name();
        if let Some((user, password)) = login {
            redis = redis.set_password(password.reveal());
            if let Some(user) = user {
                redis = redis.set_username(user);
            }
        }
        let info = self.place(address).into_connection_info();
        let info = info.map_err(|error| self.explain(address, &error))?;
        let info = info.set_redis_settings(redis).set_tcp_settings(tcp_settings());
        let client = self.client(address, info)?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.patience()))
            .set_response_timeout(None)
            .set_pipeline_buffer_size(COMMANDS_WAITING_MAX);
        let connection = client.get_multiplexed_async_connection_with_config(&config).await;
        connection.map_err(|error| self.explain(address, &error))
    }

    fn place(&self, address: &Address) -> ConnectionAddr {
        match (address, &self.settings.tls) {
            (Address::Unix(path), _) => ConnectionAddr::Unix(path.clone()),
            (Address::Tcp { host, port }, None) => ConnectionAddr::Tcp(host.clone(), *port),
            (Address::Tcp { host, port }, Some(_)) => {
                ConnectionAddr::TcpTls { host: host.clone(), port: *port, insecure: false, tls_params: None }
            }
        }
    }

    fn client(&self, address: &Address, info: ConnectionInfo) -> Result<Client, DialError> {
        let client = match &self.settings.tls {
            Some(tls) => {
                let certificates = certificates(tls).map_err(|reason| DialError::new(address, reason, None))?;
                Client::build_with_tls(info, certificates).map(|client| without_hostnames(client, tls.skip_hostname))
            }
            None => Client::open(info).map(Ok),
        };
        client.and_then(|client| client).map_err(|error| self.explain(address, &error))
    }

    /// A server that does not speak TLS waits for the rest of what it takes for a command.
    fn hint_of_silence(&self) -> &'static str {
        if self.settings.tls.is_some() { ": if it does not speak TLS there, set REDIS_TLS=false" } else { "" }
    }

    /// In one sentence, with what to do about it.
    #[must_use]
    pub fn explain(&self, target: &impl ToString, error: &RedisError) -> DialError {
        let fault = Fault::of(error);
        let mut reason = match fault.advice() {
            Some(advice) => format!("{fault}: {advice}"),
            None => fault.to_string(),
        };
        let says = |words: &[&str]| words.iter().any(|word| reason.contains(word));
        if says(&["InvalidContentType", "corrupt message"]) {
            reason += ": it does not speak TLS here, set REDIS_TLS=false or the port that does";
        } else if says(&["CertificateRequired", "HandshakeFailure", "certificate required"]) {
            reason += ": it wants a certificate of ours, set REDIS_TLS_CLIENT_CERT and REDIS_TLS_CLIENT_KEY";
        } else if says(&["certificate expired", "ExpiredContext"]) {
            reason += ": renew its certificate";
        } else if says(&["not valid for name", "NotValidForName"]) {
            reason += ": use the name in its certificate, or set REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=true";
        } else if says(&["certificate", "UnknownIssuer"]) {
            reason += ": set REDIS_TLS_CACERT to the CA that signed its certificate";
        } else if fault == Fault::Timeout {
            reason += self.hint_of_silence();
        } else if self.settings.tls.is_none() && error.is_connection_dropped() && !error.is_connection_refusal() {
            reason += ": if it wants TLS, set REDIS_TLS=true";
        }
        DialError::new(target, reason, Some(fault))
    }
}

fn tcp_settings() -> TcpSettings {
    let keepalive =
        socket2::TcpKeepalive::new().with_time(KEEPALIVE).with_interval(Duration::from_secs(1)).with_retries(3);
    TcpSettings::default().set_nodelay(true).set_keepalive(keepalive).set_user_timeout(TCP_USER_TIMEOUT)
}

fn certificates(tls: &Tls) -> Result<TlsCertificates, String> {
    let read =
        |path: &std::path::Path| fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()));
    let client_tls = match &tls.client_certificate {
        Some((certificate, key)) => Some(ClientTlsConfig { client_cert: read(certificate)?, client_key: read(key)? }),
        None => None,
    };
    Ok(TlsCertificates { client_tls, root_cert: tls.ca.as_deref().map(read).transpose()? })
}

/// The chain is verified all the same, only the name is not.
fn without_hostnames(client: Client, skip: bool) -> Result<Client, RedisError> {
    if !skip {
        return Ok(client);
    }
    let info = client.get_connection_info().clone();
    let mut address = info.addr().clone();
    address.set_danger_accept_invalid_hostnames(true);
    Client::open(info.set_addr(address))
}
