//! How the process is set up: read once, from flags and the environment. The only reader of the environment.

mod grpc;
mod redis;
mod table;
#[cfg(test)]
mod tests;
mod traces;
mod value;

use std::{
    cell::RefCell, collections::HashMap, ffi::OsString, fmt, net::SocketAddr, path::PathBuf, str::FromStr,
    time::Duration,
};

pub use grpc::GrpcSettings;
pub use table::{GROUPS, Group, NOT_SERVED, Setting};
pub use value::parse_duration;
use value::{parse_bool, parse_interval, parse_limit};

use super::CompileOptions;
use crate::{
    engine::{quota::Quota, rule::OnStoreFailure, tree::Options},
    store::{redis::settings::RedisSettings, refusals::Scope},
    telemetry::traces::TraceSettings,
};

#[derive(Clone, Debug)]
pub struct Settings {
    pub rules: RulesSettings,
    pub answers: AnswerSettings,
    pub grpc: GrpcSettings,
    pub http: SocketAddr,
    pub debug: SocketAddr,
    pub drain: DrainSettings,
    pub store: StoreSettings,
    pub telemetry: TelemetrySettings,
}

#[derive(Clone, Debug)]
pub struct RulesSettings {
    pub path: PathBuf,
    pub poll_interval: Duration,
    pub merge_domains: bool,
    pub force_start: bool,
    pub shadow: bool,
    pub quota_mode: bool,
}

#[derive(Clone, Debug)]
pub struct AnswerSettings {
    pub headers: bool,
    pub limit_header: String,
    pub remaining_header: String,
    pub reset_header: String,
    pub dynamic_metadata: bool,
    /// What the native API gives a domain or a prefix without rules. `None` is no limit.
    pub native_default: Option<Quota>,
}

#[derive(Clone, Debug)]
pub struct DrainSettings {
    pub delay: Duration,
    pub timeout: Duration,
}

#[derive(Clone, Debug)]
pub struct StoreSettings {
    pub memory_entries_max: usize,
    pub key_prefix: String,
    pub on_store_failure: OnStoreFailure,
    /// Among how many sluices a limit is shared while `local` decides.
    pub local_replicas: u32,
    /// What refusals of Redis are remembered, if any.
    pub refusals: Option<Scope>,
    /// The main store and the one for rules per second; without it, counters are kept in this process.
    pub redis: Option<(RedisSettings, Option<RedisSettings>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(Clone, Debug)]
pub struct TelemetrySettings {
    pub log_level: tracing::Level,
    pub log_format: LogFormat,
    pub near_limit_ratio: f32,
    pub prometheus: Option<(SocketAddr, String)>,
    pub healthy_with_a_domain: bool,
    /// Without it, nothing is traced.
    pub traces: Option<TraceSettings>,
}

/// A setting that cannot be used. What it says never repeats the value of a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadSetting {
    pub env: &'static str,
    pub message: String,
}

impl fmt::Display for BadSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.env, self.message)
    }
}

/// Something that is not as the user may think it is.
pub type Warning = String;

impl Settings {
    /// From flags, given by variable name, and from the environment of the process.
    pub fn from_process(flags: &HashMap<&'static str, String>) -> Result<(Self, Vec<Warning>), Vec<BadSetting>> {
        Self::from_flags_and(flags, |name| std::env::var_os(name))
    }

    fn from_flags_and(
        flags: &HashMap<&'static str, String>,
        environment: impl Fn(&str) -> Option<OsString>,
    ) -> Result<(Self, Vec<Warning>), Vec<BadSetting>> {
        let lookup = |name: &str| flags.get(name).cloned().or_else(|| environment(name)?.into_string().ok());
        let read = Self::read(lookup);
        let names = GROUPS.iter().flat_map(|group| group.settings).map(|setting| setting.env);
        let no_text = no_text(names.filter(|env| !flags.contains_key(env)), environment);
        let (settings, mut warnings) = match read {
            Err(bad) => return Err(no_text.into_iter().chain(bad).collect()),
            Ok(_) if !no_text.is_empty() => return Err(no_text),
            Ok(read) => read,
        };
        warnings.extend(flags.iter().filter(|(env, value)| table::is_secret(env, value)).map(|(env, _)| {
            format!(
                "the flag for {env} holds a password, which everybody here can see in the list of processes: use a file"
            )
        }));
        Ok((settings, warnings))
    }

