//! The native API: the same rules and counters as Envoy's question, keys as `prefix:rest`, and a default where no rule is.

use tonic::Code;

use crate::{
    harness::{
        Server,
        grpc::{
            connect,
            native::{
                ConsumeAndCheckLimitRequest, ConsumeAndCheckLimitResponse, Entry, GetBucketStatusRequest,
                GetBucketStatusResponse, GetCurrentConfigRequest, RateStatus,
                rate_limiter_service_client::RateLimiterServiceClient,
            },
            request, wait,
        },
        wait_until,
    },
    servers,
};

const RULES: &str = r#"
domain: default
plans:
  gold: {algorithm: token_bucket, requests_per_unit: 1, unit: hour, burst: 5}
  daily: {requests_per_unit: 3, unit: year}
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 3, name: per_user}}
  - {key: allowed}
  - {key: boundless, rate_limit: {unlimited: true, name: no_end}}
  - {key: shadow, rate_limit: {unit: year, requests_per_unit: 1}, shadow_mode: true}
  - {key: chained, rate_limit: {plans: [gold, daily]}}
  - {key: bucket, rate_limit: {algorithm: token_bucket, unit: hour, requests_per_unit: 1, burst: 4, track_denials: true}}
  - key: several
    rate_limit:
      algorithm: leaky_bucket
      name: two_rates
      rates:
        - {name: slow, requests_per_unit: 1, unit: hour, burst: 10}
        - {name: slower, requests_per_unit: 1, unit: day, burst: 2}
  - key: tenant
    descriptors:
      - {key: path, value: "/api/*", rate_limit: {unit: year, requests_per_unit: 2}}
---
domain: other
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 1}}
"#;

fn key(limit_key: &str) -> ConsumeAndCheckLimitRequest {
    ConsumeAndCheckLimitRequest { limit_key: limit_key.to_owned(), ..Default::default() }
}

fn costing(limit_key: &str, cost: i64) -> ConsumeAndCheckLimitRequest {
    ConsumeAndCheckLimitRequest { cost: Some(cost), ..key(limit_key) }
}

fn entries(pairs: &[(&str, &str)]) -> Vec<Entry> {
    pairs.iter().map(|(key, value)| Entry { key: (*key).to_owned(), value: (*value).to_owned() }).collect()
}

fn try_consume(
    server: &Server,
    request: ConsumeAndCheckLimitRequest,
) -> Result<ConsumeAndCheckLimitResponse, tonic::Status> {
    wait(async {
        let mut client = RateLimiterServiceClient::new(connect(server.grpc()).await);
        client.consume_and_check_limit(request).await.map(tonic::Response::into_inner)
    })
}

#[track_caller]
fn consume(server: &Server, request: ConsumeAndCheckLimitRequest) -> ConsumeAndCheckLimitResponse {
    try_consume(server, request).expect("is answered")
}

fn try_status(server: &Server, request: GetBucketStatusRequest) -> Result<GetBucketStatusResponse, tonic::Status> {
    wait(async {
        let mut client = RateLimiterServiceClient::new(connect(server.grpc()).await);
        client.get_bucket_status(request).await.map(tonic::Response::into_inner)
    })
}

#[track_caller]
fn status(server: &Server, limit_key: &str) -> GetBucketStatusResponse {
    let request = GetBucketStatusRequest { limit_key: limit_key.to_owned(), ..Default::default() };
    try_status(server, request).expect("is answered")
}

#[track_caller]
fn one_rate(server: &Server, limit_key: &str) -> RateStatus {
    let mut rates = status(server, limit_key).rates;
    assert_eq!(rates.len(), 1, "{rates:?}");
    rates.remove(0)
}

#[test]
fn a_limit_is_used_up_and_then_refuses_with_a_time_to_come_back() {
    let server = Server::start(RULES);
    for remaining in [2, 1, 0] {
        let answer = consume(&server, key("user:alice"));
        assert!(answer.allowed);
        assert_eq!((answer.remaining_capacity, answer.limiting_rate_index), (Some(remaining), Some(0)));
        assert_eq!((&*answer.rule, answer.retry_after, answer.degraded), ("per_user", None, false));
    }
    let refused = consume(&server, key("user:alice"));
    assert!(!refused.allowed);
    assert_eq!(refused.remaining_capacity, Some(0));
    assert!(refused.retry_after.is_some_and(|retry| retry.seconds > 0), "{refused:?}");
    assert!(consume(&server, key("user:bob")).allowed);
}

