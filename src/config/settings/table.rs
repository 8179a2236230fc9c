//! Every setting: its variable, its default, what it means. Help texts, the README's table and the reader are all held to this.

use super::value::parse_bool;

/// One setting. Its flag is its variable in lower case with dashes: `GRPC_PORT` is `--grpc-port`.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub env: &'static str,
    pub default: &'static str,
    pub help: &'static str,
}

impl Setting {
    #[must_use]
    pub fn flag(&self) -> String {
        self.env.to_ascii_lowercase().replace('_', "-")
    }
}

/// Settings that belong together.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    pub name: &'static str,
    pub settings: &'static [Setting],
}

const fn setting(env: &'static str, default: &'static str, help: &'static str) -> Setting {
    Setting { env, default, help }
}

/// Whether a value of this setting is, or holds, a password.
#[must_use]
pub fn is_secret(env: &str, value: &str) -> bool {
    let is_password = env.ends_with("_AUTH") || env.ends_with("_PASSWORD");
    is_password || env.ends_with("_URL") && (value.contains('@') || value.contains("pass="))
}

pub const GROUPS: &[Group] = &[
    Group {
        name: "Rules",
        settings: &[
            setting(
                "RATE_LIMIT_CONFIG",
                "",
                "Rules: a file, or a directory with *.yaml, *.yml and *.json files. Without it the RUNTIME_* settings say where they \
                 are; without those, config/rules if it exists here",
            ),
            setting(
                "RUNTIME_ROOT",
                "/srv/runtime_data/current",
                "As the reference: rules are in RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY",
            ),
            setting("RUNTIME_SUBDIRECTORY", "", "See RUNTIME_ROOT"),
            setting("RUNTIME_APPDIRECTORY", "config", "See RUNTIME_ROOT"),
            setting(
                "RUNTIME_IGNOREDOTFILES",
                "true",
                "Accepted for the reference's sake: files that begin with a dot are always ignored",
            ),
            setting(
                "RUNTIME_WATCH_ROOT",
                "true",
                "Accepted for the reference's sake: the root, the directory and its files are always watched",
            ),
            setting("RULES_POLL_INTERVAL", "5s", "How often the rules are read even though nothing was seen to change"),
            setting("MERGE_DOMAIN_CONFIG", "false", "Let several files add rules to one domain"),
            setting(
                "FORCE_START_WITHOUT_INITIAL_CONFIG",
                "false",
                "Start even though the rules cannot be found, and wait for them",
            ),
            setting("SHADOW_MODE", "false", "Refuse nothing; count what would have been refused"),
            setting("QUOTA_MODE", "false", "Treat every rule as one with quota_mode"),
        ],
    },
    Group {
        name: "Answers",
        settings: &[
            setting(
                "LIMIT_RESPONSE_HEADERS_ENABLED",
                "false",
                "Add rate limit headers to answers, and Retry-After to refusals",
            ),
            setting("LIMIT_LIMIT_HEADER", "RateLimit-Limit", "Name of the header with the limit"),
            setting("LIMIT_REMAINING_HEADER", "RateLimit-Remaining", "Name of the header with what remains"),
            setting(
                "LIMIT_RESET_HEADER",
                "RateLimit-Reset",
                "Name of the header with the seconds until the limit is whole again",
            ),
            setting(
                "RESPONSE_DYNAMIC_METADATA",
                "false",
                "Add the request and the metadata of its rules to answers, for access logs",
            ),
            setting(
                "NATIVE_DEFAULT_LIMIT",
                "100/second burst 200",
                "What the native API gives a domain or a prefix without rules: a token bucket, as requests/unit with or without a \
                 burst; or unlimited",
            ),
        ],
    },
    Group {
        name: "Listeners",
        settings: &[
            setting("GRPC_HOST", "0.0.0.0", "Address of the gRPC listener"),
            setting("GRPC_PORT", "8081", "Port of the gRPC listener; 0 picks a free one"),
            setting(
                "GRPC_UDS",
                "",
                "Listen on this unix socket instead of a port; a name that begins with @ is an abstract one",
            ),
            setting("GRPC_UDS_MODE", "0666", "Who may connect to it, as chmod writes it"),
            setting("GRPC_SERVER_USE_TLS", "false", "Serve gRPC over TLS, 1.2 or 1.3"),
            setting(
                "GRPC_SERVER_TLS_CERT",
                "",
                "The certificate and its chain, in PEM form; read anew when it changes",
            ),
            setting("GRPC_SERVER_TLS_KEY", "", "Its key"),
            setting("GRPC_CLIENT_TLS_CACERT", "", "Callers must show a certificate that this CA signed"),
            setting(
                "GRPC_CLIENT_TLS_SAN",
                "",
                "And it must be valid for this host name or have this URI, such as spiffe://cluster.local/ns/edge/sa/envoy",
            ),
            setting(
                "GRPC_MAX_CONNECTION_AGE",
                "24h",
                "Ask callers to open another connection after this long, a tenth more or less; 0 is never",
            ),
            setting(
                "GRPC_MAX_CONNECTION_AGE_GRACE",
                "1h",
                "Cut a connection that is still open this long after that; 0 is never",
            ),
            setting(
                "GRPC_MAX_CONNECTIONS",
                "10000",
                "Connections of the gRPC listener; one more closes the oldest that has asked nothing yet, or is closed itself",
            ),
            setting(
                "GRPC_MAX_IDLE_CONNECTIONS",
                "2048",
                "Connections that may stay open without a call for 10 s, about 25 KB each; the others are asked to leave",
            ),
            setting(
                "MAX_CALLS_IN_FLIGHT",
                "4096",
                "Calls under way on all connections; beyond, a connection that has 64 of them is answered UNAVAILABLE",
            ),
            setting("HOST", "0.0.0.0", "Address of the HTTP listener: /json, health, /metrics"),
            setting("PORT", "8080", "Port of the HTTP listener; 0 picks a free one"),
            setting("DEBUG_HOST", "127.0.0.1", "Address of the debug listener: /rlconfig, /config, /explain, /reload"),
            setting("DEBUG_PORT", "6070", "Port of the debug listener; 0 picks a free one"),
            setting("DRAIN_DELAY", "0s", "After SIGTERM, report NOT_SERVING for this long before the listeners close"),
            setting(
                "DRAIN_TIMEOUT",
                "10s",
                "After that, wait at most this long for calls in flight; a second SIGTERM or SIGINT ends at once",
            ),
        ],
    },
    Group {
        name: "Store",
        settings: &[
            setting(
                "MEMORY_STORE_MAX_ENTRIES",
                "1000000",
                "Counters that the embedded store remembers, about 200 bytes each",
            ),
            setting("CACHE_KEY_PREFIX", "", "Begins every counter key"),
            setting(
                "ON_STORE_FAILURE",
                "allow",
                "What callers get while the store cannot decide: allow, deny, error or local",
            ),
            setting("LOCAL_REPLICAS", "1", "Among how many sluices a limit is shared while `local` decides"),
            setting("BACKEND_TYPE", "", "redis or memory; without it, redis if REDIS_URL is set"),
            setting(
                "REMEMBER_REFUSALS",
                "true",
                "Answer from memory, without asking Redis, what it has refused for some time to come and what asking would not change",
            ),
            setting(
                "LOCAL_CACHE_SIZE_IN_BYTES",
                "0",
                "As the reference: remember refusals of fixed windows that charge them, too, in this much memory; 0 is off",
            ),
        ],
    },
    Group {
        name: "Redis and Valkey",
        settings: &[
            setting(
                "REDIS_URL",
                "",
                "host:port, a socket path, or redis://, rediss:// or unix:// with user, password and database; sentinels: \
                 master,host:port,...; cluster: host:port,...",
            ),
            setting("REDIS_TYPE", "SINGLE", "SINGLE, SENTINEL or CLUSTER"),
            setting("REDIS_SOCKET_TYPE", "", "tcp or unix; without it, a REDIS_URL that begins with / is a socket"),
            setting("REDIS_AUTH", "", "password, or user:password"),
            setting("REDIS_AUTH_FILE", "", "A file that holds the same; read anew for every connection"),
            setting("REDIS_SENTINEL_AUTH", "", "password, or user:password, for the sentinels"),
            setting("REDIS_SENTINEL_AUTH_FILE", "", "A file that holds the same"),
            setting("REDIS_TLS", "false", "Use TLS"),
            setting("REDIS_TLS_CACERT", "", "The CA that signed the server's certificate; without it, the public ones"),
            setting("REDIS_TLS_CLIENT_CERT", "", "Our certificate, if the server wants one"),
            setting("REDIS_TLS_CLIENT_KEY", "", "Its key"),
            setting("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "false", "Verify the certificate, but not the name in it"),
            setting("REDIS_POOL_SIZE", "2", "Connections to each node; each carries any number of calls"),
            setting("REDIS_TIMEOUT", "10ms", "The most that a call may take; a caller's own deadline can make it less"),
            setting("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "false", "Be healthy only while the store answers"),
            setting("REDIS_CLUSTER_URL", "", "Another name for REDIS_URL with REDIS_TYPE=CLUSTER"),
            setting("REDIS_USE_TLS", "false", "Another name for REDIS_TLS"),
            setting("REDIS_CLUSTER_USERNAME", "", "Another name for the user in REDIS_AUTH"),
            setting("REDIS_CLUSTER_PASSWORD", "", "Another name for the password in REDIS_AUTH"),
            setting("REDIS_CLUSTER_PASSWORD_FILE", "", "A file that holds the same"),
            setting("REDIS_MAX_CONN", "", "Another name for REDIS_POOL_SIZE"),
            setting("REDIS_PERSECOND", "false", "Keep rules whose unit is a second on a store of their own"),
            setting("REDIS_PERSECOND_URL", "", "That store, as REDIS_URL"),
            setting("REDIS_PERSECOND_TYPE", "SINGLE", "As REDIS_TYPE"),
            setting("REDIS_PERSECOND_SOCKET_TYPE", "", "As REDIS_SOCKET_TYPE"),
            setting("REDIS_PERSECOND_AUTH", "", "As REDIS_AUTH"),
            setting("REDIS_PERSECOND_AUTH_FILE", "", "As REDIS_AUTH_FILE"),
            setting("REDIS_PERSECOND_SENTINEL_AUTH", "", "As REDIS_SENTINEL_AUTH"),
            setting("REDIS_PERSECOND_SENTINEL_AUTH_FILE", "", "As REDIS_SENTINEL_AUTH_FILE"),
            setting("REDIS_PERSECOND_TLS", "false", "As REDIS_TLS; with the same certificates"),
            setting("REDIS_PERSECOND_POOL_SIZE", "2", "As REDIS_POOL_SIZE"),
            setting("REDIS_PERSECOND_TIMEOUT", "10ms", "As REDIS_TIMEOUT"),
        ],
    },
    Group {
        name: "Health and telemetry",
        settings: &[
            setting(
                "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
                "false",
                "Be healthy only while the rules have at least one domain",
            ),
            setting("LOG_LEVEL", "info", "error, warn, info, debug or trace"),
            setting("LOG_FORMAT", "text", "text or json"),
            setting("NEAR_LIMIT_RATIO", "0.8", "The share of a limit from which on hits count as near it"),
            setting(
                "USE_PROMETHEUS",
                "false",
                "Serve metrics on an address of their own, beside /metrics on the HTTP port",
            ),
            setting("PROMETHEUS_ADDR", ":9090", "That address"),
            setting("PROMETHEUS_PATH", "/metrics", "The path of the metrics there"),
            setting(
                "TRACING_ENABLED",
                "false",
                "Send traces over OTLP, to where OTEL_EXPORTER_OTLP_ENDPOINT and its kin say",
            ),
            setting("TRACING_EXPORTER_PROTOCOL", "http", "http (protobuf) or grpc"),
            setting("TRACING_SERVICE_NAME", "RateLimit", "Our name in traces; OTEL_SERVICE_NAME if only that is set"),
            setting("TRACING_SERVICE_NAMESPACE", "", "The namespace of that name"),
            setting("TRACING_SERVICE_INSTANCE_ID", "", "Which of several sluices this is; without it, a random one"),
            setting(
                "TRACING_SAMPLING_RATE",
                "1",
                "The share of calls without a traced caller that are traced, 0 to 1; a caller's own choice is kept",
            ),
            setting(
                "USE_STATSD",
                "false",
                "The reference's statsd output is not served; true is answered with a warning",
            ),
        ],
    },
];

/// Settings of the reference that have no meaning here, and what to do instead. Naming one is answered with a warning.
pub const NOT_SERVED: &[(&str, &str)] = &[
    ("CONFIG_TYPE", "rules come from files"),
    ("CONFIG_GRPC_XDS_NODE_ID", "rules come from files"),
    ("CONFIG_GRPC_XDS_NODE_METADATA", "rules come from files"),
    ("CONFIG_GRPC_XDS_SERVER_URL", "rules come from files"),
    ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "rules come from files"),
    ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "rules come from files"),
    ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "rules come from files"),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "rules come from files"),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "rules come from files"),
    ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "rules come from files"),
    ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "rules come from files"),
    ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "rules come from files"),
    ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "rules come from files"),
    ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "rules come from files"),
    ("XDS_CLIENT_BACKOFF_JITTER", "rules come from files"),
    ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "rules come from files"),
    ("STATSD_HOST", "scrape /metrics"),
    ("STATSD_PORT", "scrape /metrics"),
    ("STATSD_PROTOCOL", "scrape /metrics"),
    ("USE_DOG_STATSD", "scrape /metrics"),
    ("USE_DOG_STATSD_MOGRIFIERS", "scrape /metrics"),
    ("PROMETHEUS_MAPPER_YAML", "metric names are those of the reference's built-in mapping"),
    ("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "times are in seconds"),
    ("EXTRA_TAGS", "add labels in the scrape configuration"),
    ("STATS_FLUSH_INTERVAL", "metrics are always current"),
    ("DISABLE_STATS", "metrics are always counted, and cost nothing until scraped"),
    ("MEMCACHE_HOST_PORT", "counters are kept in this process or in Redis"),
    ("MEMCACHE_MAX_IDLE_CONNS", "counters are kept in this process or in Redis"),
    ("MEMCACHE_SRV", "counters are kept in this process or in Redis"),
    ("MEMCACHE_SRV_REFRESH", "counters are kept in this process or in Redis"),
    ("MEMCACHE_TLS", "counters are kept in this process or in Redis"),
    ("MEMCACHE_TLS_CLIENT_CERT", "counters are kept in this process or in Redis"),
    ("MEMCACHE_TLS_CLIENT_KEY", "counters are kept in this process or in Redis"),
    ("MEMCACHE_TLS_CACERT", "counters are kept in this process or in Redis"),
    ("MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", "counters are kept in this process or in Redis"),
    ("EXPIRATION_JITTER_MAX_SECONDS", "a counter lives exactly as long as it means something"),
    ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "write `on_over_limit: spare` into the rules"),
    ("REDIS_PIPELINE_WINDOW", "calls are batched without a timer"),
    ("REDIS_PIPELINE_LIMIT", "calls are batched without a timer"),
    ("REDIS_CLUSTER_PIPELINE_PARALLELISM", "a request is one call"),
    ("REDIS_POOL_ON_EMPTY_BEHAVIOR", "callers never wait for a connection"),
    ("REDIS_PERSECOND_PIPELINE_WINDOW", "calls are batched without a timer"),
    ("REDIS_PERSECOND_PIPELINE_LIMIT", "calls are batched without a timer"),
    ("REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM", "a request is one call"),
    ("REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", "callers never wait for a connection"),
    ("REDIS_STARTUP_INITIAL_INTERVAL", "sluice starts without the store and picks it up when it comes"),
    ("REDIS_STARTUP_MAX_INTERVAL", "sluice starts without the store and picks it up when it comes"),
    ("REDIS_STARTUP_MAX_ELAPSED_TIME", "sluice starts without the store and picks it up when it comes"),
];

