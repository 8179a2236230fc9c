//! The settings of the distributed store, in the reference's forms and as URLs.

use std::{path::PathBuf, time::Duration};

use super::{Reader, value::parse_interval};
use crate::store::redis::settings::{Address, Auth, RedisSettings, Secret, Tls, Topology};

/// Which variables describe one store: the main one, or the one for rules per second.
struct Names {
    url: &'static str,
    kind: &'static str,
    socket: &'static str,
    auth: &'static str,
    auth_file: &'static str,
    sentinel_auth: &'static str,
    sentinel_auth_file: &'static str,
    tls: &'static str,
    pool: &'static str,
    timeout: &'static str,
}

const MAIN: Names = Names {
    url: "REDIS_URL",
    kind: "REDIS_TYPE",
    socket: "REDIS_SOCKET_TYPE",
    auth: "REDIS_AUTH",
    auth_file: "REDIS_AUTH_FILE",
    sentinel_auth: "REDIS_SENTINEL_AUTH",
    sentinel_auth_file: "REDIS_SENTINEL_AUTH_FILE",
    tls: "REDIS_TLS",
    pool: "REDIS_POOL_SIZE",
    timeout: "REDIS_TIMEOUT",
};

const PER_SECOND: Names = Names {
    url: "REDIS_PERSECOND_URL",
    kind: "REDIS_PERSECOND_TYPE",
    socket: "REDIS_PERSECOND_SOCKET_TYPE",
    auth: "REDIS_PERSECOND_AUTH",
    auth_file: "REDIS_PERSECOND_AUTH_FILE",
    sentinel_auth: "REDIS_PERSECOND_SENTINEL_AUTH",
    sentinel_auth_file: "REDIS_PERSECOND_SENTINEL_AUTH_FILE",
    tls: "REDIS_PERSECOND_TLS",
    pool: "REDIS_PERSECOND_POOL_SIZE",
    timeout: "REDIS_PERSECOND_TIMEOUT",
};

/// What a URL says beside the address.
#[derive(Debug, Default)]
struct Url {
    addresses: Vec<Address>,
    /// The first name of a sentinel list.
    master: Option<String>,
    auth: Option<Auth>,
    database: i64,
    tls: bool,
}

impl<L: Fn(&str) -> Option<String>> Reader<L> {
    /// The main store and the one for rules per second; none where no setting asks for one.
    pub(super) fn redis(&self, key_prefix: &str) -> Option<(RedisSettings, Option<RedisSettings>)> {
        let main = self.backend(&MAIN, key_prefix);
        let wants_per_second = self.bool("REDIS_PERSECOND");
        let per_second = self.backend(&PER_SECOND, key_prefix);
        let backend = self.text("BACKEND_TYPE");
        let wanted = match &*backend {
            "memory" => false,
            "redis" => true,
            "" => main.is_some(),
            _ => {
                let hint = "use redis or memory; sluice keeps no counters in memcached";
                self.reject("BACKEND_TYPE", format!("'{backend}' cannot be used: {hint}"));
                false
            }
        };
        match (wanted, main) {
            (false, _) => None,
            (true, None) => {
                self.reject("BACKEND_TYPE", "it says redis, but REDIS_URL does not say where".to_owned());
                None
            }
            (true, Some(main)) => {
                if wants_per_second && per_second.is_none() {
                    self.reject("REDIS_PERSECOND", "it is true, but REDIS_PERSECOND_URL does not say where".to_owned());
                }
                Some((main, per_second.filter(|_| wants_per_second)))
            }
        }
    }