#[test]
fn both_doors_charge_the_same_counter() {
    let server = Server::start(RULES);
    consume(&server, costing("user:alice:bob", 2));
    let answer = server.ask(request("default", &[("user", "alice:bob")])).expect("is answered");
    assert_eq!(answer.statuses[0].limit_remaining, 0);
    assert!(!consume(&server, key("user:alice:bob")).allowed);
}

#[test]
fn a_key_without_a_colon_has_an_empty_value() {
    let server = Server::start(RULES);
    assert_eq!(consume(&server, key("user")).remaining_capacity, Some(2));
    assert_eq!(consume(&server, key("user:")).remaining_capacity, Some(1));
}

#[test]
fn entries_lead_to_deeper_rules() {
    let server = Server::start(RULES);
    let ask = || ConsumeAndCheckLimitRequest {
        entries: entries(&[("tenant", "acme"), ("path", "/api/users")]),
        ..Default::default()
    };
    assert_eq!(consume(&server, ask()).remaining_capacity, Some(1));
    let last = consume(&server, ask());
    assert_eq!((last.remaining_capacity, &*last.rule), (Some(0), "tenant.path_/api/*"));
    assert!(!consume(&server, ask()).allowed);
}

#[test]
fn domains_are_apart_and_none_is_the_default_one() {
    let server = Server::start(RULES);
    let other = || ConsumeAndCheckLimitRequest { domain: "other".to_owned(), ..key("user:alice") };
    let default = ConsumeAndCheckLimitRequest { domain: "default".to_owned(), ..key("user:alice") };
    assert_eq!(consume(&server, other()).remaining_capacity, Some(0));
    assert!(!consume(&server, other()).allowed);
    assert_eq!(consume(&server, default).remaining_capacity, Some(2));
    assert_eq!(consume(&server, key("user:alice")).remaining_capacity, Some(1));
}

#[test]
fn a_cost_of_nothing_looks_and_one_beyond_the_limit_can_never_fit() {
    let server = Server::start(RULES);
    for _ in 0..5 {
        let look = consume(&server, costing("bucket:a", 0));
        assert_eq!((look.allowed, look.remaining_capacity), (true, Some(4)));
    }
    let never = consume(&server, costing("bucket:a", 5));
    assert_eq!((never.allowed, never.retry_after), (false, None));
    assert_eq!(consume(&server, costing("bucket:a", 4)).remaining_capacity, Some(0));
    let later = consume(&server, costing("bucket:a", 1));
    let retry = later.retry_after.expect("one hit fits again");
    assert!((3590..=3600).contains(&retry.seconds), "{retry:?}");
}

#[test]
fn bad_questions_are_invalid_and_name_the_field() {
    let server = Server::start(RULES);
    let with_entries = |limit_key: &str, pairs: &[(&str, &str)]| ConsumeAndCheckLimitRequest {
        entries: entries(pairs),
        ..key(limit_key)
    };
    let bad = [
        (key(""), "limit_key"),
        (key(":rest"), "limit_key"),
        (costing("user:a", -1), "cost"),
        (costing("user:a", i64::MAX), "cost"),
        (costing("user:a", i64::MIN), "cost"),
        (with_entries("user:a", &[("user", "a")]), "entries"),
        (with_entries("", &[("tenant", "a"), ("", "b")]), "entries[1].key"),
    ];
    for (request, field) in bad {
        let error = try_consume(&server, request.clone()).expect_err("is refused");
        assert_eq!(error.code(), Code::InvalidArgument, "{request:?}: {error}");
        assert!(error.message().contains(field), "{field} is not named: {error}");
    }
    let error = try_status(&server, GetBucketStatusRequest::default()).expect_err("is refused");
    assert_eq!(error.code(), Code::InvalidArgument);
    assert_eq!(consume(&server, costing("user:a", 0)).remaining_capacity, Some(3));
}

#[test]
fn a_domain_or_prefix_without_rules_gets_the_built_in_default() {
    let server = Server::builder().file("rules.yaml", RULES).env("NATIVE_DEFAULT_LIMIT", "1/hour burst 2").start();
    for (domain, limit_key) in [("", "nobody:alice"), ("unknown", "user:alice"), ("other", "nobody")] {
        let ask = || ConsumeAndCheckLimitRequest { domain: domain.to_owned(), ..key(limit_key) };
        let first = consume(&server, ask());
        assert_eq!((first.remaining_capacity, &*first.rule), (Some(1), "native_default"), "{domain} {limit_key}");
        assert!(consume(&server, ask()).allowed);
        let refused = consume(&server, ask());
        assert_eq!((refused.allowed, refused.deny_count), (false, 1), "{domain} {limit_key}");
    }
    assert!(consume(&server, key("nobody:bob")).allowed);
}

