use super::*;

#[tokio::test]
async fn a_caller_is_answered_200_until_the_limit_and_then_429() {
    let house = house();
    for remaining in ["1", "0"] {
        let reply = post(&house.router, question("user")).await;
        assert_eq!(reply.status, StatusCode::OK, "{}", reply.text);
        assert_eq!(reply.header("content-type"), Some("application/json"));
        assert_eq!(reply.header("ratelimit-limit"), Some("2"));
        assert_eq!(reply.header("ratelimit-remaining"), Some(remaining));
        assert_eq!(reply.header("retry-after"), None);
        assert_eq!(reply.json()["overallCode"], "OK");
    }
    let reply = post(&house.router, question("user")).await;
    assert_eq!(reply.status, StatusCode::TOO_MANY_REQUESTS);
    let json = reply.json();
    assert_eq!(json["overallCode"], "OVER_LIMIT");
    assert_eq!(json["statuses"][0]["currentLimit"], json!({"requestsPerUnit": 2, "unit": "YEAR"}));
    assert_eq!(json["statuses"][0].get("limitRemaining"), None);
    let reset = json["statuses"][0]["durationUntilReset"].as_str().unwrap();
    assert_eq!(Some(reset.trim_end_matches('s')), reply.header("retry-after"));
    assert_eq!(json["dynamicMetadata"]["domain"], "edge");
    assert_eq!(json["dynamicMetadata"]["descriptors"], json!([{"entries": ["user=alice"]}]));
}

#[tokio::test]
async fn bad_input_is_answered_400_with_one_sentence_and_counted() {
    let house = house();
    for (body, expected) in [
        ("{", "the body is not the JSON of a request: EOF while parsing an object at line 1 column 1\n"),
        (r#"{"domian": "a"}"#, "unknown field `domian` in the request: known are domain, descriptors, hitsAddend\n"),
        ("{}", "rate limit domain must not be empty: set `domain`\n"),
        (r#"{"domain": "edge"}"#, "rate limit descriptor list must not be empty: set `descriptors`\n"),
        (
            r#"{"domain": "edge", "descriptors": [{"limit": {"unit": 99}}]}"#,
            "descriptors[0].limit.unit is 99, which is no unit: use 1 (SECOND) to 6 (YEAR)\n",
        ),
    ] {
        let reply = post(&house.router, body).await;
        assert_eq!((reply.status, &*reply.text), (StatusCode::BAD_REQUEST, expected));
        assert_eq!(reply.header("content-type"), Some("text/plain; charset=utf-8"));
    }
    let scraped = get(&house.router, "/metrics").await.text;
    assert!(scraped.contains("ratelimit_service_should_rate_limit_error{err_type=\"service_error\"} 5"), "{scraped}");
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_refused() {
    let house = house();
    let reply = post(&house.router, " ".repeat(json::BODY_BYTES_MAX + 1)).await;
    assert_eq!(reply.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(reply.text, "the body is longer than 1048576 bytes\n");
    let padded = question("user") + &" ".repeat(json::BODY_BYTES_MAX - question("user").len());
    assert_eq!(post(&house.router, padded).await.status, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_arrive_is_given_up_on() {
    let house = house();
    let (_held, silent) = tokio::io::duplex(1);
    let body = Body::from_stream(tokio_util::io::ReaderStream::new(silent));
    let reply = post(&house.router, body).await;
    assert_eq!(reply.status, StatusCode::REQUEST_TIMEOUT);
}

#[tokio::test]
async fn json_is_asked_with_post() {
    let reply = get(&house().router, "/json").await;
    assert_eq!((reply.status, reply.header("allow")), (StatusCode::METHOD_NOT_ALLOWED, Some("POST")));
}

#[tokio::test]
async fn a_header_name_that_http_cannot_carry_is_left_out() {
    let reply = post(&house_with("not a name").router, question("user")).await;
    assert_eq!(reply.status, StatusCode::OK);
    assert_eq!(reply.header("ratelimit-remaining"), Some("1"));
    assert_eq!(reply.json()["responseHeadersToAdd"][0]["key"], "not a name");
}

#[tokio::test]
async fn an_unknown_path_is_404() {
    assert_eq!(get(&house().router, "/nowhere").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn health_follows_what_is_known() {
    let house = house();
    let health = async |path| {
        let reply = get(&house.router, path).await;
        (reply.status.as_u16(), reply.text)
    };
    assert_eq!(health("/livez").await, (200, "OK".to_owned()));
    assert_eq!(health("/healthcheck").await, (500, String::new()));
    assert_eq!(
        health("/readyz").await,
        (503, "rules: none are loaded yet, see the log or /config on the debug port\n".to_owned())
    );
    house.health.set_rules(1);
    assert_eq!(health("/healthcheck").await, (200, "OK".to_owned()));
    assert_eq!(health("/readyz").await, (200, "OK".to_owned()));
    house.health.set_draining();
    assert_eq!(health("/livez").await, (200, "OK".to_owned()));
    assert_eq!(health("/healthcheck").await, (500, String::new()));
    assert_eq!(health("/readyz").await, (503, "draining: the process is shutting down\n".to_owned()));
}

#[tokio::test]
async fn health_is_asked_with_any_method() {
    let house = house();
    house.health.set_rules(1);
    let reply = ask(&house.router, Method::POST, "/healthcheck", Body::empty(), None).await;
    assert_eq!((reply.status, &*reply.text), (StatusCode::OK, "OK"));
}

#[tokio::test]
async fn metrics_show_the_store_as_it_is() {
    let house = house();
    post(&house.router, question("user")).await;
    let reply = get(&house.router, "/metrics").await;
    assert_eq!(reply.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    assert!(reply.text.contains("\nsluice_store_entries 1\n"), "{}", reply.text);
    assert!(reply.text.contains("\nsluice_store_evictions_total 0\n"), "{}", reply.text);
    let hits = "ratelimit_service_rate_limit_total_hits{domain=\"edge\",key1=\"user\"} 1";
    assert!(reply.text.contains(hits), "{}", reply.text);
}

#[tokio::test]
async fn the_listener_of_metrics_has_them_at_its_path_alone() {
    let house = house();
    assert!(get(&house.metrics, "/scrape").await.text.contains("sluice_build_info"));
    let elsewhere = get(&house.metrics, "/metrics").await;
    assert_eq!(elsewhere.status, StatusCode::NOT_FOUND);
    assert_eq!(elsewhere.text, "nothing here: metrics are at /scrape\n");
    let posted = ask(&house.metrics, Method::POST, "/scrape", Body::empty(), None).await;
    assert_eq!(posted.status, StatusCode::METHOD_NOT_ALLOWED);
}
