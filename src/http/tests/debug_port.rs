use std::time::Duration;

use super::*;
use crate::load_report::LoadFailure;

#[tokio::test]
async fn the_debug_port_lists_its_paths_in_order() {
    let house = house();
    for path in ["/", "/nowhere"] {
        let reply = get(&house.debug, path).await;
        let paths: Vec<&str> = reply.text.lines().filter_map(|line| Some(line.split_once(": ")?.0)).collect();
        assert_eq!((reply.status, paths), (StatusCode::OK, vec!["/config", "/explain", "/reload", "/rlconfig"]));
    }
}

#[tokio::test]
async fn rlconfig_has_the_line_of_the_reference_for_each_rule_in_order() {
    let expected = "\
edge.user: unit=YEAR requests_per_unit=2, shadow_mode: false, quota_mode: false
edge.shadow: unit=MINUTE requests_per_unit=5, shadow_mode: true, quota_mode: false
edge.quota: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: true
edge.many: unit=SECOND requests_per_unit=10, shadow_mode: false, quota_mode: false, algorithm: leaky_bucket, \
burst: 100, rate: per_second
edge.many: unit=HOUR requests_per_unit=10000, shadow_mode: false, quota_mode: false, algorithm: leaky_bucket, \
burst: 10000, rate: per_hour
edge.plans: unit=SECOND requests_per_unit=50, shadow_mode: false, quota_mode: false, algorithm: token_bucket, \
burst: 200, plan: gold
edge.plans: unit=DAY requests_per_unit=7, shadow_mode: false, quota_mode: false, plan: daily
";
    assert_eq!(get(&house().debug, "/rlconfig").await.text, expected);
}

#[tokio::test]
async fn config_tells_where_the_rules_came_from() {
    let house = house();
    let time = |seconds| std::time::UNIX_EPOCH + Duration::from_secs(seconds);
    let fresh = get(&house.debug, "/config").await.json();
    assert_eq!(
        (&fresh["generation"], &fresh["loaded_at"], &fresh["last_error"]),
        (&json!(0), &Value::Null, &Value::Null)
    );
    house.report.publish(LoadReport {
        files: vec!["rules/edge.yaml".to_owned()],
        hash: "abc".to_owned(),
        generation: 3,
        loaded_at: Some(time(1_000_000_000)),
        last_error: Some(LoadFailure { at: time(1_000_000_060), errors: vec!["edge.yaml:3:1: no".to_owned()] }),
        domains: 1,
        rules: 5,
    });
    let expected = json!({
        "files": ["rules/edge.yaml"], "hash": "abc", "generation": 3, "loaded_at": "2001-09-09T01:46:40Z",
        "last_error": {"at": "2001-09-09T01:47:40Z", "errors": ["edge.yaml:3:1: no"]}, "domains": 1, "rules": 5,
    });
    assert_eq!(get(&house.debug, "/config").await.json(), expected);
}

#[tokio::test]
async fn explain_tells_the_state_of_a_counter_and_charges_nothing() {
    let house = house();
    post(&house.router, question("user")).await;
    let uri = "/explain?domain=edge&descriptor=user%3Dalice&descriptor=nobody=x";
    let before = get(&house.debug, uri).await.json();
    assert_eq!(before["descriptors"][0]["counters"][0]["state"]["used"], 1);
    assert_eq!(before["descriptors"][0]["counters"][0]["state"]["remaining"], 1);
    assert_eq!(before["descriptors"][1]["why"], "nothing_met");
    for _ in 0..5 {
        get(&house.debug, uri).await;
    }
    let after = get(&house.debug, uri).await.json();
    assert_eq!(after["descriptors"][0]["counters"][0]["state"]["used"], 1);
    let scraped = get(&house.router, "/metrics").await.text;
    let hits = "ratelimit_service_rate_limit_total_hits{domain=\"edge\",key1=\"user\"} 1";
    assert!(scraped.contains(hits), "{scraped}");
}

#[tokio::test]
async fn explain_is_readable_text_where_asked_for() {
    let house = house();
    let uri = "/explain?domain=edge&descriptor=user=alice";
    let by_header = ask(&house.debug, Method::GET, uri, Body::empty(), Some("text/plain")).await;
    assert!(by_header.text.starts_with("domain edge\n\ndescriptor 1: user=alice\n"), "{}", by_header.text);
    let by_query = get(&house.debug, &format!("{uri}&format=text")).await;
    assert!(by_query.text.starts_with("domain edge\n\ndescriptor 1: user=alice\n"), "{}", by_query.text);
    let json = ask(&house.debug, Method::GET, &format!("{uri}&format=json"), Body::empty(), Some("text/plain")).await;
    assert_eq!(json.header("content-type"), Some("application/json"));
}

