//! Every metric family, in one table. The README's table is held to it.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// One family of the table.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    pub name: &'static str,
    pub kind: Kind,
    /// `key1` stands for as many levels as the rule has: `key1`, `key2`, `key3`, ...
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

const fn family(name: &'static str, kind: Kind, labels: &'static [&'static str], help: &'static str) -> Family {
    Family { name, kind, labels, help }
}

const RULE: &[&str] = &["domain", "key1"];

pub const TOTAL_HITS: Family =
    family("ratelimit_service_rate_limit_total_hits", Kind::Counter, RULE, "Hits asked for, by rule.");
pub const OVER_LIMIT: Family =
    family("ratelimit_service_rate_limit_over_limit", Kind::Counter, RULE, "Hits beyond the limit, by rule.");
pub const NEAR_LIMIT: Family = family(
    "ratelimit_service_rate_limit_near_limit",
    Kind::Counter,
    RULE,
    "Hits between NEAR_LIMIT_RATIO of the limit and the limit, by rule.",
);
pub const WITHIN_LIMIT: Family =
    family("ratelimit_service_rate_limit_within_limit", Kind::Counter, RULE, "Hits that were admitted, by rule.");
pub const SHADOW_MODE: Family = family(
    "ratelimit_service_rate_limit_shadow_mode",
    Kind::Counter,
    RULE,
    "Hits beyond the limit of a rule in shadow mode.",
);
pub const OVER_LIMIT_LOCAL: Family = family(
    "ratelimit_service_rate_limit_over_limit_with_local_cache",
    Kind::Counter,
    RULE,
    "Hits refused from memory, without asking the store, by rule.",
);
pub const NEGATIVE_HITS: Family =
    family("ratelimit_service_rate_limit_total_negative_hits", Kind::Counter, RULE, "Hits given back, by rule.");
pub const DOMAIN_NOT_FOUND: Family = family(
    "ratelimit_service_rate_limit_domain_not_found",
    Kind::Counter,
    &[],
    "Descriptors asked for in a domain that has no rules.",
);
pub const GLOBAL_SHADOW: Family = family(
    "ratelimit_service_global_shadow_mode",
    Kind::Counter,
    &[],
    "Requests that were let through only because SHADOW_MODE is on.",
);
pub const CALL_ERRORS: Family = family(
    "ratelimit_service_should_rate_limit_error",
    Kind::Counter,
    &["err_type"],
    "Calls answered with an error: service_error (bad input) or redis_error (the store).",
);
pub const TOTAL_REQUESTS: Family =
    family("ratelimit_service_total_requests", Kind::Counter, &["grpc_method"], "gRPC calls.");
pub const RESPONSE_TIME: Family = family(
    "ratelimit_service_response_time_seconds",
    Kind::Histogram,
    &["grpc_method"],
    "Time from the decoded request to the answer.",
);
pub const LOAD_SUCCESS: Family =
    family("ratelimit_service_config_load_success", Kind::Counter, &[], "Rules loaded and put to use.");
pub const LOAD_ERROR: Family =
    family("ratelimit_service_config_load_error", Kind::Counter, &[], "Rules refused; the ones before stayed in use.");
pub const DECISIONS: Family = family(
    "sluice_decisions_total",
    Kind::Counter,
    &["domain", "rule", "result"],
    "Decisions by rule: allowed or refused.",
);
pub const HITS: Family = family("sluice_hits_total", Kind::Counter, &["domain", "rule"], "Hits asked for, by rule.");
pub const DECISION_DURATION: Family = family(
    "sluice_decision_duration_seconds",
    Kind::Histogram,
    &[],
    "Time to decide a request: rules, store and verdict.",
);
pub const RELOADS: Family = family(
    "sluice_reloads_total",
    Kind::Counter,
    &["result"],
    "Times the rules were read anew: applied, unchanged or failed.",
);
pub const DOMAINS: Family = family("sluice_domains", Kind::Gauge, &[], "Domains with rules in use.");
pub const RULES: Family = family("sluice_rules", Kind::Gauge, &[], "Rules in use.");
pub const GENERATION: Family =
    family("sluice_rules_generation", Kind::Gauge, &[], "How many sets of rules were put to use since the start.");
pub const STORE_ERRORS: Family = family(
    "sluice_store_errors_total",
    Kind::Counter,
    &["kind"],
    "Checks that the store could not decide: redis_error, timeout, bad_response, bad_types, breaker, panic.",
);
pub const DEGRADED: Family = family(
    "sluice_degraded_decisions_total",
    Kind::Counter,
    &["reason", "policy"],
    "Checks decided by on_store_failure, by why and how.",
);
pub const STORE_ENTRIES: Family = family("sluice_store_entries", Kind::Gauge, &[], "Counters in the embedded store.");
pub const STORE_EVICTIONS: Family = family(
    "sluice_store_evictions_total",
    Kind::Counter,
    &[],
    "Counters that the embedded store forgot while they still meant something, because it was full.",
);
pub const STORE_CALLS: Family = family(
    "sluice_store_call_duration_seconds",
    Kind::Histogram,
    &[],
    "Time of a script call to Redis, which decides one request or a batch of them.",
);
pub const BREAKER_TRIPS: Family = family(
    "sluice_store_breaker_trips_total",
    Kind::Counter,
    &[],
    "Times that a node of the store was found sick and was no longer asked.",
);
pub const STORE_WELL: Family =
    family("sluice_store_up", Kind::Gauge, &[], "1 if the store answers, 0 if the failure policy does.");
pub const CONNECTIONS: Family =
    family("sluice_connections", Kind::Gauge, &["door"], "Open connections, by door: grpc, http, debug, prometheus.");
pub const CONNECTIONS_CLOSED: Family = family(
    "sluice_connections_closed_total",
    Kind::Counter,
    &["door", "reason"],
    "Connections closed from this side: too_many, silent, flood, overdue, idle.",
);
pub const CALLS_IN_FLIGHT: Family =
    family("sluice_calls_in_flight", Kind::Gauge, &[], "Calls that are being answered.");
pub const CALLS_REFUSED: Family = family(
    "sluice_calls_refused_total",
    Kind::Counter,
    &[],
    "Calls refused because too many, or too many bytes of large ones, were under way.",
);
pub const CALLS_GIVEN_UP: Family = family(
    "sluice_calls_given_up_total",
    Kind::Counter,
    &[],
    "Calls whose callers had gone before there was an answer: Envoy resets those that take longer than its timeout.",
);
pub const TLS_EXPIRY: Family = family(
    "sluice_tls_certificate_expiry_seconds",
    Kind::Gauge,
    &[],
    "When the certificate that is served ends, in seconds since 1970. Only with TLS.",
);
pub const TLS_RELOADS: Family = family(
    "sluice_tls_reloads_total",
    Kind::Counter,
    &["result"],
    "New certificates: applied, or failed while the one before stayed in use. Only with TLS.",
);
pub const PANICS: Family = family(
    "sluice_panics_total",
    Kind::Counter,
    &[],
    "Mistakes of sluice that ended a call or a piece of work in the background; the log has the place.",
);
pub const BUILD_INFO: Family = family("sluice_build_info", Kind::Gauge, &["version"], "Always 1.");

/// All of them, in the order of the README.
pub const FAMILIES: &[Family] = &[
    TOTAL_HITS,
    OVER_LIMIT,
    NEAR_LIMIT,
    WITHIN_LIMIT,
    SHADOW_MODE,
    OVER_LIMIT_LOCAL,
    NEGATIVE_HITS,
    DOMAIN_NOT_FOUND,
    GLOBAL_SHADOW,
    CALL_ERRORS,
    TOTAL_REQUESTS,
    RESPONSE_TIME,
    LOAD_SUCCESS,
    LOAD_ERROR,
    DECISIONS,
    HITS,
    DECISION_DURATION,
    RELOADS,
    DOMAINS,
    RULES,
    GENERATION,
    STORE_ERRORS,
    DEGRADED,
    STORE_ENTRIES,
    STORE_EVICTIONS,
    STORE_CALLS,
    BREAKER_TRIPS,
    STORE_WELL,
    CONNECTIONS,
    CONNECTIONS_CLOSED,
    CALLS_IN_FLIGHT,
    CALLS_REFUSED,
    CALLS_GIVEN_UP,
    TLS_EXPIRY,
    TLS_RELOADS,
    PANICS,
    BUILD_INFO,
];