#[test]
fn the_default_is_a_hundred_per_second_with_a_burst_of_two_hundred() {
    let server = Server::start(RULES);
    let rate = one_rate(&server, "nobody:alice");
    assert_eq!((rate.flow_rate_per_second, rate.capacity, &*rate.algorithm), (100.0, 200, "token_bucket"));
}

#[test]
fn the_default_can_be_switched_off() {
    let server = Server::builder().file("rules.yaml", RULES).env("NATIVE_DEFAULT_LIMIT", "unlimited").start();
    let answer = consume(&server, costing("nobody:alice", 1_000_000));
    assert_eq!((answer.allowed, answer.remaining_capacity, &*answer.rule), (true, None, ""));
}

#[test]
fn a_prefix_that_the_rules_know_never_gets_the_default() {
    let server = Server::builder().file("rules.yaml", RULES).env("NATIVE_DEFAULT_LIMIT", "1/hour").start();
    for limit_key in ["allowed:a", "tenant:acme"] {
        for _ in 0..3 {
            let answer = consume(&server, key(limit_key));
            assert_eq!((answer.allowed, answer.remaining_capacity, &*answer.rule), (true, None, ""), "{limit_key}");
        }
    }
    let answer = consume(&server, costing("boundless:a", 1_000_000));
    assert_eq!((answer.allowed, answer.remaining_capacity, &*answer.rule), (true, None, "no_end"));
    let envoy = server.ask(request("default", &[("nobody", "alice")])).expect("is answered");
    assert!(envoy.statuses[0].current_limit.is_none(), "the default is for the native API alone");
}

#[test]
fn the_default_shares_no_counter_with_a_rule_that_comes_later() {
    let server = Server::builder().file("rules.yaml", RULES).env("NATIVE_DEFAULT_LIMIT", "1/hour burst 2").start();
    let asked = || ConsumeAndCheckLimitRequest { domain: "late".to_owned(), cost: Some(0), ..key("late:a") };
    let used_up = || consume(&server, ConsumeAndCheckLimitRequest { cost: Some(2), ..asked() });
    assert_eq!((&*used_up().rule, consume(&server, asked()).remaining_capacity), ("native_default", Some(0)));
    let rule = "algorithm: token_bucket, unit: hour, requests_per_unit: 1, burst: 2, name: late";
    server.write("late.yaml", &format!("domain: late\ndescriptors: [{{key: late, rate_limit: {{{rule}}}}}]"));
    wait_until("the rule is in force", || consume(&server, asked()).rule == "late");
    assert_eq!(consume(&server, asked()).remaining_capacity, Some(2));
}

#[test]
fn a_shadow_rule_allows_what_it_would_refuse() {
    let server = Server::start(RULES);
    consume(&server, key("shadow:a"));
    let over = consume(&server, key("shadow:a"));
    assert_eq!((over.allowed, over.remaining_capacity, over.retry_after), (true, Some(0), None));
}

#[test]
fn the_limiting_rate_is_counted_from_0_over_all_rates_and_plans() {
    let server = Server::start(RULES);
    let answer = consume(&server, costing("several:a", 2));
    assert_eq!((answer.remaining_capacity, answer.limiting_rate_index), (Some(0), Some(1)));
    let refused = consume(&server, key("several:a"));
    assert_eq!((refused.allowed, refused.limiting_rate_index, &*refused.rule), (false, Some(1), "two_rates"));
    // Of 5 and 3, the second has the least room; when both are short, the yearly one has the longest wait.
    assert_eq!(consume(&server, costing("chained:a", 3)).limiting_rate_index, Some(1));
    assert_eq!(consume(&server, costing("chained:a", 3)).limiting_rate_index, Some(1));
    // Beyond both limits the first of them governs: neither can ever hold it.
    assert_eq!(consume(&server, costing("chained:b", 6)).limiting_rate_index, Some(0));
}