    fn backend(&self, names: &Names, key_prefix: &str) -> Option<RedisSettings> {
        let is_main = names.url == MAIN.url;
        let cluster_url = if is_main { self.given("REDIS_CLUSTER_URL") } else { None };
        let kind = self.text(names.kind).to_ascii_uppercase();
        let kind = if cluster_url.is_some() { "CLUSTER".to_owned() } else { kind };
        let socket = self.given(names.socket);
        let auth = self.auth(names.auth, names.auth_file);
        let cluster_auth = if is_main { self.cluster_auth() } else { Auth::None };
        let sentinel_auth = self.auth(names.sentinel_auth, names.sentinel_auth_file);
        let wants_tls = self.bool(names.tls) || (is_main && self.bool("REDIS_USE_TLS"));
        let tls = self.tls();
        let timeout = self.parsed(names.timeout, Duration::from_millis(10), parse_interval);
        let connections = self.connections(names.pool, is_main);
        let health_follows_connections = self.bool("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION");

        let env = if cluster_url.is_some() { "REDIS_CLUSTER_URL" } else { names.url };
        let text = cluster_url.or_else(|| self.given(names.url))?;
        let url = match parse_url(&text, &kind, socket.as_deref()) {
            Ok(url) => url,
            // The text may hold a password.
            Err(reason) => {
                self.reject(env, reason);
                return None;
            }
        };
        let topology = match topology(names.kind, &kind, &url) {
            Ok(topology) => topology,
            Err((env, reason)) => {
                self.reject(env, reason);
                return None;
            }
        };
        let auth = [auth, cluster_auth].into_iter().find(|auth| *auth != Auth::None);
        Some(RedisSettings {
            topology,
            database: url.database,
            auth: auth.or(url.auth).unwrap_or_default(),
            sentinel_auth,
            tls: (wants_tls || url.tls).then_some(tls),
            timeout,
            connections,
            health_follows_connections,
            key_prefix: key_prefix.to_owned(),
        })
    }

    fn auth(&self, env: &'static str, file_env: &'static str) -> Auth {
        let (text, file) = (self.given(env), self.given(file_env));
        match (text, file) {
            (Some(_), Some(_)) => {
                self.reject(file_env, format!("{env} is set, too: use one of them"));
                Auth::None
            }
            (Some(text), None) => Auth::parse(&text),
            (None, Some(path)) => self.auth_file(file_env, None, path),
            (None, None) => Auth::None,
        }
    }

    fn cluster_auth(&self) -> Auth {
        let user = self.given("REDIS_CLUSTER_USERNAME");
        match (self.given("REDIS_CLUSTER_PASSWORD"), self.given("REDIS_CLUSTER_PASSWORD_FILE")) {
            (Some(password), _) => Auth::Password { user, password: Secret::new(password) },
            (None, Some(path)) => self.auth_file("REDIS_CLUSTER_PASSWORD_FILE", user, path),
            (None, None) => Auth::None,
        }
    }

    fn auth_file(&self, env: &'static str, user: Option<String>, path: String) -> Auth {
        // Where the password itself was given instead of a file, it must not be told.
        if !path.contains('/') {
            self.reject(env, "it is no path: use the path of a file, with a / in it".to_owned());
            return Auth::None;
        }
        let auth = Auth::File { user, path: PathBuf::from(path) };
        if let Err(reason) = auth.read() {
            self.reject(env, reason);
        }
        auth
    }

    fn tls(&self) -> Tls {
        let (certificate, key) = (self.file("REDIS_TLS_CLIENT_CERT"), self.file("REDIS_TLS_CLIENT_KEY"));
        let client_certificate = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => {
                let reason = "REDIS_TLS_CLIENT_CERT and REDIS_TLS_CLIENT_KEY go together: set both or none";
                self.reject("REDIS_TLS_CLIENT_CERT", reason.to_owned());
                None
            }
        };
        let skip_hostname = self.bool("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION");
        Tls { ca: self.file("REDIS_TLS_CACERT"), client_certificate, skip_hostname }
    }

    fn connections(&self, env: &'static str, is_main: bool) -> usize {
        let parse = |text: &str| match text.parse() {
            Ok(connections) if (1..=64).contains(&connections) => Ok(connections),
            _ => Err("use a number from 1 to 64; a connection carries any number of calls".to_owned()),
        };
        if is_main && self.given("REDIS_MAX_CONN").is_some() {
            return self.parsed("REDIS_MAX_CONN", 1, parse);
        }
        self.parsed(env, 1, parse)
    }
}