/// What the reference has without them, and many write down all the same.
const REFERENCE_DEFAULTS: &[(&str, &str)] = &[
    ("CONFIG_TYPE", "FILE"),
    ("CONFIG_GRPC_XDS_NODE_ID", "default"),
    ("CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000"),
    ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "3s"),
    ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "false"),
    ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "10s"),
    ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "60s"),
    ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "0.5"),
    ("XDS_CLIENT_BACKOFF_JITTER", "true"),
    ("STATSD_HOST", "localhost"),
    ("STATSD_PORT", "8125"),
    ("USE_DOG_STATSD", "false"),
    ("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "false"),
    ("STATS_FLUSH_INTERVAL", "10s"),
    ("DISABLE_STATS", "false"),
    ("MEMCACHE_MAX_IDLE_CONNS", "2"),
    ("MEMCACHE_SRV_REFRESH", "0"),
    ("MEMCACHE_TLS", "false"),
    ("MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", "false"),
    ("EXPIRATION_JITTER_MAX_SECONDS", "300"),
    ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "false"),
    ("REDIS_PIPELINE_WINDOW", "0"),
    ("REDIS_PIPELINE_LIMIT", "0"),
    ("REDIS_CLUSTER_PIPELINE_PARALLELISM", "1"),
    ("REDIS_POOL_ON_EMPTY_BEHAVIOR", "WAIT"),
    ("REDIS_PERSECOND_PIPELINE_WINDOW", "0"),
    ("REDIS_PERSECOND_PIPELINE_LIMIT", "0"),
    ("REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM", "1"),
    ("REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", "WAIT"),
    ("REDIS_STARTUP_INITIAL_INTERVAL", "1s"),
    ("REDIS_STARTUP_MAX_INTERVAL", "30s"),
    ("REDIS_STARTUP_MAX_ELAPSED_TIME", "0"),
];

/// Whether a setting that is not served is set to what the reference does without it: then nobody expects anything of it.
#[must_use]
pub fn asks_for_nothing(env: &str, value: &str) -> bool {
    let default = REFERENCE_DEFAULTS.iter().find(|(known, _)| *known == env).map(|(_, default)| *default);
    default.is_some_and(|default| {
        let as_switch = parse_bool(default).ok().filter(|_| matches!(default, "true" | "false"));
        default == value || as_switch.is_some_and(|default| parse_bool(value) == Ok(default))
    })
}