#[test]
fn denials_are_counted_where_the_rule_tracks_them_until_one_is_admitted() {
    let server = Server::start(RULES);
    consume(&server, costing("bucket:a", 3));
    assert_eq!(consume(&server, costing("bucket:a", 2)).deny_count, 2);
    assert_eq!(consume(&server, costing("bucket:a", 2)).deny_count, 4);
    assert_eq!(one_rate(&server, "bucket:a").deny_count, 4);
    assert_eq!(consume(&server, costing("bucket:a", 1)).deny_count, 0);
    for _ in 0..5 {
        assert_eq!(consume(&server, key("user:alice")).deny_count, 0);
    }
}

#[test]
fn a_bucket_status_tells_every_rate_and_charges_nothing() {
    let server = Server::start(RULES);
    let fresh = status(&server, "several:a");
    assert!(fresh.rates.iter().all(|rate| rate.level == 0.0 && rate.last_update.is_none()), "{fresh:?}");
    assert!(fresh.rates.iter().all(|rate| rate.remaining == rate.capacity), "{fresh:?}");
    consume(&server, costing("several:a", 2));
    for _ in 0..3 {
        let standing = status(&server, "several:a");
        let [slow, slower] = &standing.rates[..] else { panic!("{standing:?}") };
        assert_eq!((&*standing.rule, &*slow.name, &*slower.name), ("two_rates", "slow", "slower"));
        assert_eq!((slow.capacity, slower.capacity, slower.remaining), (10, 2, 0));
        assert_eq!(slow.remaining, 8);
        assert!((1.9..=2.0).contains(&slow.level), "{standing:?}");
        assert_eq!(slow.flow_rate_per_second, 1.0 / 3600.0);
        assert!(slow.last_update.is_some_and(|at| at.seconds > 1_700_000_000), "{standing:?}");
    }
    assert_eq!(consume(&server, costing("several:a", 0)).remaining_capacity, Some(0));
}

/// With the patience of a busy machine: nothing here is about time.
fn on(redis: &servers::Server) -> Server {
    let builder = Server::builder().file("rules.yaml", RULES).env("REDIS_URL", &redis.url());
    let server = builder.env("REDIS_TIMEOUT", "30s").start();
    server.wait_for_store();
    server
}

#[test]
fn a_status_in_redis_tells_the_same() {
    for binary in [servers::REDIS, servers::VALKEY] {
        let redis = servers::Server::start(binary);
        let server = on(&redis);
        let fresh = one_rate(&server, "bucket:a");
        assert_eq!((fresh.level, fresh.remaining, fresh.last_update), (0.0, 4, None));
        assert!(consume(&server, costing("bucket:a", 3)).allowed);
        assert!(!consume(&server, costing("bucket:a", 2)).allowed);
        for _ in 0..3 {
            let standing = one_rate(&server, "bucket:a");
            assert_eq!((standing.remaining, standing.capacity, standing.deny_count), (1, 4, 2), "{standing:?}");
            assert!((2.9..=3.0).contains(&standing.level), "{standing:?}");
            assert!(standing.last_update.is_some_and(|at| at.seconds > 1_700_000_000), "{standing:?}");
        }
        let rates = status(&server, "several:a").rates;
        assert_eq!(rates.iter().map(|rate| rate.remaining).collect::<Vec<_>>(), [10, 2]);
        assert_eq!(consume(&server, costing("bucket:a", 1)).remaining_capacity, Some(0));
    }
}

#[test]
fn a_status_without_a_store_is_unavailable() {
    let redis = servers::Server::start(servers::REDIS);
    let server = on(&redis);
    one_rate(&server, "bucket:a");
    drop(redis);
    let request = || GetBucketStatusRequest { limit_key: "bucket:a".to_owned(), ..Default::default() };
    wait_until("the store is missed", || try_status(&server, request()).is_err());
    let error = try_status(&server, request()).expect_err("there is no store");
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    let degraded = consume(&server, key("bucket:a"));
    assert_eq!((degraded.allowed, degraded.degraded, degraded.remaining_capacity), (true, true, None));
}

#[test]
fn a_status_of_windows_plans_and_free_keys() {
    let server = Server::start(RULES);
    consume(&server, costing("user:alice", 2));
    let window = one_rate(&server, "user:alice");
    assert_eq!((window.level, window.remaining, &*window.algorithm), (2.0, 1, "fixed_window"));
    let chained = status(&server, "chained:a");
    let names: Vec<&str> = chained.rates.iter().map(|rate| &*rate.name).collect();
    assert_eq!(names, ["gold", "daily"]);
    assert_eq!(status(&server, "allowed:a"), GetBucketStatusResponse::default());
}