    /// All wrong settings are reported together.
    pub fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<(Self, Vec<Warning>), Vec<BadSetting>> {
        let reader = Reader::new(lookup);
        let settings = reader.settings();
        reader.finish(settings)
    }

    /// How rules are compiled under these settings.
    #[must_use]
    pub fn compile_options(&self) -> CompileOptions {
        self.rules.compile_options(&self.store.key_prefix)
    }

    /// Where the rules are, unless it is given, and how they are compiled, for those who need no more of the settings.
    pub fn rules_of_process(path: Option<&PathBuf>) -> Result<(PathBuf, CompileOptions), Vec<BadSetting>> {
        let reader = Reader::new(|name: &str| std::env::var(name).ok());
        let (rules, prefix) = (reader.rules(), reader.key_prefix());
        let mut bad = no_text(reader.read.into_inner().into_iter(), |name| std::env::var_os(name));
        bad.extend(reader.bad.into_inner());
        if !bad.is_empty() {
            return Err(bad);
        }
        let options = rules.compile_options(&prefix);
        Ok((path.cloned().unwrap_or(rules.path), options))
    }
}

impl RulesSettings {
    fn compile_options(&self, key_prefix: &str) -> CompileOptions {
        let engine = Options { key_prefix: key_prefix.into(), shadow: self.shadow, quota_mode: self.quota_mode };
        CompileOptions { engine, merge_domains: self.merge_domains }
    }
}

/// Reads settings by name and collects what is wrong with them.
struct Reader<L> {
    lookup: L,
    bad: RefCell<Vec<BadSetting>>,
    warnings: RefCell<Vec<Warning>>,
    /// Which settings were read: the tests hold it against the table.
    read: RefCell<Vec<&'static str>>,
}

impl<L: Fn(&str) -> Option<String>> Reader<L> {
    fn new(lookup: L) -> Self {
        Self { lookup, bad: RefCell::default(), warnings: RefCell::default(), read: RefCell::default() }
    }

    fn finish(self, settings: Settings) -> Result<(Settings, Vec<Warning>), Vec<BadSetting>> {
        let mut warnings = self.warnings.into_inner();
        for (env, instead) in NOT_SERVED {
            if (self.lookup)(env).is_some_and(|value| !value.is_empty() && !table::asks_for_nothing(env, &value)) {
                warnings.push(format!("{env} is set, but sluice does not serve it: {instead}"));
            }
        }
        // A setting that two stores share is read for both.
        let mut bad: Vec<BadSetting> = Vec::new();
        for setting in self.bad.into_inner() {
            if !bad.contains(&setting) {
                bad.push(setting);
            }
        }
        if bad.is_empty() { Ok((settings, warnings)) } else { Err(bad) }
    }

    /// What is set, if anything is. An empty variable is as good as none.
    fn given(&self, env: &'static str) -> Option<String> {
        self.read.borrow_mut().push(env);
        (self.lookup)(env).filter(|value| !value.is_empty())
    }

    /// The path of a certificate or key. Its text, which some give instead, is not told.
    fn file(&self, env: &'static str) -> Option<PathBuf> {
        let given = self.given(env)?;
        if value::holds_pem(&given) {
            let message = "it holds the text of a certificate or key, which is not shown: use the path of a file";
            self.reject(env, message.to_owned());
            return None;
        }
        Some(PathBuf::from(given))
    }

    fn text(&self, env: &'static str) -> String {
        self.given(env).unwrap_or_else(|| default_of(env).to_owned())
    }

    fn parsed<T>(&self, env: &'static str, fallback: T, parse: impl FnOnce(&str) -> Result<T, String>) -> T {
        let text = self.text(env);
        parse(&text).unwrap_or_else(|hint| {
            self.reject(env, format!("'{text}' cannot be used: {hint}"));
            fallback
        })
    }

    fn reject(&self, env: &'static str, message: String) {
        self.bad.borrow_mut().push(BadSetting { env, message });
    }