fn topology(kind_env: &'static str, kind: &str, url: &Url) -> Result<Topology, (&'static str, String)> {
    let addresses = url.addresses.clone();
    match kind {
        "SINGLE" => match &addresses[..] {
            [address] => Ok(Topology::Single(address.clone())),
            _ => {
                Err((kind_env, "it says SINGLE, but the URL names several servers: say CLUSTER or SENTINEL".to_owned()))
            }
        },
        "CLUSTER" if url.database != 0 => Err((kind_env, "a cluster has only database 0".to_owned())),
        "CLUSTER" => Ok(Topology::Cluster(addresses)),
        "SENTINEL" => match (&url.master, addresses.is_empty()) {
            (Some(master), false) => Ok(Topology::Sentinel { master: master.clone(), sentinels: addresses }),
            _ => Err((
                kind_env,
                "SENTINEL needs the master's name and at least one sentinel: master,host:port,...".to_owned(),
            )),
        },
        _ => Err((kind_env, format!("'{kind}' cannot be used: use SINGLE, SENTINEL or CLUSTER"))),
    }
}

/// An address, a list of them, or URLs.
fn parse_url(text: &str, kind: &str, socket: Option<&str>) -> Result<Url, String> {
    let mut url = Url::default();
    for (index, part) in text.split(',').map(str::trim).filter(|part| !part.is_empty()).enumerate() {
        if kind == "SENTINEL" && index == 0 {
            // What a sentinel takes for a name, and a URL with a password is not.
            let is_name = part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte));
            if !is_name {
                return Err("the first in the list is the name of the master, without host and port".to_owned());
            }
            url.master = Some(part.to_owned());
            continue;
        }
        match part.split_once("://") {
            Some((scheme, rest)) => parse_one_url(&mut url, scheme, rest)?,
            None if socket == Some("unix") => url.addresses.push(Address::Unix(PathBuf::from(part))),
            None => url.addresses.push(Address::parse(part)?),
        }
    }
    match socket {
        None | Some("unix" | "tcp") => {}
        Some(other) => return Err(format!("the socket type '{other}' cannot be used: use tcp or unix")),
    }
    if url.addresses.is_empty() { Err("it names no server: use host:port".to_owned()) } else { Ok(url) }
}

fn parse_one_url(url: &mut Url, scheme: &str, rest: &str) -> Result<(), String> {
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    if let "unix" | "redis+unix" = scheme {
        if !rest.starts_with('/') {
            return Err("a unix URL has a path that begins with /: use unix:///path".to_owned());
        }
        url.addresses.push(Address::Unix(PathBuf::from(rest)));
        let mut login = (None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("db", value)) => url.database = database(value)?,
                Some(("user", value)) => login.0 = Some(decoded(value)?),
                Some(("pass", value)) => login.1 = Some(decoded(value)?),
                _ => return Err("a unix URL can say db, user and pass, nothing else".to_owned()),
            }
        }
        if let (user, Some(password)) = login {
            url.auth = Some(Auth::Password { user, password: Secret::new(password) });
        }
        return Ok(());
    }
    match scheme {
        "redis" | "valkey" => {}
        "rediss" | "valkeys" => url.tls = true,
        _ => return Err("its scheme cannot be used: use redis, rediss or unix".to_owned()),
    }
    let (login, place) = rest.rsplit_once('@').map_or((None, rest), |(login, place)| (Some(login), place));
    let (place, path) = place.split_once('/').unwrap_or((place, ""));
    if !path.is_empty() {
        url.database = database(path)?;
    }
    if let Some(login) = login {
        let (user, password) = login.split_once(':').unwrap_or(("", login));
        let user = (!user.is_empty()).then(|| decoded(user)).transpose()?;
        url.auth = Some(Auth::Password { user, password: Secret::new(decoded(password)?) });
    }
    url.addresses.push(Address::parse(place)?);
    Ok(())
}