#[test]
fn the_config_lists_rules_by_domain_and_prefix_and_follows_a_reload() {
    let server = Server::start(RULES);
    let ask = |domain: &str| {
        let request = GetCurrentConfigRequest { domain: domain.to_owned() };
        wait(async {
            let mut client = RateLimiterServiceClient::new(connect(server.grpc()).await);
            client.get_current_config(request).await.expect("is answered").into_inner()
        })
    };
    let config = ask("");
    let known = server.config();
    assert_eq!((config.generation, &*config.hash), (1, known["hash"].as_str().expect("is text")));
    assert!(config.loaded_at.is_some());
    let domains: Vec<&str> = config.domains.iter().map(|domain| &*domain.domain).collect();
    assert_eq!(domains, ["default", "other"]);
    let prefixes: Vec<&str> = config.domains[0].prefixes.iter().map(|prefix| &*prefix.prefix).collect();
    assert_eq!(prefixes, ["allowed", "boundless", "bucket", "chained", "several", "shadow", "tenant", "user"]);

    let rule = |prefix: &str| {
        let found = config.domains[0].prefixes.iter().find(|known| known.prefix == prefix).expect("is there");
        found.rules[0].clone()
    };
    let several = rule("several");
    assert_eq!(&*several.name, "two_rates");
    assert_eq!((several.rates[1].burst, several.rates[1].flow_rate_per_second), (2, 1.0 / 86_400.0));
    assert_eq!((&*several.rates[1].name, &*several.rates[1].algorithm), ("slower", "leaky_bucket"));
    assert_eq!(rule("tenant").path, entries(&[("tenant", ""), ("path", "/api/*")]));
    assert!(rule("shadow").shadow_mode && rule("boundless").unlimited && rule("bucket").track_denials);
    assert_eq!(config.default_rate.map(|rate| rate.burst), Some(200));

    assert_eq!(ask("other").domains.len(), 1);
    server.write("more.yaml", "domain: third\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]");
    wait_until("the new domain is in force", || ask("third").domains.len() == 1);
    assert_eq!(ask("third").generation, 2);
}

#[test]
fn calls_are_counted_by_method_and_hits_by_rule() {
    let server = Server::start(RULES);
    consume(&server, costing("user:alice", 2));
    consume(&server, key("nobody:alice"));
    consume(&server, key("nobody:bob"));
    status(&server, "user:alice");
    let calls = |method: &str| server.metric(&format!("ratelimit_service_total_requests{{grpc_method=\"{method}\"}}"));
    assert_eq!((calls("ConsumeAndCheckLimit"), calls("GetBucketStatus"), calls("GetCurrentConfig")), (3.0, 1.0, 0.0));
    let hits =
        |key| server.metric(&format!("ratelimit_service_rate_limit_total_hits{{domain=\"default\",key1=\"{key}\"}}"));
    assert_eq!((hits("user"), hits("native_default")), (2.0, 2.0));
}

#[test]
fn debug_logs_say_which_rule_key_and_decision_and_info_says_nothing_of_requests() {
    let server = Server::builder().file("rules.yaml", RULES).env("LOG_LEVEL", "debug").start();
    consume(&server, costing("user:alice", 3));
    server.ask(request("default", &[("user", "alice")])).expect("is answered");
    server.wait_for_line(&["\"rule\":\"per_user\"", "4:user5:alice", "\"decision\":\"OK\"", "\"hits\":\"3\""]);
    server.wait_for_line(&["\"rule\":\"per_user\"", "4:user5:alice", "\"decision\":\"OVER_LIMIT\"", "\"hits\":\"1\""]);
    let quiet = Server::start(RULES);
    consume(&quiet, key("user:alice"));
    let (_, log) = quiet.stop();
    assert!(!log.iter().any(|line| line.contains("alice")), "{log:?}");
}

#[test]
fn one_byte_beyond_the_largest_message_is_out_of_range() {
    let server = Server::start(RULES);
    // The field takes four bytes beside its text. What fits is read, and then has a value that is too long.
    let text = |bytes: usize| key(&format!("user:{}", "x".repeat(bytes - 4 - "user:".len())));
    let code = |bytes| try_consume(&server, text(bytes)).expect_err("is too long").code();
    assert_eq!(code(256 << 10), tonic::Code::InvalidArgument);
    assert_eq!(code((256 << 10) + 1), tonic::Code::OutOfRange);
}