    fn warn(&self, warning: String) {
        self.warnings.borrow_mut().push(warning);
    }

    fn bool(&self, env: &'static str) -> bool {
        self.parsed(env, false, parse_bool)
    }

    fn duration(&self, env: &'static str) -> Duration {
        self.parsed(env, Duration::ZERO, parse_duration)
    }

    fn number<T: FromStr>(&self, env: &'static str, fallback: T, hint: &str) -> T {
        self.parsed(env, fallback, |text| text.parse().map_err(|_| hint.to_owned()))
    }

    fn entries(&self, env: &'static str) -> usize {
        self.parsed(env, 1, |text| match text.parse() {
            Ok(entries) if (1..=1_000_000_000).contains(&entries) => Ok(entries),
            _ => Err("use a number from 1 to 1000000000".to_owned()),
        })
    }

    fn address(&self, host: &'static str, port: &'static str) -> SocketAddr {
        let port = self.number(port, 0, "use a number from 0 to 65535");
        let any = SocketAddr::from(([0, 0, 0, 0], port));
        self.parsed(host, any, |text| {
            let address = if text == "localhost" { "127.0.0.1" } else { text.trim_matches(['[', ']']) };
            let parsed = address.parse().map(|ip| SocketAddr::new(ip, port));
            parsed.map_err(|_| "use an IP address of this machine, such as 127.0.0.1, 0.0.0.0 or ::".to_owned())
        })
    }

    fn settings(&self) -> Settings {
        Settings {
            rules: self.rules(),
            answers: self.answers(),
            grpc: self.grpc(),
            http: self.address("HOST", "PORT"),
            debug: self.address("DEBUG_HOST", "DEBUG_PORT"),
            drain: DrainSettings { delay: self.duration("DRAIN_DELAY"), timeout: self.duration("DRAIN_TIMEOUT") },
            store: self.store(),
            telemetry: self.telemetry(),
        }
    }

    fn key_prefix(&self) -> String {
        self.parsed("CACHE_KEY_PREFIX", String::new(), |text| {
            let moves_slots = "a brace would put the keys of a domain into other slots: leave it out";
            if text.contains(['{', '}']) { Err(moves_slots.to_owned()) } else { Ok(text.to_owned()) }
        })
    }

    fn store(&self) -> StoreSettings {
        let key_prefix = self.key_prefix();
        StoreSettings {
            memory_entries_max: self.entries("MEMORY_STORE_MAX_ENTRIES"),
            on_store_failure: self.parsed("ON_STORE_FAILURE", OnStoreFailure::Allow, |text| {
                OnStoreFailure::from_name(text).ok_or_else(|| "use allow, deny, error or local".to_owned())
            }),
            local_replicas: self.parsed("LOCAL_REPLICAS", 1, |text| match text.parse() {
                Ok(replicas) if replicas > 0 => Ok(replicas),
                _ => Err("use a number from 1 on".to_owned()),
            }),
            refusals: self.refusals(),
            redis: self.redis(&key_prefix),
            key_prefix,
        }
    }

    fn refusals(&self) -> Option<Scope> {
        let bytes = self.number("LOCAL_CACHE_SIZE_IN_BYTES", 0, "use a number of bytes");
        self.bool("REMEMBER_REFUSALS").then(|| Scope::new(bytes))
    }

    fn rules(&self) -> RulesSettings {
        let explicit = self.given("RATE_LIMIT_CONFIG").map(PathBuf::from);
        let runtime = ["RUNTIME_ROOT", "RUNTIME_SUBDIRECTORY", "RUNTIME_APPDIRECTORY"];
        let any_runtime = runtime.map(|env| self.given(env).is_some()).contains(&true);
        let runtime: PathBuf = runtime.map(|env| self.text(env)).iter().filter(|part| !part.is_empty()).collect();
        let examples = PathBuf::from("config/rules");
        let path = explicit.unwrap_or_else(|| if !any_runtime && examples.is_dir() { examples } else { runtime });
        self.bool("RUNTIME_IGNOREDOTFILES");
        self.bool("RUNTIME_WATCH_ROOT");
        let poll_interval = self.parsed("RULES_POLL_INTERVAL", Duration::from_secs(5), parse_interval);
        RulesSettings {
            path,
            poll_interval,
            merge_domains: self.bool("MERGE_DOMAIN_CONFIG"),
            force_start: self.bool("FORCE_START_WITHOUT_INITIAL_CONFIG"),
            shadow: self.bool("SHADOW_MODE"),
            quota_mode: self.bool("QUOTA_MODE"),
        }
    }