#[tokio::test]
async fn any_text_survives_the_way_to_explain() {
    let (domain, descriptor) = ("ed&ge %+ü", r"user=a&b=c%20 +\,ß,plan=#?");
    let path = debug::explain_path(domain, &[descriptor.to_owned()], "json");
    let json = get(&house().debug, &path).await.json();
    assert_eq!(json["domain"], domain);
    let entries = json!([{"key": "user", "value": "a&b=c%20 +,ß"}, {"key": "plan", "value": "#?"}]);
    assert_eq!(json["descriptors"][0]["entries"], entries);
}

#[tokio::test]
async fn a_query_that_cannot_be_explained_is_answered_with_a_sentence() {
    let house = house();
    for (query, expected) in [
        ("", "no domain given: add domain=..\n"),
        ("?domain=edge", "no descriptor given: add descriptor=key=value,key=value\n"),
        ("?domain=a&domain=b", "domain is given twice\n"),
        ("?domain=edge&descriptor=a=b&format=xml", "format is \"xml\", expected text or json\n"),
        ("?domain=edge&descriptors=a=b", "unknown parameter \"descriptors\": known are domain, descriptor, format\n"),
        (
            "?domain=edge&descriptor=a",
            "entry 1 of \"a\" is \"a\", which has no `=`: write a=value, or \\, for a comma in a value\n",
        ),
    ] {
        let reply = get(&house.debug, &format!("/explain{query}")).await;
        assert_eq!((reply.status, &*reply.text), (StatusCode::BAD_REQUEST, expected));
    }
}

async fn ask_as(router: &Router, method: Method, path: &str, headers: &[(&str, &str)]) -> Reply {
    let request = Request::builder().method(method).uri(path);
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    reply(router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()).await
}

#[tokio::test]
async fn a_caller_who_used_a_name_that_anybody_can_own_is_refused() {
    let house = house();
    for path in ["/", "/config", "/rlconfig", "/explain?domain=edge&descriptor=user=alice", "/nowhere"] {
        let rebound = ask_as(&house.debug, Method::GET, path, &[("host", "evil.test:6070")]).await;
        assert_eq!(rebound.status, StatusCode::MISDIRECTED_REQUEST, "{path}");
        assert!(
            rebound.text.starts_with("this port answers to its address and to localhost, not to"),
            "{}",
            rebound.text
        );
        let twice = ask_as(&house.debug, Method::GET, path, &[("host", "localhost"), ("host", "evil.test")]).await;
        assert_eq!(twice.status, StatusCode::MISDIRECTED_REQUEST, "{path}");
        let ours = ask_as(&house.debug, Method::GET, path, &[("host", "localhost:6070")]).await;
        assert_eq!(ours.status, StatusCode::OK, "{path}");
    }
    let rebound = [("host", "evil.test"), ("x-sluice", "reload")];
    let reload = ask_as(&house.debug, Method::POST, "/reload", &rebound).await;
    assert_eq!(reload.status, StatusCode::MISDIRECTED_REQUEST);
}

#[tokio::test]
async fn what_only_reads_is_asked_with_get_and_nothing_else() {
    let house = house();
    for path in ["/", "/config", "/rlconfig", "/explain?domain=edge&descriptor=user=alice", "/nowhere"] {
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::PATCH, Method::OPTIONS] {
            let reply = ask_as(&house.debug, method, path, &[]).await;
            let allowed = (reply.status, reply.header("allow"));
            assert_eq!(allowed, (StatusCode::METHOD_NOT_ALLOWED, Some("GET,HEAD")), "{path}");
        }
        assert_eq!(ask_as(&house.debug, Method::HEAD, path, &[]).await.status, StatusCode::OK, "{path}");
    }
}

#[tokio::test]
async fn a_reload_needs_a_post_and_the_header() {
    let mut house = house();
    for method in [Method::GET, Method::HEAD, Method::PUT, Method::OPTIONS] {
        let reply = ask_as(&house.debug, method, "/reload", &[("x-sluice", "reload")]).await;
        assert_eq!((reply.status, reply.header("allow")), (StatusCode::METHOD_NOT_ALLOWED, Some("POST")));
    }
    let bare = ask_as(&house.debug, Method::POST, "/reload", &[("content-type", "text/plain")]).await;
    assert_eq!(bare.status, StatusCode::FORBIDDEN);
    assert!(house.asked.try_recv().is_err(), "nobody was asked to read the rules");

    let loading = async {
        let done: ReloadAsked = house.asked.recv().await.unwrap();
        let errors = vec!["edge.yaml:3:1: no".to_owned()];
        let last_error = Some(LoadFailure { at: std::time::UNIX_EPOCH, errors });
        house.report.publish(LoadReport { last_error, ..LoadReport::default() });
        done.send(()).unwrap();
    };
    let ask = ask_as(&house.debug, Method::POST, "/reload", &[("x-sluice", "reload")]);
    let (refused, ()) = tokio::join!(ask, loading);
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(refused.json()["last_error"]["errors"][0], "edge.yaml:3:1: no");
}