fn database(text: &str) -> Result<i64, String> {
    text.parse().ok().filter(|number| *number >= 0).ok_or_else(|| "the database must be a number".to_owned())
}

/// Percent-decoded.
fn decoded(text: &str) -> Result<String, String> {
    let wrong = || "there is a percent sign without two hex digits in it".to_owned();
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        if *first == b'%' {
            let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok()).ok_or_else(wrong)?;
            bytes.push(u8::from_str_radix(digits, 16).map_err(|_| wrong())?);
            rest = &after[2..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    String::from_utf8(bytes).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::{super::Settings, *};

    fn read(pairs: &[(&str, &str)]) -> Result<Option<(RedisSettings, Option<RedisSettings>)>, String> {
        let pairs: HashMap<String, String> = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        match Settings::read(|name| pairs.get(name).cloned()) {
            Ok((settings, _)) => Ok(settings.store.redis),
            Err(bad) => Err(bad.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")),
        }
    }

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.to_owned(), port }
    }

    fn main(pairs: &[(&str, &str)]) -> RedisSettings {
        read(pairs).unwrap().unwrap().0
    }

    #[test]
    fn without_any_redis_setting_there_is_no_redis() {
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[("REDIS_URL", "redis:6379"), ("BACKEND_TYPE", "memory")]), Ok(None));
    }

    #[test]
    fn the_forms_of_the_reference_are_read() {
        let single = main(&[("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", "redis:6379"), ("REDIS_AUTH", "u:p")]);
        assert_eq!(single.topology, Topology::Single(tcp("redis", 6379)));
        assert_eq!(single.auth, Auth::Password { user: Some("u".to_owned()), password: Secret::new("p") });
        let unix = main(&[("REDIS_SOCKET_TYPE", "unix"), ("REDIS_URL", "/run/r.sock")]);
        assert_eq!(unix.topology, Topology::Single(Address::Unix("/run/r.sock".into())));
        let cluster = main(&[("REDIS_TYPE", "cluster"), ("REDIS_URL", "a:1,b:2")]);
        assert_eq!(cluster.topology, Topology::Cluster(vec![tcp("a", 1), tcp("b", 2)]));
        let sentinel = main(&[("REDIS_TYPE", "SENTINEL"), ("REDIS_URL", "mymaster,s1:26379,s2:26379")]);
        let sentinels = vec![tcp("s1", 26379), tcp("s2", 26379)];
        assert_eq!(sentinel.topology, Topology::Sentinel { master: "mymaster".to_owned(), sentinels });
    }

    #[test]
    fn urls_say_user_password_database_and_tls() {
        let settings = main(&[("REDIS_URL", "rediss://me:p%40ss@redis:6380/3")]);
        assert_eq!(settings.topology, Topology::Single(tcp("redis", 6380)));
        assert_eq!(settings.auth, Auth::Password { user: Some("me".to_owned()), password: Secret::new("p@ss") });
        assert_eq!((settings.database, settings.tls.is_some()), (3, true));
        let unix = main(&[("REDIS_URL", "unix:///run/r.sock?db=2&pass=x")]);
        assert_eq!(unix.topology, Topology::Single(Address::Unix("/run/r.sock".into())));
        assert_eq!(unix.database, 2);
    }

    #[test]
    fn the_other_names_for_the_same_things_are_read() {
        let settings = main(&[
            ("REDIS_CLUSTER_URL", "redis://a:1,redis://b:2"),
            ("REDIS_USE_TLS", "true"),
            ("REDIS_CLUSTER_USERNAME", "me"),
            ("REDIS_CLUSTER_PASSWORD", "secret"),
            ("REDIS_MAX_CONN", "7"),
        ]);
        assert_eq!(settings.topology, Topology::Cluster(vec![tcp("a", 1), tcp("b", 2)]));
        assert_eq!(settings.auth, Auth::Password { user: Some("me".to_owned()), password: Secret::new("secret") });
        assert_eq!((settings.tls.is_some(), settings.connections), (true, 7));
    }

    #[test]
    fn rules_per_second_can_have_a_store_of_their_own() {
        let pairs = [("REDIS_URL", "a:1"), ("REDIS_PERSECOND", "true"), ("REDIS_PERSECOND_URL", "b:2")];
        let (_, per_second) = read(&pairs).unwrap().unwrap();
        assert_eq!(per_second.unwrap().topology, Topology::Single(tcp("b", 2)));
        assert!(read(&pairs[..2]).unwrap_err().contains("REDIS_PERSECOND_URL"));
    }

    #[test]
    fn no_message_repeats_a_password() {
        for url in [
            "redis://me:s3cret@host:port",
            "ftp://me:s3cret@host",
            "redis://me:s3cret@h/x",
            "redis://:s3cret%zz@h",
            "redis://me:s3cret",
            "redis://:s3cret?@h",
            "redis://me:s3cret,more@h",
            "me:s3cret@host:6379",
            "me:s3cret:host:6379",
            "s3cret://host",
            "unix://me:s3cret@/run/r.sock",
            "unix:///run/r.sock?password=s3cret",
        ] {
            let message = read(&[("REDIS_URL", url)]).unwrap_err();
            assert!(message.starts_with("REDIS_URL: ") && !message.contains("s3cret"), "{message}");
        }
        for (env, value) in [
            ("REDIS_AUTH_FILE", "s3cret"),
            ("REDIS_AUTH_FILE", "s3cret/with+slashes="),
            ("REDIS_TLS_CLIENT_KEY", "LS0tLS1CRUdJTiBQs3cret"),
            ("REDIS_TLS_CACERT", " MIIEs3cret"),
            ("REDIS_CLUSTER_PASSWORD_FILE", "s3cret"),
            ("REDIS_TLS_CLIENT_KEY", "-----BEGIN PRIVATE KEY-----\ns3cret"),
            ("GRPC_SERVER_TLS_KEY", "-----BEGIN PRIVATE KEY-----s3cret"),
        ] {
            let message = read(&[("REDIS_URL", "redis:1"), (env, value)]).unwrap_err();
            assert!(message.contains(env) && !message.contains("s3cret"), "{message}");
        }
        let sentinel = [("REDIS_TYPE", "SENTINEL"), ("REDIS_URL", "redis://me:s3cret@s1:26379,s2:26379")];
        let message = read(&sentinel).unwrap_err();
        assert!(message.starts_with("REDIS_URL: ") && !message.contains("s3cret"), "{message}");
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        for (pairs, part) in [
            (&[("REDIS_URL", "a:1,b:2")][..], "SINGLE"),
            (&[("REDIS_URL", "mymaster"), ("REDIS_TYPE", "SENTINEL")][..], "it names no server"),
            (&[("REDIS_URL", "a:1"), ("REDIS_TYPE", "ring")][..], "SINGLE, SENTINEL or CLUSTER"),
            (&[("BACKEND_TYPE", "memcache")][..], "memcached"),
            (&[("BACKEND_TYPE", "redis")][..], "REDIS_URL"),
            (&[("REDIS_URL", "a:1"), ("REDIS_TIMEOUT", "0")][..], "at least 1ms"),
            (&[("REDIS_URL", "a:1"), ("REDIS_TIMEOUT", "1ns")][..], "at least 1ms"),
            (&[("REDIS_URL", "a:1"), ("REDIS_AUTH", "x"), ("REDIS_AUTH_FILE", "/x")][..], "use one of them"),
            (&[("REDIS_URL", "a:1"), ("REDIS_AUTH_FILE", "/no/such/file")][..], "/no/such/file"),
        ] {
            let message = read(pairs).unwrap_err();
            assert!(message.contains(part), "{message}");
        }
    }
}