    fn answers(&self) -> AnswerSettings {
        let header = |env| {
            self.parsed(env, String::new(), |text| match http::HeaderName::from_str(text) {
                Ok(_) => Ok(text.to_owned()),
                Err(_) => Err("use a header name: letters, digits and dashes".to_owned()),
            })
        };
        AnswerSettings {
            headers: self.bool("LIMIT_RESPONSE_HEADERS_ENABLED"),
            limit_header: header("LIMIT_LIMIT_HEADER"),
            remaining_header: header("LIMIT_REMAINING_HEADER"),
            reset_header: header("LIMIT_RESET_HEADER"),
            dynamic_metadata: self.bool("RESPONSE_DYNAMIC_METADATA"),
            native_default: self.parsed("NATIVE_DEFAULT_LIMIT", None, parse_limit),
        }
    }

    fn telemetry(&self) -> TelemetrySettings {
        let log_level = self.parsed("LOG_LEVEL", tracing::Level::INFO, |text| match &*text.to_ascii_lowercase() {
            "panic" | "fatal" | "error" => Ok(tracing::Level::ERROR),
            "warn" | "warning" => Ok(tracing::Level::WARN),
            "info" => Ok(tracing::Level::INFO),
            "debug" => Ok(tracing::Level::DEBUG),
            "trace" => Ok(tracing::Level::TRACE),
            _ => Err("use error, warn, info, debug or trace".to_owned()),
        });
        let log_format = self.parsed("LOG_FORMAT", LogFormat::Text, |text| match text {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            _ => Err("use text or json".to_owned()),
        });
        let near_limit_ratio = self.parsed("NEAR_LIMIT_RATIO", 0.8, |text| match text.parse() {
            Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(ratio),
            _ => Err("use a number from 0 to 1".to_owned()),
        });
        if self.bool("USE_STATSD") {
            self.warn("USE_STATSD is true, but sluice does not send statsd: scrape /metrics".to_owned());
        }
        TelemetrySettings {
            log_level,
            log_format,
            near_limit_ratio,
            prometheus: self.prometheus(),
            traces: self.traces(),
            healthy_with_a_domain: self.bool("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED"),
        }
    }

    fn prometheus(&self) -> Option<(SocketAddr, String)> {
        let wanted = self.bool("USE_PROMETHEUS");
        let address = self.parsed("PROMETHEUS_ADDR", SocketAddr::from(([0, 0, 0, 0], 0)), |text| {
            // As in Go, an address without a host is every address.
            let with_host = if text.starts_with(':') { format!("0.0.0.0{text}") } else { text.to_owned() };
            with_host.replace("localhost:", "127.0.0.1:").parse().map_err(|_| "use :9090 or 127.0.0.1:9090".to_owned())
        });
        let path = self.parsed("PROMETHEUS_PATH", String::new(), |text| match text {
            text if text.starts_with('/') && !text.contains(['{', '}', '*']) => Ok(text.to_owned()),
            _ => Err("use a path that begins with /".to_owned()),
        });
        wanted.then_some((address, path))
    }
}

/// What is no text must not pass for unset: a default would be in force that nobody has chosen.
fn no_text(
    names: impl Iterator<Item = &'static str>,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Vec<BadSetting> {
    let mut wrong: Vec<&str> =
        names.filter(|env| environment(env).is_some_and(|value| value.to_str().is_none())).collect();
    wrong.dedup();
    let message = "it is no UTF-8, and is not shown: set it to a text";
    wrong.into_iter().map(|env| BadSetting { env, message: message.to_owned() }).collect()
}

/// The default of a setting as its table says.
fn default_of(env: &str) -> &'static str {
    let mut settings = GROUPS.iter().flat_map(|group| group.settings);
    settings.find(|setting| setting.env == env).map_or("", |setting| setting.default)
}
