//! Getting to a node: a connection, or why there is none.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::{Cmd, Value, aio::MultiplexedConnection};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::Store;
use crate::{
    doctor::certificates::presented,
    store::redis::{
        connect::{DialError, Dialer, Target, send},
        fault::Fault,
        settings::{Address, Auth},
    },
};

/// A connection, and how long it may take for an answer.
#[derive(Clone, Debug)]
pub struct Connection {
    dialled: MultiplexedConnection,
    patience: Duration,
}

/// Why a node cannot be talked to.
#[derive(Debug)]
pub struct Unreached {
    pub reason: String,
    pub fault: Option<Fault>,
}

/// Dials as the service does. What it takes for a dial is what the service would take, within the doctor's own patience.
pub async fn dial(
    store: &Store,
    address: &Address,
    auth: &Auth,
    database: i64,
) -> Result<(Connection, Duration), Unreached> {
    let dialer = Dialer::new(Target::Fixed(address.clone()), &store.settings);
    let patience = dialer.patience().min(store.patience());
    let began = Instant::now();
    match timeout(patience, dialer.open(address, auth, database)).await {
        Ok(Ok(dialled)) => Ok((Connection { dialled, patience: store.patience() }, began.elapsed())),
        Ok(Err(error)) => Err(Unreached::of(error, patience)),
        Err(_) => Err(Unreached::silent(patience)),
    }
}

impl Unreached {
    /// After so long.
    pub fn silent(waited: Duration) -> Self {
        let reason = format!("no answer within {waited:?}: is it stopped, overloaded, or behind a firewall?");
        Self { reason, fault: Some(Fault::Timeout) }
    }

    /// Something was answered, but no answer to the question.
    pub fn by(fault: Fault, waited: Duration) -> Self {
        if fault == Fault::Timeout {
            return Self::silent(waited);
        }
        let advice = fault.advice().map_or_else(String::new, |advice| format!(": {advice}"));
        Self { reason: format!("{fault}{advice}"), fault: Some(fault) }
    }

    pub fn of(error: DialError, waited: Duration) -> Self {
        match error.fault {
            Some(Fault::Timeout) => Self::silent(waited),
            fault => Self { reason: error.reason, fault },
        }
    }
}

/// One command, with an end to the wait.
pub async fn ask(connection: &mut Connection, command: &Cmd) -> Result<Value, Fault> {
    match timeout(connection.patience, send(&mut connection.dialled, command)).await {
        Ok(reply) => reply.map_err(|error| Fault::of(&error)),
        Err(_) => Err(Fault::Timeout),
    }
}

/// Several commands, one behind the other, without waiting for answers in between.
pub async fn ask_all(connection: &Connection, commands: impl Iterator<Item = &Cmd>) -> Vec<Result<Value, Fault>> {
    let asked = commands.map(|command| {
        let mut connection = connection.clone();
        async move { ask(&mut connection, command).await }
    });
    join_all(asked).await
}

/// One sentence, with what listens there where that is no Redis as the settings have it.
pub async fn explain(store: &Store, address: &Address, unreached: &Unreached, auth: (&str, &Auth)) -> String {
    let (names, wants_tls) = (store.names, store.settings.tls.is_some());
    let reason = unreached.reason.replace("REDIS_AUTH", auth.0).replace("REDIS_TLS=", &format!("{}=", names.tls));
    match &unreached.fault {
        Some(Fault::Denied(text)) if text.contains("login was refused") => {
            let user = user_of(auth.1);
            let what = "the password is wrong, or there is no such user, or it is off";
            format!("the login as '{user}' was refused: {what}; set {} to `password` or `user:password`", auth.0)
        }
        Some(Fault::Broken(_)) if reason.contains("refused") => {
            format!("{reason}: nothing listens there; start it, or set {} to where it is", names.url)
        }
        Some(Fault::Broken(_) | Fault::BadResponse(_) | Fault::Other(_) | Fault::Timeout) => {
            match spoken_at(address, !wants_tls, store.patience() / 2).await {
                Some(Tongue::Http) => {
                    format!("an HTTP server answers there, and no Redis: set {} to the port of the store", names.url)
                }
                Some(Tongue::Redis) if wants_tls => {
                    format!("it speaks no TLS there: set {}=false, or the port that does", names.tls)
                }
                Some(Tongue::Tls) => {
                    format!("it speaks nothing but TLS there: set {}=true, or the port that does not", names.tls)
                }
                _ => reason,
            }
        }
        _ => reason,
    }
}

/// As whom the login is.
pub fn user_of(auth: &Auth) -> String {
    auth.read().ok().flatten().and_then(|(user, _)| user).unwrap_or_else(|| "default".to_owned())
}

/// What a server answers in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tongue {
    Http,
    Redis,
    Tls,
}

/// Asks in HTTP, which Redis answers with an error, and perhaps in TLS.
async fn spoken_at(address: &Address, try_tls: bool, patience: Duration) -> Option<Tongue> {
    let (plain, certificate) = tokio::join!(timeout(patience, spoken_plainly_at(address)), async {
        if try_tls { timeout(patience, presented(address)).await.ok().flatten() } else { None }
    });
    plain.ok().flatten().or(certificate.map(|_| Tongue::Tls))
}

async fn spoken_plainly_at(address: &Address) -> Option<Tongue> {
    let Address::Tcp { host, port } = address else { return None };
    let mut stream = TcpStream::connect((&**host, *port)).await.ok()?;
    stream.write_all(b"HEAD / HTTP/1.0\r\n\r\n").await.ok()?;
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).await.ok()?;
    match &answer {
        b"HTTP/" => Some(Tongue::Http),
        [b'-', ..] => Some(Tongue::Redis),
        _ => None,
    }
}
