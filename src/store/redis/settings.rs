//! Where the store is and how to get in: plain data, checked by whoever reads the settings.

use std::{
    fmt, fs,
    net::Ipv6Addr,
    path::{Path, PathBuf},
    time::Duration,
};

/// A text that is never shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself: for the one place that sends it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// How to log in. Files are read anew for every connection, so that a password can be changed while sluice runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Auth {
    #[default]
    None,
    Password {
        user: Option<String>,
        password: Secret,
    },
    /// A file that holds `password` or `user:password`.
    File {
        user: Option<String>,
        path: PathBuf,
    },
}

/// A user, if one is named, and a password.
pub type Login = (Option<String>, Secret);

impl Auth {
    /// `password` or `user:password`.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        match text.split_once(':') {
            _ if text.is_empty() => Self::None,
            Some((user, password)) => Self::Password { user: some(user), password: Secret::new(password) },
            None => Self::Password { user: None, password: Secret::new(text) },
        }
    }

    pub fn read(&self) -> Result<Option<Login>, String> {
        match self {
            Self::None => Ok(None),
            Self::Password { user, password } => Ok(Some((user.clone(), password.clone()))),
            Self::File { user, path } => {
                let text = fs::read_to_string(path)
                    .map_err(|error| format!("cannot read the password from {}: {error}", shown(path)))?;
                match (user, Self::parse(text.trim_end_matches(['\r', '\n']))) {
                    (Some(user), Self::Password { password, .. }) => Ok(Some((Some(user.clone()), password))),
                    (None, Self::Password { user, password }) => Ok(Some((user, password))),
                    _ => Ok(None),
                }
            }
        }
    }
}

/// Some give the password itself instead of a path: what does not look like a path is not told.
fn shown(path: &Path) -> String {
    let looks_like_one =
        ["/", "./", "../"].iter().any(|begin| path.as_os_str().as_encoded_bytes().starts_with(begin.as_bytes()));
    if looks_like_one {
        path.display().to_string()
    } else {
        "a file whose path does not look like one and is not shown".to_owned()
    }
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// One server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Address {
    /// `host:port`, `[v6]:port`, `host` or `/path`. What it says of a text that is none of them does not repeat it: it may be a
    /// part of a password.
    pub fn parse(text: &str) -> Result<Self, String> {
        const PORT: u16 = 6379;
        if text.contains('@') {
            return Err("there is an @ in an address: use redis://user:password@host:port, or REDIS_AUTH".to_owned());
        }
        if text.starts_with('/') {
            return Ok(Self::Unix(PathBuf::from(text)));
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
                let port = port.parse().map_err(|_| "what is after the colon is no port: use host:port".to_owned())?;
                (host, port)
            }
            _ => (text, PORT),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err("there is no host in it: use host:port".to_owned());
        }
        if host.contains(':') && host.parse::<Ipv6Addr>().is_err() {
            return Err("there are too many colons in it: use host:port, or [address]:port".to_owned());
        }
        Ok(Self::Tcp { host: host.to_owned(), port })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    Single(Address),
    Sentinel { master: String, sentinels: Vec<Address> },
    Cluster(Vec<Address>),
}

/// Files are read anew for every connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    pub ca: Option<PathBuf>,
    pub client_certificate: Option<(PathBuf, PathBuf)>,
    pub skip_hostname: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisSettings {
    pub topology: Topology,
    pub database: i64,
    pub auth: Auth,
    pub sentinel_auth: Auth,
    pub tls: Option<Tls>,
    /// The most that a call may take.
    pub timeout: Duration,
    /// Connections to each node.
    pub connections: usize,
    /// Healthy only while there is a connection.
    pub health_follows_connections: bool,
    pub key_prefix: String,
}

#[cfg(test)]
impl RedisSettings {
    /// One server, as it is by default.
    #[must_use]
    pub fn of(address: Address) -> Self {
        Self {
            topology: Topology::Single(address),
            database: 0,
            auth: Auth::None,
            sentinel_auth: Auth::None,
            tls: None,
            timeout: Duration::from_millis(10),
            connections: 1,
            health_follows_connections: false,
            key_prefix: String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_port_or_a_path() {
        let tcp = |host: &str, port| Ok(Address::Tcp { host: host.to_owned(), port });
        assert_eq!(Address::parse("redis:6380"), tcp("redis", 6380));
        assert_eq!(Address::parse("redis"), tcp("redis", 6379));
        assert_eq!(Address::parse("[::1]:7"), tcp("::1", 7));
        assert_eq!(Address::parse("::1"), tcp("::1", 6379));
        assert_eq!(Address::parse("/run/redis.sock"), Ok(Address::Unix("/run/redis.sock".into())));
        assert!(Address::parse(":6379").is_err());
        assert!(Address::parse("redis:x").is_err());
        assert!(Address::parse("me:secret@redis:1").is_err());
        assert!(Address::parse("me:secret:redis:1").is_err());
    }

    #[test]
    fn a_password_never_shows() {
        let auth = Auth::parse("me:s3cret:with:colons");
        assert!(!format!("{auth:?}").contains("s3cret"));
        let (user, password) = auth.read().unwrap().unwrap();
        assert_eq!((user.as_deref(), password.reveal()), (Some("me"), "s3cret:with:colons"));
    }

    #[test]
    fn a_password_from_a_file_is_read_anew_each_time() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let auth = Auth::File { user: None, path: file.path().to_owned() };
        for password in ["one", "two"] {
            fs::write(file.path(), format!("{password}\n")).unwrap();
            assert_eq!(auth.read().unwrap().unwrap().1.reveal(), password);
        }
    }
}
